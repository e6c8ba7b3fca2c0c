"""Calls of device functions, by name or by address, and of the system's; returns."""

from collections.abc import Sequence

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step, Write
from cuevo.sim.faults import Fault
from cuevo.sim.instructions import system
from cuevo.sim.instructions.control import uniform
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.sync.calls import Transfer
from cuevo.sim.text.syntax import (
    CallOperand,
    Operand,
    Register,
    RegisterOperand,
    Subroutine,
    SymbolOperand,
    Variable,
)
from cuevo.sim.text.types import TYPES


def call(b: Binder, m: Modifiers) -> Step:
    """Arguments are copied to the function's own registers and memory, results back from there."""
    operand = b.operand(0)
    if not isinstance(operand, CallOperand):
        raise b.refusal("call needs a function")
    flow, shape = b.machine.flow, b.machine.shape
    if operand.pointer is not None:
        enter = _by_address(b, operand)
    elif operand.function in b.machine.function.subroutines:
        enter = _by_name(b, operand, b.machine.function.subroutines[operand.function])
    else:
        enter = system.function(b, operand)

    def step(mask: Mask) -> None:
        enter(np.ones(shape, np.bool_) if mask is None else mask, flow.following)

    return uniform(b, m, step)


def leave(b: Binder, m: Modifiers) -> Step:
    """From a function to where it was called; from the entry for good."""
    machine, flow, name = b.machine, b.machine.flow, b.instruction.subroutine
    if not name:
        return uniform(b, m, flow.exit)
    return uniform(b, m, lambda mask: machine.calls.leave(name, mask, flow))


def _by_name(b: Binder, operand: CallOperand, subroutine: Subroutine) -> system.Enter:
    machine, flow = b.machine, b.machine.flow
    arguments = _transfers(b, operand.arguments, subroutine.parameters, into_function=True)
    results = _transfers(b, operand.results, subroutine.results, into_function=False)

    def enter(lanes: AnyArray, back: int) -> None:
        values = [each.fetch(lanes) for each in arguments]
        machine.calls.enter(subroutine.name, back, lanes, results)
        for each, value in zip(arguments, values, strict=True):
            each.put(value, lanes)
        flow.jump(subroutine.begin, lanes)

    return enter


def _by_address(b: Binder, operand: CallOperand) -> system.Enter:
    """Each lane to the function whose address it has."""
    assert operand.pointer is not None
    addresses = b.whole(operand.pointer, TYPES["u64"])
    functions: dict[int, system.Enter | str] = {}
    for each in b.machine.function.subroutines.values():
        fits = _fits(operand.arguments, each.parameters) and _fits(operand.results, each.results)
        functions[b.machine.code_address(each.name)] = (
            _by_name(b, operand, each) if fits else each.name
        )

    def enter(lanes: AnyArray, back: int) -> None:
        # Read before the first function is entered, which may be the caller.
        groups = [(int(a), lanes & (addresses == a)) for a in np.unique(addresses[lanes])]
        for address, there in groups:
            found = functions.get(address)
            if found is None:
                raise Fault(f"calls the address {address:#x}, which is that of no function", there)
            if isinstance(found, str):
                raise Fault(f"calls {found}, which has other parameters or results", there)
            found(there, back)

    return enter


def _fits(given: Sequence[Operand], formal: Sequence[Register | Variable]) -> bool:
    return len(given) == len(formal) and all(map(_matches, given, formal))


def _matches(actual: Operand, own: Register | Variable) -> bool:
    if isinstance(own, Variable):
        return isinstance(actual, SymbolOperand) and actual.variable.size == own.size
    return isinstance(actual, RegisterOperand) and own.type.agrees_with(actual.register.type)


def _transfers(
    b: Binder,
    given: tuple[Operand, ...],
    formal: tuple[Register | Variable, ...],
    *,
    into_function: bool,
) -> list[Transfer]:
    if len(given) != len(formal):
        raise b.refusal(f"the function has {len(formal)} parameters here, not {len(given)}")
    found = []
    for actual, own in zip(given, formal, strict=True):
        if isinstance(own, Register):
            inner = RegisterOperand(own)
            to, origin = (inner, actual) if into_function else (actual, inner)
            found.append(_of_register(b.source(origin, own.type), b.writer(to, own.type)))
            if not into_function:
                b.reads.discard(own.slot)
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
        found.append(_of_memory(b, to_variable, origin_variable))
    return found


def _of_register(source: AnyArray, write: Write) -> Transfer:
    # The mark that the call itself leaves is gone with the frame that it is made in: `write` makes
    # one of its own.
    return Transfer(lambda mask: source.copy(), write)  # type: ignore[arg-type]


def _of_memory(b: Binder, to: Variable, origin: Variable) -> Transfer:
    memory = b.machine.local
    return Transfer(
        lambda mask: memory.fetch(origin, mask),
        lambda value, mask: memory.put(to, value, mask),  # type: ignore[arg-type]
    )
