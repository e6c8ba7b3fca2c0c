"""2^x as the GPU's unit for such functions has it, bit for bit.

The magnitude of x is cut off 23 bits behind the point; of a negative x all of its bits are
inverted, as if it were less by 2^-23, unless those behind the point are zeros. The bits behind the
point are the fraction of `parabolas`. f16 and bf16 are cut off of that.

All this gives what an H200 gave: for all 2^23 fractions, and all numbers of 16 bits. Other
architectures are taken to have the same.
"""

from typing import Any

import numpy as np

from cuevo.sim.aliases import AnyArray
from cuevo.sim.arithmetic import formats
from cuevo.sim.arithmetic.compiled import compiled_elementwise
from cuevo.sim.arithmetic.parabolas import BELOW, Parabolas, squares

_POWERS = Parabolas(
    (
        (33554435, 22713, 494),
        (33919818, 22960, 501),
        (34289182, 23210, 506),
        (34662565, 23463, 511),
        (35040018, 23718, 518),
        (35421577, 23977, 521),
        (35807292, 24238, 527),
        (36197209, 24502, 532),
        (36591372, 24768, 541),
        (36989825, 25038, 546),
        (37392616, 25311, 551),
        (37799797, 25586, 559),
        (38211409, 25865, 564),
        (38627504, 26147, 568),
        (39048131, 26431, 577),
        (39473337, 26719, 583),
        (39903173, 27010, 589),
        (40337690, 27304, 596),
        (40776937, 27602, 600),
        (41220970, 27902, 609),
        (41669836, 28206, 615),
        (42123592, 28513, 622),
        (42582286, 28824, 627),
        (43045977, 29138, 633),
        (43514717, 29455, 641),
        (43988561, 29776, 647),
        (44467565, 30100, 655),
        (44951786, 30428, 661),
        (45441278, 30759, 670),
        (45936101, 31094, 677),
        (46436314, 31432, 686),
        (46941971, 31775, 691),
        (47453135, 32121, 699),
        (47969867, 32471, 705),
        (48492225, 32824, 715),
        (49020269, 33182, 721),
        (49554065, 33543, 730),
        (50093674, 33908, 739),
        (50639159, 34277, 748),
        (51190582, 34651, 753),
        (51748011, 35028, 763),
        (52311510, 35409, 773),
        (52881146, 35795, 779),
        (53456983, 36185, 787),
        (54039091, 36579, 796),
        (54627538, 36977, 806),
        (55222393, 37380, 813),
        (55823725, 37787, 822),
        (56431607, 38198, 833),
        (57046106, 38614, 842),
        (57667297, 39035, 849),
        (58295254, 39460, 858),
        (58930048, 39889, 870),
        (59571754, 40324, 877),
        (60220447, 40763, 887),
        (60876205, 41207, 896),
        (61539104, 41655, 909),
        (62209220, 42109, 917),
        (62886634, 42568, 925),
        (63571424, 43031, 938),
        (64263672, 43500, 946),
        (64963458, 43973, 959),
        (65670863, 44452, 969),
        (66385972, 44936, 980),
    ),
    bias=6114,
)
_FRACTION = np.int64((1 << 23) - 1)
_END = {"f16": 2.0**16, "bf16": 2.0**128}


def power_of_two(x: AnyArray) -> AnyArray:
    """2^x (float32) for normal numbers x and zeros; below 2^-126 anything that is subnormal."""
    if (power := compiled_elementwise(_power, "float32(float32)")) is not None:
        return np.asarray(power(x))
    # Beyond these ends the pattern below is that of a zero or of an infinity as at them.
    inside = np.minimum(np.maximum(x, np.float32(-127)), np.float32(128))
    fixed = (inside * np.float32(1 << 23)).astype(np.int64)
    fraction = fixed & _FRACTION
    negative = fixed < 0
    if np.count_nonzero(negative):
        fixed -= negative & (fraction != 0)
        fraction = fixed & _FRACTION
    pattern = _POWERS(fraction)
    # The whole part goes to the exponent, to which the leading one of the significand adds 1.
    pattern += fixed - fraction
    pattern += 126 << 23
    result: AnyArray = pattern.astype(np.int32).view(np.float32)
    nan = np.isnan(x)
    if np.count_nonzero(nan):
        result[nan] = np.nan
    return result


# What the compiler takes for constants.
_C0, _C1, _C2 = _POWERS.coefficients
_SQUARES = squares()
_BITS = _POWERS.bits


def _power(x: Any) -> Any:
    """`power_of_two` of a number, to compile."""
    inside = x if x > np.float32(-127) else np.float32(-127)
    inside = inside if inside < np.float32(128) else np.float32(128)
    fixed = np.int32(inside * np.float32(1 << 23))
    fixed -= np.int32((fixed < 0) & (fixed & _FRACTION != 0))
    fraction = np.int32(fixed & _FRACTION)
    place, d = np.uint32(fraction >> _BITS), fraction & ((1 << _BITS) - 1)
    total = _C0[place] + _C1[place] * d + _C2[place] * _SQUARES[np.uint32(d >> _BITS - BELOW)]
    pattern = np.int32(total >> BELOW) + (fixed - fraction) + np.int32(126 << 23)
    return np.int32(pattern).view(np.float32) if x == x else np.float32(np.nan)


def gradual_power_of_two(x: AnyArray) -> AnyArray:
    """``ex2`` without ``.ftz``: far below the square of the power of x / 2, as the assembler has
    it.
    """
    low = x < -126
    if not np.count_nonzero(low):
        return power_of_two(x)
    result = power_of_two(np.where(low, x * np.float32(0.5), x))
    return np.where(low, result * result, result)


def narrow_power_of_two(x: AnyArray, name: str) -> AnyArray:
    """2^x (float64) for f16 or bf16: cut off to their precision, and infinite from the power of two
    on that they do not have.
    """
    exact = power_of_two(x).astype(np.float64)
    return formats.rounded(np.where(exact >= _END[name], np.inf, exact), name, "rz")
