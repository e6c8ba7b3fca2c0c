"""tensormap: maps that a kernel makes or changes, of which TMA learns in global memory."""

from collections.abc import Callable, Iterator

import numpy as np

from cuevo.cuda.tensor_map import ALIGNMENT, BYTES, TensorMap
from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions import access
from cuevo.sim.instructions.matrix import whole_warps
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.machine.state import Machine
from cuevo.sim.memory.global_memory import unit_dtype
from cuevo.sim.memory.tensor_tiles import UNIT
from cuevo.sim.text.types import TYPES

_AXES = 5
_CONSTANTS = {"elemtype": 13, "swizzle_mode": 4, "fill_mode": 2, "interleave_layout": 3}
"""Fields whose values are constants, so many."""
_UNITS = range(BYTES // UNIT)
Load = Callable[[AnyArray, AnyArray, int], AnyArray]
"""Units at places, for marked lanes, so many units behind."""
Store = Callable[[AnyArray, AnyArray, int, AnyArray], None]


def replace(b: Binder, m: Modifiers) -> Step:
    """``[map]{, axis}, value``: another value in a field of a map, or of zeros that become one."""
    machine, field, scalar = b.machine, m["field"], TYPES[m["type"]]
    shared = m["space"] != "global"
    places = _shared(b, m, 0) if shared else _global(b, 0)
    axis = b.constant(b.operand(1)) if b.operands == 3 else 0
    if b.operands == 3 or field in _CONSTANTS:
        b.constant(b.operand(1))
        b.within(1, range(_CONSTANTS.get(field, _AXES)))
    # An extent or a stride of 32 bits is an integer; a rank may be of any bits.
    by_axis = b.operands == 3 and scalar.bits == 32
    given = b.whole(b.operand(b.operands - 1), TYPES["u32"] if by_axis else scalar)

    def step(mask: Mask) -> None:
        at = places(mask)
        for lanes, thread in _threads(machine, at, mask):
            load, store = _memory(machine, shared)
            found = b"".join(load(at, lanes, i)[thread].tobytes() for i in _UNITS)
            try:
                made = TensorMap.replaced(found, field, int(given[thread]), axis)
            except ValueError as error:
                raise Fault(f"no tensor map: {error}", lanes) from None
            for i, unit in enumerate(np.frombuffer(made, unit_dtype(UNIT))):
                store(at, lanes, i, np.full(machine.shape, unit))

    return step


def copy(b: Binder, m: Modifiers) -> Step:
    """``[global], [shared], 128``: a warp hands a map to TMA."""
    machine = b.machine
    to, origin = _global(b, 0), _shared(b, m, 1)
    _whole(b, 2)

    def step(mask: Mask) -> None:
        whole_warps(machine, mask)
        there, here = to(mask), origin(mask)
        first = np.zeros(machine.shape, np.bool_)
        first[0] = True if mask is None else mask.any(axis=0)
        (load, _), (_, store) = _memory(machine, True), _memory(machine, False)
        for i in _UNITS:
            store(there, first, i, load(here, first, i))

    return step


def acquire(b: Binder, m: Modifiers) -> Step:
    """``[map], 128``: memory is sequentially consistent here."""
    access.wide_address(b, 0)
    _whole(b, 1)
    return lambda mask: None


def _whole(b: Binder, index: int) -> None:
    if b.constant(b.operand(index)) != BYTES:
        raise b.refusal(f"a tensor map has {BYTES} bytes")


def _shared(b: Binder, m: Modifiers, index: int) -> Callable[[Mask], AnyArray]:
    address, machine = b.address(b.operand(index), ".shared"), b.machine

    def places(mask: Mask) -> AnyArray:
        _check_aligned(address(), mask)
        return machine.shared.indices(address(), UNIT, mask)

    return places


def _global(b: Binder, index: int) -> Callable[[Mask], AnyArray]:
    address, machine = access.wide_address(b, index, ".global"), b.machine

    def places(mask: Mask) -> AnyArray:
        _check_aligned(machine.global_memory.placed(address()), mask)
        return address()

    return places


def _check_aligned(addresses: AnyArray, mask: Mask) -> None:
    wrong = addresses % addresses.dtype.type(ALIGNMENT) != 0
    if (lanes := wrong if mask is None else wrong & mask).any():
        raise Fault(f"a tensor map is at a multiple of {ALIGNMENT} bytes", lanes)


def _memory(machine: Machine, shared: bool) -> tuple[Load, Store]:
    if shared:
        memory = machine.shared
        return (
            lambda at, lanes, i: memory.load(at + i, UNIT, lanes),
            lambda at, lanes, i, values: memory.store(at + i, UNIT, values, lanes),
        )
    rest, step = machine.global_memory, np.uint64(UNIT)
    return (
        lambda at, lanes, i: rest.load(at + np.uint64(i) * step, UNIT, lanes),
        lambda at, lanes, i, values: rest.store(at + np.uint64(i) * step, UNIT, values, lanes),
    )


def _threads(
    machine: Machine, at: AnyArray, mask: Mask
) -> Iterator[tuple[AnyArray, tuple[int, int]]]:
    """The first lane of each warp for each of its maps: marked, and as (lane, warp)."""
    lanes = np.ones(machine.shape, np.bool_) if mask is None else mask
    for warp in np.flatnonzero(lanes.any(axis=0)):
        own = np.flatnonzero(lanes[:, warp])
        for lane in own[np.unique(at[own, warp], return_index=True)[1]]:
            alone = np.zeros(machine.shape, np.bool_)
            alone[lane, warp] = True
            yield alone, (int(lane), int(warp))
