"""Logic and shifts."""

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder, is_constant
from cuevo.sim.text.syntax import PairOperand
from cuevo.sim.text.types import TYPES

_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def binary(b: Binder, m: Modifiers) -> Step:
    scalar = TYPES[m["type"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    d = b.destination(b.operand(0), scalar)
    function = _LOGIC[m["op"]]
    return b.alu(d, lambda out: function(x, y, out))


def predicates(b: Binder, m: Modifiers) -> Step:
    x, y = (b.predicate(b.operand(i)) for i in (1, 2))
    d = b.destination(b.operand(0), TYPES["pred"])
    function = _LOGIC[m["op"]]
    return b.alu(d, lambda out: function(x(), y(), out))


def complement(b: Binder, m: Modifiers) -> Step:
    scalar = TYPES[m["type"]]
    x, d = b.source(b.operand(1), scalar), b.destination(b.operand(0), scalar)
    return b.alu(d, lambda out: np.bitwise_not(x, out))


def complement_predicate(b: Binder, m: Modifiers) -> Step:
    x, d = b.predicate(b.operand(1)), b.destination(b.operand(0), TYPES["pred"])
    return b.alu(d, lambda out: np.logical_not(x(), out))


def is_zero(b: Binder, m: Modifiers) -> Step:
    scalar = TYPES[m["type"]]
    x, d = b.source(b.operand(1), scalar), b.destination(b.operand(0), scalar)
    return b.alu(d, lambda out: np.copyto(out, x == 0, casting="unsafe"))


def shift(b: Binder, m: Modifiers) -> Step:
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


def funnel_shift(b: Binder, m: Modifiers) -> Step:
    b32 = TYPES["b32"]
    low, high = (b.source(b.operand(i), b32) for i in (1, 2))
    amount, d = b.source(b.operand(3), TYPES["u32"]), b.destination(b.operand(0), b32)

    def compute(out: AnyArray) -> None:
        joined = low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))
        by = amount & np.uint32(31) if m["mode"] == "wrap" else np.minimum(amount, 32)
        by = by.astype(np.uint64)
        if m["direction"] == "l":
            # The high word of joined << by, which is the low word of joined >> (32 - by).
            by = np.uint64(32) - by
        np.copyto(out, joined >> by, casting="unsafe")

    return b.alu(d, compute)


def lop3(b: Binder, m: Modifiers) -> Step:
    u32 = TYPES["b32"]
    x, y, z = (b.source(b.operand(i), u32) for i in (1, 2, 3))
    # Of a larger number the assembler takes the lowest byte.
    table = b.constant(b.operand(4)) & 0xFF
    if b.operands == 6:
        return _lop3_with_predicate(b, m, (x, y, z), table)
    d = b.destination(b.operand(0), u32)
    common = {0x80: np.bitwise_and, 0xFE: np.bitwise_or, 0x96: np.bitwise_xor}.get(table)
    if common is not None:
        first = b.scratch("first", u32.dtype)
        return b.alu(d, lambda out: common(common(x, y, first), z, out))

    return b.alu(d, lambda out: np.copyto(out, _by_table(x, y, z, table, out.shape)))


def _by_table(
    x: AnyArray, y: AnyArray, z: AnyArray, table: int, shape: tuple[int, ...]
) -> AnyArray:
    result = np.zeros(shape, np.uint32)
    for row in range(8):
        if table >> row & 1:
            result |= (x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z)
    return result


def _lop3_with_predicate(
    b: Binder, m: Modifiers, sources: tuple[AnyArray, AnyArray, AnyArray], table: int
) -> Step:
    """``d|p``: p says whether any bit of d is set, joined with the last operand."""
    other, shape = b.predicate(b.operand(5)), b.machine.shape
    if not isinstance(b.operand(0), PairOperand):
        raise b.refusal(f"{b.instruction.opcode} has two results, d|p")
    first, second = b.pair(b.operand(0))
    d, p = b.destination(first, TYPES["b32"]), b.destination(second, TYPES["pred"])
    join = _LOGIC[m["combine"]]

    def step(mask: Mask) -> None:
        result = _by_table(*sources, table, shape)
        truth = join(result != 0, other())
        where = True if mask is None else mask
        np.copyto(d, result, where=where)
        np.copyto(p, truth, where=where)

    return step
