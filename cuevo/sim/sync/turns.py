"""Whose turn it is where lanes stand apart: the lowest counter's, until it goes round in circles.

Lanes that spin on memory stand lowest for ever, and those that they wait for would never run. So
backward steps are counted. When there were many, lanes that did not run meanwhile, and could have,
get a turn of their own: first those of other warps; then those that have left their warp's others
behind, but only up to an instruction that takes the warp as a whole. A turn ends when its lanes
meet the others, when none of them can go on, or when they go round in circles themselves.
"""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask

_MOST, _LEAST = 256, 4
"""Backward steps before others get a turn: at first, and where that has happened again and again.
"""
_IN_VAIN = 4096
"""Backward steps after which those who sleep should look again."""


class Turns:
    """`shape` is (32, warps)."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.joint: Callable[[int], bool] = lambda counter: False
        """Whether the instruction at a counter takes warps as a whole."""
        self.apart = False
        """Whether the lanes chosen last may have lanes of their warp elsewhere that could run."""
        self._seen = np.zeros(shape, np.bool_)
        self._turn: Mask = None
        self._last, self._rounds = -1, 0
        self.reset()

    def reset(self) -> None:
        self._patience = _MOST
        self.rest()

    def rest(self) -> None:
        """No lane can run."""
        self._in_vain = 0
        self.together()

    def together(self) -> None:
        """All lanes stand at one counter."""
        self._turn = None
        self._begin()

    def ask_in_vain(self) -> bool:
        """Whether it has gone round in circles for long since that was asked last."""
        found = self._in_vain >= _IN_VAIN
        if found:
            self._in_vain = 0
        return found

    def choose(self, counters: AnyArray, runnable: AnyArray) -> tuple[int, AnyArray]:
        """A counter, and the lanes that are to run there; some lane is `runnable`."""
        while True:
            allowed = runnable if self._turn is None else runnable & self._turn
            lowest = int(counters.min(where=allowed, initial=np.iinfo(np.int64).max))
            mask = allowed & (counters == lowest)
            if self._turn is not None and self._interrupted(counters, runnable, lowest, mask):
                continue
            if lowest <= self._last:
                self._rounds += 1
                self._in_vain += 1
                if self._rounds > self._patience:
                    self._give_way(allowed & ~self._seen)
                    continue
            self._last = lowest
            np.logical_or(self._seen, mask, out=self._seen)
            return lowest, mask

    # -- Inner ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._last, self._rounds, self.apart = -1, 0, False
        self._seen.fill(False)

    def _interrupted(
        self, counters: AnyArray, runnable: AnyArray, lowest: int, mask: AnyArray
    ) -> bool:
        """Whether the turn has ended, or goes on without the lanes in `mask`."""
        assert self._turn is not None
        others = runnable & ~self._turn
        if not mask.any() or (others & (counters == lowest)).any():
            self.together()
            return True
        parted = mask & others.any(axis=0)
        self.apart = bool(parted.any())
        if self.apart and self.joint(lowest):
            self._turn = self._turn & ~parted
            return True
        return False

    def _give_way(self, starved: AnyArray) -> None:
        """A turn for lanes that did not run; the end of one if there are none."""
        elsewhere = starved & ~self._seen.any(axis=0)
        self._begin()
        if elsewhere.any():
            self._turn = elsewhere
        elif starved.any():
            self._turn = starved
        else:
            self._turn = None
            return
        self._patience = max(self._patience // 2, _LEAST)
