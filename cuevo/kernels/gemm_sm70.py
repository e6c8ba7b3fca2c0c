"""Host half of ``ptx/gemm_sm70.ptx``: what may be configured, what is chosen."""

from collections.abc import Iterator
from dataclasses import replace

from cuevo.architectures import Architecture
from cuevo.kernels import gemm_choice, gemm_mma, gemm_sm75
from cuevo.kernels.choice import cheapest
from cuevo.kernels.gemm_mma import (
    Config,
    Problem,
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

NAME = "gemm_sm70"
SUMMARY = "matrix product of fp16: stages filled through registers, ld.shared, mma.sync.m8n8k4"
MINIMUM_ARCH = 70
INSTRUCTIONS = ("m8n8k4",)
DEFAULTS = gemm_sm75.DEFAULTS | {"instruction": "m8n8k4"}
SHAPES = tuple(replace(shape, instruction="m8n8k4") for shape in gemm_sm75.SHAPES)


def violations(
    config: Config, arch: Architecture, problem: Problem | None = None
) -> tuple[str, ...]:
    """Why `config` cannot run on `arch` (and serve `problem`); empty if it can."""
    if arch.number < MINIMUM_ARCH:
        return (f"mma.m8n8k4 needs sm_{MINIMUM_ARCH}; this is {arch.name}",)
    reasons = [
        *gemm_choice.violations_of_pipelined(config),
        *gemm_mma.violations(config, arch, problem, INSTRUCTIONS),
    ]
    if arch.number >= 80 and config.warp_m * config.warp_n > 64 * 32:
        reasons.append(
            "from sm_80 on m8n8k4 is made of other instructions, which take more registers: a warp "
            f"tile is at most 64 x 32, not {config.warp_m} x {config.warp_n}"
        )
    return tuple(reasons)


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    return gemm_choice.candidates(SHAPES, problem)


def choose(problem: Problem, arch: Architecture) -> Config:
    """The legal candidate of least cost; ValueError, with every objection, if there is none."""
    return cheapest(NAME, candidates(problem), violations, gemm_choice.cost, problem, arch)
