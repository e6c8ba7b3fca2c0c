"""`cuevo roofline`: what bounds the kernels of a call, and the time that follows from it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuevo.cli.arguments.problem import DEFAULT_ARCH, OPERATIONS, add_problem_options, read_call
from cuevo.cli.arguments.usage import (
    EXIT_OK,
    Subparsers,
    UsageError,
    add_command,
    add_json_option,
    check_drawing,
    print_json,
    print_table,
    table,
)
from cuevo.cli.kernels import architecture_name
from cuevo.cli.tune import read_workload

if TYPE_CHECKING:
    from cuevo.cuda.device_info import DeviceInfo
    from cuevo.ops.roofline.model import Prediction
    from cuevo.ops.tuning.calls import Call

_DETAILS = """\
examples:
  cuevo roofline attention --problem 1,384,4,384,32 --mask own --pair own
  cuevo roofline attention --problem 1,384,4,384,32 --set stages=2 --arch sm_80
  cuevo roofline gemm --problem 4096,4096,4096 --json
  cuevo roofline --workload my_model.txt --plot roofs.svg

For each kernel: the share of the predicted time that its machine code keeps each pipe busy, the
busiest of which bounds it, and scores or multiply-adds a clock of a multiprocessor, predicted, and
at the roof, if that pipe never waited. Each machine instruction counts as often as the CPU executor
has run the line that it is from, on a small problem of the same kind; that takes some seconds, and
is kept in the cache. A GPU of the architecture is asked, too, if there is one. The lines of a
workload file are those of `cuevo tune`.
"""

_SHARES = ("issue", "tensor", "xu", "lsu", "alu", "fma")


def add_commands(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers, "roofline", "Show what bounds the kernels of a call.", _DETAILS, run
    )
    add = parser.add_argument
    add("operation", nargs="?", choices=OPERATIONS, metavar="OPERATION", help=", ".join(OPERATIONS))
    add_problem_options(parser)
    add("--workload", type=Path, metavar="FILE", help="the calls of a file, one a line")
    add("--arch", type=architecture_name, default=DEFAULT_ARCH, metavar="SM", help="(%(default)s)")
    add(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help="a field of the configuration that is to differ from the one chosen; may be repeated",
    )
    add("--plot", type=Path, metavar="FILE", help="draw kernels under their roofs (.svg, .png)")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    from cuevo.executors import architecture_of
    from cuevo.executors.assembling import assembling
    from cuevo.ops.roofline.model import predict

    check_drawing(arguments.plot)
    device = _device(arguments.arch)
    place = assembling(arguments.arch, device.name if device else "")
    arch = architecture_of(place)
    rows: list[dict[str, Any]] = []
    for call, config in _calls(arguments):
        plan = call.operation.plan_on_device(call.arrays, call.options, place, config)
        predicted = predict(plan, arch)
        measured = _measured(call, config, device.ordinal) if device else None
        rows.append(_report(call, predicted, measured))
    if arguments.plot:
        from cuevo.ops.roofline.plot import plot_roofs

        plot_roofs(rows, arch.name, arguments.plot)
    if arguments.json:
        print_json({"arch": arguments.arch, "calls": rows})
        return EXIT_OK
    for row in rows:
        _show(row)
    return EXIT_OK


def _calls(arguments: argparse.Namespace) -> Iterator[tuple[Call, Any]]:
    """The calls that the command line tells of, and how each is configured."""
    from cuevo.ops.tuning.calls import Call

    if bool(arguments.workload) == (arguments.operation is not None):
        raise UsageError("give an operation and --problem, or --workload.")
    if arguments.workload:
        if arguments.settings:
            raise UsageError("--set is for one problem: give --problem.")
        for each in read_workload(arguments.workload):
            yield each, None
        return
    if arguments.problem is None:
        raise UsageError(f"{arguments.operation} is an operation: give --problem.")
    read = read_call(arguments, arguments.operation)
    yield Call(read.operation, read.arrays, read.options), read.config


def _device(arch_name: str) -> DeviceInfo | None:
    """The first GPU of an architecture, if there is one."""
    from cuevo.cuda.device_info import devices

    return next((info for info in devices() if arch_name.rstrip("af") == info.arch), None)


def _measured(call: Call, config: Any, ordinal: int) -> float:
    """Milliseconds of the call on a GPU."""
    from cuevo.executors.driver import executor
    from cuevo.ops.tuning.measure import time_interleaved, warm_up
    from cuevo.ops.tuning.places import DeviceBench

    bench = DeviceBench(executor(ordinal))
    prepared = bench.prepare(call)
    entrant = prepared.entrant(prepared.plan(config))
    warm_up(entrant, bench.clock, rounds=1)
    return time_interleaved({"call": entrant}, bench.clock, 20)["call"].median


def _report(call: Call, predicted: Prediction, milliseconds: float | None) -> dict[str, Any]:
    return {
        "call": call.describe(),
        "kernels": [
            {
                "kernel": " ".join([bound.launch.name, *_side(bound.launch)]),
                "bound_by": bound.pipe,
                "rate": bound.rate,
                "roof": bound.roof,
                "counted": bound.counted,
                "milliseconds": 1e3 * bound.seconds,
                "shares": {pipe: bound.shares.get(pipe, 0.0) for pipe in _SHARES},
            }
            for bound in predicted.bounds
        ],
        "others": list(predicted.others),
        "predicted_ms": 1e3 * predicted.seconds,
        "measured_ms": milliseconds,
    }


def _side(launch: Any) -> list[str]:
    """The side of the scores that a kernel of the backward pass works on."""
    return [launch.config.side] if hasattr(launch.config, "side") else []


def _show(row: dict[str, Any]) -> None:
    if not row["kernels"]:
        print(f"{row['call']}: the problem is empty, nothing is launched")
        return
    print(f"{row['call']}; {row['kernels'][0]['counted']} a clock of a multiprocessor")
    shown = table("kernel", "bound by", *_SHARES, "rate", "roof", "ms")
    for column in shown.columns[2:]:
        column.justify = "right"
    for each in row["kernels"]:
        shares = (f"{each['shares'][pipe]:.0%}" for pipe in _SHARES)
        figures = (f"{each[name]:.4g}" for name in ("rate", "roof", "milliseconds"))
        shown.add_row(each["kernel"], each["bound_by"], *shares, *figures)
    print_table(shown)
    if row["others"]:
        print(f"besides, by launches and bytes: {', '.join(row['others'])}")
    beside = "" if row["measured_ms"] is None else f"; measured: {row['measured_ms']:.4g} ms"
    print(f"predicted time: {row['predicted_ms']:.4g} ms{beside}")
