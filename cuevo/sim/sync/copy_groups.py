"""Asynchronous copies from global to shared memory, and the groups that they are waited for in.

The data is read from global memory when the copy is issued, which the PTX ISA allows; the
destination is in flight, neither to be read nor written, until the thread that issued the copy
waits for its group.
"""

from dataclasses import dataclass

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.memory.shared_memory import SharedMemory


@dataclass
class _Copy:
    """The copies that one execution of an instruction issued: destination and lane of each."""

    size: int
    indices: AnyArray
    lanes: AnyArray
    groups: AnyArray
    """The group of each copy, counted by its thread."""
    whole: bool
    """Whether all are of one group."""
    serial: int
    """Place in the order of all copies issued."""

    def without(self, done: AnyArray) -> "_Copy":
        """The copies that are not marked."""
        left = ~done
        return _Copy(
            self.size,
            self.indices[left],
            self.lanes[left],
            self.groups[left],
            self.whole,
            self.serial,
        )


class Copies:
    """Copies in flight in a chunk; `shape` is (32, warps)."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._group = np.zeros(shape, np.int64)
        self._retired = np.zeros(shape, np.int64)
        self._positions = np.arange(shape[0] * shape[1]).reshape(shape)
        self._open: list[_Copy] = []
        self.issued = 0

    def reset(self) -> None:
        self._group.fill(0)
        self._retired.fill(0)
        self._open.clear()

    def issue(
        self, shared: SharedMemory, indices: AnyArray, size: int, values: AnyArray, mask: Mask
    ) -> None:
        shared.begin_copy(indices, size, values, mask)
        if mask is None:
            groups, lanes = self._group.ravel().copy(), self._positions.ravel()
            destinations = indices.ravel()
        else:
            groups, lanes = self._group[mask], self._positions[mask]
            destinations = indices[mask]
        whole = bool(groups.size) and bool((groups == groups[0]).all())
        self.issued += 1
        self._open.append(_Copy(size, destinations, lanes, groups, whole, self.issued))

    def commit(self, mask: Mask) -> None:
        np.add(self._group, 1, out=self._group, where=True if mask is None else mask)

    def wait(self, shared: SharedMemory, pending: int | None, mask: Mask) -> None:
        """Retire all but the last `pending` groups of the lanes in `mask`; None: also what is not
        committed.
        """
        limit = self._group + 1 if pending is None else self._group - pending
        np.maximum(self._retired, limit, out=self._retired, where=True if mask is None else mask)
        low, high = int(self._retired.min()), int(self._retired.max())
        still_open: list[_Copy] = []
        for copy in self._open:
            first = int(copy.groups[0]) if copy.groups.size else 0
            if copy.whole and first < low:
                shared.end_copy(copy.indices, copy.size, copy.lanes)
            elif copy.whole and first >= high:
                still_open.append(copy)
            else:
                done = copy.groups < self._retired.ravel()[copy.lanes]
                shared.end_copy(copy.indices[done], copy.size, copy.lanes[done])
                if not done.all():
                    still_open.append(copy.without(done))
        self._open = still_open
        if pending is None:
            # The open group was retired: what comes next is a new one.
            np.copyto(self._group, self._retired, where=True if mask is None else mask)

    def land(
        self,
        shared: SharedMemory,
        lanes: AnyArray,
        places: AnyArray,
        times: AnyArray,
        issued: int,
    ) -> None:
        """The first `issued` copies of the chunk have landed, those of the threads in `lanes`: in
        the name of the mbarriers whose places and times stand beside each of these threads.
        """
        beside = np.zeros(lanes.size, np.int64)
        beside[np.flatnonzero(lanes)] = np.arange(places.size)
        still_open: list[_Copy] = []
        for copy in self._open:
            done = lanes.ravel()[copy.lanes] & (copy.serial <= issued)
            own = beside[copy.lanes[done]]
            shared.end_copy_by_mbarrier(copy.indices[done], copy.size, places[own], times[own])
            if not done.all():
                still_open.append(copy.without(done))
        self._open = still_open
