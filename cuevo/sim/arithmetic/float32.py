"""float32 arithmetic as the hardware rounds it: fused multiply-add, flushing of subnormals,
canonical NaN.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from cuevo.sim.aliases import AnyArray
from cuevo.sim.arithmetic.compiled import compiled_elementwise

TINY = np.float32(2.0**-126)
"""The smallest normal number."""
CANONICAL_NAN = np.uint32(0x7FFFFFFF)


def flushed(x: AnyArray) -> AnyArray:
    """`x` with subnormals replaced by zeros of their sign; `x` itself if there are none."""
    normal = np.abs(x) >= TINY
    if np.count_nonzero(normal) == normal.size:
        return x
    # Zeros keep their sign, and NaNs (which compare false) stay NaN.
    return np.multiply(x, normal, dtype=np.float32)


def flush(x: AnyArray) -> None:
    """`flushed`, in place."""
    normal = np.abs(x) >= TINY
    if np.count_nonzero(normal) != normal.size:
        np.multiply(x, normal, out=x)


def flush_rounded(x: AnyArray, exact: Callable[[], AnyArray], mode: str) -> None:
    """`flush` of results of an operation, rounded by `mode` from `exact` (float64, exact or rounded
    to odd).

    What is tiny is decided after rounding to 24 bits, as if exponents had no end: so an H200 turns
    2^-126 (1 - 2^-24), which has 24 bits, into zero, though float32 has no number between it and
    2^-126; and 2^-126 (1 - 2^-26) into 2^-126. The exact results matter only for that one number.
    """
    size = np.abs(x)
    normal = size > TINY
    if np.count_nonzero(normal) == normal.size:
        return
    smallest = size == TINY
    if np.count_nonzero(smallest):
        unbounded = directed(exact() * 2.0**64, mode)
        normal |= smallest & (np.abs(unbounded) >= TINY * np.float32(2.0**64))
    # Zeros keep their sign, and NaNs (which compare false) stay NaN.
    np.multiply(x, normal, out=x)


def canonicalize(x: AnyArray) -> None:
    """Give every NaN the one pattern that the hardware produces."""
    nan = np.isnan(x)
    if np.count_nonzero(nan):
        if x.dtype == np.float32:
            np.copyto(x.view(np.uint32), CANONICAL_NAN, where=nan)
        elif x.dtype.itemsize == 2:
            np.copyto(x.view(np.uint16), np.uint16(0x7FFF), where=nan)
        else:
            np.copyto(x.view(np.uint64), np.uint64(0x7FF8 << 48), where=nan)


def round_sum(large: AnyArray, small: AnyArray, out: AnyArray) -> None:
    """large + small (float64), rounded once to nearest-even float32.

    The float64 sum may round to the very middle between two float32 numbers, or to a number whose
    float32 is subnormal; only there can the second rounding go wrong, and only there the sum is
    made odd first.
    """
    total = large + small
    np.copyto(out, total, casting="unsafe")
    # The 29 bits below the last place of float32: 1000...0 is the middle.
    middle = total.view(np.uint64) & np.uint64(0x1FFFFFFF)
    doubtful = (middle == np.uint64(0x10000000)) | (np.abs(out) <= TINY)
    if np.count_nonzero(doubtful):
        where = np.flatnonzero(doubtful)
        sums, errors = _sum_and_error(
            *(np.broadcast_to(each, out.shape).take(where) for each in (large, small))
        )
        if np.count_nonzero(errors):
            np.put(out, where, _odd(sums, errors).astype(np.float32))


def sum_to_odd(a: AnyArray, b: AnyArray) -> AnyArray:
    """a + b in float64; an inexact sum gets an odd last bit: a further rounding is right."""
    return _odd(*_sum_and_error(a, b))


def _sum_and_error(a: AnyArray, b: AnyArray) -> tuple[AnyArray, AnyArray]:
    """The rounded sum, and by how much the exact one is more: Knuth's two-sum."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _odd(total: AnyArray, error: AnyArray) -> AnyArray:
    bits = total.view(np.int64).copy()
    inexact = (error != 0) & np.isfinite(total) & np.isfinite(error) & (bits & 1 == 0)
    # Toward the exact value: away from zero if the error has the sign of the sum.
    outward = (error > 0) == (total > 0)
    bits += np.where(inexact, np.where(outward, 1, -1), 0)
    return bits.view(np.float64)


def fma(x: AnyArray, y: AnyArray, z: AnyArray, out: AnyArray) -> None:
    """x * y + z, rounded once. The product of two float32 is exact in float64."""
    if (fused := compiled_elementwise(_fused, "float32(float32, float32, float32)")) is not None:
        fused(x, y, z, out)
        return
    round_sum(np.multiply(x, y, dtype=np.float64), z.astype(np.float64), out)


def _fused(x: Any, y: Any, z: Any) -> Any:
    """`fma` of numbers, to compile: the sum in float64 made odd, and rounded."""
    product, addend = np.float64(x) * np.float64(y), np.float64(z)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = np.float64(total).view(np.int64)
    # An infinite sum has an error that is no number.
    if error != 0 and error == error and bits & 1 == 0:
        bits += 1 if (error > 0) == (total > 0) else -1
    return np.float32(np.int64(bits).view(np.float64))


def directed_sum(a: AnyArray, b: AnyArray, mode: str) -> AnyArray:
    """a + b (float64), rounded once to float32 by rounding mode `mode`."""
    result = directed(sum_to_odd(a, b), mode)
    if mode == "rm":
        # What cancels is -0 when rounding down; float64 arithmetic, to nearest, says +0.
        cancelled = (result == 0) & (a == -b) & ~((a == 0) & ~np.signbit(a) & ~np.signbit(b))
        result = np.where(cancelled, np.float32(-0.0), result)
    return result


def directed(exact: AnyArray, mode: str) -> AnyArray:
    """float64 to float32 by rounding mode `mode`: rn, rz, rm (down) or rp (up)."""
    rounded = exact.astype(np.float32)
    if mode == "rn":
        return rounded
    if mode == "rz":
        wrong = np.abs(rounded) > np.abs(exact)
        return np.where(wrong, np.nextafter(rounded, np.float32(0)), rounded)
    if mode == "rm":
        return np.where(rounded > exact, np.nextafter(rounded, np.float32(-np.inf)), rounded)
    return np.where(rounded < exact, np.nextafter(rounded, np.float32(np.inf)), rounded)
