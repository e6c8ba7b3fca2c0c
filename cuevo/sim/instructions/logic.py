"""Bits: logic, shifts, fields, permutations and counts."""

import numpy as np

from cuevo.sim.aliases import AnyArray, Step
from cuevo.sim.binder import Binder, is_constant
from cuevo.sim.instructions.table import Modifiers, form
from cuevo.sim.types import TYPES

_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_ALL_ONES = np.uint32(0xFFFFFFFF)


@form("<op:and|or|xor><type:.b16|.b32|.b64>")
def logic(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    scalar = TYPES[m["type"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    d = b.destination(b.operand(0), scalar)
    function = _LOGIC[m["op"]]
    return b.alu(d, lambda out: function(x, y, out))


@form("<op:and|or|xor>.pred")
def predicate_logic(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    x, y = (b.predicate(b.operand(i)) for i in (1, 2))
    d = b.destination(b.operand(0), TYPES["pred"])
    function = _LOGIC[m["op"]]
    return b.alu(d, lambda out: function(x(), y(), out))


@form("not<type:.b16|.b32|.b64>")
def not_(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    scalar = TYPES[m["type"]]
    x, d = b.source(b.operand(1), scalar), b.destination(b.operand(0), scalar)
    return b.alu(d, lambda out: np.bitwise_not(x, out))


@form("not.pred")
def not_pred(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    x, d = b.predicate(b.operand(1)), b.destination(b.operand(0), TYPES["pred"])
    return b.alu(d, lambda out: np.logical_not(x(), out))


@form("cnot<type:.b16|.b32|.b64>")
def cnot(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    scalar = TYPES[m["type"]]
    x, d = b.source(b.operand(1), scalar), b.destination(b.operand(0), scalar)
    return b.alu(d, lambda out: np.copyto(out, x == 0, casting="unsafe"))


@form(
    "shl<type:.b16|.b32|.b64>",
    "shr<type:.b16|.b32|.b64|.u16|.u32|.u64|.s16|.s32|.s64>",
)
def shift(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    scalar = TYPES[m["type"]]
    x, amount = b.source(b.operand(1), scalar), b.source(b.operand(2), TYPES["u32"])
    d = b.destination(b.operand(0), scalar)
    left = b.instruction.opcode.startswith("shl")
    function = np.left_shift if left else np.right_shift
    bits = scalar.bits
    if is_constant(amount) and amount.item() < bits:
        fixed = amount.astype(scalar.dtype)
        return b.alu(d, lambda out: function(x, fixed, out))

    def compute(out: AnyArray) -> None:
        # Amounts are clamped, not taken modulo the width: all bits go, or the sign fills up.
        over = amount >= bits
        result = function(x, np.minimum(amount, bits - 1).astype(scalar.dtype))
        if not left and scalar.kind == "s":
            np.copyto(out, result)
        else:
            np.copyto(out, np.where(over, scalar.dtype.type(0), result))

    return b.alu(d, compute)


@form("shf<direction:.l|.r><mode:.clamp|.wrap>.b32")
def funnel_shift(b: Binder, m: Modifiers) -> Step:
    b.count(4)
    u32 = TYPES["u32"]
    low, high, amount = (b.source(b.operand(i), u32) for i in (1, 2, 3))
    d = b.destination(b.operand(0), u32)

    def compute(out: AnyArray) -> None:
        joined = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
        by = amount & np.uint32(31) if m["mode"] == "wrap" else np.minimum(amount, 32)
        by = by.astype(np.uint64)
        if m["direction"] == "l":
            # The high word of joined << by, which is the low word of joined >> (32 - by).
            by = np.uint64(32) - by
        np.copyto(out, joined >> by, casting="unsafe")

    return b.alu(d, compute)


@form("lop3.b32")
def lop3(b: Binder, m: Modifiers) -> Step:
    b.count(5)
    u32 = TYPES["b32"]
    x, y, z = (b.source(b.operand(i), u32) for i in (1, 2, 3))
    table = b.constant(b.operand(4))
    if not 0 <= table <= 255:
        raise b.refusal(f"the table of lop3 is a byte, not {table}")
    d = b.destination(b.operand(0), u32)
    common = {0x80: np.bitwise_and, 0xFE: np.bitwise_or, 0x96: np.bitwise_xor}.get(table)
    if common is not None:
        first = b.scratch("first", u32.dtype)
        return b.alu(d, lambda out: common(common(x, y, first), z, out))

    def compute(out: AnyArray) -> None:
        result = np.zeros(out.shape, np.uint32)
        for row in range(8):
            if table >> row & 1:
                result |= (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
        np.copyto(out, result)

    return b.alu(d, compute)


@form("prmt.b32{mode:.f4e|.b4e|.rc8|.ecl|.ecr|.rc16}")
def permute_bytes(b: Binder, m: Modifiers) -> Step:
    b.count(4)
    u32 = TYPES["b32"]
    x, y, selector = (b.source(b.operand(i), u32) for i in (1, 2, 3))
    d = b.destination(b.operand(0), u32)
    # For a mode, which of the bytes 0 to 7 goes to each place, by the selector's two low bits.
    modes = {
        "f4e": [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
        "b4e": [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
        "rc8": [[0] * 4, [1] * 4, [2] * 4, [3] * 4],
        "ecl": [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]],
        "ecr": [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
        "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
    }

    def compute(out: AnyArray) -> None:
        joined = x.astype(np.uint64) | (y.astype(np.uint64) << np.uint64(32))
        result = np.zeros(out.shape, np.uint32)
        for place in range(4):
            if m["mode"]:
                table = np.array([row[place] for row in modes[m["mode"]]], np.uint64)
                nibble = table[selector & np.uint32(3)]
            else:
                nibble = (selector >> np.uint32(4 * place) & np.uint32(15)).astype(np.uint64)
            byte = (joined >> ((nibble & np.uint64(7)) * np.uint64(8)) & np.uint64(255)).astype(
                np.uint32
            )
            # Bit 3 asks for the byte's sign in all 8 bits.
            sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
            result |= np.where(nibble & np.uint64(8), sign, byte) << np.uint32(8 * place)
        np.copyto(out, result)

    return b.alu(d, compute)


@form("bfe<type:.u32|.s32|.u64|.s64>")
def extract_field(b: Binder, m: Modifiers) -> Step:
    b.count(4)
    scalar, u32 = TYPES[m["type"]], TYPES["u32"]
    x = b.source(b.operand(1), scalar)
    position, length = (b.source(b.operand(i), u32) for i in (2, 3))
    d = b.destination(b.operand(0), scalar)
    bits = scalar.bits

    def compute(out: AnyArray) -> None:
        at = (position & np.uint32(255)).astype(np.int64)
        count = (length & np.uint32(255)).astype(np.int64)
        u = x.view(f"u{bits // 8}")
        sign = np.zeros(out.shape, np.bool_)
        if scalar.kind == "s":
            top = np.minimum(at + count - 1, bits - 1)
            sign = (u >> np.maximum(top, 0).astype(u.dtype) & u.dtype.type(1)) != 0
            sign = sign & (count > 0)
        field = np.where(at < bits, u >> np.minimum(at, bits - 1).astype(u.dtype), u.dtype.type(0))
        # Bits of the field that the value really has; the sign fills what is above.
        keep = np.where(
            count < bits,
            (u.dtype.type(1) << np.minimum(count, bits - 1).astype(u.dtype)) - u.dtype.type(1),
            u.dtype.type(2**bits - 1),
        )
        have = np.clip(bits - at, 0, bits)
        present = np.where(
            have < bits,
            (u.dtype.type(1) << np.minimum(have, bits - 1).astype(u.dtype)) - u.dtype.type(1),
            u.dtype.type(2**bits - 1),
        )
        keep = keep & present
        result = np.where(sign, field | ~keep, field & keep)
        np.copyto(out, np.where(count > 0, result, u.dtype.type(0)).view(scalar.dtype))

    return b.alu(d, compute)


@form("bfi<type:.b32|.b64>")
def insert_field(b: Binder, m: Modifiers) -> Step:
    b.count(5)
    scalar, u32 = TYPES[m["type"]], TYPES["u32"]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    position, length = (b.source(b.operand(i), u32) for i in (3, 4))
    d = b.destination(b.operand(0), scalar)
    bits, one = scalar.bits, scalar.dtype.type(1)

    def compute(out: AnyArray) -> None:
        at = (position & np.uint32(255)).astype(scalar.dtype)
        count = (length & np.uint32(255)).astype(scalar.dtype)
        ones = np.where(
            count < bits, (one << np.minimum(count, bits - 1)) - one, scalar.dtype.type(2**bits - 1)
        )
        inside = at < bits
        by = np.minimum(at, bits - 1)
        field = np.where(inside, ones << by, scalar.dtype.type(0))
        np.copyto(out, (y & ~field) | (x << by & field))

    return b.alu(d, compute)


@form("popc<type:.b32|.b64>")
def population_count(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    x = b.source(b.operand(1), TYPES[m["type"]])
    d = b.destination(b.operand(0), TYPES["u32"])
    return b.alu(d, lambda out: np.copyto(out, np.bitwise_count(x), casting="unsafe"))


@form("clz<type:.b32|.b64>")
def leading_zeros(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    scalar = TYPES[m["type"]]
    x, d = b.source(b.operand(1), scalar), b.destination(b.operand(0), TYPES["u32"])

    def compute(out: AnyArray) -> None:
        # Smear the highest one downward; what is left are the leading zeros.
        smeared = x.copy()
        step = 1
        while step < scalar.bits:
            smeared = smeared | (smeared >> scalar.dtype.type(step))
            step *= 2
        np.copyto(out, scalar.bits - np.bitwise_count(smeared).astype(np.int64), casting="unsafe")

    return b.alu(d, compute)


@form("bfind<type:.u32|.s32|.u64|.s64>")
def find_leading(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    scalar = TYPES[m["type"]]
    x, d = b.source(b.operand(1), scalar), b.destination(b.operand(0), TYPES["u32"])

    def compute(out: AnyArray) -> None:
        smeared = x.view(f"u{scalar.bits // 8}")
        if scalar.kind == "s":
            smeared = np.where(x < 0, ~smeared, smeared)
        step = 1
        while step < scalar.bits:
            smeared = smeared | (smeared >> smeared.dtype.type(step))
            step *= 2
        # No bit at all gives 0xffffffff.
        np.copyto(out, np.bitwise_count(smeared).astype(np.int64) - 1, casting="unsafe")

    return b.alu(d, compute)


@form("brev<type:.b32|.b64>")
def reverse_bits(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    scalar = TYPES[m["type"]]
    x, d = b.source(b.operand(1), scalar), b.destination(b.operand(0), scalar)

    def compute(out: AnyArray) -> None:
        result = np.zeros(out.shape, scalar.dtype)
        for bit in range(scalar.bits):
            one = x >> scalar.dtype.type(bit) & scalar.dtype.type(1)
            result |= one << scalar.dtype.type(scalar.bits - 1 - bit)
        np.copyto(out, result)

    return b.alu(d, compute)
