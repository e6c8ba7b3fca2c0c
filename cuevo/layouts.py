"""Who holds which element: tensor-core fragments, ldmatrix and the shared-memory swizzle, as data.

A fragment is what the 32 lanes of a warp hold of one matrix, in 32-bit registers. Templates, the
CPU executor and the tests all take it from here. Source: PTX ISA, "Matrix fragments for
mma.m16n8k8" and "... mma.m16n8k16", and the figures of ``ldmatrix``.
"""

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]

WARP = 32
CHUNK_BYTES = 16
"""Bytes of a row of an ldmatrix matrix, of the widest cp.async, of one step of the swizzle."""


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


@dataclass(frozen=True)
class Swizzle:
    """Where a tile's 16-byte chunks lie in shared memory: rows of `chunks` chunks, without padding.

    Chunk c of row r lies at chunk ``c ^ ((r >> shift) & mask)`` of that row. Any 8 rows from a
    multiple of 8 then have their chunks c in 8 different groups of banks, so an ldmatrix phase
    takes one cycle; and so have any 8 chunks that follow each other from a multiple of 8, counted
    through the rows, so a write phase of 8 lanes does, too.
    """

    chunks: int

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise ValueError(f"a row must have at least one 16-byte chunk; got {self.chunks}")

    @property
    def _group(self) -> int:
        # Rows collide by the power of two that their length shares with the 8 groups of banks.
        return gcd(self.chunks, 8)

    @property
    def mask(self) -> int:
        """Bits of a chunk's number that change; 0 where rows of this length need no swizzle."""
        return self._group - 1

    @property
    def shift(self) -> int:
        """Rows that share one pattern, as a power of two."""
        return (8 // self._group).bit_length() - 1

    @property
    def places(self) -> int:
        """Lane addresses that reach the even chunks of a row, n * 32 bytes (by XOR) apart."""
        return max(self._group // 2, 1)

    def address(self, row: int, chunk: int) -> tuple[int, int]:
        """Which of the `places`, and how many bytes further, leads from (0, 0) to (row, chunk).

        `row` is a multiple of 8, and `chunk` even where rows are swizzled.
        """
        group = self._group
        if row % 8 or (group > 1 and chunk % 2):
            raise ValueError(
                f"row {row}, chunk {chunk}: no immediate distance in a tile of {self.chunks} chunks"
            )
        place = chunk % group // 2 if group > 1 else 0
        return place, (row * self.chunks + chunk - 2 * place) * CHUNK_BYTES


def swizzle(chunks: int) -> Swizzle:
    """The swizzle of rows of `chunks` 16-byte chunks."""
    return Swizzle(chunks)


def swizzled_chunk(row: Any, chunk: Any, chunks: int) -> Any:
    """Chunk of row `row` at which its logical chunk `chunk` lies; integers, or integer arrays."""
    pattern = Swizzle(chunks)
    return chunk ^ ((row >> pattern.shift) & pattern.mask)
