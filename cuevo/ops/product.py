"""Matrix products: a call, and the plan that it makes."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from cuevo.arrays import ArrayView
from cuevo.cuda import PrimaryContext
from cuevo.executors import DriverExecutor, executor_for
from cuevo.kernels import gemm_sm70, gemm_sm75, gemm_sm80, gemm_sm90a
from cuevo.kernels.gemm_mma import Config, Problem
from cuevo.ops import dispatch
from cuevo.ops.cpu_time import cpu_seconds
from cuevo.ops.gemm_problem import check_factor, check_flag, check_operands, state_problem
from cuevo.ops.operation import Operation
from cuevo.ops.plan import Addresses, Plan, PlanBuilder, check_grid
from cuevo.ops.tuning import tuned

__all__ = ["OPERATION", "VARIANTS", "KernelVariant", "gemm"]

_OPERANDS = ("a", "b", "c", "bias", "scatter")
_RESULTS = ("out",)


def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
    bias: Any = None,
    scatter: Any = None,
    out: Any = None,
    out_dtype: Any = None,
    device: object = None,
    stream: object = None,
    config: Config | Mapping[str, object] | None = None,
) -> Any:
    """``alpha * op(a) . op(b) + beta * c + bias``, where op exchanges the last two axes or does
    nothing.

    a : op(a) is [M, K] or [B, M, K], float16 or bfloat16. One of the last two axes is contiguous:
        a transposed view is read in place. The other strides are any, zero and negative too.
    b : op(b) is [K, N] or [B, K, N], the same type, likewise. An operand without B serves all B.
    c : [M, N] or [B, M, N], float16, bfloat16 or float32, rows contiguous; with `scatter` it has
        the rows of `out`. It is not read where `beta` is 0, as it is by default.
    alpha, beta : factors, taken as float32.
    trans_a, trans_b : op(x) is x with its last two axes exchanged.
    bias : [N], contiguous, type of the result, or that of a with a float32 result; one value a
        column.
    scatter : [M], int64 or int32, contiguous: row i of the product becomes row ``scatter[i]`` of
        `out`, and is added to that row of c; an index outside of `out` drops the row. Rows of `out`
        that are not named stay as they are. Of an index that comes twice, one row is stored, which
        one is not said; where c is `out` no index may, since what is added to is not said then.
    out : array for the result, float16, bfloat16 or float32, rows contiguous; by default a new one.
        It may be c itself, and must not overlap any other array. With `scatter` it is needed, and
        may have any number of rows.
    out_dtype : type of a new result, or its name; by default that of a.
    device, stream : as in `cuevo.attention`.
    config : a kernel configuration, or names and values that change the one chosen. An instance
        whose instruction belongs to a lower kernel variant runs that variant
        (`cuevo.ops.dispatch`).

    Products are summed in float32; alpha, c and bias are applied in float32, and the result is
    rounded once. Host arrays give NumPy arrays; arrays on a device give a `DeviceArray`, queued on
    the stream and not waited for. Results are the same bits from run to run, but for rows that
    `scatter` names twice.

    Raises ValueError or TypeError, naming the argument, before anything is launched;
    DeviceUnavailable, AssemblerError, DriverError and SimulatorError from what follows.

    >>> rng = np.random.default_rng(0)
    >>> a, b = (rng.standard_normal((20, 20)).astype(np.float16) for _ in range(2))
    >>> gemm(a, b, trans_b=True, out_dtype="float32", device="sim").dtype
    dtype('float32')
    """
    arrays = (a, b, c, bias, scatter, out)
    options = (alpha, beta, trans_a, trans_b, out_dtype)
    absent = (c is None, bias is None, scatter is None, out is None)
    (result,) = OPERATION.call(arrays, options, device, stream, config, None, absent)
    return result


class KernelVariant(dispatch.KernelVariant[Problem, Any], Protocol):
    """The host half of a kernel for matrix products.

    One whose parameter block begins with tensor maps has a function ``addresses(config, a, b,
    context=...)`` that gives the packer of its address fields.
    """

    def parameters(
        self,
        config: Any,
        problem: Problem,
        *,
        a: ArrayView,
        b: ArrayView,
        d: ArrayView,
        alpha: float,
        beta: float,
        c: ArrayView | None,
        bias: ArrayView | None,
        scatter: ArrayView | None,
    ) -> Mapping[str, Any]: ...


VARIANTS: tuple[KernelVariant, ...] = (gemm_sm90a, gemm_sm80, gemm_sm75, gemm_sm70)
"""The kernels for matrix products, from the highest architecture down."""


def _make_plan(
    views: Mapping[str, ArrayView],
    alpha: Any,
    beta: Any,
    trans_a: Any,
    trans_b: Any,
    out_dtype: Any,
    *,
    device: object,
    config: Config | Mapping[str, object] | None,
) -> Plan:
    factors = {"alpha": check_factor("alpha", alpha), "beta": check_factor("beta", beta)}
    x = check_operands(
        **views,
        beta=factors["beta"],
        trans_a=check_flag("trans_a", trans_a),
        trans_b=check_flag("trans_b", trans_b),
        out_dtype=out_dtype,
    )
    place = executor_for(device, views)
    problem = state_problem(x)
    is_empty = 0 in (problem.batch, problem.m, problem.n)
    is_zero = problem.k == 0 and not (problem.c != "none" or problem.bias or problem.scatter)
    builder = PlanBuilder(_OPERANDS, _RESULTS, views, place)
    builder.add_result(
        "out",
        x.shape,
        x.out.dtype,
        empty_value=0.0 if is_zero and not is_empty else None,
        is_updated=problem.scatter,
    )
    if builder.plan.on_copies or is_empty or is_zero:
        return builder.plan
    elements = problem.batch * problem.m * problem.n
    builder.plan.cpu_seconds = cpu_seconds("gemm", elements, problem.k)
    (measured,) = tuned.settle(builder.plan, "gemm", VARIANTS, [problem], config)
    kernel, chosen = dispatch.choose(VARIANTS, problem, place, config, measured)
    loaded, chosen = dispatch.load(kernel, chosen, place, fixed=config is not None)
    sums, counters = chosen.workspace(problem)
    if sums:
        builder.add_workspace("partials", (sums,))
        builder.add_workspace("arrivals", (counters,), np.uint32, is_cleared=True)
    grid = chosen.grid(problem)
    check_grid(grid)  # before its magic numbers are computed
    values = kernel.parameters(
        chosen, problem, a=x.a, b=x.b, c=x.c, bias=x.bias, scatter=x.scatter, d=x.out, **factors
    )
    arrays = {"a_map": "a", "b_map": "b", "c": "" if x.c is None else "c", "d": "out"}
    context = place.context if isinstance(place, DriverExecutor) else None
    builder.add_launch(
        kernel.NAME,
        loaded,
        chosen,
        grid,
        values,
        arrays=arrays,
        addresses=_addresses(kernel, chosen, x.a, x.b, context),
    )
    return builder.plan


def _addresses(
    kernel: Any, config: Any, a: ArrayView, b: ArrayView, context: PrimaryContext | None
) -> Addresses | None:
    """Packer of the address fields of a kernel that has tensor maps; None for another."""
    make = getattr(kernel, "addresses", None)
    found: Addresses | None = None if make is None else make(config, a, b, context=context)
    return found


OPERATION = Operation("gemm", _OPERANDS, _RESULTS, _make_plan, required=2)
