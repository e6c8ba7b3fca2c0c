"""How the gradients of Evoformer attention are computed: the launches of a call, and the room for
what lies between them.

A plan runs up to six kernels: what backward needs of every query (`attention_delta_sm70`), the
biases of keys (`key_bias_sm70`), the two sides of the scores (one of `VARIANTS` each), and the last
sums of the gradients of the biases (`partial_sums_sm70`). The two sides do not need each other: a
device has both at the same time, the queries' on a stream beside the caller's. A call that was made
before with arrays of the same shapes, strides and types finds its plan; see `cuevo.ops.plans`.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from struct import Struct
from typing import Any, Protocol

import numpy as np

from cuevo.arrays import ArrayView, as_numpy, contiguous_strides, packed, view
from cuevo.cuda.stream import LEGACY_DEFAULT
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of, executor_for
from cuevo.executors.protocol import Executor
from cuevo.kernels import (
    attention_delta_sm70,
    evoformer_backward_sm70,
    evoformer_backward_sm75,
    evoformer_backward_sm80,
    key_bias_sm70,
    partial_sums_sm70,
)
from cuevo.kernels.backward import Problem as Side
from cuevo.kernels.backward import padded, stats_shape
from cuevo.kernels.forward import Problem, scale_fields
from cuevo.ops.attention_problem import check_backward, check_scale, state_problem
from cuevo.ops.dispatch import KernelVariant, dispatch
from cuevo.ops.plans import Launch, configure, load
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

__all__ = ["GRADS", "VARIANTS", "Plan", "Settings", "Wanted", "make_plan", "workspace_address"]

GRADS = ("q", "k", "v", "mask_bias", "pair_bias")
"""The gradients, in the order in which they are returned."""


class _Variant(KernelVariant[Side, Any], Protocol):
    """The host half of a kernel for either side of the scores."""

    @property
    def parameters(self) -> Callable[..., dict[str, int | float]]: ...


VARIANTS: tuple[_Variant, ...] = (
    evoformer_backward_sm80,
    evoformer_backward_sm75,
    evoformer_backward_sm70,
)
"""The kernels for either side of the scores, from the highest architecture down."""
_Config = (
    evoformer_backward_sm80.Config | evoformer_backward_sm75.Config | evoformer_backward_sm70.Config
)
Settings = _Config | Mapping[str, object] | None
"""What a caller configures a side with."""

_FLOAT32 = np.dtype(np.float32)
_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a call asks for."""

    grads: frozenset[str]
    bias_dtype: np.dtype[Any] | None

    @classmethod
    def of(cls, grads: tuple[str, ...], bias_grad_dtype: Any) -> "Wanted":
        """Wishes that can be; ValueError for another type than float32."""
        dtype = None
        if bias_grad_dtype is not None:
            try:
                dtype = np.dtype(bias_grad_dtype)
            except TypeError:
                dtype = None
            if dtype != _FLOAT32:
                raise ValueError(
                    f"bias_grad_dtype: expected None or float32; got {bias_grad_dtype!r}"
                )
        return cls(frozenset(grads), dtype)


def make_plan(
    operands: dict[str, ArrayView],
    scale: float | None,
    wanted: Wanted,
    device: object,
    config: Mapping[str, Settings] | None,
) -> "Plan":
    """The plan of a call on these operands, by the names of the call's arguments; ValueError or
    TypeError where they do not fit each other.
    """
    q, k, mask, pair = (operands.get(name) for name in ("q", "k", "mask_bias", "pair_bias"))
    assert q is not None and k is not None
    problem = state_problem(q, k, operands["v"], mask, pair)
    check_backward(operands["dout"], operands["out"], operands["lse"], q)
    factor = check_scale(scale, problem.head_dim)
    if config is not None and not isinstance(config, Mapping):
        raise TypeError(
            f"config: expected a mapping of keys and queries; got {type(config).__name__}"
        )
    unknown = set(config or ()) - {"keys", "queries"}
    if unknown:
        raise ValueError(f"config: expected keys and queries; got {unknown.pop()!r}")
    place = executor_for(device, list(operands.values()))
    results = {
        name: (x.shape, wanted.bias_dtype or x.dtype if name.endswith("bias") else x.dtype)
        for name in GRADS
        if name in wanted.grads and (x := operands.get(name)) is not None and x.dtype != np.bool_
    }
    on_copies = isinstance(place, DriverExecutor) and q.device == "cpu"
    plan = Plan(place, on_copies, results)
    if results and not on_copies and 0 not in (*q.shape, problem.keys):
        _Maker(plan, problem, factor, operands, config or {}).queue_all()
    return plan


@dataclass(slots=True)
class _Step:
    """A launch, and the arrays that its parameter block begins with, "" for a null."""

    launch: Launch
    names: tuple[str, ...]

    def run(self, addresses: Mapping[str, int], stream: int) -> None:
        """Queue it, with the arrays at these addresses."""
        pointers = tuple(addresses.get(name, 0) for name in self.names)
        self.launch(pointers, self.launch.constants, stream)


class _Maker:
    """Fills a plan with the launches of a problem that is not empty."""

    def __init__(
        self,
        plan: "Plan",
        problem: Problem,
        scale: float,
        operands: dict[str, ArrayView],
        config: Mapping[str, Settings],
    ) -> None:
        self.plan = plan
        self.steps = plan.before
        """Where launches go."""
        self.problem = problem
        self.scale = scale
        self.config = config
        self.arch = architecture_of(plan.place)
        # Views of everything, for strides and shapes: only their addresses will change.
        self.views = dict(operands)
        for name, (shape, dtype) in plan.results.items():
            self.views["d" + name] = packed(shape, dtype)

    def queue_all(self) -> None:
        """Launches in the order in which they run."""
        p, results = self.problem, self.plan.results
        sides = [
            self._side("queries", first="q" in results, second=False, sums="pair_bias" in results),
            self._side(
                "keys", first="k" in results, second="v" in results, sums="mask_bias" in results
            ),
        ]
        sides = [side for side in sides if side.first or side.second or side.sums]
        chosen = [self._chosen(side) for side in sides]
        # What lies between kernels has whole tiles, of those that read and those that write it.
        configs = [config for _, config in chosen]
        query_tiles = [c.block_streamed if c.by_keys else c.block_stationary for c in configs]
        key_tiles = [c.block_stationary if c.by_keys else c.block_streamed for c in configs]
        self.query_positions = padded(p.queries, max(query_tiles))
        self.key_positions = padded(p.keys, max(key_tiles))
        self._room("stats", (p.batch, p.rows, p.heads, *stats_shape(self.query_positions)))
        self._queue_delta()
        if any(config.mask for config in configs):
            self._room("key_bias", (p.batch, p.rows, self.key_positions))
            self._queue_key_bias()
        for side, (kernel, config) in zip(sides, chosen, strict=True):
            self.steps = self.plan.sides.setdefault(side.side, [])
            self._queue_side(side, kernel, config)
            if side.sums:
                self._queue_sums("mask_bias" if config.by_keys else "pair_bias")

    def _side(self, side: str, **wanted: Any) -> Side:
        fields = {name: getattr(self.problem, name) for name in Problem.__dataclass_fields__}
        return Side(**fields, side=side, **wanted)

    def _chosen(self, side: Side) -> tuple[_Variant, _Config]:
        settings = self.config.get(side.side)
        kernel = dispatch(VARIANTS, side, self.arch, settings)
        return kernel, configure(kernel, side, self.plan.place, settings)

    def _room(self, name: str, shape: tuple[int, ...]) -> None:
        """Room for an fp32 array in the workspace."""
        array = packed(shape, _FLOAT32)
        self.views[name] = array
        self.plan.rooms[name] = (self.plan.workspace_bytes, array)
        self.plan.workspace_bytes += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT

    def _queue(
        self, kernel: Any, loaded: Any, config: Any, grid: tuple[int, int, int],
        names: tuple[str, ...], values: dict[str, int | float],
    ) -> None:  # fmt: skip
        pointers = Struct(f"<{len(names)}Q")
        launch = Launch(loaded, config, grid, pointers)
        launch.constants = load_header().kernels[kernel.NAME].pack(values)[pointers.size :]
        self.steps.append(_Step(launch, names))

    def _queue_side(self, side: Side, kernel: _Variant, config: _Config) -> None:
        p, settings = self.problem, self.config.get(side.side)
        loaded, config = load(kernel, config, self.plan.place, fixed=settings is not None)
        groups = config.groups(side, self.arch)
        by_keys = side.side == "keys"
        sums = "mask_sums" if by_keys else "pair_sums"
        if side.sums and by_keys:
            self._room(sums, (p.batch, p.rows, p.heads, self.key_positions))
        elif side.sums:
            chunks = config.chunks_of(side, groups)
            shape = (chunks, p.batch, p.heads, self.query_positions, self.key_positions)
            self._room(sums, shape)
        arrays = {
            "q": "q",
            "k": "k",
            "v": "v",
            "dout": "dout",
            "pair_bias": "pair_bias" if p.pair != "none" else "",
            "stats": "stats",
            "key_bias": "key_bias" if config.mask else "",
            "first_grad": ("dk" if by_keys else "dq") if side.first else "",
            "second_grad": "dv" if side.second else "",
            "mask_sums": "mask_sums" if by_keys and side.sums else "",
            "pair_sums": "pair_sums" if side.sums and not by_keys else "",
        }
        views = {field: self.views[name] for field, name in arrays.items() if name}
        values = kernel.parameters(config, side, groups, scale=self.scale, **views)
        grid = config.grid(side, groups)
        self._queue(kernel, loaded, config, grid, tuple(arrays.values()), values)

    def _queue_small(
        self, kernel: Any, config: Any, grid: tuple[int, int, int],
        names: tuple[str, ...], values: dict[str, int | float],
    ) -> None:  # fmt: skip
        loaded = self.plan.place.load(render(kernel.NAME, kernel.values(config)))
        self._queue(kernel, loaded, config, grid, names, values)

    def _queue_delta(self) -> None:
        p, names = self.problem, ("out", "dout", "lse", "stats")
        config = attention_delta_sm70.choose(p.head_dim, p.dtype, p.heads)
        values = attention_delta_sm70.parameters(
            config, **{name: self.views[name] for name in names}
        )
        grid = config.grid(p.batch, p.rows, p.heads, self.query_positions)
        self._queue_small(attention_delta_sm70, config, grid, names, values)

    def _queue_key_bias(self) -> None:
        p = self.problem
        has_mask = p.mask != "none"
        config = key_bias_sm70.Config(mask=p.mask if has_mask else "bounds")
        values = key_bias_sm70.parameters(
            config,
            key_bias=self.views["key_bias"],
            keys=p.keys,
            bias_scale=float(scale_fields(self.scale, p.dtype)["bias_scale"]),
            mask_bias=self.views["mask_bias"] if has_mask else None,
        )
        grid = config.grid(p.batch, p.rows, self.key_positions)
        names = ("mask_bias" if has_mask else "", "key_bias")
        self._queue_small(key_bias_sm70, config, grid, names, values)

    def _queue_sums(self, bias: str) -> None:
        """The gradient of a bias from the sums that a side has left."""
        room = bias.replace("bias", "sums")
        p, sums, result = self.problem, self.views[room], self.views["d" + bias]
        if room == "mask_sums":
            shape = (p.batch * p.rows, p.heads, 1, p.keys)
            steps = (sums.strides[1], sums.strides[2], sums.strides[2])
        else:
            shape = (p.batch * p.heads, sums.shape[0], p.queries, p.keys)
            steps = (sums.strides[2], sums.strides[0], sums.strides[3])
        partials = replace(sums, shape=shape, strides=(*steps, sums.dtype.itemsize))
        kind = "f32" if result.dtype == _FLOAT32 else p.dtype
        config = partial_sums_sm70.choose(kind, shape[1], p.keys)
        values = partial_sums_sm70.parameters(config, partials=partials, sums=result)
        grid = config.grid(shape[0], shape[2], p.keys)
        self._queue_small(partial_sums_sm70, config, grid, (room, "d" + bias), values)


@dataclass(slots=True)
class Plan:
    place: Executor
    on_copies: bool
    """The arrays are in host memory and the place is a device: they are copied, and the copies have
    a plan of their own.
    """
    results: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
    """Shape and type of each gradient that is wanted and can be."""
    before: list[_Step] = field(default_factory=list)
    """Launches for what both sides need; none where the problem is empty: then the gradients are 0.
    """
    sides: dict[str, list[_Step]] = field(default_factory=dict)
    """Those of a side, in order."""
    rooms: dict[str, tuple[int, ArrayView]] = field(default_factory=dict)
    """Arrays in the workspace: where they begin in it, and what they are."""
    workspace_bytes: int = 0

    def run(
        self,
        place: DriverExecutor,
        addresses: dict[str, int],
        targets: Mapping[str, ArrayView],
        workspace: int | None,
        handle: int,
        queue: object,
    ) -> tuple[Any, ...]:
        """The gradients, in the order of `GRADS`, as arrays on the device."""
        made = {
            name: targets.get(name) or place.empty(shape, dtype, queue)
            for name, (shape, dtype) in self.results.items()
        }
        if not self.before:
            for result in made.values():
                place.fill(view(result, stream=handle), 0.0, handle)
            return tuple(made.get(name) for name in GRADS)
        for name, result in made.items():
            addresses["d" + name] = result.pointer
        if workspace is None:
            with place.scratch(self.workspace_bytes, handle, "what lies between kernels") as taken:
                self._launch(place, addresses, taken, handle)
        else:
            with place.context.current():
                self._launch(place, addresses, workspace, handle)
        return tuple(made.get(name) for name in GRADS)

    def _launch(
        self, place: DriverExecutor, addresses: dict[str, int], workspace: int, handle: int
    ) -> None:
        for name, (start, _) in self.rooms.items():
            addresses[name] = workspace + start
        for step in self.before:
            step.run(addresses, handle)
        both = len(self.sides) > 1
        with place.branch(handle).forked() if both else nullcontext(handle) as beside:
            # The queries' threadblocks, which live long, go first: those of keys fill what is left.
            for steps, stream in zip(self.sides.values(), (beside, handle), strict=False):
                for step in steps:
                    step.run(addresses, stream)

    def run_on_cpu(
        self, operands: dict[str, ArrayView], targets: Mapping[str, ArrayView], workspace: Any
    ) -> tuple[Any, ...]:
        """The same on the CPU executor, as NumPy arrays."""
        made = {
            name: as_numpy(targets[name]) if name in targets else np.empty(shape, dtype)
            for name, (shape, dtype) in self.results.items()
        }
        for result in made.values():
            result[...] = 0
        if self.before:
            # Marked read-only, so that the executor reports a kernel that writes to its inputs.
            views = {name: replace(x, readonly=True) for name, x in operands.items()}
            views |= {"d" + name: view(x) for name, x in made.items()}
            memory = _host_workspace(workspace, self.workspace_bytes)
            for name, (start, array) in self.rooms.items():
                room = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
                views[name] = view(room)
            for step in chain(self.before, *self.sides.values()):
                buffers = [views[name] for name in step.names if name]
                pointers = tuple(views[name].pointer if name else 0 for name in step.names)
                step.launch(pointers, step.launch.constants, LEGACY_DEFAULT, buffers)
        return tuple(made.get(name) for name in GRADS)


# -- The workspace ---------------------------------------------------------------------------------


def workspace_address(workspace: Any, plan: Plan, handle: int) -> int | None:
    """Where the caller's workspace is; None: there is none."""
    if workspace is None:
        return None
    found = view(workspace, name="workspace", stream=handle)
    if found.device != plan.place.name:
        raise ValueError(
            f"workspace: expected memory of {plan.place.name}; this is on {found.device}"
        )
    _check_workspace(found, plan.workspace_bytes)
    return found.pointer


def _host_workspace(workspace: Any, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The caller's workspace as bytes, or a new one."""
    if workspace is None:
        room = np.full(nbytes + _ALIGNMENT, 0xFF, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        return room[start : start + nbytes]
    found = view(workspace, name="workspace")
    if found.device != "cpu":
        raise ValueError(f"workspace: expected host memory; this is on {found.device}")
    _check_workspace(found, nbytes)
    return as_numpy(replace(found, shape=(found.nbytes,), strides=(1,), dtype=np.dtype(np.uint8)))


def _check_workspace(found: ArrayView, nbytes: int) -> None:
    if found.strides != contiguous_strides(found.shape, found.dtype.itemsize):
        raise ValueError("workspace: has to be contiguous")
    if found.readonly:
        raise ValueError("workspace: has to be writable; this array is read-only")
    if found.nbytes < nbytes:
        raise ValueError(f"workspace: expected {nbytes:,} bytes; got {found.nbytes:,}")
    if found.pointer % _ALIGNMENT:
        raise ValueError(
            f"workspace: has to start at a multiple of {_ALIGNMENT} bytes; its address is "
            f"{found.pointer:#x}"
        )
