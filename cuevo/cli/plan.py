"""`cuevo plan`: what a call launches on an architecture, without a GPU."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cuevo.cli.assemble import occupancy
from cuevo.cli.kernels import architecture_name
from cuevo.cli.problem import DEFAULT_ARCH, OPERATIONS, add_problem_options, assembling, read_call
from cuevo.cli.usage import (
    EXIT_OK,
    Subparsers,
    add_command,
    add_json_option,
    print_json,
    print_table,
    table,
)

if TYPE_CHECKING:
    from cuevo.ops.plan import Launch

_DETAILS = """\
examples:
  cuevo plan attention --problem 1,128,8,256,32 --mask f32 --pair own --arch sm_90
  cuevo plan attention --problem 1,128,8,256,300,32 --set block_queries=64
  cuevo plan attention_backward --problem 1,128,8,256,32 --pair f32 --json | jq '.launches[].kernel'
  cuevo plan gemm --problem 4096,4096,4096 --dtype f16

A problem of attention is B,N,H,L,D or B,N,H,Lq,Lk,D; one of gemm M,N,K or BATCH,M,N,K. The arrays
are contiguous. The launches are those of a call on such arrays on a device of the architecture, in
their order: the same checks, choice, packing and spill fallbacks. Nothing is launched.
"""

_COLUMNS = {
    "kernel": "kernel",
    "blocks": "blocks",
    "threads": "threads",
    "dynamic_shared": "shared",
    "registers": "registers",
    "spill_bytes": "spills",
    "resident_blocks": "resident",
    "resident_warps": "warps",
    "limited_by": "limited by",
}
"""Headings of the table, by the facts of a launch."""


def add_commands(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers, "plan", "Show what a call launches on an architecture.", _DETAILS, run
    )
    add = parser.add_argument
    add("operation", choices=OPERATIONS, metavar="OPERATION", help=", ".join(OPERATIONS))
    add_problem_options(parser, required=True)
    add("--arch", type=architecture_name, default=DEFAULT_ARCH, metavar="SM", help="(%(default)s)")
    add(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help="a field of the configuration that is to differ from the one chosen; may be repeated",
    )
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    from cuevo.architectures import architecture
    from cuevo.ops.dispatch import passed_over

    arch = architecture(architecture(arguments.arch).specific_name)
    call = read_call(arguments, arguments.operation)
    plan = call.plan(assembling(arch))
    launches = [_report(launch) for launch in (*plan.launches, *plan.beside, *plan.after)]
    above: dict[str, list[str]] = {}
    for variants, problem in call.choices if launches and not arguments.settings else ():
        above |= passed_over(variants, problem, arch)
    if arguments.json:
        report = {"arch": arguments.arch, "workspace_bytes": plan.workspace_bytes}
        print_json({**report, "launches": launches, "passed_over": above})
        return EXIT_OK
    if not launches:
        print("the problem is empty: nothing is launched")
        return EXIT_OK
    shown = table(*_COLUMNS.values())
    for column in shown.columns[1:-1]:
        column.justify = "right"
    for each in launches:
        shown.add_row(*("-" if each[key] is None else str(each[key]) for key in _COLUMNS))
    print_table(shown)
    print(f"workspace: {plan.workspace_bytes:,} bytes")
    for each in launches:
        print(f"{each['kernel']}: {' '.join(f'{k}={v}' for k, v in each['config'].items())}")
    for name, reasons in above.items():
        print(f"not {name}: {'; '.join(reasons)}")
    return EXIT_OK


def _report(launch: Launch) -> dict[str, Any]:
    grid, (threads, _, _), shared = launch.shape
    kernel, cubin = launch.kernel.kernel, launch.kernel.cubin
    taken = cubin and cubin.resources
    return {
        "kernel": kernel.name,
        "blocks": grid[0] * grid[1] * grid[2],
        "threads": threads,
        "dynamic_shared": shared,
        "registers": taken and taken.registers,
        "spill_bytes": taken and taken.spill_stores + taken.spill_loads,
        **occupancy(cubin, threads, shared),
        "config": vars(launch.config),
    }
