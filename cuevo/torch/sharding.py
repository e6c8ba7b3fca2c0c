"""Calls on DTensors: each device attends with its shards of B, N and H.

Axes that a call sums over or attends along, and those that operands are sharded over differently,
are gathered before; an operand that serves several shards, as a pair bias does those of N, is
whole on each device, and torch sums its gradients over them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cuevo.ops.backward import GRADS

__all__ = ["attend_in_shards", "is_sharded"]

_AXES = ("BNQHD", "BNKHD", "BNKHD", "BN..K", "B.HQK")
"""Of q, k, v, mask_bias and pair_bias."""
_SHARDED = "BNH"


def is_sharded(operands: Sequence[Any]) -> bool:
    """Whether a DTensor is among them."""
    return any(hasattr(x, "placements") for x in operands)


def attend_in_shards(call: Callable[..., Tensor], operands: Sequence[Any]) -> Tensor:
    """The result of `call` on the operands, by its results on their shards; sharded as these are.

    Raises TypeError where some are DTensors and others are not, ValueError where they are on
    different meshes.
    """
    from torch.distributed.tensor import Replicate

    mesh = _mesh(operands)
    over = [_axis(dim, operands) for dim in range(mesh.ndim)]
    shards = []
    for axes, x in zip(_AXES, operands, strict=True):
        placements = [_placement(axis, axes, x) for axis in over]
        shards.append(None if x is None else _shard(x, over, placements))
    q = operands[0]
    placements = [_placement(axis, _AXES[0], q) or Replicate() for axis in over]
    return _whole(call(*shards), mesh, placements, q.shape)


def _mesh(operands: Sequence[Any]) -> Any:
    """The mesh of all operands."""
    first = next(i for i, x in enumerate(operands) if hasattr(x, "placements"))
    mesh = operands[first].device_mesh
    for name, x in zip(GRADS, operands, strict=True):
        if x is not None and not hasattr(x, "placements"):
            raise TypeError(
                f"{name}: expected a DTensor, as {GRADS[first]} is one; got a tensor. "
                "torch.distributed.tensor.distribute_tensor makes one of it"
            )
        if x is not None and x.device_mesh != mesh:
            raise ValueError(
                f"{name}: expected the mesh of {GRADS[first]}, {mesh}; got {x.device_mesh}"
            )
    return mesh


def _axis(dim: int, operands: Sequence[Any]) -> str | None:
    """The axis over which a dimension of the mesh shards the call: that of the first operand which
    it shards over such a one.
    """
    for axes, x in zip(_AXES, operands, strict=True):
        placement = None if x is None else x.placements[dim]
        if placement is not None and placement.is_shard():
            axis = axes[placement.dim]
            if axis in _SHARDED and x.shape[placement.dim] > 1:
                return axis
    return None


def _placement(axis: str | None, axes: str, x: Any) -> Any:
    """Of an operand, where a call is sharded over `axis`; None: it is whole."""
    from torch.distributed.tensor import Shard

    if axis is None or x is None or axis not in axes or x.shape[axes.index(axis)] == 1:
        return None
    return Shard(axes.index(axis))


def _shard(x: Any, over: Sequence[str | None], placements: Sequence[Any]) -> Tensor:
    """This device's part of an operand, whose gradient is a part of the operand's, or a term of it
    where other devices have the same part.
    """
    from torch.distributed.tensor import Partial, Replicate

    placed = x.redistribute(placements=[each or Replicate() for each in placements])
    of_gradient = [
        each or (Replicate() if axis is None else Partial())
        for each, axis in zip(placements, over, strict=True)
    ]
    found: Tensor = _Part.apply(placed, of_gradient)
    return found


class _Part(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """A DTensor's `to_local`, but for the strides of the gradient. Those that it states of uneven
    shards are not those of the whole: torch then copies the gradient of a leaf, and torch 2.11
    gathers it.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, of_gradient: Sequence[Any]) -> Tensor:
        ctx.whole = x.device_mesh, of_gradient, x.shape
        local: Tensor = x.to_local()
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _whole(gradient, *ctx.whole), None


def _whole(part: Tensor, mesh: Any, placements: Sequence[Any], shape: torch.Size) -> Tensor:
    """The contiguous DTensor of that shape that has this part on this device."""
    from torch.distributed.tensor import DTensor

    strides = tuple(shape[i + 1 :].numel() for i in range(len(shape)))
    found: Tensor = DTensor.from_local(
        part, mesh, placements, run_check=False, shape=shape, stride=strides
    )
    return found
