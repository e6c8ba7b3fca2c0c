"""Host half of ``ptx/gemm_sm80.ptx``: what may be configured, what is chosen."""

from collections.abc import Iterable, Iterator

from cuevo.architectures import Architecture
from cuevo.kernels import gemm_choice, gemm_mma
from cuevo.kernels.choice import cheapest
from cuevo.kernels.gemm_mma import (
    Config,
    Problem,
    Shape,
    adapt,
    parameters,
    spill_fallbacks,
    values,
)

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
    Shape(128, 64, 64, 32, 64, 6, 0.72),
    Shape(64, 64, 64, 32, 32, 4, 0.60, min_blocks=2),
    Shape(64, 64, 32, 32, 32, 4, 0.50, min_blocks=4),
)


def violations(
    config: Config, arch: Architecture, problem: Problem | None = None
) -> tuple[str, ...]:
    """Why `config` cannot run on `arch` (and serve `problem`); empty if it can."""
    if arch.number < MINIMUM_ARCH:
        return (f"cp.async and mma.m16n8k16 need sm_{MINIMUM_ARCH}; this is {arch.name}",)
    return tuple(gemm_mma.violations(config, arch, problem, INSTRUCTIONS))


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    shapes: tuple[Shape, ...] = SHAPES
    if min(problem.a_alignment, problem.b_alignment) == 2:
        # Copies of single elements take registers that large warp tiles do not have.
        shapes = tuple(shape for shape in SHAPES if shape.warp_m <= 32)
    return gemm_choice.candidates(shapes, problem)


def choose(
    problem: Problem,
    arch: Architecture,
    offered: Iterable[tuple[Config, float]] | None = None,
) -> Config:
    """The legal candidate of least cost, or of those `offered`; ValueError, with every objection,
    if there is none.
    """
    offered = candidates(problem) if offered is None else offered
    return cheapest(NAME, offered, violations, gemm_choice.cost, problem, arch)
