"""Conversions between pairs of 8-bit floating-point numbers and wider ones."""

import numpy as np

from cuevo.sim.aliases import AnyArray, Step
from cuevo.sim.arithmetic import formats, halves
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.types import TYPES


def _narrow(exact: AnyArray, m: Modifiers) -> AnyArray:
    name = m["to"].removesuffix("x2")
    if m["relu"]:
        exact = np.where(exact <= 0, 0.0, exact)
    value = formats.rounded(exact.astype(np.float64), name, "rn", finite=True)
    return formats.patterns(value, name).astype(np.uint16)


def from_single(b: Binder, m: Modifiers) -> Step:
    """``d, a, b``: a goes to the upper byte."""
    high, low = (b.source(b.operand(i), TYPES["f32"]) for i in (1, 2))
    d = b.destination(b.operand(0), TYPES[m["to"]])

    def compute(out: AnyArray) -> None:
        np.bitwise_or(_narrow(high, m) << np.uint16(8), _narrow(low, m), out)

    return b.alu(d, compute)


def from_half(b: Binder, m: Modifiers) -> Step:
    x, d = b.source(b.operand(1), TYPES["f16x2"]), b.destination(b.operand(0), TYPES[m["to"]])

    def compute(out: AnyArray) -> None:
        low = halves.widen(x.astype(np.uint16), "f16")
        high = halves.widen((x >> np.uint32(16)).astype(np.uint16), "f16")
        np.bitwise_or(_narrow(high, m) << np.uint16(8), _narrow(low, m), out)

    return b.alu(d, compute)


def to_half(b: Binder, m: Modifiers) -> Step:
    x, d = b.source(b.operand(1), TYPES[m["from"]]), b.destination(b.operand(0), TYPES["f16x2"])
    name = m["from"].removesuffix("x2")

    def widened(bits: AnyArray) -> AnyArray:
        value = formats.small_values(bits.astype(np.uint8), name)
        if m["relu"]:
            value = np.where(value <= 0, 0.0, value)
        return formats.patterns(value, "f16").astype(np.uint32)

    def compute(out: AnyArray) -> None:
        np.bitwise_or(widened(x >> np.uint16(8)) << np.uint32(16), widened(x), out)

    return b.alu(d, compute)
