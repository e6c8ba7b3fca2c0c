"""Speed of the CPU executor, in thread-instructions a second, and its memory.

    python3 tools/bench_executor.py                     forward attention, N=4, L=256, H=4, D=32
    python3 tools/bench_executor.py --workload 2,4,128,64 --arch sm_80 --repeats 10

A thread-instruction is an instruction that a thread of a warp comes to; a warp counts as 32. Times
are medians of calls of cuevo.attention after the first, which also makes the kernel ready. With
checks: all that docs/cpu-executor.md lists; without: SimExecutor(checks=False). Memory is the most
that the whole process has had. The second table is of all operations, with checks: of a product of
L x L matrices, too; "estimate" is what a warning of a long call says. The third is of kernels that
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


def estimates(
    workload: Workload, arrays: dict[str, Any], arguments: argparse.Namespace
) -> Iterator[tuple[str, str, str]]:
    """Of each operation its time, and what `cpu_seconds` says."""
    n, h, d, length = workload.rows, workload.heads, workload.head_dim, workload.length
    place = SimExecutor(arguments.arch)
    out, lse = attention(**arrays, return_lse=True, device=place)
    square = np.ones((length, length), np.float16)
    scores = n * h * length * length
    calls = {
        "attention": (partial(attention, **arrays), scores, d),
        "attention_backward": (
            partial(attention_backward, out, out=out, lse=lse, **arrays),
            scores,
            d,
        ),
        "gemm": (partial(gemm, square, square), length * length, length),
    }
    for name, (call, elements, depth) in calls.items():
        seconds = median(partial(call, device=place), arguments.repeats)
        yield name, f"{seconds:.3f}", f"{cpu_seconds(name, elements, depth):.3f}"


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
    print_rows(("", "s", "estimate"), list(estimates(workload, arrays, arguments)))
    print("\ncompiled by others, millions of thread-instructions, and of these a second\n")
    compiled = list(of_compilers(workload, arguments.repeats))
    print_rows(("", "M", "with checks", "without"), compiled)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"\nmost memory of the process: {peak / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
