"""What the lanes of a warp know of one another's accesses to shared memory.

A warp has one time for all of its lanes. For each pair of lanes there is the time up to which the
one knows what the other has done: a ``bar.warp.sync`` tells its members, and lanes that wait at a
barrier are told what other lanes had released. Shuffles, votes and matrix instructions tell
nothing.
"""

import numpy as np

from cuevo.sim.aliases import AnyArray

SEVERAL = 255
"""In the place of a lane's number: several lanes read a word at once."""


class LaneOrder:
    """The lanes of so many `warps`."""

    def __init__(self, warps: int) -> None:
        self._known = np.zeros((warps, 32, 32), np.int32)
        """[w, a, b]: up to when lane a of warp w knows what its lane b has done."""
        self.all_know = np.zeros(warps, np.int32)
        """The same for all pairs of lanes, at least."""

    def reset(self) -> None:
        self._known.fill(0)
        self.all_know.fill(0)

    def release(self, warps: AnyArray, lanes: AnyArray, times: AnyArray) -> AnyArray:
        """What `lanes`, (32, warps), of each of `warps` know at `times` of their warp's lanes,
        all of them together: (warps, 32).
        """
        now: AnyArray = np.repeat(times[:, None], 32, axis=1)
        there = lanes.T
        if there.all():
            return now
        if np.count_nonzero(there) == warps.size:
            heard = self._known[warps, there.argmax(axis=1)]
        else:
            heard = np.where(there[:, :, None], self._known[warps], np.int32(0)).max(axis=1)
        return np.where(there, now, heard)

    def acquire(self, warps: AnyArray, lanes: AnyArray, known: AnyArray) -> None:
        """`lanes`, (32, warps), of each of `warps` are told `known`, (warps, 32)."""
        if warps.size == len(self._known) and lanes.all():
            # As at a barrier: nothing is picked out, and all know at least what all are told.
            np.maximum(self._known, known[:, None, :], out=self._known)
            np.maximum(self.all_know, known.min(axis=1), out=self.all_know)
            return
        there = lanes.T[:, :, None]
        before = self._known[warps]
        after = np.where(there, np.maximum(before, known[:, None, :]), before)
        self._known[warps] = after
        self.all_know[warps] = after.min(axis=(1, 2))

    def unknown(self, warps: AnyArray, lanes: AnyArray, by: AnyArray, times: AnyArray) -> AnyArray:
        """Flags of accesses of the same warp at `times`, `by` lanes or `SEVERAL`, of which the lane
        beside each does not know; flat. Of several readers it knows as soon as it knows of one.
        """
        found: AnyArray = times > self.all_know[warps]
        suspects = np.flatnonzero(found)
        if suspects.size:
            warps, lanes, by = warps[suspects], lanes[suspects], by[suspects]
            known = self._known[warps, lanes]
            places = np.arange(suspects.size)
            known[places, lanes] = np.where(by == SEVERAL, 0, times[suspects])
            heard = np.where(by == SEVERAL, known.max(axis=1), known[places, by & 31])
            found[suspects] = times[suspects] > heard
        return found
