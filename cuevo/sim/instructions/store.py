"""st, to every state space that can be written."""

import numpy as np

from cuevo.sim.aliases import Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions import access
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.memory.spaces import FIRST, SIZE, WINDOWS
from cuevo.sim.text.syntax import AddressOperand, SymbolOperand


def global_memory(b: Binder, m: Modifiers) -> Step:
    check_policy = access.policy(b, m, 2)
    scalar, count, size = access.shape(m)
    address, read = access.wide_address(b, 0, ".global"), access.reader(b, 1, scalar, count)
    machine = b.machine

    def step(mask: Mask) -> None:
        check_policy(mask)
        machine.global_memory.store(address(), size, read(), mask)

    return step


def shared(b: Binder, m: Modifiers) -> Step:
    scalar, count, size = access.shape(m)
    places, read = access.shared_places(b, m, 0, size), access.reader(b, 1, scalar, count)
    memory, ordered = b.machine.shared, access.ordered(m)

    def step(mask: Mask) -> None:
        memory.store(places(mask), size, read(), mask, ordered=ordered)

    return step


def local(b: Binder, m: Modifiers) -> Step:
    scalar, count, size = access.shape(m)
    address, read = b.address(b.operand(0), ".local"), access.reader(b, 1, scalar, count)
    memory = b.machine.local
    return lambda mask: memory.store(address(), size, read(), mask)


def param(b: Binder, m: Modifiers) -> Step:
    """A parameter of a call."""
    operand = b.operand(0)
    base = operand.base if isinstance(operand, AddressOperand) else None
    if not isinstance(base, SymbolOperand) or base.variable.space != ".local":
        raise b.refusal("st.param writes parameters of calls only: [parameter + offset]")
    step = local(b, m)
    # Compilers pass on structs that have nothing in them.
    b.conditional.update(b.reads)
    return step


def generic(b: Binder, m: Modifiers) -> Step:
    """Each lane to the state space that its address is in."""
    check_policy = access.policy(b, m, 2)
    scalar, count, size = access.shape(m)
    address, read = access.wide_address(b, 0), access.reader(b, 1, scalar, count)
    machine, ordered = b.machine, access.ordered(m)

    def step(mask: Mask) -> None:
        check_policy(mask)
        addresses, values = address(), read()
        there = addresses >= np.uint64(FIRST)
        there = there if mask is None else there & mask
        if not np.count_nonzero(there):
            machine.global_memory.store(addresses, size, values, mask)
            return
        rest = ~there if mask is None else mask & ~there
        if np.count_nonzero(rest):
            machine.global_memory.store(addresses, size, values, rest)
        for space in ("shared", "local"):
            at = addresses - np.uint64(WINDOWS[space])
            lanes = there & (at < np.uint64(SIZE))
            if not np.count_nonzero(lanes):
                continue
            if space == "shared":
                indices = access.in_cluster(machine, at, size, lanes)
                machine.shared.store(indices, size, values, lanes, ordered=ordered)
            else:
                machine.local.store(at, size, values, lanes)
            there = there & ~lanes
        if np.count_nonzero(there):
            raise Fault("a generic address that is in no state space to be written", there)

    return step
