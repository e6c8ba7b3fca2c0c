"""The search for the fastest configuration of a call.

What is offered is measured first, then the neighbours of the best, as long as they are better.
Candidates take turns; those that are slower by far after a few calls drop out. At last the best
ones and the one that dispatch estimates to be the fastest are measured anew, against each other:
what was lucky once is not lucky twice.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cuevo.errors import CuevoError
from cuevo.executors import architecture_of
from cuevo.ops.tuning import tuned
from cuevo.ops.tuning.calls import Call
from cuevo.ops.tuning.candidates import Candidate, neighbours, offered
from cuevo.ops.tuning.measure import Entrant, Times, time_interleaved, warm_up
from cuevo.ops.tuning.places import Bench
from cuevo.ops.tuning.tuned import Entry, entry_of

__all__ = ["Found", "Limits", "Trial", "compare", "tune"]

_TOGETHER = 12
"""Candidates that take turns: as many as can be queued while the device is kept busy."""
_FIRST_ROUNDS, _MORE_ROUNDS = 3, 5
_HOPELESS = 1.25
"""Time over the best one's, beyond which a candidate has no more than the first rounds."""
_BEAM = 3
"""Candidates whose neighbours are tried."""
_WORTHWHILE = 0.98
"""Time over the estimate's below which a candidate takes its place; time over the best one's below
which the search goes on.
"""
_FINALISTS = 4
_FINAL_MILLISECONDS, _FEWEST = 2000.0, 7
"""Time that their comparison takes, about, and the fewest calls of each."""
_MOST = 96
"""Candidates of a generation."""

Choices = tuple[Candidate, ...]
"""A candidate for each choice that a call makes."""


@dataclass(frozen=True)
class Limits:
    """What a search may take."""

    seconds: float = 20.0
    """After which no further neighbours are tried."""
    repeats: int = 40
    """Calls of each that the last comparison takes."""
    generations: int = 4
    """Times that neighbours are tried."""


@dataclass
class Trial:
    """A candidate that was tried."""

    choices: Choices
    times: Times | None = None
    reason: str = ""
    """Why it was not measured."""


@dataclass
class Found:
    """The outcome of a search."""

    call: Call
    entry: Entry
    trials: list[Trial] = field(default_factory=list)
    estimated: Choices = ()
    best: Any = None
    """The configuration of the fastest trial, as a call is told."""

    @property
    def gain(self) -> float:
        """The estimate's time over that of what was found."""
        return self.entry.estimated_milliseconds / self.entry.milliseconds


Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much."""


def _silent(doing: str, done: int, total: int) -> None:
    """No progress to be seen."""


def tune(
    call: Call, bench: Bench, limits: Limits | None = None, progress: Progress = _silent
) -> Found | None:
    """The fastest configuration that is found for a call; None for one that chooses nothing."""
    search = _Search(call, bench, limits or Limits(), progress)
    try:
        return search.run() if search.problems else None
    finally:
        call.operation.plans.clear()  # of all candidates


class _Search:
    def __init__(self, call: Call, bench: Bench, limits: Limits, progress: Progress) -> None:
        self.call, self.bench, self.limits, self.progress = call, bench, limits, progress
        self.arch = architecture_of(bench.place)
        self.prepared = bench.prepare(call)
        with estimates(call):
            self.plan = self.prepared.plan(None)
        self.problems = self.plan.problems
        self.trials: dict[Choices, Trial] = {}
        self.entrants: dict[Choices, Entrant] = {}

    def run(self) -> Found:
        end = time.perf_counter() + self.limits.seconds
        estimated = self._estimated()
        self._measure([estimated, *self._replaced(estimated, offered)], "offered")
        for generation in range(1, self.limits.generations + 1):
            before = self._best(1)[0]
            found = [x for each in self._best(_BEAM) for x in self._replaced(each, neighbours)]
            self._measure(found, f"neighbours {generation}")
            after = self._best(1)[0]
            if self._median(after) > _WORTHWHILE * self._median(before):
                break
            if time.perf_counter() > end:
                break
        return self._decide(estimated)

    def _estimated(self) -> Choices:
        """What dispatch has chosen."""
        plan, variants = self.plan, {each.NAME: each for each in self.call.variants}
        launches = [x for x in plan.every_launch if x.name in variants]
        return tuple(
            next(
                (variants[x.name], x.config)
                for x in launches
                if getattr(x.config, "side", None) == getattr(problem, "side", None)
            )
            for problem in self.problems
        )

    def _replaced(
        self, choices: Choices, others: Callable[[Any, Any, Any], list[Candidate]]
    ) -> Iterator[Choices]:
        """`choices` with one of them replaced by each of its alternatives."""
        for i, problem in enumerate(self.plan.served):
            source = self.call.variants if others is offered else choices[i]
            for candidate in others(source, problem, self.arch):
                yield (*choices[:i], candidate, *choices[i + 1 :])

    def _config(self, choices: Choices) -> Any:
        """As a call is told."""
        sides = [getattr(problem, "side", None) for problem in self.problems]
        configs = [config for _, config in choices]
        return dict(zip(sides, configs, strict=True)) if sides[0] else configs[0]

    def _median(self, choices: Choices) -> float:
        times = self.trials[choices].times
        assert times is not None
        return times.median

    def _best(self, count: int) -> list[Choices]:
        measured = [key for key, trial in self.trials.items() if trial.times]
        return sorted(measured, key=self._median)[:count]

    def _measure(self, choices: Iterable[Choices], doing: str) -> None:
        """Measure what was not measured before, a few together; CuevoError where nothing runs."""
        new = [x for x in dict.fromkeys(choices) if x not in self.trials][:_MOST]
        self.progress(f"{doing}: assembling", len(self.trials), len(self.trials) + len(new))
        reasons = self.bench.assemble(self.call, [self._config(x) for x in new])
        ready = []
        for each, reason in zip(new, reasons, strict=True):
            trial = self.trials[each] = Trial(each, reason=reason)
            try:
                if not reason:
                    plan = self.prepared.plan(self._config(each))
                    self.entrants[each] = self.prepared.entrant(plan)
                    ready.append(each)
            except (ValueError, CuevoError) as error:
                trial.reason = str(error)
        for first in range(0, len(ready), _TOGETHER):
            self.progress(doing, len(self.trials) - len(ready) + first, len(self.trials))
            self._screen(ready[first : first + _TOGETHER])
        if not any(trial.times for trial in self.trials.values()):
            reasons = [trial.reason for trial in self.trials.values()]
            raise CuevoError(f"nothing runs {self.call.describe()}: {'; '.join(reasons)}")

    def _screen(self, group: Sequence[Choices]) -> None:
        running = []
        for each in group:
            try:
                warm_up(self.entrants[each], self.bench.clock, rounds=1)
            except CuevoError as error:
                self.trials[each].reason = str(error)
            else:
                running.append(each)
        self._time(running, _FIRST_ROUNDS)
        best = min(map(self._median, self._best(1)), default=0.0)
        self._time([x for x in running if self._median(x) <= _HOPELESS * best], _MORE_ROUNDS)

    def _time(self, group: Sequence[Choices], rounds: int) -> None:
        """Further calls of each, in turns."""
        numbered = {str(i): self.entrants[each] for i, each in enumerate(group)}
        times = time_interleaved(numbered, self.bench.clock, rounds)
        for i, each in enumerate(group):
            self.trials[each].times = times[str(i)]

    def _decide(self, estimated: Choices) -> Found:
        """The best few and the estimate, measured anew."""
        finalists = list(dict.fromkeys((*self._best(_FINALISTS), estimated)))
        if estimated not in self.entrants:  # spilling, which its fallbacks do not
            self.entrants[estimated] = self.prepared.entrant(self.plan)
            self.trials[estimated] = Trial(estimated)
        for each in finalists:
            self.entrants[each].samples.clear()
        self.progress("comparing", len(self.trials), len(self.trials))
        together = sum(self._median(x) for x in self._best(_FINALISTS))
        rounds = int(_FINAL_MILLISECONDS / max(together, 1e-6))
        self._time(finalists, max(_FEWEST, min(rounds, self.limits.repeats)))
        best = min(finalists, key=self._median)
        chosen = best if self._median(best) < _WORTHWHILE * self._median(estimated) else estimated
        entry = entry_of(
            self.call.operation.name,
            self.problems,
            self.bench.place,
            () if chosen == estimated else chosen,
            milliseconds=self._median(chosen),
            estimated_milliseconds=self._median(estimated),
            date=datetime.now(UTC).isoformat(timespec="seconds")[:19],
        )
        trials = list(self.trials.values())
        return Found(self.call, entry, trials, estimated, self._config(chosen))


def compare(call: Call, bench: Bench, repeats: int) -> dict[str, Times]:
    """Times of a call with what the tables have, "tuned", and without, "estimated", in turns."""
    prepared = bench.prepare(call)
    with estimates(call):
        estimated = prepared.plan(None)
    call.operation.plans.clear()
    plans = {"tuned": prepared.plan(None), "estimated": estimated}
    entrants = {name: prepared.entrant(plan) for name, plan in plans.items()}
    for entrant in entrants.values():
        warm_up(entrant, bench.clock, rounds=1)
    return time_interleaved(entrants, bench.clock, repeats)


@contextmanager
def estimates(call: Call) -> Iterator[None]:
    """Plans that are made within are as without tables."""
    call.operation.plans.clear()
    with tuned.left_alone():
        yield
    call.operation.plans.clear()
