"""Barriers of the block."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.sync.flow import Vote
from cuevo.sim.text.syntax import IntegerOperand
from cuevo.sim.text.types import TYPES


def _per_warp(b: Binder, index: int) -> Callable[[Mask], AnyArray]:
    """An operand that is the same for all lanes of a warp: shape (warps,)."""
    operand = b.operand(index)
    if isinstance(operand, IntegerOperand):
        fixed = np.full(b.machine.warps, operand.value, np.int64)
        return lambda mask: fixed
    values = b.whole(operand, TYPES["u32"])

    def read(mask: Mask) -> AnyArray:
        first = np.zeros(values.shape[1], np.int64) if mask is None else mask.argmax(axis=0)
        result: AnyArray = np.take_along_axis(values, first[None, :], axis=0)[0].astype(np.int64)
        differs = values != result[None, :]
        differs = differs if mask is None else differs & mask
        if differs.any():
            raise Fault("the lanes of a warp name different barriers or counts", differs)
        return result

    return read


def _barrier(b: Binder, first: int, counted: bool, *, wait: bool, vote: Vote | None = None) -> Step:
    number = _per_warp(b, first)
    count = _per_warp(b, first + 1) if counted else None
    flow, line = b.machine.flow, b.instruction.line

    def step(mask: Mask) -> None:
        threads = None if count is None else count(mask)
        flow.barrier(line, number(mask), threads, mask, wait, vote)

    return step


def sync(b: Binder, m: Modifiers) -> Step:
    return _barrier(b, 0, b.operands == 2, wait=True)


def arrive(b: Binder, m: Modifiers) -> Step:
    return _barrier(b, 0, True, wait=False)


def reduce(b: Binder, m: Modifiers) -> Step:
    """The result is there when the barrier is complete: over all threads that came."""
    counted = b.operands == 4
    predicate = b.predicate(b.operand(3 if counted else 2))
    op = m["op"]
    d = b.destination(b.operand(0), TYPES["u32" if op == "popc" else "pred"])

    def deliver(true: AnyArray, total: AnyArray, lanes: AnyArray) -> None:
        result = {"popc": true, "and": true == total, "or": true > 0}[op]
        np.copyto(d, result, where=lanes, casting="unsafe")

    return _barrier(b, 1, counted, wait=True, vote=Vote(predicate, deliver))
