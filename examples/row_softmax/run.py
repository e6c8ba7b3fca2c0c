"""softmax(a . b + bias): a kernel made of the building blocks, rendered, assembled, launched.

python examples/row_softmax/run.py              on the GPU if there is one, else the CPU executor
python examples/row_softmax/run.py sim:sm_90    where one likes
"""

import argparse
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from cuevo.arrays import contiguous_strides, view
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import executor_for
from cuevo.layouts import Operand, ThreadblockMma
from cuevo.toolchain.template import RenderedKernel, render

BLOCK_M = 64
WIDTHS = (32, 64, 128)
"""Columns of a threadblock that there are instances for."""


def instance(n: int, k: int, dtype: str, stages: int = 3) -> tuple[RenderedKernel, int]:
    """The kernel for a [any, k] and b [k, n] of "f16" or "bf16", and its shared memory in bytes.

    Raises ValueError where a row of n columns does not fit in a threadblock.
    """
    width = next((width for width in WIDTHS if n <= width), 0)
    if not width:
        raise ValueError(f"a row of {n} columns; a threadblock has at most {WIDTHS[-1]}")
    values: dict[str, Any] = {
        "dtype": dtype,
        "block_n": width,
        "stages": stages,
        "access": gcd(16, 2 * n, 2 * k),
        "exact": n % 2 == 0,
    }
    kernel = render("row_softmax", values, directory=Path(__file__).parent)
    common = ("m16n8k16", 128)
    a = Operand("a", BLOCK_M, 32, 16, False, *common)
    b = Operand("b", width, 32, width, True, *common)
    return kernel, ThreadblockMma(a, b, stages).shared_bytes


def row_softmax(a: Any, b: Any, bias: Any, device: str | None = None) -> Any:
    """softmax(a . b + bias) over the last axis, in float32.

    NumPy arrays a [M, K] and b [K, N], float16 or bfloat16, bias [N] float32; N at most 128. All
    contiguous, from a multiple of 16 bytes on.
    """
    (m, k), n = a.shape, b.shape[1]
    dtype = {"float16": "f16", "bfloat16": "bf16"}[str(a.dtype)]
    kernel, shared_bytes = instance(n, k, dtype)
    y = np.zeros((m, n), np.float32)
    arrays = {"a": a, "b": b, "bias": bias, "y": y}
    views = {name: view(x, name=name) for name, x in arrays.items()}
    for name, x in views.items():
        contiguous = x.strides == contiguous_strides(x.shape, x.dtype.itemsize)
        if x.size and (x.pointer % 16 or not contiguous):
            raise ValueError(f"{name}: must be contiguous and begin at a multiple of 16 bytes")
    place = executor_for(device, views)
    result = None
    if isinstance(place, DriverExecutor):
        views = {name: place.copy_to_device(x) for name, x in views.items()}
        result = place.empty(y.shape, y.dtype)
        views["y"] = result.view()
    params = kernel.params.pack(
        {**{name: x.pointer for name, x in views.items()}, "m": m, "n": n, "k": k}
    )
    grid = (-(-m // BLOCK_M), 1, 1)
    place.load(kernel).launch(grid, (128, 1, 1), shared_bytes, params, buffers=list(views.values()))
    return y if result is None else result.to_numpy()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("device", nargs="?", help="sim, sim:sm_90, cuda or cuda:0")
    device = parser.parse_args().device
    rng = np.random.default_rng(0)
    a = rng.standard_normal((200, 96)).astype(np.float16)
    b = rng.standard_normal((96, 100)).astype(np.float16)
    bias = rng.standard_normal(100).astype(np.float32)
    y = row_softmax(a, b, bias, device)
    scores = a.astype(np.float64) @ b.astype(np.float64) + bias
    expected = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    print(f"largest error {np.abs(y - expected).max():.1e}")


if __name__ == "__main__":
    main()
