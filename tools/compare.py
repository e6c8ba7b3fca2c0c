"""This checkout's operations beside those of another checkout, on one device, in turns.

    python3 tools/compare.py OTHER              OTHER: a folder that holds another cuevo/ and ptx/
    python3 tools/compare.py OTHER --json PATH  everything, too
    python3 tools/compare.py OTHER --forward 300,4,301,32 --backward D=32
                                                these calls only, as tools/bench.py names them
    python3 tools/compare.py OTHER --biases mask
                                                attention with this bias alone; or pair, or none

Two packages named cuevo are imported into one process, and get the same arrays. Columns: device
time of a call by events, contenders taking turns on rotating inputs; that of a call behind others
like it; the ratio of each two; host time of a repeated call; and whether the results on the first
input set have the same bits.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from backends import MASKS, Backend, open_backend
from cuevo.ops.tuning.measure import Entrant, Times, time_interleaved, warm_up
from machine import circumstances
from measure import burst_length, host_microseconds, time_in_a_row
from report import print_rows, progress
from workloads import Workload, select

BIASES = {
    "both": {},
    "pair": {"mask_bias": None},
    "mask": {"pair_bias": None},
    "none": {"mask_bias": None, "pair_bias": None},
}
"""What attention has in place of its biases, by which of them it is to have."""
REPEATS = 60
BURSTS = 12
HOST_CALLS = 200
INPUT_SETS = 3
FORWARD = (
    Workload(256, 4, 256, 32),
    Workload(384, 4, 384, 32),
    Workload(768, 4, 768, 32),
    Workload(769, 4, 769, 32),
    Workload(512, 4, 512, 64),
    Workload(48, 16, 768, 24),
)
BACKWARD = (Workload(128, 8, 256, 32), Workload(384, 4, 384, 32), Workload(768, 4, 768, 32))
PRODUCTS = ((1024, 1024, 1024), (4096, 4096, 4096), (2048, 2048, 64), (256, 256, 8192))

Call = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One call, by both checkouts."""

    call: str
    this: Times
    """Milliseconds."""
    other: Times
    this_in_a_row: Times
    other_in_a_row: Times
    this_host: float
    """Microseconds."""
    other_host: float
    same_bits: bool


class Checkout:
    """The package cuevo of a folder, beside that of this checkout."""

    def __init__(self, folder: Path) -> None:
        """Import it. Raises ValueError for a folder that holds none."""
        self._modules: dict[str, ModuleType] = {}
        with self.active():
            sys.path.insert(0, str(folder.resolve()))
            try:
                self.package = importlib.import_module("cuevo")
                for name in self.package.__all__:
                    getattr(self.package, name)  # imported now: later, another cuevo is found
            finally:
                sys.path.pop(0)
        found = Path(str(self.package.__file__)).parent
        if found != folder.resolve() / "cuevo":
            raise ValueError(f"{folder} holds no cuevo; {found} was imported")

    @contextmanager
    def active(self) -> Iterator[None]:
        """Its modules are those that imports find, such as those in functions."""
        kept = _imported.take()
        _imported.put(self._modules)
        try:
            yield
        finally:
            self._modules = _imported.take()
            _imported.put(kept)


class _Imported:
    """The modules of cuevo among all that are imported.

    They are looked for only where others have been imported since: there are thousands, which takes
    longer than the device is kept busy ahead of a turn.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._count = 0
        """Of all modules, when these were put there."""

    def take(self) -> dict[str, ModuleType]:
        """Take them out."""
        if len(sys.modules) != self._count:
            self._names = [name for name in sys.modules if name.partition(".")[0] == "cuevo"]
        return {name: sys.modules.pop(name) for name in self._names}

    def put(self, modules: dict[str, ModuleType]) -> None:
        """Put these in the place of those that have been taken out."""
        sys.modules.update(modules)
        self._names, self._count = [*modules], len(sys.modules)


_imported = _Imported()


def forward(package: ModuleType, inputs: Any, out: Any) -> Any:
    biases = dict(mask_bias=inputs.mask_bias, pair_bias=inputs.pair_bias)
    return package.attention(inputs.q, inputs.k, inputs.v, **biases, out=out)


def backward(package: ModuleType, inputs: Any, dout: Any, out: Any, lse: Any) -> Any:
    biases = dict(mask_bias=inputs.mask_bias, pair_bias=inputs.pair_bias)
    return package.attention_backward(dout, inputs.q, inputs.k, inputs.v, out, lse, **biases)


def forward_calls(
    biases: str, backend: Backend, packages: Sequence[ModuleType], size: Workload
) -> list[Any]:
    made = (backend.inputs(size, "bf16", seed) for seed in range(INPUT_SETS))
    sets = [replace(x, **BIASES[biases]) for x in made]
    out = backend.normal((1, size.rows, size.length, size.heads, size.head_dim), "bf16", 0)
    return [[partial(forward, package, each, out) for each in sets] for package in packages]


def backward_calls(
    biases: str, backend: Backend, packages: Sequence[ModuleType], size: Workload
) -> list[Any]:
    sets = []
    for seed in range(INPUT_SETS):
        x = replace(backend.inputs(size, "bf16", seed), **BIASES[biases])
        dout = backend.normal(tuple(x.q.shape), "bf16", seed + INPUT_SETS)
        given = dict(mask_bias=x.mask_bias, pair_bias=x.pair_bias)
        out, lse = packages[0].attention(x.q, x.k, x.v, **given, return_lse=True)
        sets.append((x, dout, out, lse))
    return [[partial(backward, package, *each) for each in sets] for package in packages]


def product_calls(
    backend: Backend, packages: Sequence[ModuleType], size: tuple[int, int, int]
) -> list[Any]:
    m, n, k = size
    sets = [
        (backend.normal((m, k), "bf16", seed), backend.normal((k, n), "bf16", seed + INPUT_SETS))
        for seed in range(INPUT_SETS)
    ]
    out = backend.normal((m, n), "bf16", 0)
    return [[partial(package.gemm, *each, out=out) for each in sets] for package in packages]


def compare(backend: Backend, label: str, calls: Sequence[Sequence[Call]], other: Checkout) -> Row:
    """Both contenders' calls, this checkout's first."""
    this_calls, other_calls = calls
    entrants = {"this": Entrant(this_calls), "other": Entrant(other_calls, other.active)}
    for entrant in entrants.values():
        warm_up(entrant, backend)
    first = [_on_host(backend, entrant) for entrant in entrants.values()]
    same = all(np.array_equal(x, y, equal_nan=True) for x, y in zip(*first, strict=True))
    times = time_interleaved(entrants, backend, REPEATS)
    in_a_row = time_in_a_row(entrants, backend, burst_length(times["this"].median), BURSTS)
    # Turn and turn about again: the host's speed changes, too.
    hosts: dict[str, list[float]] = {name: [] for name in entrants}
    for _ in range(3):
        for name, entrant in entrants.items():
            hosts[name].append(host_microseconds(entrant, backend, HOST_CALLS, bursts=3))
    least = {name: min(found) for name, found in hosts.items()}
    return Row(
        label,
        times["this"],
        times["other"],
        in_a_row["this"],
        in_a_row["other"],
        least["this"],
        least["other"],
        same,
    )


def _on_host(backend: Backend, entrant: Entrant) -> list[Any]:
    """The results of the first call."""
    with entrant.context():
        made = entrant.calls[0]()
    results = made if isinstance(made, tuple) else (made,)
    return [backend.part(x, ()) for x in results if x is not None]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="a folder with another cuevo/ and ptx/")
    for name in ("forward", "backward"):
        parser.add_argument(f"--{name}", action="append", metavar="W", help="only this workload")
    parser.add_argument(
        "--mask", choices=MASKS, default="random", help="which keys the mask bias takes out"
    )
    parser.add_argument(
        "--biases", choices=BIASES, default="both", help="which biases attention has"
    )
    parser.add_argument("--json", type=Path, help="where everything is written, too")
    arguments = parser.parse_args(argv)
    some = arguments.forward or arguments.backward
    try:
        forward, backward = (
            select(asked, known) if asked or not some else ()
            for asked, known in ((arguments.forward, FORWARD), (arguments.backward, BACKWARD))
        )
    except ValueError as error:
        parser.error(str(error))
    try:
        backend = open_backend(mask=arguments.mask)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    other = Checkout(arguments.other)
    packages = importlib.import_module("cuevo"), other.package
    record = {**circumstances(), "device": asdict(backend.facts)}
    operations: tuple[tuple[str, Sequence[Any], Callable[..., Any]], ...] = (
        ("forward", forward, partial(forward_calls, arguments.biases)),
        ("backward", backward, partial(backward_calls, arguments.biases)),
        ("product", () if some else PRODUCTS, product_calls),
    )
    rows = []
    for name, sizes, calls in operations:
        for size in sizes:
            label = f"{name} {','.join(map(str, size)) if isinstance(size, tuple) else size}"
            progress(label)
            rows.append(compare(backend, label, calls(backend, packages, size), other))
            backend.release()
    print(f"{backend.facts.name}, {record['date']}  {record['command']}")
    print_rows(
        (
            *("call", "this, ms", "other", "ratio", "in a row, ms", "other", "ratio"),
            *("host, us", "other", "same bits"),
        ),
        [
            (
                row.call,
                f"{row.this.median:.4f}",
                f"{row.other.median:.4f}",
                f"{row.this.median / row.other.median:.3f}",
                f"{row.this_in_a_row.median:.4f}",
                f"{row.other_in_a_row.median:.4f}",
                f"{row.this_in_a_row.median / row.other_in_a_row.median:.3f}",
                f"{row.this_host:.1f}",
                f"{row.other_host:.1f}",
                "yes" if row.same_bits else "NO",
            )
            for row in rows
        ],
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({**record, "rows": list(map(asdict, rows))}, indent=1))
    return 0 if all(row.same_bits for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
