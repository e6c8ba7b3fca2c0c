"""Host half of ``ptx/evoformer_forward_sm90a.ptx``: what may be configured, how it is launched, its
tensor maps.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, e, log2
from typing import Any, NamedTuple

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.cuda.context import PrimaryContext
from cuevo.cuda.tensor_map import TensorMap
from cuevo.kernels import choice
from cuevo.kernels.forward import BIAS_BYTES, ONES, Problem, common_fields
from cuevo.kernels.mapped_addresses import MappedAddresses
from cuevo.layouts import SharedTile, swizzle

__all__ = [
    "ARCH",
    "MINIMUM_ARCH",
    "NAME",
    "SUMMARY",
    "Config",
    "Problem",
    "adapt",
    "addresses",
    "candidates",
    "choose",
    "parameters",
    "prefers_lower_variant",
    "spill_fallbacks",
    "values",
    "violations",
]

NAME = "evoformer_forward_sm90a"
SUMMARY = "Evoformer attention, forward: TMA, mbarriers, wgmma, persistent threadblocks"
MINIMUM_ARCH = 90
ARCH = "sm_90a"
"""Its instructions are those of one architecture, not of later ones."""

_BARRIER_BYTES = 8
_FLAG_BYTES = 16
_MOST_WORKS = 2**31
_LEAST_SCORES = 2**27
"""From which on it runs unasked."""
_LEAST_SUM = {"bf16": 2.0**-60, "f16": 2.0**-6}
"""Least sums of rows some of whose keys do not count: what is left of the others is exact."""


class Strip(NamedTuple):
    """The 16 rows of an m tile that a warp stores, as `ptx/lib/forward_results.ptx` sees them."""

    dtype: str
    tile: SharedTile
    m_tiles: int = 1
    warp_queries: int = 16


@dataclass(frozen=True)
class Config:
    """One instance of the kernel; its template is given the whole of it."""

    head_dim: int
    dtype: str = "bf16"
    block_rows: int = 3
    """Rows N of a threadblock, a consumer warpgroup each: they share the pair-bias tile."""
    m_tiles: int = 2
    """Tiles of 64 queries of a warpgroup: the scores of one are computed while another's
    exponentials are taken.
    """
    block_keys: int = 32
    """Keys of a stage, and of a softmax step of one tile."""
    parts: int = 1
    """Parts of such a step: each is multiplied by v as soon as it is there."""
    stages: int = 5
    """Shared-memory stages of K, V and the pair bias."""
    q_in_registers: bool = True
    """Keep Q as fragments, or read it from shared memory for each product."""
    q_buffers: int = 1
    """Q of that many works in shared memory."""
    mask: str = "none"
    """Type of mask_bias, or "bounds": no mask, but keys may end within a tile."""
    pair: str = "bf16"
    """Type of pair_bias, or "none"; its tiles are fp32 in any case."""
    sums: str = "column"
    """What sums the rows: "column", more columns of the product with v, of rounded probabilities;
    "added", instructions, of unrounded ones.
    """
    blocks: int = 132
    """Threadblocks of a launch, at most: one for each multiprocessor of the device."""
    again_words: int = 128
    """Words of 32 bits that note which works of a threadblock are to be done again."""

    def __post_init__(self) -> None:
        choice.check_types(self)

    # -- Tiles -------------------------------------------------------------------------------------

    @property
    def block_queries(self) -> int:
        """Queries of a threadblock."""
        return 64 * self.m_tiles

    @property
    def masked(self) -> bool:
        """Whether there is a mask warp."""
        return self.mask != "none"

    @property
    def row_elements(self) -> int:
        """Elements of a row of Q, K or V in shared memory: D, and zeros."""
        return next((x for x in (16, 32) if x >= self.head_dim), 64)

    @property
    def row_bytes(self) -> int:
        """Bytes of such a row, and of its swizzle."""
        return 2 * self.row_elements

    @property
    def k_steps(self) -> int:
        """Products of 16 k that make a score."""
        return ceil(self.head_dim / 16)

    @property
    def product_columns(self) -> int:
        """Columns of the product with v: D, and 8 of row sums where these make them."""
        return self.head_dim + (8 if self.sums == "column" else 0)

    @property
    def sums_in_rows(self) -> bool:
        """Whether the columns that make the row sums lie within the rows of v."""
        return self.head_dim < self.product_columns <= self.row_elements

    @property
    def lane_keys(self) -> int:
        """Keys of a stage that a lane of the mask warp looks after."""
        return self.block_keys // 32

    @property
    def least_sum(self) -> float:
        """Least row sum of a work that need not be done again."""
        return _LEAST_SUM[self.dtype]

    @property
    def strip(self) -> Strip:
        """What a warp stores at a time."""
        return Strip(self.dtype, swizzle(self.head_dim // 8))

    @property
    def threads(self) -> int:
        """Threads of a block: consumer warpgroups, the producer warp, the mask warp."""
        return 128 * self.block_rows + (64 if self.masked else 32)

    @property
    def min_blocks(self) -> int:
        """Threadblocks that share a multiprocessor."""
        return 1

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
        """Names of the scores of tile `m`: an array of registers a part."""
        each = self.block_keys // self.parts // 2
        return [f"s{m}_{part}_{i}" for part in range(self.parts) for i in range(each)]

    @staticmethod
    def operand(names: list[str]) -> str:
        """Registers as an instruction has them."""
        return f"{{{', '.join(names)}}}"

    # -- Shared memory: stages of (K | V | sums | pair) | Q | output | mask | again | barriers -----

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

    def weights_at(self, row: int) -> int:
        """Where the weights of row N number `row` begin in a stage: a chunk of each key's row."""
        if self.sums_in_rows:
            return self.v_at + row * self.kv_row_bytes + 2 * self.head_dim
        block, chunk = divmod(row, self.row_bytes // 16)
        return self.sums_at + block * self.kv_row_bytes + 16 * chunk

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
        return self.q_at + self.q_buffers * self.q_bytes

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
        return self.mask_at + self.stages * self.mask_stage_bytes

    @property
    def mask_bytes(self) -> int:
        """Bytes of the stages of the mask, and of the notes."""
        return self.stages * self.mask_stage_bytes + 4 * self.again_words + 16 if self.masked else 0

    @property
    def barriers_at(self) -> int:
        """Where the barriers begin."""
        return self.mask_at + self.mask_bytes

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
        """The same of stages that the mask warp has seen."""
        return 2 * _BARRIER_BYTES * self.stages

    @property
    def q_full_at(self) -> int:
        """The same of Q that is there."""
        return (3 if self.masked else 2) * _BARRIER_BYTES * self.stages

    @property
    def q_empty_at(self) -> int:
        """The same of Q that has been read."""
        return self.q_full_at + _BARRIER_BYTES * self.q_buffers

    @property
    def done_at(self) -> int:
        """The same of all works, where some may be done again."""
        return self.q_empty_at + _BARRIER_BYTES * self.q_buffers

    @property
    def barriers(self) -> int:
        """How many barriers there are."""
        return self.done_at // _BARRIER_BYTES + self.masked

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.barriers_at + _BARRIER_BYTES * self.barriers

    # -- Launch ------------------------------------------------------------------------------------

    def extents(self, rows: int, queries: int) -> tuple[int, int]:
        """Groups of rows N, and tiles of queries."""
        return ceil(rows / self.block_rows), ceil(queries / self.block_queries)

    def works(self, problem: Problem) -> int:
        """How many (batch, group of rows N, head, query tile) there are."""
        groups, tiles = self.extents(problem.rows, problem.queries)
        return problem.batch * problem.heads * tiles * groups

    def grid(self, problem: Problem) -> tuple[int, int, int]:
        """Threadblocks of a launch, which share the works."""
        return (min(self.works(problem), self.blocks), 1, 1)

    # -- Tensor maps -------------------------------------------------------------------------------

    def q_map(self, q: ArrayView) -> TensorMap:
        """The map of q [B, N, Lq, H, D]: (D, Lq, H, N, B)."""
        return self._map(q, self.block_queries)

    def k_map(self, k: ArrayView) -> TensorMap:
        """The map of k or v [B, N, Lk, H, D], likewise."""
        return self._map(k, self.block_keys)

    def _map(self, x: ArrayView, positions: int) -> TensorMap:
        order = (2, 3, 1, 0)
        extents = tuple(x.shape[axis] for axis in order)
        # An axis of one element may have any stride; a legal one stands for it.
        strides = tuple(x.strides[i] if x.shape[i] > 1 else 16 for i in order)
        return TensorMap(
            self.dtype,
            x.pointer,
            (self.head_dim, *extents),
            strides,
            (self.row_elements, positions, 1, 1, 1),
            swizzle=self.row_bytes,
            l2_promotion=128,
        )


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    return {"config": config}


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
    if c.parts < 1 or c.block_keys % (16 * c.parts):
        yield f"{c.parts} parts of {c.block_keys} keys are not multiples of 16 keys"
        return
    if c.sums not in ("column", "added"):
        yield f"sums must be column or added, not {c.sums!r}"
        return
    if not 2 <= c.stages <= 16:
        yield f"stages must be 2 to 16, not {c.stages}"
    if not 1 <= c.q_buffers <= 4:
        yield f"q_buffers must be 1 to 4, not {c.q_buffers}"
    if c.sums_in_rows and not c.masked:
        yield (
            f"at head_dim {c.head_dim} the mask warp writes the columns that make row sums; mask "
            'must be "bounds" where there is none'
        )
    if c.again_words < 1 or c.again_words & (c.again_words - 1) or c.again_words >= c.threads:
        yield f"again_words must be a power of two below {c.threads}, not {c.again_words}"
    if c.blocks < 1:
        yield f"blocks must be positive, not {c.blocks}"
    yield from choice.resource_violations(c, arch)
    if problem is not None:
        yield from _problem_violations(c, problem)


def _problem_violations(c: Config, problem: Problem) -> Iterator[str]:
    if (c.head_dim, c.dtype, c.pair) != (problem.head_dim, problem.dtype, problem.pair):
        yield "is an instance for another head_dim, dtype or type of pair_bias"
    if c.mask != problem.mask and (c.mask, problem.mask) != ("bounds", "none"):
        yield f"is an instance for mask {c.mask}, not {problem.mask}"
    if c.mask == c.pair == "none" and problem.keys % c.block_keys:
        yield f'{problem.keys} keys end within a tile of {c.block_keys}; mask must be "bounds"'
    if not problem.mapped:
        yield "a tensor map steps forward along every axis of q, k and v, by less than 2^40 bytes"
    if not problem.scaled:
        yield "divides biases by the scale, which is so small that it is taken as 0"
    if c.works(problem) >= _MOST_WORKS:
        yield f"{c.works(problem)} works are not fewer than 2^31"


def adapt(config: Config, problem: Problem) -> Config:
    """`config` with the fields that follow from the problem set to fit it."""
    fitted = replace(
        config,
        head_dim=problem.head_dim,
        dtype=problem.dtype,
        mask=problem.mask,
        pair=problem.pair,
    )
    ragged = problem.pair == "none" and problem.keys % config.block_keys > 0
    bounds = ragged or fitted.sums_in_rows
    return replace(fitted, mask="bounds") if bounds and not fitted.masked else fitted


def spill_fallbacks(config: Config) -> Iterator[Config]:
    """`config`, then with Q in shared memory, which takes fewer registers."""
    yield config
    if config.q_in_registers:
        yield replace(config, q_in_registers=False)


# -- Choice ----------------------------------------------------------------------------------------


SHAPES = (
    Config(32, block_rows=3, stages=5),
    Config(56, block_rows=2, stages=4),
    Config(64, block_rows=2, stages=4, q_in_registers=False),
)
"""Tilings for head dims up to theirs: those that have registers and shared memory enough."""


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    fitting = (shape for shape in SHAPES if problem.head_dim <= shape.head_dim)
    yield adapt(next(fitting, SHAPES[-1]), problem), 1.0


def choose(problem: Problem, arch: Architecture) -> Config:
    """The legal candidate; ValueError, with every objection, if there is none."""
    found = choice.cheapest(NAME, candidates(problem), violations, _cost, problem, arch)
    return replace(found, blocks=arch.multiprocessors)


def _cost(config: Config, speed: float, problem: Problem, arch: Architecture) -> float:
    return ceil(config.works(problem) / arch.multiprocessors) / speed


def prefers_lower_variant(problem: Problem, arch: Architecture) -> bool:
    """Whether ``evoformer_forward_sm80`` is to run: where this one was not measured to be faster,
    and where a call is so short that the tiles of the pair bias and the tensor maps, which take the
    host 20 us, are most of it.
    """
    measured = problem.head_dim in (32, 64) and problem.pair != "none"
    return not measured or problem.scores < _LEAST_SCORES


# -- Launch ----------------------------------------------------------------------------------------


def parameters(
    config: Config,
    problem: Problem,
    *,
    q: ArrayView,
    k: ArrayView,
    v: ArrayView,
    out: ArrayView,
    scale: float,
    mask_bias: ArrayView | None = None,
    pair_tiles: ArrayView | None = None,
    lse: ArrayView | None = None,
) -> dict[str, Any]:
    """The parameter block of a launch, by field name; tensor maps are those of the CPU executor.

    pair_tiles : [B, H, key tiles, query tiles, 64 * block_keys], as `pair_tiles_sm70` makes it.
    """
    extents = config.extents(problem.rows, problem.queries)
    return {
        "q_map": config.q_map(q).encode_for_executor(),
        "k_map": config.k_map(k).encode_for_executor(),
        "v_map": config.k_map(v).encode_for_executor(),
        "pair_tiles": pair_tiles.pointer if pair_tiles else 0,
        "pair_stride_batch": pair_tiles.strides[0] if pair_tiles else 0,
        "pair_stride_head": pair_tiles.strides[1] if pair_tiles else 0,
        "pair_stride_tile": pair_tiles.strides[2] if pair_tiles else 0,
        "key_tiles": ceil(problem.keys / config.block_keys),
        "works": config.works(problem),
        "score_scale": scale * log2(e),
        "bias_scale": 1.0 / scale,
        **common_fields(extents, problem.keys, out=out, mask_bias=mask_bias, lse=lse),
    }


def addresses(
    config: Config, q: ArrayView, k: ArrayView, v: ArrayView, *, context: PrimaryContext | None
) -> MappedAddresses:
    """Packer of a call's addresses for the front of the parameter block."""
    maps = config.q_map(q), config.k_map(k), config.k_map(v)
    return MappedAddresses(NAME, maps, context=context)
