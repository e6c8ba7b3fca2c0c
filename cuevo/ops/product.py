"""Matrix products: checks a call, states the problem, and carries the arrays to a kernel.

A call that was made before with arrays of the same shapes, strides and types finds its plan; see
`cuevo.ops.plans`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from cuda.bindings import driver as cuda

from cuevo.arrays import (
    ArrayView,
    DeviceArray,
    as_numpy,
    copy_to_host,
    identify,
    view,
)
from cuevo.cuda.context import PrimaryContext, check
from cuevo.cuda.stream import LEGACY_DEFAULT, resolve_stream
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of, executor_for
from cuevo.executors.protocol import Executor, LoadedKernel
from cuevo.kernels import gemm_sm70, gemm_sm75, gemm_sm80, gemm_sm90a
from cuevo.kernels.gemm_mma import Config, Problem
from cuevo.ops import dispatch
from cuevo.ops.gemm_problem import (
    Operands,
    check_factor,
    check_flag,
    check_operands,
    exchanged,
    has_columns,
    state_problem,
)
from cuevo.ops.plans import Addresses, Launch, Plans, configure, load
from cuevo.toolchain.header import load_header

__all__ = ["VARIANTS", "KernelVariant", "gemm"]


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
    bias : [N], type of the result, contiguous; one value a column.
    scatter : [M], int64, contiguous: row i of the product becomes row ``scatter[i]`` of `out`, and
        is added to that row of c; an index outside of `out` drops the row. Rows of `out` that are
        not named stay as they are. Of an index that comes twice, one row is stored, which one is
        not said.
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
    the stream and not waited for. Results are the same bits from run to run.

    Raises ValueError or TypeError, naming the argument, before anything is launched;
    DeviceUnavailable, AssemblerError, DriverError and SimulatorError from what follows.

    >>> rng = np.random.default_rng(0)
    >>> a, b = (rng.standard_normal((20, 20)).astype(np.float16) for _ in range(2))
    >>> gemm(a, b, trans_b=True, out_dtype="float32", device="sim").dtype
    dtype('float32')
    """
    handle = resolve_stream(stream, (a, b, c, bias, scatter, out))
    a_address, a_kind, a = identify(a, "a", handle)
    b_address, b_kind, b = identify(b, "b", handle)
    c_address = bias_address = scatter_address = 0
    c_kind = bias_kind = scatter_kind = out_kind = out_address = settings = None
    if c is not None:
        c_address, c_kind, c = identify(c, "c", handle)
    if bias is not None:
        bias_address, bias_kind, bias = identify(bias, "bias", handle)
    if scatter is not None:
        scatter_address, scatter_kind, scatter = identify(scatter, "scatter", handle)
    given = out
    if out is not None:
        out_address, out_kind, out = identify(out, "out", handle)
    if config is not None:
        settings = tuple(config.items()) if isinstance(config, Mapping) else config
    # Of the addresses, a plan depends on the alignment.
    key = (
        a_kind, b_kind, c_kind, bias_kind, scatter_kind, out_kind, alpha, beta, trans_a, trans_b,
        out_dtype, device, settings, a_address & 15, b_address & 15, c_address & 15,
        (bias_address | scatter_address) & 7, out_address and out_address & 15,
    )  # fmt: skip
    try:
        plan = _plans.get(key)
    except TypeError:  # an argument that has no hash: the checks say what is wrong with it
        plan = None
    if plan is None:
        options = _Options.of(alpha, beta, trans_a, trans_b, out_dtype)
        operands = _operands(a, b, c, bias, scatter, out, options)
        present = [x for x in (a, b, c, bias, scatter, out) if x is not None]
        place = executor_for(device, [view(x) for x in present])
        plan = _make_plan(operands, options, place, config)
        _plans.keep(key, plan)
    result: DeviceArray | np.ndarray[Any, Any] | None
    if plan.in_place is not None:
        addresses = (a_address, b_address, c_address, bias_address, scatter_address)
        queue = handle if stream is None else stream
        result = plan.run(plan.in_place, addresses, out_address, handle, queue)
    else:
        operands = _operands(a, b, c, bias, scatter, out, plan.options)
        result = plan.run_on_host_arrays(operands, out is None)
    return given if result is None else result


class KernelVariant(dispatch.KernelVariant[Problem, Any], Protocol):
    """The host half of a kernel for matrix products."""

    def addresses(
        self,
        config: Any,
        problem: Problem,
        a: ArrayView,
        b: ArrayView,
        *,
        context: PrimaryContext | None,
    ) -> Addresses: ...

    def parameters(
        self,
        config: Any,
        problem: Problem,
        *,
        a: ArrayView,
        b: ArrayView,
        c: ArrayView | None,
        bias: ArrayView | None,
        scatter: ArrayView | None,
        d: ArrayView,
        alpha: float,
        beta: float,
        partials: ArrayView | None,
        arrivals: ArrayView | None,
    ) -> Mapping[str, Any]: ...


VARIANTS: tuple[KernelVariant, ...] = (gemm_sm90a, gemm_sm80, gemm_sm75, gemm_sm70)
"""The kernels for matrix products, from the highest architecture down."""


@dataclass(frozen=True, slots=True)
class _Options:
    """What a call says besides its arrays."""

    alpha: float
    beta: float
    trans_a: bool
    trans_b: bool
    out_dtype: Any

    @classmethod
    def of(cls, alpha: Any, beta: Any, trans_a: Any, trans_b: Any, out_dtype: Any) -> "_Options":
        """Options that are right; ValueError or TypeError for others."""
        return cls(
            check_factor("alpha", alpha),
            check_factor("beta", beta),
            check_flag("trans_a", trans_a),
            check_flag("trans_b", trans_b),
            out_dtype,
        )


def _operands(
    a: Any, b: Any, c: Any, bias: Any, scatter: Any, out: Any, options: _Options
) -> Operands:
    """The operands of a call from what `identify` has seen."""
    return check_operands(
        view(a, name="a"),
        view(b, name="b"),
        None if c is None else view(c, name="c"),
        None if bias is None else view(bias, name="bias"),
        None if scatter is None else view(scatter, name="scatter"),
        None if out is None else view(out, name="out"),
        beta=options.beta,
        trans_a=options.trans_a,
        trans_b=options.trans_b,
        out_dtype=options.out_dtype,
    )


# -- Plans -----------------------------------------------------------------------------------------

_plans: Plans["_Plan"] = Plans()


def _make_plan(
    operands: Operands,
    options: _Options,
    place: Executor,
    config: Config | Mapping[str, object] | None,
) -> "_Plan":
    problem = state_problem(operands)
    in_place = place if isinstance(place, DriverExecutor) and operands.a.device != "cpu" else None
    plan = _Plan(place, in_place, options, operands.out, operands.shape)
    if 0 in (problem.batch, problem.m, problem.n):
        return plan
    if problem.k == 0 and not (problem.c != "none" or problem.bias or problem.scatter):
        plan.is_zero = True
        return plan
    kernel = dispatch.dispatch(VARIANTS, problem, architecture_of(place), config)
    chosen = configure(kernel, problem, place, config)
    loaded, chosen = load(kernel, chosen, place, fixed=config is not None)
    context = place.context if isinstance(place, DriverExecutor) else None
    plan.launch = _Launch(kernel, loaded, chosen, problem, options, operands, context=context)
    return plan


class _Launch(Launch):
    __slots__ = ("config", "context", "host_half", "options", "problem", "workspace")

    def __init__(
        self,
        host_half: KernelVariant,
        kernel: LoadedKernel,
        config: Any,
        problem: Problem,
        options: _Options,
        operands: Operands,
        *,
        context: PrimaryContext | None,
    ) -> None:
        pointers = host_half.addresses(config, problem, operands.a, operands.b, context=context)
        super().__init__(kernel, config, config.grid(problem), pointers)
        self.host_half = host_half
        self.config = config
        self.problem = problem
        self.options = options
        self.context = context
        self.workspace = config.workspace(problem)
        self.constants = self._constants(operands, pointers)

    def with_operands(self, operands: Operands) -> "_Launch":
        """The same, for operands of these strides."""
        pointers = self.host_half.addresses(
            self.config, self.problem, operands.a, operands.b, context=self.context
        )
        other = copy(self)
        other.pack_addresses = pointers.pack
        other.constants = self._constants(operands, pointers)
        return other

    def _constants(self, operands: Operands, pointers: Addresses) -> bytes:
        """What follows the addresses in the parameter block."""
        values = self.host_half.parameters(
            self.config,
            self.problem,
            a=operands.a,
            b=operands.b,
            c=operands.c,
            bias=operands.bias,
            scatter=operands.scatter,
            d=operands.out,
            alpha=self.options.alpha,
            beta=self.options.beta,
            partials=None,
            arrivals=None,
        )
        return load_header().kernels[self.host_half.NAME].pack(values)[pointers.size :]


@dataclass(slots=True)
class _Plan:
    place: Executor
    in_place: DriverExecutor | None
    """`place`, where the arrays are in the memory of its device."""
    options: _Options
    out: ArrayView
    """The caller's, or one like the new array of each call; its address does not count."""
    shape: tuple[int, ...]
    """Of a new array."""
    launch: _Launch | None = None
    """None: there is nothing to launch."""
    is_zero: bool = False
    """Without a launch: the result is 0 throughout. Otherwise it has no elements, or none of them
    changes.
    """

    def run(
        self,
        place: DriverExecutor,
        addresses: tuple[int, ...],
        out: int | None,
        handle: int,
        queue: object,
        launch: _Launch | None = None,
    ) -> DeviceArray | None:
        """The result, or None where it goes to address `out`.

        `launch` stands for the plan's own where the operands have other strides.
        """
        result = None
        if out is None:
            result = place.empty(self.shape, self.out.dtype, queue)
            out = result.pointer
        launch = launch or self.launch
        if launch is None:
            if self.is_zero:
                target = replace(self.out, pointer=out) if result is None else result.view(handle)
                place.fill(target, 0.0, handle)
            return result
        partials, arrivals = launch.workspace
        if not partials:
            launch((*addresses, out, 0, 0), launch.constants, handle)
            return result
        with _workspace(place, partials, arrivals, handle) as workspace:
            launch((*addresses, out, *workspace), launch.constants, handle)
        return result

    def run_on_host_arrays(self, operands: Operands, is_new: bool) -> np.ndarray[Any, Any] | None:
        """As `run`, for host arrays, on the CPU executor or by copies on a device.

        `is_new`: the result is an array that is still to be made.
        """
        if isinstance(self.place, DriverExecutor) and self.launch is not None:
            return self._run_on_copies(self.place, self.launch, operands, is_new)
        result = np.zeros(self.shape, self.out.dtype) if is_new else None
        out = operands.out
        if result is not None:
            out = replace(out, pointer=view(result).pointer, owner=result)
        if self.launch is not None:
            _run_on_cpu(self.launch, operands, out)
        elif self.is_zero:
            as_numpy(out)[...] = 0
        return result

    def _run_on_copies(
        self, place: DriverExecutor, launch: _Launch, operands: Operands, is_new: bool
    ) -> np.ndarray[Any, Any] | None:
        queue = place.stream
        handle = resolve_stream(queue)

        def copied(x: ArrayView) -> ArrayView:
            return _copied(x, place, queue)

        # Copies may be packed: their strides are not those of the plan.
        target = operands.out if is_new else copied(operands.out)
        moved = operands.mapped(copied, target)
        address = None if is_new else target.pointer
        other = launch.with_operands(moved)
        result = self.run(place, moved.addresses, address, handle, queue, other)
        if result is not None:
            return copy_to_host(result.view(handle), handle)
        as_numpy(operands.out)[...] = copy_to_host(target, handle)
        return None


def _run_on_cpu(launch: _Launch, operands: Operands, out: ArrayView) -> None:
    # Marked read-only, so that the executor reports a kernel that writes to its inputs.
    inputs = operands.mapped(lambda x: replace(x, readonly=True), out)
    floats, counters = launch.workspace
    partials, arrivals = np.full(floats, np.nan, np.float32), np.zeros(counters, np.uint32)
    workspace = [view(partials), view(arrivals)] if floats else []
    buffers = [x for x in (*inputs.inputs, out, *workspace) if x is not None]
    ends = [x.pointer for x in workspace] or [0, 0]
    addresses = (*inputs.addresses, out.pointer, *ends)
    launch(addresses, launch.constants, LEGACY_DEFAULT, buffers)


def _copied(x: ArrayView, place: DriverExecutor, queue: object) -> ArrayView:
    """A copy of an operand in device memory; where the columns are contiguous they stay so."""
    columns = x.ndim == 3 and has_columns(x)
    return exchanged(place.copy_to_device(exchanged(x, columns), queue), columns)


@contextmanager
def _workspace(
    place: DriverExecutor, floats: int, counters: int, stream: int
) -> Iterator[tuple[int, int]]:
    """Addresses of as many floats, and of counters that are 0, for the work that the ``with`` block
    queues on `stream`.
    """
    purpose = "the sums of a split product"
    with place.scratch(4 * (floats + counters), stream, purpose) as partials:
        arrivals = partials + 4 * floats
        check(cuda.cuMemsetD32Async(arrivals, 0, counters, stream), f"clearing {purpose}")
        yield partials, arrivals
