"""Host half of ``ptx/lib/evoformer_forward.ptx``, the forward pass below sm_80: the configuration
and what follows from it, the legal ones, the candidates. The backward pass shares `RowCopy`,
`HeadOperand` and `Instruction`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar, TypeVar

from cuevo.architectures import Architecture
from cuevo.kernels import choice
from cuevo.kernels.forward import BIAS_BYTES, Problem, extents, grid
from cuevo.layouts import M8N8K4, M16N8, Accumulator, Operand, SharedTile, ThreadblockMma


@dataclass(frozen=True)
class RowCopy:
    """Rows of 16-byte chunks that a threadblock copies through registers
    (lib/copy_pipelined.ptx).
    """

    tile: SharedTile
    rows: int
    chunks: int
    """Chunks of a row that there are to copy; zeros take the place of what the tile has beyond."""
    pass_rows: int
    """Rows copied at a time, a power of two."""
    threads: int
    """Threads of the block."""

    @property
    def passes(self) -> int:
        """Chunks of a thread."""
        return self.rows // self.pass_rows

    @property
    def all_store(self) -> bool:
        """Whether no thread is idle."""
        return self.pass_rows * self.tile.chunks == self.threads


@dataclass(frozen=True)
class HeadOperand(Operand):
    """An operand with any number of chunks in a row."""

    @property
    def tile(self) -> SharedTile:
        """The layout of its chunks: for m8n8k4 a row of an odd number gets one more, for rows 8
        apart to begin in different banks.
        """
        tile = super().tile
        return SharedTile(tile.chunks + tile.chunks % 2, "quads") if tile.kind == "quads" else tile

    @property
    def group_extent(self) -> int:
        """m or n that the lanes of a warp load at a time: where three chunks would be left for the
        last ldmatrix, all go by two.
        """
        return 16 if self.transposed and self.warp_extent % 32 == 24 else super().group_extent


def power_of_two(limit: int) -> int:
    """The largest power of two up to `limit`, which is positive."""
    return 1 << limit.bit_length() - 1


class Instruction:
    """Consequences of the mma instruction of a variant."""

    instruction: ClassVar[str]
    """"m16n8k8" or "m8n8k4"."""

    @property
    def staged_p(self) -> bool:
        """Whether the probabilities pass through shared memory: the accumulators of m8n8k4 are no
        operand of it.
        """
        return self.instruction == "m8n8k4"

    @property
    def accumulator(self) -> Accumulator:
        """The layout of scores and output in registers."""
        return M8N8K4 if self.instruction == "m8n8k4" else M16N8

    def mma_count(self, mma: ThreadblockMma) -> int:
        """mma instructions of a warp in an iteration."""
        each = 8 if self.instruction == "m8n8k4" else 1
        return each * mma.a.steps * mma.m_tiles * mma.n_tiles

    def read_count(self, operand: Operand) -> int:
        """ldmatrix, or ld.shared, of a warp in an iteration that read an operand."""
        return operand.steps * operand.groups * (2 if self.instruction == "m8n8k4" else 1)


@dataclass(frozen=True)
class PipelinedConfig(Instruction):
    """One instance of a kernel below sm_80; its template is given the whole of it."""

    head_dim: int
    dtype: str = "f16"
    """Type of q, k, v and out."""
    block_queries: int = 64
    """Queries of a threadblock: those of 1, 2, 4 or 8 warps."""
    block_keys: int = 32
    """Keys of a pipeline stage and of a softmax step: 32 or 64."""
    warp_queries: int = 32
    """Queries of a warp."""
    mask: str = "f16"
    """Type of mask_bias, or "bounds": no mask, but keys may end within a tile."""
    pair: str = "f16"
    """Type of pair_bias."""
    min_blocks: int = 1
    """Threadblocks that share a multiprocessor; the register allocator makes room for them."""

    block_rows: ClassVar[int] = 1
    """Rows N of a threadblock."""
    pair_pass_rows: ClassVar[int] = 1
    """pair_bias is not copied."""

    def __post_init__(self) -> None:
        choice.check_types(self)

    # -- Tiles -------------------------------------------------------------------------------------

    @property
    def score_step(self) -> tuple[int, int]:
        """Queries and keys that are computed together, if any of them exists."""
        return (self.block_queries, self.block_keys)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.block_queries // self.warp_queries)

    @property
    def value_parts(self) -> int:
        """Threadblocks that share the columns of V: above head_dim 64 the output of 32 queries does
        not fit into a warp's registers.
        """
        return 2 if self.warp_queries == 32 and self.head_dim > 64 else 1

    @property
    def value_columns(self) -> int:
        """Columns of the V tile: head_dim in whole tiles of the instruction, or 64, the first and
        the last ones.
        """
        width = self.accumulator.tile[1]
        return 64 if self.value_parts > 1 else ceil(self.head_dim / width) * width

    @property
    def out_columns(self) -> int:
        """Columns of the V tile that exist."""
        return min(self.head_dim, self.value_columns)

    @property
    def out_tile(self) -> SharedTile:
        """The layout of a warp's rows of the output where its rows of Q were."""
        return SharedTile(self.out_columns // 8)

    @property
    def scores(self) -> ThreadblockMma:
        """S = Q . K^T of the block."""
        q = HeadOperand(
            "a", self.block_queries, self.head_dim, self.warp_queries, False, *self._common
        )
        k = HeadOperand("b", self.block_keys, self.head_dim, self.block_keys, False, *self._common)
        return ThreadblockMma(q, k, 2)

    @property
    def output(self) -> ThreadblockMma:
        """O += P . V of the block."""
        width, warp = self.value_columns, self.warp_queries
        p = HeadOperand("a", self.block_queries, self.block_keys, warp, False, *self._common)
        v = HeadOperand("b", width, self.block_keys, width, True, *self._common)
        return ThreadblockMma(p, v, 2)

    @property
    def _common(self) -> tuple[str, int]:
        return self.instruction, self.threads

    # -- Copies ------------------------------------------------------------------------------------

    @property
    def pass_rows(self) -> int:
        """Rows of K and V that are copied at a time."""
        chunks = max(self.scores.b.tile.chunks, self.output.b.tile.chunks)
        return power_of_two(min(self.threads // chunks, self.block_keys))

    @property
    def q_copy(self) -> RowCopy:
        """The copy of the Q tile."""
        tile = self.scores.a.tile
        rows = power_of_two(min(self.threads // tile.chunks, self.block_queries))
        return RowCopy(tile, self.block_queries, self.head_dim // 8, rows, self.threads)

    @property
    def k_copy(self) -> RowCopy:
        """The copy of a K tile."""
        return self._keys_copy(self.scores.b)

    @property
    def v_copy(self) -> RowCopy:
        """The copy of a V tile."""
        return self._keys_copy(self.output.b)

    def _keys_copy(self, operand: Operand) -> RowCopy:
        chunks = min(operand.tile.chunks, self.head_dim // 8)
        return RowCopy(operand.tile, self.block_keys, chunks, self.pass_rows, self.threads)

    @property
    def pair_bytes(self) -> int:
        """Bytes of an element of pair_bias."""
        return BIAS_BYTES[self.pair]

    # -- Shared memory: Q | two stages of (K | V) | P ----------------------------------------------

    @property
    def k_at(self) -> int:
        """Offset of the first stage's K."""
        return self.scores.a.bytes

    @property
    def v_at(self) -> int:
        """Offset of the first stage's V."""
        return self.k_at + self.scores.b.bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return self.scores.b.bytes + self.output.b.bytes

    @property
    def p_at(self) -> int:
        """Offset of the probabilities, if they are staged."""
        return self.k_at + 2 * self.stage_bytes

    @property
    def p_bytes(self) -> int:
        """Bytes of the probabilities."""
        return self.output.a.bytes if self.staged_p else 0

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory, all of the above."""
        return self.p_at + self.p_bytes

    # -- Launch, registers, instructions of an iteration -------------------------------------------

    @property
    def registers(self) -> int:
        """Registers that the assembler may give a thread."""
        return choice.registers(self)

    def extents(self, rows: int, queries: int) -> tuple[int, int]:
        """Threadblocks along the rows N and along the queries."""
        return extents(self, rows, queries)

    def grid(self, problem: Problem) -> tuple[int, int, int]:
        """Threadblocks of a launch, all in x: as for the other variants, the parts of V fastest."""
        blocks, *_ = grid(self, problem)
        return (blocks * self.value_parts, 1, 1)

    @property
    def reads(self) -> int:
        """ldmatrix, or ld.shared, of a warp in an iteration, all of them."""
        operands = [self.scores.a, self.scores.b, self.output.b]
        return sum(map(self.read_count, operands + [self.output.a] * self.staged_p))


def values(config: PipelinedConfig) -> dict[str, object]:
    """The names that the template sees."""
    return {"config": config}


def violations(
    c: PipelinedConfig, name: str, minimum: int, arch: Architecture, problem: Problem | None
) -> Iterator[str]:
    """Reasons why `c` cannot run on `arch` (and serve `problem`) by the kernel `name`, for
    `minimum` and later: the only statement of the constraints that the variants below sm_80 share.
    """
    if arch.number < minimum:
        yield f"mma.{c.instruction} needs sm_{minimum}; this is {arch.name}"
    narrow = (c.dtype, c.mask, c.pair)
    if "bf16" in narrow:
        yield (
            f"bf16 needs the tensor cores of sm_80 or later; {name} takes q, k, v and 16-bit "
            "biases in float16"
        )
        return
    if c.head_dim % 8 or not 8 <= c.head_dim <= 128:
        yield f"head_dim must be a multiple of 8 from 8 to 128, not {c.head_dim}"
        return
    if c.dtype != "f16":
        yield f"dtype must be f16, not {c.dtype!r}"
    if c.mask not in BIAS_BYTES:
        yield f"mask must be one of none, bounds, bool, f16, f32, not {c.mask!r}"
    if c.pair not in ("none", "f16", "f32"):
        yield f"pair must be none, f16 or f32, not {c.pair!r}"
    height = c.accumulator.tile[0]
    if c.warp_queries not in (height, 32):
        sizes = " or ".join(map(str, sorted({height, 32})))
        yield f"warp_queries must be {sizes}, not {c.warp_queries}"
        return
    if c.block_queries not in [warps * c.warp_queries for warps in (1, 2, 4, 8)]:
        yield f"block_queries must be those of 1, 2, 4 or 8 warps, not {c.block_queries}"
        return
    if c.block_keys not in (32, 64):
        yield f"block_keys must be 32 or 64, not {c.block_keys}"
        return
    yield from choice.resource_violations(c, arch)
    if problem is None:
        return
    if (c.head_dim, c.dtype, c.pair) != (problem.head_dim, problem.dtype, problem.pair):
        yield "is an instance for another head_dim, dtype or type of pair_bias"
    if c.mask != problem.mask and (c.mask, problem.mask) != ("bounds", "none"):
        yield f"is an instance for mask {c.mask}, not {problem.mask}"
    if c.mask == "none" and problem.keys % c.block_keys:
        yield f'{problem.keys} keys end within a tile of {c.block_keys}; mask must be "bounds"'


P = TypeVar("P", bound=PipelinedConfig)

Shapes = Sequence[tuple[int, Sequence[tuple[int, int, int, int, float]]]]
"""block_queries, block_keys, warp_queries, min_blocks and relative speed, by the largest head_dim
that they are for.
"""


def candidates(config_type: type[P], shapes: Shapes, problem: Problem) -> Iterator[tuple[P, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    for queries, keys, warp, blocks, speed in next(
        found for largest, found in shapes if problem.head_dim <= largest
    ):
        config = config_type(
            problem.head_dim,
            block_queries=queries,
            block_keys=keys,
            warp_queries=warp,
            min_blocks=blocks,
        )
        yield adapt(config, problem), speed


def adapt(config: P, problem: Problem) -> P:
    """`config` with the fields that follow from the problem (head_dim, types, bounds) set to fit
    it.
    """
    mask = problem.mask
    if mask == "none" and problem.keys % config.block_keys:
        mask = "bounds"
    return replace(
        config, head_dim=problem.head_dim, dtype=problem.dtype, mask=mask, pair=problem.pair
    )
