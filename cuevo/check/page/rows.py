"""The rows of the page's panes: template source, PTX text, machine code, and their links.

A row is a dictionary with short names, of which there are some ten thousand in a page:

- ``n``: what stands in the margin, a line number or an address; ``t``: the text;
- ``d``: how deep it is nested; ``e``: for the head of a fold, the row behind its last;
- ``o``: the row of the pane to the left that it is from;
- ``p``: machine instructions by pipe; ``l``: registers live at most;
- ``x``: warps that ran it; ``b``: wavefronts and the fewest possible; ``s``: sectors touched, and
  those that would hold the bytes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuevo.sim import Profile
from cuevo.toolchain.lineinfo import SourceLine
from cuevo.toolchain.sass import Listing
from cuevo.toolchain.template import RenderedKernel

__all__ = ["Row", "machine_rows", "source_rows", "text_rows"]

Row = dict[str, Any]


@dataclass
class Counts:
    """What there is to count of a line, or of several."""

    pipes: Counter[str] = field(default_factory=Counter)
    live: int = 0
    executions: int = 0
    banks: list[int] = field(default_factory=lambda: [0, 0])
    """Wavefronts, and the fewest possible."""
    sectors: list[int] = field(default_factory=lambda: [0, 0])
    """Sectors touched, and the fewest possible."""

    def add(self, other: "Counts") -> None:
        self.pipes.update(other.pipes)
        self.live = max(self.live, other.live)
        self.executions += other.executions
        for own, theirs in ((self.banks, other.banks), (self.sectors, other.sectors)):
            own[:] = [x + y for x, y in zip(own, theirs, strict=True)]

    def fields(self) -> Row:
        """What goes into a row: nothing of what is zero."""
        every: Row = {
            "p": self.pipes.most_common(),
            "l": self.live,
            "x": self.executions,
            "b": self.banks if self.banks[0] else None,
            "s": self.sectors if self.sectors[0] else None,
        }
        return {name: value for name, value in every.items() if value}


def counts_of_lines(
    kernel: RenderedKernel, listing: Listing, profile: Profile | None
) -> dict[int, Counts]:
    """Counts of each line of the rendered text that has any."""
    lines: dict[int, Counts] = {}
    for each in listing.instructions:
        line = kernel.located.number(each.line)
        if line:
            of_line = lines.setdefault(line, Counts())
            of_line.pipes[each.pipe] += 1
            of_line.live = max(of_line.live, each.live["GPR"])
    if profile:
        for use in profile.instructions:
            lines.setdefault(use.line, Counts()).executions += use.executions
        for access in profile.banks:
            lines[access.line].banks = [access.wavefronts, access.ideal]
        for request in profile.sectors:
            lines[request.line].sectors = [request.sectors, request.ideal]
    return lines


# -- The templates ---------------------------------------------------------------------------------


def source_rows(
    kernel: RenderedKernel, counts: Mapping[int, Counts]
) -> tuple[list[Row], dict[SourceLine, int]]:
    """The files that the text was written in, the kernel's own first, and the row of each line.

    Macros that nothing came from are closed.
    """
    totals: dict[SourceLine, Counts] = {}
    for number, of_line in counts.items():
        if origin := kernel.origin(number):
            totals.setdefault(origin, Counts()).add(of_line)
    named: dict[str, set[int]] = {kernel.file: set()}
    for number, origin in enumerate(kernel.lines, 1):
        for line in filter(None, (origin, *kernel.callers(number))):
            named.setdefault(line.file, set()).add(line.line)
    rows: list[Row] = []
    places: dict[SourceLine, int] = {}
    for file, mentioned in named.items():
        path = kernel.path(file)
        text = [f"({file} is not here)"] * max(mentioned, default=0)
        if path is not None:
            text = path.read_text(encoding="utf-8", errors="replace").splitlines()
        head: Row = {"k": "file", "t": file, "d": 0}
        rows.append(head)
        ends = dict(_macros(text))
        open_until: list[int] = []
        for number, words in enumerate(text, 1):
            while open_until and number > open_until[-1]:
                open_until.pop()
            place = SourceLine(file, number)
            places[place] = len(rows)
            row: Row = {"n": number, "t": words, "d": 1 + len(open_until)}
            if number in ends:
                end = ends[number]
                row |= {"k": "fold", "e": len(rows) + 1 + end - number}
                row["c"] = mentioned.isdisjoint(range(number, end + 1))
                open_until.append(end)
            rows.append(row | totals.get(place, Counts()).fields())
        head["e"] = len(rows)
    return rows, places


def _macros(text: Sequence[str]) -> Iterator[tuple[int, int]]:
    """First and last line of each macro, from 1."""
    begun: list[int] = []
    for number, line in enumerate(text, 1):
        words = line.lstrip().removeprefix("//%").split(maxsplit=1) if "//%" in line else []
        if words[:1] == ["macro"]:
            begun.append(number)
        elif words[:1] == ["endmacro"] and begun:
            yield begun.pop(), number


# -- The text --------------------------------------------------------------------------------------


def text_rows(
    kernel: RenderedKernel,
    counts: Mapping[int, Counts],
    sources: Sequence[Row],
    places: Mapping[SourceLine, int],
) -> tuple[list[Row], dict[int, int]]:
    """The lines of the rendered text, those of a macro below a head with its call, and the row of
    each line. A head counts what its macro makes.
    """
    rows: list[Row] = []
    numbers: dict[int, int] = {}
    open_calls: list[tuple[SourceLine, Row, Counts]] = []

    def close(keep: int) -> None:
        while len(open_calls) > keep:
            _, head, total = open_calls.pop()
            head |= {"e": len(rows)} | total.fields()

    for number, text in enumerate(kernel.text.splitlines(), 1):
        calls = kernel.callers(number)[::-1]
        same = 0
        for call, (begun, _, _) in zip(calls, open_calls, strict=False):
            if call != begun:
                break
            same += 1
        close(same)
        for depth, call in enumerate(calls[same:], same):
            row = places.get(call)
            words = sources[row]["t"].strip() if row is not None else str(call)
            head: Row = {"k": "fold", "n": call.line, "t": words, "d": depth}
            rows.append(head if row is None else head | {"o": row})
            open_calls.append((call, rows[-1], Counts()))
        of_line = counts.get(number, Counts())
        for _, _, total in open_calls:
            # A macro is run as often as the line of it that is run most.
            most = max(total.executions, of_line.executions)
            total.add(of_line)
            total.executions = most
        numbers[number] = len(rows)
        line: Row = {"n": number, "t": text, "d": len(calls)}
        origin = kernel.origin(number)
        if origin is not None and origin in places:
            line["o"] = places[origin]
        rows.append(line | of_line.fields())
    close(0)
    return rows, numbers


# -- The machine code ------------------------------------------------------------------------------


def machine_rows(kernel: RenderedKernel, listing: Listing, numbers: Mapping[int, int]) -> list[Row]:
    """The machine instructions, with their labels."""
    labels: dict[int, list[str]] = {}
    for name, address in listing.labels.items():
        labels.setdefault(address, []).append(name)
    within = {each.address for each in listing.main_loop()}
    rows: list[Row] = []
    for each in listing.instructions:
        rows += [{"k": "label", "t": f"{name}:", "d": 0} for name in labels.get(each.address, ())]
        row: Row = {"n": f"{each.address:04x}", "t": str(each), "d": 1, "p": [(each.pipe, 1)]}
        row |= {"l": each.live["GPR"], "m": int(each.address in within)}
        line = kernel.located.number(each.line)
        if line in numbers:
            row["o"] = numbers[line]
        rows.append(row)
    return rows
