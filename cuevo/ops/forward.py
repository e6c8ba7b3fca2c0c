"""Evoformer attention: a call, and the plan that it makes."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cuevo.arrays import ArrayView
from cuevo.executors import DriverExecutor, Executor, architecture_of, executor_for
from cuevo.kernels import (
    bias_tiles_sm90,
    evoformer_forward_sm70,
    evoformer_forward_sm75,
    evoformer_forward_sm80,
    evoformer_forward_sm90a,
)
from cuevo.kernels.forward import Problem, parameters
from cuevo.ops.attention_problem import (
    broadcast_biases,
    check_lse,
    check_scale,
    state_problem,
)
from cuevo.ops.cpu_time import cpu_seconds
from cuevo.ops.dispatch import KernelVariant, choose, configure, dispatch, expect, load
from cuevo.ops.operation import Operation
from cuevo.ops.packing import (
    ROW_ALIGNMENT,
    check_pack,
    pack_biases,
    pack_mask,
    pack_pair_bias,
    tile_biases,
    tile_pair_bias,
)
from cuevo.ops.plan import Plan, PlanBuilder, check_grid
from cuevo.ops.tuning import tuned

__all__ = ["OPERATION", "VARIANTS", "attention", "attention_workspace"]

_OPERANDS = ("q", "k", "v", "mask_bias", "pair_bias")
_RESULTS = ("out", "lse")
_Config = (
    evoformer_forward_sm90a.Config
    | evoformer_forward_sm80.Config
    | evoformer_forward_sm75.Config
    | evoformer_forward_sm70.Config
)


VARIANTS: tuple[KernelVariant[Problem, Any], ...] = (
    evoformer_forward_sm90a,
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
    pack: bool | None = None,
    workspace: Any = None,
    device: object = None,
    stream: object = None,
    config: _Config | Mapping[str, object] | None = None,
) -> Any:
    """``softmax(q k^T scale + mask_bias + pair_bias) v``.

    q : [B, N, Lq, H, D], float16 or bfloat16; k, v : [B, N, Lk, H, D], the same type. D is a
        multiple of 8 from 8 to 128. Any strides, zero too, as long as D is contiguous and every
        row starts at a multiple of 16 bytes: a [B, N, H, L, D] array comes as its transposed view.
    mask_bias : [B, N, 1, 1, Lk], that type or float32, any strides; or bool, True = attend. B and N
        may be 1 each: one value for all.
    pair_bias : [B, 1, H, Lq, Lk], that type or float32, any strides: a linear layer's [B, L, L, H]
        comes as its transposed view. B may be 1.
    scale : factor of the scores, default ``1 / sqrt(D)``. A power of two, 1 where q has been scaled
        already, takes less time on Hopper where rows are few.
    return_lse : also return the log-sum-exp of every row of scores, [B, N, H, Lq] float32, natural
        logarithm.
    out : array for the result, like q; by default a new one.
    lse : contiguous array for the log-sum-exps, which are then computed and, with `return_lse`,
        returned; by default a new one.
    pack : whether the pair bias is copied to rows that begin at multiples of 16 bytes before it is
        read. None: where the kernels save more time than the copy takes, and where they cannot read
        it as it is, which False does not change.
    workspace : memory for copies of biases, an array of at least `attention_workspace` bytes that
        starts at a multiple of 256; by default taken from the stream's memory pool, and given back.
    device : where to run; see `cuevo.executors.executor_for`. None: where the arrays are; host
        arrays on the first GPU, or on the CPU executor if there is none, with a warning if that
        takes long. "sim", "sim:sm_90", "cuda:0" force it.
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
    arrays = (q, k, v, mask_bias, pair_bias, out, lse)
    options = (scale, return_lse, pack)
    absent = (mask_bias is None, pair_bias is None, out is None, lse is None)
    result, sums = OPERATION.call(arrays, options, device, stream, config, workspace, absent)
    return (result, sums) if return_lse else result


def attention_workspace(
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
    pack: bool | None = None,
    device: object = None,
    config: _Config | Mapping[str, object] | None = None,
) -> int:
    """Bytes of device memory that `attention` needs for these arguments beside its results: those
    of the biases that are packed, 0 where all are read in place.

    The call itself finds the plan that this one has made where it has the same `out` and `lse`.

    >>> q = np.zeros((1, 2, 17, 4, 8), np.float16)
    >>> pair_bias = np.zeros((1, 17, 17, 4), np.float16).transpose(0, 3, 1, 2)[:, None]
    >>> attention_workspace(q, q, q, pair_bias=pair_bias, device="sim")
    3328
    """
    arrays = (q, k, v, mask_bias, pair_bias, out, lse)
    options = (scale, return_lse, pack)
    return OPERATION.plan_on_device(arrays, options, device, config).workspace_bytes


def _make_plan(
    views: Mapping[str, ArrayView],
    scale: float | None,
    return_lse: bool,
    pack: bool | None,
    *,
    device: object,
    config: _Config | Mapping[str, object] | None,
) -> Plan:
    q, k, v, lse = views["q"], views["k"], views["v"], views.get("lse")
    operands = {name: x for name, x in views.items() if name in (*_OPERANDS, "out")}
    problem = state_problem(**operands)
    factor = check_scale(scale, problem.head_dim)
    check_pack(pack)
    if lse is not None:
        check_lse(lse, q)
        if lse.readonly:
            raise ValueError("lse: has to be writable; this array is read-only")
    place = executor_for(device, views)
    views = broadcast_biases(views, problem)
    builder = PlanBuilder(_OPERANDS, _RESULTS, views, place)
    builder.add_result("out", q.shape, q.dtype, empty_value=0.0)
    if return_lse or lse is not None:
        shape = (problem.batch, problem.rows, problem.heads, problem.queries)
        builder.add_result("lse", shape, np.dtype(np.float32), empty_value=-math.inf)
    if builder.plan.on_copies or 0 in (*q.shape, problem.keys):
        return builder.plan
    builder.plan.cpu_seconds = cpu_seconds("attention", problem.scores, problem.head_dim)
    problem = problem.with_scale(factor)
    # The highest variant reads a pair bias of any strides: it is asked before any is packed.
    pair_mapped = problem.pair_mapped and place.knows_addresses
    readable = replace(problem, pair_alignment=ROW_ALIGNMENT, pair_mapped=pair_mapped)
    may_pack = pack is not False and place.knows_addresses
    packs = may_pack and evoformer_forward_sm90a.prefers_packed(readable)
    mapped = replace(readable, pair_mapped=True) if packs else readable
    (measured,) = tuned.settle(
        builder.plan, "attention", VARIANTS, [problem], config, served=[mapped]
    )
    named = measured if config is None else config
    if dispatch(VARIANTS, readable, architecture_of(place), named) is evoformer_forward_sm90a:
        _add_mapped_launch(builder, mapped, factor, config, measured, packs=packs)
        return builder.plan
    problem = pack_biases(builder, problem, pack)
    kernel, chosen = choose(VARIANTS, problem, place, config, measured)
    loaded, chosen = load(kernel, chosen, place, fixed=config is not None)
    grid = chosen.grid(problem)
    check_grid(grid)  # before its magic numbers are computed
    values = parameters(
        chosen,
        q=q,
        k=k,
        v=v,
        out=builder.views["out"],
        scale=factor,
        mask_bias=builder.views.get("mask_bias"),
        pair_bias=builder.views.get("pair_bias"),
    )
    builder.add_launch(kernel.NAME, loaded, chosen, grid, values)
    return builder.plan


def _add_mapped_launch(
    builder: PlanBuilder,
    problem: Problem,
    scale: float,
    config: Any,
    measured: Any,
    *,
    packs: bool,
) -> None:
    """Put the launches of the kernel that has tensor maps into a plan: it reads the pair bias in
    tiles of its own, or converts it, which may have to be packed first.
    """
    kernel, place, views = evoformer_forward_sm90a, builder.plan.place, builder.views
    wanted = configure(kernel, problem, place, config, measured)
    if "lse" in views and not isinstance(config, kernel.Config) and "sums" not in (config or {}):
        # A log-sum-exp that is asked for is that of the probabilities before they are rounded.
        wanted = kernel.adapt(replace(wanted, sums="added"), problem)
    for part in kernel.parts(wanted, problem):
        expect(kernel, part.config, place)
    if (tiles := _tiles_of_biases(wanted, place)) is not None:
        expect(bias_tiles_sm90, tiles, place)
    loaded, chosen = load(kernel, wanted, place, fixed=config is not None)
    pack_mask(builder)
    if packs:
        pack_pair_bias(builder)
    bias_scale = 1.0 / chosen.scores_scale(scale)
    tiles = _tiles_of_biases(chosen, place)
    if chosen.tiled and (tiles is None or tiles.pair == "none"):
        block = (chosen.block_queries, chosen.block_keys)
        tile_pair_bias(builder, problem.pair, block, bias_scale)
    if tiles is not None:
        tile_biases(builder, tiles, chosen.block_queries, bias_scale)
    q, k, v = views["q"], views["k"], views["v"]
    pair_bias = views.get("pair_bias")
    mapped = {f"{name}_map": name for name in ("q", "k", "v", "out")}
    mapped |= {"pair_map": "pair_bias"} if chosen.converts else {}
    context = place.context if isinstance(place, DriverExecutor) else None
    plan = builder.plan
    # Two that follow a launch run beside each other, the longer one right behind it, but in a
    # program of JAX, which launches one after the other, and is the place that knows no addresses.
    together = bool(plan.parts) and place.knows_addresses
    parts = list(kernel.parts(chosen, problem, together=together))
    beside = together and len(parts) > 1
    queues = [plan.after, plan.beside] if beside else [plan.launches] * len(parts)
    for part, queue in zip(parts, queues, strict=True):
        if part.config != chosen:
            loaded, _ = load(kernel, part.config, place, fixed=True)
        values = kernel.parameters(
            part.config,
            part.problem,
            q=q,
            k=k,
            v=v,
            out=views["out"],
            scale=scale,
            mask_bias=views.get("mask_bias"),
            pair_bias=pair_bias,
            pair_tiles=views.get("pair_tiles"),
            first_query=part.first_query,
            blocks=part.blocks,
        )
        builder.add_launch(
            kernel.NAME,
            loaded,
            part.config,
            part.config.grid(part.problem, part.blocks),
            values,
            arrays=mapped,
            addresses=kernel.addresses(
                part.config,
                q,
                k,
                v,
                views["out"],
                pair_bias,
                l2_promotion=part.config.l2_promotion(part.problem),
                context=context,
            ),
            queue=queue,
        )


def _tiles_of_biases(
    config: evoformer_forward_sm90a.Config, place: Executor
) -> bias_tiles_sm90.Config | None:
    """What makes the tiles of the mask that a kernel of that configuration reads, if any, and those
    of the pair bias with them; a program of JAX makes these beside its tensor maps.
    """
    if not config.reads_mask_tiles:
        return None
    return config.of_biases if place.knows_addresses else replace(config.of_biases, pair="none")


OPERATION = Operation("attention", _OPERANDS, _RESULTS, _make_plan, required=3)
