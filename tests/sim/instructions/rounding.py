"""Rounding as it is defined, by search among all numbers of a format: what the executor's own
arithmetic is compared with.
"""

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

DTYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


@cache
def numbers(name: str) -> Array:
    """All finite numbers of a format from 0 on, and as the last one what would come next if the
    exponent had no end; their places are their patterns.
    """
    dtype = np.dtype(DTYPES[name])
    unsigned = np.dtype(f"u{dtype.itemsize}")
    patterns = np.arange(2 ** (8 * dtype.itemsize - 1)).astype(unsigned)
    values = patterns.view(dtype).astype(np.float64)
    finite = values[np.isfinite(values)]
    assert (np.diff(finite) > 0).all()
    return np.append(finite, 2 * finite[-1] - finite[-2])


def rounded(exact: Array, name: str, mode: str, *, finite: bool = False) -> Array:
    """Patterns of `exact` (float64) rounded by mode; NaN becomes the canonical one."""
    table = numbers(name)
    largest = table.size - 2
    bits = 8 * np.dtype(DTYPES[name]).itemsize
    size = np.where(np.isnan(exact), 0, np.abs(exact))
    beyond = size >= table[-1]
    inside = np.minimum(size, table[-2])
    below = np.searchsorted(table, inside, side="right") - 1
    # Between the largest number and the one that would come next, too.
    below = np.where((size > table[-2]) | beyond, largest, below)
    rest = size - table[below]
    step = table[below + 1] - table[below]
    up = {
        "rn": (rest > step / 2) | ((rest == step / 2) & (below % 2 == 1)),
        "rz": np.zeros(exact.shape, bool),
        "rm": (rest > 0) & (exact < 0),
        "rp": (rest > 0) & (exact > 0),
    }[mode]
    # An infinity stays one, whatever the mode.
    place = np.where(np.isinf(exact), largest + 1, below + up)
    if finite:
        place = np.minimum(place, largest)
    canonical = 2 ** (bits - 1) - 1
    signed = place + (np.signbit(exact) * (1 << bits - 1))
    return np.where(np.isnan(exact), canonical, signed).astype(f"u{bits // 8}")


def to_single(exact: Array) -> Array:
    """Patterns of float32 of numbers that float32 has."""
    return canonical(exact.astype(np.float32))


def canonical(x: Array) -> Array:
    """Patterns, any NaN as the canonical one."""
    bits = x.view(f"u{x.dtype.itemsize}")
    pattern = {2: 0x7FFF, 4: 0x7FFFFFFF, 8: 0x7FF8 << 48}[x.dtype.itemsize]
    return np.where(np.isnan(x.astype(np.float64)), bits.dtype.type(pattern), bits)
