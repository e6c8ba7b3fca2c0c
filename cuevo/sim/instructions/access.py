"""Common parts of loads, stores and atomics: addresses, vectors of registers, policies."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.faults import Fault
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.machine.state import Machine
from cuevo.sim.memory.global_memory import unit_dtype
from cuevo.sim.memory.spaces import SIZE, WINDOWS
from cuevo.sim.text.syntax import (
    AddressOperand,
    Operand,
    RegisterOperand,
    SinkOperand,
    SymbolOperand,
)
from cuevo.sim.text.types import TYPES, ScalarType

POLICY = np.uint64(0x501C << 48)
"""Upper bits of cache policies here; on hardware their form is not documented."""
_TAG = np.uint64(0xFFFF << 48)


def shape(m: Modifiers) -> tuple[ScalarType, int, int]:
    """Shape of an access such as ``v4.b32``: type, number of elements, and bytes, which are
    also the alignment.
    """
    vector, _, name = m["access"].rpartition(".")
    scalar, count = TYPES[name], int(vector.removeprefix("v") or 1)
    return scalar, count, scalar.bits // 8 * count


def _elements(b: Binder, index: int, count: int) -> tuple[Operand, ...]:
    """The registers of an access: a vector's are of one size."""
    found = b.vector(b.operand(index), count)
    sizes = {each.register.type.bits for each in found if isinstance(each, RegisterOperand)}
    if len(sizes) > 1:
        raise b.refusal(f"registers of {min(sizes)} and of {max(sizes)} bits in one vector")
    if found and all(isinstance(each, SinkOperand) for each in found):
        raise b.refusal(f"{b.instruction.opcode} has no result that is kept")
    return found


def writer(
    b: Binder, index: int, scalar: ScalarType, count: int
) -> Callable[[AnyArray, Mask], None]:
    """Puts loaded units into the destination registers."""
    operands = _elements(b, index, count)
    destinations = [b.destination(operand, scalar, wider=True) for operand in operands]
    # As patterns, so that none becomes a number on its way to a wider register.
    bits = TYPES[f"b{scalar.bits}"] if scalar.kind == "f" else scalar
    destinations = [d.view(bits.dtype) if d.dtype == scalar.dtype else d for d in destinations]

    def write(values: AnyArray, mask: Mask) -> None:
        elements = values.view(bits.dtype).reshape(*values.shape, count)
        where = True if mask is None else mask
        for i, d in enumerate(destinations):
            # A wider register takes the element extended by its sign, or by zeros.
            np.copyto(d, elements[..., i], where=where, casting="unsafe")

    return write


def reader(
    b: Binder, index: int, scalar: ScalarType, count: int, *, wider: bool = True
) -> Callable[[], AnyArray]:
    """Makes units of `count` elements out of the source registers, which may be `wider`."""
    operands = _elements(b, index, count)
    # The PTX ISA cuts the bits of a register wider than f32; ptxas makes a float of its number.
    wider = wider and scalar.name != "f32"
    sources = [b.source(operand, scalar, wider=wider) for operand in operands]
    unit = unit_dtype(scalar.bits // 8 * count)
    shape = b.machine.shape

    def read() -> AnyArray:
        if count == 1:
            return np.broadcast_to(sources[0], shape).astype(scalar.dtype).view(unit)
        joined = np.empty((*shape, count), scalar.dtype)
        for i, source in enumerate(sources):
            joined[..., i] = source
        return joined.view(unit)[..., 0]

    return read


def wide_address(b: Binder, index: int, space: str = "") -> Callable[[], AnyArray]:
    """An address that needs 64 bits: of global memory, or a generic one."""
    operand = b.operand(index)
    if isinstance(operand, AddressOperand):
        base = operand.base
        if isinstance(base, RegisterOperand) and base.register.type.bits != 64:
            raise b.refusal(f"{base.register.name} is no 64-bit address")
        if isinstance(base, SymbolOperand) and not space:
            within = b.address(operand)
            begin = np.uint64(WINDOWS.get(base.variable.space[1:], 0))
            return lambda: within() + begin
    return b.address(operand, space)


def shared_address(b: Binder, m: Modifiers, index: int) -> Callable[[Mask], AnyArray]:
    """A shared address; where the opcode names no state space, a generic one that must be in shared
    memory.
    """
    operand = b.operand(index)
    if isinstance(operand, AddressOperand) and operand.coordinates:
        raise b.refusal("coordinates belong to a tensor map, not to an address in .shared")
    if any(m.get(name, "").startswith("shared") for name in ("space", "to", "origin")):
        address = b.address(b.operand(index), ".shared")
        return lambda mask: address()
    match operand:
        case AddressOperand(SymbolOperand(variable)) if variable.space != ".shared":
            raise b.refusal(f"{variable.name} is in {variable.space}, not .shared")
    generic, begin = wide_address(b, index), np.uint64(WINDOWS["shared"])

    def convert(mask: Mask) -> AnyArray:
        addresses = generic() - begin
        wrong = addresses >= np.uint64(SIZE)
        if (outside := wrong if mask is None else wrong & mask).any():
            raise Fault("a generic address that is not in .shared", outside)
        return addresses

    return convert


def shared_places(
    b: Binder, m: Modifiers, index: int, size: int, *, by_async_unit: bool = False
) -> Callable[[Mask], AnyArray]:
    """Indices of units of `size` bytes of shared memory, also of that of other blocks where the
    opcode says ``.shared::cluster``. `by_async_unit`: not the thread itself gets there, but a copy.
    """
    if "shared::cluster" in (m.get("space"), m.get("to")):
        return cluster_places(b, m, index, size, by_async_unit=by_async_unit)
    address, machine = shared_address(b, m, index), b.machine
    return lambda mask: machine.shared.indices(address(mask), size, mask)


def cluster_places(
    b: Binder, m: Modifiers, index: int, size: int, *, by_async_unit: bool = False
) -> Callable[[Mask], AnyArray]:
    """The same of the memory of any block of the cluster, whether the opcode says so or takes
    generic addresses.
    """
    address, machine = shared_address(b, m, index), b.machine
    return lambda mask: in_cluster(machine, address(mask), size, mask, by_async_unit=by_async_unit)


def in_cluster(
    machine: Machine,
    addresses: AnyArray,
    size: int,
    mask: Mask,
    *,
    by_async_unit: bool = False,
) -> AnyArray:
    """The same of shared addresses of any block of the cluster, as also generic ones are once
    their window is taken off.
    """
    found = machine.shared.cluster_indices(addresses, size, mask)
    machine.reach(found, size, mask, by_async_unit=by_async_unit)
    return found


def policy(b: Binder, m: Modifiers, index: int) -> Callable[[Mask], None]:
    """Checks the cache policy that stands at `index` if there is a hint."""
    if not m.get("hint"):
        return lambda mask: None
    if isinstance(b.operand(index), SymbolOperand):
        raise b.refusal("a cache policy comes in a register")
    values = b.whole(b.operand(index), TYPES["u64"])

    def check(mask: Mask) -> None:
        strange = values.view(np.uint64) & _TAG != POLICY
        if (wrong := strange if mask is None else strange & mask).any():
            raise Fault("a cache policy that no createpolicy has made", wrong)

    return check


def ordered(m: Modifiers) -> bool:
    """Whether an access is no part of a data race: volatile, relaxed, acquire or release."""
    return m["order"] not in ("", "weak")
