"""Where everything lies in the shared memory of ``ptx/evoformer_backward_sm90a.ptx``."""

from abc import abstractmethod

from cuevo.kernels.backward import padded
from cuevo.kernels.stage_ring_sm90a import BARRIER_BYTES, StageRing

__all__ = ["BoxMemory"]

_SWIZZLE_BYTES = 1024
"""After which swizzles of rows of any length begin again."""
_SUM_SETS = 2
"""Sets of tiles of sums that take turns."""


class BoxMemory(StageRing):
    """Shared memory: stages, terms, the stationary operands, sums, results, barriers.
    `evoformer_backward_sm90a.Config` says what the numbers are made of.
    """

    block_streamed: int
    head_dim: int
    mask: bool

    @property
    @abstractmethod
    def block_stationary(self) -> int: ...

    @property
    @abstractmethod
    def by_keys(self) -> bool: ...

    @property
    @abstractmethod
    def sums_rows(self) -> bool: ...

    @property
    @abstractmethod
    def warpgroups(self) -> int: ...

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
    def own_loaded_bytes(self) -> int:
        """Those of them that TMA brings."""
        return 2 * self.block_rows * self.block_stationary * self.box_row_bytes

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
    def own_full_at(self) -> int:
        """Where the barrier of stationary operands that are there is, behind `barriers_at`."""
        return 2 * BARRIER_BYTES * self.stages

    @property
    def own_empty_at(self) -> int:
        """The same of stationary operands that have been read."""
        return self.own_full_at + BARRIER_BYTES

    @property
    def links_at(self) -> int:
        """The same of sets of sums that are there, and of those that are free."""
        return self.own_empty_at + BARRIER_BYTES

    @property
    def barriers(self) -> int:
        """How many barriers there are."""
        return self.links_at // BARRIER_BYTES + (2 * _SUM_SETS if self.sums_rows else 0)
