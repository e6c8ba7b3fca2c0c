"""The primitives in a compiled program: launches, or a call back to Python, divided over B, N and H
where XLA partitions the program.

XLA's partitioner sees an operation that it knows nothing about. The sharding rule tells it along
which axes arrays belong together, so that it shards them alike; `_Partition` then says what each
device computes from its shards, and which results are summed over devices.
"""

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax._src import dispatch
from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from cuevo.jax.callbacks import Callback, backward_callback, forward_callback
from cuevo.jax.kernels import Call, are_launched, backward_kernels, forward_kernels
from cuevo.jax.primitives import KEPT, backward_p, forward_p, tangent_p

__all__ = ["ENVIRONMENT", "launcher", "register"]

ENVIRONMENT = "CUEVO_JAX"

_TARGETS = {"cpu": "xla_buffer_python_cpu_callback", "cuda": "xla_buffer_python_gpu_callback"}
"""XLA's own functions that call back to Python, by platform; they belong to `buffer_callback`."""

_AXES = {
    "q": "b n q h d",
    "k": "b n k h d",
    "v": "b n k h d",
    "mask_bias": "b n 1 1 k",
    "pair_bias": "b 1 h q k",
    "out": "b n q h d",
    "lse": "b n h q",
    "dout": "b n q h d",
}
_DIVIDED, _WHOLE = ("b", "n", "h"), ("q", "k", "d")


def _axes(names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> list[list[str]]:
    """A name for each axis of each array, the same for those that belong together. An axis of one
    element, which may be broadcast, has a name for itself.
    """
    count = 0
    found = []
    for name, shape in zip(names, shapes, strict=True):
        axes = _AXES[name].split()
        for place, extent in enumerate(shape):
            if extent == 1:
                axes[place] = f"one{count}"
                count += 1
        found.append(axes)
    return found


class _Partition:
    """A call that XLA divides over the devices of a mesh."""

    def __init__(
        self,
        primitive: Any,
        parameters: dict[str, Any],
        names: Sequence[str],
        results: Sequence[str],
        call: Callable[..., Sequence[Any]],
    ) -> None:
        """The call of a primitive with arrays `names`, which gives arrays or gradients `results`.

        ``call(types of results, *arrays)`` computes them on one device.
        """
        self._bind = partial(primitive.bind, **parameters)
        self._names, self._results = names, results
        self._call = call

    def __call__(self, *arrays: Any) -> list[Any]:
        """The results, of arrays that may be sharded."""
        types = jax.eval_shape(self._bind, *arrays)
        named = _axes((*self._names, *self._results), [x.shape for x in (*arrays, *types)])
        operands, results = (
            ", ".join(" ".join(axes) for axes in part)
            for part in (named[: len(arrays)], named[len(arrays) :])
        )
        whole = dict.fromkeys(axis for axes in named for axis in axes if axis in _WHOLE)
        divided = custom_partitioning(self._whole)
        divided.def_partition(
            self._divide,
            sharding_rule=f"{operands} -> {results}",
            need_replication_factors=tuple(whole),  # in the order of the rule
        )
        found: list[Any] = divided(*arrays)
        return found

    def _whole(self, *arrays: Any) -> Sequence[Any]:
        return self._call(jax.eval_shape(self._bind, *arrays), *arrays)

    def _divide(
        self, mesh: Any, arrays: Sequence[Any], results: Sequence[Any]
    ) -> tuple[Any, Callable[..., list[Any]], list[Any], tuple[Any, ...]]:
        """What `custom_partitioning` asks for: the mesh, what each device computes, and shardings
        of results and arrays.
        """
        everything = (*arrays, *results)
        named = _axes((*self._names, *self._results), [x.shape for x in everything])
        chosen = _choose(mesh, named, everything)
        shardings = [
            NamedSharding(mesh, PartitionSpec(*(chosen.get(axis) for axis in axes)))
            for axes in named
        ]
        sums = [
            tuple(name for axis, over in chosen.items() if axis not in axes for name in over)
            for axes in named[len(arrays) :]
        ]
        local = partial(self._on_one_device, sums)
        return mesh, local, shardings[len(arrays) :], tuple(shardings[: len(arrays)])

    def _on_one_device(self, sums: Sequence[tuple[str, ...]], *arrays: Any) -> list[Any]:
        types = jax.eval_shape(self._bind, *arrays)
        # Rounded once, after they are summed; the call has one type for gradients of both biases.
        asked = [
            x.update(dtype=np.dtype("float32")) if any(sums) and name.endswith("bias") else x
            for name, x in zip(self._results, types, strict=True)
        ]
        found = self._call(asked, *arrays)
        return [
            (jax.lax.psum(x, over) if over else x).astype(kind.dtype)
            for x, over, kind in zip(found, sums, types, strict=True)
        ]


def _choose(
    mesh: Any, named: Sequence[Sequence[str]], arrays: Sequence[Any]
) -> dict[str, tuple[str, ...]]:
    """The axes of the mesh over which B, N and H are sharded, as the first of `arrays` has them
    that is sharded there and divides evenly.
    """
    chosen: dict[str, tuple[str, ...]] = {}
    for axes, x in zip(named, arrays, strict=True):
        for axis, extent, over in zip(axes, x.shape, x.sharding.spec, strict=False):
            if axis not in _DIVIDED or axis in chosen or over is None:
                continue
            over = over if isinstance(over, tuple) else (over,)
            taken = {name for names in chosen.values() for name in names}
            shards = math.prod(mesh.shape[name] for name in over)
            if extent % shards == 0 and not taken.intersection(over):
                chosen[axis] = over
    return chosen


# -- Lowering --------------------------------------------------------------------------------------


def _lower(
    primitive: Any,
    context: mlir.LoweringRuleContext,
    operands: Sequence[Any],
    names: Sequence[str],
    results: Sequence[str],
    kernels: Call,
    callback: Callback,
    parameters: dict[str, Any],
) -> Any:
    module = context.module_context
    if len(module.platforms) > 1 or module.platforms[0] not in _TARGETS:
        raise NotImplementedError(
            "evoformer_attention: compiled for one platform at a time, cpu or cuda; got "
            f"{', '.join(module.platforms)}"
        )
    (platform,) = module.platforms
    call = kernels if launcher(platform) == "xla" else _called_back(module, platform, callback)
    place = module.axis_context
    # One device computes all of it where there is one, and inside of a shard_map.
    if not isinstance(place, mlir.ShardingContext) or place.abstract_mesh is None:
        types = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in context.avals_out]
        return mlir.lower_fun(partial(call, types), multiple_results=True)(context, *operands)
    divided = _Partition(primitive, parameters, names, results, call)
    return mlir.lower_fun(divided, multiple_results=True)(context, *operands)


def launcher(platform: str = "cuda") -> str:
    """What launches kernels in a program for `platform`, "cpu" or "cuda": "xla", or "python", which
    XLA calls back.

    It is XLA for devices of CUDA, if it turns out to do it (`cuevo.jax.kernels`); the environment
    variable ``CUEVO_JAX`` may say ``xla`` or ``python`` for programs that are compiled from then
    on. Raises ValueError where it says another word.
    """
    asked = os.environ.get(ENVIRONMENT)
    if asked and asked not in ("xla", "python"):
        raise ValueError(f"{ENVIRONMENT}: expected xla or python; got {asked!r}")
    if platform == "cpu":
        return "python"
    return asked or ("xla" if are_launched() else "python")


def _called_back(module: Any, platform: str, callback: Callback) -> Call:
    target = _TARGETS[platform]
    module.add_host_callback(callback)
    index = np.uint64(len(module.host_callbacks) - 1)

    def call(types: Sequence[Any], *arrays: Any) -> Sequence[Any]:
        found: Sequence[Any] = jax.ffi.ffi_call(target, list(types))(*arrays, index=index)
        return found

    return call


def _lower_forward(
    context: mlir.LoweringRuleContext,
    *operands: Any,
    names: tuple[str, ...],
    scale: float,
    with_lse: bool,
) -> Any:
    both = (
        forward_kernels(names, scale, with_lse=with_lse),
        forward_callback(names, scale, with_lse=with_lse),
    )
    parameters = dict(names=names, scale=scale, with_lse=with_lse)
    return _lower(forward_p, context, operands, names, KEPT[: 1 + with_lse], *both, parameters)


def _lower_backward(
    context: mlir.LoweringRuleContext,
    *operands: Any,
    names: tuple[str, ...],
    wanted: tuple[str, ...],
    scale: float,
) -> Any:
    both = backward_kernels(names, wanted, scale), backward_callback(names, wanted, scale)
    parameters = dict(names=names, wanted=wanted, scale=scale)
    given = (*names, *KEPT, "dout")
    return _lower(backward_p, context, operands, given, wanted, *both, parameters)


def _lower_tangent(context: mlir.LoweringRuleContext, *operands: Any, **parameters: Any) -> Any:
    raise NotImplementedError(
        "evoformer_attention: derivatives in forward mode (jax.jvp, jax.jacfwd) are not available; "
        "jax.grad, jax.vjp and jax.jacrev are"
    )


def register() -> None:
    """Make these the lowerings of the primitives."""
    # Only the lowerings of these are told which devices a program is for.
    dispatch.prim_requires_devices_during_lowering.update((forward_p, backward_p))
    mlir.register_lowering(forward_p, _lower_forward)
    mlir.register_lowering(backward_p, _lower_backward)
    mlir.register_lowering(tangent_p, _lower_tangent)
