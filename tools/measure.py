"""Timing: interleaved calls between device events, medians, and the host's own time.

Rules: warm-up stays out of the figure; contenders take turns call by call, so that clocks and
temperature are the same for all; the input set changes with every call, so that no call finds its
inputs in the L2 cache; the device is kept busy ahead of each turn, so that no gap between two
launches falls between a pair of events.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

EX2_PER_CLOCK_PER_SM = 16
"""`ex2.approx.ftz.f32` results that one SM delivers a clock, sm_80 to sm_90."""


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
    def of(cls, samples: Sequence[float]) -> Times:
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
    """The order of each round: everybody once. The first of a round, which meets a device that has
    waited, is the next contender; where there are more contenders than rounds, one further on, so
    that the first of all rounds are spread over all of them.
    """
    names = tuple(entrants)
    step = max(1, len(names) // max(1, repeats))
    return [
        names[start:] + names[:start]
        for start in (turn * step % max(1, len(names)) for turn in range(repeats))
    ]


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
                call()
                pairs.append((name, start, clock.record()))
        clock.synchronize()
        for name, start, end in pairs:
            entrants[name].samples.append(clock.elapsed(start, end))
    return {name: Times.of(entrant.samples) for name, entrant in entrants.items()}


def time_sustained(
    entrants: Mapping[str, Entrant],
    clock: Clock,
    *,
    settle: float = 1.0,
    seconds: float = 0.5,
    rounds: int = 2,
    reading: Callable[[str], None] = lambda name: None,
) -> dict[str, Times]:
    """Device time of a call of each entrant while it alone keeps the device busy: clocks and power
    are those that the device settles at.

    In each of the rounds an entrant runs for `settle` seconds that do not count, then for `seconds`
    that do. A sample is the mean of a burst. `reading` is called with its name in the last round,
    while it is at work.
    """
    for number in range(rounds):
        for name, entrant in entrants.items():
            with entrant.context():
                _run_for(settle, entrant, clock)
                if number == rounds - 1:
                    reading(name)
                entrant.samples += _run_for(seconds, entrant, clock)
    return {name: Times.of(entrant.samples) for name, entrant in entrants.items()}


def _run_for(seconds: float, entrant: Entrant, clock: Clock) -> list[float]:
    """Milliseconds of a call, a burst after the other; the first, of one call, does not count."""
    samples: list[float] = []
    count = 1
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples) < 2:
        start = clock.record()
        for number in range(count):
            entrant.calls[number % len(entrant.calls)]()
        stop = clock.record()
        clock.synchronize()
        samples.append(clock.elapsed(start, stop) / count)
        count = burst_length(samples[-1])
    return samples[1:]


def burst_length(milliseconds: float) -> int:
    """Number of calls of that device time to queue at once: about 50 ms of work, 4 to 64 calls.

    That is far less than the driver's launch queue holds, so no call waits for room in it.
    """
    return max(4, min(64, round(50.0 / milliseconds))) if milliseconds > 0 else 64


def host_microseconds(entrant: Entrant, clock: Clock, calls: int, bursts: int = 7) -> float:
    """Host time of a repeated call, without waiting for the device.

    The first call of a burst, of a processor that has just waited, is not counted.
    """
    call = entrant.calls[0]
    samples = []
    with entrant.context():
        for _ in range(bursts):
            clock.synchronize()
            call()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            samples.append((time.perf_counter() - start) / calls * 1e6)
    clock.synchronize()
    return statistics.median(samples)


def teraflops(operations: int, milliseconds: float) -> float:
    return operations / milliseconds / 1e9


def ex2_share(scores: int, milliseconds: float, multiprocessors: int, clock_hz: float) -> float:
    """Scores a second over the exponentials a second of the whole device at its nominal clock."""
    limit = EX2_PER_CLOCK_PER_SM * multiprocessors * clock_hz
    return scores / (milliseconds * 1e-3) / limit
