"""Timing of long runs and of the host, and what times are divided by; calls in turns are timed by
`cuevo.ops.tuning.measure`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from cuevo.ops.tuning.measure import Clock, Entrant, Times, turns

EX2_PER_CLOCK_PER_SM = 16
"""`ex2.approx.ftz.f32` results that one SM delivers a clock, sm_80 to sm_90."""


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


def time_in_a_row(
    entrants: Mapping[str, Entrant], clock: Clock, calls: int, rounds: int
) -> dict[str, Times]:
    """Device time of a call behind others like it, with no event between them: entrants take turns
    in bursts of so many calls. A sample is the mean of a burst.
    """
    samples: dict[str, list[float]] = {name: [] for name in entrants}
    for order in turns(list(entrants), rounds):
        for name in order:
            entrant = entrants[name]
            with entrant.context():
                clock.hold()
                for call in entrant.calls:
                    call()
                start = clock.record()
                for number in range(calls):
                    entrant.calls[number % len(entrant.calls)]()
                stop = clock.record()
            clock.synchronize()
            samples[name].append(clock.elapsed(start, stop) / calls)
    return {name: Times.of(found) for name, found in samples.items()}


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
