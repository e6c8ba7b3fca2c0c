"""Branches, exits and barriers of the block."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.binder import Binder
from cuevo.sim.faults import Fault
from cuevo.sim.instructions.table import Modifiers, form
from cuevo.sim.syntax import IntegerOperand, LabelOperand
from cuevo.sim.types import TYPES


@form("bra{.uni}", control=True)
def branch(b: Binder, m: Modifiers) -> Step:
    b.count(1)
    label = b.operand(0)
    if not isinstance(label, LabelOperand):
        raise b.refusal("bra needs a label")
    target, flow = b.machine.function.labels[label.name], b.machine.flow
    uniform = bool(m["uni"])

    def step(mask: Mask) -> None:
        if uniform and mask is not None:
            present = np.count_nonzero(mask, axis=0)
            split = (present != 0) & (present != np.count_nonzero(flow.here(), axis=0))
            if split.any():
                raise Fault(
                    "bra.uni is taken by a part of the lanes of a warp", mask & split[None, :]
                )
        flow.jump(target, mask)

    return step


@form("ret{.uni}", "exit", control=True)
def leave(b: Binder, m: Modifiers) -> Step:
    b.count(0)
    flow = b.machine.flow
    return lambda mask: flow.exit(mask)


@form("trap", control=True)
def trap(b: Binder, m: Modifiers) -> Step:
    b.count(0)

    def step(mask: Mask) -> None:
        raise Fault("the kernel traps", mask)

    return step


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


def _barrier(b: Binder, *, wait: bool) -> Step:
    operands = b.count(1 if wait else 2, 2)
    number = _per_warp(b, 0)
    count = _per_warp(b, 1) if operands == 2 else None
    flow, line = b.machine.flow, b.instruction.line

    def step(mask: Mask) -> None:
        flow.barrier(line, number(mask), None if count is None else count(mask), mask, wait)

    return step


@form("bar{.cta}.sync", "barrier{.cta}.sync{.aligned}", control=True)
def barrier_sync(b: Binder, m: Modifiers) -> Step:
    return _barrier(b, wait=True)


@form("bar{.cta}.arrive", "barrier{.cta}.arrive{.aligned}", control=True)
def barrier_arrive(b: Binder, m: Modifiers) -> Step:
    return _barrier(b, wait=False)
