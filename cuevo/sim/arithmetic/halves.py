"""Conversions between 16-bit floating-point patterns and the formats that arithmetic is done in."""

from typing import Any

import numpy as np

from cuevo.sim.aliases import AnyArray
from cuevo.sim.arithmetic.compiled import compiled_elementwise

CANONICAL_NAN = np.uint16(0x7FFF)
TINY = {"f16": 2.0**-14, "bf16": 2.0**-126}
"""The smallest normal numbers."""


def widen(bits: AnyArray, name: str) -> AnyArray:
    """Patterns (uint16) of ``f16`` or ``bf16`` to float32, exactly."""
    if name == "f16":
        single = compiled_elementwise(_single, "float32(uint16)")
        return bits.view(np.float16).astype(np.float32) if single is None else single(bits)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _single(x: Any) -> Any:
    """`widen` of a pattern of ``f16``, to compile."""
    # Shifted into place its exponent is 112 too small, also that of a subnormal.
    scaled = np.uint32(np.uint32(x & 0x7FFF) << np.uint32(13)).view(np.float32)
    bits = np.float32(scaled * np.float32(2.0**112)).view(np.uint32)
    if x & 0x7C00 == 0x7C00:
        bits = bits | np.uint32(0x7F800000)
    return np.uint32(bits | np.uint32(x & 0x8000) << np.uint32(16)).view(np.float32)


def narrow(x: AnyArray, name: str, mode: str = "rn") -> AnyArray:
    """float32 to patterns (uint16) of ``f16`` or ``bf16``; mode rn or rz; every NaN becomes
    0x7FFF.
    """
    if mode == "rn":
        loop = _nearest_bf16 if name == "bf16" else _nearest_f16
        nearest = compiled_elementwise(loop, "uint16(float32)")
        if nearest is not None:
            return np.asarray(nearest(x))
    if name == "f16":
        rounded = x.astype(np.float16)
        if mode == "rz":
            away = np.abs(rounded.astype(np.float32)) > np.abs(x)
            rounded = np.where(away, np.nextafter(rounded, np.float16(0)), rounded)
        result = rounded.view(np.uint16)
    else:
        bits = x.view(np.uint32)
        if mode == "rn":
            bits = bits + ((bits >> np.uint32(16) & np.uint32(1)) + np.uint32(0x7FFF))
        result = (bits >> np.uint32(16)).astype(np.uint16)
    nan = np.isnan(x)
    if np.count_nonzero(nan):
        result = np.where(nan, CANONICAL_NAN, result)
    return result


def _nearest_f16(x: Any) -> Any:
    """`narrow` of a number to ``f16``, to compile."""
    bits = np.float32(x).view(np.uint32)
    size = np.uint32(bits & np.uint32(0x7FFFFFFF))
    # The last place of 0.5 is that of a subnormal; the others have an exponent 112 too large.
    small = np.float32(size.view(np.float32) + np.float32(0.5)).view(np.uint32)
    large = np.uint32(size + (size >> np.uint32(13) & np.uint32(1)) + np.uint32(0xFFF))
    scaled = min(np.uint32(large >> np.uint32(13)), np.uint32(0x7C00 + (112 << 10)))
    tiny = size < np.uint32(0x38800000)
    result = small - np.uint32(0x3F000000) if tiny else scaled - np.uint32(112 << 10)
    result = result | bits >> np.uint32(16) & np.uint32(0x8000)
    return CANONICAL_NAN if size > np.uint32(0x7F800000) else np.uint16(result)


def _nearest_bf16(x: Any) -> Any:
    """The same to ``bf16``."""
    bits = np.float32(x).view(np.uint32)
    upper = (bits + (bits >> np.uint32(16) & np.uint32(1)) + np.uint32(0x7FFF)) >> np.uint32(16)
    nan = bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
    return CANONICAL_NAN if nan else np.uint16(upper)


def narrow_exact(exact: AnyArray, name: str) -> AnyArray:
    """float64 (rounded to odd if it is not exact) to patterns of ``f16`` or ``bf16``, to nearest
    even.
    """
    if name == "f16":
        result = exact.astype(np.float16).view(np.uint16)
        return np.where(np.isnan(exact), CANONICAL_NAN, result)
    # Through float32 with the last bit odd where it is inexact, so that only the last rounding
    # counts.
    single = exact.astype(np.float32)
    bits = single.view(np.uint32).copy()
    outward = np.abs(single.astype(np.float64)) > np.abs(exact)
    inexact = (single.astype(np.float64) != exact) & np.isfinite(exact)
    bits -= outward.astype(np.uint32)
    bits |= inexact.astype(np.uint32)
    return narrow(bits.view(np.float32), name)
