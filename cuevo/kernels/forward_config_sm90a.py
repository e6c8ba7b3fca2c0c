"""What may be configured of ``ptx/evoformer_forward_sm90a.ptx``, and which of it is legal."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from cuevo.architectures import Architecture, architecture
from cuevo.kernels import bias_tiles_sm90, choice
from cuevo.kernels import guessed_reference_sm90a as guessed
from cuevo.kernels.forward import BIAS_BYTES, LEAST_POWER, NEGLIGIBLE_SCALE, ONES, Problem
from cuevo.kernels.forward_maps_sm90a import Maps
from cuevo.kernels.forward_roles_sm90a import Roles
from cuevo.kernels.forward_works_sm90a import WorkList

__all__ = ["ARCH", "COUNT", "Config", "device_violations", "problem_violations", "violations"]

ARCH = "sm_90a"
"""Its instructions are those of one architecture, not of later ones."""

_MOST_WORKS = 2**31
COUNT = 2.0**-141
"""What the count of an exponent is of it: its 256ths, in units of 2^-149, fp32's least number."""
_LEAST_FACTOR = 2.0**15
"""What scores are multiplied by at least, so that the same times `COUNT` is a normal number."""
_HEADROOM = 4.0
"""In powers of two: what exponents in fp16 are lowered by beside a reference."""


@dataclass(frozen=True)
class Config(Maps, Roles, WorkList):
    """One instance of the kernel; its template is given the whole of it."""

    head_dim: int
    dtype: str = "bf16"
    block_rows: int = 3
    """Rows N of a threadblock, consumer warpgroups each: they share the pair-bias tile."""
    row_warpgroups: int = 1
    """Warpgroups of a row N, each with tiles of queries of its own: they share k and v."""
    m_tiles: int = 2
    """Tiles of 64 queries of a warpgroup: the scores of one are computed while another's
    exponentials are taken.
    """
    warpgroup_rows: int = 1
    """Rows N of a warpgroup: one, or two with a tile each of the same queries, which share what the
    pair bias takes to be loaded, and converted.
    """
    block_keys: int = 32
    """Keys of a stage, and of a softmax step of one tile."""
    parts: int = 2
    """Parts of such a step's exponentials: each is multiplied by v as soon as it is there."""
    cluster: int = 1
    """Threadblocks of a cluster: neighbours in rows N, each of which brings a part of the pair-bias
    tile to all.
    """
    stages: int = 5
    """Shared-memory stages of K, V and the pair bias."""
    late_pair: bool = False
    """Ask for the pair bias of a stage one stage later than for its K and V, which come from
    memory where tiles of the pair bias are in L2: it has one stage fewer.
    """
    q_in_registers: bool = True
    """Keep Q as fragments, or read it from shared memory for each product."""
    continues: bool = False
    """Make the first scores of a work under the last exponentials of the one before; Q has to be in
    registers.
    """
    mask: str = "none"
    """Type of mask_bias, or "bounds": no mask, but keys may end within a tile."""
    pair: str = "bf16"
    """Type of pair_bias, or "none"; its tiles are fp32 in any case."""
    producer: str = "warp"
    """Who asks TMA for boxes: "warp", one of its own, beside which there are mask warps, or
    "consumer", those that compute, in turn, so that all registers are theirs; the mask comes in
    tiles then.
    """
    converts: bool = False
    """Take the pair bias, of 16 bits, as it is in memory, and convert it beside the scores; else
    another launch makes tiles of it in fp32, which more rows N share than a threadblock has.
    """
    scales_q: bool = False
    """Multiply q by the scale, a power of two, so that the pair bias is added as it is, not divided
    by it; q has to be in registers.
    """
    emulates: bool = False
    """Make a quarter of the exponentials, those of the `emulated` pairs, without `ex2`
    (``ptx/lib/emulated_exponentials.ptx``).
    """
    sums: str = "column"
    """What sums the rows: "column", more columns of the product with v, of rounded probabilities;
    "added", instructions, of unrounded ones.
    """
    min_blocks: int = 1
    """Threadblocks that share a multiprocessor."""
    blocks: int = 132
    """Multiprocessors of a launch, at most: those of the device."""
    again_words: int = 128
    """Words of 32 bits that note which works of a threadblock are to be done again, where
    references are guessed.
    """

    def __post_init__(self) -> None:
        choice.check_types(self)

    # -- Tiles -------------------------------------------------------------------------------------

    @property
    def query_tiles(self) -> int:
        """Tiles of queries of a warpgroup, in each of its rows N."""
        return self.m_tiles // self.warpgroup_rows

    def row_of_tile(self, m: int) -> int:
        """Which of the warpgroup's rows N tile `m` is of."""
        return m if self.shares_pair else 0

    @property
    def block_queries(self) -> int:
        """Queries of a threadblock."""
        return 64 * self.query_tiles * self.row_warpgroups

    @property
    def adds_mask(self) -> bool:
        """Whether a product adds the mask to the scores: where there is one, or keys end within a
        tile and no tile of the pair bias in fp32 says so.
        """
        return self.masked and (self.mask != "bounds" or not self.tiled)

    @property
    def tiled(self) -> bool:
        """Whether the pair bias comes in tiles of `pair_tiles_sm90`."""
        return self.pair != "none" and not self.converts

    @property
    def needs_whole_tiles(self) -> bool:
        """Whether nothing says where keys end within a tile."""
        return not self.masked and not self.tiled

    @property
    def mask_beside_k(self) -> bool:
        """Whether the rows of K have room for the mask, so that their product adds it; else it
        takes one more step of 16 k.
        """
        reads = self.dtype == "bf16" and self.q_in_registers
        # Consumers that ask have it copied there, where exponents have the pair bias to add.
        pays = not self.consumers_ask or (self.converts and self.head_dim <= 32)
        return self.adds_mask and self.pads_k and reads and pays

    @property
    def mask_addends(self) -> bool:
        """Whether the mask is added to exponents, in the instruction that makes them of scores:
        where no reference has to.
        """
        # With three warps a sub-partition a product is as fast; above D 48 there are no registers
        # for addends beside two tiles of a pair bias that is converted.
        pays = self.consumers_ask or self.head_dim > 32
        room = self.head_dim <= 48 or not self.converts or self.m_tiles == 1
        return self.adds_mask and self.guesses and pays and room and not self.mask_beside_k

    @property
    def pair_addends(self) -> bool:
        """Whether a pair bias that is converted is added to exponents, in the instruction that
        makes them of scores, where those of two rows N would have to begin with a copy of it each.
        """
        free = not self.scales_q and (self.mask_beside_k or not self.adds_mask)
        return self.shares_pair and self.converts and free

    @property
    def of_biases(self) -> bias_tiles_sm90.Config:
        """What makes tiles of the mask, where it comes in such, and of the pair bias."""
        return bias_tiles_sm90.Config(
            self.mask,
            self.block_rows,
            self.block_keys,
            pair=self.pair if self.tiled else "none",
            added=self.mask_addends,
            counted_tiles=self.counted_tiles,
        )

    @property
    def can_emulate(self) -> bool:
        """Whether exponentials may be emulated: in bf16, and where none is added as it is."""
        return self.guesses and self.sums == "column"

    @property
    def emulated(self) -> tuple[int, ...]:
        """Pairs of keys of a lane whose exponentials are emulated, numbered as
        ``2 * (tile of 8 keys) + half``: two of each eight. Both are of one tile where what its
        exponents have to add is the mask of a key, which then is a count, too; else these were
        measured to be the fastest.
        """
        of_tile = self.counts_scores and self.mask_addends
        pairs = (4, 5) if of_tile else (2, 3) if self.pair_addends else (3, 6)
        firsts = range(0, self.block_keys // 4, 8) if self.emulates else ()
        return tuple(first + pair for first in firsts for pair in pairs)

    @property
    def ex2_of_tile(self) -> int:
        """Exponentials of a lane and tile, of a stage, that `ex2` takes."""
        return self.block_keys // 2 - 2 * len(self.emulated)

    @property
    def counts_scores(self) -> bool:
        """Whether what emulated exponentials are made of, a count of 256ths, is made of scores at
        once, not of their exponents: the factor of that is a normal number where q is divided by a
        power of two.
        """
        return self.emulates and not self.scales_q

    @property
    def counted_tiles(self) -> int:
        """Bits of the tiles of 8 keys of a stage whose mask is added to counts."""
        counted = self.counts_scores and self.mask_addends
        return sum(1 << tile for tile in {pair // 2 for pair in self.emulated}) if counted else 0

    @property
    def multiplies_q(self) -> bool:
        """Whether q is multiplied by a power of two."""
        return self.scales_q or self.counts_scores

    @property
    def mask_product(self) -> bool:
        """Whether one more step of 16 k adds the mask to the scores."""
        return self.adds_mask and not (self.mask_beside_k or self.mask_addends)

    @property
    def product_columns(self) -> int:
        """Columns of the product with v: D, and 8 of row sums where these make them."""
        return self.head_dim + (8 if self.sums == "column" else 0)

    @property
    def sums_in_rows(self) -> bool:
        """Whether the columns that make the row sums lie within the rows of v, else elsewhere."""
        return self.head_dim < self.product_columns <= self.row_elements

    @property
    def tile_step(self) -> int:
        """Queries from a warp's 16 of a tile to its 16 of the next one: beside each other, unless a
        product reads tiles of Q from shared memory.
        """
        return 16 if self.q_in_registers else 64

    @property
    def warp_step(self) -> int:
        """Queries from a warp's first one to the next warp's."""
        return 16 * self.query_tiles if self.q_in_registers else 16

    @property
    def stored_queries(self) -> int:
        """Queries that a warp stores at a time."""
        return self.warp_step

    @property
    def guesses(self) -> bool:
        """Whether rows have a reference before their scores are known, and none that moves: the
        type of probabilities has the range for that.
        """
        return self.dtype == "bf16"

    @property
    def headroom(self) -> float:
        """Powers of two that the exponents of probabilities are lowered by beside a reference."""
        return guessed.HEADROOM if self.guesses else _HEADROOM

    @property
    def guessed_sums(self) -> tuple[float, float]:
        """Least and highest sum of a row that its guessed reference was one for."""
        return guessed.LEAST_SUM, guessed.MOST_SUM

    def filled(self) -> "Config":
        """The same with as many stages as are to be, and there is room for, if a producer fills
        them; where consumers ask, it depends on their number how few keys a problem may have.
        """
        arch = architecture(ARCH)
        most = 0 if self.consumers_ask else self.most_stages
        filled = (replace(self, stages=stages) for stages in range(most, 1, -1))
        fits = (x for x in filled if arch.fitting_in_shared(x.shared_bytes) >= x.min_blocks)
        return next(fits, self)

    def scores_scale(self, scale: float) -> float:
        """What the scores that products make are multiplied by, for a call with `scale`."""
        if self.counts_scores:
            # Times a power of two with which that is at least the least factor, and no infinity.
            least = LEAST_POWER if abs(scale) >= LEAST_POWER else NEGLIGIBLE_SCALE
            least = 1.0 if abs(scale) >= 1.0 else least
            return scale * (_LEAST_FACTOR / least)
        return 1.0 if self.scales_q else scale

    @property
    def registers(self) -> int:
        """Registers that the assembler may give a thread."""
        return choice.registers(self)

    @property
    def ones(self) -> int:
        """A word of two ones of the 16-bit type."""
        return ONES[self.dtype] * 0x10001

    def added_sum(self, m: int) -> str | None:
        """Name of the sums of tile `m` where instructions add them."""
        return f"sum{m}_" if self.sums == "added" else None

    def scores(self, m: int) -> list[str]:
        """Names of the scores of tile `m`."""
        return [f"s{m}_{i}" for i in range(self.block_keys // 2)]

    @property
    def copies_pair(self) -> bool:
        """Whether the scores of both of a warpgroup's rows N begin with the same pair bias."""
        return self.shares_pair and not self.pair_addends

    @property
    def addends(self) -> list[str] | None:
        """Names of what is added to the exponents of a tile, if anything is."""
        elements = range(self.block_keys // 2)
        if self.pair_addends:
            return [f"addend{i}" for i in elements]
        return [f"addend{i // 4 * 2 + i % 2}" for i in elements] if self.mask_addends else None

    def converted(self, m: int) -> list[str]:
        """Names of what the pair bias of tile `m` is converted to."""
        addends = self.addends if self.pair_addends else None
        return addends or self.scores(m)

    @staticmethod
    def operand(names: list[str]) -> str:
        """Registers as an instruction has them."""
        return f"{{{', '.join(names)}}}"


def violations(
    config: Config, arch: Architecture, problem: Problem | None = None
) -> tuple[str, ...]:
    """Reasons why `config` cannot run on `arch` (and serve `problem`); empty if it can. The only
    statement of the constraints.
    """
    if arch.name != ARCH:
        return (f"wgmma needs {ARCH}; this is {arch.name}",)
    return tuple(_violations(config, arch, problem))


def _violations(c: Config, arch: Architecture, problem: Problem | None) -> Iterator[str]:
    if c.head_dim % 8 or not 8 <= c.head_dim <= 64:
        yield f"head_dim must be a multiple of 8 from 8 to 64, not {c.head_dim}"
        return
    if c.dtype not in ("f16", "bf16"):
        yield f"dtype must be f16 or bf16, not {c.dtype!r}"
        return
    if c.mask not in BIAS_BYTES:
        yield f"mask must be one of {', '.join(BIAS_BYTES)}, not {c.mask!r}"
    if c.pair not in ("none", "f16", "bf16", "f32"):
        yield f"pair must be none, f16, bf16 or f32, not {c.pair!r}"
    if c.block_keys not in (32, 64):
        yield f"block_keys must be 32 or 64, not {c.block_keys}"
        return
    if not 1 <= c.block_rows <= 4 or c.m_tiles not in (1, 2, 4):
        yield f"block_rows must be 1 to 4 and m_tiles 1, 2 or 4, not {c.block_rows}, {c.m_tiles}"
        return
    if c.row_warpgroups not in (1, 2, 3) or (c.row_warpgroups > 1 and not c.q_in_registers):
        yield f"row_warpgroups must be 1, or 2 or 3 with q_in_registers, not {c.row_warpgroups}"
    if c.row_warpgroups == 3 and c.block_rows != c.warpgroup_rows:
        yield "three warpgroups that share rows N have all those of the threadblock"
    if c.warpgroup_rows not in (1, 2) or (c.shares_pair and (c.m_tiles != 2 or c.block_rows % 2)):
        yield f"warpgroup_rows must be 1, or 2 with 2 tiles and even rows, not {c.warpgroup_rows}"
        return
    if c.shares_pair and not (c.consumers_ask and c.guesses and not c.late_pair):
        yield "two rows of a warpgroup are for consumers that ask, in bf16, not with late_pair"
    if c.parts < 1 or c.block_keys % (16 * c.parts):
        yield f"{c.parts} parts of {c.block_keys} keys are not multiples of 16 keys"
        return
    if c.sums not in ("column", "added"):
        yield f"sums must be column or added, not {c.sums!r}"
        return
    if not 2 <= c.stages <= 16:
        yield f"stages must be 2 to 16, not {c.stages}"
    if c.emulates and not c.can_emulate:
        yield "emulates needs probabilities of bf16, and a column that sums them as they are"
    if c.counts_scores and not c.q_in_registers:
        yield "emulates needs q_in_registers, where q is divided by a power of two, or scales_q"
    if c.late_pair and not (c.tiled and c.stages >= 4):
        yield "late_pair is for tiles of the pair bias, and 4 stages or more"
    if c.scales_q and not (c.q_in_registers and c.dtype == "bf16"):
        yield "scales_q needs q_in_registers, and the exponents of bf16"
    if c.continues and not c.q_in_registers:
        yield "continues needs q_in_registers: the next work's Q comes to where this one's was"
    if c.cluster not in (1, 2, 4) or (c.cluster > 1 and not c.tiled):
        yield f"cluster must be 1, or 2 or 4 where the pair bias is tiled, not {c.cluster}"
    if c.converts and c.pair not in ("f16", "bf16"):
        yield f"what is converted is a pair bias of f16 or bf16, not {c.pair}"
    if c.again_words < 1 or c.again_words & (c.again_words - 1) or c.again_words >= c.threads:
        yield f"again_words must be a power of two below {c.threads}, not {c.again_words}"
    if c.blocks < 1:
        yield f"blocks must be positive, not {c.blocks}"
    if c.producer not in ("warp", "consumer"):
        yield f"producer must be warp or consumer, not {c.producer!r}"
    elif c.consumers_ask:
        yield from _asking_violations(c)
    yield from choice.resource_violations(c, arch)
    if 0 < arch.fitting_in_shared(c.shared_bytes) < c.min_blocks:
        yield f"{c.shared_bytes} bytes of shared memory do not fit {c.min_blocks} times"
    yield from device_violations(c, arch)
    if problem is not None:
        yield from problem_violations(c, problem)


def _asking_violations(c: Config) -> Iterator[str]:
    if c.pair == "none" or c.mask == "bounds":
        yield "where consumers ask for boxes, there is a pair bias, and biases say where keys end"
    if c.cluster > 1 or not c.continues:
        yield "where consumers ask for boxes, cluster is 1, and continues True"
    if c.stages < 3 or c.pair_stages < c.warpgroups:
        yield (
            "where consumers ask for boxes, stages are 3 or more, and stages, also of the pair "
            "bias, no fewer than warpgroups, as each goes on by so many"
        )


def device_violations(c: Config, arch: Architecture) -> Iterator[str]:
    """Reasons why a device has too few multiprocessors for `c`."""
    if c.cluster > arch.multiprocessors:
        yield f"a cluster of {c.cluster} does not fit on {arch.multiprocessors} multiprocessors"


def problem_violations(c: Config, problem: Problem) -> Iterator[str]:
    """Reasons why `c` does not serve `problem`."""
    if (c.head_dim, c.dtype, c.pair) != (problem.head_dim, problem.dtype, problem.pair):
        yield "is an instance for another head_dim, dtype or type of pair_bias"
    if c.mask != problem.mask and (c.mask, problem.mask) != ("bounds", "none"):
        yield f"is an instance for mask {c.mask}, not {problem.mask}"
    if c.needs_whole_tiles and problem.keys % c.block_keys:
        yield f'{problem.keys} keys end within a tile of {c.block_keys}; mask must be "bounds"'
    if c.converts and not problem.pair_mapped:
        yield "a tensor map of the pair bias needs rows at multiples of 16 bytes"
    least = c.least_key_tiles_of_last if c.has_last_tile(problem) else c.least_key_tiles
    if c.consumers_ask and ceil(problem.keys / c.block_keys) < least:
        yield (
            f"consumers ask for boxes of this work and the next; {problem.keys} keys are fewer "
            f"than {least} tiles of {c.block_keys}"
        )
    if not problem.mapped:
        yield "a tensor map steps forward along every axis of q, k and v, by less than 2^40 bytes"
    if not problem.scaled:
        yield "divides biases by the scale, which is so small that it is taken as 0"
    if c.scales_q and not problem.power_of_two:
        yield "multiplies q by the scale, which is no power of two from 2^-16 to 1"
    if c.works(problem) >= _MOST_WORKS:
        yield f"{c.works(problem)} works are not fewer than 2^31"
