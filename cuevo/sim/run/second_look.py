"""Who made the access that a fault is about: the blocks run again, and it is noted who touches the
bytes.

While a kernel runs, only the warp or the lane of an earlier access is known, so that nothing has to
be kept that nobody asks for. Memory is no longer as it was when the blocks began: where that leads
them elsewhere, nothing is found.
"""

from dataclasses import dataclass

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Earlier, first_thread
from cuevo.sim.machine.state import Machine
from cuevo.sim.run.program import Program


@dataclass(frozen=True)
class Found:
    index: int
    """Of the instruction."""
    serial: int
    """How many instructions had run."""
    lanes: AnyArray
    """Those that made the access."""
    by_unit: bool
    """Whether an asynchronous unit made it for them."""
    source: int | None
    """The global address that the first of the lanes copied from, if it did."""


class SecondLook:
    """Notes what is such as `earlier`, in a run of `program`."""

    def __init__(self, earlier: Earlier, program: Program) -> None:
        self._earlier, self._program = earlier, program
        self._index = self._serial = 0
        self._sources: AnyArray | None = None
        self._noted: tuple[Found, ...] = ()
        """The last two."""

    def observed(self, index: int, step: Step, machine: Machine) -> Step:
        """The instruction, made to note what it touches."""
        wanted = self._earlier
        uses = wanted.did == "uses" and self._program.operations[index].keeps >> wanted.position & 1

        def noting(mask: Mask) -> None:
            self._index, self._serial = index, self._serial + 1
            self._sources = None
            machine.shared.observe = self._note
            machine.global_memory.watch = self._load
            if uses:
                self._add(machine.alive if mask is None else mask, by_unit=False)
            step(mask)

        return noting

    def found(self) -> Found | None:
        """The last such access before the instruction that ran last."""
        before = [each for each in self._noted if each.serial < self._serial]
        return before[-1] if before else None

    def _load(self, addresses: AnyArray, size: int, mask: Mask) -> None:
        self._sources = addresses

    def _note(
        self, did: str, indices: AnyArray, size: int, mask: Mask, warps: AnyArray | None
    ) -> None:
        wanted = self._earlier
        if did != wanted.did:
            return
        positions = indices * size
        touched = (positions < wanted.position + wanted.size) & (positions + size > wanted.position)
        by_unit = warps is not None
        if warps is not None:
            lanes = np.zeros((32, int(warps.max(initial=0)) + 1), np.bool_)
            lanes[0, warps[touched]] = True
        else:
            lanes = touched if mask is None else touched & mask
        self._add(lanes, by_unit)

    def _add(self, lanes: AnyArray, by_unit: bool) -> None:
        if not by_unit and self._earlier.by is not None:
            lanes = lanes & self._earlier.by
        if lanes.any():
            sources = None if by_unit else self._sources
            source = None if sources is None else int(sources[first_thread(lanes)])
            found = Found(self._index, self._serial, lanes, by_unit, source)
            self._noted = (*self._noted[-1:], found)
