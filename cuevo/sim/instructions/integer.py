"""Integer arithmetic."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.types import TYPES

_WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
_BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul.lo": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


def binary(b: Binder, m: Modifiers) -> Step:
    scalar = TYPES[m["type"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    d = b.destination(b.operand(0), scalar)
    function = _BINARY[m["op"]]
    return b.alu(d, lambda out: function(x, y, out=out))


def saturated(wide: AnyArray) -> AnyArray:
    """int64 to int32; what is out of range becomes the nearest end of it."""
    info = np.iinfo(np.int32)
    return np.clip(wide, info.min, info.max).astype(np.int32)


def saturating(b: Binder, m: Modifiers) -> Step:
    s32 = TYPES["s32"]
    x, y = (b.source(b.operand(i), s32) for i in (1, 2))
    d = b.destination(b.operand(0), s32)
    function = _BINARY[m["op"]]
    return b.alu(d, lambda out: np.copyto(out, saturated(function(x, y, dtype=np.int64))))


def pair(b: Binder, m: Modifiers) -> Step:
    """Both 16-bit halves of a register; with ``.relu`` what is negative becomes 0."""
    packed, half = TYPES[m["type"]], np.dtype("i2" if m["type"].startswith("s") else "u2")
    x, y = (b.whole(b.operand(i), packed) for i in (1, 2))
    d = b.destination(b.operand(0), packed)
    function, clamp = _BINARY[m["op"]], bool(m.get("relu"))

    def compute(out: AnyArray) -> None:
        result = function(np.ascontiguousarray(x).view(half), np.ascontiguousarray(y).view(half))
        if clamp:
            np.maximum(result, 0, out=result)
        np.copyto(out, result.view(np.uint32))

    return b.alu(d, compute)


def relu(b: Binder, m: Modifiers) -> Step:
    if m["type"] == "s16x2":
        return pair(b, m)
    s32 = TYPES["s32"]
    x, y = (b.source(b.operand(i), s32) for i in (1, 2))
    d = b.destination(b.operand(0), s32)
    function = _BINARY[m["op"]]
    return b.alu(d, lambda out: np.maximum(function(x, y), 0, out=out))


def unary(b: Binder, m: Modifiers) -> Step:
    scalar = TYPES[m["type"]]
    x = b.source(b.operand(1), scalar)
    d = b.destination(b.operand(0), scalar)
    function = np.absolute if m["op"] == "abs" else np.negative
    return b.alu(d, lambda out: function(x, out))


def high_product(x: AnyArray, y: AnyArray) -> AnyArray:
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


def multiply_high(b: Binder, m: Modifiers) -> Step:
    scalar = TYPES[m["type"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    d = b.destination(b.operand(0), scalar)
    return b.alu(d, lambda out: np.copyto(out, high_product(x, y)))


def multiply_wide(b: Binder, m: Modifiers) -> Step:
    scalar, wide = TYPES[m["type"]], TYPES[_WIDE[m["type"]]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    d = b.destination(b.operand(0), wide)
    return b.alu(d, lambda out: np.multiply(x, y, out, dtype=wide.dtype))


def mad(b: Binder, m: Modifiers) -> Step:
    scalar = TYPES[m["type"]]
    x, y, z = (b.source(b.operand(i), scalar) for i in (1, 2, 3))
    d = b.destination(b.operand(0), scalar)
    if m.get("sat"):
        return b.alu(
            d, lambda out: np.copyto(out, saturated(high_product(x, y) + z.astype(np.int64)))
        )
    if m["part"] == "hi":
        return b.alu(d, lambda out: np.add(high_product(x, y), z, out))
    product = b.scratch("product", scalar.dtype)
    return b.alu(d, lambda out: np.add(np.multiply(x, y, product), z, out))


def mad_wide(b: Binder, m: Modifiers) -> Step:
    scalar, wide = TYPES[m["type"]], TYPES[_WIDE[m["type"]]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    z = b.source(b.operand(3), wide)
    d = b.destination(b.operand(0), wide)
    product = b.scratch("product", wide.dtype)
    return b.alu(d, lambda out: np.add(np.multiply(x, y, product, dtype=wide.dtype), z, out))


def multiply_24(b: Binder, m: Modifiers) -> Step:
    """The low 24 bits of the factors; of the product of 48 bits, the low or the high 32."""
    scalar = TYPES[m["type"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    z = b.source(b.operand(3), scalar) if b.operands == 4 else None
    d = b.destination(b.operand(0), scalar)
    wide = np.dtype(np.int64 if scalar.kind == "s" else np.uint64)
    eight, by = scalar.dtype.type(8), wide.type(16 if m["part"] == "hi" else 0)

    def factor(x: AnyArray) -> AnyArray:
        return np.asarray((x << eight >> eight).astype(wide))

    def compute(out: AnyArray) -> None:
        result = (factor(x) * factor(y) >> by).astype(scalar.dtype)
        if z is None:
            np.copyto(out, result)
        elif m.get("sat"):
            np.copyto(out, saturated(result.astype(np.int64) + z))
        else:
            np.add(result, z, out)

    return b.alu(d, compute)


def absolute_difference(b: Binder, m: Modifiers) -> Step:
    """``c + |a - b|``, with the difference of the numbers, not of the patterns."""
    scalar = TYPES[m["type"]]
    x, y, z = (b.source(b.operand(i), scalar) for i in (1, 2, 3))
    d = b.destination(b.operand(0), scalar)
    return b.alu(d, lambda out: np.add(np.where(x < y, y - x, x - y), z, out))


def divide(b: Binder, m: Modifiers) -> Step:
    """What a division by zero gives is open in PTX: here all ones, as on an H200."""
    scalar = TYPES[m["type"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    d = b.destination(b.operand(0), scalar)

    def compute(out: AnyArray) -> None:
        # fmod has the sign of the dividend, as the ISA has it; without it the quotient is exact.
        remainder = np.fmod(x, y)
        np.copyto(out, remainder if m["op"] == "rem" else np.floor_divide(x - remainder, y))
        if np.count_nonzero(y) != y.size:
            np.bitwise_or(out, np.where(y == 0, ~np.zeros_like(y), 0), out)

    return b.alu(d, compute)


def dot_four(b: Binder, m: Modifiers) -> Step:
    return _dot(b, m, 4, 4, 0)


def dot_two(b: Binder, m: Modifiers) -> Step:
    """Two 16-bit elements of a, and the low or the high two bytes of b."""
    return _dot(b, m, 2, 4, 2 if m["part"] == "hi" else 0)


def _dot(b: Binder, m: Modifiers, terms: int, parts: int, first: int) -> Step:
    u32 = TYPES["u32"]
    x, y, z = (b.source(b.operand(i), u32) for i in (1, 2, 3))
    d = b.destination(b.operand(0), u32)

    def element(x: AnyArray, bits: int, i: int, kind: str) -> AnyArray:
        part = (x >> np.uint32(bits * i)).astype(f"u{bits // 8}")
        return part.view(f"{'i' if kind == 's32' else 'u'}{bits // 8}").astype(np.int64)

    def compute(out: AnyArray) -> None:
        total = z.astype(np.int64)
        for i in range(terms):
            left = element(x, 32 // terms, i, m["atype"])
            total = total + left * element(y, 32 // parts, first + i, m["btype"])
        np.copyto(out, total & 0xFFFFFFFF, casting="unsafe")

    return b.alu(d, compute)


# -- The carry flag -------------------------------------------------------------------------------


def add_carry(b: Binder, m: Modifiers) -> Step:
    """add and sub that leave a carry, and those that take one: ``a + ~b + carry``.

    The ISA calls what sub leaves a borrow. GPUs have one flag, the carry of that sum, so that any
    of these may go on from any other.
    """
    subtract = m["op"].startswith("sub")
    return _carrying(b, m, lambda x, y: (x, ~y if subtract else y), (1, 2))


def mad_carry(b: Binder, m: Modifiers) -> Step:
    high = m["part"] == "hi"

    def terms(x: AnyArray, y: AnyArray, z: AnyArray) -> tuple[AnyArray, AnyArray]:
        return (high_product(x, y) if high else x * y), z

    return _carrying(b, m, terms, (1, 2, 3))


def _carrying(
    b: Binder,
    m: Modifiers,
    terms: Callable[..., tuple[AnyArray, AnyArray]],
    operands: tuple[int, ...],
) -> Step:
    scalar = TYPES[m["type"]]
    unsigned = TYPES[f"u{scalar.bits}"]
    sources = [b.source(b.operand(i), scalar) for i in operands]
    d = b.destination(b.operand(0), unsigned)
    carry_in = b.carry_in() if m["op"].endswith("c") else None
    carry_out = b.carry_out() if m["out"] else None
    first = unsigned.dtype.type(m["op"] == "sub")

    def step(mask: Mask) -> None:
        x, y = (each.view(unsigned.dtype) for each in terms(*sources))
        added = first if carry_in is None else carry_in.astype(unsigned.dtype)
        partial = x + y
        result = partial + added
        where = True if mask is None else mask
        if carry_out is not None:
            np.copyto(carry_out, (partial < x) | (result < partial), where=where)
        np.copyto(d, result, where=where)

    return step
