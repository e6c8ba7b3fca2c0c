"""`cuevo assemble`: kernels as machine code, and the resources that they take."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuevo.cli.arguments.files import add_block_options, is_file, read_file, threads_of
from cuevo.cli.arguments.problem import DEFAULT_ARCH, is_problem, launches_of_problem
from cuevo.cli.arguments.usage import (
    EXIT_OK,
    Subparsers,
    UsageError,
    add_command,
    add_json_option,
    print_json,
    print_table,
    table,
)
from cuevo.cli.kernels import (
    add_kernel_options,
    architecture_name,
    kernel_module,
    lowest_architecture,
    render_kernel,
)

if TYPE_CHECKING:
    from cuevo.toolchain.assembler import Cubin
    from cuevo.toolchain.template import RenderedKernel

_DETAILS = """\
examples:
  cuevo assemble evoformer_forward_sm80 --set head_dim=32
  cuevo assemble evoformer_forward_sm80 --set head_dim=32 --arch sm_80 --arch sm_90
  cuevo assemble evoformer_forward_sm80 --set head_dim=32 --output forward.cubin
  cuevo assemble evoformer_forward_sm80 --set head_dim=32 --json | jq '.[].registers'
  cuevo assemble attention_backward --problem 1,128,8,256,32 --pair f32 --arch sm_80 --arch sm_90
  cuevo assemble my/softmax.ptx --arch sm_90 --threads 256

Needs neither a GPU nor a driver. Spills are counted in bytes; a kernel worth shipping has none.
Spills, stack and code size have the functions in them that the kernel calls, as far as the stack
can be known: one that calls itself counts once. The cubin has every entry point of a file.
Resident blocks are those that a multiprocessor holds at a time, and "limited by" what keeps it from
holding more.
"""


def add_commands(subparsers: Subparsers) -> None:
    assemble = add_command(
        subparsers,
        "assemble",
        "Assemble a kernel and report the resources that it takes.",
        _DETAILS,
        run_assemble,
    )
    add_kernel_options(assemble)
    assemble.add_argument(
        "--arch",
        action="append",
        type=architecture_name,
        metavar="SM",
        help="sm_80, sm_90, ... (default: the lowest that kernel and assembler know);"
        " may be given several times",
    )
    add_block_options(assemble)
    assemble.add_argument("--output", type=Path, metavar="FILE", help="write the cubin to FILE")
    assemble.add_argument(
        "--no-cache", action="store_true", help="assemble even what the cache has"
    )
    add_json_option(assemble)


@dataclasses.dataclass(frozen=True)
class Instance:
    """What is assembled."""

    kernel: RenderedKernel
    target: str
    threads: int
    """0 where nobody has said."""
    shared_bytes: int


def instances(arguments: argparse.Namespace) -> Iterator[Instance]:
    """The kernels that the command line names, each for every architecture."""
    from cuevo.architectures import architecture
    from cuevo.toolchain.assembler import LOWEST_ARCH, target_for

    given = list(dict.fromkeys(arguments.arch or ()))
    if is_problem(arguments):
        for arch in given or [DEFAULT_ARCH]:
            for launch in launches_of_problem(arguments, arch):
                kernel, config = launch.kernel.kernel, launch.config
                target = target_for(kernel, arch)
                yield Instance(kernel, target, config.threads, config.shared_bytes)
    elif is_file(arguments):
        from cuevo.executors.own.kernel import native_architecture

        kernel = read_file(arguments)
        own = architecture(native_architecture(kernel.text))
        default = own.name if own.number >= LOWEST_ARCH else f"sm_{LOWEST_ARCH}"
        stated, shared = threads_of(arguments, kernel), arguments.shared or 0
        threads = math.prod(stated) if stated else 0
        for arch in given or [default]:
            yield Instance(kernel, arch, threads, shared)
    else:
        module = kernel_module(arguments.kernel)
        architectures = given or [lowest_architecture(module, LOWEST_ARCH)]
        config, kernel = render_kernel(module, arguments.settings, architectures)
        for arch in architectures:
            yield Instance(kernel, arch, config.threads, config.shared_bytes)


def only_instance(arguments: argparse.Namespace) -> Instance:
    """The kernel that the command line names, for the one architecture that it may name.

    Raises UsageError where there are several.
    """
    given = {**vars(arguments), "arch": [arguments.arch] if arguments.arch else None}
    found = list(instances(argparse.Namespace(**given)))
    if len(found) > 1:
        listed = "\n".join(f"  {n}: {each.kernel.describe()}" for n, each in enumerate(found, 1))
        raise UsageError(f"there are several kernels: give --launch N.\n{listed}")
    return found[0]


def run_assemble(arguments: argparse.Namespace) -> int:
    from cuevo.toolchain.assembler import assemble

    if arguments.output and len(arguments.arch or ()) > 1:
        raise UsageError("--output takes one cubin: give --arch once.")
    found = list(instances(arguments))
    if arguments.output and len(found) > 1:
        raise UsageError(f"--output takes one cubin: give --launch, 1 to {len(found)}.")
    options: dict[str, Any] = {"cache": None} if arguments.no_cache else {}
    reports = []
    for each in found:
        cubin = assemble(each.kernel, each.target, **options)
        if arguments.output:
            arguments.output.write_bytes(cubin.code)
        reports.append(
            {
                "kernel": each.kernel.describe(),
                "arch": cubin.arch,
                "threads": each.threads or None,
                "dynamic_shared": each.shared_bytes,
                **dataclasses.asdict(cubin.resources),
                **occupancy(cubin, each.threads, each.shared_bytes),
                "cubin_bytes": len(cubin.code),
                "assembler": cubin.assembler,
            }
        )
    if arguments.json:
        print_json(reports)
        return EXIT_OK
    for kernel in dict.fromkeys(report["kernel"] for report in reports):
        print(kernel)
        _show_resources([report for report in reports if report["kernel"] == kernel])
    return EXIT_OK


def _show_resources(reports: Sequence[Mapping[str, Any]]) -> None:
    """The table of one kernel, a column for each architecture."""
    shown = table("resource", *(report["arch"] for report in reports))
    for column in shown.columns[1:]:
        column.justify = "right"
    for key in reports[0]:
        if key not in ("kernel", "arch"):
            shown.add_row(key.replace("_", " "), *(str(report[key]) for report in reports))
    print_table(shown)


def occupancy(cubin: Cubin | None, threads: int, shared_bytes: int) -> dict[str, Any]:
    """What a multiprocessor holds at a time, for a report; None for what is not known without
    `threads` or a `cubin`.
    """
    from cuevo.architectures import architecture

    if not threads or cubin is None:
        unknown_for = None if threads else "give --threads"
        return {"resident_blocks": None, "resident_warps": None, "limited_by": unknown_for}
    taken = cubin.resources
    shared = shared_bytes + taken.static_shared
    held = architecture(cubin.arch).occupancy(threads, taken.registers, shared)
    return {
        "resident_blocks": held.blocks,
        "resident_warps": f"{held.warps} of {held.most_warps}",
        "limited_by": held.limit,
    }
