"""cuevo.sim.arithmetic.logarithm: what a GPU has for log2 x; its results themselves are in the
recordings.
"""

import numpy as np
import pytest

from cuevo.sim.arithmetic.logarithm import gradual_logarithm, logarithm

pytestmark = [
    pytest.mark.unit,
    pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning"),
]


def patterns(*x: float) -> list[int]:
    found: list[int] = logarithm(np.array(x, np.float32)).view(np.uint32).tolist()
    return found


def test_powers_of_two() -> None:
    """Exact from 1 on; below, the number before."""
    exponents = np.arange(-126, 128).astype(np.float32)
    found = logarithm(np.exp2(exponents))
    np.testing.assert_array_equal(found[126:], exponents[126:])
    np.testing.assert_array_equal(found[:125], np.nextafter(exponents[:125], np.float32(0)))
    assert patterns(0.5, 1) == [0xBF7FFFFE, 0]


def test_around_one() -> None:
    below, above = np.nextafter(np.float32(1), np.float32([0, 2]))
    found = logarithm(np.array([below, above]))
    assert (found * np.float32(2.0**36)).tolist() == [-813, 19195]


def test_ends() -> None:
    inf, minus = 0x7F800000, 1 << 31
    assert patterns(0.0, -0.0, np.inf) == [inf | minus, inf | minus, inf]
    assert np.isnan(logarithm(np.array([np.nan, -1, -(2.0**-126), -np.inf], np.float32))).all()


@pytest.mark.parametrize("first", [0x3F000000, 0x3F800000])
def test_every_fraction_is_near(first: int) -> None:
    """All of an octave: within the bound of the PTX ISA, and ever rising."""
    steps = np.arange(1 << 23, dtype=np.uint32)
    for part in np.array_split(steps, 32):
        x = (part + np.uint32(first)).view(np.float32)
        y = logarithm(x).astype(np.float64)
        assert np.abs(y - np.log2(x.astype(np.float64))).max() < 2.0**-22
        assert (np.diff(y) > 0).all()


def test_subnormal_numbers() -> None:
    x = np.array([2.0**-127, 1.5 * 2.0**-140, 2.0**-149, 0, -(2.0**-149), 3], np.float32)
    found = gradual_logarithm(x)
    first, second, last = logarithm(np.array([2.0**-103, 1.5 * 2.0**-116, 3], np.float32))
    expected = [first - 24, second - 24, -149, -np.inf, np.nan, last]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
