"""Video instructions on bytes and halves in a register, which compilers still write."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Step
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.types import TYPES

_OPERATIONS: dict[str, Callable[[AnyArray, AnyArray], AnyArray]] = {
    "add": np.add,
    "sub": np.subtract,
    "absdiff": lambda x, y: np.abs(x - y),
    "min": np.minimum,
    "max": np.maximum,
    "avrg": lambda x, y: (x + y + (x + y >= 0)) >> 1,
}


def packed(b: Binder, m: Modifiers) -> Step:
    """``d, a, b, c``: on each part of a and b; with ``.add``, c and the sum of the results."""
    name, bits = m["op"][1:-1], 32 // int(m["op"][-1])
    given = [
        (b.whole(b.operand(index), TYPES[m[name]]).view(np.uint32), m[name])
        for index, name in ((1, "a"), (2, "b"))
    ]
    c = b.whole(b.operand(3), TYPES["u32"])
    d = b.destination(b.operand(0), TYPES["u32"])
    operation, signed = _OPERATIONS[name], m["d"] == "s32"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def part(x: AnyArray, name: str, index: int) -> AnyArray:
        found = (x >> np.uint32(bits * index)).astype(f"u{bits // 8}")
        return found.view(f"{'i' if name == 's32' else 'u'}{bits // 8}").astype(np.int64)

    def compute(out: AnyArray) -> None:
        total = c.astype(np.int64) if m.get("sum") else np.zeros(out.shape, np.int64)
        for index in range(32 // bits):
            result = operation(*(part(x, name, index) for x, name in given))
            if m.get("sum"):
                total = total + result
                continue
            if m.get("sat"):
                result = np.clip(result, low, high)
            total |= (result & ((1 << bits) - 1)) << (bits * index)
        np.copyto(out, (total & 0xFFFFFFFF).astype(np.uint32))

    return b.alu(d, compute)
