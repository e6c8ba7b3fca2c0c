"""cuevo.sim.arithmetic.exponential: what a GPU has for 2^x; its results themselves are in the
recordings.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuevo.sim.arithmetic import exponential, halves

pytestmark = [
    pytest.mark.unit,
    pytest.mark.usefixtures("each_way"),
    pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning"),
]


def one(x: float) -> int:
    """The pattern of 2^x."""
    return int(exponential.power_of_two(np.array([x], np.float32)).view(np.uint32)[0])


def test_whole_powers_are_exact() -> None:
    x = np.arange(-126, 128).astype(np.float32)
    np.testing.assert_array_equal(
        exponential.power_of_two(x), np.ldexp(np.float32(1), x.astype(int))
    )


def test_ends() -> None:
    assert one(128) == one(np.inf) == one(1e30) == 0x7F800000
    assert one(-127) == one(-np.inf) == one(-1e30) == 0
    assert np.isnan(exponential.power_of_two(np.array([np.nan], np.float32))).all()
    assert one(0.0) == one(-0.0) == one(2.0**-24) == one(-(2.0**-24)) == 0x3F800000


def test_results_of_an_h200() -> None:
    # Half a step further down, as a negative number is inverted.
    assert one(-0.5) == 0x3F3504F2
    assert one(0.5) == 0x3FB504F3


def test_every_fraction_is_near() -> None:
    """All of an octave: less than 1.5 units off in the last place, and never falling."""
    steps = np.arange(1 << 23, dtype=np.uint32)
    for part in np.array_split(steps, 32):
        x = (part + np.uint32(0x3F800000)).view(np.float32)
        y = exponential.power_of_two(x).astype(np.float64)
        error = (y - np.exp2(x.astype(np.float64))) * 2.0**22
        assert np.abs(error).max() < 1.5
        assert (np.diff(y) >= 0).all()


def test_negative_numbers_are_inverted(numbers: Any) -> None:
    """-1 - f has the significand of 1 - f less one step, unless f is nothing."""
    steps = numbers.rng.integers(1, 1 << 22, 1000)
    negative = (-1 - steps * 2.0**-23).astype(np.float32)
    positive = (1 - (steps + 1) * 2.0**-23).astype(np.float32)
    np.testing.assert_array_equal(
        exponential.power_of_two(negative), exponential.power_of_two(positive) / 4
    )


def test_gradual_underflow() -> None:
    x = np.array([-126.5, -140.25, -149, -150.5, -126, 3], np.float32)
    half = exponential.power_of_two(x[:4] / 2)
    found = exponential.gradual_power_of_two(x)
    np.testing.assert_array_equal(found[:4], half * half)
    np.testing.assert_array_equal(found[4:], [np.float32(2.0**-126), 8])


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_halves_are_cut_off(name: str, dtype: Any) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    x = halves.widen(bits, name)
    found = exponential.narrow_power_of_two(x, name)
    exact = exponential.power_of_two(x).astype(np.float64)
    kept = np.isfinite(found) & np.isfinite(exact)
    assert (found[kept] <= exact[kept]).all()
    rounded = exact.astype(dtype).astype(np.float64)
    inside = kept & (exact >= 2.0**-14) & np.isfinite(rounded)
    step = 2.0 ** (-10 if name == "f16" else -7)
    assert (exact[inside] < found[inside] * (1 + step)).all()
    assert (found[inside] == found[inside].astype(dtype)).all()
    # Not rounded: many are below the nearest number.
    assert np.count_nonzero(found[inside] < rounded[inside]) > 1000
    end = 16 if name == "f16" else 128
    assert np.isinf(found[(x >= end) & ~np.isnan(x)]).all()
    assert np.isnan(found[np.isnan(x)]).all()
