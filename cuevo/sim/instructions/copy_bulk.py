"""cp.async.bulk: whole runs of bytes, copied by the copy engine."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.binder import Binder
from cuevo.sim.faults import Fault
from cuevo.sim.global_memory import unit_dtype
from cuevo.sim.instructions import access, atomic
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine import Machine
from cuevo.sim.mbarriers import BYTES
from cuevo.sim.types import TYPES

UNIT = 16
"""Bytes that addresses and sizes are multiples of."""


def load(b: Binder, m: Modifiers) -> Step:
    """``[shared], [global], bytes, [mbarrier]{, policy}``"""
    machine = b.machine
    check_policy = access.policy(b, m, 4)
    to, slots = access.shared_address(b, m, 0), mbarrier(b, m, 3)
    origin, count = access.wide_address(b, 1, ".global"), b.whole(b.operand(2), TYPES["u32"])

    def step(mask: Mask) -> None:
        check_policy(mask)
        found, first, source = slots(mask), units(machine, to(mask), count, mask), origin()
        for lanes, thread in each_thread(machine, mask):
            size = int(count[thread])
            at = _run(source[thread], size)
            values = in_name_of(lanes, partial(machine.global_memory.load, at, UNIT, None))
            own = int(first[thread]) + np.arange(size // UNIT)
            machine.async_copies.load(own, values, int(found[thread]), thread[1])

    return step


def store(b: Binder, m: Modifiers) -> Step:
    """``[global], [shared], bytes{, policy}``, in a bulk group; with an operation, what is in
    global memory is combined with the data.
    """
    machine = b.machine
    check_policy = access.policy(b, m, 3)
    to, count = access.wide_address(b, 0, ".global"), b.whole(b.operand(2), TYPES["u32"])
    origin = access.shared_address(b, m, 1)
    put = _writer(b, m)

    def step(mask: Mask) -> None:
        check_policy(mask)
        first, target = units(machine, origin(mask), count, mask), to()
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
    at, count = access.wide_address(b, 0, ".global"), b.whole(b.operand(1), TYPES["u32"])

    def step(mask: Mask) -> None:
        check_policy(mask)
        wrong = ((at() | count) & np.uint64(UNIT - 1)) != 0
        if (lanes := wrong if mask is None else wrong & mask).any():
            raise Fault(f"a bulk prefetch begins at, and has, multiples of {UNIT} bytes", lanes)

    return step


# -- What all bulk copies have in common ----------------------------------------------------------


def mbarrier(b: Binder, m: Modifiers, index: int) -> Callable[[Mask], AnyArray]:
    """The mbarriers that count the bytes of copies; the engine must know of their making."""
    address, machine = access.shared_address(b, m, index), b.machine
    warps = np.tile(np.arange(machine.warps), (32, 1))

    def slots(mask: Mask) -> AnyArray:
        indices = machine.shared.indices(address(mask), BYTES, mask)
        found = machine.mbarriers.slots(indices, mask)
        lanes = np.ones(machine.shape, np.bool_) if mask is None else mask
        machine.causality.check_told(indices[lanes], BYTES, warps[lanes])
        return found

    return slots


def units(machine: Machine, addresses: AnyArray, count: AnyArray, mask: Mask) -> AnyArray:
    """Indices of the first units of 16 bytes; all `count` bytes from there on must exist."""
    lanes = np.ones(machine.shape, np.bool_) if mask is None else mask
    wrong = lanes & ((count % UNIT != 0) | (count == 0))
    if wrong.any():
        raise Fault(f"a bulk copy has a multiple of {UNIT} bytes, and some", wrong)
    first = machine.shared.indices(addresses, UNIT, mask)
    last = addresses + (np.maximum(count, UNIT) - UNIT).astype(addresses.dtype)
    machine.shared.indices(last, UNIT, mask)
    return first


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
