"""What runs when a compiled program comes to a call: attention on the buffers of XLA.

JAX's own `buffer_callback` does the same for any function; but in a call that XLA's partitioner
divides it is lost, since that is lowered as a program of its own. So `lowering` hands these to the
whole program, and the parts name them by number.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cuevo.arrays import ArrayView, contiguous_strides, dlpack
from cuevo.jax.primitives import KEPT
from cuevo.ops.backward import GRADS, attention_backward
from cuevo.ops.forward import attention

__all__ = ["Callback", "backward_callback", "forward_callback"]

_Buffer = Any
"""An array of XLA inside of a callback, contiguous."""
Callback = Callable[..., tuple[()]]
"""``callback(context, *operands, *results)``."""


def forward_callback(names: Sequence[str], scale: float, *, with_lse: bool) -> Callback:
    """Computes out, and lse if it is wanted, from the operands `names`."""
    every = (*names, *KEPT[: 1 + with_lse])
    views_of = _Views(len(names))

    def run(context: Any, *buffers: _Buffer) -> tuple[()]:
        views = views_of(buffers)
        arrays: dict[str, Any] = dict(zip(every, views, strict=True))
        attention(**arrays, scale=scale, stream=_stream(context, views[0]))
        return ()

    return run


def backward_callback(names: Sequence[str], wanted: Sequence[str], scale: float) -> Callback:
    """Computes the gradients `wanted` from the operands `names`, out, lse and dout. Gradients of
    biases may be float32 in the place of the biases' own type.
    """
    operands = (*names, *KEPT, "dout")
    biases = [name for name in wanted if name.endswith("bias")]
    views_of = _Views(len(operands), [len(operands) + wanted.index(name) for name in biases])

    def run(context: Any, *buffers: _Buffer) -> tuple[()]:
        views = views_of(buffers)
        arrays: dict[str, Any] = dict(zip(operands, views, strict=False))
        targets = dict(zip(wanted, views[len(operands) :], strict=True))
        widened = any(targets[name].dtype != arrays[name].dtype for name in biases)
        attention_backward(
            **arrays,
            scale=scale,
            grads=wanted,
            bias_grad_dtype="float32" if widened else None,
            results=[targets.get(name) for name in GRADS],
            stream=_stream(context, views[0]),
        )
        return ()

    return run


class _Views:
    """Views of the buffers of a callback. Each time a buffer is asked for its address only: shapes
    and types, which take longer, are kept.
    """

    def __init__(self, operands: int, of_two_types: Sequence[int] = ()) -> None:
        """The first `operands` buffers are read-only; those at the places `of_two_types` have one
        type or another, by the place in the program that the callback is called from.
        """
        self._operands = operands
        self._of_two_types = of_two_types
        self._known: dict[Any, list[tuple[Any, ...]]] = {}

    def __call__(self, buffers: Sequence[_Buffer]) -> list[ArrayView]:
        kind, ordinal = buffers[0].__dlpack_device__()
        on_host = int(kind) == dlpack.CPU
        device = "cpu" if on_host else f"cuda:{int(ordinal)}"
        # As large as q's shard is, so are all others.
        key = (buffers[0].shape, *[buffers[place].dtype for place in self._of_two_types])
        types = self._known.get(key)
        if types is None:
            types = self._known[key] = [
                (x.shape, contiguous_strides(x.shape, x.dtype.itemsize), x.dtype) for x in buffers
            ]
        views: list[ArrayView] = []
        for (shape, strides, dtype), x in zip(types, buffers, strict=True):
            interface = np.asarray(x).__array_interface__ if on_host else x.__cuda_array_interface__
            readonly = len(views) < self._operands
            address = interface["data"][0]
            views.append(ArrayView(address, shape, strides, dtype, device, readonly, x))
        return views


def _stream(context: Any, view: ArrayView) -> int | None:
    return None if view.device == "cpu" else int(context.stream)
