"""Where everything lies in the shared memory of ``ptx/evoformer_forward_sm90a.ptx``."""

from abc import ABC, abstractmethod
from math import ceil

__all__ = ["StageMemory"]

_BARRIER_BYTES = 8
_FLAG_BYTES = 16


class StageMemory(ABC):
    """Shared memory: stages of (K | V | sums | pair), Q, output, mask, notes on works, barriers; in
    bytes, from its begin on. `evoformer_forward_sm90a.Config` says what the numbers are made of.
    """

    again_words: int
    block_keys: int
    block_rows: int
    head_dim: int
    m_tiles: int
    pair: str
    stages: int
    sums: str

    @property
    @abstractmethod
    def block_queries(self) -> int: ...

    @property
    @abstractmethod
    def masked(self) -> bool: ...

    @property
    @abstractmethod
    def product_columns(self) -> int: ...

    @property
    @abstractmethod
    def row_bytes(self) -> int: ...

    @property
    @abstractmethod
    def row_elements(self) -> int: ...

    @property
    def kv_row_bytes(self) -> int:
        """Bytes of the K tile, or the V tile, of one row N in a stage."""
        return self.block_keys * self.row_bytes

    @property
    def v_at(self) -> int:
        """Where V begins in a stage."""
        return self.block_rows * self.kv_row_bytes

    @property
    def sums_at(self) -> int:
        """Where the columns that make the row sums begin in a stage: rows like those of V, of which
        each row N takes a chunk; or all the same, of ones.
        """
        return 2 * self.v_at

    @property
    def sums_bytes(self) -> int:
        """Their bytes."""
        if self.product_columns <= self.row_elements:
            return 0
        chunks = self.row_bytes // 16
        return (ceil(self.block_rows / chunks) if self.masked else 1) * self.kv_row_bytes

    @property
    def pair_at(self) -> int:
        """Where the pair bias begins in a stage."""
        return self.sums_at + self.sums_bytes

    @property
    def pair_tile_bytes(self) -> int:
        """Bytes of the pair bias of 64 queries in a stage."""
        return 64 * self.block_keys * 4

    @property
    def pair_bytes(self) -> int:
        """Bytes of the pair bias of a stage."""
        return self.m_tiles * self.pair_tile_bytes if self.pair != "none" else 0

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return self.pair_at + self.pair_bytes

    @property
    def copied_bytes(self) -> int:
        """Bytes of a stage that TMA brings."""
        return 2 * self.v_at + self.pair_bytes

    @property
    def q_at(self) -> int:
        """Where Q begins."""
        return self.stages * self.stage_bytes

    @property
    def q_row_bytes(self) -> int:
        """Bytes of Q of one row N."""
        return self.block_queries * self.row_bytes

    @property
    def q_bytes(self) -> int:
        """Bytes of Q of a work."""
        return self.block_rows * self.q_row_bytes

    @property
    def output_at(self) -> int:
        """Where the strips of the output begin, one for each consumer warp."""
        return self.q_at + self.q_bytes

    @property
    def strip_bytes(self) -> int:
        """Bytes of a strip."""
        return 16 * self.head_dim * 2

    @property
    def output_bytes(self) -> int:
        """Bytes of all strips."""
        return 4 * self.block_rows * self.strip_bytes

    @property
    def mask_at(self) -> int:
        """Where the stages of the mask begin."""
        return self.output_at + self.output_bytes

    @property
    def mask_row_bytes(self) -> int:
        """Bytes of what is added to the scores of a row N in a stage, of two flags, and of fp32
        weights of the keys where instructions sum the rows.
        """
        weights = 4 * self.block_keys if self.sums == "added" else 0
        return self.weights_offset + weights

    @property
    def weights_offset(self) -> int:
        """Where such weights begin."""
        return 4 * self.block_keys + _FLAG_BYTES

    @property
    def mask_stage_bytes(self) -> int:
        """Bytes of a stage of the mask."""
        return self.block_rows * self.mask_row_bytes

    @property
    def again_at(self) -> int:
        """Where the notes on works begin: whether there is any, and a bit for each."""
        return self.mask_at + self.mask_bytes

    @property
    def again_bytes(self) -> int:
        """Bytes of these notes."""
        return 4 * self.again_words + 16

    @property
    def mask_bytes(self) -> int:
        """Bytes of the stages of the mask."""
        return self.stages * self.mask_stage_bytes if self.masked else 0

    @property
    def barriers_at(self) -> int:
        """Where the barriers begin."""
        return self.again_at + self.again_bytes

    @property
    def full_at(self) -> int:
        """Where the barriers of stages that are there begin, behind `barriers_at`."""
        return 0

    @property
    def empty_at(self) -> int:
        """The same of stages that have been read."""
        return _BARRIER_BYTES * self.stages

    @property
    def ready_at(self) -> int:
        """The same of stages that the mask warps have seen."""
        return 2 * _BARRIER_BYTES * self.stages

    @property
    def q_full_at(self) -> int:
        """The same of Q that is there."""
        return (3 if self.masked else 2) * _BARRIER_BYTES * self.stages

    @property
    def q_empty_at(self) -> int:
        """The same of Q that has been read."""
        return self.q_full_at + _BARRIER_BYTES

    @property
    def done_at(self) -> int:
        """The same of all works having been done, before some are done again."""
        return self.q_empty_at + _BARRIER_BYTES

    @property
    def barriers(self) -> int:
        """How many barriers there are."""
        return self.done_at // _BARRIER_BYTES + 1

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.barriers_at + _BARRIER_BYTES * self.barriers
