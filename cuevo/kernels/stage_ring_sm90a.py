"""The ring of stages that attention kernels on wgmma have at the begin of their shared memory."""

from abc import ABC, abstractmethod

__all__ = ["BARRIER_BYTES", "StageRing"]

BARRIER_BYTES = 8


class StageRing(ABC):
    """Shared memory: stages of (first streamed operand | second | pair bias), other things,
    barriers; in bytes, from its begin on. All rows N of a threadblock share the pair bias.
    """

    block_rows: int
    pair: str
    stages: int

    @property
    @abstractmethod
    def score_step(self) -> tuple[int, int]:
        """Positions of the threadblock, and the streamed ones of a stage."""

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Bytes of a position of an operand."""

    @property
    @abstractmethod
    def box_row_bytes(self) -> int:
        """Those of them that TMA brings."""

    @property
    @abstractmethod
    def barriers_at(self) -> int:
        """Where the barriers begin."""

    @property
    @abstractmethod
    def barriers(self) -> int:
        """How many barriers there are."""

    @property
    def operand_row_bytes(self) -> int:
        """Bytes of a streamed operand of one row N in a stage."""
        return self.score_step[1] * self.row_bytes

    @property
    def operand_bytes(self) -> int:
        """The same of all rows N."""
        return self.block_rows * self.operand_row_bytes

    @property
    def pair_at(self) -> int:
        """Where the pair bias begins in a stage."""
        return 2 * self.operand_bytes

    @property
    def pair_element_bytes(self) -> int:
        """Bytes of an element of the pair bias in a stage: those of fp32."""
        return 4

    @property
    def pair_bytes(self) -> int:
        """Bytes of the pair bias of a stage."""
        own, streamed = self.score_step
        return self.pair_element_bytes * own * streamed if self.pair != "none" else 0

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return self.pair_at + self.pair_bytes

    @property
    def loaded_bytes(self) -> int:
        """Bytes of operands and pair bias that TMA brings to a stage."""
        positions = self.block_rows * self.score_step[1]
        return 2 * positions * self.box_row_bytes + self.pair_bytes

    @property
    def full_at(self) -> int:
        """Where the barriers of stages that are there begin, behind `barriers_at`."""
        return 0

    @property
    def empty_at(self) -> int:
        """The same of stages that have been read."""
        return BARRIER_BYTES * self.stages

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.barriers_at + BARRIER_BYTES * self.barriers
