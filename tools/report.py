"""Results of the benchmark, and the tables that show them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from cuevo.ops.tuning.measure import Times
from workloads import Workload, key_of

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
    """The largest of `errors`."""
    milliseconds: Times | None = None
    teraflops: float | None = None
    ex2_share: float | None = None
    host_microseconds: float | None = None
    configuration: str = ""
    reason: str = ""
    gradients: str = ""
    """In backward, the gradients of biases that are computed."""
    errors: dict[str, float] = field(default_factory=dict)
    """Relative error of each result."""

    @property
    def key(self) -> str:
        return key_of(self.contender, self.biases, self.gradients)

    @property
    def variant(self) -> str:
        """Key that times are compared by: the gradients in backward, the biases in forward."""
        return self.gradients or self.biases

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
    repeats = record["repeats"]
    how = f"median of {repeats} calls each" if repeats else "each contender alone"
    print(f"{record['dtype']}, {record['direction']}, {how}")
    print("  ".join(f"{name} {version}" for name, version in record["versions"].items()))
    for name, reason in record["absent"].items():
        print(f"absent: {name}: {reason}")


def print_table(workload: Workload, results: Sequence[Result], facts: dict[str, Any]) -> None:
    ours = own_times(results)
    load = facts["under_load"]
    print(f"\nN,H,L,D = {workload}   {facts['input_sets']} input sets", end="")
    print(f"   {load['clocks.sm']}, {load['power.draw']} under load" if load else "")
    if "memory" in facts:
        print(memory_line(facts["memory"]))
    if "packing" in facts:
        taken, moved = facts["packing"]["milliseconds"], facts["packing"]["bytes"]
        print(f"packing of the pair bias: {taken * 1e3:.1f} us for {moved / 1e6:.1f} MB")
    print()
    backward = any(entry.gradients for entry in results)
    words = ("contender", "biases", *(["bias grads"] if backward else []))
    figures = ("ms", "TF/s", *([] if backward else ["ex2"]), "error", "host us")
    ratios = tuple(f"x {name}" for name in ours)
    rows = [cells(entry, ours) for entry in results]
    print_rows((*words, *figures, *ratios), rows, words=len(words))
    for entry in results:
        if entry.configuration:
            print(f"{entry.key}: {entry.configuration}")
        if len(entry.errors) > 1:
            listed = ", ".join(f"d{name} {error:.1e}" for name, error in entry.errors.items())
            print(f"{entry.key}: errors {listed}")
        if entry.reason:
            print(f"{entry.key}: {entry.reason}")
        elif entry.is_wrong:
            print(f"{entry.key}: WRONG by {entry.relative_error:.2e}")


def memory_line(memory: dict[str, Any]) -> str:
    """Bytes of a call of cuevo with the gradients of both biases, in words."""
    if "reason" in memory:
        return f"memory: {memory['reason']}"

    def mega(name: str) -> str:
        return f"{memory[name] / 1e6:.1f} MB"

    line = f"memory: workspace {mega('workspace')}; "
    line += f"3 q + lse + delta + fp32 bias gradients {mega('compared_to')}"
    if memory["peak"] is None:
        return line
    return f"{line}; peak of a call {mega('peak')}, results {mega('results')} of it"


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
    """Milliseconds of the first configuration of cuevo for each combination of biases, in backward
    of their gradients.
    """
    ours: dict[str, float] = {}
    for entry in results:
        if entry.is_cuevo and entry.milliseconds is not None:
            ours.setdefault(entry.variant, entry.milliseconds.median)
    return ours


def cells(entry: Result, ours: dict[str, float]) -> list[str]:
    """One row of the table."""
    words = [entry.contender, entry.biases, *([entry.gradients] if entry.gradients else [])]
    error = "" if entry.relative_error is None else f"{entry.relative_error:.1e}"
    backward = bool(entry.gradients)
    if entry.milliseconds is None:
        return [*words, "-", "", *([] if backward else [""]), error]
    median = entry.milliseconds.median
    return [
        *words,
        f"{median:.4f}" if median < 1 else f"{median:.3f}",
        f"{entry.teraflops:.1f}",
        *([] if backward else [f"{entry.ex2_share:.1%}"]),
        error,
        f"{entry.host_microseconds:.1f}",
        *(f"{median / own:.2f}" for own in ours.values()),
    ]


def progress(text: str) -> None:
    """One line on a terminal's standard error that the next one overwrites."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
