"""Order between the warps of a block in shared memory, where it is made by more than barriers.

Kernels that hand shared memory from warp to warp through mbarriers, or have it read and written by
asynchronous units, order single warps, not the whole block. An access races with an earlier one if
that does not happen before it, by the warps' `Clocks`: its time is later than what the warp's clock
has for the lane that made it, or, within the warp, than what the lane knows of that one.

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
from dataclasses import dataclass
from functools import partial

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.arithmetic.compiled import compiled
from cuevo.sim.faults import Earlier, Fault
from cuevo.sim.memory.clocks import Clocks
from cuevo.sim.memory.lane_order import SEVERAL
from cuevo.sim.memory.loops import order as loops
from cuevo.sim.memory.loops.races import AT_ONCE, RIGHT
from cuevo.sim.memory.races import whole, words_of
from cuevo.sim.memory.reductions import Reductions

_WORD = 4
BULK = 16
"""Bytes of a unit that asynchronous units read."""


@dataclass(frozen=True)
class _Access:
    """Words, and the warp and lane that touch each."""

    does: str
    words: AnyArray
    warps: AnyArray
    lanes: AnyArray
    blame: Callable[[AnyArray], AnyArray]
    """The lanes, (32, warps), whose words are marked."""
    by_unit: bool
    """Whether an asynchronous unit does it, and no lane."""
    whole: bool = True
    """Whether it is of words, not of parts of them."""

    def first(self, marked: AnyArray) -> int:
        """The place of the marked word that the first thread touches."""
        at = np.flatnonzero(marked)
        return int(at[np.lexsort((self.lanes[at], self.warps[at]))[0]])


class HappensBefore:
    """Watches the memory of `blocks` blocks, each with `stride` bytes of storage. The rest is as in
    `Clocks`. It stands in for `Races`.
    """

    def __init__(
        self,
        blocks: int,
        stride: int,
        block_of_warp: AnyArray,
        warp_in_block: AnyArray,
        cluster: int = 1,
    ) -> None:
        self._stride = stride
        self.clocks = clocks = Clocks(blocks, block_of_warp, warp_in_block, cluster)
        self.barrier, self.warp_barrier = clocks.barrier, clocks.warp_barrier
        lanes, warps = np.indices(clocks.warp_of_lane.shape)
        self._all_threads = lanes.ravel(), warps.ravel()
        words = max(blocks * stride // _WORD, 4)
        self._writer = np.zeros(words, np.uint16)
        """Place in the clocks; `_written` is 0 where there is none."""
        self._written = np.zeros(words, np.int32)
        self._read = np.zeros((words, clocks.warps_in_cluster), np.int32)
        self._reader = np.zeros((words, clocks.warps_in_cluster), np.uint8)
        """The lane, or `SEVERAL`, that `_read` is of."""
        self._async_reads = np.zeros(words, np.int16)
        self._unfenced = np.zeros(words, np.bool_)
        self._reductions = Reductions(words, clocks.lanes_in_cluster)
        self._visits = np.zeros((blocks, clocks.warps_in_cluster), np.int32)
        """Time of each warp's last access to the memory of another block of its cluster."""

    def reset(self) -> None:
        """Forget everything."""
        self.clocks.reset()
        # The places of mbarriers go, too.
        self._writer.fill(0)
        self._written.fill(0)
        self._read.fill(0)
        self._async_reads.fill(0)
        self._unfenced.fill(False)
        self._reductions.reset()
        self._visits.fill(0)

    # -- Accesses of threads ----------------------------------------------------------------------

    def quick_read(
        self, state: AnyArray, valid: int, indices: AnyArray, size: int, mask: Mask
    ) -> bool:
        """As `Races.quick_read`."""
        loop = compiled(loops.read_words)
        if loop is None or size < _WORD or self._reductions.any:
            return False
        clocks = self.clocks
        found = loop(
            state, valid, self._writer, self._written, self._read, self._reader, indices,
            size // _WORD, whole(mask, indices), clocks.known, clocks.own, clocks.time, clocks.told,
        )  # fmt: skip
        return bool(found == RIGHT)

    def quick_write(
        self, state: AnyArray, free: int, new_state: int, indices: AnyArray, size: int, mask: Mask
    ) -> bool:
        """As `Races.quick_write`."""
        loop = compiled(loops.write_words)
        if loop is None or size < _WORD or self._reductions.any:
            return False
        clocks = self.clocks
        found = loop(
            state, free, new_state, self._writer, self._written, self._read, self._reader,
            self._async_reads, self._unfenced, indices, size // _WORD, whole(mask, indices),
            clocks.known, clocks.own, clocks.time, clocks.told, clocks.of_all_lanes(),
        )  # fmt: skip
        if found == AT_ONCE:
            # What was marked until then is marked again, or is a fault.
            self._forget(words_of(indices, size, mask))
        return bool(found == RIGHT)

    def quick_begin_async_read(
        self, state: AnyArray, valid: int, units: AnyArray, warps: AnyArray
    ) -> bool:
        """The same of `begin_async_read`."""
        loop = compiled(loops.begin_async_read)
        if loop is None or self._reductions.any:
            return False
        found = loop(
            state, valid, self._writer, self._written, self._async_reads, self._unfenced, units,
            warps, self.clocks.known,
        )  # fmt: skip
        return bool(found == RIGHT)

    def read(self, indices: AnyArray, size: int, mask: Mask) -> None:
        """The lanes in `mask` read units of `size` bytes at `indices` (counted in units)."""
        access = self._of_threads("reads", indices, size, mask)
        self._check_written(access)
        if not access.whole:
            return
        words, warps, lanes = access.words, access.warps, access.lanes
        own, times = self.clocks.own[warps], self.clocks.time[warps]
        now = self._read[words, own] == times
        before = self._reader[words, own]
        self._read[words, own] = times
        by = np.where(now & (before != lanes), SEVERAL, lanes).astype(np.uint8)
        self._reader[words, own] = by
        lost = self._reader[words, own] != by
        self._reader[words[lost], own[lost]] = SEVERAL

    def write(self, indices: AnyArray, size: int, mask: Mask) -> None:
        """The lanes in `mask` write units of `size` bytes at `indices`; as in `Races`."""
        access = self._of_threads("writes", indices, size, mask)
        self._check_written(access)
        self._check_read(access)
        if access.whole:
            words = access.words
            own = self._mark_written(words, access.warps, access.lanes)
            if (lost := np.not_equal(self._writer[words] // 32, own)).any():
                self._forget(words)
                raise self._race(access, lost, "another warp", "writes at once")
        self._unfenced[access.words] = True

    def ordered(self, indices: AnyArray, size: int, mask: Mask, *, writes: bool) -> None:
        """A volatile or atomic access: it races with plain ones before it, and leaves no mark for
        those after it.
        """
        access = self._of_threads("writes" if writes else "reads", indices, size, mask)
        self._check_written(access, atomic=True)
        if writes:
            self._check_read(access)
            self._unfenced[access.words] = True

    def landed(self, indices: AnyArray, size: int, threads: AnyArray) -> None:
        """Copies by ``cp.async`` to flat `indices` have been waited for by `threads`, the positions
        of those who issued them, lane * warps + warp.
        """
        if (loop := compiled(loops.landed)) is not None and size >= _WORD:
            marks, clocks = (self._writer, self._written), self.clocks
            loop(*marks, indices, size // _WORD, threads, clocks.own, clocks.time)
            return
        words, threads = _spread(indices, size, threads)
        lanes, warps = np.divmod(threads, self.clocks.own.size)
        self._mark_written(words, warps, lanes)

    def begin_reduction(self, indices: AnyArray, size: int, mask: Mask) -> None:
        """The lanes in `mask` tell of atomic updates that are done later."""
        self.ordered(indices, size, mask, writes=True)
        self._reductions.begin(self._of_threads("writes", indices, size, mask).words)

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
        away = blocks != self.clocks.block_of_warp[warps]
        blocks, warps = blocks[away], warps[away]
        self._visits[blocks, self.clocks.own[warps]] = self.clocks.time[warps]

    def check_exit(self, blocks: AnyArray) -> None:
        """The marked blocks have exited: some warp of each must have known of all visits."""
        for block in np.flatnonzero(blocks):
            own = self.clocks.block_of_warp == block
            known = self.clocks.of_all_lanes()[own].max(axis=0)
            if (late := self._visits[block] > known).any():
                visitor = self.clocks.warp_name(int(late.argmax()))
                raise Fault(
                    f"the block exits, and nothing says that {visitor} no longer reaches into its "
                    "shared memory",
                    np.tile(own, (32, 1)),
                )

    # -- Accesses of asynchronous units -----------------------------------------------------------

    def check_told(self, indices: AnyArray, size: int, warps: AnyArray) -> None:
        """A unit is to work on an mbarrier at flat `indices`: the warps beside it must know of its
        making, and that of another block's must be fenced. For the block's own no fence is needed:
        units find what a barrier of the block has ordered.
        """
        access = self._of_unit("works on", indices, size, warps)
        self._check_written(access)
        away = access.words * _WORD // self._stride != self.clocks.block_of_warp[access.warps]
        self._check_fenced(access, away)

    def fence_proxy(self, mask: Mask, words: AnyArray | None = None) -> None:
        """Make visible to asynchronous units what the warps in `mask` have written or know of, of
        `words` only, if they are given.
        """
        clocks, loop = self.clocks, compiled(loops.fence)
        before = None if words is None else self._unfenced.copy()
        present = np.ones(clocks.own.shape, np.bool_) if mask is None else mask.any(axis=0)
        warps, each = np.flatnonzero(present), clocks.cluster * self._stride // _WORD
        begin = clocks.block_of_warp[warps] // clocks.cluster * each
        if loop is not None and not self._reductions.any:
            marks = self._unfenced, self._writer, self._written
            loop(*marks, clocks.known, begin, each, warps)
        else:
            for warp, first in zip(warps, begin, strict=True):
                self._fence(slice(first, first + each), clocks.known[warp])
        if before is not None:
            before[words] = self._unfenced[words]
            self._unfenced = before

    def begin_async_read(self, units: AnyArray, warps: AnyArray) -> None:
        """A unit reads flat `units` of `BULK` bytes for the warp that stands beside each."""
        access = self._of_unit("reads", units, BULK, warps)
        self._check_written(access)
        self._check_fenced(access)
        np.add.at(self._async_reads, access.words, 1)

    def end_async_read(self, units: AnyArray, warps: AnyArray) -> None:
        """The same warps have waited for that."""
        if (loop := compiled(loops.end_async_read)) is not None:
            marks = self._read, self._reader, self._async_reads
            loop(*marks, units, warps, self.clocks.own, self.clocks.time)
            return
        words, warps = _spread(units, BULK, warps)
        np.subtract.at(self._async_reads, words, 1)
        own = self.clocks.own[warps]
        self._read[words, own] = self.clocks.time[warps]
        self._reader[words, own] = SEVERAL

    def begin_async_write(self, indices: AnyArray, size: int, warps: AnyArray) -> None:
        """A unit is told to write to flat `indices`."""
        access = self._of_unit("writes", indices, size, warps)
        self._check_written(access)
        self._check_read(access)
        self._check_fenced(access)

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

    def _of_threads(self, does: str, indices: AnyArray, size: int, mask: Mask) -> _Access:
        if mask is None:
            flat, (lanes, warps) = indices.ravel(), self._all_threads
        else:
            flat, (lanes, warps) = indices[mask], np.nonzero(mask)
        words, warps = _spread(flat, size, warps)
        _, lanes = _spread(flat, size, lanes)
        blame = partial(_lanes_of, size=size, shape=indices.shape, mask=mask)
        return _Access(does, words, warps, lanes, blame, by_unit=False, whole=size >= _WORD)

    def _of_unit(self, does: str, indices: AnyArray, size: int, warps: AnyArray) -> _Access:
        words, warps = _spread(indices, size, warps)
        return _Access(
            f"asynchronously {does}",
            words,
            warps,
            np.zeros_like(warps),
            lambda marked: self.clocks.lanes_of_warp(int(warps[marked][0])),
            by_unit=True,
        )

    def _fence(self, block: slice, told: AnyArray) -> None:
        """What is `told` of the words of a block is visible to asynchronous units."""
        known = self._written[block] <= told[self._writer[block]]
        if self._reductions.any:
            known &= ~self._reductions.unknown(block, told)
        self._unfenced[block] &= ~known

    def _mark_written(self, words: AnyArray, warps: AnyArray, lanes: AnyArray) -> AnyArray:
        """The threads write the words now; the numbers of their warps in the cluster."""
        own: AnyArray = self.clocks.own[warps]
        self._writer[words], self._written[words] = 32 * own + lanes, self.clocks.time[warps]
        return own

    def _forget(self, words: AnyArray) -> None:
        """Nobody is known to have written the words."""
        self._writer[words], self._written[words] = 0, 0

    def _check_written(self, access: _Access, *, atomic: bool = False) -> None:
        """All writes must be known, but those of reductions to what is `atomic`, too."""
        words, warps, clocks = access.words, access.warps, self.clocks
        writer, written = self._writer[words], self._written[words]
        unknown = written > clocks.known[warps, writer]
        if unknown.any():
            place = int(writer[access.first(unknown)])
            raise self._race(access, unknown, clocks.place_name(place), "wrote", place)
        if not access.by_unit:
            by = writer % 32
            unknown = (writer // 32 == clocks.own[warps]) & (by != access.lanes)
            unknown &= clocks.unknown_in_warp(warps, access.lanes, by, written)
            if unknown.any():
                lane = int(by[access.first(unknown)])
                raise self._race_in_warp(access, unknown, lane, "wrote")
        if not self._reductions.any or atomic:
            return
        if (busy := self._reductions.under_way(words)).any():
            what = "which an asynchronous reduction is still to update"
            raise self._fault(access, busy, what, "wrote")
        if (unknown := self._reductions.unknown(words, clocks.known[warps])).any():
            raise self._race(access, unknown, "an asynchronous reduction", "wrote")

    def _check_read(self, access: _Access) -> None:
        words, warps, clocks = access.words, access.warps, self.clocks
        if (busy := self._async_reads[words] > 0).any():
            what = "which an asynchronous instruction still reads: its group was not waited for"
            raise self._fault(access, busy, what, "read")
        unknown: AnyArray = self._read[words] > clocks.of_all_lanes()[warps]
        if unknown.any():
            at, reader = np.nonzero(unknown)
            by = self._reader[words[at], reader].astype(np.int64)
            known = clocks.of_readers(warps[at], reader, by)
            unknown[at, reader] = self._read[words[at], reader] > known
            some = np.asarray(unknown.any(axis=1))
            if some.any():
                number = int(unknown[access.first(some)].argmax())
                raise self._race(access, some, clocks.warp_name(number), "read", 32 * number)
        if access.by_unit or not access.whole:
            return
        own = clocks.own[warps]
        by, times = self._reader[words, own], self._read[words, own]
        unknown = (by != access.lanes) & clocks.unknown_in_warp(warps, access.lanes, by, times)
        if unknown.any():
            raise self._race_in_warp(access, unknown, int(by[access.first(unknown)]), "read")

    def _check_fenced(self, access: _Access, where: AnyArray | bool = True) -> None:
        if (bare := self._unfenced[access.words] & where).any():
            what = "which was written by ordinary instructions, without a fence.proxy.async between"
            raise self._fault(access, bare, what, "wrote")

    def _fault(
        self,
        access: _Access,
        marked: AnyArray,
        what: str,
        did: str,
        by: AnyArray | None = None,
        kind: str = "",
    ) -> Fault:
        """`what` says what was done before to the first of the `marked` words; the rest is as in
        `Earlier`.
        """
        position = int(access.words[access.first(marked)]) * _WORD
        message = f"{kind}{access.does} shared offset {position % self._stride}, {what}"
        return Fault(message, access.blame(marked), Earlier(did, position, _WORD, by))

    def _race(
        self, access: _Access, marked: AnyArray, other: str, did: str, place: int | None = None
    ) -> Fault:
        """A race with what `other` did, whose place in the clocks is given if it is one."""
        clocks, by = self.clocks, None
        if place is not None and place < clocks.lanes_in_cluster:
            cluster = clocks.block_of_warp // clocks.cluster
            mine = cluster == cluster[int(access.warps[access.first(marked)])]
            by = np.tile(mine & (clocks.own == place // 32), (32, 1))
            if did == "wrote":
                by &= (np.arange(32) == place % 32)[:, None]
        what = f"which {other} {did} without a barrier between"
        return self._fault(access, marked, what, did, by, "data race: ")

    def _race_in_warp(self, access: _Access, marked: AnyArray, lane: int, did: str) -> Fault:
        other = "other lanes" if lane == SEVERAL else f"lane {lane}"
        what = f"which {other} of the same warp {did} without a bar.warp.sync between"
        first = access.first(marked)
        by = self.clocks.lanes_of_warp(int(access.warps[first]))
        lanes = np.arange(32)[:, None]
        by &= lanes != access.lanes[first] if lane == SEVERAL else lanes == lane
        return self._fault(access, marked, what, did, by, "data race: ")


def _lanes_of(marked: AnyArray, size: int, shape: tuple[int, int], mask: Mask) -> AnyArray:
    """Lanes of which a word is marked."""
    each = np.asarray(marked).reshape(-1, max(size // _WORD, 1)).any(axis=1)
    lanes = np.zeros(shape, np.bool_)
    if mask is None:
        lanes[...] = each.reshape(shape)
    else:
        lanes[mask] = each
    return lanes


def _spread(indices: AnyArray, size: int, beside: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Flat indices of units to indices of words, and what stands beside each."""
    if size < _WORD:
        return indices * size // _WORD, beside
    each = size // _WORD
    if each == 1:
        return indices, beside
    words = (indices[:, None] * each + np.arange(each)).ravel()
    return words, np.repeat(beside, each)
