"""Lanes that wait at an instruction for others of their warp, which it names.

Lanes that a branch has parted may come to such an instruction one after the other, from wherever
they were, or to two of them that meet: they stand still until all are there. If one of the others
exits, or nobody can go on, the first who wait have a fault.
"""

from dataclasses import dataclass

import numpy as np

from cuevo.sim.aliases import AnyArray
from cuevo.sim.faults import Fault

EXCHANGE, WARP = 1, 2
"""What lanes wait at: an exchange with lanes at the same instruction; ``bar.warp.sync``, anywhere.
"""


class Absent(Exception):
    """Some of the lanes that run an instruction are to wait for others, which are not there."""

    def __init__(
        self, lanes: AnyArray, missing: AnyArray, fault: Fault, kind: int, name: AnyArray
    ) -> None:
        self.lanes, self.missing, self.fault = lanes, missing, fault
        self.kind, self.name = kind, name
        """`name`, (32, warps): the member masks."""


@dataclass(frozen=True)
class _Unmet:
    index: int
    lanes: AnyArray
    missing: AnyArray
    fault: Fault


class Meetings:
    """`shape` is (32, warps)."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.lanes = np.zeros(shape, np.bool_)
        """Those that wait."""
        self.any = False
        self._kind = np.zeros(shape, np.uint8)
        self._name = np.zeros(shape, np.uint32)
        self._unmet: list[_Unmet] = []

    def reset(self) -> None:
        self.lanes.fill(False)
        self.any = False
        self._unmet.clear()

    def wait(self, index: int, absent: Absent) -> None:
        """Lanes wait at the instruction `index`."""
        self.any = True
        self.lanes |= absent.lanes
        np.copyto(self._kind, absent.kind, where=absent.lanes)
        np.copyto(self._name, absent.name, where=absent.lanes, casting="unsafe")
        self._unmet.append(_Unmet(index, absent.lanes, absent.missing, absent.fault))

    def waits_at(self, kind: int, name: AnyArray) -> AnyArray:
        """The lanes that wait at something of this kind and `name`, (1 or 32, warps)."""
        if not self.any:
            return np.zeros(self.lanes.shape, np.bool_)
        return np.asarray(self.lanes & (self._kind == kind) & (self._name == name))

    def go(self, lanes: AnyArray) -> None:
        """Lanes wait no longer."""
        self.lanes &= ~lanes
        self._unmet = [each for each in self._unmet if (each.lanes & self.lanes).any()]
        self.any = bool(self._unmet)

    def exit(self, lanes: AnyArray) -> None:
        """The lanes are about to exit; it is a fault if they are waited for."""
        for each in self._unmet:
            if (each.lanes & self.lanes).any() and (each.missing & lanes).any():
                raise each.fault

    def first(self, lanes: AnyArray | None = None) -> tuple[int, Fault] | None:
        """Where lanes have waited in vain, of the warps of `lanes` if given, and their fault."""
        for each in self._unmet:
            if lanes is None or (each.lanes & self.lanes & lanes.any(axis=0)).any():
                return each.index, each.fault
        return None
