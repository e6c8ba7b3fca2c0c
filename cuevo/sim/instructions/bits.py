"""Fields of bits: permutations, extraction, counts."""

import numpy as np

from cuevo.sim.aliases import AnyArray, Step
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.types import TYPES, ScalarType


def permute_bytes(b: Binder, m: Modifiers) -> Step:
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


def _counting(scalar: ScalarType) -> np.uint32:
    """The bits of a field's position and length that count: the low 8, as the PTX ISA has it, for
    32-bit fields alone. An H200 takes whole numbers for 64-bit ones, which it puts together of
    other instructions.
    """
    return np.uint32(0xFF if scalar.bits == 32 else 0xFFFFFFFF)


def extract_field(b: Binder, m: Modifiers) -> Step:
    scalar, u32 = TYPES[m["type"]], TYPES["u32"]
    x = b.source(b.operand(1), scalar)
    position, length = (b.source(b.operand(i), u32) for i in (2, 3))
    b.within(2, range(256))
    b.within(3, range(256))
    d = b.destination(b.operand(0), scalar)
    bits, counting = scalar.bits, _counting(scalar)

    def compute(out: AnyArray) -> None:
        at = (position & counting).astype(np.int64)
        count = (length & counting).astype(np.int64)
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


def insert_field(b: Binder, m: Modifiers) -> Step:
    scalar, u32 = TYPES[m["type"]], TYPES["u32"]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    position, length = (b.source(b.operand(i), u32) for i in (3, 4))
    b.within(3, range(256))
    b.within(4, range(256))
    d = b.destination(b.operand(0), scalar)
    bits, one, counting = scalar.bits, scalar.dtype.type(1), _counting(scalar)

    def compute(out: AnyArray) -> None:
        at = (position & counting).astype(scalar.dtype)
        count = (length & counting).astype(scalar.dtype)
        ones = np.where(
            count < bits, (one << np.minimum(count, bits - 1)) - one, scalar.dtype.type(2**bits - 1)
        )
        inside = at < bits
        by = np.minimum(at, bits - 1)
        field = np.where(inside, ones << by, scalar.dtype.type(0))
        np.copyto(out, (y & ~field) | (x << by & field))

    return b.alu(d, compute)


def population_count(b: Binder, m: Modifiers) -> Step:
    x = b.source(b.operand(1), TYPES[m["type"]])
    d = b.destination(b.operand(0), TYPES["u32"])
    return b.alu(d, lambda out: np.copyto(out, np.bitwise_count(x), casting="unsafe"))


def leading_zeros(b: Binder, m: Modifiers) -> Step:
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


def find_leading(b: Binder, m: Modifiers) -> Step:
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
        place = np.bitwise_count(smeared).astype(np.int64) - 1
        if m["shift"]:
            place = np.where(place < 0, place, scalar.bits - 1 - place)
        np.copyto(out, place, casting="unsafe")

    return b.alu(d, compute)


def reverse(b: Binder, m: Modifiers) -> Step:
    scalar = TYPES[m["type"]]
    x, d = b.source(b.operand(1), scalar), b.destination(b.operand(0), scalar)

    def compute(out: AnyArray) -> None:
        result = np.zeros(out.shape, scalar.dtype)
        for bit in range(scalar.bits):
            one = x >> scalar.dtype.type(bit) & scalar.dtype.type(1)
            result |= one << scalar.dtype.type(scalar.bits - 1 - bit)
        np.copyto(out, result)

    return b.alu(d, compute)


def find_nth(b: Binder, m: Modifiers) -> Step:
    """The place of the n-th set bit, counted from a base upward, or downward for n < 0."""
    x, base = (b.source(b.operand(i), TYPES["b32"]) for i in (1, 2))
    n, d = b.source(b.operand(3), TYPES["s32"]), b.destination(b.operand(0), TYPES["b32"])

    def compute(out: AnyArray) -> None:
        start, wanted = base.astype(np.int64), np.abs(n.astype(np.int64))
        seen = np.zeros(out.shape, np.int64)
        result = np.full(out.shape, 0xFFFFFFFF, np.int64)
        for i in range(32):
            place = start + np.where(n < 0, -i, i)
            inside = (place >= 0) & (place < 32)
            one = x >> np.where(inside, place, 0).astype(np.uint32) & np.uint32(1)
            hit = inside & (one != 0)
            seen += hit
            # n = 0 asks for the bit at the base itself.
            found = hit & (seen == np.maximum(wanted, 1)) & ((wanted > 0) | (i == 0))
            np.copyto(result, place, where=found & (result == 0xFFFFFFFF))
        np.copyto(out, result, casting="unsafe")

    return b.alu(d, compute)


def mask(b: Binder, m: Modifiers) -> Step:
    """Ones from bit a on, b of them; both clamped to 32 or taken modulo 32."""
    u32 = TYPES["u32"]
    position, length = (b.source(b.operand(i), u32) for i in (1, 2))
    d = b.destination(b.operand(0), u32)

    def compute(out: AnyArray) -> None:
        if m["mode"] == "clamp":
            at, count = (np.minimum(x, 32).astype(np.uint64) for x in (position, length))
        else:
            at, count = ((x & np.uint32(31)).astype(np.uint64) for x in (position, length))
        one = np.uint64(1)
        np.copyto(out, ((one << count) - one << at) & np.uint64(0xFFFFFFFF), casting="unsafe")

    return b.alu(d, compute)


def extend_sign(b: Binder, m: Modifiers) -> Step:
    """The low b bits of a, extended by their sign or by zeros; b clamped to 32 or modulo 32."""
    scalar = TYPES[m["type"]]
    x, length = b.source(b.operand(1), scalar), b.source(b.operand(2), TYPES["u32"])
    d = b.destination(b.operand(0), scalar)

    def compute(out: AnyArray) -> None:
        count = np.minimum(length, 32) if m["mode"] == "clamp" else length & np.uint32(31)
        wide = x.astype(np.int64 if scalar.kind == "s" else np.uint64)
        by = (64 - count.astype(np.int64)).astype(wide.dtype)
        low = wide << np.minimum(by, 63).astype(wide.dtype) >> np.minimum(by, 63).astype(wide.dtype)
        np.copyto(out, np.where(count == 0, 0, low), casting="unsafe")

    return b.alu(d, compute)
