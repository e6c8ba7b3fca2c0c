"""Member masks: which lanes of a warp run an instruction together."""

from collections.abc import Iterator

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.machine.binder import Binder, is_constant
from cuevo.sim.machine.state import Machine
from cuevo.sim.text.types import TYPES

_ALL = 0xFFFFFFFF
BIT = np.uint32(1) << np.arange(32, dtype=np.uint32)[:, None]
"""The bit of each lane in a member mask, (32, 1)."""


def together(b: Binder, index: int, step: Step) -> Step:
    """`step` for the lanes that name each other in the member mask at `index`: once for each group
    of a warp, for all warps that have one. Faults where lanes do not agree who takes part.
    """
    members = b.source(b.operand(index), TYPES["b32"])
    machine = b.machine
    if is_constant(members) and members.item() == _ALL:

        def whole(mask: Mask) -> None:
            require_all(machine, mask)
            step(mask)

        return whole

    def each(mask: Mask) -> None:
        # All of them before the first step: it may write the register of the mask.
        for lanes in list(_groups(machine, members, mask)):
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
        raise Fault(
            f"only {int(present[wrong][0])} lanes of the warp are at an instruction whose member "
            "mask names them all",
            mask & wrong[None, :],
        )


def _groups(machine: Machine, members: AnyArray, mask: Mask) -> Iterator[Mask]:
    said = np.broadcast_to(members, machine.shape)
    here = np.ones(machine.shape, np.bool_) if mask is None else mask
    if (said[here] == _ALL).all():
        require_all(machine, mask)
        yield mask
        return
    if (strays := here & (said & BIT == 0)).any():
        raise Fault("a lane is not in the member mask of the instruction that it runs", strays)
    left = here
    while left.any():
        leader = left.argmax(axis=0)
        wanted = np.take_along_axis(said, leader[None, :], axis=0)
        named = (wanted & BIT != 0) & left.any(axis=0)
        if (missing := named & ~here & machine.alive).any():
            lane = int(missing.any(axis=1).argmax())
            raise Fault(
                f"lane {lane} is in the member mask, but not at the instruction",
                here & missing.any(axis=0),
            )
        group = named & here
        if (others := group & (said != wanted)).any():
            warp = int(others.any(axis=0).argmax())
            lane = int(others[:, warp].argmax())
            raise Fault(
                f"lane {int(leader[warp])} has the member mask {int(wanted[0, warp]):#010x}, and "
                f"lane {lane}, which is in it, {int(said[lane, warp]):#010x}",
                others,
            )
        yield group
        left = left & ~group
