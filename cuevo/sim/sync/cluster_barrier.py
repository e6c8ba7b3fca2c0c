"""The barrier of each cluster of blocks: barrier.cluster.arrive, and barrier.cluster.wait later.

It is complete when all threads of the cluster that have not exited have arrived.
"""

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.faults import Fault
from cuevo.sim.memory.clocks import Clocks, join
from cuevo.sim.sync.flow import Flow


class ClusterBarrier:
    """The barriers of a chunk's clusters; `cluster_of_warp` has the cluster of each warp."""

    def __init__(self, cluster_of_warp: AnyArray, flow: Flow, clocks: Clocks) -> None:
        self._cluster = cluster_of_warp
        self._clusters = int(cluster_of_warp[-1]) + 1
        self._flow, self._clocks = flow, clocks
        self.reset()

    def reset(self) -> None:
        shape = self._flow.alive.shape
        self._arrived = np.zeros(shape, np.bool_)
        """Lanes that have, and have not waited since."""
        self._phase = np.zeros(self._clusters, np.int64)
        self._phase_of_lane = np.zeros(shape, np.int64)
        """The phase that a lane arrived in."""
        self._waits = np.zeros(shape, np.bool_)
        lanes = self._clocks.lanes_in_cluster
        self._known = np.zeros((self._clusters, lanes), np.int32)
        self._released = np.zeros((self._clusters, lanes), np.int32)
        self._lines = np.zeros(shape[1], np.int64)

    def arrive(self, mask: Mask, *, releases: bool) -> None:
        """Arrive; with `releases`, earlier accesses of the threads happen before a wait ends."""
        lanes = np.ones(self._flow.alive.shape, np.bool_) if mask is None else mask
        if (again := lanes & self._arrived).any():
            raise Fault("arrives at the barrier of the cluster again before it has waited", again)
        self._arrived |= lanes
        phases = np.broadcast_to(self._phase[self._cluster], lanes.shape)
        np.copyto(self._phase_of_lane, phases, where=lanes)
        if releases:
            warps = np.flatnonzero(lanes.any(axis=0))
            known = self._clocks.release(warps)
            self._known = _wide(self._known, known.shape[1])
            join(self._known, self._cluster[warps], known)
        self.complete()

    def wait(self, mask: Mask, line: int) -> None:
        lanes = np.ones(self._flow.alive.shape, np.bool_) if mask is None else mask
        if (early := lanes & ~self._arrived).any():
            raise Fault("waits at the barrier of the cluster, and has not arrived there", early)
        self._waits |= lanes
        self._lines[lanes.any(axis=0)] = line
        self._flow.sleep(lanes)
        self._let_go()

    def complete(self) -> None:
        """Complete the phases in which all have arrived, after an arrival or an exit."""
        here = self._arrived & (self._phase_of_lane == self._phase[self._cluster])
        missing = (self._flow.alive & ~here).any(axis=0)
        lacking = np.bincount(self._cluster, missing, self._clusters) > 0
        some = np.bincount(self._cluster, here.any(axis=0), self._clusters) > 0
        done = some & ~lacking
        if done.any():
            self._phase[done] += 1
            self._released = _wide(self._released, self._known.shape[1])
            self._released[done] = self._known[done]
            self._let_go()

    @property
    def waits(self) -> AnyArray:
        """Lanes that wait."""
        return self._waits

    def stuck(self) -> list[int]:
        """The lines at which threads wait."""
        waits = (self._waits & self._flow.alive).any(axis=0)
        return sorted({int(line) for line in self._lines[waits]})

    def _let_go(self) -> None:
        lanes = self._waits & (self._phase_of_lane < self._phase[self._cluster])
        if lanes.any():
            self._waits &= ~lanes
            self._arrived &= ~lanes
            warps = np.flatnonzero(lanes.any(axis=0))
            self._clocks.acquire(warps, self._released[self._cluster[warps]])
            self._flow.wake(lanes)


def _wide(table: AnyArray, columns: int) -> AnyArray:
    return np.pad(table, ((0, 0), (0, max(0, columns - table.shape[1]))))
