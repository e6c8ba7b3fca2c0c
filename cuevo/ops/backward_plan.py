"""The plan of a call for the gradients of Evoformer attention.

It runs kernels of four kinds, after copies of the operands that have to be packed (`packing`): the
statistics of every query (`attention_delta_sm70`), the biases of keys (`key_bias_sm70`), the two
sides of the scores (one of `VARIANTS` each), and the last sums of the gradients of the biases
(`partial_sums_sm70`). The two sides do not need each other: a device has both at the same time, the
queries' on a side stream.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, isqrt
from typing import Any, Protocol

import numpy as np

from cuevo.arrays import BFLOAT16, ArrayView
from cuevo.executors import DriverExecutor, Executor, architecture_of, executor_for
from cuevo.kernels import (
    attention_delta_sm70,
    evoformer_backward_sm70,
    evoformer_backward_sm75,
    evoformer_backward_sm80,
    evoformer_backward_sm90a,
    key_bias_sm70,
    partial_sums_sm70,
)
from cuevo.kernels.backward import Problem as Side
from cuevo.kernels.backward import operands_shape, padded, stats_shape, terms_shape
from cuevo.kernels.forward import Problem, scale_fields
from cuevo.ops.attention_problem import (
    broadcast_biases,
    check_backward,
    check_scale,
    is_mapped,
    state_problem,
)
from cuevo.ops.cpu_time import cpu_seconds
from cuevo.ops.dispatch import KernelVariant, choose, dispatch, expect, load
from cuevo.ops.given_memory import check_result
from cuevo.ops.packing import (
    ROW_ALIGNMENT,
    check_pack,
    pack_biases,
    pack_dout,
    pack_mask,
    tile_pair_bias,
)
from cuevo.ops.plan import Launch, Plan, PlanBuilder
from cuevo.ops.tuning import tuned
from cuevo.toolchain.template import render

__all__ = ["GRADS", "MOST_TERMS", "OPERANDS", "RESULTS", "VARIANTS", "Settings", "make_plan"]

GRADS = ("q", "k", "v", "mask_bias", "pair_bias")
"""The gradients, in the order in which they are returned."""
OPERANDS = ("dout", "q", "k", "v", "out", "lse", "mask_bias", "pair_bias")
RESULTS = tuple(f"d{name}" for name in GRADS)


class _Variant(KernelVariant[Side, Any], Protocol):
    """The host half of a kernel for either side of the scores."""

    @property
    def parameters(self) -> Callable[..., dict[str, int | float]]: ...


VARIANTS: tuple[_Variant, ...] = (
    evoformer_backward_sm90a,
    evoformer_backward_sm80,
    evoformer_backward_sm75,
    evoformer_backward_sm70,
)
"""The kernels for either side of the scores, from the highest architecture down."""
_Config = (
    evoformer_backward_sm90a.Config
    | evoformer_backward_sm80.Config
    | evoformer_backward_sm75.Config
    | evoformer_backward_sm70.Config
)
Settings = _Config | Mapping[str, object] | None
"""A side's configuration, or some of its fields."""

_FLOAT32 = np.dtype(np.float32)
_IN_BF16 = ("operands", "key_terms")
"""Of the arrays between kernels; the others are fp32."""
MOST_TERMS = 64
"""Terms that are added one after the other in a sum of a bias's gradient."""


def make_plan(
    views: Mapping[str, ArrayView],
    scale: float | None,
    grads: tuple[str, ...],
    bias_grad_dtype: Any,
    pack: bool | None,
    *,
    device: object,
    config: Mapping[str, Settings] | None,
) -> Plan:
    """The plan of a call on these operands and arrays for results, by name; ValueError or TypeError
    where they do not fit each other.
    """
    operands = {name: x for name, x in views.items() if name in OPERANDS}
    q, mask_bias, pair_bias = operands["q"], operands.get("mask_bias"), operands.get("pair_bias")
    problem = state_problem(q, operands["k"], operands["v"], mask_bias, pair_bias)
    check_backward(operands["dout"], operands["out"], operands["lse"], q)
    factor = check_scale(scale, problem.head_dim)
    sums_dtype = _check_bias_grad_dtype(bias_grad_dtype)
    check_pack(pack)
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(
            f"config: expected a mapping of keys and queries; got {type(config).__name__}"
        )
    unknown = set(config or ()) - {"keys", "queries"}
    if unknown:
        raise ValueError(f"config: expected keys and queries; got {unknown.pop()!r}")
    place = executor_for(device, operands)
    builder = _Builder(broadcast_biases(views, problem), place, problem, factor, config or {})
    for name in GRADS:
        result, x = f"d{name}", operands.get(name)
        if name in grads and x is not None and x.dtype != np.bool_:
            dtype = sums_dtype if sums_dtype and name.endswith("bias") else x.dtype
            if result in views:
                check_result(f"results: {result}", views[result], x.shape, dtype, q.device)
            builder.add_result(result, x.shape, dtype, empty_value=0.0)
        elif result in views:
            raise ValueError(
                f"results: {result}: expected None, there is no such gradient for this call"
            )
    plan = builder.plan
    if any(plan.results) and not plan.on_copies and 0 not in (*q.shape, problem.keys):
        plan.cpu_seconds = cpu_seconds("attention_backward", problem.scores, problem.head_dim)
        builder.add_launches(pack)
    return plan


def _check_bias_grad_dtype(bias_grad_dtype: Any) -> np.dtype[Any] | None:
    """The type as NumPy's; ValueError for another than float32."""
    if bias_grad_dtype is None:
        return None
    try:
        is_float32 = np.dtype(bias_grad_dtype) == _FLOAT32
    except TypeError:
        is_float32 = False
    if not is_float32:
        raise ValueError(f"bias_grad_dtype: expected None or float32; got {bias_grad_dtype!r}")
    return _FLOAT32


def _read(config: _Config) -> dict[str, str]:
    """What a kernel reads of every query and key, by what it calls it, "" for nothing."""
    if not isinstance(config, evoformer_backward_sm90a.Config):
        bias = "key_bias" if config.mask else ""
        return {"stats": "stats", "key_bias": bias, "pair_bias": "pair_bias"}
    if config.by_keys:
        return {"terms": "operands", "key_bias": "key_bias" if config.mask else ""}
    return {"stats": "stats", "terms": "key_terms" if config.mask else ""}


def _wanted(made: Sequence[str]) -> str:
    """What a kernel that makes two arrays, or either, calls those that it is to make."""
    return "both" if len(made) > 1 else made[0]


class _Builder(PlanBuilder):
    """Fills a plan with the launches of a problem that is not empty."""

    def __init__(
        self,
        views: Mapping[str, ArrayView],
        place: Executor,
        problem: Problem,
        scale: float,
        config: Mapping[str, Settings],
    ) -> None:
        super().__init__(OPERANDS, RESULTS, views, place)
        self.problem = problem
        self.scale = scale
        self.config = config
        self.arch = architecture_of(place)

    def add_launches(self, pack: bool | None) -> None:
        """All launches, in the order in which they run."""
        dq, dk, dv, dmask_bias, dpair_bias = (x is not None for x in self.plan.results)
        asked: list[dict[str, Any]] = [
            dict(side="queries", first=dq, second=False, sums=dpair_bias),
            dict(side="keys", first=dk, second=dv, sums=dmask_bias),
        ]
        asked = [each for each in asked if each["first"] or each["second"] or each["sums"]]
        pack_dout(self)
        mapped = self.problem.mapped and is_mapped(self.views["dout"])
        self.problem = replace(self.problem.with_scale(self.scale), mapped=mapped)
        variants = [
            each
            for each in VARIANTS
            if self.plan.place.knows_addresses or each is not evoformer_backward_sm90a
        ]
        # A kernel with tensor maps reads tiles of the pair bias, whatever its rows are.
        readable = replace(self.problem, pair_alignment=ROW_ALIGNMENT)
        readers = [Side(**vars(readable), **each) for each in asked]
        passes = sum(
            dispatch(variants, side, self.arch, self.config.get(side.side))
            is not evoformer_backward_sm90a
            for side in readers
        )
        if passes:
            self.problem = pack_biases(self, self.problem, pack, passes=passes)
        else:
            pack_mask(self)
        p = self.problem
        sides = [Side(**vars(p), **each) for each in asked]
        measured = tuned.settle(
            self.plan, "attention_backward", variants, sides, self.config or None
        )
        chosen = [
            choose(variants, side, self.plan.place, self.config.get(side.side), config)
            for side, config in zip(sides, measured, strict=True)
        ]
        for kernel, config in chosen:
            expect(kernel, config, self.plan.place)
        # What lies between kernels has whole tiles, of those that read and those that write it.
        configs = [config for _, config in chosen]
        query_tiles = [c.block_streamed if c.by_keys else c.block_stationary for c in configs]
        key_tiles = [c.block_stationary if c.by_keys else c.block_streamed for c in configs]
        self.query_positions = padded(p.queries, max(query_tiles))
        self.key_positions = padded(p.keys, max(key_tiles))
        read = {name for config in configs for name in _read(config).values()}
        self._add_delta(read)
        self._add_key_bias(read)
        # The queries' threadblocks, which live long, go first: those of keys fill what is left.
        plan = self.plan
        queues = [plan.launches] if len(sides) == 1 else [plan.beside, plan.after]
        ahead: Sequence[tuple[int, float]] = ()
        for side, (kernel, config), queue in zip(sides, chosen, queues, strict=True):
            ahead = self._add_side(side, kernel, config, queue, ahead)

    def _add_side(
        self,
        side: Side,
        kernel: _Variant,
        config: _Config,
        queue: list[Launch],
        ahead: Sequence[tuple[int, float]],
    ) -> Sequence[tuple[int, float]]:
        """The launches for a side, where the threadblocks `ahead` run before; its own, as far as
        their time is estimated.
        """
        p, place = self.problem, self.plan.place
        fixed, by_keys = self.config.get(side.side) is not None, side.side == "keys"
        loaded, config = load(kernel, config, place, fixed=fixed)
        mapped = config if isinstance(config, evoformer_backward_sm90a.Config) else None
        arch = self.arch
        groups = mapped.groups(side, arch, ahead) if mapped else config.groups(side, arch)
        if side.sums and by_keys:
            self.add_workspace("mask_sums", (p.batch, p.rows, p.heads, self.key_positions))
        elif side.sums:
            chunks = config.chunks_of(side, groups)
            shape = (chunks, p.batch, p.heads, self.query_positions, self.key_positions)
            self.add_workspace("pair_sums", shape)
        arrays = (
            {name: name for name in ("q", "k", "v", "dout")}
            | _read(config)
            | {
                "first_grad": ("dk" if by_keys else "dq") if side.first else "",
                "second_grad": "dv" if side.second else "",
                "mask_sums": "mask_sums" if by_keys and side.sums else "",
                "pair_sums": "pair_sums" if side.sums and not by_keys else "",
            }
        )
        if mapped:
            block = (config.block_stationary, config.block_streamed)
            tiles = arrays["pair_tiles"] = f"pair_tiles of {side.side}"
            tile_pair_bias(
                self, p.pair, block, 1.0 / self.scale, name=tiles, transposed=by_keys, queue=queue
            )
        views = {field: self.views[name] for field, name in arrays.items() if name in self.views}
        addresses = None
        if mapped:
            context = place.context if isinstance(place, DriverExecutor) else None
            addresses = evoformer_backward_sm90a.addresses(mapped, views, context=context)
            arrays |= {f"{name}_map": array for name, array in arrays.items()}
        values = kernel.parameters(config, side, groups, scale=self.scale, **views)
        self.add_launch(
            kernel.NAME,
            loaded,
            config,
            config.grid(side, groups),
            values,
            arrays=arrays,
            addresses=addresses,
            queue=queue,
        )
        if side.sums:
            self._add_sums("mask_bias" if by_keys else "pair_bias", queue)
        return mapped.threadblocks(side, groups) if mapped else ()

    def _add_small(
        self,
        kernel: Any,
        config: Any,
        grid: tuple[int, int, int],
        values: dict[str, int | float],
        arrays: Mapping[str, str] | None = None,
        queue: list[Launch] | None = None,
    ) -> None:
        """A launch of a kernel that has no variants."""
        loaded = self.plan.place.load(render(kernel.NAME, kernel.values(config)))
        self.add_launch(kernel.NAME, loaded, config, grid, values, arrays=arrays, queue=queue)

    def _add_read(self, read: set[str], shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
        """Memory for those arrays, of these shapes, that are read; their names."""
        made = tuple(name for name in shapes if name in read)
        for name in made:
            self.add_workspace(name, shapes[name], BFLOAT16 if name in _IN_BF16 else _FLOAT32)
        return made

    def _add_delta(self, read: set[str]) -> None:
        """What kernels need of every query: statistics, or operands, or both."""
        p = self.problem
        outer = (p.batch, p.rows, p.heads)
        shapes = {
            "stats": (*outer, *stats_shape(self.query_positions)),
            "operands": (*outer, *operands_shape(self.query_positions)),
        }
        made = self._add_read(read, shapes)
        config = attention_delta_sm70.choose(p.head_dim, p.dtype, p.heads, _wanted(made))
        views = {name: self.views[name] for name in ("out", "dout", "lse", *made)}
        scale = self.scale if "operands" in made else 1.0
        values = attention_delta_sm70.parameters(config, **views, scale=scale)
        grid = config.grid(p.batch, p.rows, p.heads, self.query_positions)
        self._add_small(attention_delta_sm70, config, grid, values)

    def _add_key_bias(self, read: set[str]) -> None:
        """The same of every key: its bias, or terms, or both, or neither."""
        p = self.problem
        outer = (p.batch, p.rows)
        shapes = {
            "key_bias": (*outer, self.key_positions),
            "key_terms": (*outer, 1, *terms_shape(self.key_positions)),
        }
        made = self._add_read(read, shapes)
        if not made:
            return
        mask = p.mask if p.mask != "none" else "bounds"
        config = key_bias_sm70.Config(mask=mask, wanted=_wanted(made))
        values = key_bias_sm70.parameters(
            config,
            keys=p.keys,
            scale=self.scale,
            bias_scale=float(scale_fields(self.scale, p.dtype)["bias_scale"]),
            mask_bias=self.views.get("mask_bias"),
            **{name: self.views[name] for name in made},
        )
        grid = config.grid(p.batch, p.rows, self.key_positions)
        self._add_small(key_bias_sm70, config, grid, values)

    def _add_sums(self, bias: str, queue: list[Launch]) -> None:
        """The gradient of a bias from the sums that a side has left: summed also over what the bias
        is broadcast along.
        """
        p, result = self.problem, "d" + bias
        batches, rows = self.views[result].shape[:2]
        if bias == "pair_bias":
            sums = self.views["pair_sums"]  # [chunks, B, H, Lq, Lk]: chunks and B are one axis
            terms = sums.shape[0] * p.batch // batches
            steps = (sums.strides[2], sums.strides[int(batches != p.batch)], sums.strides[3])
            shape = (batches * p.heads, terms, p.queries, p.keys)
            self._add_sum("pair_sums", shape, steps, result, queue)
            return
        step = self.views["mask_sums"].strides[2]  # [B, N, H, Lk]
        target = result
        if batches != p.batch and rows != 1:
            # What B is summed over is not side by side with the heads: these first.
            target, batches = "row_sums", p.batch
            self.add_workspace(target, (batches, rows, p.keys))
        terms = p.batch * p.rows * p.heads // (batches * rows)
        shape = (batches * rows, terms, 1, p.keys)
        self._add_sum("mask_sums", shape, (terms * step, step, step), target, queue)
        if target != result:
            step = self.views[target].strides[1]
            steps = (0, rows * step, step)
            self._add_sum(target, (1, batches, rows, p.keys), steps, result, queue)

    def _add_sum(
        self,
        partials: str,
        shape: tuple[int, int, int, int],
        steps: tuple[int, int, int],
        sums: str,
        queue: list[Launch],
    ) -> None:
        """The array `sums` from the array `partials`, in fp32.

        shape : of the partials, [outer, terms, rows, columns]; [outer, rows, columns] that of the
            sums, whatever other axes these have.
        steps : strides of the first three in bytes; columns are contiguous.

        Of many terms, groups are summed first: side by side, and with fewer roundings on the way of
        each term, the error being at most 2^-24 of the sum of magnitudes for each of them.
        """
        outer, terms, rows, columns = shape
        target, groups = sums, 1
        if terms > MOST_TERMS:
            in_a_group = min(isqrt(terms - 1) + 1, MOST_TERMS)
            groups = min(ceil(terms / in_a_group), partial_sums_sm70.MOST_GROUPS)
            target = f"{partials} in {groups} groups"
            self.add_workspace(target, (groups, outer, rows, columns))
        read, written = self.views[partials], self.views[target]
        read = replace(read, shape=shape, strides=(*steps, read.dtype.itemsize))
        kind = "f32" if written.dtype == _FLOAT32 else self.problem.dtype
        config = partial_sums_sm70.choose(kind, ceil(terms / groups), columns)
        values = partial_sums_sm70.parameters(config, partials=read, sums=written, groups=groups)
        grid = config.grid(outer, rows, columns, groups)
        arrays = {"partials": partials, "sums": target}
        self._add_small(partial_sums_sm70, config, grid, values, arrays, queue)
        if groups > 1:
            per_group, per_outer, per_row, _ = written.strides
            steps = (per_outer, per_group, per_row)
            self._add_sum(target, (outer, groups, rows, columns), steps, sums, queue)
