"""float64 arithmetic in all rounding modes: rounded once, subnormals and overflow included.

A result is made as an integer that holds it to more bits than are kept, its last bit odd where it
is not exact; one routine rounds that integer.
"""

import numpy as np

from cuevo.sim.aliases import AnyArray

_LARGEST = np.finfo(np.float64).max
_QUIET = np.uint64(1 << 51)
_INVALID = np.uint64(0xFFF8 << 48)
"""The NaN of operands that are none."""


def keep_nans(result: AnyArray, *operands: AnyArray) -> AnyArray:
    """`result` with the NaNs of an H200: where operands are NaN, the last one of them, quiet, and
    of the sign that it has there, whatever the operation does to signs.
    """
    nan = np.isnan(result)
    if not np.count_nonzero(nan):
        return result
    bits = np.full(result.shape, _INVALID)
    for operand in operands:
        bits = np.where(np.isnan(operand), operand.view(np.uint64) | _QUIET, bits)
    return np.where(nan, bits.view(np.float64), result)


def fma(x: AnyArray, y: AnyArray, z: AnyArray, mode: str) -> AnyArray:
    """x * y + z, rounded once."""
    # Finite factors, however large, are nothing beside an infinity.
    finite = np.isfinite(x) & np.isfinite(y)
    native = np.where(finite, z, x * y + z)
    (mx, ex), (my, ey), (mz, ez) = np.frexp(x), np.frexp(y), np.frexp(z)
    # All in units of the product's power of two, so that nothing under- or overflows; a summand
    # that is smaller by more than all digits counts by its sign only.
    none = (mx == 0) | (my == 0)
    unit = np.where(none, ez, ex + ey).astype(np.int64)
    high, low = _product(mx, my)
    ez = np.where(mz == 0, unit, ez)
    other = np.ldexp(mz, np.clip(ez - unit, -300, 300).astype(np.int32))
    unit = np.where(ez - unit > 300, ez - 300, unit)
    t, t_low = _sum(other, low)
    v, v_low = _sum(high, t)
    total, rest = _sum(v, _odd_sum(t_low, v_low))
    mantissa, exponent = np.frexp(total)
    # 10 bits below the last place of the sum; what is below them makes the last one odd.
    below = np.ldexp(rest, (63 - exponent).astype(np.int32))
    whole = np.floor(below)
    digits = np.ldexp(mantissa, 53).astype(np.int64) * 1024 + whole.astype(np.int64)
    digits |= (below != whole).astype(np.int64)
    result = _rounded(digits, unit + exponent - 63, mode)
    # An exact zero is -0 if both summands are, or if it came about while rounding down.
    negative = np.signbit(x) ^ np.signbit(y)
    zero = np.where(none & (z == 0) & (negative == np.signbit(z)), negative, mode == "rm")
    result = np.where(digits == 0, np.where(zero, -0.0, 0.0), result)
    return np.where(finite & np.isfinite(z), result, native)


def add(x: AnyArray, y: AnyArray, mode: str) -> AnyArray:
    if mode == "rn":
        return np.asarray(x + y)
    return fma(x, np.ones_like(x), y, mode)


def multiply(x: AnyArray, y: AnyArray, mode: str) -> AnyArray:
    if mode == "rn":
        return np.asarray(x * y)
    signed = np.where(np.signbit(x) ^ np.signbit(y), -0.0, 0.0)
    return fma(x, y, signed, mode)


def divide(x: AnyArray, y: AnyArray, mode: str) -> AnyArray:
    native = np.asarray(x / y)
    if mode == "rn":
        return native
    (mx, ex), (my, ey) = np.frexp(x), np.frexp(y)
    quotient = mx / my
    high, low = _product(quotient, my)
    result = _with_rest(quotient, ((mx - high) - low) * np.sign(my), ex - ey, mode)
    ordinary = np.isfinite(x) & np.isfinite(y) & (x != 0) & (y != 0)
    return np.where(ordinary, result, native)


def square_root(x: AnyArray, mode: str) -> AnyArray:
    native = np.asarray(np.sqrt(x))
    if mode == "rn":
        return native
    mantissa, exponent = np.frexp(x)
    odd = exponent & 1
    mantissa = np.ldexp(mantissa, odd)
    root = np.sqrt(mantissa)
    high, low = _product(root, root)
    result = _with_rest(root, (mantissa - high) - low, (exponent - odd) // 2, mode)
    return np.where(np.isfinite(x) & (x > 0), result, native)


def _with_rest(near: AnyArray, rest: AnyArray, exponent: AnyArray, mode: str) -> AnyArray:
    """`near`, the nearest number to a result that is never halfway between two, rounded again by
    the sign of what is missing.
    """
    mantissa, shift = np.frexp(near)
    digits = np.ldexp(mantissa, 53).astype(np.int64) * 4 + np.sign(rest).astype(np.int64)
    return _rounded(digits, exponent.astype(np.int64) + shift - 55, mode)


def _rounded(digits: AnyArray, exponent: AnyArray, mode: str) -> AnyArray:
    """digits * 2^exponent (int64 both) by rounding mode `mode`."""
    negative = digits < 0
    size = np.abs(digits).astype(np.uint64)
    length = np.frexp(size.astype(np.float64))[1].astype(np.int64)
    # The conversion may have rounded up to the next power of two.
    length -= (size >> np.clip(length - 1, 0, 63).astype(np.uint64)) == 0
    drop = np.maximum(np.maximum(length - 53, -1074 - exponent), 0)
    # What is dropped altogether, and was less than half of the last place, counts by its sign.
    size = np.where(drop > 63, np.minimum(size, 1), size)
    by = np.minimum(drop, 63).astype(np.uint64)
    one = np.uint64(1)
    kept, rest = size >> by, size & ((one << by) - one)
    if mode == "rn":
        half = np.where(by > 0, one << (np.maximum(by, 1) - one), one)
        up = (rest > half) | ((rest == half) & (kept & one != 0) & (by > 0))
    elif mode == "rz":
        up = np.zeros(size.shape, np.bool_)
    else:
        up = (rest != 0) & (negative if mode == "rm" else ~negative)
    kept = kept + up.astype(np.uint64)
    result = np.ldexp(kept.astype(np.float64), (exponent + drop).astype(np.int32))
    if mode != "rn":
        stays = negative if mode == "rp" else ~negative if mode == "rm" else np.True_
        result = np.where(np.isinf(result) & stays, _LARGEST, result)
    return np.asarray(np.where(negative, -result, result))


def _sum(a: AnyArray, b: AnyArray) -> tuple[AnyArray, AnyArray]:
    """The sum and its error, exactly (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _product(a: AnyArray, b: AnyArray) -> tuple[AnyArray, AnyArray]:
    """The product and its error, exactly (Dekker); for factors of ordinary size."""
    product = a * b
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _upper_half(x: AnyArray) -> AnyArray:
    scaled = x * 134217729.0  # 2^27 + 1
    return np.asarray(scaled - (scaled - x))


def _odd_sum(a: AnyArray, b: AnyArray) -> AnyArray:
    """a + b; an inexact sum gets an odd last bit."""
    total, error = _sum(a, b)
    bits = total.view(np.int64).copy()
    inexact = (error != 0) & (bits & 1 == 0)
    outward = (error > 0) == (total > 0)
    bits += np.where(inexact, np.where(outward, 1, -1), 0)
    return bits.view(np.float64)
