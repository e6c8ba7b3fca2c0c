"""Where the 16-byte chunks of a tile lie in shared memory."""

from dataclasses import dataclass
from math import gcd
from typing import Any

CHUNK_BYTES = 16
"""Bytes of a row of an ldmatrix matrix, of the widest cp.async, of one step of the swizzle."""


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
