"""`cuevo plan`: what a call launches on an architecture, without a GPU."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuevo.cli.files import read_values
from cuevo.cli.kernels import architecture_name, occupancy
from cuevo.cli.usage import (
    EXIT_OK,
    Subparsers,
    UsageError,
    add_command,
    add_json_option,
    print_json,
    print_table,
    table,
)

if TYPE_CHECKING:
    from cuevo.architectures import Architecture
    from cuevo.arrays import ArrayView
    from cuevo.executors import Executor
    from cuevo.ops.operation import Operation
    from cuevo.ops.plan import Launch, Plan
    from cuevo.toolchain.assembler import Cubin
    from cuevo.toolchain.template import RenderedKernel

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
_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "bool": "bool"}
_SHAPES = {
    "attention": ("B,N,H,L,D or B,N,H,Lq,Lk,D", (5, 6)),
    "attention_backward": ("B,N,H,L,D or B,N,H,Lq,Lk,D", (5, 6)),
    "gemm": ("M,N,K or BATCH,M,N,K", (3, 4)),
}


def add_commands(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers, "plan", "Show what a call launches on an architecture.", _DETAILS, run
    )
    add = parser.add_argument
    add("operation", choices=_SHAPES, metavar="OPERATION", help=", ".join(_SHAPES))
    add("--problem", required=True, metavar="SIZES", help="B,N,H,L,D; M,N,K for gemm")
    add("--dtype", choices=("f16", "bf16"), default="bf16", help="of the operands (bf16)")
    add("--mask", choices=("none", "bool", "own", "f32"), default="none", help="type of mask_bias")
    add("--pair", choices=("none", "own", "f32"), default="none", help="type of pair_bias")
    add("--arch", type=architecture_name, default="sm_90", metavar="SM", help="(sm_90)")
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
    call = _call(arguments)
    plan = call.plan(_assembling(arch))
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


def _sizes(operation: str, text: str) -> list[int]:
    form, counts = _SHAPES[operation]
    if not re.fullmatch(r"\d+(,\d+)*", text) or text.count(",") + 1 not in counts:
        raise UsageError(f"--problem: a problem of {operation} is {form}, not {text!r}.")
    return [*map(int, text.split(","))]


# -- A call on arrays that are nowhere -------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    operation: Operation
    arrays: tuple[Any, ...]
    options: tuple[object, ...]
    config: object
    choices: tuple[tuple[Sequence[Any], object], ...]
    """Variants and problem of each choice that the call makes."""

    def plan(self, place: Executor) -> Plan:
        return self.operation.plan_on_device(self.arrays, self.options, place, self.config)


def _call(arguments: argparse.Namespace) -> _Call:
    sizes = _sizes(arguments.operation, arguments.problem)
    config = read_values(arguments.settings) or None
    if arguments.operation == "gemm":
        return _product(arguments, sizes, config)
    return _attention(arguments, sizes, config)


def _product(arguments: argparse.Namespace, sizes: Sequence[int], config: object) -> _Call:
    from cuevo.ops.gemm_problem import check_operands, state_problem
    from cuevo.ops.product import OPERATION, VARIANTS

    if arguments.mask != "none" or arguments.pair != "none":
        raise UsageError("--mask and --pair are of attention; gemm has none.")
    *batch, m, n, k = sizes
    a, b = _arrays([(*batch, m, k), (*batch, k, n)], [arguments.dtype] * 2)
    problem = state_problem(check_operands(a, b))
    arrays = (a, b, None, None, None, None)
    options = (1.0, 0.0, False, False, None)
    return _Call(OPERATION, arrays, options, config, ((VARIANTS, problem),))


def _attention(arguments: argparse.Namespace, sizes: Sequence[int], config: object) -> _Call:
    from cuevo.kernels.backward import Problem as Side
    from cuevo.ops import backward, forward
    from cuevo.ops.attention_problem import state_problem

    batch, rows, heads, queries, keys, dim = sizes if len(sizes) == 6 else (*sizes[:4], *sizes[3:])
    own = arguments.dtype
    of_queries, of_keys = ((batch, rows, x, heads, dim) for x in (queries, keys))
    q, k, v = _arrays([of_queries, of_keys, of_keys], [own] * 3)
    mask = _bias(arguments.mask, own, (batch, rows, 1, 1, keys))
    pair = _bias(arguments.pair, own, (batch, 1, heads, queries, keys))
    problem = state_problem(q, k, v, mask, pair)
    if arguments.operation == "attention":
        arrays = (q, k, v, mask, pair, None, None)
        choices = ((forward.VARIANTS, problem),)
        return _Call(forward.OPERATION, arrays, (None, False, None), config, choices)
    shapes = [of_queries, of_queries, (batch, rows, heads, queries)]
    dout, out, lse = _arrays(shapes, [own, own, "f32"])
    results = (None,) * len(backward.GRADS)
    asked: tuple[dict[str, Any], ...] = (
        dict(side="queries", first=True, second=False, sums=pair is not None),
        dict(side="keys", first=True, second=True, sums=arguments.mask not in ("none", "bool")),
    )
    return _Call(
        backward.OPERATION,
        (dout, q, k, v, out, lse, mask, pair, *results),
        (None, backward.GRADS, None, None),
        None if config is None else {"keys": config, "queries": config},
        tuple((backward.VARIANTS, Side(**vars(problem), **each)) for each in asked),
    )


def _bias(kind: str, own: str, shape: tuple[int, ...]) -> ArrayView | None:
    return None if kind == "none" else _arrays([shape], [own if kind == "own" else kind])[0]


def _arrays(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> list[ArrayView]:
    """Contiguous arrays at addresses that nothing is at."""
    from cuevo.arrays import array_from_pointer

    return [
        array_from_pointer(1 << 40, shape, _DTYPES[dtype], device="cpu")
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]


@dataclass(frozen=True)
class _Assembled:
    """A kernel that is never launched."""

    kernel: RenderedKernel
    cubin: Cubin | None
    """None for an architecture that the assembler does not know."""

    @property
    def spills(self) -> bool:
        taken = self.cubin and self.cubin.resources
        return bool(taken and taken.spill_stores + taken.spill_loads)


def _assembling(arch: Architecture) -> Executor:
    """A place whose kernels are assembled, and are not to be launched."""
    from cuevo.sim import SimExecutor
    from cuevo.toolchain.assembler import LOWEST_ARCH, assemble, target_for

    class Assembling(SimExecutor):
        def load(self, kernel: Any) -> Any:
            if arch.number < LOWEST_ARCH:
                return _Assembled(kernel, None)
            return _Assembled(kernel, assemble(kernel, target_for(kernel, f"sm_{arch.number}")))

    return Assembling(arch.name)


def _report(launch: Launch) -> dict[str, Any]:
    grid, (threads, _, _), shared = launch.shape
    kernel, cubin = launch.kernel.kernel, launch.kernel.cubin
    taken = cubin and cubin.resources
    values: Mapping[str, Any] = kernel.values
    config = values.get("config")
    return {
        "kernel": kernel.name,
        "blocks": grid[0] * grid[1] * grid[2],
        "threads": threads,
        "dynamic_shared": shared,
        "registers": taken and taken.registers,
        "spill_bytes": taken and taken.spill_stores + taken.spill_loads,
        **occupancy(cubin, threads, shared),
        "config": vars(config) if config is not None else dict(values),
    }
