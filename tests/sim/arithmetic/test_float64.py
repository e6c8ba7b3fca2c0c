"""cuevo.sim.arithmetic.float64 against exact fractions."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cuevo.sim.arithmetic import float64

pytestmark = pytest.mark.unit

SIZE = 1500
MODES = ("rn", "rz", "rm", "rp")


def operands(rng: Any) -> Any:
    """Ordinary numbers, random patterns, small integers far down, and the ends of the range."""
    special = [0.0, -0.0, 1, -1, 2.0**-1074, -(2.0**-1074), 2.0**-1022, 1.7976931348623157e308]
    kinds = [
        rng.standard_normal(SIZE),
        rng.integers(0, 2**64, SIZE, dtype=np.uint64).view(np.float64),
        np.ldexp(rng.integers(-4, 5, SIZE).astype(float), rng.integers(-540, -480, SIZE)),
        rng.choice([*special, 1 + 2.0**-52, -1e-310], SIZE),
    ]
    values = np.choose(rng.choice([0, 0, 1, 2, 3], SIZE), kinds)
    return np.where(np.isfinite(values), values, 1.5)


def rounded(value: Fraction, mode: str) -> float:
    if value == 0:
        return 0.0
    size, sign = abs(value), 1 if value > 0 else -1
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    quantum = Fraction(2) ** (max(exponent, -1022) - 52)
    whole, rest = divmod(size / quantum, 1)
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
        "rz": False,
        "rm": sign < 0 and rest > 0,
        "rp": sign > 0 and rest > 0,
    }[mode]
    result = (whole + up) * quantum
    if result < Fraction(2) ** 1024:
        return sign * float(result)
    away = mode == "rn" or mode == ("rp" if sign > 0 else "rm")
    return sign * (math.inf if away else 1.7976931348623157e308)


def compare(found: Any, exact: Callable[[int], Fraction | None], mode: str) -> None:
    for i, result in enumerate(found.tolist()):
        value = exact(i)
        if value is not None:
            assert result == rounded(value, mode), (i, mode)


@pytest.mark.parametrize("mode", MODES)
def test_fma(mode: str) -> None:
    rng = np.random.default_rng(1)
    x, y, z = (operands(rng) for _ in range(3))
    with np.errstate(all="ignore"):
        # What cancels, exactly or nearly.
        z[:200] = -(x[:200] * y[:200])
        y[200:300], z[200:300] = -1, x[200:300]
        z = np.where(np.isfinite(z), z, 1.0)
        found = float64.fma(x, y, z, mode)
    compare(found, lambda i: Fraction(x[i]) * Fraction(y[i]) + Fraction(z[i]), mode)


@pytest.mark.parametrize("mode", MODES)
def test_binary(mode: str) -> None:
    rng = np.random.default_rng(2)
    x, y = operands(rng), operands(rng)
    with np.errstate(all="ignore"):
        compare(float64.add(x, y, mode), lambda i: Fraction(x[i]) + Fraction(y[i]), mode)
        compare(float64.multiply(x, y, mode), lambda i: Fraction(x[i]) * Fraction(y[i]), mode)
        quotient = float64.divide(x, y, mode)
    compare(quotient, lambda i: Fraction(x[i]) / Fraction(y[i]) if y[i] else None, mode)


@pytest.mark.parametrize("mode", MODES)
def test_square_root(mode: str) -> None:
    x = np.abs(operands(np.random.default_rng(3)))
    for value, root in zip(x.tolist(), float64.square_root(x, mode).tolist(), strict=True):
        below, above = math.nextafter(root, 0), math.nextafter(root, math.inf)
        if mode == "rn":
            assert root == math.sqrt(value)
        elif mode == "rp":
            assert Fraction(root) ** 2 >= value and (value == 0 or Fraction(below) ** 2 < value)
        else:
            assert Fraction(root) ** 2 <= value < Fraction(above) ** 2


def test_zeros_and_infinities() -> None:
    one, zero, inf = (np.array([x]) for x in (1.0, 0.0, np.inf))
    with np.errstate(all="ignore"):
        assert math.copysign(1, float64.add(one, -one, "rm")[0]) == -1
        assert math.copysign(1, float64.add(one, -one, "rz")[0]) == 1
        assert math.copysign(1, float64.add(zero, zero, "rm")[0]) == 1
        assert math.copysign(1, float64.multiply(-one, zero, "rp")[0]) == -1
        assert float64.add(inf, -one, "rz")[0] == math.inf
        assert np.isnan(float64.fma(inf, zero, one, "rm")[0])
        assert float64.divide(one, -zero, "rz")[0] == -math.inf
        assert np.isnan(float64.square_root(-one, "rp")[0])
