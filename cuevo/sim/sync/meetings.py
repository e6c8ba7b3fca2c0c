"""Lanes that wait at an instruction for others of their warp, which it names.

Lanes that a branch has parted may come to such an instruction one after the other, from wherever
they were, or to two of the same kind, in two arms of an if: they stand still until all are there.
Then each brings what its own instruction reads, and gets what that writes. If one that is named
exits, or nobody can go on, those who wait have waited in vain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Write
from cuevo.sim.faults import Fault
from cuevo.sim.text.syntax import Instruction

Values: TypeAlias = Sequence[AnyArray]
Give: TypeAlias = Callable[[Values, Mask], None]


@dataclass(frozen=True)
class Exchange:
    """What an instruction does for lanes that name each other, all of them at once."""

    instruction: Instruction
    inputs: Sequence[Callable[[], AnyArray]]
    run: Callable[[Mask, Values, Give], None]
    """Gets the lanes, what they bring, and whom to tell which lanes take what away."""
    outputs: Sequence[Write] = ()
    named: bool = True
    """Whether a member mask says whose it is; else it is of all lanes that have not exited."""

    @property
    def name(self) -> tuple[frozenset[str], int]:
        """What all of the lanes must run, the member mask aside."""
        words = self.instruction.opcode.split(".")
        return frozenset(words) - {"cta"}, len(self.instruction.operands)

    def alone(self, mask: Mask) -> None:
        """Run for lanes that are all here."""
        self.run(mask, [read() for read in self.inputs], self.give)

    def give(self, results: Values, mask: Mask) -> None:
        for write, result in zip(self.outputs, results, strict=True):
            write(result, mask)


class Apart(Exception):
    """Some of the lanes that run an instruction cannot do so yet: `lanes` are to wait there for
    those `missing`; those marked in `back` have waited there, and are to run it with the others.
    """

    def __init__(self, shape: tuple[int, int], exchange: Exchange) -> None:
        self.exchange = exchange
        self.lanes = np.zeros(shape, np.bool_)
        self.missing = np.zeros(shape, np.bool_)
        self.back = np.zeros(shape, np.bool_)
        self.said = np.zeros(shape, np.uint32)
        """Member masks of `lanes`."""
        self.message = ""

    def wait(self, lanes: AnyArray, missing: AnyArray, said: AnyArray, message: str) -> None:
        self.lanes |= lanes
        self.missing |= missing
        np.copyto(self.said, said, where=lanes, casting="unsafe")
        self.message = self.message or message


@dataclass(frozen=True)
class Unmet:
    """Lanes that wait, for which, and what it means that these never come."""

    index: int
    exchange: Exchange
    lanes: AnyArray
    missing: AnyArray
    message: str


class InVain(Fault):
    """Lanes have waited in vain."""

    def __init__(self, unmet: Unmet) -> None:
        super().__init__(unmet.message, unmet.lanes)
        self.unmet = unmet


class Meetings:
    """`shape` is (32, warps)."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.lanes = np.zeros(shape, np.bool_)
        """Those that wait."""
        self.any = False
        self.said = np.zeros(shape, np.uint32)
        """The member masks of those."""
        self._unmet: list[Unmet] = []

    def reset(self) -> None:
        self.lanes.fill(False)
        self.any = False
        self._unmet.clear()

    def wait(self, index: int, apart: Apart) -> None:
        """Lanes wait at the instruction `index`, or no longer."""
        self.go(apart.back)
        self.lanes |= apart.lanes
        np.copyto(self.said, apart.said, where=apart.lanes)
        if apart.lanes.any():
            self._unmet.append(
                Unmet(index, apart.exchange, apart.lanes, apart.missing, apart.message)
            )
            self.any = True

    def waiting(self, exchange: Exchange, members: AnyArray) -> tuple[AnyArray, AnyArray]:
        """The lanes that wait for such an exchange with the masks `members`, (1 or 32, warps): at
        this very instruction, and at others.
        """
        here, elsewhere = np.zeros_like(self.lanes), np.zeros_like(self.lanes)
        for each in self._unmet:
            if each.exchange.name == exchange.name:
                same = each.exchange.instruction is exchange.instruction
                found = here if same else elsewhere
                found |= each.lanes & self.lanes & (self.said == members)
        return here, elsewhere

    def meet(self, exchange: Exchange, here: AnyArray, elsewhere: AnyArray) -> None:
        """Run it for lanes that are `here` and those that wait for it at other instructions."""
        parts = [(here & ~elsewhere, exchange)]
        parts += [(each.lanes & elsewhere, each.exchange) for each in self._unmet]
        self.go(elsewhere)
        values = []
        for i, read in enumerate(exchange.inputs):
            value = np.zeros(self.lanes.shape, read().dtype)
            for lanes, of in parts:
                if lanes.any():
                    np.copyto(value, of.inputs[i](), where=lanes)
            values.append(value)

        def give(results: Values, mask: Mask) -> None:
            for lanes, of in parts:
                of.give(results, lanes if mask is None else lanes & mask)

        exchange.run(here | elsewhere, values, give)

    def go(self, lanes: AnyArray) -> None:
        """Lanes wait no longer."""
        self.lanes &= ~lanes
        self._unmet = [each for each in self._unmet if (each.lanes & self.lanes).any()]
        self.any = bool(self._unmet)

    def exit(self, lanes: AnyArray) -> None:
        """The lanes are about to exit. It is a fault if somebody has named them; those who wait
        for all of the warp look again.
        """
        for each in self._unmet:
            if (each.lanes & self.lanes).any() and (each.missing & lanes).any():
                if each.exchange.named:
                    raise InVain(each)
                self.go(each.lanes & (each.missing & lanes).any(axis=0))

    def stuck(self) -> list[tuple[int, int]]:
        """Instructions at which lanes wait, each with the number of their warps."""
        return [
            (each.index, int(np.count_nonzero((each.lanes & self.lanes).any(axis=0))))
            for each in self._unmet
        ]

    def first(self, lanes: AnyArray | None = None) -> Unmet | None:
        """Those who have waited longest, in a warp of `lanes` if given."""
        for each in self._unmet:
            if lanes is None or (each.lanes & self.lanes & lanes.any(axis=0)).any():
                return each
        return None
