"""`cuevo plan`: what a call launches on an architecture, without a GPU."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from cuevo.cli.arguments.problem import DEFAULT_ARCH, OPERATIONS, add_problem_options, read_call
from cuevo.cli.arguments.usage import (
    EXIT_OK,
    Subparsers,
    add_command,
    add_json_option,
    print_json,
    print_table,
    table,
)
from cuevo.cli.assemble import occupancy
from cuevo.cli.kernels import architecture_name

if TYPE_CHECKING:
    from cuevo.architectures import Architecture
    from cuevo.ops.plan import Launch, Plan

_DETAILS = """\
examples:
  cuevo plan attention --problem 1,128,8,256,32 --mask f32 --pair own --arch sm_90
  cuevo plan attention --problem 1,128,8,256,300,32 --set block_queries=64
  cuevo plan attention_backward --problem 1,128,8,256,32 --pair f32 --json | jq '.launches[].kernel'
  cuevo plan gemm --problem 4096,4096,4096 --dtype f16
  cuevo plan attention --problem 1,128,8,256,128 --arch sm_86 --rejected
  cuevo plan gemm --problem 1000,1000,1000 --arch sm_90 --device "NVIDIA H200"

A problem of attention is B,N,H,L,D or B,N,H,Lq,Lk,D; one of gemm M,N,K or BATCH,M,N,K. The arrays
are contiguous. The launches are those of a call on such arrays on a device of the architecture, in
their order: the same checks, choice, packing and spill fallbacks. Nothing is launched. With
--rejected there is besides, for every variant, how many configurations are to choose from, and what
the others are rejected for, each with what it has other than the rest.
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
    add("--device", default="", metavar="NAME", help="take what was tuned on devices of that name")
    add("--predict", action="store_true", help="tell the time that `cuevo roofline` predicts")
    add("--rejected", action="store_true", help="tell of candidates that cannot run, and why")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    from cuevo.executors import architecture_of
    from cuevo.executors.assembling import assembling
    from cuevo.ops.dispatch import passed_over
    from cuevo.ops.plan import Plan

    place = assembling(arguments.arch, arguments.device)
    arch = architecture_of(place)
    call = read_call(arguments, arguments.operation)
    plan = call.plan(place)
    _note_device(arguments.device)
    launches = [_report(launch) for launch in plan.every_launch]
    above: dict[str, list[str]] = {}
    seconds = _predicted(plan, arch) if arguments.predict else None
    estimated = plan.chosen_by == Plan.chosen_by
    for variants, problem in call.choices if launches and estimated else ():
        above |= passed_over(variants, problem, arch)
    candidates = [
        _candidates(variant, problem, arch)
        for variants, problem in (call.choices if launches and arguments.rejected else ())
        for variant in variants
    ]
    if arguments.json:
        report = {"arch": arguments.arch, "workspace_bytes": plan.workspace_bytes}
        report["chosen_by"] = plan.chosen_by
        report |= {} if seconds is None else {"predicted_ms": 1e3 * seconds}
        report |= {"launches": launches, "passed_over": above}
        print_json({**report, "candidates": candidates} if arguments.rejected else report)
        return EXIT_OK
    if not launches:
        print("the problem is empty: nothing is launched")
        return EXIT_OK
    shown = table(*_COLUMNS.values())
    shown.columns[0].no_wrap = True
    for column in shown.columns[1:-1]:
        column.justify = "right"
    for each in launches:
        shown.add_row(*("-" if each[key] is None else str(each[key]) for key in _COLUMNS))
    print_table(shown)
    print(f"workspace: {plan.workspace_bytes:,} bytes")
    print(f"chosen by {plan.chosen_by}")
    if seconds is not None:
        print(f"predicted time: {1e3 * seconds:.4g} ms")
    for each in launches:
        print(f"{each['kernel']}: {' '.join(f'{k}={v}' for k, v in each['config'].items())}")
    for name, reasons in above.items():
        print(f"not {name}: {'; '.join(reasons)}")
    for of_variant in candidates:
        side = f" ({of_variant['side']})" if "side" in of_variant else ""
        print(f"{of_variant['kernel']}{side}: {of_variant['able']} of {of_variant['of']} can run")
        for reason, configs in of_variant["rejected"].items():
            print(f"  {len(configs)} cannot: {reason}")
            for config in configs if len(configs) < of_variant["of"] else ():
                print(f"    {' '.join(f'{name}={value}' for name, value in config.items())}")
    return EXIT_OK


def _note_device(name: str) -> None:
    """Say where entries of the device that --device names are in no table."""
    from cuevo.ops.tuning.tuned import devices

    if name and name not in (known := devices()):
        listed = ", ".join(known) or "none"
        print(f"no tuned table has entries of {name!r}; it has of: {listed}", file=sys.stderr)


def _predicted(plan: Plan, arch: Architecture) -> float:
    from cuevo.ops.roofline.model import predict

    return predict(plan, arch).seconds


def _candidates(variant: Any, problem: Any, arch: Architecture) -> dict[str, Any]:
    """What a variant has to choose from, for a report; of configurations what they differ in."""
    from cuevo.ops.dispatch import rejections

    able, rejected = rejections(variant, problem, arch)
    offered = [*dict.fromkeys([*able, *(config for each in rejected.values() for config in each)])]
    names = vars(offered[0]) if offered else ()
    differing = [name for name in names if len({vars(x)[name] for x in offered}) > 1]
    told = {
        reason: [{name: vars(config)[name] for name in differing} for config in configs]
        for reason, configs in rejected.items()
    }
    side = {"side": problem.side} if hasattr(problem, "side") else {}
    counts = {"able": len(able), "of": len(offered)}
    return {"kernel": variant.NAME, **side, **counts, "rejected": told}


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
