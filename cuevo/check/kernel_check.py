"""The check of one instance of a kernel: small problems that it serves, with ragged ends, on the
CPU executor under all of its checks, compared with float64; or one launch of a kernel of the user's
own, of which nobody knows what it should compute.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from cuevo.check.small_problems import Array, Pairs, run_small_problems
from cuevo.errors import SimulatorError
from cuevo.executors.own import Kernel
from cuevo.sim import Budget, LoadedKernel, Profile, SimExecutor, Trace
from cuevo.sim.faults import KernelText
from cuevo.toolchain.template import RenderedKernel, render

__all__ = ["BUDGET", "Finding", "Report", "check_by_problem", "check_kernel", "check_launch"]

BUDGET = Budget(instructions=20_000_000, seconds=300)
"""What a launch may take; the small problems take some ten thousand instructions, and seconds."""

LIMITS = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-2}
"""Largest norm of the difference over the norm, by the type of a result."""

_SCATTERED = 2
"""Ratio of sectors touched to sectors needed from which on there is a warning."""


@dataclass(frozen=True)
class Finding:
    """An error or a warning that a person should look at."""

    severity: str
    """ "error" or "warning"."""
    origin: str
    """``ptx/<file>:<line>``; "" where no line is at fault."""
    message: str


@dataclass(frozen=True)
class Report:
    """Findings, errors and profile of a check."""

    kernel: str
    arch: str
    findings: tuple[Finding, ...]
    errors: Mapping[str, float]
    """Norm of the difference to float64 over the norm, for each result, the largest of all
    problems.
    """
    profile: Profile | None
    """Counts of the kernel's launches, one for each problem; None where one did not finish."""
    whole: bool = True
    """False where more problems are to come, for what has not run yet."""

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return all(each.severity != "error" for each in self.findings)


def check_kernel(
    module: Any,
    config: Any,
    arch: str,
    seed: int = 0,
    budget: Budget = BUDGET,
    trace: Trace | None = None,
) -> Report:
    """Run the instance `config` of a kernel's host `module` as `arch` does, and compare: on one
    small problem after the other, until every instruction has run. A launch that takes more than
    the `budget` is an error in the report. What a `trace` asks for is told on the way.

    Raises ValueError where the instance cannot run, or does not have what is to be traced.
    """
    *_, report = check_by_problem(module, config, arch, seed, budget, trace)
    return report


def check_by_problem(
    module: Any,
    config: Any,
    arch: str,
    seed: int = 0,
    budget: Budget = BUDGET,
    trace: Trace | None = None,
) -> Iterator[Report]:
    """The same, with a report after each problem; the last one alone is `whole`, and has warnings.
    The others have no findings: the first error ends the check.
    """
    rendered = render(module.NAME, module.values(config))
    place = _Profiler(arch, rendered, budget, trace)
    findings: list[Finding] = []
    errors: dict[str, float] = {}
    profile = None

    def report(*, whole: bool) -> Report:
        measured = MappingProxyType(dict(errors))
        return Report(rendered.describe(), arch, tuple(findings), measured, profile, whole)

    try:
        for pairs in run_small_problems(module, config, place, np.random.default_rng(seed)):
            distances, wrong = compare(pairs)
            findings += wrong
            errors |= {name: max(x, errors.get(name, 0.0)) for name, x in distances.items()}
            assert place.kernel is not None
            profile = place.kernel.profile
            assert profile is not None
            if findings or not profile.never_ran:
                break
            yield report(whole=False)
    except SimulatorError as error:
        findings.append(fault(str(error)))
        profile = None
    if place.text is not None and place.text.text != rendered.text:
        ran = place.text.describe()
        message = f"no small problem is for this instance; what was checked is {ran}"
        findings.append(Finding("warning", "", message))
    findings += _warnings(place.kernel, profile)
    yield report(whole=True)


def check_launch(
    kernel: RenderedKernel,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[object],
    shared: int,
    arch: str,
    budget: Budget = BUDGET,
    trace: Trace | None = None,
) -> Report:
    """Launch a kernel of the user's own as `arch` runs it, with arguments as `cuevo.load` takes
    them; results are written, and compared with nothing.

    Raises TypeError or ValueError for arguments that do not fit the kernel.
    """
    place = _Profiler(arch, kernel, budget, trace)
    findings: list[Finding] = []
    profile = None
    try:
        Kernel(kernel, place)[tuple(grid), tuple(block)](*arguments, shared=shared)
        assert place.kernel is not None
        profile = place.kernel.profile
    except SimulatorError as error:
        findings.append(fault(str(error)))
    findings += _warnings(place.kernel, profile)
    return Report(kernel.describe(), arch, tuple(findings), MappingProxyType({}), profile)


def _warnings(kernel: LoadedKernel | None, profile: Profile | None) -> list[Finding]:
    """What there is to say of a kernel that was loaded, and of one that ran to its end."""
    found = [] if kernel is None else _fusible(kernel)
    if profile:
        found += [*_conflicts(profile), *_scattered(profile), *_idle(profile), *_missed(profile)]
    return found


class _Profiler(SimExecutor):
    """Profiles launches, and keeps the one kernel that they are about: a call may launch others of
    its name beside it, such as one for the last tile.
    """

    def __init__(self, arch: str, wanted: KernelText, budget: Budget, trace: Trace | None) -> None:
        own = None if trace is None else replace(trace, kernel=wanted.name)
        super().__init__(arch, profile=True, keep_counts=True, budget=budget, trace=own)
        self._wanted = wanted
        self.text: KernelText | None = None
        self.kernel: LoadedKernel | None = None

    def load(self, kernel: KernelText) -> LoadedKernel:
        loaded = None
        known = self.text is not None and self.text.text == self._wanted.text
        if kernel.name == self._wanted.name and (not known or kernel.text == self._wanted.text):
            self.text, self.kernel = kernel, None
            self.kernel = loaded = super().load(kernel)
        return loaded or super().load(kernel)


def fault(text: str) -> Finding:
    """What a `SimulatorError` says, as an error of a line."""
    head, _, rest = text.partition("\n")
    match = re.match(r"(.+?:\d+): ", head)
    origin = match[1] if match else ""
    message = head[match.end() :] if match else head
    place = [line.strip() for line in rest.splitlines()[2:]]
    return Finding("error", origin, "; ".join([message, *place]))


def compare(pairs: Pairs) -> tuple[dict[str, float], tuple[Finding, ...]]:
    """How far each result is from float64's, by norm, and an error for each that is too far."""
    distances = {name: _distance(*pair) for name, pair in pairs.items()}
    limits = {name: LIMITS[found.dtype.name] for name, (found, _) in pairs.items()}
    return distances, tuple(
        Finding(
            "error", "", f"{name} differs from float64 by {x:.1e}, more than {limits[name]:.1e}"
        )
        for name, x in distances.items()
        if not x <= limits[name]
    )


def _distance(found: Array, expected: Array) -> float:
    wide, exists = found.astype(np.float64), np.isfinite(expected)
    # Such as the lse of a row without keys.
    if not np.array_equal(wide[~exists], expected[~exists], equal_nan=True):
        return float("inf")
    norm = float(np.linalg.norm(expected[exists]))
    difference = float(np.linalg.norm(wide[exists] - expected[exists]))
    return difference / norm if norm else difference


def _fusible(kernel: LoadedKernel) -> list[Finding]:
    """A warning for each line with products that an assembler may fuse with sums of another."""
    by_lines = {(each.origin, each.sum_origin): each for each in kernel.contractions}
    return [
        Finding(
            "warning",
            each.origin,
            f"{each.opcode} and the {each.sum_opcode} of {each.sum_origin} may become one fma, "
            "with other bits: write .rn, or the fma",
        )
        for each in by_lines.values()
    ]


def _scattered(profile: Profile) -> list[Finding]:
    """A warning for each line whose accesses of global memory touch twice the sectors they need."""
    by_line: dict[tuple[str, str], list[int]] = {}
    for use in profile.sectors:
        counts = by_line.setdefault((use.origin, use.opcode), [0, 0, 0])
        for i, count in enumerate((use.requests, use.sectors, use.ideal)):
            counts[i] += count
    return [
        Finding(
            "warning",
            origin,
            f"{opcode}: {touched / requests:.1f} sectors a request, where {least / requests:.1f} "
            "would hold its bytes",
        )
        for (origin, opcode), (requests, touched, least) in by_line.items()
        if touched >= _SCATTERED * least
    ]


def _idle(profile: Profile) -> list[Finding]:
    """A warning for each line at which warps came to guarded instructions, and no guard held."""
    came: dict[str, int] = {}
    held: dict[str, int] = {}
    for use in profile.instructions:
        if use.held is not None and not use.opcode.startswith(("bra", "ret", "exit")):
            came[use.origin] = came.get(use.origin, 0) + use.executions
            held[use.origin] = held.get(use.origin, 0) + use.held
    return [
        Finding("warning", origin, f"the guard never held, of {count} times that warps came here")
        for origin, count in came.items()
        if count and not held[origin]
    ]


def _missed(profile: Profile) -> list[Finding]:
    """A warning for each line of whose instructions some never ran."""
    missed = Counter(use.origin for use in profile.never_ran)
    every = Counter(use.origin for use in profile.instructions if use.origin in missed)
    return [
        Finding("warning", origin, f"{count} of its {every[origin]} instructions never ran")
        for origin, count in missed.items()
    ]


def _conflicts(profile: Profile) -> list[Finding]:
    """A warning for each line whose accesses of shared memory meet in the banks."""
    by_line: dict[tuple[str, str], tuple[int, int]] = {}
    for use in profile.banks:
        if use.conflicts:
            took, ideal = by_line.get((use.origin, use.opcode), (0, 0))
            by_line[use.origin, use.opcode] = took + use.wavefronts, ideal + use.ideal
    return [
        Finding("warning", origin, f"{opcode}: bank conflicts, {took / ideal:.1f} times the time")
        for (origin, opcode), (took, ideal) in by_line.items()
    ]
