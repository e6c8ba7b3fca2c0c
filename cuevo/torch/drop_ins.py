"""Attention under the names and signatures of other packages' functions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cuevo.torch.function import attend, evoformer_attention

__all__ = ["DS4Sci_EvoformerAttention", "triangle_attention"]

_DS4SCI_LABELS = ("Q", "K", "V", "biases[0]", "biases[1]")


def DS4Sci_EvoformerAttention(  # noqa: N802
    Q: Tensor, K: Tensor, V: Tensor, biases: Sequence[Tensor | None]
) -> Tensor:
    """`evoformer_attention`, called as DeepSpeed's function of that name.

    Q : [B, N, Lq, H, D]; K, V : [B, N, Lk, H, D].
    biases : up to two tensors, or None in the place of one: [B, N, 1, 1, Lk], then [B, 1, H, Lq,
        Lk]. The list is not changed.

    Raises ValueError or TypeError, naming the argument.
    """
    if not isinstance(biases, list | tuple):
        raise TypeError(
            f"biases: expected a list of up to two tensors; got {type(biases).__name__}"
        )
    if len(biases) > 2:
        raise ValueError(f"biases: expected up to two; got {len(biases)}")
    try:
        return evoformer_attention(Q, K, V, *biases)
    except (TypeError, ValueError):  # what it is in the caller's words
        mask_bias, pair_bias = (*biases, None, None)[:2]
        return attend(_DS4SCI_LABELS, (Q, K, V, mask_bias, pair_bias), None)


def triangle_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    return_aux: bool = False,
) -> Tensor:
    """`evoformer_attention`, called as cuequivariance's function of that name; the result is a view
    [B, N, H, Lq, D] of the type of q.

    q : [B, N, H, Lq, D], float16, bfloat16, or float32, which is rounded to bfloat16; k, v : [B, N,
        H, Lk, D], the same type. The axis B may be missing from every tensor, but not from the
        result.
    bias : [B, 1, H, Lq, Lk].
    mask : [B, N, 1, 1, Lk] of any type. A key where it is 0 has a score of -1e9 in place of its
        own; so a row without any key is the mean of v, and has no part in the gradients.
    scale : factor of the scores, default ``1 / sqrt(D)``.
    return_aux : has to be False.

    Raises ValueError or TypeError, naming the argument.
    """
    if return_aux:
        raise ValueError("return_aux: expected False; only the result is computed")
    operands = {"q": q, "k": k, "v": v, "bias": bias}
    *rows, pair_bias = (_with_batch(name, x) for name, x in operands.items())
    half = torch.bfloat16 if q.dtype is torch.float32 else q.dtype
    q5, k5, v5 = (x.transpose(2, 3).to(half) for x in rows)
    mask_bias = None if mask is None else _far(_with_batch("mask", mask))
    pair_bias = pair_bias if pair_bias.dtype is half else pair_bias.float()
    out = evoformer_attention(q5, k5, v5, mask_bias, pair_bias, scale=scale)
    return out.transpose(2, 3).to(q.dtype)


def _with_batch(name: str, x: Any) -> Tensor:
    """`x` with an axis B."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a tensor; got {type(x).__name__}")
    if x.ndim not in (4, 5):
        raise ValueError(f"{name}: expected 5 axes, or 4 without B; got shape {tuple(x.shape)}")
    return x if x.ndim == 5 else x[None]


def _far(mask: Tensor) -> Tensor:
    """0 where the mask is not 0, else a number that leaves nothing of a score in float32."""
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill_(mask == 0, -1e9)
