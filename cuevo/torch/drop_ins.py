"""Attention under the names and signatures of other packages' functions."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cuevo.ops.attention_problem import AXES, check_shapes
from cuevo.ops.backward import GRADS
from cuevo.torch.function import evoformer_attention

__all__ = ["DS4Sci_EvoformerAttention", "triangle_attention"]


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
    except (TypeError, ValueError) as error:
        _rename(error, _DS4SCI_LABELS)
        raise


_DS4SCI_LABELS = dict(zip(GRADS, ("Q", "K", "V", "biases[0]", "biases[1]"), strict=True))


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

    q : [B, N, H, Lq, D], float16, bfloat16, or float32, which is rounded to bfloat16, under
        ``torch.autocast`` to its type; k, v : [B, N, H, Lk, D], the same type. The axis B may be
        missing from every tensor, but not from the result.
    bias : [B, 1, H, Lq, Lk].
    mask : [B, N, 1, 1, Lk] of any type. A key where it is 0 has a score below all others in place
        of its own, one for all such keys; so a row without any key is the mean of v, and has no
        part in the gradients.
    scale : factor of the scores, default ``1 / sqrt(D)``.
    return_aux : has to be False.

    Raises ValueError or TypeError, naming the argument.
    """
    if return_aux:
        raise ValueError("return_aux: expected False; only the result is computed")
    given = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias}
    q5, k5, v5, mask5, bias5 = (_with_batch(name, x) for name, x in given.items())
    half = q.dtype
    if half is torch.float32:
        kind = q.device.type
        is_autocast = kind != "meta" and torch.is_autocast_enabled(kind)
        half = torch.get_autocast_dtype(kind) if is_autocast else torch.bfloat16
    q5, k5, v5 = (x.transpose(2, 3).to(half) for x in (q5, k5, v5))
    mask_bias = None if mask is None else _far(mask5)
    pair_bias = bias5 if bias5.dtype is half else bias5.float()
    try:
        out = evoformer_attention(q5, k5, v5, mask_bias, pair_bias, scale=scale)
    except (TypeError, ValueError) as error:
        present = {name: x for name, x in zip(GRADS, given.values(), strict=True) if x is not None}
        axes = {name: _TRIANGLE_AXES[name][-x.ndim :] for name, x in present.items()}
        shapes = {name: tuple(x.shape) for name, x in present.items()}
        check_shapes(shapes, _TRIANGLE_LABELS, axes)
        _rename(error, _TRIANGLE_LABELS)
        raise
    return out.transpose(2, 3).to(q.dtype)


_TRIANGLE_LABELS = dict(zip(GRADS, ("q", "k", "v", "mask", "bias"), strict=True))
_TRIANGLE_AXES = {
    **AXES,
    "q": ("B", "N", "H", "Lq", "D"),
    "k": ("B", "N", "H", "Lk", "D"),
    "v": ("B", "N", "H", "Lk", "D"),
}


def _with_batch(name: str, x: Any) -> Any:
    """`x` with an axis B; a mask may be missing."""
    if x is None and name == "mask":
        return None
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a tensor; got {type(x).__name__}")
    if x.ndim not in (4, 5):
        raise ValueError(f"{name}: expected 5 axes, or 4 without B; got shape {tuple(x.shape)}")
    return x if x.ndim == 5 else x[None]


def _far(mask: Tensor) -> Tensor:
    """0 where the mask is not 0, else a number that leaves nothing of a score in float32."""
    return torch.zeros_like(mask, dtype=torch.float32).masked_fill_(mask == 0, -1e30)


def _rename(error: Exception, labels: Mapping[str, str]) -> None:
    """Have an error of `evoformer_attention` say what the caller knows its arguments by."""
    names = "|".join(labels)
    error.args = (re.sub(rf"\b({names})\b", lambda found: labels[found[0]], str(error)),)
