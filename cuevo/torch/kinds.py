"""Kinds of calls: what repeated calls on a device need not find out again.

A call whose operands torch's guards know to be like those of an earlier one (`Guarded`) is of its
kind: nobody looks on, the plan is known, and so are the shapes of the results. What is left is
memory for these, and the launches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
from torch import Tensor

from cuevo.arrays import Addresses, Pick
from cuevo.cuda import LEGACY_DEFAULT, PrimaryContext, torch_streams
from cuevo.ops.backward import OPERATION as BACKWARD
from cuevo.ops.forward import OPERATION as FORWARD
from cuevo.ops.operation import Operation
from cuevo.ops.plan import Queue

__all__ = ["Gradients", "Out", "repeat_backward", "repeat_forward"]

Out = Callable[..., Tensor | None]
"""``run(ctx, q, k, v, mask_bias, pair_bias)`` gives out, and where the `ctx` of a Function is there
saves the operands, out and lse in it. None where operands do not start at multiples of 16 bytes, as
they have to.
"""
Gradients = Callable[[Sequence[Tensor | None]], list[Tensor] | None]
"""Those that are wanted, for operands of `cuevo.ops.backward`; None as above."""


def repeat_forward(
    operands: Sequence[Any],
    scale: float | None,
    dtypes: tuple[torch.dtype, ...],
) -> Out | None:
    """Runs calls like one that has been made; None where that took more than its plan.

    dtypes : of out, and of lse if calls have a `ctx`.
    """
    found = _find(FORWARD, operands, (scale, len(dtypes) > 1, None), dtypes)
    if found is None:
        return None
    enter, leave = found.context.enter, found.context.leave
    current_stream, queue = found.current_stream, found.queue
    new_here, new_there, workspace = found.new_here, found.new_there, found.workspace
    like_out, *like_lse = found.results

    # A call costs little more than this: each loop and function in it would show in the whole.
    def run(ctx: Any, q: Any, k: Any, v: Any, mask_bias: Any, pair_bias: Any) -> Tensor | None:
        table = [0, q.data_ptr(), k.data_ptr(), v.data_ptr()]
        if mask_bias is not None:
            table.append(mask_bias.data_ptr())
        if pair_bias is not None:
            table.append(pair_bias.data_ptr())
        if gcd(16, *table) != 16:
            return None
        entered = enter()
        try:
            new = new_there if entered else new_here
            out = new(*like_out)
            table.append(out.data_ptr())
            if like_lse:
                lse = new(*like_lse[0])
                table.append(lse.data_ptr())
                ctx.save_for_backward(q, k, v, mask_bias, pair_bias, out, lse)
            memory = new(*workspace) if workspace else None
            address = None if memory is None else memory.data_ptr()
            queue(table, current_stream() or LEGACY_DEFAULT, address)
            return out
        finally:
            if entered:
                leave()

    return run


def repeat_backward(
    operands: Sequence[Any],
    options: tuple[object, ...],
    dtypes: Sequence[torch.dtype],
    pick: Pick,
    addresses: Addresses,
) -> Gradients | None:
    """As `repeat_forward`.

    options : those of the call, as the operation has them.
    dtypes : of the gradients that are wanted.
    pick, addresses : as `Guarded` has them.
    """
    found = _find(BACKWARD, operands, options, dtypes)
    if found is None:
        return None
    enter, leave = found.context.enter, found.context.leave
    current_stream, queue = found.current_stream, found.queue
    new_here, new_there, workspace = found.new_here, found.new_there, found.workspace
    likes = found.results

    def run(operands: Sequence[Any]) -> list[Tensor] | None:
        table = [0, *addresses(pick(operands))]
        if gcd(16, *table) != 16:
            return None
        entered = enter()
        try:
            new = new_there if entered else new_here
            results = [new(*like) for like in likes]
            table += addresses(results)
            memory = new(*workspace) if workspace else None
            address = None if memory is None else memory.data_ptr()
            queue(table, current_stream() or LEGACY_DEFAULT, address)
            return results
        finally:
            if entered:
                leave()

    return run


_Like = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and type of a new tensor."""
_New = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]


@dataclass(frozen=True)
class _Found:
    """What calls of a kind have in common."""

    context: PrimaryContext
    queue: Queue
    """For a thread in that context."""
    current_stream: Callable[[], int]
    results: list[_Like]
    workspace: _Like | None
    """It is from torch's own cache of memory, which would not know of another pool."""
    new_here: _New
    """Makes tensors on the device of the current context."""
    new_there: _New
    """Makes them on the operands' device."""


def _find(
    operation: Operation,
    operands: Sequence[Any],
    options: tuple[object, ...],
    dtypes: Sequence[torch.dtype],
) -> _Found | None:
    plan, _ = operation.look_up(operands, options)
    if plan is None or plan.in_place is None:
        return None
    arrays = [x.array for x in plan.results if x is not None]
    results = [
        (x.shape, tuple([step // x.dtype.itemsize for step in x.strides]), dtype)
        for x, dtype in zip(arrays, dtypes, strict=True)
    ]
    nbytes, device = plan.workspace_bytes, operands[0].device

    def new_there(shape: Any, strides: Any, dtype: Any) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    return _Found(
        plan.in_place.context,
        plan.queue_in_context,
        torch_streams(plan.ordinal),
        results,
        ((nbytes,), (1,), torch.uint8) if nbytes else None,
        _new_here or new_there,
        new_there,
    )


# What the code of torch's compiler allocates with, in half of the time.
_new_here: Any = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
