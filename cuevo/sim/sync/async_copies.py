"""Bulk copies, asynchronous stores and other work that is done later for a chunk of blocks.

Asynchronous units work as late as the PTX ISA allows: when no lane can go on without them, or when
their work is waited for. Global memory is read when a copy is issued, and shared memory too, which
must not be written until the copy has been waited for.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.faults import Fault
from cuevo.sim.memory.clocks import Clocks
from cuevo.sim.memory.shared_memory import SharedMemory
from cuevo.sim.sync.copy_groups import Copies
from cuevo.sim.sync.mbarriers import Mbarriers


@dataclass
class _Load:
    """A copy to shared memory, which an mbarrier counts."""

    units: AnyArray
    values: AnyArray
    slot: int
    warp: int
    reads: AnyArray | None
    """Units of shared memory that it comes from."""


@dataclass
class _Arrival:
    """Arrivals of threads at mbarriers when their ``cp.async`` so far have landed; flat."""

    slots: AnyArray
    known: AnyArray
    lanes: AnyArray
    issued: int
    """Number of copies issued before."""


@dataclass(eq=False)
class _Store:
    """A copy out of shared memory, which its thread waits for in groups."""

    units: AnyArray
    thread: tuple[int, int]
    """Lane and warp."""
    group: int
    finish: Callable[[], None]
    reads: bool = True
    """Whether it still counts as reading shared memory."""


@dataclass
class _Put:
    """Stores of lanes to shared memory, which mbarriers count; flat."""

    indices: AnyArray
    size: int
    slots: AnyArray
    lanes: AnyArray
    land: Callable[[AnyArray, AnyArray], None]


class AsyncCopies:
    """Asynchronous copies and stores in flight; `shape` is (32, warps)."""

    def __init__(
        self,
        shape: tuple[int, int],
        shared: SharedMemory,
        clocks: Clocks,
        mbarriers: Mbarriers,
        copies: Copies,
    ) -> None:
        self._shared, self._clocks = shared, clocks
        self._mbarriers, self._copies = mbarriers, copies
        self._group = np.zeros(shape, np.int64)
        self._under_way: list[_Load | _Arrival | _Put] = []
        self._stores: list[_Store] = []

    def reset(self) -> None:
        self._group.fill(0)
        self._under_way.clear()
        self._stores.clear()

    # -- Telling ----------------------------------------------------------------------------------

    def load(
        self,
        units: AnyArray,
        values: AnyArray,
        slot: int,
        warp: int,
        reads: AnyArray | None = None,
    ) -> None:
        """Flat `units` of 16 bytes of shared memory are to become `values`, issued by `warp`;
        then the mbarrier `slot` counts their bytes, and the units `reads` are no longer read.
        """
        self._shared.begin_bulk_write(units, np.full(units.shape, warp))
        self._under_way.append(_Load(units, values, slot, warp, reads))

    def put(
        self,
        indices: AnyArray,
        size: int,
        slots: AnyArray,
        lanes: AnyArray,
        land: Callable[[AnyArray, AnyArray], None],
    ) -> None:
        """The marked lanes store to flat units of `size` bytes, warp by warp. When that comes,
        `land` gets place and time of the write for each unit, and the mbarriers `slots` count it.
        """
        self._under_way.append(_Put(indices, size, slots, lanes.copy(), land))

    def arrive_after(self, slots: AnyArray, lanes: AnyArray) -> None:
        """The threads in `lanes` arrive at `slots` when their ``cp.async`` so far have landed."""
        warps, each = np.unique(self._clocks.warp_of_lane[lanes], return_inverse=True)
        known = self._clocks.release(warps, lanes)[each]
        self._under_way.append(_Arrival(slots[lanes], known, lanes.copy(), self._copies.issued))

    def store(
        self, units: AnyArray, thread: tuple[int, int], finish: Callable[[AnyArray], None]
    ) -> None:
        """Flat `units` of shared memory are read for a thread; `finish` gets them in the end."""
        warps = np.full(units.shape, thread[1])
        values = self._shared.begin_async_read(units, warps)
        group = int(self._group[thread])
        self._stores.append(_Store(units, thread, group, lambda: finish(values)))

    def commit(self, mask: Mask) -> None:
        np.add(self._group, 1, out=self._group, where=True if mask is None else mask)

    # -- Doing ------------------------------------------------------------------------------------

    def wait(self, pending: int, mask: Mask, *, reads_only: bool) -> None:
        """All but the last `pending` groups of the lanes in `mask` are done, or have at least read
        what they copy.
        """
        for store in list(self._stores):
            waits = mask is None or bool(mask[store.thread])
            if not waits or store.group >= self._group[store.thread] - pending:
                continue
            self._stop_reading(store)
            if not reads_only:
                store.finish()
                self._stores.remove(store)

    def deliver(self) -> bool:
        """Finish what was told to come to shared memory; whether there was anything."""
        under_way, self._under_way = self._under_way, []
        for each in under_way:
            if isinstance(each, _Load):
                slots = np.full(each.units.shape, each.slot)
                self._shared.end_bulk_write(
                    each.units, each.values, *self._mbarriers.knowledge(slots)
                )
                if each.reads is not None:
                    warps = np.full(each.reads.shape, each.warp)
                    self._shared.end_async_read(each.reads, warps)
                count = np.array([16 * each.units.size])
                self._mbarriers.deliver(slots[:1], count, self._clocks.lanes_of_warp(each.warp))
            elif isinstance(each, _Put):
                each.land(*self._mbarriers.knowledge(each.slots))
                count = np.full(each.slots.shape, each.size)
                self._mbarriers.deliver(each.slots, count, each.lanes)
            else:
                places, times = self._mbarriers.knowledge(each.slots)
                self._copies.land(self._shared, each.lanes, places, times, each.issued)
                self._mbarriers.arrive_later(each.slots, each.known, each.lanes)
        return bool(under_way)

    def check_exit(self, blocks: AnyArray) -> None:
        """The marked blocks have exited: nothing may be on its way to their shared memory, or read
        it.
        """
        for each in self._under_way:
            if isinstance(each, _Put):
                self._check_put(each, blocks)
            if not isinstance(each, _Load):
                continue
            if self._of_blocks(each.units, blocks):
                raise Fault(
                    "the block exits while an asynchronous copy to its shared memory is under way",
                    self._clocks.lanes_of_warp(each.warp),
                )
            if each.reads is not None and self._of_blocks(each.reads, blocks):
                raise Fault(
                    "the block exits while an asynchronous copy still reads its shared memory",
                    self._clocks.lanes_of_warp(each.warp),
                )
        for store in self._stores:
            if store.reads and self._of_blocks(store.units, blocks):
                raise Fault(
                    "the block exits while an asynchronous copy still reads its shared memory: "
                    "cp.async.bulk.wait_group.read is missing",
                    self._clocks.lanes_of_warp(store.thread[1]),
                )

    def _check_put(self, put: _Put, blocks: AnyArray) -> None:
        there = blocks[put.indices * put.size // self._shared.stride]
        if there.any():
            lanes = np.zeros_like(put.lanes)
            lanes.T[put.lanes.T] = there
            raise Fault(
                "the block exits while an asynchronous store to its shared memory is under way",
                lanes,
            )

    def finish(self) -> None:
        """All threads have exited: what was stored gets to global memory."""
        for store in self._stores:
            store.finish()

    def _stop_reading(self, store: _Store) -> None:
        if store.reads:
            store.reads = False
            self._shared.end_async_read(store.units, np.full(store.units.shape, store.thread[1]))

    def _of_blocks(self, units: AnyArray, blocks: AnyArray) -> bool:
        """Whether the units, which are of one block, are of one of the marked ones."""
        return bool(blocks[self._shared.block_of(int(units[0]), 16)])
