"""Data races between the warps of a block in shared memory.

Two warps race if both touch a byte between two barriers, and one of them writes it; `SharedMemory`
forgives those that write the same. All warps of a chunk advance together here, so a race would go
unnoticed in the results; a GPU is not so kind.
Races between the lanes of a warp: `lane_races`.

For every byte of shared memory two tags name its writer and its reader since the block's last
barrier: 0 for none, warp + 1, or `_SEVERAL`. An asynchronous copy writes when it is issued and
again when it is waited for, so that its data is for other warps to read only after a barrier that
follows the wait. A barrier of a part of the block clears all tags of the block: it may hide a race,
it never invents one.
"""

from functools import cache

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.arithmetic.compiled import compiled
from cuevo.sim.faults import Earlier, Fault, first_thread
from cuevo.sim.memory.global_memory import unit_dtype
from cuevo.sim.memory.lane_races import LaneRaces
from cuevo.sim.memory.loops import races as loops
from cuevo.sim.memory.loops.races import AT_ONCE, RIGHT

_SEVERAL = 255
_UNITS = (1, 2, 4, 8, 16)
_WORD = 4


class Races:
    """`stride` bytes of storage for each of `blocks` blocks; `warp_in_block` has a number for each
    warp.
    """

    def __init__(
        self, blocks: int, stride: int, block_of_warp: AnyArray, warp_in_block: AnyArray
    ) -> None:
        self._blocks, self._stride = blocks, stride
        self._block_of_warp = block_of_warp
        self._lanes = LaneRaces(blocks, stride, warp_in_block.size)
        self._writer = np.zeros(max(blocks * stride, 16), np.uint8)
        self._reader = np.zeros_like(self._writer)
        self._writers = {unit: self._writer.view(unit_dtype(unit)) for unit in _UNITS}
        self._readers = {unit: self._reader.view(unit_dtype(unit)) for unit in _UNITS}
        self._tag_of_warp = (warp_in_block + 1).astype(np.uint8)
        self._patterns: dict[int, AnyArray] = {}

    def reset(self) -> None:
        """Forget everything."""
        self.barrier(None)

    def barrier(
        self,
        blocks: AnyArray | None,
        arrived: AnyArray | None = None,
        released: AnyArray | None = None,
    ) -> None:
        """Order earlier accesses before later ones; `blocks` marks the blocks, None for
        all. Which warps arrived and which were released makes no difference here.
        """
        self._lanes.barrier(blocks)
        for tags in (self._writer, self._reader):
            if blocks is None:
                tags.fill(0)
            else:
                whole = tags[: self._blocks * self._stride].reshape(self._blocks, self._stride)
                whole[blocks] = 0

    def warp_barrier(self, mask: Mask, alive: AnyArray) -> None:
        """The same for the lanes of each warp in `mask`; those `alive` have not exited."""
        self._lanes.warp_barrier(mask, alive, self._block_of_warp[:, None])

    def quick_read(
        self, state: AnyArray, valid: int, indices: AnyArray, size: int, mask: Mask
    ) -> bool:
        """`read`, if it is plainly right: of whole words, all of whose `state` is `valid`. Else it
        does nothing and returns False.
        """
        loop = compiled(loops.read_words)
        if loop is None or size < _WORD or self._lanes.tells_some:
            return False
        found = loop(
            state, valid, self._writers[_WORD], self._readers[_WORD], self._reader,
            *self._lanes.tags, indices, size // _WORD, whole(mask, indices), self._tag_of_warp,
        )  # fmt: skip
        return bool(found == RIGHT)

    def quick_write(
        self, state: AnyArray, free: int, new_state: int, indices: AnyArray, size: int, mask: Mask
    ) -> bool:
        """The same of `write`; the state of the words must have no bit outside of `free`, and
        becomes `new_state`.
        """
        loop = compiled(loops.write_words)
        if loop is None or size < _WORD or self._lanes.tells_some:
            return False
        found = loop(
            state, free, new_state, self._writers[_WORD], self._readers[_WORD],
            *self._lanes.tags, indices, size // _WORD, whole(mask, indices), self._tag_of_warp,
        )  # fmt: skip
        if found == AT_ONCE:
            # What was marked until then is marked again, or is a fault.
            self._writers[_WORD][words_of(indices, size, mask)] = 0
        return bool(found == RIGHT)

    def read(self, indices: AnyArray, size: int, mask: Mask) -> None:
        """The lanes in `mask` read units of `size` bytes at `indices` (counted in units)."""
        own = self._pattern(size)
        self._check("reads", "wrote", self._writers[size], indices, size, own, mask)
        self._lanes.read(indices, size, mask)
        before = _bytes(self._readers[size].take(indices))
        mine = _bytes(own)
        tags = np.where((before == 0) | (before == mine), mine, np.uint8(_SEVERAL))
        units = tags.view(unit_dtype(size))
        if mask is not None:
            indices, units = indices[mask], units[mask]
        else:
            indices, units = indices.ravel(), units.ravel()
        self._readers[size][indices] = units
        # Of several warps that read a unit at once only one has left its tag.
        after = _bytes(self._readers[size].take(indices)).reshape(-1, size)
        lost = (after != _bytes(units).reshape(-1, size)).any(axis=1) if size < 8 else None
        if lost is None:
            words = after.reshape(-1).view(np.uint64) != _bytes(units).reshape(-1).view(np.uint64)
            lost = words if size == 8 else words[::2] | words[1::2]
        if np.count_nonzero(lost):
            several = np.full(size, _SEVERAL, np.uint8).view(unit_dtype(size))[0]
            self._readers[size][indices[lost]] = several

    def write(self, indices: AnyArray, size: int, mask: Mask) -> None:
        """The lanes in `mask` write units of `size` bytes at `indices`. After a Fault of several
        warps at once nobody is known to have written these.
        """
        own, writers = self._pattern(size), self._writers[size]
        self._check("writes", "wrote", writers, indices, size, own, mask)
        self._check("writes", "read", self._readers[size], indices, size, own, mask)
        there = indices if mask is None else indices[mask]
        writers[there] = own if mask is None else own[mask]
        try:
            # Two warps that write a unit at once: one of them finds the other's tag.
            self._check("writes", "writes", writers, indices, size, own, mask)
        except Fault:
            writers[there] = 0
            raise
        self._lanes.write(indices, size, mask)

    def ordered(self, indices: AnyArray, size: int, mask: Mask, *, writes: bool) -> None:
        """A volatile or atomic access: it races with plain ones before it, and leaves no tag for
        those after it.
        """
        own, does = self._pattern(size), "writes" if writes else "reads"
        self._check(does, "wrote", self._writers[size], indices, size, own, mask)
        if writes:
            self._check(does, "read", self._readers[size], indices, size, own, mask)
        self._lanes.ordered(indices, size, mask, writes=writes)

    def landed(self, indices: AnyArray, size: int, threads: AnyArray) -> None:
        """Asynchronous copies to flat `indices` have landed; `threads` are the positions of those
        who issued them, lane * warps + warp.
        """
        lanes, warps = np.divmod(threads, self._tag_of_warp.size)
        self._writers[size][indices] = self._pattern(size)[0].take(warps)
        self._lanes.landed(indices, size, lanes)

    def _pattern(self, size: int) -> AnyArray:
        """The tag of each lane's warp in all bytes of a unit: shape (32, warps)."""
        if size not in self._patterns:
            tags = np.repeat(np.tile(self._tag_of_warp, (32, 1)), size, axis=1)
            self._patterns[size] = tags.view(unit_dtype(size))
        return self._patterns[size]

    def _check(
        self,
        does: str,
        did: str,
        tags: AnyArray,
        indices: AnyArray,
        size: int,
        own: AnyArray,
        mask: Mask,
    ) -> None:
        found = _bytes(tags.take(indices))
        foreign = (found != 0) & (found != _bytes(own))
        if not np.count_nonzero(foreign):
            return
        each = foreign.reshape(*own.shape, size)
        lanes = each.any(axis=-1)
        lanes = lanes if mask is None else lanes & mask
        if not lanes.any():
            return
        first = first_thread(lanes)
        tag = int(found.reshape(*own.shape, size)[first][each[first]][0])
        other = "other warps" if tag == _SEVERAL else f"warp {tag - 1}"
        position = int(indices[first]) * size
        tags, mine = self._tag_of_warp, self._tag_of_warp[first[1]]
        by = tags != mine if tag == _SEVERAL else tags == tag
        by = by & (self._block_of_warp == self._block_of_warp[first[1]])
        raise Fault(
            f"data race: {does} shared offset {position % self._stride}, which {other} {did} "
            "without a barrier between",
            lanes,
            Earlier(did, position, size, np.tile(by, (32, 1))),
        )


@cache
def _everywhere(shape: tuple[int, ...]) -> AnyArray:
    return np.ones(shape, np.bool_)


def whole(mask: Mask, indices: AnyArray) -> AnyArray:
    """The lanes of a step as flags."""
    return _everywhere(indices.shape) if mask is None else np.ascontiguousarray(mask)


def words_of(indices: AnyArray, size: int, mask: Mask) -> AnyArray:
    """Flat indices of the words of units of whole words."""
    flat, each = indices.ravel() if mask is None else indices[mask], size // _WORD
    words: AnyArray = (flat[:, None] * each + np.arange(each)).ravel()
    return words


def _bytes(units: AnyArray) -> AnyArray:
    return units.view(np.uint8)


class Unwatched(Races):
    """Stands in for `Races` where nothing is checked."""

    def __init__(
        self, blocks: int, stride: int, block_of_warp: AnyArray, warp_in_block: AnyArray
    ) -> None:
        pass

    def barrier(
        self,
        blocks: AnyArray | None,
        arrived: AnyArray | None = None,
        released: AnyArray | None = None,
    ) -> None:
        pass

    def warp_barrier(self, mask: Mask, alive: AnyArray) -> None:
        pass

    def read(self, indices: AnyArray, size: int, mask: Mask) -> None:
        pass

    def write(self, indices: AnyArray, size: int, mask: Mask) -> None:
        pass

    def ordered(self, indices: AnyArray, size: int, mask: Mask, *, writes: bool) -> None:
        pass

    def landed(self, indices: AnyArray, size: int, threads: AnyArray) -> None:
        pass
