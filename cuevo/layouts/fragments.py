"""Tensor-core fragments: which lane and register hold which element of a matrix.

Those of mma are in `cuevo.layouts.mma_shapes`, those of wgmma in `cuevo.layouts.wgmma`. Source of
those of ``ldmatrix``: its figures in the PTX ISA.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]

WARP = 32
WARPGROUP = 128


@dataclass(frozen=True, eq=False)
class Fragment:
    """Places of the elements of a matrix: lane, register and part of a register to row and column.

    >>> row, column = LDMATRIX.rows[5, 0, 1], LDMATRIX.columns[5, 0, 1]
    >>> int(row), int(column)      # the high half of the register of lane 5
    (1, 3)
    """

    name: str
    shape: tuple[int, int]
    """Rows and columns of the matrix."""
    rows: Indices
    """(lanes, registers, elements in a register, low bits first); the lanes are those of a warp, or
    the threads of a warpgroup."""
    columns: Indices
    """Columns, indexed like `rows`."""

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


def of_matrices(
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


LDMATRIX = of_matrices("ldmatrix", (0, 0))
"""One 8x8 matrix: [row address, 16-bit element of the row]. Register i of ``.x2`` and ``.x4`` holds
matrix i, whose row addresses lanes 8*i to 8*i + 7 supply."""
LDMATRIX_TRANS = of_matrices("ldmatrix.trans", (0, 0), along_rows=True)
"""The same with ``.trans``, still indexed by [row address, element of the row]."""
