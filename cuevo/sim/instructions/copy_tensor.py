"""cp.async.bulk.tensor: boxes of an array that a tensor map describes."""

from collections.abc import Callable
from functools import partial

import numpy as np

from cuevo.cuda.tensor_map import ALIGNMENT, BYTES, TensorMap
from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions import access, atomic, copy_bulk
from cuevo.sim.instructions.copy_bulk import each_thread, in_name_of
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.machine.state import Machine
from cuevo.sim.memory.spaces import SIZE, WINDOWS
from cuevo.sim.memory.tensor_tiles import UNIT, Box
from cuevo.sim.text.syntax import AddressOperand, SymbolOperand
from cuevo.sim.text.types import TYPES

_ALIGNED = 128
"""Alignment of the shared address of a box."""


def load(b: Binder, m: Modifiers) -> Step:
    """``[shared], [map, {coordinates}], [mbarrier]{, ranks}{, policy}``"""
    machine = b.machine
    check_policy = access.policy(b, m, 3 + ("multicast" in m))
    units_of, box_of, slots = _units(b, m, 0), _boxes(b, m, 1), copy_bulk.mbarrier(b, m, 2)
    ranks = copy_bulk.multicast(b, m, 3)

    def step(mask: Mask) -> None:
        check_policy(mask)
        found = slots(mask)
        for lanes, thread in each_thread(machine, mask):
            box = box_of(lanes, thread)
            units = units_of(box, lanes, thread)
            values = in_name_of(lanes, partial(box.read, machine.global_memory))
            copy_bulk.tell(machine, units, values, int(found[thread]), lanes, thread, ranks)

    return step


def store(b: Binder, m: Modifiers) -> Step:
    """``[map, {coordinates}], [shared]{, policy}``, in a bulk group; with an operation, what is in
    global memory is combined with the data.
    """
    machine, op = b.machine, m.get("op", "")
    check_policy = access.policy(b, m, 2)
    box_of, units_of = _boxes(b, m, 0), _units(b, m, 1)

    def step(mask: Mask) -> None:
        check_policy(mask)
        for lanes, thread in each_thread(machine, mask):
            box = box_of(lanes, thread)
            units = units_of(box, lanes, thread)

            def finish(values: AnyArray, box: Box = box, lanes: AnyArray = lanes) -> None:
                in_name_of(lanes, lambda: _write(machine, box, values, op))

            machine.async_copies.store(units, thread, finish)

    return step


def _write(machine: Machine, box: Box, units: AnyArray, op: str) -> None:
    if not op:
        box.write(machine.global_memory, units)
        return
    combine, scalar = atomic.combining(op, box.map.dtype)

    def combined(found: AnyArray, values: AnyArray) -> AnyArray:
        return combine(found.view(scalar.dtype), values.view(scalar.dtype)).view(found.dtype)

    box.write(machine.global_memory, units, combined)


def prefetch(b: Binder, m: Modifiers) -> Step:
    """``[map, {coordinates}]{, policy}``: no result, but the map must be one."""
    machine, check_policy, box_of = b.machine, access.policy(b, m, 1), _boxes(b, m, 0)

    def step(mask: Mask) -> None:
        check_policy(mask)
        for lanes, thread in each_thread(machine, mask):
            box_of(lanes, thread)

    return step


def prefetch_map(b: Binder, m: Modifiers) -> Step:
    """The map must be one."""
    machine, map_of = b.machine, _maps(b, 0)
    match b.operand(0):
        case AddressOperand(SymbolOperand(variable)) if (".param" in b.instruction.opcode) != (
            variable.space == ".param"
        ):
            raise b.refusal(f"{b.instruction.opcode} of {variable.name}, which is {variable.space}")

    def step(mask: Mask) -> None:
        for lanes, thread in each_thread(machine, mask):
            map_of(lanes, thread)

    return step


# -- Maps -----------------------------------------------------------------------------------------


def _maps(b: Binder, index: int) -> Callable[[AnyArray, tuple[int, int]], TensorMap]:
    """The map of a thread, which a generic address points to: a parameter, or global memory."""
    address, machine = access.wide_address(b, index), b.machine
    decoded: dict[bytes, TensorMap] = {}

    def find(lanes: AnyArray, thread: tuple[int, int]) -> TensorMap:
        at = int(address()[thread])
        if int(machine.global_memory.placed(np.array(at, np.uint64))) % ALIGNMENT:
            raise Fault(f"a tensor map at {at:#x}, which is no multiple of {ALIGNMENT}", lanes)
        offset = at - WINDOWS["param"]
        if 0 <= offset < SIZE:
            encoded = machine.params[offset : offset + BYTES].tobytes()
        else:
            whole = np.uint64(at) + np.arange(0, BYTES, UNIT).astype(np.uint64)
            encoded = in_name_of(
                lanes, lambda: machine.global_memory.load(whole, UNIT, None)
            ).tobytes()
        found = decoded.get(encoded)
        if found is None:
            try:
                found = decoded[encoded] = TensorMap.decode(encoded)
            except ValueError as error:
                raise Fault(f"no tensor map: {error}", lanes) from None
        return found

    return find


def _boxes(b: Binder, m: Modifiers, index: int) -> Callable[[AnyArray, tuple[int, int]], Box]:
    """The box of a thread, by an operand ``[map, {coordinates}]``."""
    operand, rank = b.operand(index), int(m["dim"][0])
    given = operand.coordinates if isinstance(operand, AddressOperand) else ()
    if len(given) != rank:
        raise b.refusal(f"a map of {rank} axes takes as many coordinates, not {len(given)}")
    coordinates = [b.whole(each, TYPES["s32"]) for each in given]
    map_of = _maps(b, index)

    def find(lanes: AnyArray, thread: tuple[int, int]) -> Box:
        found = map_of(lanes, thread)
        if found.rank != rank:
            raise Fault(f"a map of {found.rank} axes in a copy of {rank}", lanes)
        return Box(found, tuple(int(each[thread]) for each in coordinates))

    return find


def _units(
    b: Binder, m: Modifiers, index: int
) -> Callable[[Box, AnyArray, tuple[int, int]], AnyArray]:
    """Indices of the units of 16 bytes of shared memory that a thread's box takes."""
    first_of, machine = copy_bulk.runs(b, m, index, _ALIGNED), b.machine
    address = b.address(b.operand(index), ".shared")

    def find(box: Box, lanes: AnyArray, thread: tuple[int, int]) -> AnyArray:
        size = box.map.shared_bytes
        first = int(first_of(np.full(machine.shape, size, np.uint32), lanes)[thread])
        units: AnyArray = first + box.offsets(int(address()[thread])) // UNIT
        if int(units.min()) < first or int(units.max()) >= first + size // UNIT:
            raise Fault("a swizzled box that begins within its pattern", lanes)
        return units

    return find
