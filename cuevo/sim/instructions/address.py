"""Generic addresses and state spaces."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.memory import spaces
from cuevo.sim.memory.shared_memory import RANK
from cuevo.sim.text.syntax import SymbolOperand
from cuevo.sim.text.types import TYPES


def convert(b: Binder, m: Modifiers) -> Step:
    """An address of a state space to a generic one, or with ``.to`` back."""
    u64, operand, space = TYPES["u64"], b.operand(1), "." + m["space"].split("::")[0]
    if isinstance(operand, SymbolOperand) and operand.variable.space not in (space, ".func"):
        raise b.refusal(f"{operand.variable.name} is in {operand.variable.space}, not {space}")
    x, d = b.source(operand, u64), b.destination(b.operand(0), u64)
    window = spaces.WINDOWS.get(space[1:])
    if window is None:
        return b.alu(d, lambda out: np.copyto(out, x))
    begin = np.uint64(window)
    if not m["to"]:
        return b.alu(d, lambda out: np.add(x, begin, out))
    back = b.alu(d, lambda out: np.subtract(x, begin, out))
    inside = _inside(x, window)

    def step(mask: Mask) -> None:
        outside = np.broadcast_to(~inside(), d.shape)
        if (wrong := outside if mask is None else outside & mask).any():
            raise Fault(f"cvta.to of a generic address that is not in .{m['space']}", wrong)
        back(mask)

    return step


def in_space(b: Binder, m: Modifiers) -> Step:
    x, p = b.source(b.operand(1), TYPES["u64"]), b.destination(b.operand(0), TYPES["pred"])
    window = spaces.WINDOWS.get(m["space"].split("::")[0])
    if window is None:
        return b.alu(p, lambda out: np.less(x, np.uint64(spaces.FIRST), out))
    inside = _inside(x, window)
    if m["space"] in ("shared", "shared::cta") and b.machine.shared.cluster > 1:
        begin, rank = np.uint64(window), np.uint64(RANK)
        own = (b.machine.shared.window >> RANK).astype(np.uint64)
        return b.alu(p, lambda out: np.copyto(out, inside() & ((x - begin) >> rank == own)))
    return b.alu(p, lambda out: np.copyto(out, inside()))


def _inside(x: AnyArray, window: int) -> Callable[[], AnyArray]:
    begin, size = np.uint64(window), np.uint64(spaces.SIZE)
    return lambda: x - begin < size
