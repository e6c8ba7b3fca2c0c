"""Branches and exits."""

import numpy as np

from cuevo.sim.aliases import Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.syntax import LabelOperand, TargetsOperand
from cuevo.sim.text.types import TYPES


def branch(b: Binder, m: Modifiers) -> Step:
    label = b.operand(0)
    if not isinstance(label, LabelOperand):
        raise b.refusal("bra needs a label")
    target, flow = b.machine.function.labels[label.name], b.machine.flow
    return uniform(b, m, lambda mask: flow.jump(target, mask))


def uniform(b: Binder, m: Modifiers, step: Step) -> Step:
    """A step that goes elsewhere: with ``.uni`` for all lanes of a warp that stand here, or for
    none.
    """
    if not m["uni"]:
        return step
    flow, name = b.machine.flow, b.instruction.opcode

    def whole(mask: Mask) -> None:
        if mask is not None:
            present = np.count_nonzero(mask, axis=0)
            split = (present != 0) & (present != np.count_nonzero(flow.here(), axis=0))
            if split.any():
                message = f"{name} is taken by a part of the lanes of a warp"
                raise Fault(message, mask & split[None, :])
        step(mask)

    return whole


def branch_by_index(b: Binder, m: Modifiers) -> Step:
    """To the label that the index says."""
    index, targets = b.whole(b.operand(0), TYPES["u32"]), b.operand(1)
    if not isinstance(targets, TargetsOperand):
        raise b.refusal("brx.idx needs a list of .branchtargets")
    labels = [b.machine.function.labels[name] for name in targets.labels]
    flow, shape = b.machine.flow, b.machine.shape

    def step(mask: Mask) -> None:
        here = np.ones(shape, np.bool_) if mask is None else mask.copy()
        outside = here & (index >= len(labels))
        if outside.any():
            raise Fault(f"an index that is none of the {len(labels)} branch targets", outside)
        if m["uni"]:
            first = np.take_along_axis(index, here.argmax(axis=0)[None, :], axis=0)
            if (differs := here & (index != first)).any():
                raise Fault("the lanes of a warp have different indices at brx.idx.uni", differs)
        for i, target in enumerate(labels):
            lanes = here & (index == i)
            if lanes.any():
                flow.jump(target, lanes)

    return uniform(b, m, step)


def exit(b: Binder, m: Modifiers) -> Step:
    flow = b.machine.flow
    return lambda mask: flow.exit(mask)


def trap(b: Binder, m: Modifiers) -> Step:

    def step(mask: Mask) -> None:
        raise Fault("the kernel traps", mask)

    return step
