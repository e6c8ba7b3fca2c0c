"""Tensor-core fragments: which lane and register hold which element of a matrix.

Source: PTX ISA, "Matrix fragments for mma.m16n8k8" and "... mma.m16n8k16", and the figures of
``ldmatrix``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]

WARP = 32


@dataclass(frozen=True, eq=False)
class Fragment:
    """Where the elements of a matrix are: lane, register and half of a register to row and column.

    >>> row, column = MMA_M16N8K16_A.rows[5, 1, 0], MMA_M16N8K16_A.columns[5, 1, 0]
    >>> int(row), int(column)      # the low half of the second register of lane 5
    (9, 2)
    """

    name: str
    shape: tuple[int, int]
    """Rows and columns of the matrix."""
    rows: Indices
    """(32, registers, elements in a register, low bits first)."""
    columns: Indices
    """Like `rows`."""

    @property
    def registers(self) -> int:
        """Registers that a lane holds."""
        return int(self.rows.shape[1])

    def gather(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """The lanes' elements, (32, registers, elements), of a matrix of `shape`."""
        return matrix[self.rows, self.columns]

    def scatter(self, elements: NDArray[Any]) -> NDArray[Any]:
        """The matrix of what the lanes hold, the inverse of `gather`."""
        matrix = np.zeros(self.shape, elements.dtype)
        matrix[self.rows, self.columns] = elements
        return matrix


def _fragment(name: str, *registers: tuple[int, int], along_rows: bool = False) -> Fragment:
    """Fragment of 16-bit elements, two a register; a register is of an 8x8 matrix.

    `registers` are the upper left corners of these matrices. Of each, lane l holds two neighbours
    in row ``l / 4``, or with `along_rows` in column ``l / 4``.
    """
    lane = np.arange(WARP)[:, None, None]
    corner = np.array(registers)[None, :, None, :]
    major = np.broadcast_to(lane // 4, (WARP, len(registers), 2))
    minor = 2 * (lane % 4) + np.arange(2) + np.zeros((len(registers), 1), int)
    row, column = (minor, major) if along_rows else (major, minor)
    row, column = row + corner[..., 0], column + corner[..., 1]
    return _frozen(name, row, column)


def _frozen(name: str, rows: Indices, columns: Indices) -> Fragment:
    rows, columns = np.ascontiguousarray(rows), np.ascontiguousarray(columns)
    rows.setflags(write=False)
    columns.setflags(write=False)
    return Fragment(name, (int(rows.max()) + 1, int(columns.max()) + 1), rows, columns)


def _one_a_register(name: str, pairs: Fragment) -> Fragment:
    """The same elements in the same order, 32 bits wide."""
    return _frozen(name, pairs.rows.reshape(WARP, -1, 1), pairs.columns.reshape(WARP, -1, 1))


MMA_M16N8K8_A = _fragment("mma.m16n8k8 A", (0, 0), (8, 0))
"""[m, k], 16-bit."""
MMA_M16N8K8_B = _fragment("mma.m16n8k8 B", (0, 0), along_rows=True)
"""[k, n], 16-bit."""
MMA_M16N8K16_A = _fragment("mma.m16n8k16 A", (0, 0), (8, 0), (0, 8), (8, 8))
"""[m, k], 16-bit."""
MMA_M16N8K16_B = _fragment("mma.m16n8k16 B", (0, 0), (8, 0), along_rows=True)
"""[k, n], 16-bit."""
MMA_M16N8_F16 = _fragment("mma.m16n8 accumulator f16", (0, 0), (8, 0))
"""[m, n]: C and D of m16n8k8 and m16n8k16 with fp16 accumulators."""
MMA_M16N8_F32 = _one_a_register("mma.m16n8 accumulator f32", MMA_M16N8_F16)
"""[m, n]: C and D of m16n8k8 and m16n8k16 with fp32 accumulators."""

LDMATRIX = _fragment("ldmatrix", (0, 0))
"""One 8x8 matrix: [row address, 16-bit element of the row]. Register i of ``.x2`` and ``.x4`` holds
matrix i, whose row addresses lanes 8*i to 8*i + 7 supply."""
LDMATRIX_TRANS = _fragment("ldmatrix.trans", (0, 0), along_rows=True)
"""The same with ``.trans``, still indexed by [row address, element of the row]."""
