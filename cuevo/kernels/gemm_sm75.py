"""Host half of ``ptx/gemm_sm75.ptx``: what may be configured, what is chosen."""

from collections.abc import Iterator

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
    "DEFAULTS",
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

NAME = "gemm_sm75"
SUMMARY = "matrix product of fp16: stages filled through registers, ldmatrix, mma.sync.m16n8k8"
MINIMUM_ARCH = 75
INSTRUCTIONS = ("m16n8k8",)
DEFAULTS = {"instruction": "m16n8k8", "stages": 2, "dtype": "f16", "out_dtype": "f16"}
"""Defaults of fields of Config that this kernel needs in place of the class's."""


def _shape(*tiling: int, speed: float, min_blocks: int = 1) -> Shape:
    block_m, block_n, block_k, warp_m, warp_n = tiling
    return Shape(block_m, block_n, block_k, warp_m, warp_n, 2, speed, min_blocks, "m16n8k8")


SHAPES = (
    _shape(256, 128, 32, 64, 64, speed=1.00),
    _shape(128, 256, 32, 64, 64, speed=1.00),
    _shape(128, 128, 32, 64, 64, speed=0.95, min_blocks=2),
    _shape(128, 64, 32, 64, 32, speed=0.80, min_blocks=2),
    _shape(64, 128, 32, 32, 64, speed=0.80, min_blocks=2),
    _shape(64, 64, 32, 32, 32, speed=0.60, min_blocks=4),
)


def violations(
    config: Config, arch: Architecture, problem: Problem | None = None
) -> tuple[str, ...]:
    """Why `config` cannot run on `arch` (and serve `problem`); empty if it can."""
    if arch.number < MINIMUM_ARCH:
        return (f"ldmatrix and mma.m16n8k8 need sm_{MINIMUM_ARCH}; this is {arch.name}",)
    pipelined = gemm_choice.violations_of_pipelined(config)
    return (*pipelined, *gemm_mma.violations(config, arch, problem, INSTRUCTIONS))


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    return gemm_choice.candidates(SHAPES, problem)


def choose(problem: Problem, arch: Architecture) -> Config:
    """The legal candidate of least cost; ValueError, with every objection, if there is none."""
    return cheapest(NAME, candidates(problem), violations, gemm_choice.cost, problem, arch)
