"""st.async and red.async: each lane stores to, or updates, shared memory of a block of its cluster,
and an mbarrier of that block counts the bytes.

Both are of the generic proxy, unlike bulk copies: no fence stands between them and other accesses
of threads.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions import access, atomic
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.sync.mbarriers import BYTES
from cuevo.sim.text.types import TYPES


def store(b: Binder, m: Modifiers) -> Step:
    """``[a], b, [mbarrier]``"""
    scalar, count, size = access.shape(m)
    targets, read = _targets(b, m, size), access.reader(b, 1, scalar, count, wider=False)
    machine = b.machine

    def step(mask: Mask) -> None:
        indices, slots, lanes = targets(mask)
        machine.shared.begin_copy(indices, size, read(), mask)
        own = _in_order(indices, lanes)
        land = partial(machine.shared.end_copy_by_mbarrier, own, size)
        machine.async_copies.put(own, size, _in_order(slots, lanes), lanes, land)

    return step


def reduce(b: Binder, m: Modifiers) -> Step:
    """``[a], b, [mbarrier]``: what is there is combined with b when that comes."""
    scalar, op = TYPES[m["type"]], m["op"]
    size = scalar.bits // 8
    targets, given = _targets(b, m, size), b.whole(b.operand(1), scalar)
    machine = b.machine

    def step(mask: Mask) -> None:
        indices, slots, lanes = targets(mask)
        machine.shared.begin_reduction(indices, size, mask)
        own, values = _in_order(indices, lanes), _in_order(given, lanes)

        def combine(memory: AnyArray) -> None:
            atomic.combine_in_turn(op, memory.view(scalar.dtype), own, values)

        land = partial(machine.shared.end_reduction, own, size, combine)
        machine.async_copies.put(own, size, _in_order(slots, lanes), lanes, land)

    return step


def _targets(
    b: Binder, m: Modifiers, size: int
) -> Callable[[Mask], tuple[AnyArray, AnyArray, AnyArray]]:
    """Indices of the units of `size` bytes that data goes to, the mbarriers that count it, and the
    lanes.
    """
    data = access.cluster_places(b, m, 0, size, by_async_unit=True)
    mbarriers = access.cluster_places(b, m, 2, BYTES, by_async_unit=True)
    machine = b.machine

    def find(mask: Mask) -> tuple[AnyArray, AnyArray, AnyArray]:
        indices, units = data(mask), mbarriers(mask)
        lanes = np.ones(machine.shape, np.bool_) if mask is None else mask
        stride = machine.shared.stride
        if (apart := lanes & (indices * size // stride != units * BYTES // stride)).any():
            raise Fault("the data and its mbarrier are in shared memory of different blocks", apart)
        return indices, machine.mbarriers.slots(units, mask), lanes

    return find


def _in_order(each: AnyArray, lanes: AnyArray) -> AnyArray:
    """Values of the marked lanes, warp by warp."""
    found: AnyArray = each.T[lanes.T]
    return found
