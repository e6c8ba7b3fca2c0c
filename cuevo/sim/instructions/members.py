"""Member masks: which lanes of a warp run an instruction together."""

from collections.abc import Callable, Sequence

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step, Write
from cuevo.sim.faults import Fault
from cuevo.sim.machine.binder import Binder, is_constant
from cuevo.sim.machine.state import Machine
from cuevo.sim.sync.meetings import Apart, Exchange, Give, Values
from cuevo.sim.text.types import TYPES

_ALL = 0xFFFFFFFF
BIT = np.uint32(1) << np.arange(32, dtype=np.uint32)[:, None]
"""The bit of each lane in a member mask, (32, 1)."""


def together(
    b: Binder,
    index: int | None,
    inputs: Sequence[Callable[[], AnyArray]],
    run: Callable[[Mask, Values, Give], None],
    outputs: Sequence[Write] = (),
) -> Step:
    """A step that calls `run` for the lanes that name each other in the member mask at `index`, as
    `Exchange` has it: once for each group of a warp, for all warps that have one. Without `index`
    these are all that have not exited. Lanes wait for those that they name; it is a fault if lanes
    do not agree who takes part.
    """
    machine = b.machine
    members = (
        np.full((1, 1), _ALL, np.uint32)
        if index is None
        else b.source(b.operand(index), TYPES["u32"])
    )
    always_all = is_constant(members) and members.item() == _ALL
    exchange = Exchange(b.instruction, inputs, run, outputs, named=index is not None)

    def each(mask: Mask) -> None:
        if always_all and (mask is None or _complete(machine, mask)):
            exchange.alone(mask)
            return
        said = np.broadcast_to(members, machine.shape)
        here = np.ones(machine.shape, np.bool_) if mask is None else mask
        if (said[here] == _ALL).all() and _complete(machine, here):
            exchange.alone(mask)
            return
        # All of them before the first one runs: it may write the register of the mask.
        for lanes, elsewhere in _groups(machine, exchange, said, here):
            if elsewhere.any():
                machine.flow.meet(exchange, lanes, elsewhere)
            else:
                exchange.alone(lanes)

    return each


def require_all(machine: Machine, mask: Mask) -> None:
    """All lanes of the warps in `mask` that have not exited must be there."""
    if mask is None or _complete(machine, mask):
        return
    present = np.count_nonzero(mask, axis=0)
    wrong = (present != 0) & (present != np.count_nonzero(machine.alive, axis=0))
    raise Fault(_not_all(present[wrong][0]), mask & wrong[None, :])


def _complete(machine: Machine, mask: AnyArray) -> bool:
    present = np.count_nonzero(mask, axis=0)
    return bool(((present == 0) | (present == np.count_nonzero(machine.alive, axis=0))).all())


def _not_all(present: int) -> str:
    return (
        f"only {present} lanes of the warp are at an instruction whose member mask names them all"
    )


def _groups(
    machine: Machine, exchange: Exchange, said: AnyArray, here: AnyArray
) -> list[tuple[AnyArray, AnyArray]]:
    """The lanes of each group that are here, and those that wait at other instructions. Raises
    `Apart` unless all groups are complete.
    """
    if (strays := here & (said & BIT == 0)).any():
        raise Fault("a lane is not in the member mask of the instruction that it runs", strays)
    meetings = machine.flow.meetings
    apart, found, left = Apart(machine.shape, exchange), [], here
    while left.any():
        leader = left.argmax(axis=0)
        wanted = np.take_along_axis(said, leader[None, :], axis=0)
        named = (wanted & BIT != 0) & left.any(axis=0)
        group = named & here
        if (others := group & (said != wanted)).any():
            warp = int(others.any(axis=0).argmax())
            lane = int(others[:, warp].argmax())
            raise Fault(
                f"lane {int(leader[warp])} has the member mask {int(wanted[0, warp]):#010x}, and "
                f"lane {lane}, which is in it, {int(said[lane, warp]):#010x}",
                others,
            )
        missing = named & ~here & machine.alive
        elsewhere = np.zeros_like(missing)
        if missing.any():
            before, elsewhere = (missing & each for each in meetings.waiting(exchange, wanted))
            apart.back |= before
            # Who have waited here look again with the others, before anybody waits.
            missing &= ~(elsewhere | before.any(axis=0))
            waiting = group & missing.any(axis=0)
            apart.wait(waiting, missing, said, _message(exchange, wanted, missing, waiting))
        found.append((group, elsewhere))
        left = left & ~named
    if apart.back.any() or apart.lanes.any():
        raise apart
    return found


def _message(exchange: Exchange, wanted: AnyArray, missing: AnyArray, waiting: AnyArray) -> str:
    """What it means that lanes that are waited for never come."""
    if not missing.any():
        return ""
    warp = int(missing.any(axis=0).argmax())
    if not exchange.named:
        present, absent = (int(np.count_nonzero(each[:, warp])) for each in (waiting, missing))
        return (
            f"only {present} of the {present + absent} running lanes of a warp are at the barrier"
        )
    if wanted[0, warp] == _ALL:
        return _not_all(int(np.count_nonzero(waiting[:, warp])))
    lane = int(missing[:, warp].argmax())
    return f"lane {lane} is in the member mask, but not at the instruction"
