"""Evoformer attention as an operator of torch: differentiable, and known to ``torch.compile``.

This module imports torch, which cuevo does not depend on; no other module does.

>>> q, k, v = (torch.randn(1, 2, 16, 1, 8, dtype=torch.bfloat16) for _ in range(3))
>>> evoformer_attention(q, k, v).shape
torch.Size([1, 2, 16, 1, 8])
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cuevo.ops import GRADS, attention, attention_backward, attention_backward_workspace

__all__ = ["DS4Sci_EvoformerAttention", "evoformer_attention", "triangle_attention"]


def evoformer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask_bias: Tensor | None = None,
    pair_bias: Tensor | None = None,
    *,
    scale: float | None = None,
) -> Tensor:
    """``softmax(q k^T scale + mask_bias + pair_bias) v``, a new contiguous tensor.

    q : [B, N, Lq, H, D], float16 or bfloat16; k, v : [B, N, Lk, H, D], the same type.
    mask_bias : [B, N, 1, 1, Lk], that type, float32, or bool, True = attend.
    pair_bias : [B, 1, H, Lq, Lk], that type or float32.
    scale : factor of the scores, default ``1 / sqrt(D)``.

    Differentiable in q, k, v and biases of floats; only the gradients that are needed are computed,
    in the type of what they are gradients of. It runs on the current stream of the tensors' device.
    Strides as in `cuevo.attention`; shapes are not broadcast: expand() a tensor, which copies
    nothing. Tensors in host memory are taken as `cuevo.attention` takes host arrays.

    Raises ValueError or TypeError, naming the argument.
    """
    _check(dict(zip(GRADS, (q, k, v, mask_bias, pair_bias), strict=True)), GRADS)
    if scale is not None and not isinstance(scale, int | float):
        raise TypeError(f"scale: expected a number or None; got {type(scale).__name__}")
    out, _ = _forward_op(q, k, v, mask_bias, pair_bias, scale)
    return out  # type: ignore[no-any-return, unused-ignore]


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
    first, second = (*biases, None, None)[:2]
    operands = dict(zip(GRADS, (Q, K, V, first, second), strict=True))
    _check(operands, ("Q", "K", "V", "biases[0]", "biases[1]"))
    return evoformer_attention(**operands)


_AXES = {
    "q": "[B, N, Lq, H, D]",
    "k": "[B, N, Lk, H, D]",
    "v": "[B, N, Lk, H, D]",
    "mask_bias": "[B, N, 1, 1, Lk]",
    "pair_bias": "[B, 1, H, Lq, Lk]",
}


def _check(operands: dict[str, Any], labels: Sequence[str]) -> None:
    """That these are tensors of shapes that fit; `labels` is what the caller knows them by."""
    names = dict(zip(operands, labels, strict=True))
    for name, x in operands.items():
        if x is None and name.endswith("bias"):
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{names[name]}: expected a tensor; got {type(x).__name__}")
        if x.ndim != 5:
            raise ValueError(
                f"{names[name]}: expected 5 axes {_AXES[name]}; got shape {tuple(x.shape)}"
            )
    batch, rows, queries, heads, head_dim = operands["q"].shape
    keys = operands["k"].shape[2]
    expected = {
        "k": (batch, rows, keys, heads, head_dim),
        "v": (batch, rows, keys, heads, head_dim),
        "mask_bias": (batch, rows, 1, 1, keys),
        "pair_bias": (batch, 1, heads, queries, keys),
    }
    for name, shape in expected.items():
        x = operands[name]
        if x is not None and tuple(x.shape) != shape:
            raise ValueError(
                f"{names[name]}: expected {_AXES[name]} = {tuple(shape)}, not broadcast; got shape "
                f"{tuple(x.shape)}"
            )


# -- Forward ---------------------------------------------------------------------------------------


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask_bias: Tensor | None,
    pair_bias: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    out, lse = _results(q, k, v, mask_bias, pair_bias, scale)
    attention(q, k, v, mask_bias=mask_bias, pair_bias=pair_bias, scale=scale, out=out, lse=lse)
    return out, lse


def _results(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask_bias: Tensor | None,
    pair_bias: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """Memory for out [B, N, Lq, H, D] and lse [B, N, H, Lq]."""
    batch, rows, queries, heads, _ = q.shape
    lse = q.new_empty((batch, rows, heads, queries), dtype=torch.float32)
    return q.new_empty(q.shape), lse


# -- Backward --------------------------------------------------------------------------------------


def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask_bias: Tensor | None,
    pair_bias: Tensor | None,
    scale: float | None,
    grads: str,
) -> list[Tensor]:
    """The gradients that `grads` names, separated by spaces, in the order of `GRADS`."""
    wanted = grads.split()
    results = _gradients(dout, q, k, v, out, lse, mask_bias, pair_bias, scale, grads)
    found = dict(zip(wanted, results, strict=True))
    arrays = (_with_rows(dout), q, k, v, out, lse)
    options: dict[str, Any] = dict(
        mask_bias=mask_bias, pair_bias=pair_bias, scale=scale, grads=wanted
    )
    options["results"] = [found.get(name) for name in GRADS]
    workspace = None
    if q.is_cuda:
        # From torch's own cache of memory, which would not know of another pool.
        nbytes = attention_backward_workspace(*arrays, **options)
        workspace = q.new_empty(nbytes, dtype=torch.uint8) if nbytes else None
    attention_backward(*arrays, **options, workspace=workspace)
    return results


def _gradients(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask_bias: Tensor | None,
    pair_bias: Tensor | None,
    scale: float | None,
    grads: str,
) -> list[Tensor]:
    """Memory for the gradients that `grads` names."""
    operands: dict[str, Any] = dict(zip(GRADS, (q, k, v, mask_bias, pair_bias), strict=True))
    return [operands[name].new_empty(operands[name].shape) for name in grads.split()]


def _with_rows(dout: Tensor) -> Tensor:
    """`dout`, or a copy of it where its rows are not contiguous or not aligned to 16 bytes."""
    *outer, last = dout.stride()
    size = dout.element_size()
    steps = [size * step for extent, step in zip(dout.shape, outer, strict=False) if extent > 1]
    if last != 1 or any(step % 16 for step in (dout.data_ptr(), *steps)):
        return dout.clone(memory_format=torch.contiguous_format)
    return dout


# -- Operators -------------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask_bias, pair_bias, scale = inputs
    out, lse = output
    ctx.save_for_backward(q, k, v, out, lse, mask_bias, pair_bias)
    ctx.scale = scale
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dout: Tensor | None, dlse: None) -> tuple[Tensor | None, ...]:
    needed = zip(GRADS, ctx.needs_input_grad, strict=False)
    wanted = [name for name, is_needed in needed if is_needed]
    if dout is None or not wanted:
        return (None,) * 6
    results = _backward_op(dout, *ctx.saved_tensors, ctx.scale, " ".join(wanted))
    found = dict(zip(wanted, results, strict=True))
    return (*(found.get(name) for name in GRADS), None)


_forward_op = torch.library.custom_op(
    "cuevo::evoformer_attention_forward", _forward, mutates_args=()
)
_forward_op.register_fake(_results)
_backward_op = torch.library.custom_op(
    "cuevo::evoformer_attention_backward", _backward, mutates_args=()
)
_backward_op.register_fake(_gradients)
_forward_op.register_autograd(_differentiate, setup_context=_save)


# -- The call of cuequivariance --------------------------------------------------------------------


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
