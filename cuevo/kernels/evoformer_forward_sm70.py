"""Host half of ``ptx/evoformer_forward_sm70.ptx``: what may be configured, what is chosen."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cuevo.architectures import Architecture
from cuevo.kernels import forward, forward_pipelined
from cuevo.kernels.choice import cheapest, spill_fallbacks
from cuevo.kernels.forward import Problem, parameters
from cuevo.kernels.forward_pipelined import PipelinedConfig, Shapes, adapt, values

__all__ = [
    "MINIMUM_ARCH",
    "NAME",
    "SHAPES",
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

NAME = "evoformer_forward_sm70"
SUMMARY = "Evoformer attention, forward, fp16: stages through registers, ld.shared, mma.sync.m8n8k4"
MINIMUM_ARCH = 70


@dataclass(frozen=True)
class Config(PipelinedConfig):
    """One instance of the kernel; its template is given the whole of it."""

    instruction: ClassVar[str] = "m8n8k4"

    warp_queries: int = 32
    """Queries of a warp: 32."""


def violations(
    config: Config, arch: Architecture, problem: Problem | None = None
) -> tuple[str, ...]:
    """Reasons why `config` cannot run on `arch` (and serve `problem`); empty if it can."""
    return tuple(forward_pipelined.violations(config, NAME, MINIMUM_ARCH, arch, problem))


#: The speeds are guesses: the more queries a warp has, the fewer fragments of K and V it reads for
#: a score. Nobody has measured them.
SHAPES: Shapes = (
    (64, ((128, 32, 32, 2, 1.0), (64, 32, 32, 2, 0.8))),
    (128, ((128, 32, 32, 1, 1.0), (64, 32, 32, 1, 0.8))),
)


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    return forward_pipelined.candidates(Config, SHAPES, problem)


def choose(problem: Problem, arch: Architecture) -> Config:
    """The legal candidate of least cost; ValueError, with every objection, if there is none."""
    return cheapest(NAME, candidates(problem), violations, forward.cost, problem, arch)
