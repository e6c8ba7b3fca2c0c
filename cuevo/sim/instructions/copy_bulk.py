"""cp.async.bulk: whole runs of bytes, copied by TMA."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions import access, atomic
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.machine.state import Machine
from cuevo.sim.memory.global_memory import unit_dtype
from cuevo.sim.sync.mbarriers import BYTES
from cuevo.sim.text.syntax import SymbolOperand
from cuevo.sim.text.types import TYPES

UNIT = 16
"""Bytes that addresses and sizes are multiples of."""


def load(b: Binder, m: Modifiers) -> Step:
    """``[shared], [global], bytes, [mbarrier]{, ranks}{, policy}``"""
    machine = b.machine
    check_policy = access.policy(b, m, 4 + ("multicast" in m))
    to, slots, ranks = runs(b, m, 0), mbarrier(b, m, 3), multicast(b, m, 4)
    origin, count = access.wide_address(b, 1, ".global"), _count(b, 2)

    def step(mask: Mask) -> None:
        check_policy(mask)
        found, first, source = slots(mask), to(count, mask), origin()
        for lanes, thread in each_thread(machine, mask):
            size = int(count[thread])
            at = _run(source[thread], size)
            values = in_name_of(lanes, partial(machine.global_memory.load, at, UNIT, None))
            own = int(first[thread]) + np.arange(size // UNIT)
            tell(machine, own, values, int(found[thread]), lanes, thread, ranks)

    return step


def hand_over(b: Binder, m: Modifiers) -> Step:
    """``[shared of another block], [shared], bytes, [mbarrier]``"""
    machine = b.machine
    to, slots, count = runs(b, m, 0), mbarrier(b, m, 3), _count(b, 2)
    origin = runs(b, {}, 1)

    def step(mask: Mask) -> None:
        found, first, source = slots(mask), to(count, mask), origin(count, mask)
        for lanes, thread in each_thread(machine, mask):
            along = np.arange(int(count[thread]) // UNIT)
            taken, slot = int(source[thread]) + along, int(found[thread])
            warps = np.full(taken.shape, thread[1])
            values = machine.shared.begin_async_read(taken, warps)
            tell(machine, int(first[thread]) + along, values, slot, lanes, thread, None, taken)

    return step


def store(b: Binder, m: Modifiers) -> Step:
    """``[global], [shared], bytes{, policy}``, in a bulk group; with an operation, what is in
    global memory is combined with the data.
    """
    machine = b.machine
    check_policy = access.policy(b, m, 3)
    to, count = access.wide_address(b, 0, ".global"), _count(b, 2)
    origin, put = runs(b, m, 1), _writer(b, m)

    def step(mask: Mask) -> None:
        check_policy(mask)
        first, target = origin(count, mask), to()
        for lanes, thread in each_thread(machine, mask):
            size = int(count[thread])
            at = _run(target[thread], size)
            own = int(first[thread]) + np.arange(size // UNIT)

            def finish(values: AnyArray, at: AnyArray = at, lanes: AnyArray = lanes) -> None:
                in_name_of(lanes, lambda: put(at, values))

            machine.async_copies.store(own, thread, finish)

    return step


def _writer(b: Binder, m: Modifiers) -> Callable[[AnyArray, AnyArray], None]:
    """Puts flat units of 16 bytes where flat addresses say, or combines them with what is there."""
    machine, op = b.machine, m.get("op", "")
    if not op:
        return lambda at, values: machine.global_memory.store(at, UNIT, values, None)
    combine, scalar = atomic.combining(op, m["type"])
    size = scalar.bits // 8

    def put(at: AnyArray, values: AnyArray) -> None:
        elements = np.ascontiguousarray(values).view(scalar.dtype)
        each = (at[:, None] + np.arange(0, UNIT, size).astype(np.uint64)).ravel()
        memory = machine.global_memory
        found = memory.load(each, size, None).view(scalar.dtype)
        memory.store(each, size, combine(found, elements).view(unit_dtype(size)), None)

    return put


def commit_group(b: Binder, m: Modifiers) -> Step:
    machine = b.machine
    return lambda mask: machine.async_copies.commit(mask)


def wait_group(b: Binder, m: Modifiers) -> Step:
    pending, machine, reads_only = b.constant(b.operand(0)), b.machine, bool(m["read"])
    return lambda mask: machine.async_copies.wait(pending, mask, reads_only=reads_only)


def prefetch(b: Binder, m: Modifiers) -> Step:
    """``[global], bytes{, policy}``: no result, but the addresses must be right."""
    check_policy = access.policy(b, m, 2)
    at, count = access.wide_address(b, 0, ".global"), _count(b, 1)

    def step(mask: Mask) -> None:
        check_policy(mask)
        wrong = ((at() | count) & np.uint64(UNIT - 1)) != 0
        if (lanes := wrong if mask is None else wrong & mask).any():
            raise Fault(f"a bulk prefetch begins at, and has, multiples of {UNIT} bytes", lanes)

    return step


# -- What all bulk copies have in common ----------------------------------------------------------


def _count(b: Binder, index: int) -> AnyArray:
    """Bytes of copies."""
    b.within(index, range(0, 2**20, UNIT))
    return b.whole(b.operand(index), TYPES["u32"])


def mbarrier(b: Binder, m: Modifiers, index: int) -> Callable[[Mask], AnyArray]:
    """The mbarriers that count the bytes of copies; the TMA unit must know of their making."""
    places, machine = access.shared_places(b, m, index, BYTES, by_async_unit=True), b.machine

    def slots(mask: Mask) -> AnyArray:
        indices = places(mask)
        found = machine.mbarriers.slots(indices, mask)
        lanes = np.ones(machine.shape, np.bool_) if mask is None else mask
        machine.happens_before.check_told(
            indices[lanes], BYTES, machine.happens_before.clocks.warp_of_lane[lanes]
        )
        return found

    return slots


def runs(
    b: Binder, m: Modifiers, index: int, alignment: int = UNIT
) -> Callable[[AnyArray, Mask], AnyArray]:
    """Indices of the first units of 16 bytes of runs of shared memory, of so many bytes each; all
    of them must exist.
    """
    first = access.shared_places(b, {"space": "shared", **m}, index, UNIT, by_async_unit=True)
    address, machine = b.address(b.operand(index), ".shared"), b.machine

    def check(count: AnyArray, mask: Mask) -> AnyArray:
        lanes = np.ones(machine.shape, np.bool_) if mask is None else mask
        wrong = lanes & ((count % UNIT != 0) | (count == 0))
        if wrong.any():
            raise Fault(f"a bulk copy has a multiple of {UNIT} bytes, and some", wrong)
        addresses = address()
        if (wrong := lanes & (addresses % addresses.dtype.type(alignment) != 0)).any():
            at = int(addresses[wrong][0])
            raise Fault(f"misaligned shared access: {at:#x} is no multiple of {alignment}", wrong)
        last = addresses + (count - UNIT).astype(addresses.dtype)
        machine.shared.cluster_indices(last, UNIT, mask)
        return first(mask)

    return check


def multicast(b: Binder, m: Modifiers, index: int) -> AnyArray | None:
    """The bits of the blocks that a load goes to; None if that is one."""
    if "multicast" not in m:
        return None
    if isinstance(b.operand(index), SymbolOperand):
        raise b.refusal("the blocks that a copy goes to are bits, and no address")
    return b.whole(b.operand(index), TYPES["u16"])


def tell(
    machine: Machine,
    units: AnyArray,
    values: AnyArray,
    slot: int,
    lanes: AnyArray,
    thread: tuple[int, int],
    ranks: AnyArray | None,
    reads: AnyArray | None = None,
) -> None:
    """Give a load to the TMA unit; with `ranks`, a copy each at the same places of their blocks."""
    if ranks is None:
        machine.async_copies.load(units, values, slot, thread[1], reads)
        return
    chosen = int(ranks[thread])
    if not 0 < chosen < 2**machine.geometry.cluster_blocks:
        raise Fault(f"{chosen:#x} are no blocks of the cluster", lanes)
    shared, mbarriers = machine.shared, machine.mbarriers
    for rank in range(machine.geometry.cluster_blocks):
        if chosen >> rank & 1:
            move = shared.in_block_of_rank(int(units[0]), UNIT, rank) - int(units[0])
            unit = shared.in_block_of_rank(mbarriers.unit_of(slot), BYTES, rank)
            machine.require_running(np.array(shared.block_of(unit, BYTES)), lanes)
            there = mbarriers.slot_of_unit(unit, lanes)
            machine.happens_before.check_told(np.array([unit]), BYTES, np.array([thread[1]]))
            machine.async_copies.load(units + move, values, there, thread[1])


def _run(begin: int, size: int) -> AnyArray:
    """Addresses of the units of a run of bytes."""
    addresses: AnyArray = np.uint64(begin) + np.arange(0, size, UNIT).astype(np.uint64)
    return addresses


def each_thread(machine: Machine, mask: Mask) -> Iterator[tuple[AnyArray, tuple[int, int]]]:
    """The lanes of `mask` one by one: marked, and as (lane, warp). Few threads issue bulk copies,
    and each of them moves some thousand bytes.
    """
    lanes = np.ones(machine.shape, np.bool_) if mask is None else mask
    for warp, lane in zip(*np.nonzero(lanes.T), strict=True):
        alone = np.zeros(machine.shape, np.bool_)
        alone[lane, warp] = True
        yield alone, (int(lane), int(warp))


def in_name_of(lanes: AnyArray, action: Callable[[], AnyArray | None]) -> AnyArray:
    """The result of `action`, whose faults are those of `lanes`."""
    try:
        result = action()
    except Fault as fault:
        raise Fault(fault.message, lanes) from None
    return np.zeros(0) if result is None else result
