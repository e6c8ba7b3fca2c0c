"""`evoformer_attention`: its checks, and the way that a call goes."""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cuevo.arrays import Addresses, Guarded, Pick
from cuevo.ops.attention_problem import check_scale, check_shapes
from cuevo.ops.backward import GRADS
from cuevo.torch import calls
from cuevo.torch.kinds import Gradients, Out, repeat_backward, repeat_forward
from cuevo.torch.operators import differentiate, operator, refuse_forward_mode
from cuevo.torch.sharding import attend_in_shards, is_sharded

__all__ = ["evoformer_attention"]


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

    q : [B, N, Lq, H, D], float16 or bfloat16; k, v : [B, N, Lk, H, D], the same type. Any strides:
        what a kernel cannot read in place (a last axis that is not contiguous, rows that do not
        start at multiples of 16 bytes) is copied.
    mask_bias : [B, N, 1, 1, Lk], that type, float32, or bool, True = attend. B and N may be 1 each.
    pair_bias : [B, 1, H, Lq, Lk], that type or float32. B may be 1. Biases have any strides.
    scale : factor of the scores, default ``1 / sqrt(D)``.

    Differentiable, once, in q, k, v and biases of floats; only the gradients that are needed are
    computed, contiguous, in the type of what they are gradients of. Under ``torch.autocast`` q, k
    and v are cast to its type, and so are biases of another 16-bit type; float32 biases stay.
    ``torch.vmap`` makes the samples more batches, or more rows where all share a pair bias; what
    cannot be seen as that is copied. It runs on the current stream of the tensors' device, takes
    memory for results and workspace from torch, and can be captured in a graph. Tensors in host
    memory are taken as `cuevo.attention` takes host arrays. DTensors, all of one mesh, stay sharded
    over B, N and H, as the first of them is that is; the rest is gathered. The gradient of an
    operand is placed as the operand is, its terms summed over devices in its own type.

    Raises ValueError or TypeError, naming the argument; NotImplementedError where a gradient is
    differentiated again, and for forward-mode derivatives.
    """
    operands = (q, k, v, mask_bias, pair_bias)
    key: Any = None
    if not _is_traced():
        try:
            key = (q.numel(), _grads_are_enabled(), scale, mask_bias is None, pair_bias is None)
            kinds = _FORWARD.get(key, ())
        except (AttributeError, TypeError):  # no tensor, or a symbolic size
            kinds = ()
        for pick, is_like, run in kinds:
            if is_like(*pick(operands)) and forward_ad._current_level < 0:
                out = run(q, k, v, mask_bias, pair_bias)
                if out is not None:
                    return out
    return _attend(operands, scale, key)


# -- Calls -----------------------------------------------------------------------------------------


def _attend(operands: tuple[Any, Any, Any, Any, Any], scale: float | None, key: Hashable) -> Tensor:
    """A call of no kind that is known, of that `key` if there is one."""
    if not isinstance(scale, float | None):
        scale = check_scale(scale, 1)
    if not _is_eager(operands):
        _check_tensors(operands)
        operands = _autocast(*operands)
        _check(operands)
        _refuse_tangents(operands)
        if is_sharded(operands):
            return attend_in_shards(partial(evoformer_attention, scale=scale), operands)
        return operator(*operands, scale)
    try:
        cast: tuple[Any, Any, Any, Any, Any] = _autocast(*operands)
        is_recorded = torch.is_grad_enabled() and _any_requires_grad(*cast)
        if is_recorded:
            out: Tensor = _first(scale).apply(*cast)
        else:
            out = calls.forward(*cast, scale, with_lse=False)[0]
        if key and not torch.is_autocast_enabled(out.device.type):
            _FORWARD.keep(key, operands, partial(_repeat, operands, scale, out.dtype, is_recorded))
        return out
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        refused = error
    # What torch's words say better is, and the rest as it came.
    _check_tensors(operands)
    _check(operands)
    raise refused


def _is_eager(operands: tuple[Any, ...]) -> bool:
    """Whether these are tensors whose elements are in memory of their own, or None but for the
    first, and nobody records or transforms what is done with them.
    """
    return (
        not torch.compiler.is_compiling()
        and _PLAIN.issuperset(map(type, operands))
        and not (operands[0] is None or operands[0].is_meta)
        and not any(map(_is_elsewhere, operands))
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._is_tracing()
        and forward_ad._current_level < 0
    )


def _is_elsewhere(x: Tensor | None) -> bool:
    """Whether elements of `x` are not what is in its memory."""
    return x is not None and any(map(torch._C._dispatch_keys(x).has, _ELSEWHERE))


_ELSEWHERE: list[Any] = [
    torch._C._parse_dispatch_key(name)
    for name in ("Negative", "Conjugate", "ZeroTensor", "Batched")
]
"""Dispatch keys of tensors with a sign or zeros beside their memory, and of samples of the vmap
within autograd.
"""
_is_traced, _grads_are_enabled = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
_PLAIN = frozenset({Tensor, torch.nn.Parameter, type(None)})


def _any_requires_grad(q: Tensor, k: Tensor, v: Tensor, mask_bias: Any, pair_bias: Any) -> bool:
    return (
        q.requires_grad
        or k.requires_grad
        or v.requires_grad
        or (mask_bias is not None and mask_bias.requires_grad)
        or (pair_bias is not None and pair_bias.requires_grad)
    )


def _first_forward(scale: float | None, ctx: Any, *operands: Any) -> Tensor:
    """The forward pass of calls of no kind that is known."""
    q, k, v, mask_bias, pair_bias = operands
    out, lse = calls.forward(q, k, v, mask_bias, pair_bias, scale, with_lse=True)
    ctx.save_for_backward(*operands, out, lse)
    return out


def _backward(scale: float | None, ctx: Any, dout: Any) -> tuple[Tensor | None, ...]:
    q, k, v, mask_bias, pair_bias, out, lse = ctx.saved_tensors
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return _by_operator(scale, ctx, dout)
    operands = (dout, q, k, v, out, lse, mask_bias, pair_bias)
    needed = ctx.needs_input_grad
    key = (dout.numel(), mask_bias is None, pair_bias is None, scale, needed)
    for pick, is_like, run in _BACKWARD.get(key, ()):
        is_known = is_like(*pick(operands)) and forward_ad._current_level < 0
        if is_known and (grads := run(operands)):
            found = iter(grads)
            return tuple([next(found) if wanted else None for wanted in needed])
    if not _is_eager(operands):
        return _by_operator(scale, ctx, dout)
    results = calls.backward(*operands, scale=scale, needed=needed)
    options = (scale, tuple(compress(GRADS, needed)), None, None)
    dtypes = [x.dtype for x in results if x is not None]
    _BACKWARD.keep(key, operands, partial(repeat_backward, operands, options, dtypes))
    return tuple(results)


def _by_operator(scale: float | None, ctx: Any, dout: Any) -> tuple[Tensor | None, ...]:
    ctx.scale = scale
    return differentiate(ctx, dout)


@lru_cache(maxsize=64)
def _first(scale: float | None) -> Any:
    """The Function of calls of no kind that is known."""
    return _function(partial(_first_forward, scale), scale)


def _function(forward: Callable[..., Tensor | None], scale: float | None) -> Any:
    """The Function of calls of one kind. What they have in common is no argument of it: each costs
    torch time.
    """
    backward = staticmethod(partial(_backward, scale))
    passes = {"forward": staticmethod(forward), "backward": backward}
    return type("_Attention", (torch.autograd.Function,), passes)


def _repeat(
    operands: tuple[Any, ...],
    scale: float | None,
    dtype: torch.dtype,
    is_recorded: bool,
    pick: Pick,
    addresses: Addresses,
) -> Out | None:
    """What runs, and records, forward passes like one that has been made, if that was."""
    dtypes = (dtype, torch.float32) if is_recorded else (dtype,)
    run = repeat_forward(operands, scale, dtypes)
    if run is None:
        return None
    if not is_recorded:
        return partial(run, None)
    # What `apply` calls where no transform is active, and no operand is left of one.
    record: Out = super(torch.autograd.Function, _function(run, scale)).apply
    return record


_FORWARD: Guarded[Out] = Guarded()
_BACKWARD: Guarded[Gradients] = Guarded()


def _autocast(q: Any, k: Any, v: Any, mask_bias: Any, pair_bias: Any) -> Any:
    """The operands in the type of autocast, but for biases that may have their own."""
    kind = q.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return q, k, v, mask_bias, pair_bias
    dtype = torch.get_autocast_dtype(kind)
    kinds = (*_HALVES, torch.float32)
    q, k, v = (x.to(dtype) if x.dtype in kinds else x for x in (q, k, v))
    mask_bias, pair_bias = (
        x.to(dtype) if x is not None and x.dtype in _HALVES else x for x in (mask_bias, pair_bias)
    )
    return q, k, v, mask_bias, pair_bias


# -- Checks ----------------------------------------------------------------------------------------

_HALVES = (torch.float16, torch.bfloat16)


def _check_tensors(operands: Sequence[Any]) -> None:
    for i, (name, x) in enumerate(zip(GRADS, operands, strict=True)):
        if not isinstance(x, Tensor) and (x is not None or i < 3):
            raise TypeError(f"{name}: expected a tensor; got {type(x).__name__}")
        if x is not None and (x.is_nested or x.layout is not torch.strided):
            kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
            raise TypeError(f"{name}: expected a dense tensor; got a {kind} one")


def _check(operands: Sequence[Any]) -> None:
    """That the shapes of tensors fit each other, and the type of the first; the rest is checked
    with what a kernel can do, by `cuevo.ops`.
    """
    present = zip(GRADS, operands, strict=True)
    check_shapes({name: tuple(x.shape) for name, x in present if x is not None})
    q = operands[0]
    if q.dtype not in _HALVES:
        raise TypeError(
            f"q: expected float16 or bfloat16; got {str(q.dtype).removeprefix('torch.')}."
            " Cast it, or call under torch.autocast"
        )


def _refuse_tangents(operands: Sequence[Any]) -> None:
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    tangent_of: Any = forward_ad.unpack_dual
    for x in operands:
        if x is not None and tangent_of(x).tangent is not None:
            refuse_forward_mode()
