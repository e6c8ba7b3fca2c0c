"""Host half of ``ptx/evoformer_forward_sm75.ptx``: what may be configured, what is chosen."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cuevo.architectures import Architecture
from cuevo.kernels import attention, attention_pipelined
from cuevo.kernels.attention import Problem, parameters
from cuevo.kernels.attention_pipelined import adapt, roomier
from cuevo.kernels.choice import cheapest

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
    "roomier",
    "values",
    "violations",
]

NAME = "evoformer_forward_sm75"
SUMMARY = "Evoformer attention, forward, fp16: stages through registers, ldmatrix, mma.sync.m16n8k8"
MINIMUM_ARCH = 75


@dataclass(frozen=True)
class Config(attention_pipelined.PipelinedTiling):
    """One instance of the kernel; its template is given the whole of it."""

    instruction: ClassVar[str] = "m16n8k8"

    head_dim: int
    dtype: str = "f16"
    """Type of q, k, v and out."""
    block_queries: int = 64
    """Queries of a threadblock: those of 1, 2, 4 or 8 warps."""
    block_keys: int = 32
    """Keys of a pipeline stage and of a softmax step: 32 or 64."""
    warp_queries: int = 16
    """Queries of a warp: 16 or 32."""
    mask: str = "f16"
    """As in Problem, or "bounds": no mask, but keys may end within a tile."""
    pair: str = "f16"
    """As in Problem."""
    min_blocks: int = 1
    """Threadblocks that share a multiprocessor; the register allocator makes room for them."""

    def __post_init__(self) -> None:
        attention.check_types(self)


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    return {"config": config}


def violations(
    config: Config, arch: Architecture, problem: Problem | None = None
) -> tuple[str, ...]:
    """Why `config` cannot run on `arch` (and serve `problem`); empty if it can."""
    return tuple(attention_pipelined.violations(config, NAME, MINIMUM_ARCH, arch, problem))


#: block_queries, block_keys, warp_queries, min_blocks and relative speed, by the largest head_dim
#: that they are for. The speeds are guesses: the more queries a warp has, the fewer fragments of K
#: and V it reads for a score. Nobody has measured them.
SHAPES: tuple[tuple[int, tuple[tuple[int, int, int, int, float], ...]], ...] = (
    (32, ((128, 32, 32, 2, 1.0), (64, 32, 16, 4, 0.8), (32, 32, 16, 4, 0.5))),
    (64, ((128, 32, 32, 1, 1.0), (64, 32, 16, 2, 0.8), (32, 32, 16, 2, 0.5))),
    (128, ((128, 32, 16, 1, 1.0), (64, 32, 16, 1, 0.9), (32, 32, 16, 1, 0.5))),
)


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    for queries, keys, warp, blocks, speed in next(
        shapes for largest, shapes in SHAPES if problem.head_dim <= largest
    ):
        config = Config(
            problem.head_dim,
            block_queries=queries,
            block_keys=keys,
            warp_queries=warp,
            min_blocks=blocks,
        )
        yield adapt(config, problem), speed


def choose(problem: Problem, arch: Architecture) -> Config:
    """The legal candidate of least cost; ValueError, with every objection, if there is none."""
    return cheapest(NAME, candidates(problem), violations, attention.cost, problem, arch)
