"""Launches of the kernels beside, and of a product of matrices by nvcc, with random operands."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sim.compiled import texts as of_nvcc
from sim.compiled.from_python.texts import stored
from sim.compiled.running import aligned
from sim.conftest import Buffer

from cuevo.sim import LoadedKernel, SimExecutor

_TILE = _DEPTH = 64
_FLASH_SHARED = {"sm_80": 24576, "sm_90a": 40960}
"""Bytes of dynamic shared memory, as Triton has them in its metadata."""


@dataclass(frozen=True)
class Run:
    arch: str
    text: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    parameters: bytes
    given: tuple[Any, ...]
    out: Any
    expected: Any
    tolerance: float

    def load(self, executor: SimExecutor) -> LoadedKernel:
        return executor.load_text(self.entry, self.text)

    def launch(self, kernel: LoadedKernel) -> None:
        buffers = [*(Buffer(each, True) for each in self.given), Buffer(self.out)]
        kernel.launch(self.grid, self.block, self.shared, self.parameters, buffers=buffers)

    def distance(self) -> float:
        """How far results are off, relative to what is allowed."""
        return float(np.abs(self.out - self.expected).max()) / self.tolerance


def flash(arch: str, heads: int, rows: int, keys: int) -> Run:
    """Flash attention by Triton."""
    rng, scale = np.random.default_rng(0), 0.125
    q, k, v = (
        aligned(rng.normal(size=(heads, length, _DEPTH)).astype("f2"))
        for length in (rows, keys, keys)
    )
    out = aligned(np.zeros_like(q))
    pointers = np.array([each.ctypes.data for each in (q, k, v, out)], "u8").tobytes()
    sizes = np.array([scale], "f4").tobytes() + np.array([rows, keys], "i4").tobytes() + bytes(4)
    scores = scale * q.astype("f8") @ k.astype("f8").transpose(0, 2, 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v.astype("f8")
    return Run(
        arch, stored()[f"flash.{arch}"], "flash_forward", (-(-rows // _TILE), heads, 1),
        (128, 1, 1), _FLASH_SHARED[arch], pointers + sizes + bytes(16), (q, k, v), out, expected,
        4e-3,
    )  # fmt: skip


def softmax(rows: int, columns: int) -> Run:
    """The softmax of rows by Numba, in which an array is nine parameters."""
    source = aligned(np.random.default_rng(0).normal(size=(rows, columns)).astype("f4"))
    target = aligned(np.zeros_like(source))
    arrays = [
        [0, 0, each.size, each.itemsize, each.ctypes.data, *each.shape, *each.strides]
        for each in (source, target)
    ]
    parameters = np.array(arrays, "u8").tobytes() + np.array([columns], "i4").tobytes()
    text = stored()["softmax.sm_80"]
    found = re.search(r"\.entry (\w+)", text)
    assert found is not None
    weights = np.exp(source.astype("f8"))
    expected = weights / weights.sum(1, keepdims=True)
    return Run(
        "sm_80", text, found[1], (rows, 1, 1), (32, 1, 1), 0, parameters, (source,), target,
        expected, 1e-6,
    )  # fmt: skip


def product(n: int) -> Run:
    """Tiles of 8 x 8 in shared memory, by nvcc."""
    given = aligned(np.random.default_rng(0).normal(size=(2, n, n)).astype("f4"))
    out = aligned(np.zeros((n, n), "f4"))
    parameters = np.array([given.ctypes.data, out.ctypes.data], "u8").tobytes()
    return Run(
        "sm_80", of_nvcc.stored()["matrices.O3"], "float_product", (n // 8, n // 8, 1), (8, 8, 1),
        0, parameters + np.array([n], "i4").tobytes(), (given,), out,
        given[0].astype("f8") @ given[1], 1e-5 * n,
    )  # fmt: skip


def of_size(length: int, heads: int) -> dict[str, Callable[[], Run]]:
    """All of them, for sequences of that length, a multiple of 8."""
    return {
        "tiled product, nvcc": lambda: product(length),
        "flash attention for sm_80, Triton": lambda: flash("sm_80", heads, length, length),
        "flash attention for sm_90a, Triton": lambda: flash("sm_90a", heads, length, length),
        "softmax, Numba": lambda: softmax(length, length),
    }
