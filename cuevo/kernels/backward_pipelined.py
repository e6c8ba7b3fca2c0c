"""Host half of ``ptx/lib/evoformer_backward.ptx``, the backward pass below sm_80: the configuration
and what follows from it, the legal ones, the candidates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar, TypeVar

from cuevo.architectures import Architecture
from cuevo.kernels import backward, choice
from cuevo.kernels.backward import Problem, SideConfig, most_chunks
from cuevo.kernels.forward import BIAS_BYTES
from cuevo.kernels.forward_pipelined import HeadOperand, Instruction, RowCopy, power_of_two
from cuevo.layouts import SharedTile, ThreadblockMma

_MOST_GRADIENTS = 64
"""Accumulators of gradients that a lane has registers for."""


@dataclass(frozen=True)
class StoredOperand(HeadOperand):
    """An operand whose rows are stored with `stored` elements, in a tile that is read both ways:
    for scores, and transposed for the gradients.
    """

    stored: int = 0

    @property
    def tile(self) -> SharedTile:
        """The layout of its chunks."""
        return SharedTile(self.stored // 8, "quads" if self.instruction == "m8n8k4" else "swizzled")

    @property
    def unit(self) -> int:
        """Chunks that one load takes; every chunk has a place where the rows of a K step move them
        by one.
        """
        return 1 if self.instruction == "m8n8k4" else super().unit


@dataclass(frozen=True)
class PipelinedConfig(Instruction, SideConfig):
    """One instance of a kernel below sm_80; its template is given the whole of it."""

    dtype: str = "f16"
    """Type of q, k, v, dout and their gradients."""
    block_stationary: int = 64
    """Stationary positions of a threadblock: those of 1, 2, 4 or 8 warps, at most 128."""

    block_rows: ClassVar[int] = 1
    """Rows N of a threadblock at a time."""
    block_streamed: ClassVar[int] = 32
    """Streamed positions of a pipeline stage and of a step."""
    pair_pass_rows: ClassVar[int] = 1
    """pair_bias is not copied."""

    # -- Tiles -------------------------------------------------------------------------------------

    @property
    def warp_stationary(self) -> int:
        """Stationary positions of a warp: the rows of one accumulator tile."""
        return self.accumulator.tile[0]

    @property
    def score_step(self) -> tuple[int, int]:
        """Stationary and streamed positions that are computed together, if any of them exists."""
        return (self.block_stationary, self.block_streamed)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.block_stationary // self.warp_stationary)

    @property
    def part_columns(self) -> int:
        """Columns of the gradients of one threadblock, in whole tiles of the instruction: all, or a
        power of two.
        """
        width = self.accumulator.tile[1]
        each = (self.first + self.second or 1) * self.accumulator.count(1, 1)
        tiles, most = ceil(self.head_dim / width), _MOST_GRADIENTS // each
        return (tiles if tiles <= most else power_of_two(most)) * width

    @property
    def parts(self) -> int:
        """Threadblocks that share the columns of the gradients, where these do not fit into a
        warp's registers.
        """
        return ceil(self.head_dim / self.part_columns)

    @property
    def scores(self) -> ThreadblockMma:
        """S = stationary . streamed^T of the block, and dS likewise."""
        stationary = self._operand(
            "a", self.block_stationary, self.head_dim, self.warp_stationary, False
        )
        streamed = self._operand(
            "b", self.block_streamed, self.head_dim, self.block_streamed, False
        )
        return ThreadblockMma(stationary, streamed, 2)

    @property
    def gradient(self) -> ThreadblockMma:
        """The gradients += P . streamed, or dS . streamed."""
        common = (self.instruction, self.threads)
        p = HeadOperand(
            "a", self.block_stationary, self.block_streamed, self.warp_stationary, False, *common
        )
        streamed = self._operand("b", self._stored, self.block_streamed, self.part_columns, True)
        return ThreadblockMma(p, streamed, 2)

    @property
    def _stored(self) -> int:
        """Elements of a row in shared memory: zeros from head_dim on."""
        return self.parts * self.part_columns

    def _operand(
        self, name: str, extent: int, depth: int, warp: int, transposed: bool
    ) -> StoredOperand:
        common = (self.instruction, self.threads)
        return StoredOperand(name, extent, depth, warp, transposed, *common, stored=self._stored)

    @property
    def result_tile(self) -> SharedTile:
        """The layout of a warp's rows of a gradient where its rows of a stationary operand were."""
        return SharedTile(self.part_columns // 8)

    @property
    def by_query(self) -> tuple[tuple[int, tuple[tuple[int, int], ...]], ...]:
        """Queries of a lane's scores, relative to its first; of each the keys, likewise, and the
        indices of the accumulators.
        """
        found: dict[int, list[tuple[int, int]]] = {}
        for row in self.accumulator.rows(self.scores.m_tiles, self.scores.n_tiles):
            for element in row.elements:
                places = (row.row, element.column)
                key, query = places if self.by_keys else places[::-1]
                found.setdefault(query, []).append((key, element.index))
        return tuple((query, tuple(keys)) for query, keys in sorted(found.items()))

    # -- Copies ------------------------------------------------------------------------------------

    @property
    def stationary_copy(self) -> RowCopy:
        """The copy of a stationary tile."""
        return self._copy(self.block_stationary)

    @property
    def streamed_copy(self) -> RowCopy:
        """The copy of a streamed tile."""
        return self._copy(self.block_streamed)

    def _copy(self, rows: int) -> RowCopy:
        tile = self.scores.a.tile
        together = power_of_two(min(self.threads // tile.chunks, rows))
        return RowCopy(tile, rows, self.head_dim // 8, together, self.threads)

    @property
    def pass_rows(self) -> int:
        """Rows of a streamed tile that are copied at a time."""
        return self.streamed_copy.pass_rows

    @property
    def pair_bytes(self) -> int:
        """Bytes of an element of pair_bias."""
        return BIAS_BYTES[self.pair]

    # -- Shared memory: both stationary tiles | two stages of both streamed tiles | P, or dS -------

    @property
    def stationary_bytes(self) -> int:
        """Bytes of one stationary tile."""
        return self.scores.a.bytes

    @property
    def streamed_bytes(self) -> int:
        """Bytes of one streamed tile."""
        return self.scores.b.bytes

    @property
    def stages_at(self) -> int:
        """Offset of the first stage."""
        return 2 * self.stationary_bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return 2 * self.streamed_bytes

    @property
    def p_at(self) -> int:
        """Offset of P, if it is staged."""
        return self.stages_at + 2 * self.stage_bytes

    @property
    def p_bytes(self) -> int:
        """Bytes of P."""
        return self.gradient.a.bytes if self.staged_p else 0

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.p_at + self.p_bytes

    # -- Launch, instructions of an iteration ------------------------------------------------------

    @property
    def needs_ds(self) -> bool:
        """Whether dS is computed."""
        return self.first or self.sums

    def groups(self, problem: Problem, arch: Architecture) -> int:
        """Rows N that a threadblock takes one after the other, to sum over them: such that the
        threadblocks fill the device.
        """
        if not self.sums_rows:
            return 1
        blocks, *_ = self.grid(problem, problem.rows)
        filled = ceil(arch.multiprocessors * self.resident(arch) / blocks)
        return ceil(problem.rows / min(problem.rows, most_chunks(problem), filled))

    def grid(self, problem: Problem, groups: int) -> tuple[int, int, int]:
        """Threadblocks of a launch, all in x: as for the highest variant, the parts of the columns
        fastest.
        """
        tiles = ceil(problem.stationary / self.block_stationary)
        chunks = self.chunks_of(problem, groups)
        return (self.parts * tiles * problem.heads * chunks * problem.batch, 1, 1)

    @property
    def score_products(self) -> int:
        """Products of the size of S in a main-loop iteration."""
        return 1 + self.needs_ds

    @property
    def gradient_products(self) -> int:
        """Products with P and dS in a main-loop iteration."""
        return self.first + self.second

    @property
    def mmas(self) -> int:
        """mma instructions of a warp in a main-loop iteration."""
        return self.score_products * self.mma_count(
            self.scores
        ) + self.gradient_products * self.mma_count(self.gradient)

    @property
    def reads(self) -> int:
        """ldmatrix, or ld.shared, of a warp in a main-loop iteration."""
        scores = self.read_count(self.scores.a) + self.read_count(self.scores.b)
        staged = self.read_count(self.gradient.a) if self.staged_p else 0
        gradients = self.read_count(self.gradient.b) + staged
        return self.score_products * scores + self.gradient_products * gradients


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
    if "bf16" in (c.dtype, c.pair):
        yield (
            f"bf16 needs the tensor cores of sm_80 or later; {name} takes q, k, v, dout and "
            "16-bit biases in float16"
        )
        return
    if reasons := tuple(backward.value_violations(c)):
        yield from reasons
        return
    if c.dtype != "f16":
        yield f"dtype must be f16, not {c.dtype!r}"
    if c.pair not in ("none", "f16", "f32"):
        yield f"pair must be none, f16 or f32, not {c.pair!r}"
        return
    if (
        c.block_stationary not in [warps * c.warp_stationary for warps in (1, 2, 4, 8)]
        or c.block_stationary > 128
    ):
        yield (
            "block_stationary must be those of 1, 2, 4 or 8 warps, at most 128, not "
            f"{c.block_stationary}"
        )
        return
    yield from choice.resource_violations(c, arch)
    if problem is not None:
        yield from backward.problem_violations(c, c.block_streamed, problem)


P = TypeVar("P", bound=PipelinedConfig)

Shapes = Sequence[tuple[int, Sequence[tuple[int, int, float]]]]
"""block_stationary, min_blocks and relative speed, by the largest head_dim that they are for."""


def candidates(config_type: type[P], shapes: Shapes, problem: Problem) -> Iterator[tuple[P, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    for stationary, blocks, speed in next(
        found for largest, found in shapes if problem.head_dim <= largest
    ):
        config = config_type(problem.head_dim, block_stationary=stationary, min_blocks=blocks)
        yield adapt(config, problem), speed


def adapt(config: P, problem: Problem) -> P:
    """`config` with the fields that follow from the problem set to fit it."""
    chosen = replace(config, **{name: getattr(problem, name) for name in backward.FOLLOWS})
    return replace(chosen, mask=backward.needs_mask(chosen, chosen.block_streamed, problem))
