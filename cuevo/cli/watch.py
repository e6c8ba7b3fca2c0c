"""`cuevo check --watch FILE`: a kernel again whenever it is saved, and what has changed since."""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cuevo.cli.arguments.files import is_file
from cuevo.cli.assemble import only_instance
from cuevo.errors import CuevoError
from cuevo.toolchain.paths import ptx_directory

if TYPE_CHECKING:
    from cuevo.check import Report
    from cuevo.toolchain.template import RenderedKernel

_BETWEEN_LOOKS = 0.1
"""Seconds."""
_MOST_CHANGES = 12
"""Opcodes that are told of."""

_PLACES = re.compile(r"(?<=:)\d+|\b0x[0-9a-f]+")
"""Lines and addresses in a finding."""

State = tuple[tuple[str, int, int], ...]
"""Path, time of the last change, and size of each file."""


@dataclass(frozen=True)
class _Numbers:
    """What may change: single numbers by name, and counts by opcode."""

    numbers: Mapping[str, int]
    opcodes: Mapping[str, int]

    def changes(self, before: _Numbers | None) -> Iterator[str]:
        """In words; all of the numbers where there is nothing before, and no opcodes."""
        earlier = before.numbers if before else self.numbers
        told = [
            f"{name} {_change(earlier.get(name, value), value)}"
            for name, value in self.numbers.items()
            if before is None or earlier.get(name, value) != value
        ]
        if told:
            yield ", ".join(told)
        if before is None:
            return
        changed = {
            name: self.opcodes.get(name, 0) - before.opcodes.get(name, 0)
            for name in {**before.opcodes, **self.opcodes}
        }
        largest = sorted(filter(changed.get, changed), key=lambda name: -abs(changed[name]))
        for name in largest[:_MOST_CHANGES]:
            yield f"  {name} {_change(before.opcodes.get(name, 0), self.opcodes.get(name, 0))}"
        if len(largest) > _MOST_CHANGES:
            yield f"  and {len(largest) - _MOST_CHANGES} other opcodes"


def _change(before: int, now: int) -> str:
    return f"{now:,}" if before == now else f"{before:,} -> {now:,}"


class _Looks:
    """The looks at a kernel, one after the other, and what the last one found."""

    def __init__(
        self, arguments: argparse.Namespace, check: Callable[[], Iterator[Report]]
    ) -> None:
        self._arguments = arguments
        self._check = check
        self._assembled: _Numbers | None = None
        self._ran: _Numbers | None = None
        self._findings: list[str] | None = None
        self.files = {Path(arguments.kernel)}
        if not is_file(arguments):
            self.files = {*ptx_directory().rglob("*.ptx"), *ptx_directory().rglob("*.h")}

    def look(self) -> Iterator[str]:
        """Assemble the kernel and run it: what there is to tell, line by line."""
        begun = time.perf_counter()
        try:
            instance = only_instance(self._arguments)
            self.files |= set(_files(instance.kernel))
            yield from self._assemble(instance.kernel, instance.target)
            yield f"assembled after {time.perf_counter() - begun:.1f} s"
            for report in self._check():
                if report.whole:
                    yield from self._tell(report)
                else:
                    yield f"right so far after {time.perf_counter() - begun:.1f} s"
            yield f"checked after {time.perf_counter() - begun:.1f} s"
            # They take another rendering to find.
            self.files |= set(_files(instance.kernel, callers=True))
        except (CuevoError, ValueError, OSError) as error:
            yield f"error: {error}"

    def _assemble(self, kernel: RenderedKernel, target: str) -> Iterator[str]:
        from cuevo.toolchain.assembler import assemble
        from cuevo.toolchain.sass import disassemble

        cubin = assemble(kernel, target)
        taken, code = cubin.resources, disassemble(cubin).instructions
        found = _Numbers(
            {
                "registers": taken.registers,
                "bytes of spills": taken.spill_stores + taken.spill_loads,
                "static shared memory": taken.static_shared,
                "machine instructions": len(code),
            },
            Counter(each.opcode for each in code),
        )
        yield from _or_no_change(found.changes(self._assembled), "the machine code is as before")
        self._assembled = found

    def _tell(self, report: Report) -> Iterator[str]:
        if report.profile:
            counts = report.profile.by_opcode()
            total = {"instructions of warps": sum(counts.values())}
            found = _Numbers(total, counts)
            yield from _or_no_change(found.changes(self._ran), "as many instructions ran as before")
            self._ran = found
        findings = [
            f"{each.severity}: {f'{each.origin}: ' if each.origin else ''}{each.message}"
            for each in report.findings
        ]
        earlier = self._findings or []
        new = _unlike(findings, earlier)
        yield from new
        yield from (f"moved: {x}" for x in findings if x not in earlier and x not in new)
        yield from (f"gone: {each}" for each in _unlike(earlier, findings))
        if not findings:
            yield "nothing was found"
        elif findings == self._findings:
            yield f"findings as before: {len(findings)}"
        self._findings = findings


def _unlike(findings: Sequence[str], others: Sequence[str]) -> list[str]:
    """Those that none of the others is, or would be at another line and with other addresses."""
    left = Counter(map(_unplaced, others))
    unlike = []
    # What is the very same is no match for anything else.
    for each in sorted(findings, key=lambda finding: finding not in others):
        if left[_unplaced(each)]:
            left[_unplaced(each)] -= 1
        else:
            unlike.append(each)
    return unlike


def _unplaced(finding: str) -> str:
    return _PLACES.sub("", finding)


def _or_no_change(changes: Iterator[str], otherwise: str) -> Iterator[str]:
    told = list(changes)
    yield from told or [otherwise]


def watch(arguments: argparse.Namespace, check: Callable[[], Iterator[Report]]) -> int:
    """Assemble the kernel that the command line names, and `check` it, now and after every save,
    until the user interrupts. A check has a report after each of its problems.
    """
    looks = _Looks(arguments, check)
    while True:
        before = _state(looks.files)
        print(f"{arguments.kernel}, {time.strftime('%H:%M:%S')}", flush=True)
        known = set(looks.files)
        for line in looks.look():
            print(line, flush=True)
        # What was saved meanwhile counts as a change, in files that were known before.
        before += _state(looks.files - known)
        while sorted(_state(looks.files)) == sorted(before):
            time.sleep(_BETWEEN_LOOKS)
        print(flush=True)


def _files(kernel: RenderedKernel, *, callers: bool = False) -> Iterator[Path]:
    """The files that a kernel's text was written in; with `callers` those that call macros, too."""
    named = {kernel.file, *(origin.file for origin in kernel.lines if origin)}
    if callers:
        for number in range(1, len(kernel.lines) + 1):
            named |= {line.file for line in kernel.callers(number)}
    yield from filter(None, map(kernel.path, named))


def _state(files: set[Path]) -> State:
    found = []
    for path in sorted(files):
        try:
            status = path.stat()
        except FileNotFoundError:  # between an editor's two steps of saving
            continue
        found.append((str(path), status.st_mtime_ns, status.st_size))
    return tuple(found)
