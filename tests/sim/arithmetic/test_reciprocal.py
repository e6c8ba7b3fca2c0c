"""cuevo.sim.arithmetic.reciprocal: what a GPU has for 1/x; its results themselves are in the
recordings.
"""

import numpy as np
import pytest

from cuevo.sim.arithmetic.reciprocal import gradual_reciprocal, reciprocal

pytestmark = [
    pytest.mark.unit,
    pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning"),
]


def patterns(*x: float) -> list[int]:
    found: list[int] = reciprocal(np.array(x, np.float32)).view(np.uint32).tolist()
    return found


def test_powers_of_two_are_exact() -> None:
    x = np.ldexp(np.float32(1), np.arange(-126, 127))
    np.testing.assert_array_equal(reciprocal(x), 1 / x)
    np.testing.assert_array_equal(reciprocal(-x), -1 / x)


def test_ends() -> None:
    inf, minus = 0x7F800000, 1 << 31
    assert patterns(0.0, -0.0, np.inf, -np.inf) == [inf, inf | minus, 0, minus]
    assert patterns(2.0**127, -1.5 * 2.0**127) == [0, minus]
    assert np.isnan(reciprocal(np.array([np.nan], np.float32))).all()


def test_every_fraction_is_near() -> None:
    """All of an octave: less than a unit off in the last place, and never rising."""
    steps = np.arange(1 << 23, dtype=np.uint32)
    for part in np.array_split(steps, 32):
        x = (part + np.uint32(0x3F800000)).view(np.float32)
        y = reciprocal(x).astype(np.float64)
        assert np.abs(y - 1 / x.astype(np.float64)).max() < 2.0**-24
        assert (np.diff(y) <= 0).all()


def test_gradual_underflow() -> None:
    x = np.array([2.0**127, 1.5 * 2.0**126, 2.0**-128, 2.0**-149, -(2.0**-127), 0, 3], np.float32)
    found = gradual_reciprocal(x)
    third = reciprocal(np.array([1.5, 3], np.float32))
    expected = [2.0**-127, np.ldexp(third[0], -126), np.inf, np.inf, -(2.0**127), np.inf, third[1]]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
