"""Host half of ``ptx/gemm_sm80.ptx``: what may be configured, what is chosen."""

from collections.abc import Iterator
from math import ceil

from cuevo.architectures import Architecture
from cuevo.kernels import gemm
from cuevo.kernels.gemm import Config, Problem, Shape, adapt, parameters, roomier, values

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
    "roomier",
    "values",
    "violations",
]

NAME = "gemm_sm80"
SUMMARY = "matrix product: cp.async stages, ldmatrix, mma.sync.m16n8k16"
MINIMUM_ARCH = 80
INSTRUCTIONS = ("m16n8k16", "m16n8k8")

#: Tilings, measured on an H200 (docs/measurements). Shared memory bounds the small ones: the larger
#: a warp tile, the fewer bytes are read for a multiply-add.
SHAPES = (
    Shape(128, 256, 64, 64, 64, 3, 1.00),
    Shape(256, 128, 64, 64, 64, 3, 1.00),
    Shape(128, 128, 64, 64, 64, 3, 0.91, min_blocks=2),
    Shape(128, 128, 32, 64, 64, 2, 0.60, min_blocks=2),
    Shape(128, 64, 64, 32, 64, 4, 0.69, min_blocks=2),
    Shape(64, 128, 64, 32, 64, 4, 0.69, min_blocks=2),
    Shape(64, 64, 64, 32, 32, 4, 0.60, min_blocks=2),
    Shape(64, 64, 32, 32, 32, 4, 0.50, min_blocks=4),
)
_LAUNCH, _LAUNCH_BESIDE = 300, 210
"""Steps along k that starting a threadblock and storing its tile take as long as; beside another
one on the same multiprocessor it costs less.
"""
_SPLIT, _EACH_SPLIT = 330, 46
"""The same for exchanging partial sums, and for adding up those of a split."""


def violations(
    config: Config, arch: Architecture, problem: Problem | None = None
) -> tuple[str, ...]:
    """Why `config` cannot run on `arch` (and serve `problem`); empty if it can."""
    if arch.number < MINIMUM_ARCH:
        return (f"cp.async and mma.m16n8k16 need sm_{MINIMUM_ARCH}; this is {arch.name}",)
    return tuple(gemm.violations(config, arch, problem, INSTRUCTIONS))


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    for shape in SHAPES:
        if min(problem.a_alignment, problem.b_alignment) == 2 and shape.warp_m > 32:
            continue  # copies of single elements take registers that large warp tiles do not have
        k_tiles = ceil(problem.k / shape.block_k)
        for splits in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
            if splits == 1 or ceil(k_tiles / splits) * (splits - 1) < k_tiles:
                yield shape.config(problem, splits), shape.speed


def cost(config: Config, speed: float, problem: Problem, arch: Architecture) -> float:
    """Estimated time in multiply-adds of one multiprocessor at full speed."""
    fitting = arch.shared_per_multiprocessor // (config.shared_bytes + 1024)
    resident = max(1, min(config.min_blocks, fitting))
    blocks = config.grid(problem)[0]
    waves, rest = divmod(blocks, arch.multiprocessors * resident)
    full = waves * resident + ceil(rest / arch.multiprocessors)
    tile = config.block_m * config.block_n
    loop = config.split_tiles(problem) * config.block_k * tile
    overhead = tile * (_LAUNCH if resident == 1 else _LAUNCH_BESIDE)
    if config.split:
        overhead += tile * (_SPLIT + _EACH_SPLIT * config.splits)
    return full * (loop / speed + overhead)


def choose(problem: Problem, arch: Architecture) -> Config:
    """The legal candidate of least cost.

    Raises ValueError naming every candidate's objection if there is none.
    """
    rejected: dict[Config, tuple[str, ...]] = {}
    best: tuple[float, Config] | None = None
    for config, speed in candidates(problem):
        reasons = violations(config, arch, problem)
        if reasons:
            rejected[config] = reasons
            continue
        estimate = cost(config, speed, problem, arch)
        if best is None or estimate < best[0]:
            best = estimate, config
    if best is None:
        lines = [f"  {config}: {'; '.join(reasons)}" for config, reasons in rejected.items()]
        raise ValueError(
            "\n".join([f"{NAME} has no configuration for {problem} on {arch.name}:", *lines])
        )
    return best[1]
