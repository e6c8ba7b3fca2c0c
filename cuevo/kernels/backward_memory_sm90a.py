"""Where everything lies in the shared memory of ``ptx/evoformer_backward_sm90a.ptx``."""

from abc import ABC, abstractmethod

from cuevo.kernels.backward import padded

__all__ = ["BoxMemory"]

_BARRIER_BYTES = 8
_SWIZZLE_BYTES = 1024
"""After which swizzles of rows of any length begin again."""
_SUM_SETS = 2
"""Sets of tiles of sums that take turns."""


class BoxMemory(ABC):
    """Shared memory: stages of (first | second streamed operand | pair), terms, the stationary
    operands, sums, results, barriers; in bytes, from its begin on.
    `evoformer_backward_sm90a.Config` says what the numbers are made of.
    """

    block_rows: int
    block_streamed: int
    head_dim: int
    mask: bool
    pair: str
    stages: int

    @property
    @abstractmethod
    def block_stationary(self) -> int: ...

    @property
    @abstractmethod
    def by_keys(self) -> bool: ...

    @property
    @abstractmethod
    def row_bytes(self) -> int: ...

    @property
    @abstractmethod
    def sums_rows(self) -> bool: ...

    @property
    @abstractmethod
    def warpgroups(self) -> int: ...

    @property
    def operand_row_bytes(self) -> int:
        """Bytes of the tile of a streamed operand of one row N in a stage."""
        return self.block_streamed * self.row_bytes

    @property
    def operand_bytes(self) -> int:
        """The same of all rows N."""
        return self.block_rows * self.operand_row_bytes

    @property
    def pair_at(self) -> int:
        """Where the pair bias begins in a stage."""
        return 2 * self.operand_bytes

    @property
    def pair_bytes(self) -> int:
        """Bytes of the pair bias of a stage."""
        return 4 * self.block_stationary * self.block_streamed if self.pair != "none" else 0

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return self.pair_at + self.pair_bytes

    @property
    def terms_at(self) -> int:
        """Where the terms begin that products add: -lse and -delta of queries, or the mask of keys,
        in pieces.
        """
        return self.stages * self.stage_bytes

    @property
    def terms_row_bytes(self) -> int:
        """Bytes of the terms of a row N in a stage."""
        if self.by_keys:
            return 32 * self.block_streamed
        return 16 * self.block_streamed if self.mask else 0

    @property
    def terms_bytes(self) -> int:
        """Bytes of a stage of the terms."""
        return self.block_rows * self.terms_row_bytes

    @property
    def own_at(self) -> int:
        """Where the stationary operands begin, one behind the other: where their swizzle does."""
        return padded(self.terms_at + self.stages * self.terms_bytes, _SWIZZLE_BYTES)

    @property
    def stationary_row_bytes(self) -> int:
        """Bytes of a stationary operand of one row N."""
        return self.block_stationary * self.row_bytes

    @property
    def own_operand_bytes(self) -> int:
        """The same of all rows N."""
        return self.block_rows * self.stationary_row_bytes

    @property
    def own_bytes(self) -> int:
        """Bytes of both."""
        return 2 * self.own_operand_bytes

    @property
    def sums_at(self) -> int:
        """Where the tiles begin in which dS of rows N meets: where their swizzle does."""
        return padded(self.own_at + self.own_bytes, _SWIZZLE_BYTES)

    @property
    def sums_row_bytes(self) -> int:
        """Bytes of a row of such a tile, and of its swizzle."""
        return 4 * self.block_streamed

    @property
    def sums_tile_bytes(self) -> int:
        """Bytes of such a tile."""
        return self.block_stationary * self.sums_row_bytes

    @property
    def sums_bytes(self) -> int:
        """Bytes of those of all warpgroups, which take turns."""
        return _SUM_SETS * self.warpgroups * self.sums_tile_bytes if self.sums_rows else 0

    @property
    def strips_at(self) -> int:
        """Where the results of a warp begin on their way to memory."""
        return self.sums_at + self.sums_bytes

    @property
    def strip_bytes(self) -> int:
        """Bytes of those of one warp."""
        return padded(16 * 2 * self.head_dim, 128)

    @property
    def strips_bytes(self) -> int:
        """Bytes of those of all warps."""
        return 4 * self.warpgroups * self.strip_bytes

    @property
    def barriers_at(self) -> int:
        """Where the barriers begin."""
        return self.strips_at + self.strips_bytes

    @property
    def full_at(self) -> int:
        """Where the barriers of stages that are there begin, behind `barriers_at`."""
        return 0

    @property
    def empty_at(self) -> int:
        """The same of stages that have been read."""
        return _BARRIER_BYTES * self.stages

    @property
    def own_full_at(self) -> int:
        """The same of stationary operands that are there."""
        return 2 * _BARRIER_BYTES * self.stages

    @property
    def own_empty_at(self) -> int:
        """The same of stationary operands that have been read."""
        return self.own_full_at + _BARRIER_BYTES

    @property
    def links_at(self) -> int:
        """The same of sets of sums that are there, and of those that are free."""
        return self.own_empty_at + _BARRIER_BYTES

    @property
    def barriers(self) -> int:
        """How many barriers there are."""
        return self.links_at // _BARRIER_BYTES + (2 * _SUM_SETS if self.sums_rows else 0)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.barriers_at + _BARRIER_BYTES * self.barriers
