"""Exchange within a warp: shuffles, votes, reductions; fences."""

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault, first_thread
from cuevo.sim.instructions.members import BIT, require_all, together
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder, is_constant
from cuevo.sim.sync.meetings import Give, Values
from cuevo.sim.text.syntax import PairOperand, RegisterOperand
from cuevo.sim.text.types import TYPES

_LANE = np.arange(32)
_WRITTEN: AnyArray = np.ones((1, 1), np.bool_)
"""Of a register that all lanes have surely written."""


def shuffle(b: Binder, m: Modifiers) -> Step:
    """``d|p, a, b, c, members``: c has the clamp in bits 0 to 4, the mask of segments in bits 8 to
    12.
    """
    b32 = TYPES["b32"]
    x = b.whole(b.operand(1), b32)
    by, control = b.source(b.operand(2), b32), b.source(b.operand(3), b32)
    first, second = b.pair(b.operand(0))
    outputs = b.writer(first, b32), b.writer(second, TYPES["pred"])
    mode, shape = m["mode"], b.machine.shape
    name, written = "", _WRITTEN
    if isinstance(source := b.operand(1), RegisterOperand):
        name, slot = source.register.name, source.register.slot
        if not any(source == b.operand(i) for i in (2, 3, 4)):
            # What a lane has not written it may offer, as long as no lane takes it.
            b.conditional.add(slot)
            if slot in b.suspects:
                written = b.machine.track(slot)

    def sources(by: AnyArray, control: AnyArray, lane: AnyArray) -> tuple[AnyArray, AnyArray]:
        """The lane that each lane reads, and whether that is in range."""
        by, control = by.astype(np.int64) & 31, control.astype(np.int64)
        clamp, segment = control & 31, control >> 8 & 31
        highest = (lane & segment) | (clamp & ~segment)
        lowest = lane & segment
        if mode == "up":
            wanted = lane - by
            inside = wanted >= highest
        elif mode == "down":
            wanted = lane + by
            inside = wanted <= highest
        elif mode == "bfly":
            wanted = lane ^ by
            inside = wanted <= highest
        else:
            wanted = lowest | (by & ~segment)
            inside = wanted <= highest
        return np.where(inside, wanted, lane), inside

    fixed = None
    if is_constant(by) and is_constant(control):
        fixed = sources(by, control, _LANE[:, None])

    def run(mask: Mask, values: Values, give: Give) -> None:
        x, own_by, own_control, offered = values
        if fixed is not None and own_by is by:
            result = x[fixed[0][:, 0]]
            origin, inside = (np.broadcast_to(each, shape) for each in fixed)
        else:
            origin, inside = sources(
                np.broadcast_to(own_by, shape), np.broadcast_to(own_control, shape), _LANE[:, None]
            )
            result = np.take_along_axis(x, origin, axis=0)
        if mask is not None and (absent := mask & ~np.take_along_axis(mask, origin, axis=0)).any():
            raise Fault("shfl reads from a lane that does not take part", absent)
        if offered is not _WRITTEN:
            open_ones = ~np.take_along_axis(np.broadcast_to(offered, shape), origin, axis=0)
            if (lanes := open_ones if mask is None else open_ones & mask).any():
                lane = int(origin[first_thread(lanes)])
                raise Fault(f"gets the register {name} of lane {lane}, which never wrote it", lanes)
        give((result, inside), mask)

    inputs = [lambda: x, lambda: by, lambda: control, lambda: written]
    return together(b, 4, inputs, run, outputs)


def vote(b: Binder, m: Modifiers) -> Step:
    p = b.predicate(b.operand(1))
    d = b.writer(b.operand(0), TYPES["pred"])
    mode = m["mode"]

    def run(mask: Mask, values: Values, give: Give) -> None:
        (here,) = values
        some = np.asarray((here if mask is None else here & mask).any(axis=0))
        every = np.asarray((here if mask is None else here | ~mask).all(axis=0))
        give(({"any": some, "all": every, "uni": every | ~some}[mode],), mask)

    return together(b, 2, [p], run, [d])


def ballot(b: Binder, m: Modifiers) -> Step:
    p = b.predicate(b.operand(1))
    d = b.writer(b.operand(0), TYPES["b32"])

    def run(mask: Mask, values: Values, give: Give) -> None:
        here = values[0] if mask is None else values[0] & mask
        give((_as_bits(here)[None, :],), mask)

    return together(b, 2, [p], run, [d])


def _as_bits(lanes: AnyArray) -> AnyArray:
    """One bit a lane: uint32 (warps,)."""
    bits: AnyArray = np.bitwise_or.reduce(np.where(lanes, BIT, np.uint32(0)), axis=0)
    return bits


def active_mask(b: Binder, m: Modifiers) -> Step:
    d, machine = b.destination(b.operand(0), TYPES["b32"]), b.machine

    def step(mask: Mask) -> None:
        here = np.ones(machine.shape, np.bool_) if mask is None else mask
        np.copyto(d, _as_bits(here)[None, :], where=True if mask is None else mask)

    return step


_REDUCTIONS = {
    "add": (np.add, 0),
    "min": (np.minimum, None),
    "max": (np.maximum, None),
    "and": (np.bitwise_and, 0xFFFFFFFF),
    "or": (np.bitwise_or, 0),
    "xor": (np.bitwise_xor, 0),
}


def reduce(b: Binder, m: Modifiers) -> Step:
    scalar = TYPES[m["type"].replace("b", "u")]
    x = b.whole(b.operand(1), scalar)
    d = b.writer(b.operand(0), scalar)
    function, neutral = _REDUCTIONS[m["op"]]
    info = np.iinfo(scalar.dtype)
    if neutral is None:
        neutral = info.max if m["op"] == "min" else info.min
    start = scalar.dtype.type(neutral)

    def run(mask: Mask, values: Values, give: Give) -> None:
        taken = values[0] if mask is None else np.where(mask, values[0], start)
        result = function.reduce(taken, axis=0, dtype=scalar.dtype)
        give((result[None, :],), mask)

    return together(b, 2, [lambda: x], run, [d])


def barrier(b: Binder, m: Modifiers) -> Step:
    """Wait for the members; orders their accesses to shared memory."""
    machine, races = b.machine, b.machine.shared.races

    def run(mask: Mask, values: Values, give: Give) -> None:
        races.warp_barrier(mask, machine.alive)

    return together(b, 0, [], run)


def fence(b: Binder, m: Modifiers) -> Step:
    """Memory is sequentially consistent here."""
    return lambda mask: None


def fence_proxy(b: Binder, m: Modifiers) -> Step:
    """Make earlier writes visible to asynchronous units."""
    machine = b.machine
    if m["space"] == "global":
        return lambda mask: None
    return lambda mask: machine.happens_before.fence_proxy(mask)


def fence_init(b: Binder, m: Modifiers) -> Step:
    """The same of the making of mbarriers."""
    machine = b.machine

    def step(mask: Mask) -> None:
        if machine.asynchronous:
            machine.happens_before.fence_proxy(mask, machine.mbarriers.words())

    return step


def registers(b: Binder, m: Modifiers) -> Step:
    """setmaxnreg: here there are registers enough; all warps of a warpgroup must ask for it."""
    count = b.constant(b.operand(0))
    if not 24 <= count <= 256 or count % 8:
        raise b.refusal(f"setmaxnreg takes a multiple of 8 from 24 to 256, not {count}")
    machine = b.machine

    def step(mask: Mask) -> None:
        require_all(machine, mask)

    return step


def match_any(b: Binder, m: Modifiers) -> Step:
    """The lanes that have the same value."""
    x = b.whole(b.operand(1), TYPES[m["type"]])
    d = b.writer(b.operand(0), TYPES["u32"])

    def run(mask: Mask, values: Values, give: Give) -> None:
        (x,) = values
        equal = x[:, None, :] == x[None, :, :]
        if mask is not None:
            equal &= mask[:, None, :]
        # The first axis is of the lanes that are looked at, the second of those that look.
        result = np.bitwise_or.reduce(np.where(equal, BIT[:, :, None], np.uint32(0)), axis=0)
        give((result,), mask)

    return together(b, 2, [lambda: x], run, [d])


def match_all(b: Binder, m: Modifiers) -> Step:
    """All lanes and true if they have one value, else 0 and false."""
    x = b.whole(b.operand(1), TYPES[m["type"]])
    first, second = b.pair(b.operand(0))
    outputs = b.writer(first, TYPES["u32"]), b.writer(second, TYPES["pred"])
    machine = b.machine

    def run(mask: Mask, values: Values, give: Give) -> None:
        (x,) = values
        here = np.ones(machine.shape, np.bool_) if mask is None else mask
        some = np.take_along_axis(x, here.argmax(axis=0)[None, :], axis=0)
        same = ((x == some) | ~here).all(axis=0)
        give((np.where(same, _as_bits(here), np.uint32(0))[None, :], same[None, :]), mask)

    return together(b, 2, [lambda: x], run, outputs)


def elect(b: Binder, m: Modifiers) -> Step:
    """One lane is the leader: here the lowest one, which the ISA leaves open."""
    machine = b.machine
    if not isinstance(b.operand(0), PairOperand):
        raise b.refusal("elect.sync has two results, d|p")
    first, second = b.pair(b.operand(0))
    outputs = b.writer(first, TYPES["u32"]), b.writer(second, TYPES["pred"])

    def run(mask: Mask, values: Values, give: Give) -> None:
        here = np.ones(machine.shape, np.bool_) if mask is None else mask
        leader = here.argmax(axis=0)[None, :]
        give((leader, _LANE[:, None] == leader), mask)

    return together(b, 1, [], run, outputs)


def nothing(b: Binder, m: Modifiers) -> Step:
    """Do nothing: effects that only a debugger, a profiler or a clock would notice."""
    if b.instruction.opcode == "pmevent":
        b.constant(b.operand(0))
        b.within(0, range(16))
    for operand in b.instruction.operands:
        b.source(operand, TYPES["u32"])
    return lambda mask: None
