"""Results of the benchmark, and the tables that show them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from measure import Times
from workloads import Workload

ERROR_LIMIT = 1e-2
"""A relative error above this is a wrong result, not a rounding."""

PIPE_WIDTH = 118


@dataclass(frozen=True)
class Result:
    """One contender on one workload; `reason` says why there is no time."""

    workload: str
    contender: str
    biases: str
    relative_error: float | None = None
    milliseconds: Times | None = None
    teraflops: float | None = None
    ex2_share: float | None = None
    host_microseconds: float | None = None
    configuration: str = ""
    reason: str = ""

    @property
    def is_cuevo(self) -> bool:
        return self.contender.startswith("cuevo")

    @property
    def is_wrong(self) -> bool:
        error = self.relative_error
        return error is not None and not error <= ERROR_LIMIT


def print_head(record: dict[str, Any]) -> None:
    device = record["device"]
    idle = record["idle"]
    print(f"{device['name']} ({device['arch']}, {device['multiprocessors']} SMs, ", end="")
    print(f"{device['clock_hz'] / 1e9:.2f} GHz nominal), driver {idle.get('driver_version', '?')}")
    print(f"{record['date']}  {record['command']}")
    print(f"{record['dtype']}, {record['direction']}, median of {record['repeats']} calls each")
    print("  ".join(f"{name} {version}" for name, version in record["versions"].items()))
    for name, reason in record["absent"].items():
        print(f"absent: {name}: {reason}")


def print_table(workload: Workload, results: Sequence[Result], facts: dict[str, Any]) -> None:
    ours = own_times(results)
    load = facts["under_load"]
    print(f"\nN,H,L,D = {workload}   {facts['input_sets']} input sets", end="")
    print(f"   {load['clocks.sm']}, {load['power.draw']} under load\n" if load else "\n")
    figures = ("ms", "TF/s", "ex2", "error", "host us", *(f"x {name}" for name in ours))
    print_rows(("contender", "biases", *figures), [cells(x, ours) for x in results], words=2)
    for entry in results:
        if entry.configuration:
            print(f"{entry.contender}, {entry.biases}: {entry.configuration}")
        if entry.reason:
            print(f"{entry.contender}, {entry.biases}: {entry.reason}")
        elif entry.is_wrong:
            print(f"{entry.contender}, {entry.biases}: WRONG by {entry.relative_error:.2e}")


def print_rows(headings: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> None:
    """A table, in Markdown unless on a terminal; the first `words` columns are text."""
    terminal = sys.stdout.isatty()
    shown = Table(box=box.SIMPLE_HEAD if terminal else box.MARKDOWN)
    for index, heading in enumerate(headings):
        if index < words:
            shown.add_column(heading, overflow="fold")
        else:
            shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    screen = Console(highlight=False, markup=False, width=None if terminal else PIPE_WIDTH)
    with screen.capture() as captured:
        screen.print(shown)
    print("\n".join(line.rstrip() for line in captured.get().splitlines() if line.strip()))


def own_times(results: Sequence[Result]) -> dict[str, float]:
    """Milliseconds of the first configuration of cuevo for each combination of biases."""
    ours: dict[str, float] = {}
    for entry in results:
        if entry.is_cuevo and entry.milliseconds is not None:
            ours.setdefault(entry.biases, entry.milliseconds.median)
    return ours


def cells(entry: Result, ours: dict[str, float]) -> list[str]:
    """One row of the table."""
    error = "" if entry.relative_error is None else f"{entry.relative_error:.1e}"
    if entry.milliseconds is None:
        return [entry.contender, entry.biases, "-", "", "", error]
    median = entry.milliseconds.median
    return [
        entry.contender,
        entry.biases,
        f"{median:.4f}" if median < 1 else f"{median:.3f}",
        f"{entry.teraflops:.1f}",
        f"{entry.ex2_share:.1%}",
        error,
        f"{entry.host_microseconds:.1f}",
        *(f"{median / own:.2f}" for own in ours.values()),
    ]


def progress(text: str) -> None:
    """One line on a terminal's standard error that the next one overwrites."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
