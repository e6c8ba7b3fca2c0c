"""cvt.pack: two saturated integers side by side."""

import numpy as np

from cuevo.sim.aliases import AnyArray, Step
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.types import TYPES


def _packed(high: AnyArray, low: AnyArray, name: str) -> AnyArray:
    scalar = TYPES[name]
    info, mask = np.iinfo(scalar.dtype), 2**scalar.bits - 1
    upper, lower = (np.clip(x.astype(np.int64), info.min, info.max) & mask for x in (high, low))
    return np.asarray(upper << scalar.bits | lower)


def of_two(b: Binder, m: Modifiers) -> Step:
    x, y = (b.source(b.operand(i), TYPES["s32"]) for i in (1, 2))
    d = b.destination(b.operand(0), TYPES["b32"])
    return b.alu(d, lambda out: np.copyto(out, _packed(x, y, m["to"]), casting="unsafe"))


def with_more(b: Binder, m: Modifiers) -> Step:
    """The low half of c comes above the two bytes."""
    x, y = (b.source(b.operand(i), TYPES["s32"]) for i in (1, 2))
    c, d = b.source(b.operand(3), TYPES["b32"]), b.destination(b.operand(0), TYPES["b32"])

    def compute(out: AnyArray) -> None:
        np.copyto(out, _packed(x, y, m["to"]) | c.astype(np.int64) << 16, casting="unsafe")

    return b.alu(d, compute)
