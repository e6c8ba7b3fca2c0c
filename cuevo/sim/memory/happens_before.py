"""Order between the warps of a block in shared memory, where it is made by more than barriers.

Kernels that hand shared memory from warp to warp through mbarriers, or have it read and written by
asynchronous units, order single warps, not the whole block. Here every warp has a vector clock: its
own time, and the latest time of each lane of other warps that happens before it. Arriving at a
barrier or an mbarrier releases what the arriving lanes know (`LaneOrder`) and the warp's clock,
waiting there acquires it, and then time goes on for those who have released. An access races with
an earlier one if that does not happen before it: its time is later than what the warp's clock has
for the lane that made it, or, within the warp, than what the lane knows of that one.

Data that an mbarrier counts is written by the mbarrier: it has a place of its own in the clocks, so
that waiting for another mbarrier does not order it.

For every word of 4 bytes there are its last writer, with the time, and the last time that each warp
read it, with the lane. Of several lanes that read it at once, one that is known of vouches for all.
Accesses of less than a word leave no mark. What asynchronous units read is counted in
`begin_async_read` and belongs to them until `end_async_read`.

Atomics race with ordinary accesses before them. Asynchronous ones, which come later, also race with
those after them (`Reductions`).

Asynchronous units see memory through a proxy of their own: what ordinary instructions have written
is for them only after a ``fence.proxy.async``, by the writer or by a warp that the write happens
before.
"""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.faults import Fault
from cuevo.sim.memory.lane_order import SEVERAL, LaneOrder
from cuevo.sim.memory.reductions import Reductions

_WORD = 4


class HappensBefore:
    """The clocks of `blocks` blocks, each with `stride` bytes of storage; `warp_in_block` has a
    number for each warp. The warps of a `cluster` of blocks may all know of one another. It stands
    in for `Races`.
    """

    def __init__(
        self,
        blocks: int,
        stride: int,
        block_of_warp: AnyArray,
        warp_in_block: AnyArray,
        cluster: int = 1,
    ) -> None:
        self._blocks, self._stride = blocks, stride
        self._block_of_warp = block_of_warp
        self._warps_in_block = int(warp_in_block.max()) + 1
        self._own = block_of_warp % cluster * self._warps_in_block + warp_in_block
        """The number of each warp in its cluster; its lanes have 32 places in the clocks."""
        self._warps = cluster * self._warps_in_block
        self._cluster = cluster
        self._lanes = LaneOrder(warp_in_block.size)
        self.warp_of_lane = np.tile(np.arange(warp_in_block.size), (32, 1))
        """The number of each lane's warp, (32, warps)."""
        self._threads = 32 * self.warp_of_lane + np.arange(32)[:, None]
        words = max(blocks * stride // _WORD, 4)
        self._writer = np.zeros(words, np.int16)
        """Place in the clocks; `_written` is 0 where there is none."""
        self._written = np.zeros(words, np.int32)
        self._read = np.zeros((words, self._warps), np.int32)
        self._reader = np.zeros((words, self._warps), np.uint8)
        """The lane, or `SEVERAL`, that `_read` is of."""
        self._async_reads = np.zeros(words, np.int16)
        self._unfenced = np.zeros(words, np.bool_)
        self._reductions = Reductions(words, self.lanes_in_cluster)
        self._time = np.zeros(0, np.int32)
        self._clocks = np.zeros((0, 0), np.int32)
        """(warps, places); in the places of its own lanes a warp has its time."""
        self._least: AnyArray | None = None
        self._visits = np.zeros((blocks, self._warps), np.int32)
        """Time of each warp's last access to the memory of another block of its cluster."""
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        warps = self._own.size
        self._clocks = np.zeros((warps, self.lanes_in_cluster), np.int32)
        self._time = np.ones(warps, np.int32)
        self._show_time(np.arange(warps))
        self._written.fill(0)
        self._read.fill(0)
        self._async_reads.fill(0)
        self._unfenced.fill(False)
        self._reductions.reset()
        self._visits.fill(0)
        self._lanes.reset()

    # -- Clocks -----------------------------------------------------------------------------------

    def new_place(self) -> int:
        """One more place in the clocks of all blocks."""
        self._clocks = np.pad(self._clocks, ((0, 0), (0, 1)))
        return self._clocks.shape[1] - 1

    @property
    def lanes_in_cluster(self) -> int:
        """Places of lanes, which come before those of mbarriers."""
        return 32 * self._warps

    @property
    def places(self) -> int:
        return self._clocks.shape[1]

    def release(self, warps: AnyArray, lanes: AnyArray | None = None) -> AnyArray:
        """Clocks of `warps`, each named once, as the marked `lanes`, (32, warps of all), release
        them: (warps, places). They do all else later. All lanes of these warps if none are given.
        """
        known = self._clocks[warps]
        times = self._time[warps]
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
        join(self._clocks, warps, known)
        self._least = None
        own = np.unique(warps)
        told = np.zeros((self._own.size, 32), np.int32)
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
        everybody = np.ones(self._block_of_warp.shape, np.bool_)
        if blocks is not None:
            everybody = blocks[self._block_of_warp]
        come = np.flatnonzero(everybody if arrived is None else arrived)
        go = np.flatnonzero(everybody if released is None else released)
        known = np.zeros((self._blocks, self.places), np.int32)
        join(known, self._block_of_warp[come], self.release(come))
        self.acquire(go, known[self._block_of_warp[go]])

    def warp_barrier(self, mask: Mask, alive: AnyArray) -> None:
        """Orders the lanes of each warp in `mask`; those `alive` have not exited. If all of these
        are there, what others did before they exited is ordered, too.
        """
        lanes = np.ones(alive.shape, np.bool_) if mask is None else mask
        warps = np.flatnonzero(lanes.any(axis=0))
        here = lanes[:, warps] | (lanes == alive).all(axis=0)[warps]
        known = self._lanes.release(warps, here, self._time[warps])
        self._lanes.acquire(warps, here, known)
        self._pass_time(warps)

    def _pass_time(self, warps: AnyArray) -> None:
        self._time[warps] += 1
        self._show_time(warps)

    def _show_time(self, warps: AnyArray) -> None:
        self._clocks[warps[:, None], self._places_of(warps)] = self._time[warps][:, None]
        self._least = None

    def _places_of(self, warps: AnyArray) -> AnyArray:
        """Places of the lanes of each warp, (warps, 32)."""
        places: AnyArray = 32 * self._own[warps][:, None] + np.arange(32)
        return places

    def _known_of_all_lanes(self) -> AnyArray:
        """Up to when each warp knows what all lanes of each warp of its cluster have done."""
        if self._least is None:
            each = self._clocks[:, : self.lanes_in_cluster]
            self._least = each.reshape(-1, self._warps, 32).min(axis=2)
        return self._least

    # -- Accesses of threads ----------------------------------------------------------------------

    def read(self, indices: AnyArray, size: int, mask: Mask) -> None:
        """The lanes in `mask` read units of `size` bytes at `indices` (counted in units)."""
        words, threads = self._words(indices, size, mask)
        self._check_written("reads", words, threads, indices, size, mask)
        self._check_reduced("reads", words, threads, indices, size, mask)
        if size < _WORD:
            return
        warps, lanes = np.divmod(threads, 32)
        own, times = self._own[warps], self._time[warps]
        now = self._read[words, own] == times
        before = self._reader[words, own]
        self._read[words, own] = times
        by = np.where(now & (before != lanes), SEVERAL, lanes).astype(np.uint8)
        self._reader[words, own] = by
        lost = self._reader[words, own] != by
        self._reader[words[lost], own[lost]] = SEVERAL

    def write(self, indices: AnyArray, size: int, mask: Mask) -> None:
        """The lanes in `mask` write units of `size` bytes at `indices`."""
        words, threads = self._words(indices, size, mask)
        self._check_written("writes", words, threads, indices, size, mask)
        self._check_reduced("writes", words, threads, indices, size, mask)
        self._check_read("writes", words, threads, indices, size, mask)
        self._unfenced[words] = True
        if size < _WORD:
            return
        own = self._mark_written(words, threads)
        lost = np.not_equal(self._writer[words] // 32, own)
        if lost.any():
            lanes = self._lanes_of(lost, indices, size, mask)
            raise self._race("writes", int(words[lost][0]), "another warp writes at once", lanes)

    def ordered(self, indices: AnyArray, size: int, mask: Mask, *, writes: bool) -> None:
        """A volatile or atomic access: it races with plain ones before it, and leaves no mark for
        those after it.
        """
        words, threads = self._words(indices, size, mask)
        does = "writes" if writes else "reads"
        self._check_written(does, words, threads, indices, size, mask)
        if writes:
            self._check_read(does, words, threads, indices, size, mask)
            self._unfenced[words] = True

    def landed(self, indices: AnyArray, size: int, threads: AnyArray) -> None:
        """Copies by ``cp.async`` to flat `indices` have been waited for by `threads`, the positions
        of those who issued them, lane * warps + warp.
        """
        lanes, warps = np.divmod(threads, self._own.size)
        self._mark_written(*_spread(indices, size, 32 * warps + lanes))

    def begin_reduction(self, indices: AnyArray, size: int, mask: Mask) -> None:
        """The lanes in `mask` tell of atomic updates that are done later."""
        self.ordered(indices, size, mask, writes=True)
        self._reductions.begin(self._words(indices, size, mask)[0])

    def end_reduction(
        self, indices: AnyArray, size: int, places: AnyArray, times: AnyArray
    ) -> None:
        """Reductions of flat `indices` end, in the name of the mbarriers whose place and time stand
        beside each.
        """
        words, places = _spread(indices, size, places)
        _, times = _spread(indices, size, times)
        self._reductions.end(words, places, times)
        self._unfenced[words] = True

    # -- Memory of other blocks of the cluster -----------------------------------------------------

    def visit(self, blocks: AnyArray, warps: AnyArray) -> None:
        """Each of flat `warps` reaches into the memory of the block that stands beside it."""
        away = blocks != self._block_of_warp[warps]
        blocks, warps = blocks[away], warps[away]
        self._visits[blocks, self._own[warps]] = self._time[warps]

    def check_exit(self, blocks: AnyArray) -> None:
        """The marked blocks have exited: some warp of each must have known of all visits."""
        for block in np.flatnonzero(blocks):
            own = self._block_of_warp == block
            known = self._known_of_all_lanes()[own].max(axis=0)
            if (late := self._visits[block] > known).any():
                visitor = self._warp_name(int(late.argmax()))
                raise Fault(
                    f"the block exits, and nothing says that {visitor} no longer reaches into its "
                    "shared memory",
                    np.tile(own, (32, 1)),
                )

    # -- Accesses of asynchronous units -----------------------------------------------------------

    def check_told(self, indices: AnyArray, size: int, warps: AnyArray) -> None:
        """A unit is to work on an mbarrier at flat `indices`: it must know of its making."""
        words, warps = _spread(indices, size, warps)
        self._check_flat("works on", words, warps)
        self._check_fenced("works on", words, warps)

    def fence_proxy(self, mask: Mask, words: AnyArray | None = None) -> None:
        """Make visible to asynchronous units what the warps in `mask` have written or know of, of
        `words` only, if they are given.
        """
        before = None if words is None else self._unfenced.copy()
        present = np.ones(self._block_of_warp.shape, np.bool_) if mask is None else mask.any(axis=0)
        each = self._cluster * self._stride // _WORD
        for warp in np.flatnonzero(present):
            first = int(self._block_of_warp[warp]) // self._cluster * each
            block = slice(first, first + each)
            known = self._written[block] <= self._clocks[warp][self._writer[block]]
            if self._reductions.any:
                known &= ~self._reductions.unknown(block, self._clocks[warp])
            self._unfenced[block] &= ~known
        if before is not None:
            before[words] = self._unfenced[words]
            self._unfenced = before

    def begin_async_read(self, indices: AnyArray, size: int, warps: AnyArray) -> None:
        """A unit reads flat `indices` for the warp that stands beside each."""
        words, warps = _spread(indices, size, warps)
        self._check_flat("reads", words, warps)
        self._check_fenced("reads", words, warps)
        np.add.at(self._async_reads, words, 1)

    def end_async_read(self, indices: AnyArray, size: int, warps: AnyArray) -> None:
        """The same warps have waited for that."""
        words, warps = _spread(indices, size, warps)
        np.subtract.at(self._async_reads, words, 1)
        own = self._own[warps]
        self._read[words, own] = self._time[warps]
        self._reader[words, own] = SEVERAL

    def begin_async_write(self, indices: AnyArray, size: int, warps: AnyArray) -> None:
        """A unit is told to write to flat `indices`."""
        words, warps = _spread(indices, size, warps)
        self._check_flat("writes", words, warps)
        self._check_flat_read(words, warps)
        self._check_fenced("writes", words, warps)

    def end_async_write(
        self,
        indices: AnyArray,
        size: int,
        places: AnyArray,
        times: AnyArray,
        *,
        by_async_unit: bool,
    ) -> None:
        """It has, in the name of the mbarrier whose place and time stand beside each. What is not
        `by_async_unit` is of the generic proxy.
        """
        words, places = _spread(indices, size, places)
        _, times = _spread(indices, size, times)
        self._writer[words], self._written[words] = places, times
        self._unfenced[words] = not by_async_unit

    # -- Inner ------------------------------------------------------------------------------------

    def _words(self, indices: AnyArray, size: int, mask: Mask) -> tuple[AnyArray, AnyArray]:
        """Flat indices of words, and the thread of each: 32 times its warp, and its lane."""
        if mask is None:
            return _spread(indices.ravel(), size, self._threads.ravel())
        return _spread(indices[mask], size, self._threads[mask])

    def _mark_written(self, words: AnyArray, threads: AnyArray) -> AnyArray:
        """The threads write the words now; the numbers of their warps in the cluster."""
        warps, lanes = np.divmod(threads, 32)
        own: AnyArray = self._own[warps]
        self._writer[words], self._written[words] = 32 * own + lanes, self._time[warps]
        return own

    def _check_written(
        self,
        does: str,
        words: AnyArray,
        threads: AnyArray,
        indices: AnyArray,
        size: int,
        mask: Mask,
    ) -> None:
        warps, lanes = np.divmod(threads, 32)
        writer, written = self._writer[words], self._written[words]
        unknown = written > self._clocks[warps, writer]
        if unknown.any():
            word = int(words[unknown][0])
            faulty = self._lanes_of(unknown, indices, size, mask)
            raise self._race(does, word, f"{self._name(word)} wrote", faulty)
        by = writer % 32
        unknown = (writer // 32 == self._own[warps]) & (by != lanes)
        unknown &= self._lanes.unknown(warps, lanes, by, written)
        if unknown.any():
            faulty = self._lanes_of(unknown, indices, size, mask)
            word = int(words[unknown][0])
            raise self._race_in_warp(does, word, f"lane {by[unknown][0]}", "wrote", faulty)

    def _check_read(
        self,
        does: str,
        words: AnyArray,
        threads: AnyArray,
        indices: AnyArray,
        size: int,
        mask: Mask,
    ) -> None:
        busy: AnyArray = self._async_reads[words] > 0
        if busy.any():
            lanes = self._lanes_of(busy, indices, size, mask)
            raise self._still_read(does, int(words[busy][0]), lanes)
        warps, own_lanes = np.divmod(threads, 32)
        if (found := self._unknown_reader(words, warps)) is not None:
            some, reader = found
            lanes = self._lanes_of(some, indices, size, mask)
            raise self._race(does, int(words[some][0]), f"{self._warp_name(reader)} read", lanes)
        if size < _WORD:
            return
        own = self._own[warps]
        by, times = self._reader[words, own], self._read[words, own]
        unknown = (by != own_lanes) & self._lanes.unknown(warps, own_lanes, by, times)
        if unknown.any():
            lanes = self._lanes_of(unknown, indices, size, mask)
            tag = by[unknown][0]
            other = "other lanes" if tag == SEVERAL else f"lane {tag}"
            raise self._race_in_warp(does, int(words[unknown][0]), other, "read", lanes)

    def _unknown_reader(self, words: AnyArray, warps: AnyArray) -> tuple[AnyArray, int] | None:
        """Flags of the words that other warps have read without the warp beside each knowing, and
        the first reader; None if there are none.
        """
        unknown: AnyArray = self._read[words] > self._known_of_all_lanes()[warps]
        if not unknown.any():
            return None
        at, reader = np.nonzero(unknown)
        by = self._reader[words[at], reader].astype(np.int64)
        rows = self._clocks[warps[at][:, None], 32 * reader[:, None] + np.arange(32)]
        one = np.take_along_axis(rows, by[:, None] % 32, axis=1)[:, 0]
        known = np.where(by == SEVERAL, rows.max(axis=1), one)
        unknown[at, reader] = self._read[words[at], reader] > known
        some = np.asarray(unknown.any(axis=1))
        return (some, int(unknown[some][0].argmax())) if some.any() else None

    def _check_reduced(
        self,
        does: str,
        words: AnyArray,
        threads: AnyArray,
        indices: AnyArray,
        size: int,
        mask: Mask,
    ) -> None:
        if self._reductions.any:
            self._check_each_reduced(
                does, words, threads // 32, lambda wrong: self._lanes_of(wrong, indices, size, mask)
            )

    def _check_each_reduced(
        self, does: str, words: AnyArray, warps: AnyArray, lanes: Callable[[AnyArray], AnyArray]
    ) -> None:
        """`lanes` are those of marked words."""
        if (busy := self._reductions.under_way(words)).any():
            offset = int(words[busy][0]) * _WORD % self._stride
            raise Fault(
                f"{does} shared offset {offset}, which an asynchronous reduction is still to "
                "update",
                lanes(busy),
            )
        if (unknown := self._reductions.unknown(words, self._clocks[warps])).any():
            other = "an asynchronous reduction wrote"
            raise self._race(does, int(words[unknown][0]), other, lanes(unknown))

    def _check_flat(self, does: str, words: AnyArray, warps: AnyArray) -> None:
        if self._reductions.any:
            self._check_each_reduced(
                f"asynchronously {does}",
                words,
                warps,
                lambda wrong: self.lanes_of_warp(int(warps[wrong][0])),
            )
        unknown = self._written[words] > self._clocks[warps, self._writer[words]]
        if unknown.any():
            word = int(words[unknown][0])
            lanes = self.lanes_of_warp(int(warps[unknown][0]))
            raise self._race(f"asynchronously {does}", word, f"{self._name(word)} wrote", lanes)

    def _check_flat_read(self, words: AnyArray, warps: AnyArray) -> None:
        if (busy := self._async_reads[words] > 0).any():
            lanes = self.lanes_of_warp(int(warps[busy][0]))
            raise self._still_read("asynchronously writes", int(words[busy][0]), lanes)
        if (found := self._unknown_reader(words, warps)) is not None:
            some, reader = found
            lanes = self.lanes_of_warp(int(warps[some][0]))
            word = int(words[some][0])
            raise self._race(
                "asynchronously writes", word, f"{self._warp_name(reader)} read", lanes
            )

    def _check_fenced(self, does: str, words: AnyArray, warps: AnyArray) -> None:
        if (bare := self._unfenced[words]).any():
            offset = int(words[bare][0]) * _WORD % self._stride
            raise Fault(
                f"asynchronously {does} shared offset {offset}, which was written by ordinary "
                "instructions, without a fence.proxy.async between",
                self.lanes_of_warp(int(warps[bare][0])),
            )

    def _name(self, word: int) -> str:
        place = int(self._writer[word])
        return (
            self._warp_name(place // 32)
            if place < self.lanes_in_cluster
            else "an asynchronous copy"
        )

    def _warp_name(self, number: int) -> str:
        rank, warp = divmod(number, self._warps_in_block)
        return (
            f"warp {warp}" if self._cluster == 1 else f"warp {warp} of the cluster's block {rank}"
        )

    def _race(self, does: str, word: int, other: str, lanes: AnyArray) -> Fault:
        offset = word * _WORD % self._stride
        return Fault(
            f"data race: {does} shared offset {offset}, which {other} without a barrier between",
            lanes,
        )

    def _race_in_warp(self, does: str, word: int, other: str, did: str, lanes: AnyArray) -> Fault:
        offset = word * _WORD % self._stride
        return Fault(
            f"data race: {does} shared offset {offset}, which {other} of the same warp {did} "
            "without a bar.warp.sync between",
            lanes,
        )

    def _still_read(self, does: str, word: int, lanes: AnyArray) -> Fault:
        offset = word * _WORD % self._stride
        return Fault(
            f"{does} shared offset {offset}, which an asynchronous instruction still reads: its "
            "group was not waited for",
            lanes,
        )

    def _lanes_of(self, marked: AnyArray, indices: AnyArray, size: int, mask: Mask) -> AnyArray:
        """Lanes, (32, warps), of which a word is marked."""
        each = np.asarray(marked).reshape(-1, max(size // _WORD, 1)).any(axis=1)
        lanes = np.zeros(indices.shape, np.bool_)
        if mask is None:
            lanes[...] = each.reshape(indices.shape)
        else:
            lanes[mask] = each
        return lanes

    def lanes_of_warp(self, warp: int) -> AnyArray:
        lanes: AnyArray = self.warp_of_lane == warp
        return lanes


def join(clocks: AnyArray, rows: AnyArray, known: AnyArray) -> None:
    """Each of `rows` of `clocks` gets to know what its row of `known` says; rows may come twice."""
    if rows.size:
        order = np.argsort(rows, kind="stable")
        own, first = np.unique(rows[order], return_index=True)
        most = np.maximum.reduceat(known[order], first, axis=0)
        part = clocks[:, : known.shape[1]]
        part[own] = np.maximum(part[own], most)


def _spread(indices: AnyArray, size: int, beside: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Flat indices of units to indices of words, and what stands beside each."""
    if size < _WORD:
        return indices * size // _WORD, beside
    each = size // _WORD
    if each == 1:
        return indices, beside
    words = (indices[:, None] * each + np.arange(each)).ravel()
    return words, np.repeat(beside, each)
