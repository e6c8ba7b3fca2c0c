"""cuevo.sim.arithmetic.quad_product against fractions rounded step by step."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cuevo.sim.arithmetic.quad_product import quad_product
from cuevo.sim.arithmetic.tensor_core import F16, Block, block, multiply_accumulate

pytestmark = pytest.mark.unit

PRODUCTS = 3


def operands(rng: Any, out: Any) -> tuple[Any, Any, Any]:
    """Numbers of all magnitudes, with subnormals and zeros."""

    def some(shape: tuple[int, ...], dtype: Any) -> Any:
        spread = rng.integers(-20, 8, shape)
        return (rng.choice([0, 1, 1, 1], shape) * rng.standard_normal(shape) * 2.0**spread).astype(
            dtype
        )

    shapes = (8, 4, PRODUCTS), (4, 8, PRODUCTS), (8, 8, PRODUCTS)
    return some(shapes[0], F16), some(shapes[1], F16), some(shapes[2], out)


@pytest.mark.parametrize("arch", [80, 90, 120])
@pytest.mark.parametrize("out", ["f32", "f16"])
def test_later_architectures_round_each_sum(numbers: Any, out: str, arch: int) -> None:
    a, b, c = operands(numbers.rng, np.float32 if out == "f32" else np.float16)
    result = quad_product(a.view(np.uint16), b.view(np.uint16), c, arch)
    assert result.dtype == c.dtype

    def add(x: Fraction, y: Fraction) -> Fraction:
        return Fraction(numbers.rounded(x + y, "f32"))

    for i, j, n in np.ndindex(c.shape):
        p0, p1, p2, p3 = (
            Fraction(float(a[i, k, n])) * Fraction(float(b[k, j, n])) for k in range(4)
        )
        start = Fraction(float(c[i, j, n]))
        if out == "f32":
            expected = add(start, add(add(add(p0, p1), p2), p3))
        else:
            expected = Fraction(numbers.rounded(add(add(start, add(p0, p1)), add(p2, p3)), "f16"))
        assert float(result[i, j, n]) == float(expected)


@pytest.mark.parametrize(("arch", "fraction"), [(70, 23), (72, 23), (75, 24)])
def test_the_first_tensor_cores_take_it_as_one_block(
    numbers: Any, arch: int, fraction: int
) -> None:
    assert block(arch).fraction_bits == fraction
    for dtype in (np.float32, np.float16):
        a, b, c = operands(numbers.rng, dtype)
        patterns = a.view(np.uint16), b.view(np.uint16)
        expected = multiply_accumulate(*patterns, c, F16, Block(fraction, 4))
        np.testing.assert_array_equal(quad_product(*patterns, c, arch), expected)


@pytest.mark.parametrize("arch", [70, 75, 80, 90])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_specials_and_zeros(arch: int, dtype: Any) -> None:
    a, b = np.zeros((8, 4, 1), np.float16), np.ones((4, 8, 1), np.float16)
    c = np.zeros((8, 8, 1), dtype)
    a[0, 0], a[1, 1], a[2, 2], a[3, 3] = np.inf, np.nan, -np.inf, 65504
    c[0, 0], c[3] = -np.inf, 65504
    with np.errstate(all="ignore"):
        result = quad_product(a.view(np.uint16), b.view(np.uint16), c, arch)
    bits = result.view(np.uint32 if dtype == np.float32 else np.uint16)
    canonical = 0x7FFFFFFF if dtype == np.float32 else 0x7FFF
    assert bits[0, 0, 0] == canonical and (bits[1] == canonical).all()
    assert (result[0, 1:] == np.inf).all() and (result[2] == -np.inf).all()
    assert (result[3] == (131008 if dtype == np.float32 else np.inf)).all()
    assert not bits[4:].any()
