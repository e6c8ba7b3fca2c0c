"""Data races between the lanes of a warp in shared memory.

Two lanes race if both touch a word of 4 bytes between two barriers of their warp or block, and one
of them writes it; shuffles, votes and matrix instructions order nothing in memory. ldmatrix reads
a row as the lane that has its address.

Two tags say for every word which lane wrote and which one read it: 0 none, lane + 1, or `_SEVERAL`.
A barrier of all lanes of a warp clears the tags; one of some tells them of the accesses of one
another, and of what any of them has been told. Of several readers it tells as if all were members.
Writes of less than a word leave no tag, and several lanes may write a word at once: what is not
seen is a race less, never one too many. Whoever asks has made sure that no other warp is to blame.
"""

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.faults import Earlier, Fault, first_thread

_SEVERAL = 255
_WORD = 4
_DTYPES = {count: np.dtype(f"u{count}") for count in (1, 2, 4)}


class LaneRaces:
    """`stride` bytes of storage for each of `blocks` blocks; `warps` in all."""

    def __init__(self, blocks: int, stride: int, warps: int) -> None:
        self._shape = (blocks, stride // _WORD)
        self._stride = stride
        self._writer = np.zeros(max(blocks * stride // _WORD, 4), np.uint8)
        self._reader = np.zeros_like(self._writer)
        self._writers = {count: self._writer.view(dtype) for count, dtype in _DTYPES.items()}
        self._readers = {count: self._reader.view(dtype) for count, dtype in _DTYPES.items()}
        self._told: dict[str, AnyArray] = {}
        """The lanes, a bit each, that were told of the access behind a word's tag; empty before the
        first barrier of only some lanes.
        """
        tag = np.arange(1, 33, dtype=np.uint8)[:, None]
        self._own = {
            count: np.repeat(np.repeat(tag, warps, axis=1), count, axis=1).view(dtype)
            for count, dtype in _DTYPES.items()
        }

    @property
    def tags(self) -> tuple[AnyArray, AnyArray]:
        """Of the lanes that wrote, and that read, each word."""
        return self._writer, self._reader

    @property
    def tells_some(self) -> bool:
        """Whether tags alone do not say who knows of an access."""
        return bool(self._told)

    def barrier(self, blocks: AnyArray | None) -> None:
        """Order earlier accesses before later ones; `blocks` has the numbers or flags of
        the blocks, None for all.
        """
        if blocks is None:
            self._told.clear()
        for tags in (self._writer, self._reader):
            if blocks is None:
                tags.fill(0)
            else:
                self._by_block(tags)[blocks] = 0

    def warp_barrier(self, mask: Mask, alive: AnyArray, reach: AnyArray) -> None:
        """The lanes in `mask`, of each warp, order their accesses before later ones. Those `alive`
        have not exited; `reach` has the numbers of the blocks that a warp may touch, (warps,
        blocks).
        """
        if mask is None:
            self.barrier(None)
            return
        here = mask.any(axis=0)
        whole = here & (mask == alive).all(axis=0)
        if whole.any():
            # To be simple, also for other warps of these blocks.
            self.barrier(np.unique(reach[whole]))
        if (part := here & ~whole).any():
            bit = np.uint32(1) << np.arange(32, dtype=np.uint32)[:, None]
            members = np.bitwise_or.reduce(np.where(mask, bit, np.uint32(0)), axis=0)[part]
            for same in np.unique(members):
                self._tell(np.unique(reach[part][members == same]), same)

    def _tell(self, blocks: AnyArray, members: np.uint32) -> None:
        """The members tell each other what they have done in the blocks."""
        if not self._told:
            size = self._writer.size
            self._told = {did: np.zeros(size, np.uint32) for did in ("wrote", "read")}
        known = np.zeros(256, np.bool_)
        known[1:33] = members >> np.arange(32, dtype=np.uint32) & 1
        known[_SEVERAL] = True
        for tags, told in zip((self._writer, self._reader), self._told.values(), strict=True):
            before = self._by_block(told)[blocks]
            learned = known[self._by_block(tags)[blocks]] | (before & members != 0)
            self._by_block(told)[blocks] = np.where(learned, before | members, before)

    def _by_block(self, words: AnyArray) -> AnyArray:
        return words[: self._shape[0] * self._shape[1]].reshape(self._shape)

    def read(self, indices: AnyArray, size: int, mask: Mask) -> None:
        """The lanes in `mask` read units of `size` bytes at `indices` (counted in units)."""
        words, count = _words(indices, size)
        own = self._own[count]
        self._check("reads", "wrote", self._writers[count], words, count, own, mask)
        readers = self._readers[count]
        several = np.full(count, _SEVERAL, np.uint8).view(_DTYPES[count])[0]
        before = readers.take(words)
        if self._told:
            before.view(np.uint8)[self._knows("read", words, count).reshape(32, -1)] = 0
        # Word by word: of a vector's some may have been read before, and others not.
        each, mine = before.view(np.uint8), own.view(np.uint8)
        tags = np.where((each == 0) | (each == mine), mine, np.uint8(_SEVERAL)).view(own.dtype)
        if mask is not None:
            words, tags = words[mask], tags[mask]
        readers[words] = tags
        self._anew("read", words, count)
        # Of several lanes that read a word at once only one has left its tag.
        lost = readers.take(words) != tags
        if np.count_nonzero(lost):
            readers[words[lost]] = several

    def write(self, indices: AnyArray, size: int, mask: Mask) -> None:
        """The lanes in `mask` write units of `size` bytes at `indices`."""
        words, count = _words(indices, size)
        own = self._own[count]
        self._check("writes", "wrote", self._writers[count], words, count, own, mask)
        if size < _WORD:
            return
        self._check("writes", "read", self._readers[count], words, count, own, mask)
        if mask is not None:
            words, own = words[mask], own[mask]
        self._writers[count][words] = own
        self._anew("wrote", words, count)

    def ordered(self, indices: AnyArray, size: int, mask: Mask, *, writes: bool) -> None:
        """A volatile or atomic access: checked, and not remembered."""
        words, count = _words(indices, size)
        own, does = self._own[count], "writes" if writes else "reads"
        self._check(does, "wrote", self._writers[count], words, count, own, mask)
        if writes and size >= _WORD:
            self._check(does, "read", self._readers[count], words, count, own, mask)

    def landed(self, indices: AnyArray, size: int, lanes: AnyArray) -> None:
        """Asynchronous copies to flat `indices` have landed, which `lanes` issued."""
        count = size // _WORD
        self._writers[count][indices] = self._own[count][:, 0].take(lanes)
        self._anew("wrote", indices, count)

    def _anew(self, did: str, words: AnyArray, count: int) -> None:
        """Nobody knows of the accesses that have left their tags in units of `count` words."""
        if self._told:
            self._told[did].reshape(-1, count)[words] = 0

    def _knows(self, did: str, words: AnyArray, count: int) -> AnyArray:
        """Whether each lane was told of the access to each word of its unit: (32, warps, count)."""
        told = self._told[did].reshape(-1, count)[words]
        return np.asarray(told >> np.arange(32, dtype=np.uint32)[:, None, None] & 1 != 0)

    def _check(
        self,
        does: str,
        did: str,
        tags: AnyArray,
        words: AnyArray,
        count: int,
        own: AnyArray,
        mask: Mask,
    ) -> None:
        found = tags.take(words)
        suspects = (found != 0) & (found != own)
        if not np.count_nonzero(suspects if mask is None else suspects & mask):
            return
        # Some words of a unit may have a tag, and others none.
        each = found.view(np.uint8).reshape(*own.shape, count)
        foreign = (each != 0) & (each != own.view(np.uint8).reshape(each.shape))
        if self._told:
            foreign &= ~self._knows(did, words, count)
        lanes = foreign.any(axis=-1)
        lanes = lanes if mask is None else lanes & mask
        if not lanes.any():
            return
        first = first_thread(lanes)
        tag = int(each[first][foreign[first]][0])
        other = "other lanes" if tag == _SEVERAL else f"lane {tag - 1}"
        position, size = int(words[first]) * count * _WORD, count * _WORD
        by = np.zeros(own.shape, np.bool_)
        by[slice(None) if tag == _SEVERAL else tag - 1, first[1]] = True
        by[first] = False
        raise Fault(
            f"data race: {does} shared offset {position % self._stride}, which {other} of the same "
            f"warp {did} without a bar.warp.sync between",
            lanes,
            Earlier(did, position, size, by),
        )


def _words(indices: AnyArray, size: int) -> tuple[AnyArray, int]:
    """Indices in units of whole words, and how many words a unit has."""
    if size >= _WORD:
        return indices, size // _WORD
    return indices * size // _WORD, 1
