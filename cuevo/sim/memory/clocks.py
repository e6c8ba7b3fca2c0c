"""Vector clocks: what each warp, and each lane of it, knows of what others have done.

A warp has its own time, and the latest time of each lane of other warps that happens before it.
Arriving at a barrier or an mbarrier releases what the arriving lanes know (`LaneOrder`) and the
warp's clock, waiting there acquires it, and then time goes on for those who have released.

Data that an mbarrier counts is written by the mbarrier: it has a place of its own in the clocks, so
that waiting for another mbarrier does not order it.
"""

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.memory.lane_order import SEVERAL, LaneOrder


class Clocks:
    """`block_of_warp` and `warp_in_block` have a number for each warp of `blocks` blocks. The warps
    of a `cluster` of blocks may all know of one another.
    """

    def __init__(
        self, blocks: int, block_of_warp: AnyArray, warp_in_block: AnyArray, cluster: int = 1
    ) -> None:
        self._blocks = blocks
        self.block_of_warp = block_of_warp
        self._warps_in_block = int(warp_in_block.max()) + 1
        self.own = block_of_warp % cluster * self._warps_in_block + warp_in_block
        """The number of each warp in its cluster; its lanes have 32 places in the clocks."""
        self.warps_in_cluster = cluster * self._warps_in_block
        self.cluster = cluster
        self._lanes = LaneOrder(warp_in_block.size)
        self.warp_of_lane = np.tile(np.arange(warp_in_block.size), (32, 1))
        """The number of each lane's warp, (32, warps)."""
        self.warp_by_warp = self.warp_of_lane.T.ravel()
        """The same of the lanes of one warp after the other, flat."""
        self.time = np.zeros(0, np.int32)
        """Of each warp."""
        self.known = np.zeros((0, 0), np.int32)
        """(warps, places); in the places of its own lanes a warp has its time."""
        self._least: AnyArray | None = None
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        warps = self.own.size
        self.known = np.zeros((warps, self.lanes_in_cluster), np.int32)
        self.time = np.ones(warps, np.int32)
        self._show_time(np.arange(warps))
        self._lanes.reset()

    def new_place(self) -> int:
        """One more place in the clocks of all blocks."""
        self.known = np.pad(self.known, ((0, 0), (0, 1)))
        return self.known.shape[1] - 1

    @property
    def lanes_in_cluster(self) -> int:
        """Places of lanes, which come before those of mbarriers."""
        return 32 * self.warps_in_cluster

    @property
    def places(self) -> int:
        return self.known.shape[1]

    # -- What makes order -------------------------------------------------------------------------

    def release(self, warps: AnyArray, lanes: AnyArray | None = None) -> AnyArray:
        """Clocks of `warps`, each named once, as the marked `lanes`, (32, warps of all), release
        them: (warps, places). They do all else later. All lanes of these warps if none are given.
        """
        known = self.known[warps]
        times = self.time[warps]
        if lanes is not None:
            heard = self._lanes.release(warps, lanes[:, warps], times)
            known[np.arange(warps.size)[:, None], self._places_of(warps)] = heard
        self._pass_time(warps)
        return known

    def acquire(self, warps: AnyArray, known: AnyArray, lanes: AnyArray | None = None) -> None:
        """Each of `warps`, which may come twice, gets to know what is in its row of `known`. What
        it says of their own lanes, the marked `lanes` get to know, or all.
        """
        if not warps.size:
            return
        join(self.known, warps, known)
        self._least = None
        own = np.unique(warps)
        told = np.zeros((self.own.size, 32), np.int32)
        join(told, warps, np.take_along_axis(known, self._places_of(warps), axis=1))
        here = np.ones((32, own.size), np.bool_) if lanes is None else lanes[:, own]
        self._lanes.acquire(own, here, told[own])

    def barrier(
        self,
        blocks: AnyArray | None,
        arrived: AnyArray | None = None,
        released: AnyArray | None = None,
    ) -> None:
        """The warps marked `released` know what those marked `arrived` have done; all of the
        `blocks` if nothing is said.
        """
        everybody = np.ones(self.block_of_warp.shape, np.bool_)
        if blocks is not None:
            everybody = blocks[self.block_of_warp]
        come = np.flatnonzero(everybody if arrived is None else arrived)
        go = np.flatnonzero(everybody if released is None else released)
        known = np.zeros((self._blocks, self.places), np.int32)
        join(known, self.block_of_warp[come], self.release(come))
        self.acquire(go, known[self.block_of_warp[go]])

    def warp_barrier(self, mask: Mask, alive: AnyArray) -> None:
        """Orders the lanes of each warp in `mask`; those `alive` have not exited. If all of these
        are there, what others did before they exited is ordered, too.
        """
        lanes = np.ones(alive.shape, np.bool_) if mask is None else mask
        warps = np.flatnonzero(lanes.any(axis=0))
        here = lanes[:, warps] | (lanes == alive).all(axis=0)[warps]
        known = self._lanes.release(warps, here, self.time[warps])
        self._lanes.acquire(warps, here, known)
        self._pass_time(warps)

    # -- What is known ----------------------------------------------------------------------------

    def of_all_lanes(self) -> AnyArray:
        """Up to when each warp knows what all lanes of each warp of its cluster have done."""
        if self._least is None:
            each = self.known[:, : self.lanes_in_cluster]
            self._least = each.reshape(-1, self.warps_in_cluster, 32).min(axis=2)
        return self._least

    @property
    def told(self) -> AnyArray:
        """Up to when all lanes of each warp know what all of its lanes have done."""
        return self._lanes.all_know

    def of_readers(self, warps: AnyArray, readers: AnyArray, by: AnyArray) -> AnyArray:
        """Up to when each of `warps` knows what lane `by` of the warp beside it in `readers` has
        done, or one of its lanes for `SEVERAL`.
        """
        rows = self.known[warps[:, None], 32 * readers[:, None] + np.arange(32)]
        one = np.take_along_axis(rows, by[:, None] % 32, axis=1)[:, 0]
        return np.where(by == SEVERAL, rows.max(axis=1), one)

    def unknown_in_warp(
        self, warps: AnyArray, lanes: AnyArray, by: AnyArray, times: AnyArray
    ) -> AnyArray:
        """`LaneOrder.unknown`"""
        return self._lanes.unknown(warps, lanes, by, times)

    # -- Names ------------------------------------------------------------------------------------

    def lanes_of_warp(self, warp: int) -> AnyArray:
        lanes: AnyArray = self.warp_of_lane == warp
        return lanes

    def warp_name(self, number: int) -> str:
        """Of a warp, by its number in the cluster."""
        rank, warp = divmod(number, self._warps_in_block)
        return f"warp {warp}" if self.cluster == 1 else f"warp {warp} of the cluster's block {rank}"

    def place_name(self, place: int) -> str:
        return (
            self.warp_name(place // 32) if place < self.lanes_in_cluster else "an asynchronous copy"
        )

    # -- Inner ------------------------------------------------------------------------------------

    def _pass_time(self, warps: AnyArray) -> None:
        self.time[warps] += 1
        self._show_time(warps)

    def _show_time(self, warps: AnyArray) -> None:
        self.known[warps[:, None], self._places_of(warps)] = self.time[warps][:, None]
        self._least = None

    def _places_of(self, warps: AnyArray) -> AnyArray:
        """Places of the lanes of each warp, (warps, 32)."""
        places: AnyArray = 32 * self.own[warps][:, None] + np.arange(32)
        return places


def join(clocks: AnyArray, rows: AnyArray, known: AnyArray) -> None:
    """Each of `rows` of `clocks` gets to know what its row of `known` says; rows may come twice."""
    if rows.size:
        order = np.argsort(rows, kind="stable")
        own, first = np.unique(rows[order], return_index=True)
        most = np.maximum.reduceat(known[order], first, axis=0)
        part = clocks[:, : known.shape[1]]
        part[own] = np.maximum(part[own], most)
