"""What the warps of ``ptx/evoformer_forward_sm90a.ptx`` do, and what each waits for."""

from cuevo.kernels.forward_memory_sm90a import StageMemory

__all__ = ["Roles"]

_STAGES, _STAGES_OF_64, _STAGES_OF_16_BITS = 5, 6, 7
"""Of a producer: with two tiles of queries a warpgroup, with one, and of a pair bias that is
converted. Fewer are slower; of more, what short works ask for too early delays what they need
first.
"""
_STAGES_OF_64_ASKED_FOR = 7
"""Likewise with one tile of queries where consumers ask."""


class Roles(StageMemory):
    """Consumer warpgroups, a row N each, and either a producer warp and mask warps beside them, or
    nobody: then consumers ask TMA for boxes in turn. `evoformer_forward_sm90a.Config` says what the
    numbers are made of.
    """

    cluster: int
    mask: str
    producer: str

    @property
    def consumers_ask(self) -> bool:
        """Whether consumers ask TMA for boxes, in turn."""
        return self.producer == "consumer"

    @property
    def threads(self) -> int:
        """Threads of a block: consumer warpgroups, the producer warp, mask warps."""
        others = 0 if self.consumers_ask else 32 + 32 * self.mask_warps
        return 128 * self.warpgroups + others

    @property
    def masked(self) -> bool:
        """Whether there is a mask, or something has to say where keys end."""
        return self.mask != "none"

    @property
    def mask_warps(self) -> int:
        """Warps that see to it: one for each row N, or for two of four, which leaves a thread more
        registers; none where the mask comes in tiles, or nothing is added.
        """
        if not self.adds_mask or self.consumers_ask:
            return 0
        return 2 if self.block_rows == 4 else self.block_rows

    @property
    def mask_arrivals(self) -> int:
        """Lanes of mask warps that arrive at a barrier."""
        return self.arriving_lanes * self.mask_warps

    @property
    def arriving_lanes(self) -> int:
        """Lanes of a warp that arrive at an mbarrier: all, at a time that is not longer, because
        racecheck does not see that lanes have met before one arrives for them; or where blocks
        arrive at each other's, one for each block.
        """
        return 32 if self.cluster == 1 else 1

    @property
    def lane_keys(self) -> int:
        """Keys of a stage that a lane of a mask warp looks after."""
        return self.block_keys // 32

    @property
    def mask_ahead(self) -> int:
        """Stages whose masks a mask warp loads at a time; a power of two."""
        return 4

    @property
    def stage_arrivals(self) -> int:
        """Lanes that arrive at the barrier of a stage that is there: that which asks TMA for it, or
        that and the one which asks for its pair bias, and those that put the mask there.
        """
        copying = 32 if self.copies_mask else 0
        return 1 + self.late_pair + self.mask_arrivals + copying

    @property
    def stages_ahead(self) -> int:
        """Stages from the one in turn to the one that is asked for meanwhile, by a consumer: all
        have left the one that was there before when one or two stages are between them. Three
        warpgroups are so close to each other that they need not wait for that with none between.
        """
        return self.stages - (1 if self.warpgroups == 3 else 2)

    @property
    def most_stages(self) -> int:
        """Stages that a producer fills, if there is room for them."""
        if self.converts:
            return _STAGES_OF_16_BITS
        return _STAGES if self.m_tiles > 1 else _STAGES_OF_64

    @property
    def last_stages(self) -> int:
        """Stages of a last tile of 64 queries, in a launch of its own, where consumers ask: those
        of four rows N are short, and what they wait for comes from memory.
        """
        longer = (self.block_rows, self.block_keys) == (4, 32) and not self.converts
        return max(self.stages, _STAGES_OF_64_ASKED_FOR) if longer else self.stages

    @property
    def least_key_tiles(self) -> int:
        """Tiles of keys that there have to be where consumers ask for boxes: they ask for those of
        this work and of the next.
        """
        return max(self.stages_ahead + 1, self.warpgroups)

    @property
    def least_key_tiles_of_last(self) -> int:
        """The same where there is a last tile of 64 queries."""
        return max(self.least_key_tiles, self.stages_ahead + 1 + self.last_stages - self.stages)

    @property
    def reads_mask_tiles(self) -> bool:
        """Whether the mask comes in tiles of `bias_tiles_sm90`."""
        return self.consumers_ask and self.adds_mask

    @property
    def copies_mask(self) -> bool:
        """Whether the warp that asks for a stage copies tiles of the mask to where K has room."""
        return self.reads_mask_tiles and self.mask_beside_k

    @property
    def asked_bytes(self) -> int:
        """Bytes of a stage that are asked for together."""
        late = self.pair_bytes if self.late_pair else 0
        return self.loaded_bytes - late + (self.mask_stage_bytes if self.reads_mask_tiles else 0)
