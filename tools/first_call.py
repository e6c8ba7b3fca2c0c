"""What a new process waits for until its first call has returned: the import of cuevo, the modules
that a call imports, the call itself, with a warm cache of kernels or an empty one.

    python3 tools/first_call.py
    python3 tools/first_call.py --empty-cache
    python3 tools/first_call.py --empty-cache --installed
    python3 tools/first_call.py --device cpu --processes 5

With ``--installed`` it is the cuevo that is installed, from a wheel for example, which has compiled
templates, and not the one of this checkout.

Milliseconds, medians over new processes. On a GPU, where torch has to be installed, arrays are
tensors that are there before cuevo is imported, so that the device's context, which torch makes, is
in no figure. On the CPU executor the calls run a small kernel, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

ROWS = {
    "import cuevo": "imported",
    "modules that a call imports": "modules",
    "first call, modules imported before": "first",
    "second call": "second",
}
"""What is measured, by the names that it has here."""


CHECKOUT = Path(__file__).resolve().parent.parent


def arrays_on(device: str) -> tuple[dict[str, Any], Callable[[], None]]:
    """Operands and biases of a call, and what waits for the device."""
    if device == "cuda":
        import torch

        def normal(*shape: int) -> Any:
            return torch.randn(shape, device="cuda").bfloat16()

        wait, n, length, h, d = torch.cuda.synchronize, 128, 256, 4, 32
    else:
        import numpy as np

        def normal(*shape: int) -> Any:
            return np.ones(shape, np.float16)

        def wait() -> None: ...

        n, length, h, d = 2, 16, 1, 8
    tensors = {name: normal(1, n, length, h, d) for name in "qkv"}
    mask, pair = normal(1, n, 1, 1, length), normal(1, 1, h, length, length)
    wait()
    return {**tensors, "mask_bias": mask, "pair_bias": pair}, wait


def measure_here(device: str, modules: Sequence[str]) -> dict[str, Any]:
    """Seconds of this process, the first of whose imports of cuevo this is; `new`: the modules that
    its first call has imported beside those given, which are imported before.
    """
    arrays, wait = arrays_on(device)
    times = [time.perf_counter()]
    import cuevo

    times.append(time.perf_counter())
    for name in modules:
        with suppress(ImportError):  # such as have no file
            import_module(name)
    known = set(sys.modules)
    times.append(time.perf_counter())
    for _ in range(2):
        cuevo.attention(**arrays)
        wait()
        times.append(time.perf_counter())
    spans = [end - start for start, end in pairwise(times)]
    new = [name for name in sys.modules if name not in known]
    return {**dict(zip(ROWS.values(), spans, strict=True)), "new": new}


def measure_anew(
    device: str, modules: Sequence[str], cache: str | None = None, *, installed: bool = False
) -> dict[str, Any]:
    """`measure_here` in a new process; cache: its folder of kernels, in the place of the usual."""
    command = [sys.executable, __file__, "--device", device, "--child"]
    environment = {**os.environ, **({"CUEVO_CACHE_DIR": cache} if cache else {})}
    if not installed:
        places = [str(CHECKOUT), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    done = subprocess.run(
        command,
        input=json.dumps([*modules]),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure_with_empty_cache(
    device: str, modules: Sequence[str], *, installed: bool = False
) -> dict[str, Any]:
    """`measure_anew` with a cache of kernels that has nothing yet."""
    with tempfile.TemporaryDirectory() as cache:
        return measure_anew(device, modules, cache, installed=installed)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--processes", type=int, default=9, metavar="COUNT", help="%(default)s")
    parser.add_argument(
        "--empty-cache", action="store_true", help="each process renders and assembles its kernels"
    )
    parser.add_argument("--installed", action="store_true", help="not the cuevo of this checkout")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        print(json.dumps(measure_here(arguments.device, json.load(sys.stdin))))
        return 0
    try:
        where = {"installed": arguments.installed}
        measure_anew(arguments.device, (), **where)  # its imports are those of a cold cache, too
        modules = measure_anew(arguments.device, (), **where)["new"]
        measure = measure_with_empty_cache if arguments.empty_cache else measure_anew
        found = [measure(arguments.device, modules, **where) for _ in range(arguments.processes)]
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    from machine import circumstances
    from report import print_rows

    record = circumstances()
    print(f"{arguments.device}, {record['date']}  {record['command']}")
    rows = []
    for label, name in ROWS.items():
        spans = [1e3 * each[name] for each in found]
        rows.append([label, *(f"{f(spans):.1f}" for f in (statistics.median, min, max))])
    print_rows(("ms", "median", "least", "most"), rows)
    return 0


if __name__ == "__main__":
    if "--child" not in sys.argv:  # whose cuevo is chosen by its environment
        sys.path.insert(0, str(CHECKOUT))
    raise SystemExit(main())
