"""`cuevo kernels`, `cuevo render`: the kernels and their texts."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuevo.cli.arguments.files import add_file_options, is_file, read_file
from cuevo.cli.arguments.problem import (
    DEFAULT_ARCH,
    add_launch_number,
    add_problem_options,
    is_problem,
    launches_of_problem,
)
from cuevo.cli.arguments.settings import configuration, describe_fields, split_settings
from cuevo.cli.arguments.usage import (
    EXIT_OK,
    Subparsers,
    UsageError,
    add_command,
    add_json_option,
    print_json,
    print_table,
    table,
    unknown,
)

if TYPE_CHECKING:
    from cuevo.toolchain.lineinfo import LocatedText
    from cuevo.toolchain.template import RenderedKernel

_SET_HELP = (
    "a kernel parameter (`cuevo kernels` lists them), or what a template is given; may be given "
    "several times"
)

_KERNELS_DETAILS = """\
examples:
  cuevo kernels
  cuevo kernels --json | jq '.[].name'

A parameter without a default must be given to render and assemble with --set.
"""

_RENDER_DETAILS = """\
examples:
  cuevo render evoformer_forward_sm80 --set head_dim=32
  cuevo render evoformer_forward_sm80 --set head_dim=32 --set stages=4 --output forward.ptx
  cuevo render evoformer_forward_sm80 --set head_dim=32 --origin | less
  cuevo render gemm --problem 4096,4096,4096 --arch sm_80
  cuevo render my/softmax.ptx --set columns=1000 --directory my/macros

The text is what the CPU executor gets. With --loc it has the line information that the assembler
gets besides, .loc and .file directives; with --origin every line is preceded by the file and line
under ptx/ that it was written in.
"""


def add_commands(subparsers: Subparsers) -> None:
    kernels = add_command(
        subparsers,
        "kernels",
        "List the kernels and their parameters.",
        _KERNELS_DETAILS,
        run_kernels,
    )
    add_json_option(kernels)

    render = add_command(subparsers, "render", "Print a kernel's PTX.", _RENDER_DETAILS, run_render)
    add_kernel_options(render)
    render.add_argument(
        "--arch",
        type=architecture_name,
        metavar="SM",
        help="refuse what cannot run on it (default: the kernel's lowest)",
    )
    render.add_argument(
        "--origin", action="store_true", help="precede each line by its ptx/FILE:LINE"
    )
    render.add_argument(
        "--loc", action="store_true", help="add the .loc and .file directives that are assembled"
    )
    render.add_argument("--output", type=Path, metavar="FILE", help="write to FILE instead")


def add_kernel_options(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument(
        "kernel",
        nargs=None if required else "?",
        metavar="KERNEL",
        help="a name that `cuevo kernels` lists, or a PTX file; with --problem an operation, too",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help=_SET_HELP,
    )
    add_problem_options(parser)
    add_launch_number(parser)
    add_file_options(parser)


def architecture_name(text: str) -> str:
    """`sm_80`, `sm80`, `80` or `8.0` as `sm_80`; an error for what does not exist."""
    from cuevo.architectures import check_exists

    match = re.fullmatch(r"(?:sm_?)?(\d+)\.?(\d)(a?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no architecture; write sm_80, sm_90a, ...")
    name = f"sm_{match[1]}{match[2]}{match[3]}"
    try:
        check_exists(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name


def kernel_module(name: str) -> Any:
    """The host half of the kernel `name`; UsageError when there is none."""
    from cuevo.kernels import registry

    modules = registry()
    if name not in modules:
        raise unknown("kernel", name, modules)
    return modules[name]


def kernel_defaults(module: Any) -> Mapping[str, object]:
    """Fields of a kernel's Config that have another default than its class says."""
    defaults: Mapping[str, object] = getattr(module, "DEFAULTS", {})
    return defaults


def configure_kernel(module: Any, words: list[str], architectures: Sequence[str]) -> Any:
    """Configuration of a kernel: `words` (`["head_dim=32"]`), defaults elsewhere.

    Raises:
        UsageError: settings that are none of the kernel's.
        ValueError: a configuration that cannot run on one of the architectures; says why.
    """
    from cuevo.architectures import architecture

    config = configuration(module.Config, split_settings(words), kernel_defaults(module))
    for arch in architectures:
        reasons = module.violations(config, architecture(arch))
        if reasons:
            raise ValueError(f"{config} cannot run on {arch}: {'; '.join(reasons)}.")
    return config


def render_kernel(
    module: Any, words: list[str], architectures: Sequence[str]
) -> tuple[Any, RenderedKernel]:
    """Configuration and text of a kernel; arguments and errors as of `configure_kernel`."""
    from cuevo.toolchain.template import render

    config = configure_kernel(module, words, architectures)
    return config, render(module.NAME, module.values(config))


def run_kernels(arguments: argparse.Namespace) -> int:
    from cuevo.kernels import registry

    listed = [
        {
            "name": name,
            "summary": module.SUMMARY,
            "lowest_arch": lowest_architecture(module),
            "parameters": describe_fields(module.Config, kernel_defaults(module)),
        }
        for name, module in sorted(registry().items())
    ]
    if arguments.json:
        print_json(listed)
        return EXIT_OK
    for kernel in listed:
        later = "" if kernel["lowest_arch"].endswith("a") else " and later"
        print(f"{kernel['name']}, {kernel['lowest_arch']}{later}: {kernel['summary']}")
        shown = table("parameter", "takes", "default", "meaning")
        for entry in kernel["parameters"]:
            default = "required" if "required" in entry else str(entry.get("default", ""))
            shown.add_row(entry["name"], entry["type"], default, entry["meaning"])
        print_table(shown)
        print()
    return EXIT_OK


def lowest_architecture(module: Any, least: int = 0) -> str:
    """The lowest architecture that a kernel runs on, from sm_`least` on, or the only one."""
    only: str | None = getattr(module, "ARCH", None)
    return only or f"sm_{max(module.MINIMUM_ARCH, least)}"


def run_render(arguments: argparse.Namespace) -> int:
    if is_problem(arguments):
        rendered = _only_launch(arguments)
        print(rendered.describe(), file=sys.stderr)
    elif is_file(arguments):
        if arguments.arch:
            raise UsageError("--arch is for a kernel by its name; a file has its .target.")
        rendered = read_file(arguments)
    else:
        module = kernel_module(arguments.kernel)
        arch = arguments.arch or lowest_architecture(module)
        _, rendered = render_kernel(module, arguments.settings, [arch])
    shown = rendered.located if arguments.loc else rendered
    text = with_origins(shown) if arguments.origin else shown.text
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return EXIT_OK


def _only_launch(arguments: argparse.Namespace) -> RenderedKernel:
    kernels = [
        launch.kernel.kernel
        for launch in launches_of_problem(arguments, arguments.arch or DEFAULT_ARCH)
    ]
    if len(kernels) > 1:
        listed = "\n".join(f"  {n}: {kernel.describe()}" for n, kernel in enumerate(kernels, 1))
        raise UsageError(f"there are several kernels: give --launch N.\n{listed}")
    only: RenderedKernel = kernels[0]
    return only


def with_origins(rendered: RenderedKernel | LocatedText) -> str:
    """The kernel's text, every line preceded by the place in ptx/ that it comes from."""
    lines = rendered.text.splitlines()
    places = []
    for number in range(1, len(lines) + 1):
        origin = rendered.origin(number)
        places.append(f"{origin.file}:{origin.line}" if origin else "")
    width = max(map(len, places), default=0)
    pairs = zip(places, lines, strict=True)
    return "".join(f"{place:<{width}}  {line}".rstrip() + "\n" for place, line in pairs)
