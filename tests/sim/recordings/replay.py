"""Recorded results held against the CPU executor."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sim.recordings import approximations
from sim.recordings.archive import Record, digests
from sim.recordings.fills import Array, checksum
from sim.recordings.probes import Probe
from sim.recordings.sweeps import Sweep

from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor

RECORDINGS = Path(__file__).parent


@dataclass(frozen=True)
class Deviation:
    """A known difference of the executor from the hardware."""

    names: str
    """A regular expression for the instructions."""
    reason: str
    lanes: Callable[..., Array]
    """The lanes that may differ, of the operands, (registers, lanes) each."""


DEVIATIONS: tuple[Deviation, ...] = ()
"""Known differences; there are none: the executor has every result of an H200."""


@dataclass
class Outcome:
    """Findings of a comparison."""

    forms: int = 0
    exact: int = 0
    """Results that agree in every bit."""
    within: int = 0
    """Results of approximate functions, there and here, within the bounds."""
    excused: int = 0
    """Results that differ where a deviation says so."""
    unknown: list[str] = field(default_factory=list)
    """Recorded, but no instruction of the executor."""
    missing: list[str] = field(default_factory=list)
    """Instructions that were not recorded."""
    wrong: list[str] = field(default_factory=list)
    """A sentence for each instruction that differs."""

    def add(self, other: "Outcome") -> None:
        self.forms += other.forms
        self.exact += other.exact
        self.within += other.within
        self.excused += other.excused
        self.unknown += other.unknown
        self.missing += other.missing
        self.wrong += other.wrong

    @property
    def counts(self) -> dict[str, int]:
        """Counts that can be added up over comparisons."""
        return {
            "forms": self.forms,
            "exact": self.exact,
            "within": self.within,
            "excused": self.excused,
            "unknown": len(self.unknown),
            "missing": len(self.missing),
        }

    def __str__(self) -> str:
        text = f"{self.exact:,} results of {self.forms:,} forms replayed exactly"
        text += f", {self.within:,} within bounds, {self.excused:,} known to deviate"
        if self.unknown:
            text += f"; {len(self.unknown)} forms unknown to the executor: "
            text += ", ".join(self.unknown)
        if self.missing:
            text += f"; {len(self.missing)} forms not recorded, such as {self.missing[0]}"
        return text


def on_sim(sweep: Sweep, executors: dict[str, SimExecutor]) -> Mapping[str, Array] | None:
    """The executor's results; None if it does not support the instruction."""
    if sweep.arch not in executors:
        executors[sweep.arch] = SimExecutor(sweep.arch)
    try:
        return sweep.on_sim(executors[sweep.arch])
    except SimulatorError as error:
        if "does not support the instruction" in str(error):
            return None
        raise


def replay(
    sweeps: Iterable[Sweep],
    records: Mapping[str, Record],
    deviations: Sequence[Deviation] = DEVIATIONS,
) -> Outcome:
    """Compares all that is recorded of the sweeps."""
    outcome = Outcome()
    executors: dict[str, SimExecutor] = {}
    for sweep in sweeps:
        recorded = [probe for probe in sweep.probes if probe.name in records]
        outcome.missing += [probe.name for probe in sweep.probes if probe.name not in records]
        if not recorded:
            continue
        inputs = sweep.inputs()
        stamp = checksum(inputs)
        try:
            here = on_sim(sweep, executors)
        except SimulatorError as error:
            outcome.wrong.append(f"{sweep.name}: {error}")
            continue
        for probe in recorded:
            one = records[probe.name]
            if one.inputs != stamp:
                outcome.wrong.append(f"{probe.name}: recorded with other inputs; record it again")
            elif here is None:
                outcome.unknown.append(probe.name)
            else:
                outcome.add(_compared(probe, inputs, one, here[probe.name], deviations))
    return outcome


def _compared(
    probe: Probe,
    inputs: Sequence[Array],
    one: Record,
    here: Array,
    deviations: Sequence[Deviation],
) -> Outcome:
    if approximations.approximate(probe):
        return _approximated(probe, inputs, one, here)
    if np.array_equal(digests(here), one.digests):
        return Outcome(forms=1, exact=one.results)
    patched, excused = here.copy(), np.zeros(one.results, bool)
    for deviation in deviations:
        if re.fullmatch(deviation.names, probe.name):
            excused |= np.repeat(deviation.lanes(*inputs), one.shape[1])
    flat = patched.reshape(-1)
    chosen = excused[one.places]
    flat[one.places[chosen]] = one.values[chosen]
    differing = int(np.count_nonzero(patched != here))
    if np.array_equal(digests(patched), one.digests):
        return Outcome(forms=1, exact=one.results - differing, excused=differing)
    return Outcome(wrong=[_difference(probe, inputs, one, patched)])


def _approximated(probe: Probe, inputs: Sequence[Array], one: Record, here: Array) -> Outcome:
    there = one.whole(_predicted(probe, inputs, one))
    for place, results in (("in the recording", there), ("of the executor", here)):
        lanes = approximations.beyond(probe, inputs, results)
        if len(lanes):
            first = int(lanes[0])
            sentence = f"{probe.name}: {len(lanes)} of {one.results} results {place} are beyond the"
            sentence += f" bound; {_shown(inputs, first)} gives {int(results[first, 0]):#x}"
            return Outcome(wrong=[sentence])
    return Outcome(forms=1, within=one.results)


def _predicted(probe: Probe, inputs: Sequence[Array], one: Record) -> Array:
    """Results that the recording's distances are counted from."""
    if probe.binder in approximations.BINDERS:
        return approximations.predicted(probe, inputs)
    return np.zeros(one.shape, np.uint64)


def _difference(probe: Probe, inputs: Sequence[Array], one: Record, here: Array) -> str:
    """A sentence about the first result that differs."""
    flat = here.reshape(-1)
    if one.distances is not None:
        there = one.whole(_predicted(probe, inputs, one)).reshape(-1)
        places = np.flatnonzero(there != flat)
        values = there[places]
    else:
        wrong = flat[one.places] != one.values
        places, values = one.places[wrong], one.values[wrong]
    if not len(places):
        chunks = np.flatnonzero(digests(here) != one.digests)
        return (
            f"{probe.name}: {len(chunks)} of {len(one.digests)} parts of {one.results} results "
            f"differ from the recording where they agreed as it was made; the first is {chunks[0]}"
        )
    lane, result = divmod(int(places[0]), one.shape[1])
    return (
        f"{probe.name}: {len(places)} of {one.results} results differ; lane {lane}, "
        f"{_shown(inputs, lane)}, has result {result} {int(values[0]):#x} in the recording, "
        f"{int(flat[places[0]]):#x} here"
    )


def _shown(inputs: Sequence[Array], lane: int) -> str:
    """The operands of a lane."""
    words = [
        " ".join(f"{int(x):#x}" for x in array[:, lane]) if lane < array.shape[1] else "..."
        for array in inputs
    ]
    return f"({', '.join(words)})"
