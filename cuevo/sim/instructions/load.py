"""ld, from every state space."""

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions import access
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.memory.global_memory import unit_dtype
from cuevo.sim.memory.spaces import FIRST, SIZE, WINDOWS
from cuevo.sim.text.syntax import AddressOperand, RegisterOperand


def global_memory(b: Binder, m: Modifiers) -> Step:
    check_policy = access.policy(b, m, 2)
    scalar, count, size = access.shape(m)
    address, write = access.wide_address(b, 1, ".global"), access.writer(b, 0, scalar, count)
    machine = b.machine

    def step(mask: Mask) -> None:
        check_policy(mask)
        write(machine.global_memory.load(address(), size, mask), mask)

    return step


def shared(b: Binder, m: Modifiers) -> Step:
    scalar, count, size = access.shape(m)
    places, write = access.shared_places(b, m, 1, size), access.writer(b, 0, scalar, count)
    memory, ordered = b.machine.shared, access.ordered(m)

    def step(mask: Mask) -> None:
        write(memory.load(places(mask), size, mask, ordered=ordered), mask)

    return step


def local(b: Binder, m: Modifiers) -> Step:
    scalar, count, size = access.shape(m)
    address, write = b.address(b.operand(1), ".local"), access.writer(b, 0, scalar, count)
    memory = b.machine.local
    return lambda mask: write(memory.load(address(), size, mask), mask)


def constant(b: Binder, m: Modifiers) -> Step:
    scalar, count, size = access.shape(m)
    address, write = b.address(b.operand(1), ".const"), access.writer(b, 0, scalar, count)
    memory = b.machine.constant
    return lambda mask: write(memory.load(address(), size, mask), mask)


def generic(b: Binder, m: Modifiers) -> Step:
    """Each lane from the state space that its address is in."""
    check_policy = access.policy(b, m, 2)
    scalar, count, size = access.shape(m)
    address, write = access.wide_address(b, 1), access.writer(b, 0, scalar, count)
    machine, ordered = b.machine, access.ordered(m)

    def from_space(space: str, at: AnyArray, mask: AnyArray) -> AnyArray:
        if space == "shared":
            indices = access.in_cluster(machine, at, size, mask)
            return machine.shared.load(indices, size, mask, ordered=ordered)
        if space == "local":
            return machine.local.load(at, size, mask)
        if space == "const":
            return machine.constant.load(at, size, mask)
        return _parameters(b, at, size, mask)

    def step(mask: Mask) -> None:
        check_policy(mask)
        addresses = address()
        there = addresses >= np.uint64(FIRST)
        there = there if mask is None else there & mask
        if not np.count_nonzero(there):
            write(machine.global_memory.load(addresses, size, mask), mask)
            return
        rest = ~there if mask is None else mask & ~there
        if np.count_nonzero(rest):
            write(machine.global_memory.load(addresses, size, rest), rest)
        for space, begin in WINDOWS.items():
            at = addresses - np.uint64(begin)
            lanes = there & (at < np.uint64(SIZE))
            if np.count_nonzero(lanes):
                write(from_space(space, at, lanes), lanes)
                there = there & ~lanes
        if np.count_nonzero(there):
            raise Fault("a generic address that is in no state space", there)

    return step


def _parameters(b: Binder, offsets: AnyArray, size: int, mask: Mask) -> AnyArray:
    params = b.machine.params
    wrong = (offsets > max(params.size - size, 0)) | (offsets % size != 0)
    if (lanes := wrong if mask is None else wrong & mask).any():
        raise Fault("access outside of the parameters, or misaligned", lanes)
    usable = offsets if mask is None else np.where(mask, offsets, 0)
    return params.view(unit_dtype(size)).take(usable // size)


def param(b: Binder, m: Modifiers) -> Step:
    """A parameter of the kernel, or one of a call, which is memory of the thread."""
    scalar, count, size = access.shape(m)
    operand, machine = b.operand(1), b.machine
    if not isinstance(operand, AddressOperand) or operand.base is None:
        raise b.refusal("ld.param needs [parameter + offset]")
    write = access.writer(b, 0, scalar, count)
    if isinstance(operand.base, RegisterOperand):
        address = b.address(operand)
        return lambda mask: write(_parameters(b, address(), size, mask), mask)
    variable, offset = operand.base.variable, operand.offset
    spaces = {"param::entry": (".param",), "param::func": (".local",)}
    if variable.space not in spaces.get(m["space"], (".param", ".local")):
        raise b.refusal(f"{variable.name} is no variable of .{m['space']}")
    if not 0 <= offset <= (variable.size or 0) - size or offset % size:
        raise b.refusal(
            f"{size} bytes at offset {offset} of the parameter {variable.name}, "
            f"which has {variable.size} bytes"
        )
    if variable.space == ".local":
        of_call, memory = b.address(operand), machine.local
        return lambda mask: write(memory.load(of_call(), size, mask), mask)
    start, unit = machine.parameter_offset(variable.name) + offset, unit_dtype(size)

    def step(mask: Mask) -> None:
        value = machine.params[start : start + size].view(unit)
        write(np.full(machine.shape, value[0], unit), mask)

    return step
