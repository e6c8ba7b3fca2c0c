"""Evoformer attention: checks a call, states the problem, and carries the arrays to a kernel.

A call that was made before with arrays of the same shapes, strides and types finds its plan: the
loaded kernel, its launch geometry and its parameter block, in which only the addresses are new.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any

import numpy as np

from cuevo.arrays import (
    ArrayView,
    DeviceArray,
    as_numpy,
    identify,
    packed,
    view,
)
from cuevo.cuda.stream import LEGACY_DEFAULT, resolve_stream
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of, executor_for
from cuevo.executors.protocol import Executor, LoadedKernel
from cuevo.kernels import (
    evoformer_forward_sm70,
    evoformer_forward_sm75,
    evoformer_forward_sm80,
)
from cuevo.kernels.forward import Problem, parameters
from cuevo.ops.attention_problem import check_lse, check_scale, state_problem
from cuevo.ops.dispatch import KernelVariant, dispatch
from cuevo.ops.plans import Launch, Plans, configure, load
from cuevo.ops.results import fetched, given_or_made
from cuevo.toolchain.header import load_header

__all__ = ["VARIANTS", "attention"]

_FLOAT32 = np.dtype(np.float32)
_POINTERS = Struct("<7Q")
"""q, k, v, mask_bias, pair_bias, out, lse: the fields in front of the parameter block."""
_Addresses = tuple[int, int, int, int, int]
"""Of q, k, v, mask_bias, pair_bias; 0 where there is none."""
_Config = (
    evoformer_forward_sm80.Config | evoformer_forward_sm75.Config | evoformer_forward_sm70.Config
)


VARIANTS: tuple[KernelVariant[Problem, Any], ...] = (
    evoformer_forward_sm80,
    evoformer_forward_sm75,
    evoformer_forward_sm70,
)
"""The kernels for attention, from the highest architecture down."""


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask_bias: Any = None,
    pair_bias: Any = None,
    scale: float | None = None,
    return_lse: bool = False,
    out: Any = None,
    lse: Any = None,
    device: object = None,
    stream: object = None,
    config: _Config | Mapping[str, object] | None = None,
) -> Any:
    """``softmax(q k^T scale + mask_bias + pair_bias) v``.

    q : [B, N, Lq, H, D], float16 or bfloat16; k, v : [B, N, Lk, H, D], the same type. D is a
        multiple of 8 from 8 to 128. Any strides, zero too, as long as D is contiguous and every
        row starts at a multiple of 16 bytes: a [B, N, H, L, D] array comes as its transposed view.
    mask_bias : [B, N, 1, 1, Lk], that type or float32; or bool, True = attend.
    pair_bias : [B, 1, H, Lq, Lk], that type or float32, keys contiguous.
    scale : factor of the scores, default ``1 / sqrt(D)``.
    return_lse : also return the log-sum-exp of every row of scores, [B, N, H, Lq] float32, natural
        logarithm.
    out : array for the result, like q; by default a new one.
    lse : contiguous array for the log-sum-exps, which are then computed and, with `return_lse`,
        returned; by default a new one.
    device : where to run; see `cuevo.executors.executor_for`. None: where the arrays are; host
        arrays on the first GPU, or on the CPU executor if there is none. "sim", "sim:sm_90",
        "cuda:0" force it.
    stream : see `cuevo.cuda.stream`.
    config : a kernel configuration, or names and values that change the one chosen. One of a lower
        variant's Config class runs that variant (`cuevo.ops.dispatch`).

    Host arrays give NumPy arrays; arrays on a device give a `DeviceArray`, queued on the stream
    and not waited for.
    A row whose every score is -inf gives 0, and lse -inf. Results are the same bits from run to
    run.

    Raises ValueError or TypeError, naming the argument, before anything is launched;
    DeviceUnavailable, AssemblerError, DriverError and SimulatorError from what follows.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (rng.standard_normal((1, 2, 16, 1, 8)).astype(np.float16) for _ in range(3))
    >>> attention(q, k, v, device="sim").shape
    (1, 2, 16, 1, 8)
    """
    handle = resolve_stream(stream, (q, k, v, mask_bias, pair_bias, out, lse))
    q_address, q_kind, q = identify(q, "q", handle)
    k_address, k_kind, k = identify(k, "k", handle)
    v_address, v_kind, v = identify(v, "v", handle)
    mask_address = pair_address = 0
    mask_kind = pair_kind = out_kind = out_address = lse_kind = lse_address = settings = None
    if mask_bias is not None:
        mask_address, mask_kind, mask_bias = identify(mask_bias, "mask_bias", handle)
    if pair_bias is not None:
        pair_address, pair_kind, pair_bias = identify(pair_bias, "pair_bias", handle)
    given, given_lse = out, lse
    if out is not None:
        out_address, out_kind, out = identify(out, "out", handle)
    if lse is not None:
        lse_address, lse_kind, lse = identify(lse, "lse", handle)
    if config is not None:
        settings = tuple(config.items()) if isinstance(config, Mapping) else config
    # Of the addresses, a plan depends on the alignment.
    key = (
        q_kind, k_kind, v_kind, mask_kind, pair_kind, out_kind, lse_kind, scale, device, settings,
        (q_address | k_address | v_address) & 15, mask_address & 15, pair_address & 15,
        out_address and out_address & 15, lse_address and lse_address & 3,
    )  # fmt: skip
    try:
        plan = _plans.get(key)
    except TypeError:  # an argument that has no hash: the checks say what is wrong with it
        plan = None
    if plan is None:
        operands = _Operands.of(q, k, v, mask_bias, pair_bias, out, lse)
        plan = _make_plan(operands, scale, device, config)
        _plans.keep(key, plan)
    if plan.in_place is not None:
        addresses = (q_address, k_address, v_address, mask_address, pair_address)
        queue = handle if stream is None else stream
        targets = (out_address, lse_address)
        result, sums = plan.run(plan.in_place, addresses, targets, handle, queue, return_lse)
    else:
        operands = _Operands.of(q, k, v, mask_bias, pair_bias, out, lse)
        result, sums = plan.run_on_host_arrays(operands, return_lse)
    result = given_or_made(given, result)
    return (result, given_or_made(given_lse, sums)) if return_lse else result


@dataclass(slots=True)
class _Operands:
    q: ArrayView
    k: ArrayView
    v: ArrayView
    mask_bias: ArrayView | None
    pair_bias: ArrayView | None
    out: ArrayView | None
    lse: ArrayView | None

    @classmethod
    def of(
        cls, q: Any, k: Any, v: Any, mask_bias: Any, pair_bias: Any, out: Any, lse: Any
    ) -> "_Operands":
        """Views of what `identify` has seen."""
        return cls(
            view(q, name="q"),
            view(k, name="k"),
            view(v, name="v"),
            None if mask_bias is None else view(mask_bias, name="mask_bias"),
            None if pair_bias is None else view(pair_bias, name="pair_bias"),
            None if out is None else view(out, name="out"),
            None if lse is None else view(lse, name="lse"),
        )

    @property
    def inputs(self) -> tuple[ArrayView | None, ...]:
        return self.q, self.k, self.v, self.mask_bias, self.pair_bias

    @property
    def addresses(self) -> _Addresses:
        mask, pair = self.mask_bias, self.pair_bias
        return (
            self.q.pointer,
            self.k.pointer,
            self.v.pointer,
            0 if mask is None else mask.pointer,
            0 if pair is None else pair.pointer,
        )

    def mapped(self, function: Callable[[ArrayView], ArrayView]) -> "_Operands":
        """The inputs after `function`, without arrays for the results."""
        mask, pair = self.mask_bias, self.pair_bias
        return _Operands(
            function(self.q),
            function(self.k),
            function(self.v),
            None if mask is None else function(mask),
            None if pair is None else function(pair),
            None,
            None,
        )


# -- Plans -----------------------------------------------------------------------------------------

_plans: Plans["_Plan"] = Plans()


def _make_plan(
    operands: _Operands,
    scale: float | None,
    device: object,
    config: _Config | Mapping[str, object] | None,
) -> "_Plan":
    problem = state_problem(
        operands.q, operands.k, operands.v, operands.mask_bias, operands.pair_bias, operands.out
    )
    factor = check_scale(scale, problem.head_dim)
    if operands.lse is not None:
        check_lse(operands.lse, operands.q)
        if operands.lse.readonly:
            raise ValueError("lse: has to be writable; this array is read-only")
    present = [x for x in (*operands.inputs, operands.out, operands.lse) if x is not None]
    place = executor_for(device, present)
    in_place = place if isinstance(place, DriverExecutor) and operands.q.device != "cpu" else None
    lse_shape = (problem.batch, problem.rows, problem.heads, problem.queries)
    plan = _Plan(place, in_place, operands.out or _new_out(operands.q), lse_shape)
    if 0 not in (*operands.q.shape, problem.keys):
        forward = dispatch(VARIANTS, problem, architecture_of(place), config)
        chosen = configure(forward, problem, place, config)
        kernel, chosen = load(forward, chosen, place, fixed=config is not None)
        plan.launch = _Launch(forward.NAME, kernel, chosen, problem, factor, operands)
    return plan


def _new_out(q: ArrayView) -> ArrayView:
    return packed(q.shape, q.dtype, device=q.device)


class _Launch(Launch):
    __slots__ = ("config", "name", "scale")

    def __init__(
        self,
        name: str,
        kernel: LoadedKernel,
        config: Any,
        problem: Problem,
        scale: float,
        operands: _Operands,
    ) -> None:
        super().__init__(kernel, config, config.grid(problem), _POINTERS)
        self.name = name
        self.config = config
        self.scale = scale
        self.constants = self.constants_for(operands)

    def constants_for(self, operands: _Operands) -> bytes:
        """What follows the addresses in the parameter block, for operands of these strides."""
        values = parameters(
            self.config,
            q=operands.q,
            k=operands.k,
            v=operands.v,
            out=operands.out or _new_out(operands.q),
            scale=self.scale,
            mask_bias=operands.mask_bias,
            pair_bias=operands.pair_bias,
        )
        return load_header().kernels[self.name].pack(values)[_POINTERS.size :]


@dataclass(slots=True)
class _Plan:
    place: Executor
    in_place: DriverExecutor | None
    """`place`, where the arrays are in the memory of its device."""
    out: ArrayView
    """The caller's, or one like the new array of each call; its address does not count."""
    lse_shape: tuple[int, ...]
    launch: _Launch | None = None
    """None: the problem is empty, there is nothing to launch."""

    def run(
        self,
        place: DriverExecutor,
        addresses: _Addresses,
        targets: tuple[int | None, int | None],
        handle: int,
        queue: object,
        return_lse: bool,
        constants: bytes | None = None,
    ) -> tuple[DeviceArray | None, DeviceArray | None]:
        """The result and the log-sum-exps, each None where it goes to the address in `targets`, or
        is not wanted.

        `constants` stand for the plan's own where the operands have other strides.
        """
        out, lse = targets
        result = sums = None
        if out is None:
            result = place.empty(self.out.shape, self.out.dtype, queue)
            out = result.pointer
        if lse is None and return_lse:
            sums = place.empty(self.lse_shape, _FLOAT32, queue)
            lse = sums.pointer
        if self.launch is not None:
            everything = (*addresses, out, lse or 0)
            self.launch(everything, constants or self.launch.constants, handle)
            return result, sums
        target = replace(self.out, pointer=out) if result is None else result.view(handle)
        place.fill(target, 0.0, handle)
        if lse is not None:
            place.fill(packed(self.lse_shape, _FLOAT32, lse), -math.inf, handle)
        return result, sums

    def run_on_host_arrays(self, operands: _Operands, return_lse: bool) -> tuple[Any, Any]:
        """As `run`, for host arrays: on the CPU executor or by copies on a device."""
        if isinstance(self.place, DriverExecutor):
            return self._run_on_copies(self.place, operands, return_lse)
        return self._run_on_cpu(operands, return_lse)

    def _run_on_cpu(self, operands: _Operands, return_lse: bool) -> tuple[Any, Any]:
        result = np.zeros(self.out.shape, self.out.dtype) if operands.out is None else None
        sums = None
        if return_lse and operands.lse is None:
            sums = np.full(self.lse_shape, -np.inf, np.float32)
        out = view(result, name="out") if operands.out is None else operands.out
        lse = operands.lse if sums is None else view(sums)
        if self.launch is None:
            as_numpy(out)[...] = 0
            if lse is not None:
                as_numpy(lse)[...] = -np.inf
        else:
            # Marked read-only, so that the executor reports a kernel that writes to its inputs.
            inputs = operands.mapped(lambda x: replace(x, readonly=True))
            buffers = [x for x in (*inputs.inputs, out, lse) if x is not None]
            addresses = (*inputs.addresses, out.pointer, 0 if lse is None else lse.pointer)
            self.launch(addresses, self.launch.constants, LEGACY_DEFAULT, buffers)
        return result, sums

    def _run_on_copies(
        self, place: DriverExecutor, operands: _Operands, return_lse: bool
    ) -> tuple[Any, Any]:
        queue = place.stream
        handle = resolve_stream(queue)
        moved = operands.mapped(lambda x: place.copy_to_device(x, queue))
        # Copies may be packed, and the result is contiguous: their strides are not those of the
        # plan.
        constants = None if self.launch is None else self.launch.constants_for(moved)
        wants_lse = return_lse or operands.lse is not None
        targets = (None, None)
        result, sums = self.run(
            place, moved.addresses, targets, handle, queue, wants_lse, constants
        )
        assert result is not None
        host = fetched(result, operands.out, handle)
        return host, None if sums is None else fetched(sums, operands.lse, handle)
