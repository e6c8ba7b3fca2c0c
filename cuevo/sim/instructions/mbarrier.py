"""mbarrier: arriving at phases, waiting for them."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions import access
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.sync.mbarriers import BYTES
from cuevo.sim.text.syntax import SinkOperand, SymbolOperand
from cuevo.sim.text.types import TYPES

# What a state has in its upper bits here; on hardware its form is not documented.
_STATE = np.uint64(0x3BA2 << 48)


def _places(b: Binder, m: Modifiers, index: int) -> Callable[[Mask], AnyArray]:
    """Indices of the mbarriers that an operand points to, in units of 8 bytes."""
    return access.shared_places(b, m, index, BYTES)


def _slots(b: Binder, m: Modifiers, index: int) -> Callable[[Mask], AnyArray]:
    places, machine = _places(b, m, index), b.machine
    return lambda mask: machine.mbarriers.slots(places(mask), mask)


def init(b: Binder, m: Modifiers) -> Step:
    places, machine = _places(b, m, 0), b.machine
    counts = b.source(b.operand(1), TYPES["u32"])
    return lambda mask: machine.mbarriers.make(places(mask), counts, mask)


def invalidate(b: Binder, m: Modifiers) -> Step:
    places, machine = _places(b, m, 0), b.machine
    return lambda mask: machine.mbarriers.free(places(mask), mask)


def arrive(b: Binder, m: Modifiers) -> Step:
    """``state, [a]{, count}``, or with bytes to come ``state, [a], bytes``."""
    slots, machine = _slots(b, m, 1), b.machine
    given = b.source(b.operand(2), TYPES["u32"]) if b.operands == 3 else None
    if given is not None and "expect_tx" not in b.instruction.opcode:
        b.within(2, range(1, 2**20))
    state = b.destination(b.operand(0), TYPES["u64"])
    if m["space"] == "shared::cluster" and not isinstance(b.operand(0), SinkOperand):
        raise b.refusal("an arrival in another block gives no state: write _")
    sinks, drops = isinstance(b.operand(0), SinkOperand), m["op"] == "arrive_drop"
    expects = m.get("mode") == "expect_tx"
    machine.mbarriers.keeps_past |= not sinks

    def step(mask: Mask) -> None:
        found = slots(mask)
        if expects:
            assert given is not None
            machine.mbarriers.expect(found, given, mask)
        count = 1 if given is None or expects else given
        phases = machine.mbarriers.arrive(found, count, mask, drops=drops)
        if not sinks:
            packed = _STATE | phases.astype(np.uint64)
            np.copyto(state, packed, where=True if mask is None else mask)

    return step


def expect(b: Binder, m: Modifiers) -> Step:
    slots, machine = _slots(b, m, 0), b.machine
    count = b.source(b.operand(1), TYPES["u32"])
    return lambda mask: machine.mbarriers.expect(slots(mask), count, mask)


def complete(b: Binder, m: Modifiers) -> Step:
    """Count bytes as if an asynchronous copy had delivered them."""
    slots, machine = _slots(b, m, 0), b.machine
    count = b.whole(b.operand(1), TYPES["u32"])

    def step(mask: Mask) -> None:
        found = slots(mask)
        lanes = np.ones(machine.shape, np.bool_) if mask is None else mask
        machine.mbarriers.deliver(found[lanes], count[lanes].astype(np.int64), lanes)

    return step


def wait(b: Binder, m: Modifiers) -> Step:
    """test_wait and try_wait: whether a phase is complete, named by its parity or by a state. The
    lowest bit of a parity counts, which compilers that make numbers of flags have as 1 or -1.
    """
    slots, machine, line = _slots(b, m, 1), b.machine, b.instruction.line
    by_parity = "parity" in m
    if by_parity:
        b.within(2, range(2))
    elif isinstance(b.operand(2), SymbolOperand):
        raise b.refusal("a state is what an mbarrier.arrive gave, and no address")
    named = b.whole(b.operand(2), TYPES["u32" if by_parity else "u64"])
    if b.operands == 4:
        b.source(b.operand(3), TYPES["u32"])
    p = b.destination(b.operand(0), TYPES["pred"])

    def step(mask: Mask) -> None:
        found = slots(mask)
        wrong = (
            named + np.uint32(1) > 2
            if by_parity
            else named.view(np.uint64) & ~np.uint64(2**48 - 1) != _STATE
        )
        if (lanes := wrong if mask is None else wrong & mask).any():
            what = "a parity is 0 or 1" if by_parity else "a state that no mbarrier.arrive gave"
            raise Fault(what, lanes)
        if by_parity:
            phases = machine.mbarriers.phase_of_parity(found, named)
        else:
            phases = (named.view(np.uint64) & np.uint64(2**48 - 1)).astype(np.int64)
        done = machine.mbarriers.test(found, phases, mask, line)
        np.copyto(p, done, where=True if mask is None else mask)

    return step


def arrive_after_copies(b: Binder, m: Modifiers) -> Step:
    """An arrival when all ``cp.async`` of the thread so far have landed. Without ``.noinc`` the
    phase expects it besides its count.
    """
    slots, machine = _slots(b, m, 0), b.machine

    def step(mask: Mask) -> None:
        found = slots(mask)
        lanes = np.ones(machine.shape, np.bool_) if mask is None else mask
        if not m["noinc"]:
            machine.mbarriers.add_pending(found[lanes])
        machine.async_copies.arrive_after(found, lanes)

    return step
