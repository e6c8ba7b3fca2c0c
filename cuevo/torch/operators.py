"""The calls as operators that torch knows: what ``torch.compile``, ``torch.export``, function
transforms, tensor subclasses and dispatch modes see of them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from cuevo.ops.backward import GRADS
from cuevo.torch import calls

__all__ = ["differentiate", "operator", "refuse_forward_mode"]


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask_bias: Tensor | None,
    pair_bias: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """out [B, N, Lq, H, D] and lse [B, N, H, Lq]; lse is not differentiable."""
    out, lse = calls.forward(q, k, v, mask_bias, pair_bias, scale, with_lse=True)
    assert lse is not None
    return out, lse


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
    needed = tuple(name in wanted for name in GRADS)
    found = calls.backward(
        dout, q, k, v, out, lse, mask_bias, pair_bias, scale=scale, needed=needed
    )
    return [x for x in found if x is not None]


# -- Shapes ----------------------------------------------------------------------------------------


def _results(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask_bias: Tensor | None,
    pair_bias: Tensor | None,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    batch, rows, queries, heads, _ = q.shape
    lse = q.new_empty((batch, rows, heads, queries), dtype=torch.float32)
    return q.new_empty(q.shape), lse


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
    operands: dict[str, Any] = dict(zip(GRADS, (q, k, v, mask_bias, pair_bias), strict=True))
    return [operands[name].new_empty(operands[name].shape) for name in grads.split()]


forward_op: Any = torch.library.custom_op(
    "cuevo::evoformer_attention_forward", _forward, mutates_args=()
)
backward_op: Any = torch.library.custom_op(
    "cuevo::evoformer_attention_backward", _backward, mutates_args=()
)
forward_op.register_fake(_results)
backward_op.register_fake(_gradients)

# -- Derivatives -----------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *operands, scale = inputs
    out, lse = output
    ctx.save_for_backward(*operands, out, lse)
    ctx.scale = scale
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)


def differentiate(ctx: Any, dout: Tensor | None, dlse: None = None) -> tuple[Tensor | None, ...]:
    """Gradients of the operands and of the scale, by the operator, where `ctx` has what `_save`
    leaves there.
    """
    needed = zip(GRADS, ctx.needs_input_grad, strict=False)
    wanted = [name for name, is_needed in needed if is_needed]
    if dout is None or not wanted:
        return (None,) * 6
    if torch._C._dispatch_keys(dout).has(_BATCHED):
        raise NotImplementedError(
            "cuevo.torch.evoformer_attention: is_grads_batched and vectorize of torch.autograd are "
            "not implemented; torch.func.vmap of what torch.func.vjp gives is"
        )
    q, k, v, mask_bias, pair_bias, out, lse = ctx.saved_tensors
    results = _operator(_Backward, backward_op)(
        dout, q, k, v, out, lse, mask_bias, pair_bias, ctx.scale, " ".join(wanted)
    )
    found = dict(zip(wanted, results, strict=True))
    return (*(found.get(name) for name in GRADS), None)


_BATCHED: Any = torch._C._parse_dispatch_key("Batched")
"""Of samples of the vmap within torch.autograd, which knows nothing of ours."""


def refuse_forward_mode(ctx: Any = None, *grad_inputs: Any) -> NoReturn:
    """A derivative in forward mode is asked for."""
    raise NotImplementedError(
        "cuevo.torch.evoformer_attention: forward-mode derivatives are not implemented; "
        "use backward(), torch.func.grad or torch.func.vjp"
    )


def _refuse(ctx: Any, *grads: Any) -> None:
    raise NotImplementedError(
        "cuevo.torch.evoformer_attention: second derivatives are not implemented. Differentiate "
        "once (without create_graph=True, or with one torch.func.grad), or write the attention "
        "with operators of torch where you need them."
    )


forward_op.register_autograd(differentiate, setup_context=_save)
backward_op.register_autograd(_refuse)


# -- vmap ------------------------------------------------------------------------------------------

_Dims = tuple[int | None, ...]
"""The vmapped axis of each argument, None where there is none."""


def _fold(x: Any, dim: int | None, size: int, axis: int, extent: int) -> Any:
    """`x` with its vmapped axis and its axis `axis`, in that order, as one: extent size * extent.

    It is copied where no view has these elements in this order, as where `x` is not vmapped and
    `extent` is more than 1.
    """
    if x is None:
        return None
    x = x.unsqueeze(axis) if dim is None else x.movedim(dim, axis)
    return x.expand(*x.shape[:axis], size, extent, *x.shape[axis + 2 :]).flatten(axis, axis + 1)


def _extent(x: Tensor, dim: int | None, axis: int) -> int:
    """Of that axis, without the vmapped one."""
    return int(x.shape[axis if dim is None or dim > axis else axis + 1])


def _vmap_forward(
    op: Callable[..., Any], info: Any, dims: _Dims, *arguments: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """`op`, the forward pass, for all samples at once: they are more batches; more rows where all
    share a pair bias.
    """
    *operands, scale = arguments
    axis = 1 if operands[4] is not None and dims[4] is None else 0
    size, extent = info.batch_size, _extent(operands[0], dims[0], axis)
    shared = [operands.pop()] if axis else []
    folded = [_fold(x, dim, size, axis, extent) for x, dim in zip(operands, dims, strict=False)]
    results = op(*folded, *shared, scale)
    return tuple(x.unflatten(axis, (size, extent)) for x in results), (axis, axis)


def _vmap_backward(
    op: Callable[..., Any], info: Any, dims: _Dims, *arguments: Any
) -> tuple[Any, Any]:
    """As `_vmap_forward`, for the backward pass; each sample has its own gradient of what is
    shared, a pair bias, too.
    """
    *operands, scale, grads = arguments
    wanted = grads.split()
    axis = 1 if operands[7] is not None and dims[7] is None and "pair_bias" not in wanted else 0
    size, extent = info.batch_size, _extent(operands[1], dims[1], axis)
    shared = [operands.pop()] if axis else []
    folded = [_fold(x, dim, size, axis, extent) for x, dim in zip(operands, dims, strict=False)]
    folded[5] = folded[5].contiguous()  # lse, which may have been expanded
    found = op(*folded, *shared, scale, grads)
    places = dict(zip(GRADS, (1, 2, 3, 6, 7), strict=True))
    results = []
    for place, x in zip([places[name] for name in wanted], found, strict=True):
        x = x.unflatten(axis, (size, extent))
        was_broadcast = _extent(arguments[place], dims[place], axis) != extent
        results.append(x.sum(axis + 1, keepdim=True) if was_broadcast else x)
    return type(found)(results), type(found)([axis] * len(results))


forward_op.register_vmap(partial(_vmap_forward, forward_op))
backward_op.register_vmap(partial(_vmap_backward, backward_op))


# -- torch.func ------------------------------------------------------------------------------------


class _Forward(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """`forward_op` for `torch.func`, which cannot differentiate registered operators."""

    forward = staticmethod(forward_op)
    setup_context = staticmethod(_save)
    backward = staticmethod(differentiate)
    jvp = staticmethod(refuse_forward_mode)

    @staticmethod
    def vmap(info: Any, dims: _Dims, *arguments: Any) -> Any:
        return _vmap_forward(cast(Any, _Forward).apply, info, dims, *arguments)


class _Backward(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """`backward_op` for `torch.func`."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        return tuple(backward_op(*arguments))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    backward = staticmethod(_refuse)
    jvp = staticmethod(refuse_forward_mode)

    @staticmethod
    def vmap(info: Any, dims: _Dims, *arguments: Any) -> Any:
        return _vmap_backward(cast(Any, _Backward).apply, info, dims, *arguments)


def _operator(function: Any, registered: Any) -> Any:
    """The one of the two that suits what is at work."""
    is_eager = not torch.compiler.is_compiling()
    if is_eager and torch._C._are_functorch_transforms_active():
        return function.apply
    return registered


def operator(*arguments: Any) -> Tensor:
    """out of the forward pass."""
    out, _ = _operator(_Forward, forward_op)(*arguments)
    return out  # type: ignore[no-any-return, unused-ignore]
