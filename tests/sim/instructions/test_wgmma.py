"""cuevo.sim.instructions.wgmma: what is computed, of which operands."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sim.instructions.wgmma_kernels import (
    ACCUMULATORS,
    FENCE,
    ISSUE,
    WAIT,
    Product,
    run,
)

from cuevo.sim.tensor_core import block, multiply_accumulate

pytestmark = pytest.mark.unit


def integers(rng: Any, product: Product) -> tuple[Any, Any, Any]:
    """A, B and C of small integers, whose product is exact in every format."""
    a = rng.integers(-4, 5, (64, product.depth)).astype(product.dtype)
    b = rng.integers(-4, 5, (product.depth, product.n)).astype(product.dtype)
    c = rng.integers(-64, 65, (64, product.n)).astype(ACCUMULATORS[product.d])
    return a, b, c


def exact(a: Any, b: Any, c: Any) -> Any:
    return (a.astype(float) @ b.astype(float) + c.astype(float)).astype(c.dtype)


FORMS = [("f32", "f16"), ("f32", "bf16"), ("f16", "f16"), ("f32", "tf32")]


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_shapes(run_kernel: Any, numbers: Any, n: int) -> None:
    d, ab = FORMS[n // 8 % len(FORMS)]
    for swizzle_a in (-1, 64):
        product = Product(n, d, ab, swizzle_a=swizzle_a)
        a, b, c = integers(numbers.rng, product)
        np.testing.assert_array_equal(run(run_kernel, product, a, b, c), exact(a, b, c))


@pytest.mark.parametrize("swizzle_b", [0, 32, 64, 128])
@pytest.mark.parametrize("swizzle_a", [-1, 0, 32, 64, 128])
def test_operands(run_kernel: Any, numbers: Any, swizzle_a: int, swizzle_b: int) -> None:
    base = Product(80, swizzle_a=swizzle_a, swizzle_b=swizzle_b)
    majors = [(x, y) for x in (False, True)[: 1 + (swizzle_a >= 0)] for y in (False, True)]
    products = [replace(base, mn_major_a=x, mn_major_b=y) for x, y in majors]
    for product in (*products, replace(base, ab="tf32")):
        a, b, c = integers(numbers.rng, product)
        np.testing.assert_array_equal(run(run_kernel, product, a, b, c), exact(a, b, c))


@pytest.mark.parametrize(("d", "ab"), FORMS)
@pytest.mark.parametrize("n", [24, 256])
def test_bits(run_kernel: Any, numbers: Any, n: int, d: str, ab: str) -> None:
    """Numbers that are rounded, zeros, infinities and NaNs among them."""
    product, rng = Product(n, d, ab), numbers.rng

    def wide(*shape: int) -> Any:
        x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)
        x[rng.random(shape) < 0.1] = 0
        return x

    a, b = wide(64, product.depth).astype(product.dtype), wide(product.depth, n)
    b, c = b.astype(product.dtype), wide(64, n).astype(ACCUMULATORS[d])
    a[5, 3], b[2, 7], c[9, 1], c[5, 7] = np.inf, np.nan, -np.inf, np.nan
    found = run(run_kernel, product, a, b, c)
    bits = f"u{product.dtype.itemsize}"
    with np.errstate(all="ignore"):
        wanted = multiply_accumulate(
            a.view(bits)[..., None],
            b.view(bits)[..., None],
            c[..., None],
            product.dtype,
            block(90, product.dtype),
        )[..., 0]
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("swizzle_a", [-1, 128])
@pytest.mark.parametrize(("scale_a", "scale_b"), [(1, -1), (-1, 1), (-1, -1)])
def test_signs(run_kernel: Any, numbers: Any, scale_a: int, scale_b: int, swizzle_a: int) -> None:
    for ab in ("f16", "tf32"):
        product = Product(16, ab=ab, swizzle_a=swizzle_a, scale_a=scale_a, scale_b=scale_b)
        a, b, c = integers(numbers.rng, product)
        wanted = exact(scale_a * a, scale_b * b, c)
        np.testing.assert_array_equal(run(run_kernel, product, a, b, c), wanted)


@pytest.mark.parametrize("scale", ["0", "!scale"])
@pytest.mark.parametrize(("d", "ab"), FORMS)
def test_without_what_was_there(run_kernel: Any, numbers: Any, d: str, ab: str, scale: str) -> None:
    product = Product(32, d, ab)
    a, b, c = integers(numbers.rng, product)
    c[3, 4] = np.nan
    body = f"{FENCE} {product.statement(scale=scale)} {ISSUE} {WAIT}"
    found = run(run_kernel, product, a, b, c, body)
    np.testing.assert_array_equal(found, exact(a, b, np.zeros_like(c)))
    assert not np.signbit(found[found == 0]).any()


def test_accumulators_that_nobody_has_written(run_kernel: Any, numbers: Any) -> None:
    product = Product(32)
    a, b, c = integers(numbers.rng, product)
    first, second = (product.statement(d="e", scale=scale) for scale in ("!scale", "scale"))
    moves = "".join(f"mov.b32 d{i}, e{i};" for i in range(product.registers))
    body = f"{FENCE} {first} {second} {ISSUE} {WAIT} {moves}"
    found = run(run_kernel, product, a, b, c, body)
    np.testing.assert_array_equal(found, exact(a, b, exact(a, b, np.zeros_like(c))))


@pytest.mark.parametrize(("d", "ab"), FORMS)
def test_chains(run_kernel: Any, numbers: Any, d: str, ab: str) -> None:
    """Each goes on from what the one before leaves, in one group, in several, with fences or not;
    the last with B twice as far along k.
    """
    product = Product(40, d, ab)
    a, b, c = integers(numbers.rng, product)
    one = product.statement()
    negative = replace(product, scale_b=-1).statement()
    body = f"""
    {FENCE} {one} {one} {ISSUE} {one} {ISSUE} {FENCE} {one} {ISSUE} {negative} {ISSUE}
    wgmma.wait_group.sync.aligned 2; {FENCE} {one} {ISSUE} {WAIT} {one} {ISSUE} {WAIT}
    """
    found = run(run_kernel, product, a, b, c, body)
    wanted = c.astype(float) + 5 * (a.astype(float) @ b.astype(float))
    np.testing.assert_array_equal(found, wanted.astype(c.dtype))


def test_several_accumulators(run_kernel: Any, numbers: Any) -> None:
    """Two sets of them, retired one after the other."""
    product = Product(16, swizzle_a=-1)
    a, b, c = integers(numbers.rng, product)
    count = product.registers
    adds = "".join(f"add.f32 d{i}, d{i}, e{i};" for i in range(count))
    body = f"""
    {"".join(f"mov.b32 e{i}, d{i};" for i in range(count))}
    {FENCE} {product.statement(d="e")} {ISSUE} {product.statement()} {product.statement()} {ISSUE}
    wgmma.wait_group.sync.aligned 1; {"".join(f"add.f32 e{i}, e{i}, e{i};" for i in range(count))}
    {WAIT} {adds}
    """
    found = run(run_kernel, product, a, b, c, body)
    wanted = 3 * c.astype(float) + 4 * (a.astype(float) @ b.astype(float))
    np.testing.assert_array_equal(found, wanted)
