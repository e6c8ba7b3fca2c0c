"""Timing: interleaved calls between device events, and medians.

Rules: warm-up stays out of the figure; contenders take turns call by call, in mixed order, so that
clocks and temperature are the same for all; the input set changes with every call, so that no call
finds its inputs in the L2 cache; the device is kept busy ahead of each turn, so that no gap between
two launches falls between a pair of events.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

__all__ = ["Clock", "Entrant", "Times", "input_sets", "time_interleaved", "turns", "warm_up"]


class Clock(Protocol):
    """A device, as measuring needs it: events on one stream."""

    def record(self) -> Any:
        """A timing event, recorded on the stream now."""

    def elapsed(self, start: Any, end: Any) -> float:
        """Milliseconds between two events that have completed."""

    def synchronize(self) -> None:
        """Wait until the stream is empty."""

    def hold(self) -> None:
        """Keep the stream busy for about a millisecond, so that calls queue up behind."""


@dataclass(frozen=True)
class Times:
    """Milliseconds of the timed calls of one contender."""

    median: float
    low: float  # 10th percentile
    high: float  # 90th percentile
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Times":
        """Summary of at least one sample."""
        ordered = sorted(samples)
        last = len(ordered) - 1
        return cls(
            median=statistics.median(ordered),
            low=ordered[round(0.1 * last)],
            high=ordered[round(0.9 * last)],
            count=len(ordered),
        )


@dataclass
class Entrant:
    """One contender on one workload: a call for each input set."""

    calls: Sequence[Callable[[], Any]]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    samples: list[float] = field(default_factory=list)


def warm_up(entrant: Entrant, clock: Clock, rounds: int = 2) -> None:
    """Every call at least `rounds` times: compilation, module loading, first touches."""
    with entrant.context():
        for _ in range(rounds):
            for call in entrant.calls:
                call()
    clock.synchronize()


def turns(entrants: Sequence[str], repeats: int) -> list[tuple[str, ...]]:
    """The order of each round: everybody once, so that nobody always follows the same one, which
    may leave the device cool or hot. The first of a round, which meets a device that has waited, is
    the next contender; where there are more contenders than rounds, one further on, so that the
    first of all rounds are spread over all of them.
    """
    step, mixed = max(1, len(entrants) // max(1, repeats)), Random(0)
    rounds = []
    for turn in range(repeats):
        start = turn * step % max(1, len(entrants))
        others = [*entrants[:start], *entrants[start + 1 :]]
        mixed.shuffle(others)
        rounds.append((*entrants[start : start + 1], *others))
    return rounds


def time_interleaved(
    entrants: Mapping[str, Entrant],
    clock: Clock,
    repeats: int,
    halfway: Callable[[], None] = lambda: None,
) -> dict[str, Times]:
    """Device time of a call of each entrant, from `repeats` rounds.

    `halfway` is called once in the middle, while the device is busy (to read its clocks).
    """
    used = 0
    for number, order in enumerate(turns(list(entrants), repeats)):
        if number == repeats // 2:
            halfway()
        pairs = []
        clock.hold()
        for name in order:
            entrant = entrants[name]
            call = entrant.calls[used % len(entrant.calls)]
            used += 1
            with entrant.context():
                start = clock.record()
                result = call()
                pairs.append((name, start, clock.record()))
                del result  # To give its memory back is no part of the call.
        clock.synchronize()
        for name, start, end in pairs:
            entrants[name].samples.append(clock.elapsed(start, end))
    return {name: Times.of(entrant.samples) for name, entrant in entrants.items()}


def input_sets(traffic: int, l2_bytes: int, free_bytes: int) -> int:
    """Number of sets of inputs to rotate among, so that none is found in the L2 cache.

    `traffic` is the bytes of one set with its results.

    Between two uses of a set at least twice the L2 capacity of other sets is touched, where the
    free memory allows (half of it is left alone). At least one set, at most 16.
    """
    wanted = 1 + math.ceil(2 * l2_bytes / traffic)
    fitting = free_bytes // 2 // traffic
    return max(1, min(wanted, fitting, 16))
