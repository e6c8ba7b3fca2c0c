"""Kinds of calls: what repeated calls on a device need not find out again.

A call whose operands torch's guards know to be like those of an earlier one (`Guarded`) is of its
kind: nobody looks on, the plan is known, and so are the shapes of the results. What is left is
memory for these, and the launches.
"""

from collections.abc import Callable, Sequence
from itertools import starmap
from math import gcd
from typing import Any

import torch
from torch import Tensor

from cuevo.arrays import Addresses, Pick
from cuevo.cuda import LEGACY_DEFAULT, torch_streams
from cuevo.ops.operation import Operation

__all__ = ["Run", "repeat"]

Run = Callable[[Sequence[Any]], list[Tensor] | None]
"""Runs a call with these operands; its results, without those that are not wanted. None where
operands do not start at multiples of 16 bytes, as they have to.
"""


def repeat(
    operation: Operation,
    operands: Sequence[Any],
    options: tuple[object, ...],
    dtypes: Sequence[torch.dtype],
    pick: Pick,
    addresses: Addresses,
) -> Run | None:
    """Runs calls like one that has been made; None where that took more than its plan.

    options : those of the call, as the operation has them.
    dtypes : of the results that are wanted.
    pick, addresses : as `Guarded` has them.
    """
    plan, _ = operation.look_up(operands, options)
    if plan is None or plan.in_place is None:
        return None
    arrays = [x.array for x in plan.results if x is not None]
    described = [
        (x.shape, tuple([step // x.dtype.itemsize for step in x.strides]), dtype)
        for x, dtype in zip(arrays, dtypes, strict=True)
    ]
    current_stream, queue = torch_streams(plan.ordinal), plan.queue_in_context
    enter, leave = plan.in_place.context.enter, plan.in_place.context.leave
    nbytes = plan.workspace_bytes
    workspace = ((nbytes,), (1,), torch.uint8)
    device = operands[0].device

    def new_there(shape: Any, strides: Any, dtype: Any) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    def run(operands: Sequence[Any]) -> list[Tensor] | None:
        entered = enter()
        try:
            new = new_there if entered else _new_here or new_there
            results: list[Tensor] = [*starmap(new, described)]
            table = [0, *addresses(pick(operands)), *addresses(results)]
            if gcd(16, *table) != 16:
                return None
            # From torch's own cache of memory, which would not know of another pool.
            memory = new(*workspace) if nbytes else None
            address = None if memory is None else memory.data_ptr()
            queue(table, current_stream() or LEGACY_DEFAULT, address)
            return results
        finally:
            if entered:
                leave()

    return run


# What the code of torch's compiler allocates with, on the device of the current context, in half of
# the time.
_new_here: Any = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
