"""Barriers of the block."""

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions.members import together
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder, is_constant
from cuevo.sim.sync.flow import Vote
from cuevo.sim.sync.meetings import Exchange, Give, Values
from cuevo.sim.text.types import TYPES

WARP = 32


def sync(b: Binder, m: Modifiers) -> Step:
    return _barrier(b, 0, counted=b.operands == 2, wait=True)


def arrive(b: Binder, m: Modifiers) -> Step:
    return _barrier(b, 0, counted=True, wait=False)


def reduce(b: Binder, m: Modifiers) -> Step:
    """The result is there when the barrier is complete: over all threads that came."""
    return _barrier(b, 1, counted=b.operands == 4, wait=True, op=m["op"])


def _barrier(b: Binder, first: int, *, counted: bool, wait: bool, op: str = "") -> Step:
    """`first` is the operand that has the barrier's number, `op` what is made of votes. Without
    ``.aligned`` lanes that are apart wait for the others of their warp, at any such barrier.
    """
    u32 = TYPES["u32"]
    b.within(first, range(16))
    if counted:
        b.within(first + 1, range(0 if wait else WARP, 2**32, WARP))
    inputs = [b.reader(b.operand(first + i), u32) for i in range(1 + counted)]
    outputs = []
    if op:
        inputs.append(b.predicate(b.operand(first + 1 + counted)))
        outputs.append(b.writer(b.operand(0), u32 if op == "popc" else TYPES["pred"]))
    flow, line, warps = b.machine.flow, b.instruction.line, b.machine.warps

    def run(mask: Mask, values: Values, give: Give) -> None:
        def deliver(true: AnyArray, total: AnyArray, lanes: AnyArray) -> None:
            give(({"popc": true, "and": true == total, "or": true > 0}[op],), lanes)

        number = _per_warp(values[0], warps, mask)
        threads = _per_warp(values[1], warps, mask) if counted else None
        vote = Vote(lambda: values[-1], deliver) if op else None
        flow.barrier(line, number, threads, mask, wait, vote)

    opcode = b.instruction.opcode
    if opcode.startswith("bar.") or ".aligned" in opcode:
        return Exchange(b.instruction, inputs, run, outputs).alone
    return together(b, None, inputs, run, outputs)


def _per_warp(values: AnyArray, warps: int, mask: Mask) -> AnyArray:
    """What an operand is for all lanes of each warp: shape (warps,)."""
    if is_constant(values):
        return np.full(warps, values.item(), np.int64)
    first = np.zeros(warps, np.int64) if mask is None else mask.argmax(axis=0)
    result: AnyArray = np.take_along_axis(values, first[None, :], axis=0)[0].astype(np.int64)
    differs = values != result[None, :]
    differs = differs if mask is None else differs & mask
    if differs.any():
        raise Fault("the lanes of a warp name different barriers or counts", differs)
    return result
