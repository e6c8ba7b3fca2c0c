"""Host half of ``ptx/evoformer_backward_sm75.ptx``: what may be configured, what is chosen."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cuevo.architectures import Architecture
from cuevo.kernels import backward_pipelined
from cuevo.kernels.backward import Problem, cost, parameters
from cuevo.kernels.backward_pipelined import PipelinedConfig, Shapes, adapt, values
from cuevo.kernels.choice import cheapest, spill_fallbacks

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

NAME = "evoformer_backward_sm75"
SUMMARY = (
    "Evoformer attention, backward, fp16: one side of the scores, stages through registers, "
    "ldmatrix, mma.sync.m16n8k8"
)
MINIMUM_ARCH = 75


@dataclass(frozen=True)
class Config(PipelinedConfig):
    """One instance of the kernel; its template is given the whole of it."""

    instruction: ClassVar[str] = "m16n8k8"


def violations(
    config: Config, arch: Architecture, problem: Problem | None = None
) -> tuple[str, ...]:
    """Reasons why `config` cannot run on `arch` (and serve `problem`); empty if it can."""
    return tuple(backward_pipelined.violations(config, NAME, MINIMUM_ARCH, arch, problem))


#: The speeds are guesses: the more stationary positions a threadblock has, the less often the
#: streamed ones are copied. Nobody has measured them.
SHAPES: Shapes = (
    (32, ((128, 1, 1.0), (64, 2, 0.9), (32, 4, 0.7))),
    (64, ((64, 2, 1.0), (32, 2, 0.7))),
    (128, ((64, 1, 1.0),)),
)


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    return backward_pipelined.candidates(Config, SHAPES, problem)


def choose(problem: Problem, arch: Architecture) -> Config:
    """The legal candidate of least cost; ValueError, with every objection, if there is none."""
    return cheapest(NAME, candidates(problem), violations, cost, problem, arch)
