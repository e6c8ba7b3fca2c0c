"""Speed of the CPU executor, in thread-instructions a second, and its memory.

    python3 tools/bench_executor.py                     forward attention, N=4, L=256, H=4, D=32
    python3 tools/bench_executor.py --workload 2,4,128,64 --arch sm_80 --repeats 10

A thread-instruction is an instruction that a thread of a warp comes to; a warp counts as 32. Times
are medians of calls of cuevo.attention after the first, which also makes the kernel ready. With
checks: all that docs/cpu-executor.md lists; without: SimExecutor(checks=False). Memory is the most
that the whole process has had. The second table is of all operations, with checks, at D and at 2 D:
of a product of L x L elements, too, with k = 8 D. "estimate" is what a warning of a long call says
of the second time; what follows is what cuevo.ops.cpu_time would have from these times: nanoseconds
for each score or element, and for each of the D or k products in it. The third is of kernels that
nvcc, Triton and Numba have compiled, tests/sim/compiled, for N x H heads and L.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from cuevo import attention, attention_backward, gemm
from cuevo.ops.cpu_time import cpu_seconds
from cuevo.sim import LoadedKernel, SimExecutor
from machine import circumstances
from report import print_rows
from workloads import Workload, select

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sim.compiled.from_python import runs

USUAL = Workload(4, 4, 256, 32)
REPEATS = 7


class Counting(SimExecutor):
    """Remembers the kernel that it ran last."""

    last: LoadedKernel | None = None

    def load(self, kernel: Any) -> LoadedKernel:
        self.last = super().load(kernel)
        return self.last


def build_parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    summary, _, details = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--workload", default=str(USUAL), metavar="N,H,L,D", help=f"({USUAL})")
    add("--arch", default="sm_80", help="architecture that the executor stands for (sm_80)")
    add("--repeats", type=int, default=REPEATS, metavar="COUNT", help=f"timed calls ({REPEATS})")
    return parser


def operands(workload: Workload) -> dict[str, Any]:
    """Normally distributed, bf16, with both biases."""
    rng = np.random.default_rng(0)
    n, h, d = workload.rows, workload.heads, workload.head_dim
    length = workload.length

    def normal(*shape: int) -> Any:
        return rng.normal(size=shape).astype(ml_dtypes.bfloat16)

    made = {name: normal(1, n, length, h, d) for name in "qkv"}
    return {
        **made,
        "mask_bias": normal(1, n, 1, 1, length),
        "pair_bias": normal(1, 1, h, length, length),
    }


def median(call: Callable[[], object], repeats: int) -> float:
    """Seconds of a call after the first."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def calls(workload: Workload, place: SimExecutor) -> dict[str, tuple[Callable[[], object], int]]:
    """Of each operation a call on `place`, and how many scores, or elements, it has."""
    arrays, length = operands(workload), workload.length
    out, lse = attention(**arrays, return_lse=True, device=place)
    left, right = (np.ones(shape, np.float16) for shape in ((length, workload.head_dim * 8),) * 2)
    scores = workload.rows * workload.heads * length * length
    backward = partial(attention_backward, out, out=out, lse=lse, **arrays)
    return {
        "attention": (partial(attention, **arrays, device=place), scores),
        "attention_backward": (partial(backward, device=place), scores),
        "gemm": (partial(gemm, left, right.T, device=place), length * length),
    }


def estimates(
    workload: Workload, arguments: argparse.Namespace
) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Of each operation the times at the head dim, or a k of eight times that, and at the double,
    what `cpu_seconds` says of the second, and the nanoseconds that it would have from these: for
    each element, and for each product in it.
    """
    place = SimExecutor(arguments.arch)
    depths = workload.head_dim, 2 * workload.head_dim
    both = [calls(replace(workload, head_dim=depth), place) for depth in depths]
    for name, (_, elements) in both[0].items():
        ks = [depth * (8 if name == "gemm" else 1) for depth in depths]
        first, second = (median(each[name][0], arguments.repeats) for each in both)
        products = 1e9 * (second - first) / elements / (ks[1] - ks[0])
        once = 1e9 * first / elements - products * ks[0]
        said = cpu_seconds(name, elements, ks[1])
        yield name, *(f"{x:.3f}" for x in (first, second, said)), f"{once:.0f}", f"{products:.1f}"


def executions(kernel: LoadedKernel | None) -> int:
    """Instructions that the warps of the last launch came to."""
    assert kernel is not None and kernel.profile is not None
    return sum(use.executions for use in kernel.profile.instructions)


def of_compilers(workload: Workload, repeats: int) -> Iterator[tuple[str, str, str, str]]:
    """Of each kernel its millions of thread-instructions, and of these a second, with checks and
    without.
    """
    for name, make in runs.of_size(workload.length, workload.rows * workload.heads).items():
        run = make()
        counted = run.load(SimExecutor(run.arch, profile=True))
        run.launch(counted)
        count = 32e-6 * executions(counted)
        kernels = [run.load(SimExecutor(run.arch, checks=checks)) for checks in (True, False)]
        seconds = [median(partial(run.launch, kernel), repeats) for kernel in kernels]
        yield name, f"{count:.2f}", f"{count / seconds[0]:.1f}", f"{count / seconds[1]:.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    (workload,) = select([arguments.workload])
    arrays = operands(workload)
    counting = Counting(arguments.arch, profile=True)
    attention(**arrays, device=counting)
    count = 32e-6 * executions(counting.last)
    rows = []
    for name, checks in (("with checks", True), ("without", False)):
        place = SimExecutor(arguments.arch, checks=checks)
        seconds = median(partial(attention, **arrays, device=place), arguments.repeats)
        rows.append((name, f"{seconds:.3f}", f"{count / seconds:.1f}"))
    facts = circumstances()
    print(f"{platform.machine()}, {facts['date']}  {facts['command']}")
    numba = version("numba") if find_spec("numba") else "none"
    print(f"python {platform.python_version()}  numpy {np.__version__}  numba {numba}")
    print(f"\nattention {workload}, {count:.2f} million thread-instructions\n")
    print_rows(("", "s", "M/s"), rows)
    print("\nestimates\n")
    headings = ("", "s", "s at the double", "estimate", "ns", "ns a product")
    print_rows(headings, list(estimates(workload, arguments)))
    print("\ncompiled by others, millions of thread-instructions, and of these a second\n")
    compiled = list(of_compilers(workload, arguments.repeats))
    print_rows(("", "M", "with checks", "without"), compiled)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"\nmost memory of the process: {peak / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
