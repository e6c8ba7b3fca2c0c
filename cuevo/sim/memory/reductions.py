"""Words of shared memory that asynchronous reductions (``red.async``) update.

They are atomic: not ordered among themselves, nor with other atomics. Ordinary accesses race with
those that are under way, and with what came of one if they do not know of the mbarrier that counted
it. As with copies, that one has written it.
"""

import numpy as np

from cuevo.sim.aliases import AnyArray


class Reductions:
    """Reductions of that many words; the clocks have places of warps up to the place `first`."""

    def __init__(self, words: int, first: int) -> None:
        self._words, self._first = words, first
        self.reset()

    def reset(self) -> None:
        """There are none. Before the first one nothing is kept."""
        self.any = False
        self._under_way = np.zeros(0, np.int32)
        self._times = np.zeros((0, 0), np.int32)
        """Time of each mbarrier's last write of each word."""

    def begin(self, words: AnyArray) -> None:
        """One more is to update each of `words`, which may come twice."""
        if not self.any:
            self.any = True
            self._under_way = np.zeros(self._words, np.int32)
            self._times = np.zeros((self._words, 0), np.int32)
        np.add.at(self._under_way, words, 1)

    def end(self, words: AnyArray, places: AnyArray, times: AnyArray) -> None:
        """End updates in the name of the mbarriers whose place and time stand beside each."""
        np.subtract.at(self._under_way, words, 1)
        columns = places - self._first
        if (more := int(columns.max()) + 1 - self._times.shape[1]) > 0:
            self._times = np.pad(self._times, ((0, 0), (0, more)))
        np.maximum.at(self._times, (words, columns), times)

    def under_way(self, words: AnyArray) -> AnyArray:
        """Flags of those of `words` that are still to be updated."""
        return np.asarray(self._under_way[words] > 0)

    def unknown(self, words: AnyArray | slice, clocks: AnyArray) -> AnyArray:
        """Flags of those of `words` that were updated without the clocks beside them, or the one
        clock, knowing of it.
        """
        known = clocks[..., self._first : self._first + self._times.shape[1]]
        return np.asarray((self._times[words] > known).any(axis=-1))
