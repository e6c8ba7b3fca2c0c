"""The primitives of JAX that attention is made of, the types of their results, and derivatives.

`forward_p` takes the operands that `names` says and gives out, and lse, which costs time, where it
is differentiated. Its derivative is `tangent_p`, linear in the tangents of the operands that
`wanted` says; it exists only to be transposed to `backward_p`, which gives the gradients of the
same. (A custom_vjp under vmap would be asked for the gradient of a shared pair bias of each
element, an array as large as all scores, which JAX then sums.)
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad
from jax.sharding import NamedSharding, PartitionSpec

__all__ = ["KEPT", "backward_p", "forward_p", "tangent_p"]

KEPT = ("out", "lse")
"""What the gradients need of the forward pass, besides its operands."""

forward_p: Any = Primitive("evoformer_attention_forward")
"""``out, lse = bind(*operands, names=..., scale=..., with_lse=True)``; False: out alone."""
tangent_p: Any = Primitive("evoformer_attention_tangent")
"""``bind(*operands, out, lse, *tangents, names=..., wanted=..., scale=...)``: tangent of out."""
backward_p: Any = Primitive("evoformer_attention_backward")
"""``gradients = bind(*operands, out, lse, dout, names=..., wanted=..., scale=...)``."""
forward_p.multiple_results = backward_p.multiple_results = True


def _run(primitive: Any, *operands: Any, **parameters: Any) -> Any:
    """Runs a primitive by itself, as `jax.disable_jit` wants it."""
    with jax.disable_jit(False):
        return jax.jit(partial(primitive.bind, **parameters))(*operands)


for _primitive in (forward_p, tangent_p, backward_p):
    _primitive.def_impl(partial(_run, _primitive))

# -- Types of results ------------------------------------------------------------------------------

# Made of those of operands: a type also says how an array is sharded, and varies over devices.


def _forward_types(
    q: Any, *others: Any, names: tuple[str, ...], scale: float, with_lse: bool
) -> list[Any]:
    if not with_lse:
        return [q]
    batch, rows, queries, heads, _ = q.shape
    of_batch, of_rows, _, of_heads, _ = q.sharding.spec
    placed = NamedSharding(q.sharding.mesh, PartitionSpec(of_batch, of_rows, of_heads, None))
    lse = q.update(shape=(batch, rows, heads, queries), dtype=np.dtype("float32"), sharding=placed)
    return [q, lse]


def _tangent_type(q: Any, *others: Any, **parameters: Any) -> Any:
    return q


def _backward_types(
    *operands: Any, names: tuple[str, ...], wanted: tuple[str, ...], scale: float
) -> list[Any]:
    return [operands[names.index(name)] for name in wanted]


forward_p.def_abstract_eval(_forward_types)
tangent_p.def_abstract_eval(_tangent_type)
backward_p.def_abstract_eval(_backward_types)

# -- Derivatives -----------------------------------------------------------------------------------


def _differentiate(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    names: tuple[str, ...],
    scale: float,
    with_lse: bool,
) -> tuple[Any, Any]:
    out, lse = forward_p.bind(*primals, names=names, scale=scale, with_lse=True)
    results = (out, lse) if with_lse else (out,)
    changes = {
        name: dx
        for name, x, dx in zip(names, primals, tangents, strict=True)
        if not isinstance(dx, ad.Zero) and jax.numpy.issubdtype(x.dtype, jax.numpy.floating)
    }
    if not changes:
        return results, tuple(ad.Zero(jax.typeof(x)) for x in results)
    dout = tangent_p.bind(
        *(*primals, out, lse, *changes.values()), names=names, wanted=tuple(changes), scale=scale
    )
    return results, (dout, ad.Zero(jax.typeof(lse)))[: len(results)]


def _transpose(
    dout: Any, *operands: Any, names: tuple[str, ...], wanted: tuple[str, ...], scale: float
) -> list[Any]:
    known = operands[: len(names) + len(KEPT)]
    gradients = backward_p.bind(
        *known, ad.instantiate_zeros(dout), names=names, wanted=wanted, scale=scale
    )
    return [*(None for _ in known), *gradients]


def _no_second_derivative(*operands: Any, **parameters: Any) -> Any:
    raise NotImplementedError(
        "evoformer_attention: second derivatives are not available; jax.grad, jax.vjp and "
        "jax.jacrev give the first"
    )


ad.primitive_jvps[forward_p] = _differentiate
ad.primitive_transposes[tangent_p] = _transpose
ad.primitive_jvps[tangent_p] = _no_second_derivative
ad.primitive_jvps[backward_p] = _no_second_derivative
