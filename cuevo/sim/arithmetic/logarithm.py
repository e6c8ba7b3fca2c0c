"""The logarithm to base 2 as the GPU's unit for such functions has it, bit for bit.

The fraction of `parabolas` is that of x. The sum is cut off 36 bits behind the point,
the exponent is added, and of a negative result all bits are inverted, as if its magnitude were less
by 2^-36. Of that the first 24 bits stay: a result near 0 has fewer. That of 1 is 0; no other power
of two is an exception, so that the bias makes the magnitude of those below 1 less than it is.

All this gives what an H200 gave: for all numbers from 1/2 to 2, and some ten thousands of others.
Other architectures are taken to have the same.
"""

import numpy as np

from cuevo.sim.aliases import AnyArray
from cuevo.sim.arithmetic.parabolas import BELOW, Parabolas

_LOGARITHMS = Parabolas(
    (
        (0, 47272, -727),
        (1501075, 46545, -705),
        (2979241, 45840, -685),
        (4435171, 45156, -665),
        (5869534, 44492, -646),
        (7282955, 43847, -627),
        (8676037, 43221, -610),
        (10049356, 42612, -592),
        (11403476, 42020, -576),
        (12738910, 41444, -559),
        (14056177, 40884, -544),
        (15355762, 40339, -530),
        (16638133, 39809, -518),
        (17903736, 39292, -504),
        (19153016, 38788, -491),
        (20386381, 38297, -479),
        (21604226, 37818, -466),
        (22806948, 37351, -455),
        (23994910, 36896, -445),
        (25168469, 36451, -433),
        (26327976, 36018, -425),
        (27473756, 35594, -414),
        (28606138, 35180, -404),
        (29725431, 34776, -396),
        (30831931, 34380, -385),
        (31925926, 33994, -377),
        (33007699, 33616, -368),
        (34077518, 33247, -361),
        (35135643, 32886, -354),
        (36182334, 32532, -346),
        (37217827, 32186, -339),
        (38242359, 31847, -331),
        (39256166, 31516, -326),
        (40259465, 31191, -319),
        (41252478, 30872, -311),
        (42235408, 30561, -307),
        (43208457, 30255, -300),
        (44171823, 29955, -293),
        (45125702, 29662, -289),
        (46070268, 29374, -283),
        (47005709, 29091, -276),
        (47932202, 28814, -271),
        (48849913, 28542, -266),
        (49759001, 28276, -262),
        (50659638, 28014, -257),
        (51551978, 27757, -253),
        (52436162, 27505, -249),
        (53312345, 27257, -244),
        (54180669, 27013, -238),
        (55041276, 26774, -234),
        (55894301, 26540, -232),
        (56739871, 26309, -227),
        (57578127, 26082, -223),
        (58409184, 25859, -219),
        (59233172, 25640, -216),
        (60050202, 25424, -211),
        (60860392, 25213, -209),
        (61663862, 25004, -204),
        (62460723, 24799, -201),
        (63251073, 24598, -199),
        (64035030, 24399, -195),
        (64812684, 24204, -192),
        (65584142, 24012, -189),
        (66349501, 23823, -186),
    ),
    bias=29509,
    units=(-3, 1),
)
"""Logarithms of 1 to 2, in steps of 2^-23."""
_POINT = 36
_KEPT = np.int64(-1 << 53 - 24)
"""The bits of a float64 number that a float32 number has, too."""


def logarithm(x: AnyArray) -> AnyArray:
    """log2 x (float32); subnormal numbers are zeros."""
    bits = x.view(np.uint32).astype(np.int64)
    fixed = _LOGARITHMS.sums(bits & 0x7FFFFF)
    fixed >>= 23 + BELOW - _POINT
    fixed += (bits >> 23) - 127 << _POINT
    negative = fixed < 0
    np.invert(fixed, out=fixed, where=negative)
    exact = np.ldexp(fixed.astype(np.float64), -_POINT)
    result: AnyArray = (exact.view(np.int64) & _KEPT).view(np.float64).astype(np.float32)
    np.negative(result, out=result, where=negative)
    np.copyto(result, 0, where=x == 1)
    np.copyto(result, np.inf, where=x == np.inf)
    np.copyto(result, -np.inf, where=np.abs(x) < 2.0**-126)
    np.copyto(result, np.nan, where=(x <= -(2.0**-126)) | np.isnan(x))
    return result


def gradual_logarithm(x: AnyArray) -> AnyArray:
    """``lg2`` without ``.ftz``: of subnormal numbers with another exponent, as assembled."""
    tiny = np.abs(x) < 2.0**-126
    if not np.count_nonzero(tiny):
        return logarithm(x)
    scale = np.where(tiny, np.float32(2.0**24), np.float32(1))
    return np.asarray(logarithm(x * scale) - np.where(tiny, np.float32(24), np.float32(0)))
