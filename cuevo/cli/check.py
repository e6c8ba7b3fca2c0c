"""`cuevo check`: an instance of a kernel, or the kernel of a file, on the CPU executor, under all
of its checks.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from cuevo.cli.arguments.files import (
    add_launch_options,
    is_file,
    make_arguments,
    read_file,
    threads_of,
)
from cuevo.cli.arguments.problem import (
    DEFAULT_ARCH,
    OPERATIONS,
    call_of_problem,
    is_problem,
    launches_of_problem,
)
from cuevo.cli.arguments.usage import (
    EXIT_FAILED,
    EXIT_OK,
    Subparsers,
    UsageError,
    add_command,
    add_json_option,
    natural,
    print_json,
    print_table,
    table,
)
from cuevo.cli.kernels import (
    add_kernel_options,
    architecture_name,
    configure_kernel,
    kernel_module,
    lowest_architecture,
)

if TYPE_CHECKING:
    from cuevo.check import Report
    from cuevo.sim import Budget, Loop, Profile, Trace

_MOST_SECONDS = 10
"""Estimate of the longest call that is run on its own sizes; in float64 it takes some gigabytes."""

_DETAILS = f"""\
examples:
  cuevo check evoformer_forward_sm80 --set head_dim=32
  cuevo check gemm_sm80 --set stages=5 --arch sm_90 --lines 20
  cuevo check evoformer_forward_sm80 --set head_dim=32 --json | jq '.findings'
  cuevo check gemm_sm80 --trace gemm_sm80.ptx:52 --watch 'a[3,0]' --watch shared:64:16 --thread 5
  cuevo check attention_backward --problem 1,128,8,300,32 --pair f32 --arch sm_80
  cuevo check --watch gemm_sm80
  cuevo check my/softmax.ptx --grid 64 --threads 128 --args 'f32[64,1000]' 'f32[64,1000]=0' 1000

The problem is a small one of random numbers, with several tiles and ragged ends; where that leaves
out instructions, there are others. With --problem the kernels and their configurations are those
that a call of that problem launches; they are checked on small problems all the same, and then the
call itself on its own sizes, if that takes no more than {_MOST_SECONDS} seconds. --json gives a
list of objects, one for each kernel and one for the call. The kernel of a file is launched once,
with the grid, threads and arguments that are given, and its results are compared with nothing.

Errors are what a GPU would not forgive, or would only by chance, and results that differ from
float64. Warnings are of time lost, of guards that never held, and of instructions that never ran.
The exit code is 1 where there is an error. The counts are those of all launches together.
"""


def add_commands(subparsers: Subparsers) -> None:
    check = add_command(
        subparsers,
        "check",
        "Run a kernel on the CPU executor, on a small problem, under all checks.",
        _DETAILS,
        run_check,
    )
    add_kernel_options(check, required=False)
    add_launch_options(check)
    check.add_argument(
        "--arch",
        type=architecture_name,
        metavar="SM",
        help="whose arithmetic and limits (default: the kernel's lowest)",
    )
    check.add_argument(
        "--seed", type=natural, default=0, metavar="N", help="of the random numbers (0)"
    )
    check.add_argument(
        "--lines",
        type=int,
        default=8,
        metavar="COUNT",
        help="how many lines and instructions to count (default: %(default)s)",
    )
    check.add_argument(
        "--most-instructions",
        type=int,
        metavar="COUNT",
        help="of a launch, after which it counts as endless (default: 20 million)",
    )
    check.add_argument(
        "--most-seconds",
        type=float,
        metavar="SECONDS",
        help="of a launch, after which it counts as endless (default: 300)",
    )
    add = check.add_argument
    add(
        "--trace",
        action="append",
        default=[],
        metavar="FILE:LINE",
        help="tell what its registers are each time a thread comes there; may be repeated",
    )
    add(
        "--watch",
        action="append",
        default=[],
        metavar="WHAT",
        help="tell what is written to a register, or who touches k[0,2,5], shared:OFFSET[:BYTES] "
        "or global:ADDRESS[:BYTES]; may be repeated. With a PTX file or a kernel, in place of "
        "KERNEL: check again whenever it is saved, and tell what has changed",
    )
    for name in ("block", "thread"):
        add(
            f"--{name}",
            type=_triple,
            default=(0, 0, 0),
            metavar="X[,Y[,Z]]",
            help=f"the {name} that --trace and --watch are about (0)",
        )
    add_json_option(check)


def _triple(text: str) -> tuple[int, ...]:
    """`3`, `3,1` or `3,1,0` as `(3, 1, 0)`; zeros where nothing is said."""
    if not re.fullmatch(r"\d+(,\d+){0,2}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no place; write X, X,Y or X,Y,Z")
    return (*map(int, text.split(",")), 0, 0)[:3]


def run_check(arguments: argparse.Namespace) -> int:
    from cuevo.check import BUDGET
    from cuevo.sim import Trace

    looping = _kernel_of_watch(arguments)
    given = {"instructions": arguments.most_instructions, "seconds": arguments.most_seconds}
    budget = replace(BUDGET, **{name: most for name, most in given.items() if most is not None})
    trace = None
    if arguments.trace or arguments.watch:
        trace = Trace(
            tuple(arguments.trace),
            tuple(arguments.watch),
            arguments.block,
            arguments.thread,
            write=lambda line: print(line, file=sys.stderr),
        )
    if looping:
        from cuevo.cli.watch import watch

        return watch(arguments, lambda: next(checks(arguments, budget, None)))
    made = []
    for report in chain(reports(arguments, budget, trace), _check_call(arguments, budget)):
        made.append(report)
        if not arguments.json:
            _show(report, arguments.lines)
    if arguments.json:
        listed = [_as_json(report) for report in made]
        print_json(listed if is_problem(arguments) else listed[0])
    return EXIT_OK if all(report.ok for report in made) else EXIT_FAILED


def _kernel_of_watch(arguments: argparse.Namespace) -> bool:
    """Whether one of the things to watch is the kernel, which then is taken from there.

    Raises UsageError where no kernel is named, or options go with one run only.
    """
    from cuevo.kernels import registry

    known = (arguments.kernel, *OPERATIONS, *registry())
    named = [what for what in arguments.watch if what in known or what.endswith(".ptx")]
    if not named:
        if arguments.kernel is None:
            raise UsageError("name a kernel or a PTX file.")
        return False
    kernel = arguments.kernel or named[0]
    if set(named) != {kernel}:
        raise UsageError(f"--watch: one kernel is checked again and again: {kernel}.")
    if arguments.json or arguments.trace or len(arguments.watch) > 1:
        raise UsageError(f"--watch {kernel} goes with no --json, --trace, or other --watch.")
    arguments.kernel, arguments.watch = kernel, []
    return True


def reports(arguments: argparse.Namespace, budget: Budget, trace: Trace | None) -> Iterator[Report]:
    """The check of each kernel that the command line names, when it is asked for."""
    for check in checks(arguments, budget, trace):
        *_, report = check
        yield report


def checks(
    arguments: argparse.Namespace, budget: Budget, trace: Trace | None
) -> Iterator[Iterator[Report]]:
    """The same, with a report after each of a kernel's problems; the last is the whole one."""
    from cuevo.check import check_by_problem
    from cuevo.kernels import registry

    if is_problem(arguments):
        arch = arguments.arch or DEFAULT_ARCH
        for launch in launches_of_problem(arguments, arch):
            module: Any = registry()[launch.kernel.kernel.name]
            runs_on = getattr(module, "ARCH", arch)
            yield check_by_problem(module, launch.config, runs_on, arguments.seed, budget, trace)
    elif is_file(arguments):
        yield iter([_check_file(arguments, budget, trace)])
    else:
        module = kernel_module(arguments.kernel)
        arch = arguments.arch or lowest_architecture(module)
        config = configure_kernel(module, arguments.settings, [arch])
        yield check_by_problem(module, config, arch, arguments.seed, budget, trace)


def _check_call(arguments: argparse.Namespace, budget: Budget) -> Iterator[Report]:
    """The check of the call that the problem is of; nothing, and the reason, where it is too large
    for the CPU executor.
    """
    from cuevo.check import check_call
    from cuevo.kernels import registry
    from cuevo.ops.cpu_time import in_words

    if not is_problem(arguments) or arguments.launch is not None:
        return
    arch = arguments.arch or DEFAULT_ARCH
    call, plan = call_of_problem(arguments, arch)
    if plan.cpu_seconds > _MOST_SECONDS:
        print(
            f"{call.operation.name} itself was not run: {arguments.problem} takes about "
            f"{in_words(plan.cpu_seconds)} on the CPU executor, more than {_MOST_SECONDS} seconds",
            file=sys.stderr,
        )
        return
    modules = (registry()[each.kernel.kernel.name] for each in plan.every_launch)
    runs_on = next((each.ARCH for each in modules if hasattr(each, "ARCH")), arch)
    yield check_call(
        call.operation, call.arrays, call.options, call.config, runs_on, arguments.seed, budget
    )


def _check_file(arguments: argparse.Namespace, budget: Budget, trace: Trace | None) -> Report:
    from cuevo.check import check_launch
    from cuevo.executors.own.kernel import native_architecture

    rendered = read_file(arguments)
    threads = threads_of(arguments, rendered)
    if not threads:
        raise UsageError(f"{rendered.name} does not declare its threads: give --threads.")
    given = make_arguments(arguments.args, rendered, arguments.seed)
    arch = arguments.arch or native_architecture(rendered.text)
    grid, shared = arguments.grid or (1,), arguments.shared or 0
    try:
        return check_launch(rendered, grid, threads, given, shared, arch, budget, trace)
    except TypeError as error:
        raise UsageError(f"--args: {error}") from error


def _as_json(report: Report) -> dict[str, Any]:
    profile = report.profile
    return {
        "kernel": report.kernel,
        "arch": report.arch,
        "ok": report.ok,
        "findings": [asdict(each) for each in report.findings],
        "errors": dict(report.errors),
        "instructions": profile.by_opcode() if profile else None,
        "lines": profile.by_line() if profile else None,
        "banks": [asdict(use) for use in profile.banks] if profile else None,
        "sectors": [asdict(use) for use in profile.sectors] if profile else None,
        "main_loop": _loop_as_json(profile.main_loop) if profile else None,
    }


def _loop_as_json(loop: Loop | None) -> dict[str, Any] | None:
    return None if loop is None else {**vars(loop), "instructions": dict(loop.instructions)}


def _show(report: Report, count: int) -> None:
    print(f"{report.kernel} as {report.arch} runs it")
    for finding in report.findings:
        place = f"{finding.origin}: " if finding.origin else ""
        print(f"{finding.severity}: {place}{finding.message}")
    if not report.findings:
        print("nothing was found")
    for name, error in report.errors.items():
        print(f"{name}: relative error {error:.1e}")
    if report.profile and count > 0:
        _show_profile(report.profile, count)


def _show_profile(profile: Profile, count: int) -> None:
    by_opcode, by_line = profile.by_opcode(), profile.by_line()
    print(f"instructions of warps: {sum(by_opcode.values()):,}")
    for heading, counts in (("instruction", by_opcode), ("line", by_line)):
        shown = table(heading, "warps")
        shown.columns[1].justify = "right"
        for name, number in sorted(counts.items(), key=lambda item: -item[1])[:count]:
            shown.add_row(name, f"{number:,}")
        print_table(shown)
    if loop := profile.main_loop:
        print(f"main loop, {loop.begin} to {loop.end}: {loop.iterations:,} iterations of warps")
        shown = table("instruction", "an iteration")
        shown.columns[1].justify = "right"
        for name, often in list(loop.instructions.items())[:count]:
            shown.add_row(name, f"{often:.4g}")
        print_table(shown)
