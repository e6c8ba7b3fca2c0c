"""What `happens_before` looks for: over the words of ordinary accesses, and of
what tensor cores read.

As in `races` a loop looks first, and makes its marks only if all is plainly right. `known`,
(warps, places), `own` and `time` are of the `Clocks`, and `told` is up to when all lanes of a warp
know of one another.
"""

from typing import Any

from cuevo.sim.memory.loops.races import AT_ONCE, DOUBTFUL, RIGHT, SEVERAL


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
        for lane in range(lanes):
            if mask[lane, warp]:
                first = units[lane, warp] * words
                for word in range(first, first + words):
                    place, at = writer[word], written[word]
                    if state[word] != valid or at > known[warp, place]:
                        return DOUBTFUL
                    if place >> 5 == own[warp] and place & 31 != lane and at > told[warp]:
                        return DOUBTFUL
    for warp in range(warps):
        number, now = own[warp], time[warp]
        for lane in range(lanes):
            if mask[lane, warp]:
                first = units[lane, warp] * words
                for word in range(first, first + words):
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
        number = own[warp]
        for lane in range(lanes):
            if mask[lane, warp]:
                first = units[lane, warp] * words
                for word in range(first, first + words):
                    place, at = writer[word], written[word]
                    if state[word] | free != free or at > known[warp, place]:
                        return DOUBTFUL
                    if place >> 5 == number and place & 31 != lane and at > told[warp]:
                        return DOUBTFUL
                    if async_reads[word] > 0:
                        return DOUBTFUL
                    for other in range(least.shape[1]):
                        if read[word, other] > least[warp, other]:
                            return DOUBTFUL
                    if reader[word, number] != lane and read[word, number] > told[warp]:
                        return DOUBTFUL
    for warp in range(warps):
        number = own[warp]
        for lane in range(lanes):
            if mask[lane, warp]:
                first = units[lane, warp] * words
                for word in range(first, first + words):
                    # Nobody knows of what another warp does at this time.
                    if written[word] > known[warp, writer[word]]:
                        return AT_ONCE
                    writer[word], written[word] = 32 * number + lane, time[warp]
    for warp in range(warps):
        for lane in range(lanes):
            if mask[lane, warp]:
                first = units[lane, warp] * words
                for word in range(first, first + words):
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
    words: int,
    warps: Any,
    known: Any,
) -> int:
    """A unit reads flat `units` for the warp that stands beside each."""
    for at in range(units.size):
        first, warp = units[at] * words, warps[at]
        for word in range(first, first + words):
            if state[word] != valid or unfenced[word]:
                return DOUBTFUL
            if written[word] > known[warp, writer[word]]:
                return DOUBTFUL
    for at in range(units.size):
        first = units[at] * words
        for word in range(first, first + words):
            async_reads[word] += 1
    return RIGHT


def end_async_read(
    read: Any,
    reader: Any,
    async_reads: Any,
    units: Any,
    words: int,
    warps: Any,
    own: Any,
    time: Any,
) -> None:
    """The warps that stand beside flat `units` have waited for that."""
    for at in range(units.size):
        first, number, now = units[at] * words, own[warps[at]], time[warps[at]]
        for word in range(first, first + words):
            async_reads[word] -= 1
            read[word, number] = now
            reader[word, number] = SEVERAL


def fence(unfenced: Any, writer: Any, written: Any, known: Any) -> None:
    """A warp that knows of `known`, (places), fences the words of its cluster."""
    for word in range(unfenced.size):
        if unfenced[word] and written[word] <= known[writer[word]]:
            unfenced[word] = False
