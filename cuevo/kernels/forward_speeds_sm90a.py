"""How fast the shapes of ``ptx/evoformer_forward_sm90a.ptx`` were measured to be beside each other,
and beside ``evoformer_forward_sm80``; docs/measurements/forward-designs.md has the measurements.
"""

from typing import Protocol

from cuevo.architectures import Architecture
from cuevo.kernels.forward import Problem
from cuevo.kernels.forward_works_sm90a import has_many_tiles

__all__ = ["can_convert", "prefers_lower_variant", "prefers_packed", "speed"]

_LEAST_SCORES, _LEAST_SCORES_OF_SOME_ROWS, _LEAST_SCORES_OF_FEW_ROWS = 2**25, 2**24, 2**20
"""From which on it runs unasked; the others where it takes the host no longer than
``evoformer_forward_sm80``: where that one would have the pair bias packed, or above D 32 rows N are
so few that this one converts it; and where they are fewer still, and keys many enough for small
threadblocks to be faster.
"""
_SOME_ROWS, _FEW_ROWS, _KEYS_OF_FEW_ROWS = 24, 8, 256
_GAIN, _GAIN_WITHOUT_PAIR = 1.4, 1.25
"""How many times as fast as ``evoformer_forward_sm80`` it was measured to be where it pads queries
and the other one hardly does: with a pair bias, and without.
"""
_CLUSTER_GAIN = (0.99, 1.03)
"""How many times as fast as single threadblocks clusters of two were measured to be, where L2 has
time enough for both to read the pair bias, and where not: up to D 32 where it does not keep all
tiles.
"""
_CLUSTER_GAIN_OF_24 = {"bf16": 1.01, "f16": 0.99}
"""The same at D 24, by dtype, however many tiles there are."""
_ASKING_GAIN = {"bf16": (1.06, 0.96, 1.02, 0.92), "f16": (1.05, 1.05, 1.05, 0.95)}
"""The same of four rows N whose warpgroups all ask for boxes beside three that have a producer and
mask warps, by dtype: from `_MANY_KEYS` on at D 16, 24 and 32, and of fewer keys or with a last tile
of 64 queries, as a work has more to do before and behind its stages.
"""
_MANY_KEYS = (192, 256, 224)
"""At D 16, 24 and 32."""
_ASKING_GAIN_WITH_LAST = 1.02
"""The same with a last tile of 64 queries and so many keys at D 16 and 32 in bf16, where that has
multiprocessors of its own.
"""
_CONVERTING_GAIN = (
    (16, 0.97),
    (24, 0.95),
    (32, 0.96),
    (40, 1.03),
    (48, 1.0),
    (56, 1.03),
    (64, 0.94),
)
_CONVERTING_GAIN_ELSEWHERE = 0.91
"""The same of a pair bias that is converted beside the scores of each row N, by head dim, where
many rows N share what tiles cost.
"""
_CONVERTING_BESIDE_ASKING = 0.99
"""Of that, what three rows N that have a producer reach beside four that ask: up to D 32."""
_CONVERTING_FOR_TWO_GAIN = (1.04, 1.018, 1.04)
"""Of four rows N that ask, two a warpgroup, for which it converts the pair bias once, beside one a
warpgroup: at D 16, 24 and 32.
"""
_ASKING_GAIN_ABOVE_32 = ((1.087, 1.05), (1.1025, 1.07))
"""The same of three rows N that ask, with tiles and converting: at D 40, and 48."""
_ASKING_GAIN_OF_40_WITH_LAST, _MANY_KEYS_OF_40 = 0.99, 512
"""The same at D 40 with tiles, a last tile of 64 queries, and fewer keys than these."""
_TWO_ROWS_GAIN_ABOVE_32, _TWO_ROWS_BESIDE_LAST = (1.03 * 2 / 3, 1.02 * 2 / 3), 0.92
"""Of two rows N of 192 queries, for which a warpgroup converts the pair bias once, beside three of
128, whose works take as long: at D 40, and 48; and what is left of it where others have a last tile
of 64 queries, which takes less time than it is counted as.
"""
_SMALL_GAIN = ((0.75, 1.2), (0.95, 1.48))
"""Of single rows N beside those that convert, where two threadblocks share a multiprocessor: up to
D 32 and above, with two tiles of queries a warpgroup and with one, of which there are twice as many
works.
"""
_LATE_PAIR_GAIN, _LATE_PAIR_GAIN_OF_24, _LATE_PAIR_GAIN_OF_32 = 1.023, 1.015, (1.005, 0.995)
"""The same of a stage of K and V more than of the pair bias: with as many keys as the first two of
the next line, of which works are short; elsewhere at D 24, and 32, there below the third.
"""
_LATE_PAIR_KEYS = (224, 256, 640)
_TILED_FOR_TWO_GAIN, _MANY_KEYS_FOR_TWO = (0.98, 1.03), 272
"""The same of two rows N a warpgroup that share what they take of a tile of the pair bias, beside
one that has a mask, too: of fewer keys than these, and from there on.
"""
_SHARING_GAIN = (1.045, 0.99)
"""Of a pair bias that is converted where two warpgroups share each of two rows N: at D 56, and 64.
"""
_SCALED_GAIN, _SCALED_GAIN_FOR_TWO = 1.055, 1.03
"""The same of a pair bias that is converted and not divided by the scale, as q has been multiplied
by that; at D 16 where consumers ask; and where a warpgroup converts it for two rows N.
"""
_SHORT_CALL, _MASK_COST = 2**25, 0.8
"""Scores below which a call takes the device no longer than the host, and what such a call's second
launch, which makes tiles of the mask, leaves of that.
"""
_LEAST_SCORES_OF_PACKED = 2**27
"""From which on packing a pair bias takes less than converting it saves, at D 64."""
_TILES_COST = 3.3
"""Rows N that take as long as making the tiles of the pair bias."""
_CONVERTING_IN_F16 = (16, 24, 40, 48)
"""Head dims for which there are registers enough to convert the pair bias in fp16, too."""


class Shape(Protocol):
    """What a speed depends on, of a configuration."""

    @property
    def cluster(self) -> int: ...
    @property
    def consumers_ask(self) -> bool: ...
    @property
    def converts(self) -> bool: ...
    @property
    def late_pair(self) -> bool: ...
    @property
    def m_tiles(self) -> int: ...
    @property
    def min_blocks(self) -> int: ...
    @property
    def reads_mask_tiles(self) -> bool: ...
    @property
    def row_warpgroups(self) -> int: ...
    @property
    def scales_q(self) -> bool: ...
    @property
    def shares_pair(self) -> bool: ...


def speed(shape: Shape, problem: Problem) -> float:
    """Speed of clusters, of consumers that ask for boxes, of a pair bias that is converted, or of
    small threadblocks, beside single ones that have a producer and tiles.
    """
    late = _late_pair_gain(problem) if shape.late_pair else 1.0
    scaled = _SCALED_GAIN_FOR_TWO if shape.shares_pair else _SCALED_GAIN
    is_gain = shape.scales_q and (shape.consumers_ask or problem.head_dim > 16)
    return _speed(shape, problem) * late * (scaled if is_gain else 1.0)


def _late_pair_gain(problem: Problem) -> float:
    least, most, many = _LATE_PAIR_KEYS
    below, from_there = _LATE_PAIR_GAIN_OF_32
    if least <= problem.keys <= most:
        return _LATE_PAIR_GAIN
    if problem.head_dim == 24:
        return _LATE_PAIR_GAIN_OF_24
    return below if problem.keys < many else from_there


def _speed(shape: Shape, problem: Problem) -> float:
    if shape.converts:
        return _converting_gain(shape, problem) * (1 + _TILES_COST / problem.rows)
    if shape.consumers_ask and problem.head_dim > 32:
        short = _has_last_tile(problem) and problem.keys < _MANY_KEYS_OF_40
        of_40 = short and problem.head_dim == 40
        return _ASKING_GAIN_OF_40_WITH_LAST if of_40 else _asking_gain_above_32(problem)[0]
    if shape.consumers_ask:
        many, few = _asking_gain(problem)
        # Four rows N share a tile, as those of clusters do.
        shared = _CLUSTER_GAIN[1] if has_many_tiles(problem) else 1.0
        if shape.shares_pair:
            below, from_there = _TILED_FOR_TWO_GAIN
            shared *= below if problem.keys < _MANY_KEYS_FOR_TWO else from_there
        if not _is_short(problem):
            return many * shared
        beside = problem.head_dim % 16 == 0 and problem.dtype == "bf16"
        return few if _has_few_keys(problem) or not beside else _ASKING_GAIN_WITH_LAST * shared
    if shape.cluster == 1:
        return 1.0
    if problem.head_dim == 24:
        return _CLUSTER_GAIN_OF_24[problem.dtype]
    busy = problem.head_dim <= 32 and has_many_tiles(problem)
    return _CLUSTER_GAIN[1] if busy else _CLUSTER_GAIN[0]


def _index_of_dim(problem: Problem) -> int:
    """Of its head dim among 16, 24 and 32."""
    return 0 if problem.head_dim <= 16 else 1 if problem.head_dim == 24 else 2


def _asking_gain(problem: Problem) -> tuple[float, float]:
    """Of consumers that ask up to D 32: from `_MANY_KEYS` on, and elsewhere."""
    *of_dim, few = _ASKING_GAIN[problem.dtype]
    return of_dim[_index_of_dim(problem)], few


def _is_short(problem: Problem) -> bool:
    """Whether the latter is its gain, but for a last tile that `_ASKING_GAIN_WITH_LAST` is of."""
    return _has_few_keys(problem) or _has_last_tile(problem)


def _has_last_tile(problem: Problem) -> bool:
    """Whether a last tile of 64 queries is a launch of its own."""
    return 0 < problem.queries % 128 <= 64


def _has_few_keys(problem: Problem) -> bool:
    """Whether works have more to do before and behind their stages than is worth it."""
    return problem.keys < _MANY_KEYS[_index_of_dim(problem)]


def _asking_gain_above_32(problem: Problem) -> tuple[float, float]:
    of_40, of_48 = _ASKING_GAIN_ABOVE_32
    return of_40 if problem.head_dim == 40 else of_48


def _two_rows_gain_above_32(problem: Problem) -> float:
    of_40, of_48 = _TWO_ROWS_GAIN_ABOVE_32
    gain = of_40 if problem.head_dim == 40 else of_48
    return gain * _TWO_ROWS_BESIDE_LAST if _has_last_tile(problem) else gain


def can_convert(problem: Problem) -> bool:
    """Whether there are kernels that convert the pair bias, if a tensor map can describe it."""
    narrow = problem.pair in ("f16", "bf16")
    return narrow and (problem.dtype == "bf16" or problem.head_dim in _CONVERTING_IN_F16)


def prefers_packed(problem: Problem) -> bool:
    """Whether a pair bias that no tensor map can describe is copied to rows that one can, so that
    it is converted: at D 64 where it is not divided by the scale, and with a mask, without which
    consumers that ask would not know where keys end. That is worth more than the copy takes, but
    for short calls.
    """
    scaled = problem.head_dim == 64 and problem.power_of_two and problem.dtype == "bf16"
    long = problem.mask != "none" and problem.scores >= _LEAST_SCORES_OF_PACKED
    return scaled and long and can_convert(problem) and not problem.pair_mapped


def _converting_gain(shape: Shape, problem: Problem) -> float:
    if shape.row_warpgroups > 1 and not shape.shares_pair:
        of_56, of_64 = _SHARING_GAIN
        gain = of_56 if problem.head_dim == 56 else of_64
        short = shape.reads_mask_tiles and problem.scores < _SHORT_CALL
        return gain * _MASK_COST if short else gain
    if shape.consumers_ask and problem.head_dim > 32:
        gain = _asking_gain_above_32(problem)[1]
        return gain * _two_rows_gain_above_32(problem) if shape.shares_pair else gain
    of_dim = (gain for dim, gain in _CONVERTING_GAIN if problem.head_dim == dim)
    gain = next(of_dim, _CONVERTING_GAIN_ELSEWHERE)
    if shape.consumers_ask:
        gain *= _CONVERTING_FOR_TWO_GAIN[_index_of_dim(problem)] if shape.shares_pair else 1.0
        many, few = _asking_gain(problem)
        return gain * few / many if _is_short(problem) else gain
    if shape.min_blocks == 1:
        return gain * (_CONVERTING_BESIDE_ASKING if 8 < problem.head_dim <= 32 else 1.0)
    two, one = _SMALL_GAIN[0] if problem.head_dim <= 32 else _SMALL_GAIN[1]
    return gain * (two if shape.m_tiles == 2 else one)


def prefers_lower_variant(problem: Problem, arch: Architecture) -> bool:
    """Whether ``evoformer_forward_sm80`` is to run: where a call is so short that making tensor
    maps and tiles of the pair bias, which takes the host 15 us, is most of it; where the last query
    tile would be mostly empty; without a pair bias for one row N, which has threadblocks to itself.
    """
    few = problem.rows <= _FEW_ROWS and problem.keys >= _KEYS_OF_FEW_ROWS
    converted = can_convert(problem) and problem.pair_mapped
    some = converted and problem.head_dim > 32 and problem.rows <= _SOME_ROWS
    packed = problem.pair in ("f16", "bf16") and not problem.pair_mapped
    usual = _LEAST_SCORES_OF_SOME_ROWS if some or packed else _LEAST_SCORES
    least = _LEAST_SCORES_OF_FEW_ROWS if few and converted else usual
    if problem.scores < least or (problem.pair == "none" and problem.rows == 1):
        return True
    tiles, rest = divmod(problem.queries, 64)
    # A tile of 64 queries alone takes longer than half of two.
    padded = 64 * (tiles + (rest > 0)) + 20 * ((tiles + (rest > 0)) % 2)
    gain = _GAIN_WITHOUT_PAIR if problem.pair == "none" else _GAIN
    return padded > problem.queries * gain
