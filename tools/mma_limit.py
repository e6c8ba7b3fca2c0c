"""The bound of a matrix product by `mma.sync`: the same mma with nothing that feeds them.

The kernel is in tools/mma_alone.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

from cuevo.arrays import view
from cuevo.executors.placement import executor_for
from cuevo.toolchain.template import RenderedKernel, render

BLOCK_M, BLOCK_N = 128, 256
"""The threadblock tile that gemm_sm80 takes for large products."""
THREADS = 256
K_OF_ITERATION = 64
FRAGMENTS = (32, 64)
"""Shape of a warp's fragments, 16-bit numbers: 32 registers a lane."""


def instance(dtype: str) -> RenderedKernel:
    """The kernel for "bf16" or "fp16"."""
    values = {"dtype": {"bf16": "bf16", "fp16": "f16"}[dtype]}
    return render("mma_alone", values, directory=Path(__file__).parent / "mma_alone")


def threads(size: tuple[int, int, int]) -> int:
    """Threads of a product of M, N, K."""
    m, n, _ = size
    return ceil(m / BLOCK_M) * ceil(n / BLOCK_N) * THREADS


def mma_alone(
    size: tuple[int, int, int], dtype: str, fragments: Any, sums: Any, device: str | None = None
) -> Callable[[], None]:
    """A call that does the mma of a product of M, N, K, in whole tiles, and nothing else.

    `fragments` is an array of `dtype`, of the shape `FRAGMENTS`; `sums` has a float32 for each of
    `threads(size)`. They say where it runs, if `device` does not.
    """
    given = {"fragments": fragments, "sums": sums}
    views = {name: view(array, name=name) for name, array in given.items()}
    kernel = instance(dtype)
    loaded = executor_for(device, views).load(kernel)
    iterations = ceil(size[2] / K_OF_ITERATION)
    pointers = {name: each.pointer for name, each in views.items()}
    params = bytes(kernel.params.pack({**pointers, "iterations": iterations}))
    grid = (threads(size) // THREADS, 1, 1)
    buffers = [*views.values()]
    return lambda: loaded.launch(grid, (THREADS, 1, 1), 0, params, buffers=buffers)
