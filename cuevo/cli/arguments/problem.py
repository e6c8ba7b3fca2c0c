"""Problems on the command line: the call that a problem makes, and the kernels that it launches."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cuevo.cli.arguments.files import is_file
from cuevo.cli.arguments.settings import field_types, read_fields, split_settings
from cuevo.cli.arguments.usage import UsageError, unknown

if TYPE_CHECKING:
    from cuevo.arrays import ArrayView
    from cuevo.executors import Executor
    from cuevo.ops.operation import Operation
    from cuevo.ops.plan import Launch, Plan

DEFAULT_ARCH = "sm_90"
_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "bool": "bool"}
_SHAPES = {
    "attention": ("B,N,H,L,D or B,N,H,Lq,Lk,D", (5, 6)),
    "attention_backward": ("B,N,H,L,D or B,N,H,Lq,Lk,D", (5, 6)),
    "gemm": ("M,N,K or BATCH,M,N,K", (3, 4)),
}
OPERATIONS = tuple(_SHAPES)


def add_problem_options(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """The options that say what a call is given."""
    add = parser.add_argument
    whose = "" if required else "take the kernels that a call of these sizes launches: "
    sizes = f"{whose}B,N,H,L,D; M,N,K for gemm"
    add("--problem", required=required, metavar="SIZES", help=sizes)
    add("--dtype", choices=("f16", "bf16"), help="of the problem's operands (bf16)")
    add("--mask", choices=("none", "bool", "own", "f32"), help="type of mask_bias (none)")
    add("--pair", choices=("none", "own", "f32"), help="type of pair_bias (none)")


def add_launch_number(parser: argparse.ArgumentParser) -> None:
    """The option that picks one of the kernels that a call launches."""
    parser.add_argument(
        "--launch", type=int, metavar="N", help="the Nth alone of the kernels that --problem gives"
    )


def is_problem(arguments: argparse.Namespace) -> bool:
    """Whether the command line has a problem; UsageError where it has something of one alone, or
    one for a file.
    """
    if arguments.problem is not None:
        if is_file(arguments):
            raise UsageError("--problem is for cuevo's operations and kernels, not for a file.")
        return True
    for name in ("dtype", "mask", "pair", "launch"):
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name} is for a problem: give --problem.")
    if arguments.kernel in OPERATIONS:
        form, _ = _SHAPES[arguments.kernel]
        raise UsageError(f"{arguments.kernel} is an operation: give --problem {form}.")
    return False


def launches_of_problem(arguments: argparse.Namespace, arch_name: str) -> list[Launch]:
    """The launches of the call that the command line tells of, in their order and each instance of
    a kernel once: those of the operation named, or of the kernel named in the first operation that
    launches it; one, with ``--launch``.

    Raises UsageError where the call launches none, and ValueError for what it refuses itself.
    """
    _, plan = call_of_problem(arguments, arch_name)
    found = _launches_of(arguments.kernel, plan)
    found = [*{launch.kernel.kernel.describe(): launch for launch in found}.values()]
    if arguments.launch is None:
        return found
    if not 1 <= arguments.launch <= len(found):
        raise UsageError(
            f"--launch: there are {len(found)} to choose from; got {arguments.launch}."
        )
    return [found[arguments.launch - 1]]


def call_of_problem(arguments: argparse.Namespace, arch_name: str) -> tuple[Call, Plan]:
    """The call that `launches_of_problem` has the launches of, and its plan; with its errors."""
    from cuevo.executors.assembling import assembling

    place = assembling(arch_name)
    others: dict[str, None] = {}
    for call in _calls(arguments):
        plan = call.plan(place)
        if _launches_of(arguments.kernel, plan):
            return call, plan
        others |= dict.fromkeys(x.kernel.kernel.name for x in plan.every_launch)
    launched = ", ".join(others) or "nothing"
    raise UsageError(f"{arguments.kernel}: that problem launches {launched} on {arch_name}.")


def _launches_of(named: str, plan: Plan) -> list[Launch]:
    """Those of a kernel, or all where an operation is named."""
    return [x for x in plan.every_launch if named in (*OPERATIONS, x.kernel.kernel.name)]


def _calls(arguments: argparse.Namespace) -> Iterator[Call]:
    """The call of the operation named; of a kernel named, that of the operation that has it for a
    variant, or else of every one that has problems of that many sizes.
    """
    from cuevo.kernels import registry

    named = arguments.kernel
    if named not in (*OPERATIONS, *registry()):
        raise unknown("operation or kernel", named, (*OPERATIONS, *registry()))
    for operation in OPERATIONS:
        if named in (operation, *(variant.NAME for variant in _variants(operation))):
            yield read_call(arguments, operation)
            return
    count = arguments.problem.count(",") + 1
    fitting = [operation for operation, (_, counts) in _SHAPES.items() if count in counts]
    for operation in fitting or OPERATIONS:
        yield read_call(arguments, operation)


def _variants(operation: str) -> Sequence[Any]:
    """Those that an operation dispatches to, the highest first."""
    from cuevo.ops import backward, forward, product

    variants = (forward.VARIANTS, backward.VARIANTS, product.VARIANTS)
    return dict(zip(OPERATIONS, variants, strict=True))[operation]


def _sizes(operation: str, text: str) -> list[int]:
    form, counts = _SHAPES[operation]
    if not re.fullmatch(r"\d+(,\d+)*", text) or text.count(",") + 1 not in counts:
        raise UsageError(f"--problem: a problem of {operation} is {form}, not {text!r}.")
    return [*map(int, text.split(","))]


# -- A call on arrays that are nowhere -------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """A call of an operation, on arrays that are nowhere."""

    operation: Operation
    arrays: tuple[Any, ...]
    options: tuple[object, ...]
    config: object
    choices: tuple[tuple[Sequence[Any], object], ...]
    """Variants and problem of each choice that the call makes."""

    def plan(self, place: Executor) -> Plan:
        return self.operation.plan_on_device(self.arrays, self.options, place, self.config)


def read_call(arguments: argparse.Namespace, operation: str) -> Call:
    """The call of `operation` that the options of a problem tell of; `settings` differ from what
    is chosen.
    """
    sizes = _sizes(operation, arguments.problem)
    kinds: dict[str, Any] = {}
    for variant in reversed(_variants(operation)):
        kinds |= field_types(variant.Config)
    config = read_fields(kinds, split_settings(arguments.settings)) or None
    dtype = arguments.dtype or "bf16"
    mask, pair = (None if x == "none" else x for x in (arguments.mask, arguments.pair))
    if operation == "gemm":
        if mask or pair:
            raise UsageError("--mask and --pair are of attention; gemm has none.")
        return _product(dtype, sizes, config)
    return _attention(operation, sizes, dtype, mask, pair, config)


def _product(dtype: str, sizes: Sequence[int], config: object) -> Call:
    from cuevo.ops.gemm_problem import check_operands, state_problem
    from cuevo.ops.product import OPERATION, VARIANTS

    *batch, m, n, k = sizes
    a, b = _arrays([(*batch, m, k), (*batch, k, n)], [dtype] * 2)
    problem = state_problem(check_operands(a, b))
    arrays = (a, b, None, None, None, None)
    options = (1.0, 0.0, False, False, None)
    return Call(OPERATION, arrays, options, config, ((VARIANTS, problem),))


def _attention(
    operation: str,
    sizes: Sequence[int],
    own: str,
    mask_type: str | None,
    pair_type: str | None,
    config: object,
) -> Call:
    from cuevo.kernels.backward import Problem as Side
    from cuevo.ops import backward, forward
    from cuevo.ops.attention_problem import state_problem

    batch, rows, heads, queries, keys, dim = sizes if len(sizes) == 6 else (*sizes[:4], *sizes[3:])
    of_queries, of_keys = ((batch, rows, x, heads, dim) for x in (queries, keys))
    q, k, v = _arrays([of_queries, of_keys, of_keys], [own] * 3)
    mask = _bias(mask_type, own, (batch, rows, 1, 1, keys))
    pair = _bias(pair_type, own, (batch, 1, heads, queries, keys))
    problem = state_problem(q, k, v, mask, pair).with_scale(dim**-0.5)
    if operation == "attention":
        arrays = (q, k, v, mask, pair, None, None)
        choices = ((forward.VARIANTS, problem),)
        return Call(forward.OPERATION, arrays, (None, False, None), config, choices)
    shapes = [of_queries, of_queries, (batch, rows, heads, queries)]
    dout, out, lse = _arrays(shapes, [own, own, "f32"])
    results = (None,) * len(backward.GRADS)
    asked: tuple[dict[str, Any], ...] = (
        dict(side="queries", first=True, second=False, sums=pair is not None),
        dict(side="keys", first=True, second=True, sums=mask_type not in (None, "bool")),
    )
    return Call(
        backward.OPERATION,
        (dout, q, k, v, out, lse, mask, pair, *results),
        (None, backward.GRADS, None, None),
        None if config is None else {"keys": config, "queries": config},
        tuple((backward.VARIANTS, Side(**vars(problem), **each)) for each in asked),
    )


def _bias(kind: str | None, own: str, shape: tuple[int, ...]) -> ArrayView | None:
    return None if kind is None else _arrays([shape], [own if kind == "own" else kind])[0]


def _arrays(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> list[ArrayView]:
    """Contiguous arrays at addresses that nothing is at."""
    from cuevo.arrays import array_from_pointer

    return [
        array_from_pointer(1 << 40, shape, _DTYPES[dtype], device="cpu")
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
