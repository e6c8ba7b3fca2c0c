"""`cuevo tune`: the fastest configurations of calls, found by measuring them on a GPU."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuevo.cli.arguments.problem import OPERATIONS, add_problem_options, read_call
from cuevo.cli.arguments.usage import (
    EXIT_OK,
    Subparsers,
    UsageError,
    add_command,
    add_json_option,
    check_drawing,
    console,
    print_json,
    print_table,
    table,
)
from cuevo.errors import CuevoError

if TYPE_CHECKING:
    from cuevo.ops.tuning.calls import Call
    from cuevo.ops.tuning.search import Found, Progress

_DETAILS = """\
examples:
  cuevo tune attention --problem 1,384,4,384,32 --mask own --pair own
  cuevo tune --workload my_model.txt --seconds 30
  CUEVO_RECORD_PROBLEMS=calls.jsonl python train.py; cuevo tune --recorded calls.jsonl
  cuevo tune attention --problem 1,384,4,384,32 --plot tuned.svg
  cuevo tune --workload my_model.txt --compare
  cuevo tune --merge from_another_machine.json

A line of a workload file is a call as on the command line: an operation, its problem, its options;
"#" begins a comment:

  attention 1,384,4,384,32 --mask own --pair own
  attention_backward 1,128,8,250,32 --pair f32
  gemm 1000,1000,64 --dtype f16

What is found goes into a table in the cache folder, with an entry for a class of problems on
a device, and is what calls of such problems run from then on, in new processes. It is
put there only where it is faster than what was chosen without by more than noise. Any number of
processes may write to one table; of two entries the newer one stays. CUEVO_TUNED=0 leaves tables
alone; `cuevo plan --device NAME` tells where a choice comes from.
"""


def add_commands(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers, "tune", "Find the fastest configurations by measuring them.", _DETAILS, run
    )
    add = parser.add_argument
    add("operation", nargs="?", choices=OPERATIONS, metavar="OPERATION", help=", ".join(OPERATIONS))
    add_problem_options(parser)
    parser.set_defaults(settings=[])
    add("--workload", type=Path, metavar="FILE", help="the calls of a file, one a line")
    add("--recorded", type=Path, metavar="FILE", help="what CUEVO_RECORD_PROBLEMS has recorded")
    add("--merge", type=Path, nargs="+", metavar="FILE", help="put other tables into this one")
    add("--device", type=int, default=0, metavar="N", help="the CUDA device (%(default)s)")
    add("--seconds", type=float, default=20.0, help="to search for each call, about (%(default)s)")
    add("--repeats", type=int, default=40, metavar="COUNT", help="last calls of each (%(default)s)")
    add("--compare", action="store_true", help="time what the table has beside what is estimated")
    add("--plot", type=Path, metavar="FILE", help="times by each field (.svg, .png), of one call")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    from cuevo.ops.tuning import tuned

    path = tuned.user_table()
    if path is None:
        raise UsageError("there is no cache folder: set CUEVO_CACHE_DIR.")
    if arguments.merge:
        count = sum(tuned.merge(path, tuned.read(each)) for each in arguments.merge)
        print(f"{path}: {count} entries are new")
        return EXIT_OK
    if arguments.seconds <= 0 or arguments.repeats < 1:
        raise UsageError("--seconds and --repeats are positive.")
    calls = list(_calls(arguments))
    if not calls:
        raise UsageError("there is nothing to tune: no call in the file.")
    if arguments.plot and (len(calls) > 1 or arguments.compare):
        raise UsageError("--plot is for the search of one call.")
    check_drawing(arguments.plot)
    from cuevo.executors.driver import executor
    from cuevo.ops.tuning.places import DeviceBench

    bench = DeviceBench(executor(arguments.device))
    try:
        if arguments.compare:
            return _compare(arguments, calls, bench)
        return _tune(arguments, calls, bench, path)
    finally:
        bench.close()


def _calls(arguments: argparse.Namespace) -> Iterator[Call]:
    """The calls that the command line tells of, each once."""
    from cuevo.ops.tuning.calls import read_recorded

    given = [arguments.problem is not None, bool(arguments.workload), bool(arguments.recorded)]
    if sum(given) != 1 or (arguments.operation is not None) != given[0]:
        raise UsageError("give an operation and --problem, or --workload, or --recorded.")
    if arguments.recorded:
        yield from read_recorded(arguments.recorded)
    elif arguments.workload:
        yield from read_workload(arguments.workload)
    else:
        yield _call(arguments)


def read_workload(path: Path) -> Iterator[Call]:
    """The calls of a workload file; UsageError for a line that is none."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if words := shlex.split(line, comments=True):
            try:
                yield call_of_words(words)
            except ValueError as error:
                raise UsageError(f"{path}:{number}: {error}") from error


def call_of_words(words: Sequence[str]) -> Call:
    """The call of a line of a workload file; UsageError or ValueError for what is none."""
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    parser.set_defaults(settings=[])
    parser.add_argument("operation", choices=OPERATIONS)
    add_problem_options(parser, required=True)
    try:
        arguments, more = parser.parse_known_args([words[0], "--problem", *words[1:]])
    except argparse.ArgumentError as error:
        raise UsageError(str(error)) from error
    if more:
        raise UsageError(f"there is no option {' '.join(more)}.")
    return _call(arguments)


def _call(arguments: argparse.Namespace) -> Call:
    from cuevo.ops.tuning.calls import Call

    read = read_call(arguments, arguments.operation)
    return Call(read.operation, read.arrays, read.options)


def _tune(arguments: argparse.Namespace, calls: Sequence[Call], bench: Any, path: Path) -> int:
    from cuevo.ops.tuning import tuned
    from cuevo.ops.tuning.search import Limits, tune

    limits = Limits(seconds=arguments.seconds, repeats=arguments.repeats)
    outcomes: list[Found] = []
    for call, progress in _shown(calls):
        found = tune(call, bench, limits, progress)
        if found is not None:
            outcomes.append(found)
            # After every call, so that a run that is cut off leaves what it has.
            tuned.merge(path, [found.entry])
    if arguments.plot and outcomes:
        from cuevo.ops.tuning.plot import plot_trials

        plot_trials(outcomes[0], _bound(outcomes[0], bench.place), arguments.plot)
    rows = [
        {
            "call": found.call.describe(),
            "tuned_ms": found.entry.milliseconds,
            "estimated_ms": found.entry.estimated_milliseconds,
            "gain": found.gain,
            "tried": len(found.trials),
            "chosen": " ".join(each["kernel"] for each in found.entry.choices) or "the estimate",
        }
        for found in outcomes
    ]
    _report(arguments, rows)
    if not arguments.json:
        print(f"written to {path}")
    return EXIT_OK


def _bound(found: Found, place: Any) -> float | None:
    """Milliseconds that the busiest pipes take of the best that was measured; None where that is
    not known.
    """
    from cuevo.executors import architecture_of
    from cuevo.executors.assembling import assembling
    from cuevo.ops.roofline.model import predict

    call, config = found.call, found.best
    plan = call.operation.plan_on_device(call.arrays, call.options, assembling(place.arch), config)
    try:
        predicted = predict(plan, architecture_of(place))
    except (CuevoError, ValueError):
        return None
    return 1e3 * sum(each.seconds * each.shares[each.pipe] for each in predicted.bounds)


def _compare(arguments: argparse.Namespace, calls: Sequence[Call], bench: Any) -> int:
    from cuevo.ops.tuning.search import compare

    rows = []
    for call, progress in _shown(calls):
        progress("comparing", 0, 1)
        times = compare(call, bench, arguments.repeats)
        ours, others = times["tuned"], times["estimated"]
        rows.append(
            {
                "call": call.describe(),
                "tuned_ms": ours.median,
                "estimated_ms": others.median,
                "gain": others.median / ours.median,
                "spread": (others.high - others.low) / others.median,
            }
        )
    _report(arguments, rows)
    return EXIT_OK


def _report(arguments: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> None:
    """A row for each call, and the geometric mean of the gains."""
    gains = [row["gain"] for row in rows]
    mean = math.exp(sum(map(math.log, gains)) / len(gains)) if gains else 1.0
    if arguments.json:
        print_json({"calls": rows, "mean_gain": mean, "least_gain": min(gains, default=1.0)})
        return
    if rows:
        shown = table(*(name.replace("_", " ") for name in rows[0]))
        for row in rows:
            shown.add_row(*(f"{x:.4g}" if isinstance(x, float) else str(x) for x in row.values()))
        print_table(shown)
        print(f"gain: {mean:.3f} in geometric mean, {min(gains):.3f} at least")


def _shown(calls: Sequence[Call]) -> Iterator[tuple[Call, Progress]]:
    """Each call, and what shows the progress of its search, on standard error."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=console(stderr=True)) as shown:
        whole = shown.add_task("calls", total=len(calls))
        task = shown.add_task("")

        def progress(doing: str, done: int, total: int) -> None:
            shown.update(task, description=doing, completed=done, total=total)

        for call in calls:
            shown.update(whole, description=call.describe()[:60])
            yield call, progress
            shown.advance(whole)
