"""Shared memory of the threadblocks of a chunk, with the state of every byte."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.faults import Earlier, Fault, first_thread
from cuevo.sim.memory.global_memory import unit_dtype
from cuevo.sim.memory.happens_before import BULK, HappensBefore
from cuevo.sim.memory.loops.races import BYTES
from cuevo.sim.memory.races import Races, Unwatched

WINDOW = 1024
"""Shared address of the first byte. Not 0, so that a null pointer is caught (hardware keeps the
first KB, too).
"""

RANK = 24
"""The bit of a shared address from which on it says which block of the cluster it is of: also of
addresses in the own block. Hopper has it so, as kernels find that put addresses into descriptors.
"""
_LOW = 2**RANK - 1

_NEVER, _VALID, _IN_FLIGHT, _MBARRIER = 0, 1, 2, 3
_UNITS = (1, 2, 4, 8, 16)


Observe: TypeAlias = Callable[[str, AnyArray, int, Mask, AnyArray | None], None]
"""Called before each access with "wrote" or "read", the indices of its units, their size, and the
lanes; for an asynchronous one with flat indices, and the warps that stand beside them.
"""


class SharedMemory:
    """`size` bytes for each of `blocks` threadblocks, whose warps are numbered by the two arrays.

    Units of 1 to 16 bytes are addressed by indices, which `indices` makes out of checked addresses.
    Each `cluster` of blocks may reach the memory of all of its blocks.
    """

    def __init__(
        self,
        blocks: int,
        size: int,
        block_of_warp: AnyArray,
        warp_in_block: AnyArray,
        races: type[Races | HappensBefore] = Races,
        cluster: int = 1,
    ) -> None:
        self.size = size
        self.stride = -(-size // 16) * 16
        """Bytes of storage from block to block."""
        raw = np.zeros(max(blocks * self.stride, 16), np.uint8)
        self._raw_state = np.zeros_like(raw)
        self._data = {unit: raw.view(unit_dtype(unit)) for unit in _UNITS}
        self._state = {unit: self._raw_state.view(unit_dtype(unit)) for unit in _UNITS}
        # What turns a warp's shared addresses into offsets in the storage of all blocks.
        self._base = (block_of_warp.astype(np.int64) * self.stride - WINDOW)[None, :]
        self._rank = block_of_warp % cluster
        self.window: AnyArray = (self._rank.astype(np.int64) << RANK)[None, :]
        """Common upper bits of the shared addresses of each warp's own block, (1, warps)."""
        self.cluster = cluster
        if races is HappensBefore:
            self.races: Races | HappensBefore = HappensBefore(
                blocks, self.stride, block_of_warp, warp_in_block, cluster
            )
        else:
            assert issubclass(races, Races)
            self.races = races(blocks, self.stride, block_of_warp, warp_in_block)
        self._states_count = races is not Unwatched
        """Whether it is looked at what was written, and what is in flight."""
        self.watch: Callable[[AnyArray, int, Mask], None] | None = None
        """Called with the checked addresses of each access, its size and its lanes."""
        self.observe: Observe | None = None

    def units(self, size: int) -> int:
        """Number of units of `size` bytes of all blocks."""
        return int(self._data[size].size)

    def block_of(self, index: int, size: int) -> int:
        """The block of a unit, counted from the chunk's first."""
        return index * size // self.stride

    def offset_of(self, index: int, size: int) -> int:
        """Offset of the unit in its block's memory."""
        return index * size % self.stride

    def reset(self) -> None:
        """Forget everything that was written."""
        self._raw_state.fill(_NEVER)
        self.races.reset()

    def indices(self, addresses: AnyArray, size: int, mask: Mask) -> AnyArray:
        """Indices of units of `size` bytes at checked shared addresses (uint32 or uint64).

        Raises Fault for an address that is misaligned or outside of the block's memory. Lanes
        outside of `mask` get some index.
        """
        if self.cluster > 1:
            addresses = addresses.astype(np.int64) - self.window
        return self._within(addresses, size, mask)

    def _within(self, addresses: AnyArray, size: int, mask: Mask) -> AnyArray:
        """The same for addresses without a rank."""
        if mask is not None:
            addresses = np.where(mask, addresses, addresses.ravel()[mask.argmax()])
        if size > 1 and int(np.bitwise_or.reduce(addresses, axis=None)) & (size - 1):
            lanes = (addresses & addresses.dtype.type(size - 1)) != 0
            first = int(addresses[first_thread(lanes)])
            raise Fault(f"misaligned shared access: {first:#x} is no multiple of {size}", lanes)
        end = WINDOW + self.size
        if int(addresses.min()) < WINDOW or int(addresses.max()) + size > end:
            lanes = (addresses < WINDOW) | (addresses > max(end - size, 0))
            first = int(addresses[first_thread(lanes)])
            raise Fault(
                f"shared access of {size} bytes at offset {first - WINDOW} is outside of the "
                f"block's {self.size} bytes",
                lanes,
            )
        if self.watch is not None:
            self.watch(addresses, size, mask)
        offsets: AnyArray = np.add(addresses, self._base, dtype=np.int64, casting="unsafe")
        return offsets if size == 1 else offsets >> (size.bit_length() - 1)

    def cluster_indices(self, addresses: AnyArray, size: int, mask: Mask) -> AnyArray:
        """The same for addresses that may be of another block of the cluster."""
        ranks = (addresses >> addresses.dtype.type(RANK)).astype(np.int64)
        beyond = ranks >= self.cluster
        if (wrong := beyond if mask is None else beyond & mask).any():
            rank = int(ranks[wrong][0])
            message = f"a shared address of block {rank} of a cluster of {self.cluster}"
            raise Fault(message, wrong)
        own = self._within(addresses & addresses.dtype.type(_LOW), size, mask)
        blocks_on = ranks - self._rank
        if mask is not None:
            blocks_on = np.where(mask, blocks_on, 0)
        found: AnyArray = own + blocks_on * (self.stride // size)
        return found

    def in_block_of_rank(self, index: int, size: int, rank: int) -> int:
        """The unit at the same place in the memory of the block of that rank in the cluster."""
        own = self.block_of(index, size) % self.cluster
        return index + (rank - own) * (self.stride // size)

    def load(self, indices: AnyArray, size: int, mask: Mask, *, ordered: bool = False) -> AnyArray:
        """The units at `indices`; each byte must have been written, and no copy to it be in flight.

        An `ordered` access (volatile, relaxed, atomic) races with none of its kind.
        """
        if self.observe is not None:
            self.observe("read", indices, size, mask, None)
        if not self._states_count:
            return self._data[size].take(indices)
        if ordered:
            self._check_valid(indices, size, mask)
            self.races.ordered(indices, size, mask, writes=False)
        elif not self.races.quick_read(self._state[4], _VALID * BYTES, indices, size, mask):
            self._check_valid(indices, size, mask)
            self.races.read(indices, size, mask)
        return self._data[size].take(indices)

    def store(
        self,
        indices: AnyArray,
        size: int,
        values: AnyArray,
        mask: Mask,
        *,
        ordered: bool = False,
    ) -> None:
        """Write units; none of their bytes may have a copy in flight."""
        if self.observe is not None:
            self.observe("wrote", indices, size, mask, None)
        if ordered:
            self._check_free(indices, size, mask)
            self.races.ordered(indices, size, mask, writes=True)
            self._mark(indices, size, mask, _VALID)
        else:
            self._begin_write(indices, size, mask, _VALID, values)
        self._put(indices, size, values, mask)

    def begin_copy(self, indices: AnyArray, size: int, values: AnyArray, mask: Mask) -> None:
        """Start asynchronous copies: the data is there, but not to be touched before `end_copy`."""
        if self.observe is not None:
            self.observe("wrote", indices, size, mask, None)
        self._begin_write(indices, size, mask, _IN_FLIGHT)
        self._put(indices, size, values, mask)

    def end_copy(self, indices: AnyArray, size: int, threads: AnyArray) -> None:
        """Copies to flat `indices` are waited for; `threads` as `Races.landed` has them."""
        if not self._states_count:
            return
        self._state[size][indices] = _unit(size, _VALID)
        self.races.landed(indices, size, threads)

    def end_copy_by_mbarrier(
        self, indices: AnyArray, size: int, places: AnyArray, times: AnyArray
    ) -> None:
        """The same of copies that an mbarrier waits for; place and time as in `HappensBefore`."""
        self._state[size][indices] = _unit(size, _VALID)
        self._happens_before.end_async_write(indices, size, places, times, by_async_unit=False)

    def begin_reduction(self, indices: AnyArray, size: int, mask: Mask) -> None:
        """Start asynchronous atomic updates of units, each byte of which must have been written."""
        if self.observe is not None:
            self.observe("wrote", indices, size, mask, None)
        self._check_valid(indices, size, mask)
        self._happens_before.begin_reduction(indices, size, mask)

    def end_reduction(
        self,
        indices: AnyArray,
        size: int,
        combine: Callable[[AnyArray], None],
        places: AnyArray,
        times: AnyArray,
    ) -> None:
        """`combine` makes those of flat `indices`, given all units; place and time as above."""
        combine(self._data[size])
        self._happens_before.end_reduction(indices, size, places, times)

    # -- Memory of asynchronous units, in kernels that `HappensBefore` watches ---------------------

    def begin_bulk_write(self, units: AnyArray, warps: AnyArray) -> None:
        """Copies to flat `units` of 16 bytes begin, issued by the warps that stand beside them:
        until `end_bulk_write` they must not be touched.
        """
        if self.observe is not None:
            self.observe("wrote", units, BULK, None, warps)
        self._check_units_free(units, "write", warps)
        self._happens_before.begin_async_write(units, BULK, warps)
        self._state[BULK][units] = _unit(BULK, _IN_FLIGHT)

    def end_bulk_write(
        self, units: AnyArray, values: AnyArray, places: AnyArray, times: AnyArray
    ) -> None:
        """Their data is there; place and time as `HappensBefore.end_async_write` has them."""
        self._data[BULK][units] = values
        self._state[BULK][units] = _unit(BULK, _VALID)
        self._happens_before.end_async_write(units, BULK, places, times, by_async_unit=True)

    def begin_async_read(self, units: AnyArray, warps: AnyArray) -> AnyArray:
        """The flat `units` of 16 bytes, read by an asynchronous unit for the warps that stand
        beside them: until `end_async_read` they must not be written.
        """
        if self.observe is not None:
            self.observe("read", units, BULK, None, warps)
        order, words = self._happens_before, self._state[4]
        if not order.quick_begin_async_read(words, _VALID * BYTES, units, warps):
            state = self._state[BULK].take(units).view(np.uint8)
            if int(state.min()) != _VALID or int(state.max()) != _VALID:
                wrong = (state.reshape(-1, BULK) != _VALID).any(axis=1)
                raise self._unit_refusal("asynchronous read", units[wrong], warps[wrong])
            order.begin_async_read(units, warps)
        return self._data[BULK].take(units)

    def end_async_read(self, units: AnyArray, warps: AnyArray) -> None:
        """The same units were waited for."""
        self._happens_before.end_async_read(units, warps)

    def make_mbarrier(self, indices: AnyArray, mask: Mask) -> None:
        """Units of 8 bytes become mbarriers: no ordinary access is to touch them."""
        if self.observe is not None:
            self.observe("wrote", indices, 8, mask, None)
        self.races.write(indices, 8, mask)
        self._mark(indices, 8, mask, _MBARRIER)

    def free_mbarrier(self, indices: AnyArray, mask: Mask) -> None:
        """Make them ordinary memory again, of which nothing was written."""
        self.races.write(indices, 8, mask)
        self._mark(indices, 8, mask, _NEVER)

    @property
    def _happens_before(self) -> HappensBefore:
        assert isinstance(self.races, HappensBefore)
        return self.races

    def _check_units_free(self, units: AnyArray, verb: str, warps: AnyArray) -> None:
        state = self._state[BULK].take(units).view(np.uint8).reshape(-1, BULK)
        if int(state.max()) > _VALID:
            wrong = (state > _VALID).any(axis=1)
            raise self._unit_refusal(f"asynchronous {verb}", units[wrong], warps[wrong])

    def _unit_refusal(self, what: str, units: AnyArray, warps: AnyArray) -> Fault:
        position = int(units[0]) * BULK
        reason = self._reason(position, BULK)
        lanes = np.zeros((32, self._base.shape[1]), np.bool_)
        lanes[:, int(warps[0])] = True
        where = f"{what} at shared offset {position % self.stride}"
        return Fault(f"{where}, {reason}", lanes, self._copied(position, BULK))

    # -- Inner ------------------------------------------------------------------------------------

    def _begin_write(
        self,
        indices: AnyArray,
        size: int,
        mask: Mask,
        state: int,
        values: AnyArray | None = None,
    ) -> None:
        """Units become of that state, if they may be written. Lanes whose `values` are those of
        others need not be told of each other: compilers have several do the same.
        """
        if not self._states_count:
            return
        words, new = self._state[4], state * BYTES
        if not self.races.quick_write(words, _VALID * BYTES, new, indices, size, mask):
            self._check_free(indices, size, mask)
            try:
                self.races.write(indices, size, mask)
            except Fault as fault:
                if values is None or not _threads_wrote(fault.earlier):
                    raise
                if (few := self._changing(indices, size, values, mask)) is None:
                    raise
                if few.any():
                    self.races.write(indices, size, few)
            self._mark(indices, size, mask, state)

    def _changing(
        self, indices: AnyArray, size: int, values: AnyArray, mask: Mask
    ) -> AnyArray | None:
        """The lanes in `mask` that write what neither is there nor is written by another of them at
        once; None if these are all.
        """
        lanes = np.ones(indices.shape, np.bool_) if mask is None else mask
        units = indices[lanes]
        given = _bytes_of(np.broadcast_to(values, indices.shape)[lanes], size)
        _, first, which = np.unique(units, return_index=True, return_inverse=True)
        earlier = first[which]
        vain = (given == given[earlier]).all(axis=1) & (earlier != np.arange(units.size))
        state = _bytes_of(self._state[size][units], size)
        there = (given == _bytes_of(self._data[size][units], size)) & (state == _VALID)
        vain |= there.all(axis=1)
        if not vain.any():
            return None
        few = lanes.copy()
        few[lanes] = ~vain
        return few

    def _put(self, indices: AnyArray, size: int, values: AnyArray, mask: Mask) -> None:
        self._data[size][indices if mask is None else indices[mask]] = (
            values if mask is None else values[mask]
        )

    def _mark(self, indices: AnyArray, size: int, mask: Mask, state: int) -> None:
        if not self._states_count:
            return
        self._state[size][indices if mask is None else indices[mask]] = _unit(size, state)

    def _check_valid(self, indices: AnyArray, size: int, mask: Mask) -> None:
        state = self._state[size].take(indices).view(np.uint8)
        if int(state.min()) != _VALID or int(state.max()) != _VALID:
            lanes = (state.reshape(*indices.shape, size) != _VALID).any(axis=-1)
            lanes = lanes if mask is None else lanes & mask
            if lanes.any():
                raise self._refusal("read", indices, size, lanes)

    def _check_free(self, indices: AnyArray, size: int, mask: Mask) -> None:
        if not self._states_count:
            return
        state = self._state[size].take(indices).view(np.uint8)
        if int(state.max()) > _VALID:
            taken = state.reshape(*indices.shape, size) > _VALID
            lanes = np.asarray(taken.any(axis=-1))
            lanes = lanes if mask is None else lanes & mask
            if lanes.any():
                raise self._refusal("write", indices, size, lanes)

    def _refusal(self, verb: str, indices: AnyArray, size: int, lanes: AnyArray) -> Fault:
        position = int(indices[first_thread(lanes)]) * size
        where = f"{verb} of {size} bytes at shared offset {position % self.stride}"
        return Fault(
            f"{where}, {self._reason(position, size)}", lanes, self._copied(position, size)
        )

    def _copied(self, position: int, size: int) -> Earlier | None:
        """The copy that is in flight to these bytes."""
        in_flight = self._raw_state[position : position + size] == _IN_FLIGHT
        if not in_flight.any():
            return None
        return Earlier("wrote", position + int(in_flight.argmax()), 1)

    def _reason(self, position: int, size: int) -> str:
        states = self._raw_state[position : position + size]
        if (states == _IN_FLIGHT).any():
            return "to which an asynchronous copy is still in flight"
        return (
            "where an mbarrier is" if (states == _MBARRIER).any() else "where nothing was written"
        )


def _threads_wrote(earlier: Earlier | None) -> bool:
    """Whether a race is one with writes of threads; at once with them, `did` says "writes"."""
    if earlier is None or earlier.did == "read":
        return False
    return earlier.did != "wrote" or earlier.by is not None


def _bytes_of(units: AnyArray, size: int) -> AnyArray:
    """(units, bytes)."""
    return units.view(np.uint8).reshape(-1, size)


def _unit(size: int, state: int) -> AnyArray:
    """A unit of `size` bytes that are all in one state."""
    return np.full(size, state, np.uint8).view(unit_dtype(size))
