"""What `happens_before` looks for: over the words of ordinary accesses, and of
what tensor cores read.

As in `races` a loop looks first, and makes its marks only if all is plainly right. `known`,
(warps, places), `own` and `time` are of the `Clocks`, and `told` is up to when all lanes of a warp
know of one another. Indices of words are unsigned, and the words of a unit are looked at without a
branch: so compiled, a loop takes half the time.
"""

from typing import Any

import numpy as np

from cuevo.sim.memory.loops.races import AT_ONCE, DOUBTFUL, RIGHT, SEVERAL

_BULK_WORDS = 4
"""Words of a unit that asynchronous units read."""


def read_words(
    state: Any,
    valid: int,
    writer: Any,
    written: Any,
    read: Any,
    reader: Any,
    units: Any,
    words: int,
    mask: Any,
    known: Any,
    own: Any,
    time: Any,
    told: Any,
) -> int:
    """The lanes in `mask` read words, whose state must be `valid`."""
    lanes, warps = units.shape
    for warp in range(warps):
        number, lately = own[warp], told[warp]
        for lane in range(lanes):
            if mask[lane, warp]:
                first, wrong = np.uint64(units[lane, warp] * words), False
                for word in range(first, first + np.uint64(words)):
                    place, at = writer[word], written[word]
                    other = (place >> 5 == number) & (place & 31 != lane)
                    wrong |= (state[word] != valid) | (at > known[warp, place])
                    wrong |= other & (at > lately)
                if wrong:
                    return DOUBTFUL
    for warp in range(warps):
        number, now = np.uint64(own[warp]), time[warp]
        for lane in range(lanes):
            if mask[lane, warp]:
                first = np.uint64(units[lane, warp] * words)
                for word in range(first, first + np.uint64(words)):
                    if read[word, number] == now and reader[word, number] != lane:
                        reader[word, number] = SEVERAL
                    else:
                        reader[word, number] = lane
                    read[word, number] = now
    return RIGHT


def write_words(
    state: Any,
    free: int,
    new_state: int,
    writer: Any,
    written: Any,
    read: Any,
    reader: Any,
    async_reads: Any,
    unfenced: Any,
    units: Any,
    words: int,
    mask: Any,
    known: Any,
    own: Any,
    time: Any,
    told: Any,
    least: Any,
) -> int:
    """The lanes in `mask` write words, whose state has no bit outside of `free` and becomes
    `new_state`. `least`, (warps, warps of the cluster), is up to when a warp knows of all lanes.
    """
    lanes, warps = units.shape
    for warp in range(warps):
        number, lately = np.uint64(own[warp]), told[warp]
        for lane in range(lanes):
            if mask[lane, warp]:
                first, wrong = np.uint64(units[lane, warp] * words), False
                for word in range(first, first + np.uint64(words)):
                    place, at = writer[word], written[word]
                    other = (place >> 5 == own[warp]) & (place & 31 != lane)
                    wrong |= (state[word] | free != free) | (at > known[warp, place])
                    wrong |= other & (at > lately)
                    wrong |= async_reads[word] > 0
                    for each in range(least.shape[1]):
                        wrong |= read[word, each] > least[warp, each]
                    wrong |= (reader[word, number] != lane) & (read[word, number] > lately)
                if wrong:
                    return DOUBTFUL
    for warp in range(warps):
        number, now = own[warp], time[warp]
        for lane in range(lanes):
            if mask[lane, warp]:
                first = np.uint64(units[lane, warp] * words)
                for word in range(first, first + np.uint64(words)):
                    # Nobody knows of what another warp does at this time.
                    if written[word] > known[warp, writer[word]]:
                        return AT_ONCE
                    writer[word], written[word] = 32 * number + lane, now
    for warp in range(warps):
        for lane in range(lanes):
            if mask[lane, warp]:
                first = np.uint64(units[lane, warp] * words)
                for word in range(first, first + np.uint64(words)):
                    unfenced[word], state[word] = True, new_state
    return RIGHT


def landed(
    writer: Any, written: Any, units: Any, words: int, threads: Any, own: Any, time: Any
) -> None:
    """The `threads`, lane * warps + warp, that stand beside flat `units` have written them now."""
    for at in range(units.size):
        lane, warp = divmod(threads[at], own.size)
        first = units[at] * words
        for word in range(first, first + words):
            writer[word], written[word] = 32 * own[warp] + lane, time[warp]


def begin_async_read(
    state: Any,
    valid: int,
    writer: Any,
    written: Any,
    async_reads: Any,
    unfenced: Any,
    units: Any,
    warps: Any,
    known: Any,
) -> int:
    """A unit reads flat `units` for the warp that stands beside each."""
    for at in range(units.size):
        first, warp, wrong = np.uint64(units[at] * _BULK_WORDS), np.uint64(warps[at]), False
        for i in range(_BULK_WORDS):
            word = first + np.uint64(i)
            wrong |= (state[word] != valid) | unfenced[word]
            wrong |= written[word] > known[warp, writer[word]]
        if wrong:
            return DOUBTFUL
    for at in range(units.size):
        first = np.uint64(units[at] * _BULK_WORDS)
        for i in range(_BULK_WORDS):
            async_reads[first + np.uint64(i)] += 1
    return RIGHT


def end_async_read(
    read: Any, reader: Any, async_reads: Any, units: Any, warps: Any, own: Any, time: Any
) -> None:
    """The warps that stand beside flat `units` have waited for that."""
    for at in range(units.size):
        warp = warps[at]
        first, number = np.uint64(units[at] * _BULK_WORDS), np.uint64(own[warp])
        for i in range(_BULK_WORDS):
            word = first + np.uint64(i)
            async_reads[word] -= 1
            read[word, number] = time[warp]
            reader[word, number] = SEVERAL


def fence(
    unfenced: Any, writer: Any, written: Any, known: Any, first: Any, each: int, warps: Any
) -> None:
    """`warps` fence what they know of among the `each` words of their clusters, of which the
    `first` stands beside each; those of a cluster are neighbours.
    """
    begin = 0
    while begin < warps.size:
        end = begin
        while end < warps.size and first[end] == first[begin]:
            end += 1
        for word in range(np.uint64(first[begin]), np.uint64(first[begin] + each)):
            if unfenced[word]:
                for at in range(begin, end):
                    if written[word] <= known[warps[at], writer[word]]:
                        unfenced[word] = False
        begin = end
