"""Kinds of calls: what repeated calls on a device need not find out again.

A call whose operands torch's guards know to be like those of an earlier one (`Guarded`) is of its
kind: nobody looks on, the plan is known, and so are the shapes of the results. What is left is
memory for these, and the launches.
"""

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from cuevo.cuda import torch_stream
from cuevo.ops.operation import Operation
from cuevo.ops.plan import Plan

__all__ = ["Kind"]

_Result = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides in elements, type."""


class Kind:
    """Calls of one kind, which run a plan on its device."""

    __slots__ = ("_device", "_ordinal", "_place", "_plan", "_results", "_workspace", "with_lse")

    def __init__(
        self, plan: Plan, device: torch.device, dtypes: Sequence[torch.dtype | None]
    ) -> None:
        self._plan, self._place = plan, plan.in_place
        self._device, self._ordinal = device, device.index
        self._results: list[_Result | None] = [None] * len(dtypes)
        for i, (x, dtype) in enumerate(zip(plan.results, dtypes, strict=True)):
            if x is not None and dtype is not None:
                strides = tuple([step // x.array.dtype.itemsize for step in x.array.strides])
                self._results[i] = (x.array.shape, strides, dtype)
        size = plan.workspace_bytes
        self._workspace: _Result | None = ((size,), (1,), torch.uint8) if size else None
        self.with_lse = self._results[-1] is not None
        """Of a forward pass: whether it is for a backward pass."""

    @classmethod
    def of(
        cls,
        operation: Operation,
        operands: Sequence[Tensor | None],
        options: tuple[object, ...],
        dtypes: Sequence[torch.dtype | None],
    ) -> Optional["Kind"]:
        """The kind of a call that has been made; None where it takes more than its plan.

        options : those of the call, as the operation has them.
        dtypes : of the results, None for those that are not wanted.
        """
        plan, _ = operation.look_up(operands, options)
        first = operands[0]
        if plan is None or plan.in_place is None or first is None:
            return None
        return cls(plan, first.device, dtypes)

    def run(self, table: list[int]) -> list[Any]:
        """The results, None for those that are not wanted; `table` has the addresses of the
        operands.
        """
        new: Any = self._new
        if _current_device and _current_device() == self._ordinal:
            new = _new_here
        results = [None if x is None else new(*x) for x in self._results]
        table += [0 if x is None else x.data_ptr() for x in results]
        memory = None
        if self._workspace is not None:
            workspace = new(*self._workspace)
            memory = workspace.data_ptr()
        assert self._place is not None
        self._plan.queue(self._place, table, torch_stream(self._ordinal), memory)
        return results

    def _new(self, shape: Any, strides: Any, dtype: Any) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=self._device)


# What the code of torch's compiler allocates with, on the current device, in half of the time.
_new_here: Any = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
_current_device: Any = _new_here and getattr(torch._C, "_cuda_getDevice", None)
