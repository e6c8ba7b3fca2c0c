"""Host half of ``ptx/evoformer_forward_sm80.ptx``: what may be configured, what is chosen, how it
is launched.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from math import ceil

from cuevo.architectures import Architecture
from cuevo.kernels import choice, forward
from cuevo.kernels.forward import BIAS_BYTES, Problem, parameters
from cuevo.layouts import SharedTile, swizzle

__all__ = [
    "MINIMUM_ARCH",
    "NAME",
    "SHAPES",
    "SUMMARY",
    "Config",
    "Problem",
    "Shape",
    "adapt",
    "candidates",
    "choose",
    "parameters",
    "shapes",
    "spill_fallbacks",
    "traits",
    "values",
    "violations",
]

NAME = "evoformer_forward_sm80"
SUMMARY = "Evoformer attention, forward: cp.async stages, ldmatrix, mma.sync.m16n8k16"
MINIMUM_ARCH = 80


@dataclass(frozen=True)
class Config:
    """One instance of the kernel; its template is given the whole of it."""

    head_dim: int
    dtype: str = "bf16"
    block_rows: int = 1
    """Rows N of a threadblock: they share the pair-bias tile."""
    block_queries: int = 128
    """Queries of a threadblock."""
    block_keys: int = 64
    """Keys of a pipeline stage."""
    chunk_keys: int = 32
    """Keys of one softmax step."""
    m_tiles: int = 2
    """16-query tiles of a warp, 1 to 3."""
    stages: int = 3
    """Shared-memory stages of K, V and the biases."""
    mask: str = "bf16"
    """Type of mask_bias, or "bounds": no mask, but keys may end within a tile."""
    pair: str = "bf16"
    pair_copy_bytes: int = 16
    """Bytes of one copy of pair_bias: 16, 8 and 4 asynchronously, 2 through a register."""
    q_in_registers: bool = True
    """Keep the fragments of Q in registers, or read them from shared memory for each softmax
    step.
    """
    min_blocks: int = 1
    """Threadblocks that share a multiprocessor; the register allocator makes room for them."""
    full_tiles: bool = False
    """Rows, queries and keys fill every tile."""
    short_queries: int = 0
    """Queries of the threadblocks of the last tile, which has fewer than the others; see
    `short_tile`. 0: they are like the others.
    """
    short_rows: int = 0
    """Rows N of these threadblocks."""

    def __post_init__(self) -> None:
        choice.check_types(self)

    @property
    def short_tile(self) -> "Config":
        """The tiling of a last tile of few queries: as many warps, of more rows N, in as many
        stages as there is room for.
        """
        warps = self.threads // 32
        few = replace(
            self,
            short_queries=0,
            short_rows=0,
            block_rows=self.short_rows,
            block_queries=self.short_queries,
            m_tiles=self.short_rows * self.short_queries // (16 * warps),
        )
        room = self.tile_bytes - few.stages_at
        fitting = room // few.stage_bytes
        return replace(few, stages=min(self.stages, max(2, fitting)))

    @property
    def bodies(self) -> "tuple[Config, ...]":
        """The tilings that the kernel has code for."""
        return (self, self.short_tile) if self.short_queries else (self,)

    @property
    def guesses(self) -> bool:
        """Whether rows have a reference before their scores are known, and none that moves: the
        type of probabilities has the range for that.
        """
        return self.dtype == "bf16"

    @property
    def passes(self) -> "tuple[tuple[Config, bool], ...]":
        """What the kernel has code for: each tiling, and whether its references are guessed. Where
        they are the same follows without, for threadblocks with a row that the guess is none for;
        references that move leave no registers for Q.
        """
        found = []
        for body in self.bodies:
            if self.guesses:
                found.append((body, True))
                body = replace(body, q_in_registers=False)
            found.append((body, False))
        return tuple(found)

    @property
    def groups_together(self) -> int:
        """Groups of rows N whose threadblocks are numbered together, with that of the short last
        tile, so that it finds their K and V in L2.
        """
        return self.short_rows // self.block_rows if self.short_queries else 1

    @property
    def all_queries(self) -> bool:
        """Whether every query of every tile of this tiling exists."""
        return self.full_tiles or self.short_queries > 0

    @property
    def chunks(self) -> int:
        """16-byte chunks in a row of Q, K or V."""
        return self.head_dim // 8

    @property
    def tile(self) -> SharedTile:
        """The layout of rows of Q, K and V in shared memory."""
        return swizzle(self.chunks)

    @property
    def warp_queries(self) -> int:
        """Queries of a warp."""
        return 16 * self.m_tiles

    @property
    def n_tiles(self) -> int:
        """Accumulator tiles of 8 keys in a softmax step."""
        return self.chunk_keys // 8

    @property
    def score_step(self) -> tuple[int, int]:
        """Queries and keys of a warp's step. Steps without any key that exists are left out; those
        without queries are where the last tile is a short one, which the choice counts on.
        """
        return (self.warp_queries, self.chunk_keys)

    @property
    def row_threads(self) -> int:
        """Threads that work on one row N."""
        return 32 * (self.block_queries // self.warp_queries)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block_rows * self.row_threads

    @property
    def pass_rows(self) -> int:
        """Rows of K or V that the threads of one row N copy at a time: a multiple of 8, which
        keeps a thread's swizzle.
        """
        return self.row_threads // self.chunks // 8 * 8

    @property
    def pair_size(self) -> int:
        """Bytes of an element of pair_bias."""
        return BIAS_BYTES[self.pair]

    @property
    def pair_tile(self) -> SharedTile | None:
        """The layout of rows of pair_bias in shared memory; None where there is none."""
        return None if self.pair == "none" else swizzle(self.block_keys * self.pair_size // 16)

    @property
    def pair_pass_rows(self) -> int:
        """Queries of the pair tile that the block copies at a time, likewise; 1 where copies are
        narrower than 16 bytes.
        """
        if self.pair_tile is None or self.pair_copy_bytes < 16:
            return 1
        return self.threads // self.pair_tile.chunks // 8 * 8

    @property
    def mask_passes(self) -> int:
        """Keys of a stage whose mask a thread stages."""
        return 0 if self.mask == "none" else ceil(self.block_keys / self.row_threads)

    @property
    def registers(self) -> int:
        """Registers that the assembler may give a thread."""
        return choice.registers(self)

    # -- Shared memory: Q | stages of (K | V | pair | mask) ----------------------------------------

    @property
    def q_row_bytes(self) -> int:
        """Bytes of the Q tile of one row N."""
        return self.block_queries * self.head_dim * 2

    @property
    def kv_row_bytes(self) -> int:
        """Bytes of the K tile, or the V tile, of one row N in a stage."""
        return self.block_keys * self.head_dim * 2

    @property
    def pair_bytes(self) -> int:
        """Bytes of the pair tile of a stage, which all rows N share."""
        return self.block_queries * self.block_keys * self.pair_size

    @property
    def mask_row_bytes(self) -> int:
        """Bytes of the mask of one row N in a stage, in fp32."""
        return 0 if self.mask == "none" else 4 * self.block_keys

    @property
    def mask_stage_bytes(self) -> int:
        """Bytes of the mask in a stage."""
        return self.block_rows * self.mask_row_bytes

    @property
    def v_at(self) -> int:
        """Where V begins in a stage."""
        return self.block_rows * self.kv_row_bytes

    @property
    def pair_at(self) -> int:
        """Where the pair tile begins in a stage."""
        return 2 * self.v_at

    @property
    def mask_at(self) -> int:
        """Where the mask begins in a stage."""
        return self.pair_at + self.pair_bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return self.mask_at + self.mask_stage_bytes

    @property
    def stages_at(self) -> int:
        """Where the stages begin."""
        return self.block_rows * self.q_row_bytes

    @property
    def tile_bytes(self) -> int:
        """All of the above."""
        return self.stages_at + self.stages * self.stage_bytes

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a threadblock of any tiling."""
        return max(each.tile_bytes for each in self.bodies)

    # -- Launch ------------------------------------------------------------------------------------

    def extents(self, rows: int, queries: int) -> tuple[int, int]:
        """Threadblocks along the rows N and along the queries."""
        groups, tiles = forward.extents(self, rows, queries)
        if self.short_queries:
            return ceil(groups / self.groups_together), (tiles - 1) * self.groups_together + 1
        return groups, tiles

    def grid(self, problem: Problem) -> tuple[int, int, int]:
        """Threadblocks of a launch, all in x: queries fastest, then heads, then groups of rows,
        then batches.
        """
        return forward.grid(self, problem)


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    return {"config": config}


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
    if c.head_dim % 8 or not 8 <= c.head_dim <= 128:
        yield f"head_dim must be a multiple of 8 from 8 to 128, not {c.head_dim}"
        return
    if c.dtype not in ("f16", "bf16"):
        yield f"dtype must be f16 or bf16, not {c.dtype!r}"
    if c.mask not in BIAS_BYTES:
        yield f"mask must be one of {', '.join(BIAS_BYTES)}, not {c.mask!r}"
    if c.pair not in ("none", "f16", "bf16", "f32"):
        yield f"pair must be none, f16, bf16 or f32, not {c.pair!r}"
        return
    if (
        c.m_tiles not in (1, 2, 3)
        or c.block_queries < 16 * c.m_tiles
        or c.block_queries % (16 * c.m_tiles)
    ):
        yield (
            "a warp owns 16, 32 or 48 queries (m_tiles 1 to 3), and block_queries = "
            f"{c.block_queries} is not a multiple of that"
        )
        return
    if not 1 <= c.block_rows <= 32 or not 32 <= c.threads <= 1024:
        yield (
            f"{c.block_rows} rows of {c.row_threads} threads: a threadblock has 32 to 1024 threads"
        )
        return
    if c.block_keys not in (32, 64, 128, 256):
        yield (
            "block_keys must be 32, 64, 128 or 256 (the pair tile is addressed by shifts), "
            f"not {c.block_keys}"
        )
        return
    if c.chunk_keys < 32 or c.chunk_keys % 32 or c.block_keys % c.chunk_keys:
        yield f"chunk_keys must be a multiple of 32 that divides block_keys, not {c.chunk_keys}"
    if not 2 <= c.stages <= 6:
        yield f"stages must be 2 to 6, not {c.stages}"
    if c.row_threads < 8 * c.chunks:
        yield (
            f"{c.row_threads} threads copy fewer than the 8 rows of {c.chunks} chunks that "
            "keep a thread's swizzle constant"
        )
    if c.pair != "none":
        size = BIAS_BYTES[c.pair]
        if c.pair_copy_bytes not in (2, 4, 8, 16) or c.pair_copy_bytes < size:
            yield (
                "pair_copy_bytes must be 16, 8, 4 or 2, and at least one element; got "
                f"{c.pair_copy_bytes}"
            )
        if c.pair_copy_bytes == 16 and c.threads < 8 * (c.block_keys * size // 16):
            yield (
                f"{c.threads} threads copy fewer than the 8 rows of pair bias that keep a "
                "thread's swizzle constant"
            )
    if c.short_queries:
        yield from _short_tile_violations(c, arch, problem)
    if c.m_tiles * c.head_dim > 128 and c.m_tiles > 1:
        yield "above head_dim 64, the output of 32 queries does not fit into a warp's registers"
    yield from choice.resource_violations(c, arch)
    if problem is None:
        return
    if (c.head_dim, c.dtype, c.pair) != (problem.head_dim, problem.dtype, problem.pair):
        yield "is an instance for another head_dim, dtype or type of pair_bias"
    if c.mask != problem.mask and (c.mask, problem.mask) != ("bounds", "none"):
        yield f"is an instance for mask {c.mask}, not {problem.mask}"
    if c.full_tiles and not _fills_tiles(problem, c):
        yield "rows, queries or keys do not fill the last tiles; full_tiles must be false"
    if c.mask == "none" and problem.keys % c.block_keys:
        yield f'{problem.keys} keys end within a tile of {c.block_keys}; mask must be "bounds"'
    if c.pair != "none" and c.pair_copy_bytes > problem.pair_alignment:
        yield (
            f"copies pair_bias by {c.pair_copy_bytes} bytes; its rows are aligned to "
            f"{problem.pair_alignment}"
        )


def _short_tile_violations(c: Config, arch: Architecture, problem: Problem | None) -> Iterator[str]:
    def of_tile() -> Iterator[str]:
        tile = c.short_tile
        if tile.m_tiles > c.m_tiles:
            yield (
                f"a warp of the short last tile would own {tile.warp_queries} queries, more than "
                f"the {c.warp_queries} that there are registers for"
            )
            return
        yield from (f"short last tile: {why}" for why in _violations(tile, arch, None))

    positions = None if problem is None else problem.queries
    yield from choice.short_tile_violations(c, arch, "queries", positions, of_tile)


@dataclass(frozen=True)
class Shape:
    """A candidate tiling, with the relative rate of scores that it reaches when it fills the
    device.
    """

    block_rows: int
    block_queries: int
    block_keys: int
    stages: int
    min_blocks: int
    q_in_registers: bool
    speed: float
    m_tiles: int = 2
    chunk_keys: int = 32
    excludes: frozenset[str] = frozenset()
    """Traits of problems for which the registers do not suffice; see `traits`."""
    needs: frozenset[str] = frozenset()
    """Traits without which a problem gains nothing by it."""

    def config(self, problem: Problem) -> Config:
        """The instance with this tiling that serves `problem`."""
        tiling = {field.name: getattr(self, field.name) for field in fields(self)}
        del tiling["speed"], tiling["excludes"], tiling["needs"]
        return adapt(Config(head_dim=problem.head_dim, **tiling), problem)


def traits(problem: Problem) -> frozenset[str]:
    """Traits of a problem that cost a kernel registers: "no pair" (it makes room for more than
    there is, on sm_80), "f32 pair", "2-byte pair copies", "f16" (its references move).
    """
    found = set()
    if problem.dtype == "f16":
        found.add("f16")
    if problem.pair == "none":
        found.add("no pair")
    if problem.pair == "f32":
        found.add("f32 pair")
    if problem.pair != "none" and problem.pair_alignment == 2:
        found.add("2-byte pair copies")
    return frozenset(found)


_WIDE_PAIR = frozenset({"f32 pair"})

#: Tilings by the largest head_dim that they are for, measured on an H200 (docs/measurements). Four
#: threadblocks of four warps, 128 registers a thread, beat fewer and larger ones as long as the
#: output leaves room for the scores.
SHAPES: tuple[tuple[int, tuple[Shape, ...]], ...] = (
    (
        8,
        (
            Shape(2, 64, 64, 3, 3, True, 1.00),
            Shape(2, 64, 32, 3, 4, False, 1.00),
            Shape(1, 64, 32, 3, 8, False, 0.94),
            Shape(1, 32, 32, 3, 8, False, 0.60),
        ),
    ),
    (
        16,
        (
            Shape(
                2, 64, 64, 3, 4, True, 1.00, excludes=frozenset({"2-byte pair copies", "no pair"})
            ),
            Shape(2, 64, 32, 3, 4, False, 0.92),
            Shape(1, 64, 32, 3, 8, False, 0.86),
            Shape(1, 32, 32, 3, 8, False, 0.60),
        ),
    ),
    (
        24,
        (
            Shape(1, 128, 64, 2, 4, False, 1.00, excludes=_WIDE_PAIR),
            Shape(2, 64, 32, 3, 4, False, 0.95),
            Shape(1, 64, 32, 3, 7, False, 0.90),
            Shape(1, 32, 32, 3, 8, False, 0.60),
        ),
    ),
    (
        32,
        (
            Shape(2, 64, 32, 3, 4, False, 0.94, excludes=_WIDE_PAIR),
            Shape(2, 64, 64, 2, 3, True, 1.00, excludes=_WIDE_PAIR | {"f16"}),
            Shape(1, 64, 32, 3, 7, False, 0.89, excludes=_WIDE_PAIR),
            # With an fp32 pair bias three threadblocks of 2 x 64 fit, not four: warps of more
            # queries read less of K, V and the bias for a score.
            Shape(2, 96, 32, 3, 3, False, 1.00, m_tiles=3, needs=_WIDE_PAIR),
            Shape(2, 64, 32, 3, 3, True, 0.95, needs=_WIDE_PAIR),
            Shape(1, 64, 32, 3, 6, False, 0.82, needs=_WIDE_PAIR),
            Shape(1, 32, 32, 3, 8, False, 0.60),
        ),
    ),
    (
        56,
        (
            Shape(1, 128, 64, 2, 3, False, 1.00),
            Shape(2, 64, 64, 3, 2, True, 0.90),
            Shape(1, 64, 64, 2, 3, True, 0.80),
            Shape(1, 64, 32, 2, 4, True, 0.70),
        ),
    ),
    (
        64,
        (
            Shape(1, 128, 64, 3, 2, True, 1.00),
            Shape(2, 64, 64, 2, 2, True, 0.91),
            Shape(1, 64, 64, 3, 2, True, 0.70),
            Shape(1, 64, 32, 2, 2, True, 0.60),
        ),
    ),
    (
        128,
        (
            Shape(1, 64, 64, 2, 2, True, 1.00, m_tiles=1),
            Shape(1, 128, 64, 2, 1, True, 0.90, m_tiles=1),
            Shape(1, 64, 32, 2, 2, True, 0.85, m_tiles=1),
        ),
    ),
)


def shapes(head_dim: int) -> tuple[Shape, ...]:
    """The candidate tilings for `head_dim`."""
    return next(found for largest, found in SHAPES if head_dim <= largest)


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    present = traits(problem)
    for shape in shapes(problem.head_dim):
        if shape.needs <= present and not shape.excludes & present:
            yield shape.config(problem), shape.speed


def choose(
    problem: Problem,
    arch: Architecture,
    offered: Iterable[tuple[Config, float]] | None = None,
) -> Config:
    """The legal candidate of least cost, or of those `offered`; ValueError, with every objection,
    if there is none.
    """
    offered = candidates(problem) if offered is None else offered
    found = choice.cheapest(NAME, offered, violations, forward.cost, problem, arch)
    if choice.gains_by_short_tile(found, found.grid(problem)[0], problem.rows, arch):
        return with_short_tile(found, problem, arch)
    return found


def with_short_tile(config: Config, problem: Problem, arch: Architecture) -> Config:
    """`config` with a short last tile, of the most rows N that are legal, if any are."""

    def refused(short: Config) -> tuple[str, ...]:
        return violations(short, arch, problem)

    return choice.with_short_tile(config, "queries", problem.queries, refused)


def spill_fallbacks(config: Config) -> Iterator[Config]:
    """`config`, then such with ever more registers for a thread: without a short last tile, with
    fewer threadblocks to a multiprocessor, at last with fewer queries to a warp.
    """
    if config.short_queries:
        yield config
        config = replace(config, short_queries=0, short_rows=0)
    yield from choice.spill_fallbacks(config)
    if config.m_tiles > 1:
        yield replace(config, m_tiles=1, min_blocks=1)


def _fills_tiles(problem: Problem, config: Config) -> bool:
    return not (
        problem.rows % config.block_rows
        or problem.queries % config.block_queries
        or problem.keys % config.block_keys
    )


def adapt(config: Config, problem: Problem) -> Config:
    """`config` with the fields that follow from the problem (head_dim, types, bounds, alignment,
    the last tiles) set to fit it.
    """
    mask = problem.mask
    if mask == "none" and problem.keys % config.block_keys:
        mask = "bounds"
    return replace(
        config,
        head_dim=problem.head_dim,
        dtype=problem.dtype,
        mask=mask,
        pair=problem.pair,
        pair_copy_bytes=min(config.pair_copy_bytes, problem.pair_alignment)
        if problem.pair != "none"
        else 16,
        full_tiles=_fills_tiles(problem, config),
    )
