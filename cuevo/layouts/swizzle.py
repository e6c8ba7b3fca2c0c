"""Placement of the 16-byte chunks of a tile in shared memory."""

from dataclasses import dataclass
from math import gcd
from typing import Any

CHUNK_BYTES = 16
"""Bytes of a row of an ldmatrix matrix, of the widest cp.async, of one step of the swizzle."""
BANK_GROUPS = 8
"""Chunks that shared memory serves at a time."""

KINDS = ("swizzled", "padded", "quads", "quad columns")


@dataclass(frozen=True)
class SharedTile:
    """Rows of `chunks` chunks, laid out so that readers and writers meet no bank conflicts.

    ``swizzled``: without gaps; chunk c of row r lies at chunk ``c ^ pattern(r)`` of its row, where
    the pattern is made of row bits that do not tell banks apart already. Any 8 rows from a multiple
    of 8 have their chunks c in 8 different groups of banks, so an ldmatrix phase takes one cycle;
    so have any 8 chunks that follow each other from a multiple of 8, counted through the rows.
    ``padded``: a chunk is left free after each row of an even number of chunks.
    ``quads``: swizzled for the rows that mma.m8n8k4 reads together, 0 to 3 and 8 to 11, and for
    its other reading, two chunks of each of four rows.
    ``quad columns``: swizzled for the other reading alone, with a shorter period.
    """

    chunks: int
    kind: str = "swizzled"

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise ValueError(f"a row must have at least one 16-byte chunk; got {self.chunks}")
        if self.kind not in KINDS:
            raise ValueError(f"a tile is one of {', '.join(KINDS)}; got {self.kind!r}")

    @property
    def pitch(self) -> int:
        """Chunks from a row to the next."""
        return self.chunks | 1 if self.kind == "padded" else self.chunks

    @property
    def group(self) -> int:
        """Chunks among which a pattern moves one: what the row length shares with the banks."""
        return 1 if self.kind == "padded" else gcd(self.chunks, BANK_GROUPS)

    @property
    def terms(self) -> tuple[tuple[int, int], ...]:
        """The pattern: the sum of ``(row >> shift) & mask``; negative shifts are to the left."""
        bits = self.group.bit_length() - 1
        together = 3 - bits  # low bits of a row's number that banks tell apart
        if self.kind in ("quads", "quad columns"):
            moves = [(row, row + 1 - together) for row in range(together, 2)]
            if self.kind == "quads" and bits:
                moves.append((3, 0))
        else:
            moves = list(zip(range(3)[together:], range(bits), strict=True))
        masks: dict[int, int] = {}
        for row, chunk in moves:
            masks[row - chunk] = masks.get(row - chunk, 0) | 1 << chunk
        return tuple(masks.items())

    @property
    def period(self) -> int:
        """Rows after which the pattern repeats."""
        return {"quads": 16, "quad columns": 4}.get(self.kind, 8)

    def place(self, row: Any, chunk: Any) -> Any:
        """Place of chunk `chunk` of row `row`, counted in chunks; integers, or integer arrays."""
        pattern = row & 0
        for shift, mask in self.terms:
            pattern = pattern | ((row >> shift if shift >= 0 else row << -shift) & mask)
        return row * self.pitch + (chunk ^ pattern)

    def places(self, unit: int = 2) -> int:
        """Lane addresses that reach every `unit`-th chunk of a row, by XOR apart."""
        return max(self.group // unit, 1)

    def distance(self, unit: int = 2) -> int:
        """Bytes, by XOR, between two of the `places`."""
        return CHUNK_BYTES * min(unit, self.group)

    def address(self, row: int, chunk: int, unit: int = 2) -> tuple[int, int]:
        """Index into `places`, and bytes to add, that lead from (0, 0) to (row, chunk).

        `row` is a multiple of the period, and `chunk` of `unit` where rows are swizzled. With a
        unit of 1 every chunk has a place: `row` need only have none of the bits of the lanes' rows.
        """
        step = min(unit, self.group)
        if (row % self.period and unit > 1) or chunk % step:
            raise ValueError(
                f"row {row}, chunk {chunk}: no immediate distance in a tile of {self.chunks} chunks"
            )
        to = self.place(row, chunk)
        within = to % self.group
        return within // step, (to - within) * CHUNK_BYTES

    def copy_rows(self, index: Any) -> Any:
        """The row that the index-th group of `chunks` neighbouring threads copies.

        In a padded tile of short rows, neighbours take rows apart, so that their chunks do not
        meet in a bank.
        """
        together = BANK_GROUPS // self.chunks if self.kind == "padded" else 1
        if together <= 1:
            return index
        step = BANK_GROUPS // together
        within = index % BANK_GROUPS
        return index - within + within % together * step + within // together


def swizzle(chunks: int) -> SharedTile:
    """The swizzled tile with rows of `chunks` 16-byte chunks."""
    return SharedTile(chunks)


def swizzled_chunk(row: Any, chunk: Any, chunks: int) -> Any:
    """Chunk of row `row` at which its logical chunk `chunk` lies; integers, or integer arrays."""
    return SharedTile(chunks).place(row, chunk) - row * chunks
