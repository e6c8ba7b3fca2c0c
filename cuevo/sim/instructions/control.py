"""Branches, calls and exits."""

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.sync.flow import Flow
from cuevo.sim.text.syntax import (
    CallOperand,
    LabelOperand,
    Operand,
    Register,
    RegisterOperand,
    SymbolOperand,
    TargetsOperand,
    Variable,
)
from cuevo.sim.text.types import TYPES


def branch(b: Binder, m: Modifiers) -> Step:
    label = b.operand(0)
    if not isinstance(label, LabelOperand):
        raise b.refusal("bra needs a label")
    target, flow = b.machine.function.labels[label.name], b.machine.flow
    uniform = bool(m["uni"])

    def step(mask: Mask) -> None:
        if uniform:
            _require_uniform(mask, flow, "bra.uni")
        flow.jump(target, mask)

    return step


def _require_uniform(mask: Mask, flow: Flow, name: str) -> None:
    if mask is None:
        return
    present = np.count_nonzero(mask, axis=0)
    split = (present != 0) & (present != np.count_nonzero(flow.here(), axis=0))
    if split.any():
        raise Fault(f"{name} is taken by a part of the lanes of a warp", mask & split[None, :])


def branch_by_index(b: Binder, m: Modifiers) -> Step:
    """To the label that the index says."""
    index, targets = b.whole(b.operand(0), TYPES["u32"]), b.operand(1)
    if not isinstance(targets, TargetsOperand):
        raise b.refusal("brx.idx needs a list of .branchtargets")
    labels = [b.machine.function.labels[name] for name in targets.labels]
    flow, shape, uniform = b.machine.flow, b.machine.shape, bool(m["uni"])

    def step(mask: Mask) -> None:
        here = np.ones(shape, np.bool_) if mask is None else mask.copy()
        outside = here & (index >= len(labels))
        if outside.any():
            raise Fault(f"an index that is none of the {len(labels)} branch targets", outside)
        if uniform:
            first = np.take_along_axis(index, here.argmax(axis=0)[None, :], axis=0)
            if (differs := here & (index != first)).any():
                raise Fault("the lanes of a warp have different indices at brx.idx.uni", differs)
        for i, target in enumerate(labels):
            lanes = here & (index == i)
            if lanes.any():
                flow.jump(target, lanes)

    return step


def call(b: Binder, m: Modifiers) -> Step:
    """Arguments are copied to the function's own registers and memory, results back from there."""
    operand = b.operand(0)
    if not isinstance(operand, CallOperand):
        raise b.refusal("call needs a function")
    machine, flow = b.machine, b.machine.flow
    subroutine = machine.function.subroutines[operand.function]
    arguments = _copies(b, operand.arguments, subroutine.parameters, into_function=True)
    results = _copies(b, operand.results, subroutine.results, into_function=False)
    uniform, name, begin = bool(m["uni"]), operand.function, subroutine.begin

    def deliver(mask: Mask) -> None:
        for copy in results:
            copy(mask)

    def step(mask: Mask) -> None:
        if uniform:
            _require_uniform(mask, flow, "call.uni")
        for copy in arguments:
            copy(mask)
        machine.calls.enter(name, flow.following, mask, deliver)
        flow.jump(begin, mask)

    return step


def _copies(
    b: Binder,
    given: tuple[Operand, ...],
    formal: tuple[Register | Variable, ...],
    *,
    into_function: bool,
) -> list[Step]:
    if len(given) != len(formal):
        raise b.refusal(f"the function has {len(formal)} parameters here, not {len(given)}")
    steps = []
    for actual, own in zip(given, formal, strict=True):
        if isinstance(own, Register):
            inner = RegisterOperand(own)
            to, origin = (inner, actual) if into_function else (actual, inner)
            source, d = b.source(origin, own.type), b.destination(to, own.type)
            if not into_function:
                b.reads.discard(own.slot)
            steps.append(_register_copy(d, source))
            continue
        if not isinstance(actual, SymbolOperand) or actual.variable.space != ".local":
            raise b.refusal("a .param parameter wants a .param variable")
        if actual.variable.size != own.size:
            raise b.refusal(
                f"{actual.variable.name} has {actual.variable.size} bytes, {own.name} {own.size}"
            )
        to_variable, origin_variable = (
            (own, actual.variable) if into_function else (actual.variable, own)
        )
        steps.append(_memory_copy(b, to_variable, origin_variable))
    return steps


def _register_copy(d: AnyArray, source: AnyArray) -> Step:
    return lambda mask: np.copyto(d, source, where=True if mask is None else mask)


def _memory_copy(b: Binder, to: Variable, origin: Variable) -> Step:
    memory = b.machine.local
    return lambda mask: memory.copy(to, origin, mask)


def leave(b: Binder, m: Modifiers) -> Step:
    """From a function to where it was called; from the entry for good."""
    machine, flow, name = b.machine, b.machine.flow, b.instruction.subroutine
    uniform = bool(m["uni"])

    def step(mask: Mask) -> None:
        if uniform:
            _require_uniform(mask, flow, "ret.uni")
        if name:
            machine.calls.leave(name, mask, flow)
        else:
            flow.exit(mask)

    return step


def exit(b: Binder, m: Modifiers) -> Step:
    flow = b.machine.flow
    return lambda mask: flow.exit(mask)


def trap(b: Binder, m: Modifiers) -> Step:

    def step(mask: Mask) -> None:
        raise Fault("the kernel traps", mask)

    return step
