"""Host half of ``ptx/evoformer_backward_sm80.ptx``: what is chosen, how it is launched. What may be
configured is in ``backward_multistage``.

A launch works on one side of the scores: "keys" gives dk, dv and the gradient of the mask,
"queries" dq and that of the pair bias.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace

from cuevo.architectures import Architecture
from cuevo.kernels import backward, choice
from cuevo.kernels.backward import Problem, cost, parameters
from cuevo.kernels.backward_multistage import MINIMUM_ARCH, Config, fills_tiles, violations
from cuevo.kernels.forward import BIAS_BYTES

__all__ = [
    "MINIMUM_ARCH",
    "NAME",
    "SUMMARY",
    "Config",
    "Problem",
    "adapt",
    "candidates",
    "choose",
    "parameters",
    "spill_fallbacks",
    "values",
    "violations",
]

NAME = "evoformer_backward_sm80"
SUMMARY = (
    "Evoformer attention, backward: one side of the scores, cp.async stages, mma.sync.m16n8k16"
)


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    return {"config": config}


# -- The choice ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A candidate tiling, with the relative rate of scores that it reaches when it fills the
    device.
    """

    block_rows: int
    warp_rows: int
    block_stationary: int
    block_streamed: int
    chunk_streamed: int
    stages: int
    min_blocks: int
    stationary_in_registers: bool
    speed: float
    m_tiles: int = 2
    meeting_buffers: int = 2
    late_copies: bool = False
    sums: bool = True
    """Whether it serves problems that want sums over rows N."""
    pair_sizes: tuple[int, ...] = (0, 2, 4)
    """Bytes of an element of the pair biases that it serves."""

    def config(self, problem: Problem) -> Config:
        """The instance with this tiling that serves `problem`."""
        tiling = {field.name: getattr(self, field.name) for field in fields(self)}
        del tiling["speed"], tiling["sums"], tiling["pair_sizes"]
        return adapt(Config(head_dim=problem.head_dim, **tiling), problem)


#: Tilings by the largest head_dim that they are for, measured on an H200 at 8, 24, 32, 48 and 64,
#: both sides at a time: one that leaves registers to the other side may be worth more than a fast
#: one. Sums over rows are cheapest where a warp has two rows and two warps share theirs: the fewer
#: rows, the more often the sums travel; the more, the fewer registers and threadblocks there are.
KEYS: tuple[tuple[int, tuple[Shape, ...]], ...] = (
    (
        8,
        (
            Shape(1, 1, 128, 64, 32, 2, 3, True, 1.00),
            Shape(1, 1, 64, 64, 32, 2, 5, True, 0.98),
            # An fp32 pair bias needs twice the threads to copy a row of it: those of two rows.
            Shape(2, 1, 64, 64, 32, 2, 3, True, 0.97, pair_sizes=(4,)),
            Shape(1, 1, 64, 64, 32, 2, 4, True, 0.89, m_tiles=1),
            Shape(1, 1, 32, 32, 32, 3, 8, True, 0.70),
        ),
    ),
    (
        32,
        (
            Shape(1, 1, 64, 64, 16, 2, 4, True, 1.00, late_copies=True),
            Shape(1, 1, 64, 64, 32, 2, 4, True, 1.00, late_copies=True),
            Shape(2, 1, 64, 64, 32, 2, 2, True, 0.98, late_copies=True),
            Shape(1, 1, 64, 64, 32, 2, 2, True, 0.75, m_tiles=1),
            Shape(1, 1, 32, 32, 32, 3, 8, True, 0.70),
        ),
    ),
    (
        64,
        (
            Shape(1, 1, 64, 32, 32, 2, 3, False, 1.00),
            Shape(2, 1, 64, 32, 32, 2, 2, False, 0.95, pair_sizes=(4,)),
            Shape(1, 1, 64, 32, 32, 2, 2, False, 0.65, m_tiles=1),
        ),
    ),
    (128, (Shape(1, 1, 64, 32, 32, 2, 1, False, 1.00, m_tiles=1),)),
)
_SMALL = (
    Shape(4, 1, 32, 32, 32, 2, 2, True, 0.84),
    Shape(1, 1, 64, 32, 32, 3, 4, False, 0.50),
    Shape(1, 1, 32, 32, 32, 3, 8, False, 0.40),
    Shape(1, 1, 64, 32, 32, 3, 6, False, 1.48, sums=False),
    Shape(1, 1, 64, 64, 16, 2, 4, True, 1.47, sums=False),
)
QUERIES: tuple[tuple[int, tuple[Shape, ...]], ...] = (
    (
        8,
        (
            Shape(4, 2, 64, 32, 32, 2, 3, True, 1.40),
            # Where threadblocks are fewer than multiprocessors: as many rows in half the steps.
            Shape(8, 2, 32, 32, 32, 2, 2, False, 1.00),
            *_SMALL,
        ),
    ),
    (16, (Shape(4, 2, 64, 32, 16, 2, 2, True, 1.00), *_SMALL)),
    (24, (Shape(4, 2, 64, 32, 32, 2, 1, False, 1.00), *_SMALL)),
    (
        32,
        (
            # With an fp32 pair bias two threadblocks fit if their sums meet in one buffer.
            Shape(4, 2, 64, 32, 32, 2, 2, False, 1.08, pair_sizes=(0, 2)),
            Shape(4, 2, 64, 32, 32, 2, 2, False, 1.07, meeting_buffers=1, pair_sizes=(4,)),
            Shape(8, 2, 64, 32, 32, 2, 1, False, 0.96),
            Shape(1, 1, 64, 32, 32, 3, 1, True, 0.40, m_tiles=1),
            *_SMALL,
        ),
    ),
    (
        64,
        (
            Shape(4, 1, 64, 32, 32, 2, 1, False, 1.00),
            Shape(2, 1, 64, 32, 32, 2, 1, False, 0.80),
            Shape(1, 1, 64, 32, 32, 2, 2, False, 0.50, m_tiles=1),
            Shape(1, 1, 64, 32, 32, 2, 3, False, 1.40, sums=False),
            Shape(1, 1, 128, 32, 32, 2, 2, False, 1.40, sums=False),
        ),
    ),
    (
        128,
        (
            Shape(2, 1, 64, 32, 32, 2, 1, False, 1.00, m_tiles=1),
            Shape(1, 1, 64, 32, 32, 2, 1, False, 0.60, m_tiles=1),
        ),
    ),
)


def shapes(problem: Problem) -> tuple[Shape, ...]:
    """The candidate tilings for a problem."""
    offered = KEYS if problem.side == "keys" else QUERIES
    return next(found for largest, found in offered if problem.head_dim <= largest)


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    sums = problem.side == "queries" and problem.sums
    for shape in shapes(problem):
        if (shape.sums or not sums) and BIAS_BYTES[problem.pair] in shape.pair_sizes:
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
    found = choice.cheapest(NAME, offered, violations, cost, problem, arch)
    if choice.gains_by_short_tile(found, found.grid(problem, 1)[0], problem.rows, arch):
        return with_short_tile(found, problem, arch)
    return found


def with_short_tile(config: Config, problem: Problem, arch: Architecture) -> Config:
    """`config` with a short last tile, of the most rows N that are legal, if any are."""

    def refused(short: Config) -> tuple[str, ...]:
        return violations(short, arch, problem)

    def sizes(least: int, step: int) -> tuple[int, int]:
        # Powers of two, which tiles have.
        size = step << (least // step - 1).bit_length()
        return size, 2 * size

    return choice.with_short_tile(config, "stationary", problem.stationary, refused, sizes)


def spill_fallbacks(config: Config) -> Iterator[Config]:
    """`config`, then such with ever more registers for a thread: without a short last tile, with
    fewer threadblocks to a multiprocessor, stationary operands in shared memory, one row N at a
    time, at last fewer positions to a warp.
    """
    if config.short_stationary:
        yield config
        config = replace(config, short_stationary=0, short_rows=0)
    yield from choice.spill_fallbacks(config)
    alone = replace(config, min_blocks=1)
    if config.stationary_in_registers:
        yield (alone := replace(alone, stationary_in_registers=False))
    if config.warp_rows > 1:
        yield (
            alone := replace(alone, warp_rows=1, block_rows=config.block_rows // config.warp_rows)
        )
    if config.m_tiles > 1:
        yield replace(alone, m_tiles=1)


def adapt(config: Config, problem: Problem) -> Config:
    """`config` with the fields that follow from the problem set to fit it."""
    chosen = replace(config, **{name: getattr(problem, name) for name in backward.FOLLOWS})
    copied = min(config.pair_copy_bytes, problem.pair_alignment)
    return replace(
        chosen,
        mask=backward.needs_mask(chosen, chosen.block_streamed, problem),
        pair_copy_bytes=copied if problem.pair != "none" else 16,
        full_tiles=fills_tiles(problem, chosen),
    )
