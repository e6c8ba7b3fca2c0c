"""Gated triangle attention as a function of JAX, to copy: checked, and trained for some steps.

python examples/front_ends/jax_function.py        on the GPU if there is one, else the CPU executor
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

if __name__ == "__main__":  # the help page needs no jax
    layout = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=layout).parse_args()

import jax
import jax.numpy as jnp
from jax import Array

from cuevo.jax import evoformer_attention

Weights = dict[str, Array]
LENGTH, CHANNELS, HEADS, HEAD_DIM = 17, 32, 2, 16
STEPS, RATE = 6, 4.0


def make_weights(key: Array) -> Weights:
    shapes = {
        "qkv": (CHANNELS, 3, HEADS, HEAD_DIM),
        "bias": (CHANNELS, HEADS),
        "gate": (CHANNELS, HEADS, HEAD_DIM),
        "out": (HEADS, HEAD_DIM, CHANNELS),
    }
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(key, shape) * CHANNELS**-0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def normalise(x: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def triangle_attention(
    weights: Weights, pair: Array, mask: Array, attend: Callable[..., Array]
) -> Array:
    """Attention of the edges i-j to the edges i-k. pair [B, L, L, C]; mask [B, L, L] bool, True
    where both residues are there.
    """
    x = normalise(pair)
    q, k, v = jnp.moveaxis(jnp.einsum("bnlc,cshd->bnlshd", x, weights["qkv"]), 3, 0)
    pair_bias = jnp.einsum("bqkc,ch->bhqk", x, weights["bias"])[:, None]
    mask_bias = mask[:, :, None, None]
    out = attend(q, k, v, mask_bias, pair_bias)
    gate = jax.nn.sigmoid(jnp.einsum("bnlc,chd->bnlhd", x, weights["gate"]))
    return jnp.einsum("bnlhd,hdc->bnlc", gate * out, weights["out"])


def with_cuevo(q: Array, k: Array, v: Array, mask_bias: Array, pair_bias: Array) -> Array:
    """q, k and v in bfloat16, the rest in float32."""
    q, k, v = (x.astype(jnp.bfloat16) for x in (q, k, v))
    return evoformer_attention(q, k, v, mask_bias, pair_bias).astype(jnp.float32)


def plain_attention(q: Array, k: Array, v: Array, mask_bias: Array, pair_bias: Array) -> Array:
    """The same, with a matrix of all scores."""
    scores = jnp.einsum("bnqhd,bnkhd->bnhqk", q, k) * q.shape[-1] ** -0.5 + pair_bias
    weights = jax.nn.softmax(jnp.where(mask_bias, scores, -1e9))
    return jnp.einsum("bnhqk,bnkhd->bnqhd", weights, v)


def loss(
    weights: Weights, pair: Array, mask: Array, target: Array, attend: Callable[..., Array]
) -> tuple[Array, Array]:
    """Mean of squared differences to the target where the mask is True; and what differs."""
    out = pair + triangle_attention(weights, pair, mask, attend)
    return jnp.square(out - target).mean(where=mask[..., None]), out


def make_step(attend: Callable[..., Array]) -> Callable[..., Any]:
    """The loss, and its gradients by weights and pair representation, as one compiled function."""
    return jax.jit(jax.value_and_grad(partial(loss, attend=attend), argnums=(0, 1), has_aux=True))


def relative_error(found: Array, exact: Array) -> float:
    return float(jnp.linalg.norm(found - exact) / jnp.linalg.norm(exact))


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    weights = make_weights(keys[0])
    pair = jax.random.normal(keys[1], (1, LENGTH, LENGTH, CHANNELS))
    present = jnp.arange(LENGTH) < LENGTH - 2  # two residues of padding
    mask = (present[:, None] & present)[None]
    target = jnp.tanh(pair @ jax.random.normal(keys[2], (CHANNELS, CHANNELS)) / 8)

    step = make_step(with_cuevo)
    (_, out), gradients = step(weights, pair, mask, target)
    (_, exact), exact_gradients = make_step(plain_attention)(weights, pair, mask, target)
    seen = mask[..., None]  # rows of padding say nothing, in either
    errors = jax.tree.leaves(jax.tree.map(relative_error, gradients, exact_gradients))
    print(f"error {relative_error(out * seen, exact * seen):.1e}, of gradients {max(errors):.1e}")

    losses = []
    for _ in range(STEPS):
        (value, _), (by_weights, _) = step(weights, pair, mask, target)
        weights = jax.tree.map(lambda x, dx: x - RATE * dx, weights, by_weights)
        losses.append(float(value))
    print(f"loss {losses[0]:.3f}, after {STEPS} steps {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
