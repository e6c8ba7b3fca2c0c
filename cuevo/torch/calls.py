"""The two calls of `cuevo.ops` on tensors that have memory: results and workspace are torch's.

A repeated call on a device costs the host a look at its operands and the launches: whether operands
fit each other, and whether kernels can read them, is asked where no plan for such operands is kept.
"""

from itertools import compress
from typing import Any

import torch
from torch import Tensor

from cuevo.cuda import torch_stream
from cuevo.ops.backward import GRADS
from cuevo.ops.backward import OPERATION as BACKWARD
from cuevo.ops.forward import OPERATION as FORWARD
from cuevo.ops.operation import Operation

__all__ = ["backward", "forward", "with_rows"]

_PACKED = torch.contiguous_format
_NEW = (None,) * len(GRADS)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask_bias: Tensor | None,
    pair_bias: Tensor | None,
    scale: float | None,
    *,
    with_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """out [B, N, Lq, H, D], and lse [B, N, H, Lq] if it is wanted."""
    out = torch.empty_like(q, memory_format=_PACKED)
    lse = None
    if with_lse:
        batch, rows, queries, heads, _ = q.shape
        lse = q.new_empty((batch, rows, heads, queries), dtype=torch.float32)
    operands = (q, k, v, mask_bias, pair_bias)
    _run(FORWARD, operands, (scale, with_lse, None), [out, lse], q)
    return out, lse


def backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    mask_bias: Tensor | None,
    pair_bias: Tensor | None,
    *,
    scale: float | None,
    needed: tuple[bool, ...],
) -> list[Tensor | None]:
    """For each of `GRADS` the gradient, contiguous, or None where it is not `needed`."""
    shaped: Any = (q, k, v, mask_bias, pair_bias)
    results = [
        torch.empty_like(x, memory_format=_PACKED) if wanted else None
        for x, wanted in zip(shaped, needed, strict=True)
    ]
    operands = (dout, q, k, v, out, lse, mask_bias, pair_bias)
    _run(BACKWARD, operands, (scale, tuple(compress(GRADS, needed)), None, None), results, q)
    return results


def _run(
    operation: Operation,
    operands: tuple[Tensor | None, ...],
    options: tuple[object, ...],
    results: list[Any],
    like: Tensor,
) -> None:
    """Write `results`, which are like the new arrays of such a call."""
    plan, table = operation.look_up(operands, options)
    if plan is None or plan.in_place is None:
        operands = _readable(operands)
        if not like.is_cuda:
            operation.call((*operands, *results), options, None, None, None)
            return
        plan = operation.plan_on_device((*operands, *_NEW[: len(results)]), options, None, None)
        _, table = operation.look_up(operands, options)
    table += [x.data_ptr() for x in results if x is not None]
    workspace = None
    if plan.workspace_bytes:
        # From torch's own cache of memory, which would not know of another pool.
        memory = like.new_empty(plan.workspace_bytes, dtype=torch.uint8)
        workspace = memory.data_ptr()
    plan.queue(table, torch_stream(plan.ordinal), workspace)


def _readable(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """`operands`, or copies of those of q, k and v that no kernel can read in place."""
    first = 0 if len(operands) == len(GRADS) else 1  # behind dout
    rows = [with_rows(x) for x in operands[first : first + 3]]
    return (*operands[:first], *rows, *operands[first + 3 :])


def with_rows(x: Tensor) -> Tensor:
    """`x`, or a copy of it where its rows are not contiguous or not aligned to 16 bytes."""
    *outer, last = x.stride()
    size = x.element_size()
    steps = [size * step for extent, step in zip(x.shape, outer, strict=False) if extent > 1]
    if last != 1 or any(step % 16 for step in (x.data_ptr(), *steps)):
        return x.clone(memory_format=torch.contiguous_format)
    return x
