"""What `cuevo.sim.memory.races` and `lane_races` look for, over the words of ordinary accesses.

A loop looks first, and makes its marks only if all is plainly right; else NumPy looks again, and
says what is wrong. Tags of warps are uint32 here, of a word's four bytes. `units`, (32, warps), are
of `words` words each; lanes of a warp share cache lines, so that warps are the outer loop.
"""

from typing import Any

SEVERAL = 255
BYTES = 0x01010101
"""What makes a word of bytes that are all the same."""
DOUBTFUL, RIGHT, AT_ONCE = 0, 1, 2
"""Nothing was changed; all is marked; two warps write a word at once, and somebody is marked."""


def read_words(
    state: Any,
    valid: int,
    writers: Any,
    readers: Any,
    reader: Any,
    lane_writers: Any,
    lane_readers: Any,
    units: Any,
    words: int,
    mask: Any,
    tags: Any,
) -> int:
    """The lanes in `mask` read words, whose state must be `valid`; `reader` are the bytes of
    `readers`.
    """
    lanes, warps = units.shape
    for warp in range(warps):
        own = tags[warp] * BYTES
        for lane in range(lanes):
            if mask[lane, warp]:
                first = units[lane, warp] * words
                for word in range(first, first + words):
                    by, lane_by = writers[word], lane_writers[word]
                    if state[word] != valid or (by != 0 and by != own):
                        return DOUBTFUL
                    if lane_by != 0 and lane_by != lane + 1:
                        return DOUBTFUL
    for warp in range(warps):
        own = tags[warp] * BYTES
        for lane in range(lanes):
            if mask[lane, warp]:
                first = units[lane, warp] * words
                for word in range(first, first + words):
                    before, lane_before = readers[word], lane_readers[word]
                    if before == 0:
                        readers[word] = own
                    elif before != own and before != SEVERAL * BYTES:
                        for byte in range(4 * word, 4 * word + 4):
                            if reader[byte] == 0:
                                reader[byte] = tags[warp]
                            elif reader[byte] != tags[warp]:
                                reader[byte] = SEVERAL
                    if lane_before == 0:
                        lane_readers[word] = lane + 1
                    elif lane_before != lane + 1:
                        lane_readers[word] = SEVERAL
    return RIGHT


def write_words(
    state: Any,
    free: int,
    new_state: int,
    writers: Any,
    readers: Any,
    lane_writers: Any,
    lane_readers: Any,
    units: Any,
    words: int,
    mask: Any,
    tags: Any,
) -> int:
    """The lanes in `mask` write words, whose state has no bit outside of `free` and becomes
    `new_state`.
    """
    lanes, warps = units.shape
    for warp in range(warps):
        own = tags[warp] * BYTES
        for lane in range(lanes):
            if mask[lane, warp]:
                first = units[lane, warp] * words
                for word in range(first, first + words):
                    by, to = writers[word], readers[word]
                    if state[word] | free != free or (by != 0 and by != own):
                        return DOUBTFUL
                    lane_by, lane_to = lane_writers[word], lane_readers[word]
                    if (to != 0 and to != own) or (lane_by != 0 and lane_by != lane + 1):
                        return DOUBTFUL
                    if lane_to != 0 and lane_to != lane + 1:
                        return DOUBTFUL
    for warp in range(warps):
        own = tags[warp] * BYTES
        for lane in range(lanes):
            if mask[lane, warp]:
                first = units[lane, warp] * words
                for word in range(first, first + words):
                    if writers[word] != 0 and writers[word] != own:
                        return AT_ONCE
                    writers[word] = own
    for warp in range(warps):
        for lane in range(lanes):
            if mask[lane, warp]:
                first = units[lane, warp] * words
                for word in range(first, first + words):
                    lane_writers[word] = lane + 1
                    state[word] = new_state
    return RIGHT
