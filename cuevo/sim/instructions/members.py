"""Member masks: which lanes of a warp run an instruction together."""

from collections.abc import Iterator

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.machine.binder import Binder, is_constant
from cuevo.sim.machine.state import Machine
from cuevo.sim.sync.meetings import EXCHANGE, WARP, Absent
from cuevo.sim.text.types import TYPES

_ALL = 0xFFFFFFFF
BIT = np.uint32(1) << np.arange(32, dtype=np.uint32)[:, None]
"""The bit of each lane in a member mask, (32, 1)."""


def together(b: Binder, index: int, step: Step, kind: int = EXCHANGE) -> Step:
    """`step` for the lanes that name each other in the member mask at `index`: once for each group
    of a warp, for all warps that have one. Lanes wait for those that they name. Faults where lanes
    do not agree who takes part.
    """
    members = b.source(b.operand(index), TYPES["b32"])
    machine = b.machine
    always_all = is_constant(members) and members.item() == _ALL

    def each(mask: Mask) -> None:
        if always_all and (mask is None or _complete(machine, mask)):
            step(mask)
            return
        # All of them before the first step: it may write the register of the mask.
        groups = list(_groups(machine, members, mask, kind))
        for lanes, elsewhere in groups:
            if elsewhere is not None:
                machine.flow.met(elsewhere)
            step(lanes)

    return each


def require_all(machine: Machine, mask: Mask) -> None:
    """All lanes of the warps in `mask` that have not exited must be there."""
    if mask is None:
        return
    present = np.count_nonzero(mask, axis=0)
    alive = np.count_nonzero(machine.alive, axis=0)
    wrong = (present != 0) & (present != alive)
    if wrong.any():
        raise _not_all(mask, present, wrong)


def _not_all(here: AnyArray, present: AnyArray, wrong: AnyArray) -> Fault:
    return Fault(
        f"only {int(present[wrong][0])} lanes of the warp are at an instruction whose member mask "
        "names them all",
        here & wrong[None, :],
    )


def _groups(
    machine: Machine, members: AnyArray, mask: Mask, kind: int
) -> Iterator[tuple[Mask, AnyArray | None]]:
    """Groups that are complete, and which of their lanes wait at other instructions."""
    said = np.broadcast_to(members, machine.shape)
    here = np.ones(machine.shape, np.bool_) if mask is None else mask
    if (said[here] == _ALL).all() and (mask is None or _complete(machine, mask)):
        yield mask, None
        return
    if (strays := here & (said & BIT == 0)).any():
        raise Fault("a lane is not in the member mask of the instruction that it runs", strays)
    left = here
    absent: Absent | None = None
    found: list[tuple[Mask, AnyArray | None]] = []
    while left.any():
        present = left.any(axis=0)
        leader = left.argmax(axis=0)
        wanted = np.take_along_axis(said, leader[None, :], axis=0)
        named = (wanted & BIT != 0) & present
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
        elsewhere: AnyArray | None = None
        if kind == WARP and missing.any():
            elsewhere = missing & machine.flow.meetings.waits_at(kind, wanted)
            missing &= ~elsewhere
            elsewhere &= ~missing.any(axis=0)
            group = group | elsewhere
        if (lacking := missing.any(axis=0)).any():
            waiting = group & lacking
            if absent is None:
                fault = _missing_fault(machine, wanted, missing, waiting)
                absent = Absent(waiting, missing, fault, kind, np.where(waiting, said, 0))
            else:
                absent.lanes |= waiting
                absent.missing |= missing
                np.copyto(absent.name, said, where=waiting)
            group = group & ~lacking
        if group.any():
            found.append((group, elsewhere))
        left = left & ~named
    if absent is not None:
        raise absent
    yield from found


def _complete(machine: Machine, mask: AnyArray) -> bool:
    present = np.count_nonzero(mask, axis=0)
    return bool(((present == 0) | (present == np.count_nonzero(machine.alive, axis=0))).all())


def _missing_fault(
    machine: Machine, wanted: AnyArray, missing: AnyArray, waiting: AnyArray
) -> Fault:
    warp = int(missing.any(axis=0).argmax())
    if wanted[0, warp] == _ALL:
        lacking = np.asarray(missing.any(axis=0))
        return _not_all(waiting, np.count_nonzero(waiting, axis=0), lacking)
    lane = int(missing[:, warp].argmax())
    return Fault(f"lane {lane} is in the member mask, but not at the instruction", waiting)
