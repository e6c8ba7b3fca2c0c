"""Integer arithmetic."""

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.binder import Binder
from cuevo.sim.faults import Fault
from cuevo.sim.instructions.table import Modifiers, form
from cuevo.sim.types import TYPES

_INTEGERS = ".s16|.u16|.s32|.u32|.s64|.u64"
_WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
_BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul.lo": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


@form(f"<op:add|sub|mul.lo|min|max><type:{_INTEGERS}>")
def binary(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    scalar = TYPES[m["type"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    d = b.destination(b.operand(0), scalar)
    function = _BINARY[m["op"]]
    return b.alu(d, lambda out: function(x, y, out=out))


@form("<op:abs|neg><type:.s16|.s32|.s64>")
def unary(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    scalar = TYPES[m["type"]]
    x = b.source(b.operand(1), scalar)
    d = b.destination(b.operand(0), scalar)
    function = np.absolute if m["op"] == "abs" else np.negative
    return b.alu(d, lambda out: function(x, out))


def _high_product(x: AnyArray, y: AnyArray) -> AnyArray:
    """The high half of the full product."""
    bits = x.dtype.itemsize * 8
    if bits < 64:
        wide = np.dtype(f"{x.dtype.kind}{x.dtype.itemsize * 2}")
        product: AnyArray = np.multiply(x, y, dtype=wide)
        high: AnyArray = (product >> wide.type(bits)).astype(x.dtype)
        return high
    # Schoolbook on 32-bit halves; a signed factor below zero is worth 2^64 less than its pattern.
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    ux, uy = x.view(np.uint64), y.view(np.uint64)
    x0, x1, y0, y1 = ux & low, ux >> half, uy & low, uy >> half
    middle = x1 * y0 + (x0 * y0 >> half)
    other = x0 * y1 + (middle & low)
    high = x1 * y1 + (middle >> half) + (other >> half)
    if x.dtype.kind == "i":
        high = high - np.where(x < 0, uy, np.uint64(0)) - np.where(y < 0, ux, np.uint64(0))
    result: AnyArray = high.view(x.dtype)
    return result


@form(f"mul.hi<type:{_INTEGERS}>")
def mul_hi(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    scalar = TYPES[m["type"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    d = b.destination(b.operand(0), scalar)
    return b.alu(d, lambda out: np.copyto(out, _high_product(x, y)))


@form("mul.wide<type:.s16|.u16|.s32|.u32>")
def mul_wide(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    scalar, wide = TYPES[m["type"]], TYPES[_WIDE[m["type"]]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    d = b.destination(b.operand(0), wide)
    return b.alu(d, lambda out: np.multiply(x, y, out, dtype=wide.dtype))


@form(f"mad<part:.lo|.hi><type:{_INTEGERS}>")
def mad(b: Binder, m: Modifiers) -> Step:
    b.count(4)
    scalar = TYPES[m["type"]]
    x, y, z = (b.source(b.operand(i), scalar) for i in (1, 2, 3))
    d = b.destination(b.operand(0), scalar)
    if m["part"] == "hi":
        return b.alu(d, lambda out: np.add(_high_product(x, y), z, out))
    product = b.scratch("product", scalar.dtype)
    return b.alu(d, lambda out: np.add(np.multiply(x, y, product), z, out))


@form("mad.wide<type:.s16|.u16|.s32|.u32>")
def mad_wide(b: Binder, m: Modifiers) -> Step:
    b.count(4)
    scalar, wide = TYPES[m["type"]], TYPES[_WIDE[m["type"]]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    z = b.source(b.operand(3), wide)
    d = b.destination(b.operand(0), wide)
    product = b.scratch("product", wide.dtype)
    return b.alu(d, lambda out: np.add(np.multiply(x, y, product, dtype=wide.dtype), z, out))


@form(f"<op:div|rem><type:{_INTEGERS}>")
def divide(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    scalar = TYPES[m["type"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    d = b.destination(b.operand(0), scalar)

    def compute(out: AnyArray) -> None:
        # fmod has the sign of the dividend, as the ISA has it; without it the quotient is exact.
        remainder = np.fmod(x, y)
        np.copyto(out, remainder if m["op"] == "rem" else np.floor_divide(x - remainder, y))

    step = b.alu(d, compute)

    def checked(mask: Mask) -> None:
        if np.count_nonzero(y) != y.size:
            zero = np.broadcast_to(y == 0, d.shape)
            zero = zero if mask is None else zero & mask
            if zero.any():
                raise Fault("division by zero", zero)
        step(mask)

    return checked
