"""The time of a call, predicted: what its threadblocks ask of the pipes, and how far warps overlap.

The clocks that a threadblock asks of each pipe are a bound each; the largest is the roof. It takes
warps to reach it: while one waits for a pipe, another keeps the next one busy. With w warps on an
SM sub-partition the model takes the p-norm of the clocks. With p of 1 nothing overlaps, with a
large one all but the largest is hidden. In the forward pass, whose products, exponentials and
products follow from each other, p = 0.8 + 0.38 w; in the backward pass, which has more that does
not, 1.1 + 0.35 w; in products, whose warps load ahead, 3. These numbers, and what a launch takes
besides, are fitted to `docs/measurements`; all else is counted.

What is left out: misses of L2, bank conflicts, waiting at barriers of clusters, exchanges between
splits of k, the power limit, which lowers clocks in long calls, and the host.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from operator import attrgetter
from typing import Any

from cuevo.architectures import Architecture
from cuevo.kernels import evoformer_forward_sm90a
from cuevo.kernels.forward import BIAS_BYTES
from cuevo.ops.plan import Launch, Plan
from cuevo.ops.roofline.counts import Counts, count
from cuevo.ops.roofline.units import Units, units
from cuevo.ops.tuning.calls import VARIANTS

__all__ = ["Bound", "Prediction", "predict"]

_QUARTERS = 4
_BOUNDING = {"issue", "tensor", "xu", "lsu"}
"""Pipes that are added up; what the others do is part of "issue", at most two slots for each."""
_OVERLAP = {
    "forward": (0.8, 0.38),
    "keys": (1.1, 0.35),
    "queries": (1.1, 0.35),
    "product": (3.0, 0.0),
}
"""Exponent of the norm: of warps that are alone on their SM sub-partition, and what each adds."""


@dataclass(frozen=True)
class Bound:
    """A launch with a kernel that was counted."""

    launch: Launch
    shares: Mapping[str, float]
    """Of each pipe, of the predicted time."""
    elements: int
    counted: str
    """What they are: "scores" or "multiply-adds"."""
    seconds: float
    """Predicted."""
    clocks: float
    """The same in clocks of a multiprocessor."""
    multiprocessors: int

    @property
    def pipe(self) -> str:
        """The bounding one."""
        return max(self.shares, key=self.shares.__getitem__)

    @property
    def rate(self) -> float:
        """Elements a clock of a multiprocessor, predicted."""
        return self.elements / self.multiprocessors / self.clocks

    @property
    def roof(self) -> float:
        """Elements a clock of a multiprocessor if the bounding pipe were always busy."""
        return self.rate / self.shares[self.pipe]


@dataclass(frozen=True)
class Prediction:
    """The predicted time of a call."""

    bounds: tuple[Bound, ...]
    seconds: float
    others: tuple[str, ...]
    """The other kernels, of which only their launches and their bytes in the workspace count."""


_WORKSPACE_TIMES = 1.5
"""Bytes that the other kernels move for each of the workspace, where their results are: a tile of
fp32 is made of a bias that has half of its bytes.
"""

Counting = Callable[[Launch, Any, str], Counts]


def predict(plan: Plan, arch: Architecture, counted: Counting = count) -> Prediction:
    """The time of a call that runs `plan` on `arch`. Errors are those of `counts.count`."""
    rates = units(arch)
    bounds: list[Bound] = []
    others: list[str] = []
    for launch, problem in _served(plan):
        if problem is None:
            others.append(launch.name)
        else:
            bounds.append(_bound(launch, problem, arch, rates, counted))
    launches = len(bounds) + len(others)
    seconds = rates.launch_seconds * (1 + launches) / 2 if launches else 0.0
    seconds += _WORKSPACE_TIMES * plan.workspace_bytes / rates.bytes_per_second
    return Prediction(tuple(bounds), sum(x.seconds for x in bounds) + seconds, tuple(others))


def _served(plan: Plan) -> Iterator[tuple[Launch, Any]]:
    """The launches, each with the problem that it serves; None for one that none was chosen for."""
    mapped: list[Any] = [
        x.config for x in plan.every_launch if x.name == evoformer_forward_sm90a.NAME
    ]
    names = {variant.NAME for each in VARIANTS.values() for variant in each}
    for launch in plan.every_launch:
        config: Any = launch.config
        problem: Any = None
        if launch.name in names:
            side = getattr(config, "side", None)
            problem = next(x for x in plan.served if getattr(x, "side", None) == side)
            if config in mapped:
                whole = max(mapped, key=attrgetter("block_queries"))
                parts = evoformer_forward_sm90a.parts(whole, problem)
                problem = next(part.problem for part in parts if part.config == config)
        yield launch, problem


def _bound(
    launch: Launch, problem: Any, arch: Architecture, rates: Units, counted: Counting
) -> Bound:
    config: Any = launch.config
    asked = counted(launch, problem, arch.specific_name)
    together = max(1, min(config.min_blocks, arch.fitting_in_shared(config.shared_bytes)))
    blocks = launch.shape[0][0]
    if hasattr(config, "works"):  # threadblocks take one after the other
        clusters = blocks // getattr(config, "cluster", 1)
        blocks *= ceil(config.works(problem) / clusters)
    waves, rest = divmod(blocks, arch.multiprocessors * together)
    last = ceil(rest / arch.multiprocessors)
    if hasattr(problem, "head_dim"):
        elements = problem.scores
        streamed, times = problem.keys, 1
        if hasattr(problem, "side"):
            streamed = problem.streamed
            if hasattr(config, "groups_of"):  # chosen for what runs before it
                times = config.groups_of(problem, blocks)
            else:
                times = config.groups(problem, arch)
        passes = [asked.of(streamed, times)]
    else:
        elements = problem.batch * problem.m * problem.n * problem.k
        tiles = config.split_tiles(problem) if hasattr(config, "split_tiles") else None
        streamed = problem.k if tiles is None else tiles * config.block_k
        # A product's warps all begin to store when they are done with the last of k.
        passes = [asked.of(streamed, 1, fixed=0), asked.of(0)]
    clocks = sum(
        waves * _norm(each, together, config.threads, problem)
        + _norm(each, last, config.threads, problem)
        for each in passes
    )
    most = waves * together + last
    busy = {pipe: sum(each[pipe] for each in passes) for pipe in passes[0]}
    shares = {pipe: most * taken / _QUARTERS / clocks for pipe, taken in busy.items()}
    seconds = max(clocks / rates.clock_hz, _bytes(problem) / rates.bytes_per_second)
    counted_as = "scores" if hasattr(problem, "head_dim") else "multiply-adds"
    return Bound(launch, shares, elements, counted_as, seconds, clocks, arch.multiprocessors)


def _norm(block: Mapping[str, float], together: int, threads: int, problem: Any) -> float:
    """Clocks of `together` threadblocks on a multiprocessor, which ask `block` of it each."""
    if not together:
        return 0.0
    warps = together * threads // 32
    # Producer and mask warps, fewer than a warpgroup, take little.
    each = max(1, warps // _QUARTERS)
    kind = "product" if not hasattr(problem, "head_dim") else getattr(problem, "side", "forward")
    first, more = _OVERLAP[kind]
    power = max(1.0, first + more * each)
    shared = together / _QUARTERS
    own = together / min(warps, _QUARTERS)
    taken = ((shared if pipe == "lsu" else own) * block[pipe] for pipe in _BOUNDING & block.keys())
    return float(sum(x**power for x in taken) ** (1 / power))


def _bytes(problem: Any) -> int:
    """Bytes of memory that a kernel reads and writes at least."""
    if not hasattr(problem, "head_dim"):
        size = 4 if problem.out_dtype == "f32" else 2
        operands = 2 * problem.k * (problem.m + problem.n)
        return int(problem.batch * (operands + size * problem.m * problem.n))
    rows = 2 * problem.batch * problem.rows * problem.heads * problem.head_dim
    pair = problem.batch * problem.heads * problem.queries * problem.keys
    return int(rows * 2 * (problem.queries + problem.keys) + pair * BIAS_BYTES[problem.pair])
