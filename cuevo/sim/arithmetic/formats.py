"""Rounding to the floating-point formats of conversions, in all modes.

What is to be rounded comes as float64: exactly, or rounded to odd. Scaled by the format's last
place it is an integer and a rest, which NumPy's own functions round.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cuevo.sim.aliases import AnyArray


@dataclass(frozen=True)
class Format:
    precision: int
    """Binary digits, the leading one included."""
    lowest: int
    """Exponent of the smallest normal number."""
    largest: float
    nan: int
    """The pattern of the canonical NaN."""


FORMATS = {
    "e4m3": Format(4, -6, 448.0, 0x7F),
    "e5m2": Format(3, -14, 57344.0, 0x7F),
    "f16": Format(11, -14, 65504.0, 0x7FFF),
    "bf16": Format(8, -126, (2 - 2.0**-7) * 2.0**127, 0x7FFF),
    "tf32": Format(11, -126, (2 - 2.0**-10) * 2.0**127, 0x7FFFE000),
    "f32": Format(24, -126, (2 - 2.0**-23) * 2.0**127, 0x7FFFFFFF),
}

_ROUND: dict[str, Callable[[AnyArray], AnyArray]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    # Halves away from zero.
    "rna": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}


def rounded(exact: AnyArray, name: str, mode: str, *, finite: bool = False) -> AnyArray:
    """The numbers of a format (as float64) that `exact` is rounded to; `finite` keeps what is too
    large, infinities too, at the largest number.
    """
    form = FORMATS[name]
    exponent = np.maximum(np.frexp(exact)[1] - 1, form.lowest) - (form.precision - 1)
    result = np.ldexp(_ROUND[mode](np.ldexp(exact, -exponent)), exponent)
    # An infinity has no exponent.
    result = np.where(np.isinf(exact), exact, result)
    over = np.abs(result) > form.largest
    if np.count_nonzero(over):
        stays = np.full(over.shape, finite or mode == "rz")
        if mode in ("rm", "rp"):
            stays |= (exact > 0) == (mode == "rm")
        if not finite:
            stays &= np.isfinite(exact)
        limit = np.where(stays, form.largest, np.inf)
        result = np.where(over, np.copysign(limit, exact), result)
    return np.copysign(result, exact)


def patterns(value: AnyArray, name: str) -> AnyArray:
    """The patterns of numbers of a format (uint8, uint16 or uint32); any NaN becomes canonical."""
    form = FORMATS[name]
    if name == "f16":
        bits: AnyArray = value.astype(np.float16).view(np.uint16)
    elif name == "bf16":
        bits = (value.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    elif name in ("tf32", "f32"):
        bits = value.astype(np.float32).view(np.uint32)
    else:
        bits = _small_patterns(value, form)
    return np.where(np.isnan(value), bits.dtype.type(form.nan), bits)


def nan_patterns(x: AnyArray, name: str) -> AnyArray:
    """NaNs of f16, bf16 or f32 for those of float64 on an H200, as uint64: their sign, and the
    first bits of their fractions, of which the very first makes them quiet.
    """
    form, bits = FORMATS[name], x.view(np.uint64)
    places = form.precision - 1
    fraction = bits >> np.uint64(52 - places) & np.uint64((1 << places) - 1)
    sign = bits >> np.uint64(63) << np.uint64(form.nan.bit_length())
    infinity = form.nan >> places << places
    return np.asarray(sign | fraction | np.uint64(infinity | 1 << places - 1))


def _small_patterns(value: AnyArray, form: Format) -> AnyArray:
    size = np.abs(np.where(np.isnan(value), 0, value))
    exponent = np.where(size == 0, form.lowest, np.maximum(np.frexp(size)[1] - 1, form.lowest))
    digits = np.ldexp(size, form.precision - 1 - exponent).astype(np.int64)
    # A number's pattern is its digits, plus one unit of the exponent's field for each power of two.
    field = (exponent - form.lowest) << (form.precision - 1)
    return np.asarray(digits + field + np.signbit(value) * 128, np.uint8)


def small_values(bits: AnyArray, name: str) -> AnyArray:
    """The numbers (float64) that patterns of an 8-bit format stand for."""
    form = FORMATS[name]
    magnitude = (bits & np.uint8(0x7F)).astype(np.int64)
    field = magnitude >> (form.precision - 1)
    digits = magnitude & ((1 << form.precision - 1) - 1)
    digits = np.where(field > 0, digits + (1 << form.precision - 1), digits)
    value = np.ldexp(
        digits.astype(np.float64), np.maximum(field, 1) - 1 + form.lowest - (form.precision - 1)
    )
    beyond = value > form.largest
    if name == "e5m2":
        infinite = magnitude == 0x7C
        value = np.where(infinite, np.inf, np.where(beyond & ~infinite, np.nan, value))
    else:
        value = np.where(beyond, np.nan, value)
    return np.where(bits & np.uint8(0x80) != 0, -value, value)
