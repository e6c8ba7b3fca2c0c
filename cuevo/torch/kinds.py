"""Kinds of calls: what repeated calls on a device need not find out again.

A call whose operands torch's guards know to be like those of an earlier one (`Guarded`) is of its
kind: nobody looks on, the plan is known, and so are the shapes of the results. What is left is
memory for these, and the launches.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import starmap
from operator import itemgetter, or_
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

    def __init__(
        self,
        plan: Plan,
        operands: Sequence[Tensor | None],
        dtypes: Sequence[torch.dtype | None],
    ) -> None:
        """Calls with operands like these, and results of these types, that run `plan`."""
        arrays = [*operands, *dtypes]
        self._plan, self._place = plan, plan.in_place
        self._present = itemgetter(*[i for i, x in enumerate(operands) if x is not None])
        self._null = [i for i, x in enumerate(arrays) if x is None]
        self._unwanted = [i for i, x in enumerate(dtypes) if x is None]
        self._results: list[_Result] = []
        for x, dtype in zip(plan.results, dtypes, strict=True):
            if x is not None and dtype is not None:
                strides = tuple([step // x.array.dtype.itemsize for step in x.array.strides])
                self._results.append((x.array.shape, strides, dtype))
        size = plan.workspace_bytes
        self._workspace: _Result | None = ((size,), (1,), torch.uint8) if size else None
        first = self._present(operands)[0]
        self._device, self._ordinal = first.device, first.get_device()
        self.with_lse = dtypes[-1] is not None
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
        if plan is None or plan.in_place is None:
            return None
        return cls(plan, operands, dtypes)

    def run(self, operands: Sequence[Tensor | None]) -> list[Any] | None:
        """The results, None for those that are not wanted; nothing runs, and None is all, where
        operands do not start at multiples of 16 bytes.
        """
        # Every loop is one of C: a turn of Python's would cost as much as what it does.
        table = [*map(_ADDRESS, self._present(operands))]
        if reduce(or_, table) & 15:
            return None
        new = _new_here if _current_device and _current_device() == self._ordinal else self._new
        results: list[Any] = [*starmap(new, self._results)]
        table += map(_ADDRESS, results)
        for slot in self._null:
            table.insert(slot, 0)
        for i in self._unwanted:
            results.insert(i, None)
        memory = None
        if self._workspace is not None:
            workspace = new(*self._workspace)
            memory = workspace.data_ptr()
        assert self._place is not None
        self._plan.queue(self._place, table, torch_stream(self._ordinal), memory)
        return results

    def _new(self, shape: Any, strides: Any, dtype: Any) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=self._device)


_ADDRESS = Tensor.data_ptr
# What the code of torch's compiler allocates with, on the current device, in half of the time.
_new_here: Any = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
_current_device: Any = _new_here and getattr(torch._C, "_cuda_getDevice", None)
