"""Shared memory of the threadblocks of a chunk, with the state of every byte."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.faults import Fault
from cuevo.sim.global_memory import unit_dtype
from cuevo.sim.races import Races

WINDOW = 1024
"""Shared address of the first byte. Not 0, so that a null pointer is caught (hardware keeps the
first KB, too).
"""

_NEVER, _VALID, _IN_FLIGHT = 0, 1, 2
_UNITS = (1, 2, 4, 8, 16)


class SharedMemory:
    """`size` bytes for each of `blocks` threadblocks, whose warps are numbered by the two arrays.

    Units of 1 to 16 bytes are addressed by indices, which `indices` makes out of checked addresses.
    """

    def __init__(
        self, blocks: int, size: int, block_of_warp: AnyArray, warp_in_block: AnyArray
    ) -> None:
        self.size = size
        self._stride = -(-size // 16) * 16
        raw = np.zeros(max(blocks * self._stride, 16), np.uint8)
        self._raw_state = np.zeros_like(raw)
        self._data = {unit: raw.view(unit_dtype(unit)) for unit in _UNITS}
        self._state = {unit: self._raw_state.view(unit_dtype(unit)) for unit in _UNITS}
        # What turns a warp's shared addresses into offsets in the storage of all blocks.
        self._base = (block_of_warp.astype(np.int64) * self._stride - WINDOW)[None, :]
        self.races = Races(blocks, self._stride, block_of_warp, warp_in_block)
        self.watch: Callable[[AnyArray, int, Mask], None] | None = None
        """Called with the checked addresses of each access, its size and its lanes."""

    def reset(self) -> None:
        """Forget everything that was written."""
        self._raw_state.fill(_NEVER)
        self.races.barrier(None)

    def indices(self, addresses: AnyArray, size: int, mask: Mask) -> AnyArray:
        """Indices of units of `size` bytes at checked shared addresses (uint32 or uint64).

        Raises Fault for an address that is misaligned or outside of the block's memory. Lanes
        outside of `mask` get some index.
        """
        if mask is not None:
            addresses = np.where(mask, addresses, addresses.ravel()[mask.argmax()])
        if size > 1 and int(np.bitwise_or.reduce(addresses, axis=None)) & (size - 1):
            lanes = (addresses & addresses.dtype.type(size - 1)) != 0
            first = int(addresses[lanes][0])
            raise Fault(f"misaligned shared access: {first:#x} is no multiple of {size}", lanes)
        end = WINDOW + self.size
        if int(addresses.min()) < WINDOW or int(addresses.max()) + size > end:
            lanes = (addresses < WINDOW) | (addresses > max(end - size, 0))
            first = int(addresses[lanes][0])
            raise Fault(
                f"shared access of {size} bytes at offset {first - WINDOW} is outside of the "
                f"block's {self.size} bytes",
                lanes,
            )
        if self.watch is not None:
            self.watch(addresses, size, mask)
        offsets: AnyArray = np.add(addresses, self._base, dtype=np.int64, casting="unsafe")
        return offsets if size == 1 else offsets >> (size.bit_length() - 1)

    def load(self, indices: AnyArray, size: int, mask: Mask, *, ordered: bool = False) -> AnyArray:
        """The units at `indices`; each byte must have been written, and no copy to it be in flight.

        An `ordered` access (volatile, relaxed, atomic) races with none of its kind.
        """
        state = self._state[size].take(indices).view(np.uint8)
        if int(state.min()) != _VALID or int(state.max()) != _VALID:
            lanes = (state.reshape(*indices.shape, size) != _VALID).any(axis=-1)
            lanes = lanes if mask is None else lanes & mask
            if lanes.any():
                raise self._refusal("read", indices, size, lanes)
        if ordered:
            self.races.ordered(indices, size, mask, writes=False)
        else:
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
        self._check_not_in_flight(indices, size, mask)
        if ordered:
            self.races.ordered(indices, size, mask, writes=True)
        else:
            self.races.write(indices, size, mask)
        self._put(indices, size, values, mask, _VALID)

    def begin_copy(self, indices: AnyArray, size: int, values: AnyArray, mask: Mask) -> None:
        """Start asynchronous copies: the data is there, but not to be touched before `end_copy`."""
        self._check_not_in_flight(indices, size, mask)
        self.races.write(indices, size, mask)
        self._put(indices, size, values, mask, _IN_FLIGHT)

    def end_copy(self, indices: AnyArray, size: int, threads: AnyArray) -> None:
        """Copies to flat `indices` are waited for; `threads` as `Races.landed` has them."""
        self._state[size][indices] = _unit(size, _VALID)
        self.races.landed(indices, size, threads)

    def begin_async_read(self, indices: AnyArray, size: int, mask: Mask) -> None:
        """A wgmma begins to read units at `indices`, (32, warps) as `indices` gives them, for the
        warps of the lanes in `mask`.
        """

    def end_async_read(self, indices: AnyArray, size: int, mask: Mask) -> None:
        """Warps have waited for what `begin_async_read` was told, perhaps some of them only."""

    def _put(self, indices: AnyArray, size: int, values: AnyArray, mask: Mask, state: int) -> None:
        if mask is not None:
            indices, values = indices[mask], values[mask]
        self._data[size][indices] = values
        self._state[size][indices] = _unit(size, state)

    def _check_not_in_flight(self, indices: AnyArray, size: int, mask: Mask) -> None:
        state = self._state[size].take(indices).view(np.uint8)
        if int(state.max()) == _IN_FLIGHT:
            lanes = (state.reshape(*indices.shape, size) == _IN_FLIGHT).any(axis=-1)
            lanes = lanes if mask is None else lanes & mask
            if lanes.any():
                raise self._refusal("write", indices, size, lanes)

    def _refusal(self, verb: str, indices: AnyArray, size: int, lanes: AnyArray) -> Fault:
        position = int(indices[lanes][0]) * size
        where = f"{verb} of {size} bytes at shared offset {position % self._stride}"
        if (self._raw_state[position : position + size] == _IN_FLIGHT).any():
            return Fault(f"{where}, to which an asynchronous copy is still in flight", lanes)
        return Fault(f"{where}, where nothing was written", lanes)


def _unit(size: int, state: int) -> AnyArray:
    """A unit of `size` bytes that are all in one state."""
    return np.full(size, state, np.uint8).view(unit_dtype(size))
