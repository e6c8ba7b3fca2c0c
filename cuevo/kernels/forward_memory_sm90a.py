"""Where everything lies in the shared memory of ``ptx/evoformer_forward_sm90a.ptx``."""

from abc import abstractmethod

from cuevo.kernels.bias_tiles_sm90 import ADDEND_BYTES, FLAG_BYTES, OPERAND_BYTES
from cuevo.kernels.stage_ring_sm90a import BARRIER_BYTES, StageRing

__all__ = ["StageMemory"]

_HALVES_BYTES = 16


class StageMemory(StageRing):
    """Shared memory: stages of K, V and the pair bias, or of K and V, and behind them those of the
    pair bias where it is asked for later; ones, Q, output, mask, notes on works, barriers.
    `evoformer_forward_sm90a.Config` says what the numbers are made of.
    """

    again_words: int
    block_keys: int
    converts: bool
    head_dim: int
    late_pair: bool
    m_tiles: int
    row_warpgroups: int
    warpgroup_rows: int

    @property
    @abstractmethod
    def block_queries(self) -> int: ...

    @property
    @abstractmethod
    def tile_step(self) -> int: ...

    @property
    @abstractmethod
    def adds_mask(self) -> bool: ...

    @property
    @abstractmethod
    def mask_addends(self) -> bool: ...

    @property
    @abstractmethod
    def mask_beside_k(self) -> bool: ...

    @property
    @abstractmethod
    def mask_product(self) -> bool: ...

    @property
    @abstractmethod
    def guesses(self) -> bool: ...

    @property
    @abstractmethod
    def product_columns(self) -> int: ...

    @property
    @abstractmethod
    def row_elements(self) -> int: ...

    @property
    @abstractmethod
    def consumers_ask(self) -> bool: ...

    @property
    def warpgroups(self) -> int:
        """Consumer warpgroups."""
        return self.block_rows * self.row_warpgroups // self.warpgroup_rows

    @property
    def shares_pair(self) -> bool:
        """Whether the tiles of a warpgroup add the same pair bias."""
        return self.warpgroup_rows > 1

    @property
    def row_warps(self) -> int:
        """Warps of a row N, of which each has queries of its own."""
        return 4 * self.row_warpgroups

    @property
    def row_warp_bits(self) -> int:
        """Bits of a warp's number that say which of these it is."""
        return (self.row_warps - 1).bit_length()

    @property
    def score_step(self) -> tuple[int, int]:
        """Queries and keys that are computed together, if any of them exists."""
        return (self.block_queries, self.block_keys)

    @property
    def v_at(self) -> int:
        """Where V begins in a stage, behind K."""
        return self.operand_bytes

    @property
    def pair_stages(self) -> int:
        """Stages of the pair bias."""
        return self.stages - self.late_pair

    @property
    def pair_at(self) -> int:
        """Where the first stage of the pair bias begins."""
        return self.stages * self.stage_bytes if self.late_pair else 2 * self.operand_bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return 2 * self.operand_bytes + (0 if self.late_pair else self.pair_bytes)

    @property
    def ring_bytes(self) -> int:
        """Bytes of all stages."""
        late = self.pair_stages * self.pair_bytes if self.late_pair else 0
        return self.stages * self.stage_bytes + late

    @property
    def pair_element_bytes(self) -> int:
        """Bytes of an element of the pair bias in a stage: its own 16 bits, or fp32."""
        return 2 if self.converts else 4

    @property
    def pair_row_bytes(self) -> int:
        """Bytes of the pair bias of a query in a stage, and of their swizzle where it is boxes."""
        return self.pair_element_bytes * self.block_keys

    @property
    def pair_tile_bytes(self) -> int:
        """Bytes of the pair bias of 64 queries in a stage."""
        return 64 * self.pair_row_bytes

    @property
    def pair_step(self) -> int:
        """Bytes from a warp's part of one of its tiles of queries to that of the next, in rows, or
        in the order of accumulators.
        """
        if self.shares_pair:
            return 0
        if self.tile_step == 64:
            return self.pair_tile_bytes
        return 16 * self.pair_row_bytes if self.converts else 512

    @property
    def ones_at(self) -> int:
        """Where rows like those of V begin, of which the first chunk are ones: columns of the
        product with V that make the row sums, where the rows of V have no room for them.
        """
        return self.ring_bytes

    @property
    def ones_bytes(self) -> int:
        """Their bytes."""
        return self.operand_row_bytes if self.product_columns > self.row_elements else 0

    @property
    def q_at(self) -> int:
        """Where Q begins."""
        return self.ones_at + self.ones_bytes

    @property
    def q_row_bytes(self) -> int:
        """Bytes of Q of one row N."""
        return self.block_queries * self.row_bytes

    @property
    def q_tile_bytes(self) -> int:
        """Bytes of Q from a warp's rows of a tile to those of the next."""
        return self.q_row_bytes if self.shares_pair else self.tile_step * self.row_bytes

    @property
    def q_bytes(self) -> int:
        """Bytes of Q of a work."""
        return self.block_rows * self.q_row_bytes

    @property
    def q_loaded_bytes(self) -> int:
        """Those of them that TMA brings."""
        return self.block_rows * self.block_queries * self.box_row_bytes

    @property
    def output_at(self) -> int:
        """Where the strips of the output begin, one for each consumer warp."""
        return self.q_at + (0 if self.consumers_ask else self.q_bytes)

    @property
    def strip_bytes(self) -> int:
        """Bytes of a strip: 16 rows of each tile of 64 queries."""
        return 16 * self.m_tiles * self.row_bytes

    @property
    def strip_tile_bytes(self) -> int:
        """Bytes from a tile's rows of a strip to the next one's."""
        return self.q_tile_bytes if self.consumers_ask else 16 * self.row_bytes

    @property
    def output_bytes(self) -> int:
        """Bytes of all strips, where these have a place of their own."""
        return 0 if self.consumers_ask else 4 * self.warpgroups * self.strip_bytes

    @property
    def mask_at(self) -> int:
        """Where the stages of the mask begin."""
        return self.q_at + self.q_bytes + self.output_bytes

    @property
    def mask_row_bytes(self) -> int:
        """Bytes of a flag and of the mask of a row N in a stage, unless K has it."""
        key_bytes = ADDEND_BYTES if self.mask_addends else OPERAND_BYTES if self.mask_product else 0
        return self.mask_keys_offset + key_bytes * self.block_keys

    @property
    def mask_keys_offset(self) -> int:
        """Where the latter begin, behind the flag; operands in tiles have it beside a key's."""
        beside = self.consumers_ask and (self.mask_product or self.mask_beside_k)
        return FLAG_BYTES if self.adds_mask and not beside else 0

    @property
    def mask_stage_bytes(self) -> int:
        """Bytes of a stage of the mask."""
        return self.block_rows * self.mask_row_bytes

    @property
    def states_in_strips(self) -> bool:
        """Whether row states, of works whose references move, are where the results will be: in
        the warp's strip, which is free by then, unless Q of the next work comes there.
        """
        return self.guesses and not self.consumers_ask

    @property
    def state_at(self) -> int:
        """Where row states begin, those of the first warp."""
        return self.output_at if self.states_in_strips else self.mask_at + self.mask_bytes

    @property
    def state_tile_bytes(self) -> int:
        """Bytes of a warp's row states of a tile of 64 queries, 8 a lane."""
        return 8 * 32

    @property
    def state_warp_bytes(self) -> int:
        """Bytes from the row states of one warp to those of the next."""
        return self.strip_bytes if self.states_in_strips else self.m_tiles * self.state_tile_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of row states that have a place of their own; none where registers have them."""
        own = self.guesses and not self.states_in_strips
        return 4 * self.warpgroups * self.state_warp_bytes if own else 0

    @property
    def again_at(self) -> int:
        """Where the notes on works begin: whether there is any, and a bit for each."""
        return self.mask_at + self.mask_bytes + self.state_bytes

    @property
    def again_bytes(self) -> int:
        """Bytes of these notes."""
        return 4 * self.again_words + 16 if self.guesses else 0

    @property
    def halves_at(self) -> int:
        """Where the other operand of the product with the mask is, behind its stages."""
        return self.mask_at + self.stages * self.mask_stage_bytes

    @property
    def mask_bytes(self) -> int:
        """Bytes of the stages of the mask, and of that operand. Where no row states follow, as many
        again as a mask has: the product reads each of its rows twice, which memcheck takes for
        others behind them.
        """
        if not self.mask_product:
            return self.halves_at - self.mask_at if self.adds_mask else 0
        halves = _HALVES_BYTES << self.consumers_ask
        spare = 0 if self.state_bytes else 16 * self.block_keys
        return self.halves_at + halves + spare - self.mask_at

    @property
    def barriers_at(self) -> int:
        """Where the barriers begin."""
        return self.again_at + self.again_bytes

    @property
    def q_full_at(self) -> int:
        """Where the barrier of Q that is there is, behind `barriers_at`."""
        return 2 * BARRIER_BYTES * self.stages

    @property
    def q_empty_at(self) -> int:
        """The same of Q that has been read."""
        return self.q_full_at + BARRIER_BYTES

    @property
    def done_at(self) -> int:
        """The same of all works having been done, before some are done again."""
        return self.q_empty_at + BARRIER_BYTES

    @property
    def barriers(self) -> int:
        """How many barriers there are."""
        return self.done_at // BARRIER_BYTES + (1 if self.guesses else 0)
