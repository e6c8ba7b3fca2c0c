"""Loads, stores, atomics and prefetches."""

from collections.abc import Callable
from typing import Any

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.binder import Binder
from cuevo.sim.faults import Fault
from cuevo.sim.global_memory import unit_dtype
from cuevo.sim.instructions.table import Modifiers, form
from cuevo.sim.syntax import AddressOperand, RegisterOperand
from cuevo.sim.types import TYPES, ScalarType

_TYPES = ".b8|.u8|.s8|.b16|.u16|.s16|.b32|.u32|.s32|.f32|.b64|.u64|.s64|.f64"
_ORDER = (
    "{order:.weak|.volatile|.relaxed.cta|.relaxed.gpu|.relaxed.sys"
    "|.acquire.cta|.acquire.gpu|.acquire.sys}"
)
_RELEASE = _ORDER.replace("acquire", "release")
_CACHE = "{cache:.ca|.cg|.cs|.lu|.cv}"
_EVICT = (
    "{level1:.L1::evict_normal|.L1::evict_unchanged|.L1::evict_first|.L1::evict_last"
    "|.L1::no_allocate}"
)
_HINT = "<hint:.L2::cache_hint>"
_VECTOR = "{vector:.v2|.v4}"


def _count(m: Modifiers) -> int:
    return int(m["vector"].removeprefix("v") or 1)


def _check_vector(b: Binder, scalar: ScalarType, count: int) -> int:
    """Bytes of the whole access, which are also its alignment."""
    size = scalar.bits // 8 * count
    if size > 16:
        raise b.refusal(f"an access of {size} bytes; 16 is the most")
    return size


def _elements(values: AnyArray, scalar: ScalarType, count: int) -> AnyArray:
    """Units of a vector access to elements: shape (32, warps, count)."""
    return values.view(scalar.dtype).reshape(*values.shape, count)


def _writer(b: Binder, scalar: ScalarType, count: int) -> Callable[[AnyArray, Mask], None]:
    """Puts loaded units into the destination registers."""
    operands = b.vector(b.operand(0), count)
    destinations = [b.destination(operand, scalar, wider=True) for operand in operands]

    def write(values: AnyArray, mask: Mask) -> None:
        elements = _elements(values, scalar, count)
        where = True if mask is None else mask
        for i, d in enumerate(destinations):
            # A wider register takes the element extended by its sign, or by zeros.
            np.copyto(d, elements[..., i], where=where, casting="unsafe")

    return write


# -- Cache policies -------------------------------------------------------------------------------

_POLICY = np.uint64(0x501C << 48)
"""What policies begin with here; on hardware their form is not documented."""
_TAG = np.uint64(0xFFFF << 48)
_PRIMARY = ".L2::evict_last|.L2::evict_normal|.L2::evict_first|.L2::evict_unchanged"


@form(
    f"createpolicy.fractional<primary:{_PRIMARY}>"
    "{secondary:.L2::evict_first|.L2::evict_unchanged}.b64",
    since=80,
)
def create_policy(b: Binder, m: Modifiers) -> Step:
    """How L2 keeps a fraction of the lines, a hint; a fraction is above 0 and at most 1."""
    operands = b.count(1, 2)
    policy, machine = b.destination(b.operand(0), TYPES["b64"]), b.machine
    fraction = b.whole(b.operand(1), TYPES["f32"]) if operands == 2 else np.ones(machine.shape)

    def compute(out: AnyArray) -> None:
        out[...] = _POLICY | fraction.astype(np.float32).view(np.uint32)

    create = b.alu(policy, compute)

    def step(mask: Mask) -> None:
        outside = ~((fraction > 0) & (fraction <= 1))
        if (wrong := outside if mask is None else outside & mask).any():
            raise Fault("a fraction of cache lines that is not above 0 and at most 1", wrong)
        create(mask)

    return step


def _policy(b: Binder, m: Modifiers, index: int) -> Callable[[Mask], None]:
    """Counts the operands, and checks the policy after the first `index`, if there is a hint."""
    hinted = bool(m.get("hint"))
    b.count(index + hinted)
    if not hinted:
        return lambda mask: None
    policy = b.whole(b.operand(index), TYPES["b64"])

    def check(mask: Mask) -> None:
        strange = policy.view(np.uint64) & _TAG != _POLICY
        if (wrong := strange if mask is None else strange & mask).any():
            raise Fault("a cache policy that no createpolicy has made", wrong)

    return check


# -- Loads and stores -----------------------------------------------------------------------------

_LOAD = f"ld{_ORDER}.global{{.nc}}{_CACHE}{_EVICT}"


@form(f"{_LOAD}{_VECTOR}<type:{_TYPES}>")
@form(f"{_LOAD}<prefetch:.L2::64B|.L2::128B>{_VECTOR}<type:{_TYPES}>", since=75)
@form(f"{_LOAD}.L2::256B{_VECTOR}<type:{_TYPES}>", since=80)
@form(f"{_LOAD}{_HINT}{_VECTOR}<type:{_TYPES}>", since=80)
def load_global(b: Binder, m: Modifiers) -> Step:
    check_policy = _policy(b, m, 2)
    scalar, count = TYPES[m["type"]], _count(m)
    size = _check_vector(b, scalar, count)
    address, write, machine = _global(b, 1), _writer(b, scalar, count), b.machine

    def step(mask: Mask) -> None:
        check_policy(mask)
        write(machine.global_memory.load(address(), size, mask), mask)

    return step


def _global(b: Binder, index: int) -> Callable[[], AnyArray]:
    operand = b.operand(index)
    if (
        isinstance(operand, AddressOperand)
        and isinstance(operand.base, RegisterOperand)
        and operand.base.register.type.bits != 64
    ):
        raise b.refusal(f"{operand.base.register.name} is no 64-bit address of global memory")
    return b.address(operand)


@form(f"ld{_ORDER}.shared{{cta:::cta}}{_VECTOR}<type:{_TYPES}>")
def load_shared(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    scalar, count = TYPES[m["type"]], _count(m)
    size = _check_vector(b, scalar, count)
    address, write, shared = b.address(b.operand(1)), _writer(b, scalar, count), b.machine.shared
    ordered = m["order"] not in ("", "weak")

    def step(mask: Mask) -> None:
        indices = shared.indices(address(), size, mask)
        write(shared.load(indices, size, mask, ordered=ordered), mask)

    return step


@form(f"ld.param{_VECTOR}<type:{_TYPES}>")
def load_param(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    scalar, count = TYPES[m["type"]], _count(m)
    size = _check_vector(b, scalar, count)
    operand, machine = b.operand(1), b.machine
    write = _writer(b, scalar, count)
    if not isinstance(operand, AddressOperand) or operand.base is None:
        raise b.refusal("ld.param needs [parameter + offset]")
    if isinstance(operand.base, RegisterOperand):
        address = b.address(operand)

        def gather(mask: Mask) -> None:
            offsets = address()
            wrong = (offsets > max(machine.params.size - size, 0)) | (offsets % size != 0)
            wrong = wrong if mask is None else wrong & mask
            if wrong.any():
                raise Fault("access outside of the parameters, or misaligned", wrong)
            usable = offsets if mask is None else np.where(mask, offsets, 0)
            write(machine.params.view(unit_dtype(size)).take(usable // size), mask)

        return gather
    variable, offset = operand.base.variable, operand.offset
    if variable.space != ".param":
        raise b.refusal(f"{variable.name} is no parameter")
    if not 0 <= offset <= (variable.size or 0) - size or offset % size:
        raise b.refusal(
            f"{size} bytes at offset {offset} of the parameter {variable.name}, "
            f"which has {variable.size} bytes"
        )
    start = b.machine.parameter_offset(variable.name) + offset

    def step(mask: Mask) -> None:
        value = machine.params[start : start + size].view(unit_dtype(size))
        write(np.broadcast_to(value, (*machine.shape, 1))[..., 0].copy(), mask)

    return step


def _reader(b: Binder, scalar: ScalarType, count: int, index: int) -> Callable[[], AnyArray]:
    """Makes units of `count` elements out of the source registers."""
    operands = b.vector(b.operand(index), count)
    sources = [b.source(operand, scalar, wider=True) for operand in operands]
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


_STORE = f"st{_RELEASE}.global{_CACHE.replace('.ca|', '.wb|.wt|')}{_EVICT}"


@form(f"{_STORE}{_VECTOR}<type:{_TYPES}>")
@form(f"{_STORE}{_HINT}{_VECTOR}<type:{_TYPES}>", since=80)
def store_global(b: Binder, m: Modifiers) -> Step:
    check_policy = _policy(b, m, 2)
    scalar, count = TYPES[m["type"]], _count(m)
    size = _check_vector(b, scalar, count)
    address, read, machine = _global(b, 0), _reader(b, scalar, count, 1), b.machine

    def step(mask: Mask) -> None:
        check_policy(mask)
        machine.global_memory.store(address(), size, read(), mask)

    return step


@form(f"st{_RELEASE}.shared{{cta:::cta}}{_VECTOR}<type:{_TYPES}>")
def store_shared(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    scalar, count = TYPES[m["type"]], _count(m)
    size = _check_vector(b, scalar, count)
    address, read, shared = b.address(b.operand(0)), _reader(b, scalar, count, 1), b.machine.shared
    ordered = m["order"] not in ("", "weak")

    def step(mask: Mask) -> None:
        indices = shared.indices(address(), size, mask)
        shared.store(indices, size, read(), mask, ordered=ordered)

    return step


@form("prefetch{.global}<level:.L1|.L2>", "prefetchu.L1")
@form("prefetch.global.L2<evict:::evict_last|::evict_normal>", since=80)
def prefetch(b: Binder, m: Modifiers) -> Step:
    """A hint: it may name any address."""
    b.count(1)
    b.address(b.operand(0))
    return lambda mask: None


# -- Atomics --------------------------------------------------------------------------------------

_SCOPES = "{order:.relaxed|.acquire|.release|.acq_rel}{scope:.cta|.gpu|.sys}"
_ATOMIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda found, value: value,
    # Counters that wrap around at the operand.
    "inc": lambda found, last: 0 if found >= last else found + 1,
    "dec": lambda found, last: last if found == 0 or found > last else found - 1,
}
_ATOMIC_TYPES = (
    "<op:.inc|.dec><type:.u32>",
    "<op:.add><type:.u32|.s32|.u64|.f32|.f64>",
    "<op:.min|.max><type:.u32|.s32|.u64|.s64>",
    "<op:.and|.or|.xor><type:.b32|.b64>",
)


def _atomic(b: Binder, m: Modifiers, index: int, out: AnyArray | None) -> Step:
    """Lanes take their turns in the order of blocks, warps, lanes; `out` gets what each found."""
    scalar = TYPES[m["type"]]
    size = scalar.bits // 8
    in_shared = m["space"] == "shared"
    address = b.address(b.operand(index)) if in_shared else _global(b, index)
    operand = b.whole(b.operand(index + 1), scalar)
    machine, function = b.machine, _ATOMIC[m["op"]]

    def turns(places: AnyArray, found: AnyArray, mask: Mask) -> AnyArray:
        """The final value for each lane's place; with `out`, what each found goes there."""
        lanes = np.ones(machine.shape, np.bool_) if mask is None else mask
        # Transposed: warps before lanes.
        chosen = lanes.T
        _, first, group = np.unique(places.T[chosen], return_index=True, return_inverse=True)
        values = operand.T[chosen]
        memory = found.view(scalar.dtype).T[chosen][first]
        if out is None and isinstance(function, np.ufunc):
            function.at(memory, group, values)
        else:
            before = np.empty_like(values)
            for i, g in enumerate(group):
                before[i] = memory[g]
                memory[g] = function(memory[g], values[i])
            if out is not None:
                out.T[chosen] = before
        final = np.zeros(machine.shape, scalar.dtype)
        final.T[chosen] = memory[group]
        return final.view(unit_dtype(size))

    def step(mask: Mask) -> None:
        if in_shared:
            shared = machine.shared
            indices = shared.indices(address(), size, mask)
            found = shared.load(indices, size, mask, ordered=True)
            shared.store(indices, size, turns(indices, found, mask), mask, ordered=True)
        else:
            addresses = address()
            found = machine.global_memory.load(addresses, size, mask)
            machine.global_memory.store(addresses, size, turns(addresses, found, mask), mask)

    return step


@form(*(f"red{_SCOPES}<space:.global|.shared>{each}" for each in _ATOMIC_TYPES))
def reduction(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    return _atomic(b, m, 0, None)


@form(
    *(
        f"atom{_SCOPES}<space:.global|.shared>{each}"
        for each in (*_ATOMIC_TYPES, "<op:.exch><type:.b32|.b64>")
    )
)
def atomic(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    d = b.destination(b.operand(0), TYPES[m["type"]])
    return _atomic(b, m, 1, d)
