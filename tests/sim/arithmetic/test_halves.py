"""cuevo.sim.arithmetic.halves: conversions to and from 16-bit patterns."""

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuevo.sim.arithmetic import halves

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("each_way")]

DTYPES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("name", DTYPES)
def test_every_pattern_widens_and_narrows_to_itself(name: str) -> None:
    bits = np.arange(65536, dtype=np.uint16)
    wide = halves.widen(bits, name)
    reference = bits.view(DTYPES[name]).astype(np.float32)
    nan = np.isnan(reference)
    np.testing.assert_array_equal(wide[~nan].view(np.uint32), reference[~nan].view(np.uint32))
    assert np.isnan(wide[nan]).all()
    with np.errstate(all="ignore"):
        back = halves.narrow(wide, name)
    np.testing.assert_array_equal(back[~nan], bits[~nan])
    assert (back[nan] == 0x7FFF).all()


@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("name", DTYPES)
def test_narrowing_rounds_once(numbers: Any, name: str, mode: str) -> None:
    x = numbers.floats(3000, finite=True)
    # Middles between two neighbours, and their neighbours in float32.
    middles = np.float32(1 + 2.0**-11) * np.float32(2.0) ** np.arange(-20, 12, dtype=np.float32)
    x = np.concatenate(
        [x, middles, np.nextafter(middles, np.float32(0)), np.float32([65519, 65520])]
    )
    with np.errstate(all="ignore"):
        result = halves.narrow(x.astype(np.float32), name, mode)
    for value, bits in zip(x.tolist(), result, strict=True):
        expected = numbers.rounded(Fraction(value), name, mode)
        assert float(bits.view(DTYPES[name])) == expected, value


@pytest.mark.parametrize("name", DTYPES)
def test_narrowing_float64_rounds_once(numbers: Any, name: str) -> None:
    rng = numbers.rng
    x = rng.standard_normal(2000) * 2.0 ** rng.integers(-150, 130, 2000)
    # Just beside the middle: a detour by float32 would land on it.
    base = (1 + 2.0 ** (-11 if name == "f16" else -8)) * 2.0 ** rng.integers(-10, 10, 50)
    x = np.concatenate([x, base, base * (1 + 2.0**-40), base * (1 - 2.0**-40)])
    with np.errstate(all="ignore"):
        result = halves.narrow_exact(x, name)
    for value, bits in zip(x.tolist(), result, strict=True):
        assert float(bits.view(DTYPES[name])) == numbers.rounded(Fraction(value), name), value
