"""Evoformer attention as a function of JAX: differentiable, eager, compiled, mapped and sharded.

This package imports jax, which cuevo does not depend on; nothing else does. The function here
checks its arguments while JAX traces it and calls the primitives of `primitives`, with their
derivatives. `folding` is what vmap makes of them, `lowering` what a compiled program has of them on
one device and on many: launches by XLA (`kernels`, of what `launches` makes of a plan), or calls
that come back to Python (`callbacks`).

>>> q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 2, 16, 1, 8), jax.numpy.bfloat16)
>>> evoformer_attention(q, k, v).shape
(1, 2, 16, 1, 8)
"""

from functools import partial
from typing import Any

import jax
import numpy as np

from cuevo.arrays import ArrayView, contiguous_strides
from cuevo.jax import folding, lowering
from cuevo.jax.kernels import DISABLED_CHECKS
from cuevo.jax.lowering import ENVIRONMENT, launcher
from cuevo.jax.primitives import forward_p
from cuevo.ops.attention_problem import check_scale, state_problem
from cuevo.ops.backward import GRADS

__all__ = ["DISABLED_CHECKS", "ENVIRONMENT", "evoformer_attention", "launcher"]

folding.register()
lowering.register()


def evoformer_attention(
    q: Any,
    k: Any,
    v: Any,
    mask_bias: Any = None,
    pair_bias: Any = None,
    *,
    scale: Any = None,
) -> Any:
    """``softmax(q k^T scale + mask_bias + pair_bias) v``.

    q : [B, N, Lq, H, D], float16 or bfloat16; k, v : [B, N, Lk, H, D], the same type. D is a
        multiple of 8 from 8 to 128.
    mask_bias : [B, N, 1, 1, Lk], that type, float32, or bool, True = attend. B and N may be 1 each.
    pair_bias : [B, 1, H, Lq, Lk], that type or float32. B may be 1.
    scale : factor of the scores, a number that is known while tracing, default ``1 / sqrt(D)``.

    Differentiable in reverse mode, once, in q, k, v and biases of floats; only the gradients that
    are needed are computed, in the type of what they are gradients of.

    `jax.vmap` makes one call: the new axis becomes a part of N where the pair bias is shared, and
    a part of B otherwise. Under `jax.jit` arrays that are sharded over B, N or H stay where they
    are, other axes are gathered; gradients of biases are summed over the shards, in float32. Inside
    of `jax.shard_map` each device has a call of its own.

    On a GPU XLA launches the kernels, which are part of the program: chosen for the first of the
    process's GPUs, or for sm_80 and later where there is none; for another architecture if the
    environment variable ``CUEVO_JAX_ARCH`` says so, such as ``sm_90``. Everything is XLA's memory.
    Such a program can be kept by JAX's compilation cache and by ``jax.export.export(...,
    disabled_checks=DISABLED_CHECKS)``, and runs where cuevo is not; one that is divided over
    devices under `jax.jit`, rather than in `jax.shard_map`, cannot be exported.

    Where `launcher` says "python", as always on a CPU, the program comes back to Python, and can
    not be kept. On a GPU the call runs then on the stream that XLA gives, and a workspace, where it
    needs one, is taken from the driver's pool in the order of the stream, outside of what JAX has
    preallocated (``XLA_PYTHON_CLIENT_MEM_FRACTION`` leaves room for it).

    Raises ValueError or TypeError, naming the argument, while tracing.
    """
    operands = dict(zip(GRADS, (q, k, v, mask_bias, pair_bias), strict=True))
    present = {
        name: _as_array(name, x)
        for name, x in operands.items()
        if x is not None or not name.endswith("bias")
    }
    problem = state_problem(**{name: _described(x) for name, x in present.items()})
    factor = check_scale(_as_number(scale), problem.head_dim)
    return _attention(_varying_alike(present.values()), names=tuple(present), scale=factor)


# Compiled as a whole, also where it is called eagerly: traced once for each kind of call, and
# inside of an eager shard_map, too.
@partial(jax.jit, static_argnames=("names", "scale"))
def _attention(operands: tuple[Any, ...], names: tuple[str, ...], scale: float) -> Any:
    (out,) = forward_p.bind(*operands, names=names, scale=scale, with_lse=False)
    return out


def _as_array(name: str, x: Any) -> Any:
    if not isinstance(x, jax.Array | np.ndarray):
        raise TypeError(f"{name}: expected a JAX or NumPy array; got {type(x).__name__}")
    return jax.numpy.asarray(x)


def _as_number(scale: Any) -> Any:
    """`scale`, an array of one number taken for that number."""
    if isinstance(scale, jax.core.Tracer):
        raise TypeError(
            "scale: expected a number that is known while tracing, as the kernels' parameters are "
            "packed then; got a traced value. Make it a static argument of jax.jit, or multiply q "
            "by it and pass scale=1.0"
        )
    if isinstance(scale, jax.Array | np.ndarray) and scale.ndim == 0:
        return scale.item()
    return scale


def _described(x: Any) -> ArrayView:
    """A view of shape and type; the memory is known only inside of a callback, which gets it
    contiguous.
    """
    dtype = np.dtype(x.dtype)
    return ArrayView(0, x.shape, contiguous_strides(x.shape, dtype.itemsize), dtype, "cpu", True, x)


def _varying_alike(operands: Any) -> tuple[Any, ...]:
    """The operands, each varying over all the manual axes of a shard_map that any of them varies
    over. The gradient of one that is the same on all devices of an axis is thereby summed over it.
    """
    axes = [jax.typeof(x).manual_axis_type.varying for x in operands]
    every = frozenset().union(*axes)
    return tuple(
        jax.lax.pcast(x, tuple(sorted(every - own)), to="varying")
        for x, own in zip(operands, axes, strict=True)
    )
