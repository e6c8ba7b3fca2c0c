"""Evoformer attention as a function of JAX: differentiable, eager and under ``jax.jit``.

This module imports jax, which cuevo does not depend on; no other module does.

>>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 2, 16, 1, 8), jax.numpy.bfloat16)
>>> evoformer_attention(q, k, v).shape
(1, 2, 16, 1, 8)
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.experimental.buffer_callback import buffer_callback

from cuevo.arrays import ArrayView, array_from_pointer, contiguous_strides, dlpack
from cuevo.ops import GRADS, attention, attention_backward
from cuevo.ops.attention_problem import check_scale, state_problem

__all__ = ["evoformer_attention"]

_Buffer = Any
"""An array of XLA inside of a callback."""


def evoformer_attention(
    q: Any,
    k: Any,
    v: Any,
    mask_bias: Any = None,
    pair_bias: Any = None,
    *,
    scale: float | None = None,
) -> Any:
    """``softmax(q k^T scale + mask_bias + pair_bias) v``.

    q : [B, N, Lq, H, D], float16 or bfloat16; k, v : [B, N, Lk, H, D], the same type. D is a
        multiple of 8 from 8 to 128.
    mask_bias : [B, N, 1, 1, Lk], that type, float32, or bool, True = attend. B and N may be 1 each.
    pair_bias : [B, 1, H, Lq, Lk], that type or float32. B may be 1.
    scale : factor of the scores, a number that is known while tracing, default ``1 / sqrt(D)``.

    Differentiable in reverse mode in q, k, v and biases of floats; only the gradients that are
    needed are computed, in the type of what they are gradients of. On a GPU it runs on the stream
    that XLA gives. ``vmap`` makes a loop of calls.

    Raises ValueError or TypeError, naming the argument, while tracing.
    """
    operands = dict(zip(GRADS, (q, k, v, mask_bias, pair_bias), strict=True))
    present = {
        name: _as_array(name, x)
        for name, x in operands.items()
        if x is not None or not name.endswith("bias")
    }
    problem = state_problem(**{name: _described(x) for name, x in present.items()})
    factor = check_scale(scale, problem.head_dim)
    return _attention(factor, *(present.get(name) for name in GRADS))


def _as_array(name: str, x: Any) -> Any:
    if not isinstance(x, jax.Array | np.ndarray):
        raise TypeError(f"{name}: expected a JAX or NumPy array; got {type(x).__name__}")
    return jax.numpy.asarray(x)


def _described(x: Any) -> ArrayView:
    """A view of shape and type; the memory is known only inside of a callback, which gets it
    contiguous.
    """
    dtype = np.dtype(x.dtype)
    return ArrayView(0, x.shape, contiguous_strides(x.shape, dtype.itemsize), dtype, "cpu", True, x)


# -- Derivatives -----------------------------------------------------------------------------------


def _primal(scale: float, *operands: Any) -> Any:
    present = {name: x for name, x in zip(GRADS, operands, strict=True) if x is not None}
    return _forward(scale, present)[0]


def _forward_rule(scale: float, *primals: Any) -> tuple[Any, tuple[Any, ...]]:
    present = {name: x for name, x in zip(GRADS, primals, strict=True) if x is not None}
    operands = {name: x.value for name, x in present.items()}
    out, lse = _forward(scale, operands)
    # Names that are known while tracing: the keys of a tree without leaves.
    wanted = {
        name: None
        for name, x in present.items()
        if x.perturbed and jax.numpy.issubdtype(x.value.dtype, jax.numpy.floating)
    }
    return out, (operands, out, lse, wanted)


def _backward_rule(scale: float, residuals: tuple[Any, ...], dout: Any) -> tuple[Any, ...]:
    operands, out, lse, wanted = residuals
    if isinstance(dout, SymbolicZero) or not wanted:
        return (None,) * len(GRADS)
    results = {name: _struct(operands[name].shape, operands[name].dtype) for name in wanted}
    call = buffer_callback(_backward_callback(scale), results, vmap_method="sequential")
    found = call(operands | {"dout": dout, "out": out, "lse": lse})
    return tuple(found.get(name) for name in GRADS)


_attention = jax.custom_vjp(_primal, nondiff_argnums=(0,))
_attention.defvjp(_forward_rule, _backward_rule, symbolic_zeros=True)


def _forward(scale: float, operands: Mapping[str, Any]) -> tuple[Any, Any]:
    """The result and the log-sum-exps."""
    q = operands["q"]
    batch, rows, queries, heads, _ = q.shape
    lse = _struct((batch, rows, heads, queries), np.float32)
    results = (_struct(q.shape, q.dtype), lse)
    call = buffer_callback(_forward_callback(scale), results, vmap_method="sequential")
    out, sums = call(operands)
    return out, sums


def _struct(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call, unused-ignore]


# -- Callbacks: on XLA's buffers, while a compiled function runs -----------------------------------

# Kept, as JAX compiles anew for another callback.


@lru_cache
def _forward_callback(scale: float) -> Callable[..., None]:
    return partial(_run_forward, scale)


@lru_cache
def _backward_callback(scale: float) -> Callable[..., None]:
    return partial(_run_backward, scale)


def _run_forward(
    scale: float, context: Any, results: tuple[_Buffer, _Buffer], operands: dict[str, _Buffer]
) -> None:
    out, lse = map(_array, results)
    arrays = {name: _array(x) for name, x in operands.items()}
    attention(**arrays, scale=scale, out=out, lse=lse, stream=_stream(context, results[0]))


def _run_backward(
    scale: float, context: Any, results: dict[str, _Buffer], operands: dict[str, _Buffer]
) -> None:
    arrays = {name: _array(x) for name, x in operands.items()}
    targets = {name: _array(x) for name, x in results.items()}
    attention_backward(
        **arrays,
        scale=scale,
        grads=[name for name in GRADS if name in targets],
        results=[targets.get(name) for name in GRADS],
        stream=_stream(context, operands["q"]),
    )


def _array(buffer: _Buffer) -> Any:
    """The buffer's memory: a NumPy array on a CPU, a view of device memory on a GPU."""
    kind, ordinal = map(int, buffer.__dlpack_device__())
    if kind == dlpack.CPU:
        return np.asarray(buffer)
    # Its type is the buffer's own: the CUDA array interface cannot name bfloat16.
    pointer, _ = buffer.__cuda_array_interface__["data"]
    return array_from_pointer(pointer, buffer.shape, buffer.dtype, device=f"cuda:{ordinal}")


def _stream(context: Any, buffer: _Buffer) -> int | None:
    kind, _ = buffer.__dlpack_device__()
    return None if int(kind) == dlpack.CPU else int(context.stream)
