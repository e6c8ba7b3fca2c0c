"""Tensor-core fragments: which lane and register hold which element of a matrix.

Source: PTX ISA, "Matrix fragments for mma.m8n8k4", "... mma.m16n8k4", "... mma.m16n8k8",
"... mma.m16n8k16", "... mma.m16n8k32" and "... wgmma.mma_async.m64nNk16", and the figures of
``ldmatrix``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]

WARP = 32
WARPGROUP = 128


@dataclass(frozen=True, eq=False)
class Fragment:
    """Where the elements of a matrix are: lane, register and part of a register to row and column.

    >>> row, column = MMA_M16N8K16_A.rows[5, 1, 0], MMA_M16N8K16_A.columns[5, 1, 0]
    >>> int(row), int(column)      # the low half of the second register of lane 5
    (9, 2)
    """

    name: str
    shape: tuple[int, int]
    """Rows and columns of the matrix."""
    rows: Indices
    """(lanes, registers, elements in a register, low bits first); the lanes are those of a warp, or
    the threads of a warpgroup."""
    columns: Indices
    """Like `rows`."""

    @classmethod
    def from_places(cls, name: str, rows: Indices, columns: Indices) -> Self:
        """The fragment with these `rows` and `columns`, of which it makes copies."""
        rows, columns = rows.copy(), columns.copy()
        rows.setflags(write=False)
        columns.setflags(write=False)
        return cls(name, (int(rows.max()) + 1, int(columns.max()) + 1), rows, columns)

    @property
    def lanes(self) -> int:
        """Lanes that hold the matrix: 32, or 128."""
        return int(self.rows.shape[0])

    @property
    def registers(self) -> int:
        """Registers that a lane holds."""
        return int(self.rows.shape[1])

    def gather(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """The lanes' elements, (lanes, registers, elements), of a matrix of `shape`."""
        return matrix[self.rows, self.columns]

    def scatter(self, elements: NDArray[Any]) -> NDArray[Any]:
        """The matrix of what the lanes hold, the inverse of `gather`."""
        matrix = np.zeros(self.shape, elements.dtype)
        matrix[self.rows, self.columns] = elements
        return matrix


def _fragment(
    name: str, *registers: tuple[int, int], along_rows: bool = False, elements: int = 2
) -> Fragment:
    """Fragment of 16-bit elements, two a register, or of any of which one has `elements`; a
    register is of a matrix of 8 rows of 16 bytes.

    `registers` are the upper left corners of these matrices. Of each, lane l holds neighbours in
    row ``l / 4``, or with `along_rows` in column ``l / 4``.
    """
    lane = np.arange(WARP)[:, None, None]
    corner = np.array(registers)[None, :, None, :]
    major = np.broadcast_to(lane // 4, (WARP, len(registers), elements))
    minor = elements * (lane % 4) + np.arange(elements) + np.zeros((len(registers), 1), int)
    row, column = (minor, major) if along_rows else (major, minor)
    row, column = row + corner[..., 0], column + corner[..., 1]
    return Fragment.from_places(name, row, column)


def _quad_pairs(
    name: str,
    height: int,
    elements: int,
    place: Callable[[Indices, Indices, Indices], tuple[Indices, Indices]],
) -> Fragment:
    """Fragment of the four matrices, `height` rows each, that the quad pairs of a warp hold.

    Quad pair p is lanes 4*p to 4*p + 3 and 16 lanes further up; its matrix is rows ``height * p``
    and on. `place` maps lane within the quad, upper quad (0 or 1) and element to row and column.
    """
    lane, element = np.arange(WARP)[:, None], np.arange(elements)[None, :]
    row, column = np.broadcast_arrays(*place(lane % 4, lane // 16, element))
    row = row + height * (lane // 4 % 4)
    return Fragment.from_places(name, row.reshape(WARP, -1, 2), column.reshape(WARP, -1, 2))


def _one_a_register(name: str, pairs: Fragment) -> Fragment:
    """The same elements in the same order, 32 bits wide."""
    return Fragment.from_places(
        name, pairs.rows.reshape(WARP, -1, 1), pairs.columns.reshape(WARP, -1, 1)
    )


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
"""[m, n]: C and D of m16n8k4 to m16n8k32 with accumulators of 32 bits."""

MMA_M16N8K4_A_TF32 = _fragment("mma.m16n8k4 A tf32", (0, 0), (8, 0), elements=1)
"""[m, k]."""
MMA_M16N8K4_B_TF32 = _fragment("mma.m16n8k4 B tf32", (0, 0), along_rows=True, elements=1)
"""[k, n]."""
MMA_M16N8K8_A_TF32 = _fragment("mma.m16n8k8 A tf32", (0, 0), (8, 0), (0, 4), (8, 4), elements=1)
"""[m, k]."""
MMA_M16N8K8_B_TF32 = _fragment("mma.m16n8k8 B tf32", (0, 0), (4, 0), along_rows=True, elements=1)
"""[k, n]."""
MMA_M16N8K16_A_8BIT = _fragment("mma.m16n8k16 A 8-bit", (0, 0), (8, 0), elements=4)
"""[m, k], 8-bit."""
MMA_M16N8K16_B_8BIT = _fragment("mma.m16n8k16 B 8-bit", (0, 0), along_rows=True, elements=4)
"""[k, n], 8-bit."""
MMA_M16N8K32_A_8BIT = _fragment(
    "mma.m16n8k32 A 8-bit", (0, 0), (8, 0), (0, 16), (8, 16), elements=4
)
"""[m, k], 8-bit."""
MMA_M16N8K32_B_8BIT = _fragment(
    "mma.m16n8k32 B 8-bit", (0, 0), (16, 0), along_rows=True, elements=4
)
"""[k, n], 8-bit."""

# One m8n8k4 is four products, one a quad pair. Their matrices are stacked along the rows.
MMA_M8N8K4_A_ROW = _quad_pairs(
    "mma.m8n8k4 A row", 8, 4, lambda lane, upper, i: (lane + 4 * upper, i)
)
"""[8 * quad pair + m, k], 16-bit: A ``.row``, a lane holds a row."""
MMA_M8N8K4_A_COL = _quad_pairs(
    "mma.m8n8k4 A col", 8, 4, lambda lane, upper, i: (i + 4 * upper, lane)
)
"""[8 * quad pair + m, k], 16-bit: A ``.col``, a lane holds half a column."""
MMA_M8N8K4_B_ROW = _quad_pairs(
    "mma.m8n8k4 B row", 4, 4, lambda lane, upper, i: (lane, i + 4 * upper)
)
"""[4 * quad pair + k, n], 16-bit: B ``.row``, a lane holds half a row."""
MMA_M8N8K4_B_COL = _quad_pairs(
    "mma.m8n8k4 B col", 4, 4, lambda lane, upper, i: (i, lane + 4 * upper)
)
"""[4 * quad pair + k, n], 16-bit: B ``.col``, a lane holds a column."""
MMA_M8N8K4_F16 = _quad_pairs(
    "mma.m8n8k4 accumulator f16", 8, 8, lambda lane, upper, i: (lane + 4 * upper, i)
)
"""[8 * quad pair + m, n]: C and D with fp16 accumulators."""
MMA_M8N8K4_F32 = _one_a_register(
    "mma.m8n8k4 accumulator f32",
    _quad_pairs(
        "", 8, 8, lambda lane, upper, i: ((lane & 1) + (i & 2) + 4 * upper, (lane & 2) + (i & 5))
    ),
)
"""[8 * quad pair + m, n]: C and D with fp32 accumulators."""

LDMATRIX = _fragment("ldmatrix", (0, 0))
"""One 8x8 matrix: [row address, 16-bit element of the row]. Register i of ``.x2`` and ``.x4`` holds
matrix i, whose row addresses lanes 8*i to 8*i + 7 supply."""
LDMATRIX_TRANS = _fragment("ldmatrix.trans", (0, 0), along_rows=True)
"""The same with ``.trans``, still indexed by [row address, element of the row]."""
