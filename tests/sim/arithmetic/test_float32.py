"""cuevo.sim.arithmetic.float32: single rounding, flushing, canonical NaN."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cuevo.sim.arithmetic import float32

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("each_way")]

F = Fraction


def fma(x: Any, y: Any, z: Any) -> Any:
    out = np.empty(x.shape, np.float32)
    with np.errstate(all="ignore"):
        float32.fma(x, y, z, out)
    return out


def test_fma_is_rounded_once(numbers: Any) -> None:
    x, y, z = (numbers.floats(4000, finite=True) for _ in range(3))
    # Near each other, so that the last bits of the product decide.
    with np.errstate(all="ignore"):
        z[:2000] = -(x[:2000] * y[:2000])
    z[~np.isfinite(z)] = 1
    out = fma(x, y, z)
    for a, b, c, d in zip(x.tolist(), y.tolist(), z.tolist(), out.tolist(), strict=True):
        assert d == numbers.rounded(F(a) * F(b) + F(c), "f32"), (a, b, c)


@pytest.mark.parametrize(
    ("x", "y", "z"),
    [
        # The float64 sum falls on the middle between two float32 numbers, the exact one beside it.
        (1 + 2.0**-23, 1 + 2.0**-23, 2.0**24),
        (2.0**-30, 2.0**-30, 1 + 2.0**-23),
        (1.0, 1 + 2.0**-23, 2.0**24),
        (-(2.0**-60), 2.0**-30, 2.0**-24 + 2.0**-47),
        # Subnormal results.
        (2.0**-75, 1.5 * 2.0**-75, 2.0**-149),
        (2.0**-75, 2.0**-75, 2.0**-149),
        (-(2.0**-80), 2.0**-80, 2.0**-149),
        # Overflow, and the last number before it.
        (2.0**127, 2.0, -(2.0**104)),
        (2.0**127, 2.0, -(2.0**102)),
    ],
)
def test_fma_in_tight_places(numbers: Any, x: float, y: float, z: float) -> None:
    operands = (np.array([v], np.float32) for v in (x, y, z))
    out = fma(*operands)
    exact = [F(float(np.float32(v))) for v in (x, y, z)]
    assert out[0] == numbers.rounded(exact[0] * exact[1] + exact[2], "f32")


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_directed_rounding_of_odd_sums(numbers: Any, mode: str) -> None:
    a = numbers.floats(3000, finite=True).astype(np.float64)
    b = numbers.floats(3000, finite=True).astype(np.float64)
    with np.errstate(all="ignore"):
        result = float32.directed(float32.sum_to_odd(a, b), mode)
    for x, y, d in zip(a.tolist(), b.tolist(), result.tolist(), strict=True):
        assert d == numbers.rounded(F(x) + F(y), "f32", mode), (x, y)


def test_flushing_keeps_signs_and_nans() -> None:
    tiny = 2.0**-127
    x = np.array([tiny, -tiny, 0.0, -0.0, 2.0**-126, np.nan, np.inf, -1.5], np.float32)
    expected = np.array([0.0, -0.0, 0.0, -0.0, 2.0**-126, np.nan, np.inf, -1.5], np.float32)
    result = float32.flushed(x)
    float32.flush(x)
    for actual in (result, x):
        np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))
        np.testing.assert_array_equal(actual, expected)


def test_nothing_to_flush_copies_nothing() -> None:
    x = np.array([1.0, -2.0], np.float32)
    assert float32.flushed(x) is x


def test_canonical_nan() -> None:
    x = np.array([0xFFC00001, 0x7F800001, 0x3F800000], np.uint32).view(np.float32)
    float32.canonicalize(x)
    assert x.view(np.uint32).tolist() == [0x7FFFFFFF, 0x7FFFFFFF, 0x3F800000]
