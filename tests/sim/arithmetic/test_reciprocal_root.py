"""cuevo.sim.arithmetic.reciprocal_root: what a GPU has for 1/sqrt(x); its results are in the
recordings.
"""

import numpy as np
import pytest

from cuevo.sim.arithmetic.reciprocal_root import gradual_reciprocal_root, reciprocal_root

pytestmark = [
    pytest.mark.unit,
    pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning"),
]


def patterns(*x: float) -> list[int]:
    found: list[int] = reciprocal_root(np.array(x, np.float32)).view(np.uint32).tolist()
    return found


def test_powers_of_two() -> None:
    """Roots of powers of 4 are exact, the others too small."""
    k = np.arange(-63, 64)
    np.testing.assert_array_equal(
        reciprocal_root(np.ldexp(np.float32(1), 2 * k)), np.ldexp(np.float32(1), -k)
    )
    assert patterns(0.5, 2, 8) == [0x3FB504F2, 0x3F3504F2, 0x3EB504F2]


def test_ends() -> None:
    inf, minus = 0x7F800000, 1 << 31
    assert patterns(0.0, -0.0, np.inf) == [inf, inf | minus, 0]
    below = np.array([np.nan, -1, -(2.0**-126), -np.inf], np.float32)
    assert np.isnan(reciprocal_root(below)).all()


@pytest.mark.parametrize("first", [0x3F800000, 0x40000000])
def test_every_fraction_is_near(first: int) -> None:
    """All of two octaves: within the bound of the PTX ISA, and never rising."""
    steps = np.arange(1 << 23, dtype=np.uint32)
    for part in np.array_split(steps, 32):
        x = (part + np.uint32(first)).view(np.float32)
        y = reciprocal_root(x).astype(np.float64)
        assert np.abs(y * np.sqrt(x.astype(np.float64)) - 1).max() < 2.0**-22.9
        assert (np.diff(y) <= 0).all()


def test_subnormal_numbers() -> None:
    x = np.array([2.0**-148, 1.5 * 2.0**-140, 0, -0.0, -(2.0**-149), 3], np.float32)
    found = gradual_reciprocal_root(x)
    second, last = reciprocal_root(np.array([1.5, 3], np.float32))
    expected = [2.0**74, np.ldexp(second, 70), np.inf, -np.inf, np.nan, last]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
