"""Configurations of the backward kernel for sm_80 and later: what one says of tiles, copies, shared
memory and the launch, and which of them are legal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from cuevo.architectures import Architecture
from cuevo.kernels import backward, choice
from cuevo.kernels.backward import Problem, SideConfig, most_chunks
from cuevo.kernels.forward import BIAS_BYTES
from cuevo.layouts import SharedTile, swizzle

MINIMUM_ARCH = 80


@dataclass(frozen=True)
class Config(SideConfig):
    """One instance of the kernel; the template is given the whole of it."""

    block_rows: int = 1
    """Rows N of a threadblock: they share the pair-bias tile."""
    warp_rows: int = 1
    """Rows N of a warp, one after the other."""
    block_stationary: int = 64
    """Stationary positions of a threadblock."""
    block_streamed: int = 32
    """Streamed positions of a pipeline stage."""
    chunk_streamed: int = 32
    """Streamed positions of one step."""
    m_tiles: int = 2
    """16-position tiles of a warp."""
    stages: int = 3
    """Shared-memory stages of the streamed operands."""
    late_copies: bool = False
    """Issue the copies of the next stage among the products of the first two steps, in which nobody
    waits for them; or all of them before.
    """
    stationary_in_registers: bool = False
    """Keep the fragments of the stationary operands in registers (where warp_rows > 1: those of one
    row for an iteration), or read them for each step.
    """
    meeting_buffers: int = 2
    """Where sums over rows N of several warps meet: 2 in turn, or 1, which they wait for."""
    pair_copy_bytes: int = 16
    """Bytes of one copy of pair_bias: 16, 8 and 4 asynchronously, 2 through a register."""
    full_tiles: bool = False
    """Rows and positions fill every tile; otherwise a warp that has none idles in the last ones."""
    short_stationary: int = 0
    """Stationary positions of the threadblocks of the last tile, which has fewer than the others;
    see `short_tile`. 0: they are like the others.
    """
    short_rows: int = 0
    """Rows N of these threadblocks."""

    @property
    def short_tile(self) -> "Config":
        """The tiling of a last tile of few stationary positions: as many warps, one row N each."""
        positions = self.short_rows * self.short_stationary
        return replace(
            self,
            short_stationary=0,
            short_rows=0,
            block_rows=self.short_rows,
            warp_rows=1,
            block_stationary=self.short_stationary,
            m_tiles=positions // (self.threads // 2),
        )

    @property
    def bodies(self) -> "tuple[Config, ...]":
        """The tilings that the kernel has code for."""
        return (self, self.short_tile) if self.short_stationary else (self,)

    @property
    def chunks_together(self) -> int:
        """Chunks of rows N whose threadblocks are numbered together, with that of the short last
        tile, so that it finds what they stream in L2.
        """
        return self.short_rows // self.block_rows if self.short_stationary else 1

    @property
    def all_stationary(self) -> bool:
        """Whether every stationary position of every tile of this tiling exists."""
        return self.full_tiles or self.short_stationary > 0

    # -- Tiles and copies --------------------------------------------------------------------------

    @property
    def stationary_axis(self) -> str:
        """The axis of the stationary operands."""
        return "key" if self.by_keys else "query"

    @property
    def streamed_axis(self) -> str:
        """The axis of the streamed operands."""
        return "query" if self.by_keys else "key"

    @property
    def tile(self) -> SharedTile:
        """The layout of an operand's rows in shared memory."""
        return swizzle(self.head_dim // 8)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of an operand."""
        return 2 * self.head_dim

    @property
    def warp_stationary(self) -> int:
        """Stationary positions of a warp."""
        return 16 * self.m_tiles

    @property
    def score_step(self) -> tuple[int, int]:
        """Stationary and streamed positions that are computed together, if any of them exists."""
        return (self.warp_stationary, self.last_step)

    @property
    def row_threads(self) -> int:
        """Threads that work on the same rows N."""
        return 32 * (self.block_stationary // self.warp_stationary)

    @property
    def lane_keys(self) -> int:
        """Keys side by side that a lane has of a warp's, 0 where those of a lane are 8 apart: row
        8 * i + lane / 4 of the warp's scores is then key lane_keys * (lane / 4) + i, so that a lane
        reads its fp32 pair biases of a query at once.
        """
        return 2 * self.m_tiles if self.by_keys and self.pair == "f32" else 0

    @property
    def pass_positions(self) -> tuple[int, ...]:
        """Stationary positions of the passes that copy their tile, from that of a thread's first
        row on, where they are not `pass_rows` apart: those of a warp are in its lanes' order.
        """
        if not self.lane_keys:
            return ()
        warps = range(0, self.block_stationary, self.warp_stationary)
        ordered = [
            warp + own * self.lane_keys + number
            for warp in warps
            for number in range(self.lane_keys)
            for own in range(8)
        ]
        return tuple(ordered[:: self.pass_rows])

    @property
    def warp_groups(self) -> int:
        """Groups of warps, each with `warp_rows` of the rows N."""
        return self.block_rows // self.warp_rows

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warp_groups * self.row_threads

    @property
    def n_tiles(self) -> int:
        """Accumulator tiles of 8 columns in a step."""
        return self.chunk_streamed // 8

    @property
    def steps(self) -> int:
        """Steps of a stage."""
        return self.block_streamed // self.chunk_streamed

    @property
    def pass_rows(self) -> int:
        """Positions that the threads of the same rows N copy at a time: a multiple of 8, which
        keeps a thread's swizzle, and a power of two where `pass_positions` are to add up.
        """
        rows = self.row_threads // self.tile.chunks // 8 * 8
        return 1 << rows.bit_length() - 1 if self.lane_keys and rows else rows

    @property
    def pair_size(self) -> int:
        """Bytes of an element of pair_bias."""
        return BIAS_BYTES[self.pair]

    @property
    def pair_tile(self) -> SharedTile | None:
        """The layout of rows of pair_bias in shared memory; None where there is none."""
        if self.pair == "none":
            return None
        keys = self.block_stationary if self.by_keys else self.block_streamed
        return swizzle(keys * self.pair_size // 16)

    @property
    def late_pair(self) -> bool:
        """Whether the copies of the pair tile, too, are issued among products: whole ones."""
        return self.late_copies and self.pair != "none" and self.pair_copy_bytes == 16

    @property
    def pair_pass_rows(self) -> int:
        """Queries of the pair tile that the block copies at a time, likewise; 1 where copies are
        narrower than 16 bytes.
        """
        if self.pair_tile is None or self.pair_copy_bytes < 16:
            return 1
        return self.threads // self.pair_tile.chunks // 8 * 8

    @property
    def value_bytes(self) -> int:
        """Bytes that a streamed position has beside its operands: the statistics of a query, the
        bias of a key.
        """
        return 12 if self.by_keys else 4 if self.mask else 0

    @property
    def values_passes(self) -> int:
        """Copies of 16 bytes with which a thread takes part in those of a row N in a stage."""
        return ceil(self.block_streamed * self.value_bytes / (16 * self.row_threads))

    @property
    def scarce(self) -> bool:
        """Whether the loop leaves no registers for what a thread needs only around it."""
        return self.sums_rows or (self.by_keys and self.head_dim > 56 and self.block_rows > 1)

    @property
    def meeting(self) -> bool:
        """Whether several warps have rows N of the same sums."""
        return self.sums_rows and self.warp_groups > 1

    @property
    def apart(self) -> bool:
        """Whether groups of warps have rows N that only they want."""
        return self.warp_groups > 1 and not self.meeting

    @property
    def idles(self) -> bool:
        """Whether a warp may have nothing to compute: positions of the last tile, or rows N."""
        positions = self.block_stationary > self.warp_stationary and not self.all_stationary
        return positions or (self.apart and not self.full_tiles)

    @property
    def part_rows(self) -> int:
        """Rows of a warp's tile that each of them then sums."""
        return self.warp_stationary // self.warp_groups

    @property
    def last_step(self) -> int:
        """Streamed positions of the steps in which the last tile may end: 16 where products of 16
        columns can be that, and sums over rows N are of one step.
        """
        finer = self.tile.chunks % 2 == 0 and (self.steps == 1 or not self.sums_rows)
        return 16 if finer and self.chunk_streamed == 32 else self.chunk_streamed

    # -- Shared memory: stationary operands | their statistics | stages of (first | second | pair |
    # values) | the sums that meet | the threadblock's coordinates

    @property
    def stationary_rows(self) -> int:
        """Rows of a stationary operand."""
        return self.block_rows * self.block_stationary

    @property
    def streamed_rows(self) -> int:
        """Rows of a streamed operand in a stage."""
        return self.block_rows * self.block_streamed

    @property
    def stationary_stats_at(self) -> int:
        """Where the statistics of stationary queries begin."""
        return 2 * self.stationary_rows * self.row_bytes

    @property
    def row_stats_bytes(self) -> int:
        """Statistics of a row N: of a warp's queries -delta, 8 bytes each, and low, room for two m
        tiles.
        """
        return self.block_stationary // self.warp_stationary * 128 * (self.m_tiles + 1)

    @property
    def stages_at(self) -> int:
        """Where the stages begin."""
        return self.stationary_stats_at + (
            0 if self.by_keys else self.block_rows * self.row_stats_bytes
        )

    @property
    def pair_at(self) -> int:
        """Where the pair tile of a stage begins in it."""
        return 2 * self.streamed_rows * self.row_bytes

    @property
    def values_at(self) -> int:
        """Where the values of a stage begin."""
        return self.pair_at + self.block_stationary * self.block_streamed * self.pair_size

    @property
    def operand_bytes(self) -> int:
        """Bytes of what is copied into a stage."""
        return self.values_at + self.streamed_rows * self.value_bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage, which has room for a result, too."""
        return max(self.operand_bytes, self.stationary_rows * self.row_bytes)

    @property
    def meeting_at(self) -> int:
        """Where sums meet."""
        return self.stages_at + self.stages * self.stage_bytes

    @property
    def meeting_step(self) -> int:
        """Bytes of the sums of 32 streamed positions."""
        return self.threads * self.warp_stationary * 4

    @property
    def meeting_bytes(self) -> int:
        """Bytes of the sums of an iteration."""
        return self.meeting_step * (self.block_streamed // 32) if self.meeting else 0

    @property
    def place_at(self) -> int:
        """Where the threadblock's four coordinates wait."""
        return self.meeting_at + self.meeting_buffers * self.meeting_bytes

    @property
    def tile_bytes(self) -> int:
        """All of the above."""
        return self.place_at + (16 if self.scarce else 0)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a threadblock of any tiling."""
        return max(each.tile_bytes for each in self.bodies)

    # -- The launch --------------------------------------------------------------------------------

    def groups(self, problem: Problem, arch: Architecture) -> int:
        """Groups that a threadblock takes one after the other, to sum over their rows: those that
        keep the device busy to the end, with few chunks.
        """
        if not self.sums_rows:
            return 1
        row_groups = self.row_groups(problem)
        offered = groups_of_chunks(row_groups, min(row_groups, most_chunks(problem)))
        return min(offered, key=lambda groups: self.time(groups, problem, arch))

    def time(self, groups: int, problem: Problem, arch: Architecture) -> float:
        """Estimated time, arbitrary units, where threadblocks take so many groups each."""
        others = ceil(problem.stationary / self.block_stationary) * problem.heads * problem.batch
        slots = arch.multiprocessors * self.resident(arch)
        chunks = self.chunks_of(problem, groups)
        return ceil(others * chunks / slots) * groups * (1 + _EACH_CHUNK * chunks)

    def extents(self, problem: Problem, groups: int) -> tuple[int, int]:
        """Threadblocks along the stationary positions and along the chunks of rows N."""
        tiles, chunks = super().extents(problem, groups)
        if self.short_stationary:
            return (tiles - 1) * self.chunks_together + 1, ceil(chunks / self.chunks_together)
        return tiles, chunks

    def grid(self, problem: Problem, groups: int) -> tuple[int, int, int]:
        """Threadblocks of a launch, all in x: stationary tiles fastest, then heads, then chunks of
        rows, then batches.
        """
        tiles, chunks = self.extents(problem, groups)
        return (tiles * problem.heads * chunks * problem.batch, 1, 1)


_EACH_CHUNK = 0.002
"""Cost of the sums of one more chunk, as a part of the whole."""


def groups_of_chunks(row_groups: int, most: int) -> Iterator[int]:
    """How many of these groups a chunk may have, the last one perhaps fewer, where there are up to
    `most` chunks: each number once, from the highest down.
    """
    chunks = 1
    while chunks <= most:
        groups = ceil(row_groups / chunks)
        yield groups
        chunks = next_chunks(row_groups, groups, chunks)


def next_chunks(row_groups: int, groups: int, chunks: int) -> int:
    """The fewest chunks with less than `groups` groups each; some more of one group each."""
    return max(chunks + 1, ceil(row_groups / max(groups - 1, 1)))


def violations(
    config: Config, arch: Architecture, problem: Problem | None = None
) -> tuple[str, ...]:
    """Reasons why `config` cannot run on `arch` (and serve `problem`); empty if it can. The only
    statement of the constraints.
    """
    return tuple(_violations(config, arch, problem))


def _violations(c: Config, arch: Architecture, problem: Problem | None) -> Iterator[str]:
    if arch.number < MINIMUM_ARCH:
        yield f"cp.async and mma.m16n8k16 need sm_{MINIMUM_ARCH}; this is {arch.name}"
    if reasons := tuple(backward.value_violations(c)):
        yield from reasons
        return
    if c.dtype not in ("f16", "bf16"):
        yield f"dtype must be f16 or bf16, not {c.dtype!r}"
    if c.pair not in ("none", "f16", "bf16", "f32"):
        yield f"pair must be none, f16, bf16 or f32, not {c.pair!r}"
        return
    if (
        c.m_tiles not in (1, 2)
        or c.block_stationary not in (16, 32, 64, 128)
        or c.block_stationary < c.warp_stationary
    ):
        yield (
            "a warp has 16 or 32 stationary positions (m_tiles 1 or 2), a block 16, 32, 64 or 128; "
            f"got {c.warp_stationary}, {c.block_stationary}"
        )
        return
    if c.block_streamed not in (32, 64, 128):
        yield f"block_streamed must be 32, 64 or 128, not {c.block_streamed}"
        return
    step = 32 if c.tile.chunks % 2 else 16
    if c.chunk_streamed < step or c.chunk_streamed % step or c.block_streamed % c.chunk_streamed:
        yield f"chunk_streamed must be a multiple of {step} that divides block_streamed"
    if c.warp_rows < 1 or c.block_rows < 1 or c.block_rows % c.warp_rows:
        yield f"block_rows = {c.block_rows} is no multiple of warp_rows = {c.warp_rows}"
        return
    if c.warp_rows > 1 and c.side == "keys":
        yield "warp_rows > 1 is for queries"
    if c.meeting and (c.warp_groups not in (2, 4) or c.chunk_streamed not in (16, 32)):
        yield (
            "sums over rows are shared by 1, 2 or 4 groups of warps, as tiles of 32 keys in one or "
            f"two steps; got {c.warp_groups}, {c.chunk_streamed}"
        )
    if c.late_copies and c.warp_rows * c.steps < 2:
        yield "late_copies needs two steps, or two rows of a warp"
    if c.meeting_buffers not in (1, 2):
        yield f"meeting_buffers must be 1 or 2, not {c.meeting_buffers}"
    if not 32 <= c.threads <= 1024:
        yield f"{c.threads} threads; a threadblock has 32 to 1024"
        return
    if not 2 <= c.stages <= 6:
        yield f"stages must be 2 to 6, not {c.stages}"
    if c.row_threads < 8 * c.tile.chunks:
        yield (
            f"{c.row_threads} threads copy fewer than the 8 rows of {c.tile.chunks} chunks that "
            "keep a thread's swizzle constant"
        )
    if c.pair_tile:
        if c.pair_copy_bytes not in (2, 4, 8, 16) or c.pair_copy_bytes < c.pair_size:
            yield (
                "pair_copy_bytes must be 16, 8, 4 or 2, and at least one element; got "
                f"{c.pair_copy_bytes}"
            )
        elif c.pair_copy_bytes == 16 and c.threads < 8 * c.pair_tile.chunks:
            yield (
                f"{c.threads} threads copy fewer than the 8 rows of pair bias that keep a "
                "thread's swizzle constant"
            )
    if c.short_stationary and (reasons := tuple(_short_tile_violations(c, arch, problem))):
        yield from reasons
        return
    yield from choice.resource_violations(c, arch)
    if problem is None:
        return
    yield from backward.problem_violations(c, c.block_streamed, problem)
    if c.full_tiles and not fills_tiles(problem, c):
        yield "rows or positions do not fill the last tiles; full_tiles must be false"
    if c.pair != "none" and c.pair_copy_bytes > problem.pair_alignment:
        yield (
            f"copies pair_bias by {c.pair_copy_bytes} bytes; its rows are aligned to "
            f"{problem.pair_alignment}"
        )


def _short_tile_violations(c: Config, arch: Architecture, problem: Problem | None) -> Iterator[str]:
    def of_tile() -> Iterator[str]:
        if c.sums_rows and c.short_rows != c.block_rows:
            yield f"sums are of block_rows = {c.block_rows} rows in the short last tile, too"
            return
        yield from (f"short last tile: {why}" for why in _violations(c.short_tile, arch, None))

    positions = None if problem is None else problem.stationary
    yield from choice.short_tile_violations(c, arch, "stationary", positions, of_tile)


def fills_tiles(problem: Problem, config: Config) -> bool:
    """Whether rows and positions fill every tile."""
    stationary, streamed = problem.queries, problem.keys
    if config.by_keys:
        stationary, streamed = streamed, stationary
    return not (
        problem.rows % config.block_rows
        or stationary % config.block_stationary
        or streamed % config.block_streamed
    )
