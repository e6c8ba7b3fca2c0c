"""cuevo.sim.instructions.integer, against Python's integers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.unit

SIZE = 256
TYPES = ("s16", "u16", "s32", "u32", "s64", "u64")
WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}


def wrap(value: int, scalar: str) -> int:
    """`value` modulo 2^bits, in the range of the type."""
    bits = int(scalar[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if scalar[0] == "s" and value >> (bits - 1) else value


def truncating(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
}


def check(result: Any, scalar: str, expected: list[int]) -> None:
    assert [int(x) for x in result] == [wrap(x, scalar) for x in expected]


@pytest.mark.parametrize("scalar", TYPES)
@pytest.mark.parametrize("op", BINARY)
def test_binary(run_elementwise: Any, numbers: Any, op: str, scalar: str) -> None:
    a, b = numbers.integers(scalar, SIZE), numbers.integers(scalar, SIZE)
    d = run_elementwise(f"{op}.{scalar} d, a, b;", a=(scalar, a), b=(scalar, b), d=scalar)
    check(d, scalar, [BINARY[op](int(x), int(y)) for x, y in zip(a, b, strict=True)])


@pytest.mark.parametrize("scalar", TYPES)
def test_mul_hi(run_elementwise: Any, numbers: Any, scalar: str) -> None:
    a, b = numbers.integers(scalar, SIZE), numbers.integers(scalar, SIZE)
    d = run_elementwise(f"mul.hi.{scalar} d, a, b;", a=(scalar, a), b=(scalar, b), d=scalar)
    bits = int(scalar[1:])
    check(d, scalar, [int(x) * int(y) >> bits for x, y in zip(a, b, strict=True)])


@pytest.mark.parametrize("scalar", WIDE)
def test_wide_products(run_elementwise: Any, numbers: Any, scalar: str) -> None:
    wide = WIDE[scalar]
    a, b = numbers.integers(scalar, SIZE), numbers.integers(scalar, SIZE)
    c = numbers.integers(wide, SIZE)
    body = f"mul.wide.{scalar} d, a, b; mad.wide.{scalar} e, a, b, c;"
    operands = {"a": (scalar, a), "b": (scalar, b), "c": (wide, c), "d": wide, "e": wide}
    d, e = run_elementwise(body, **operands)
    products = [int(x) * int(y) for x, y in zip(a, b, strict=True)]
    check(d, wide, products)
    check(e, wide, [x + int(y) for x, y in zip(products, c, strict=True)])


@pytest.mark.parametrize("scalar", TYPES)
def test_mad(run_elementwise: Any, numbers: Any, scalar: str) -> None:
    a, b, c = (numbers.integers(scalar, SIZE) for _ in range(3))
    # The destination is one of the sources.
    body = f"mad.hi.{scalar} d, a, b, c; mov.b{scalar[1:]} e, c; mad.lo.{scalar} e, a, b, e;"
    operands = {name: (scalar, x) for name, x in (("a", a), ("b", b), ("c", c))}
    d, e = run_elementwise(body, **operands, d=scalar, e=scalar)
    triples = [(int(x), int(y), int(z)) for x, y, z in zip(a, b, c, strict=True)]
    check(d, scalar, [(x * y >> int(scalar[1:])) + z for x, y, z in triples])
    check(e, scalar, [x * y + z for x, y, z in triples])


@pytest.mark.parametrize("scalar", TYPES)
def test_division_truncates(run_elementwise: Any, numbers: Any, scalar: str) -> None:
    a, b = numbers.integers(scalar, SIZE), numbers.integers(scalar, SIZE)
    b[b == 0] = 3
    body = f"div.{scalar} d, a, b; rem.{scalar} e, a, b;"
    d, e = run_elementwise(body, a=(scalar, a), b=(scalar, b), d=scalar, e=scalar)
    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    check(d, scalar, [truncating(x, y) for x, y in pairs])
    check(e, scalar, [x - y * truncating(x, y) for x, y in pairs])


@pytest.mark.parametrize("scalar", TYPES)
def test_division_by_zero_gives_all_ones(run_elementwise: Any, scalar: str) -> None:
    """As the code has it that ptxas makes of it."""
    pairs = [(x, x % 5) for x in range(32)]
    a, b = np.array(pairs).T
    body = f"div.{scalar} d, a, b; rem.{scalar} e, a, b;"
    d, e = run_elementwise(body, a=(scalar, a), b=(scalar, b), d=scalar, e=scalar)
    check(d, scalar, [x // y if y else -1 for x, y in pairs])
    check(e, scalar, [x % y if y else -1 for x, y in pairs])


@pytest.mark.parametrize("scalar", ["s16", "s32", "s64"])
def test_unary(run_elementwise: Any, numbers: Any, scalar: str) -> None:
    a = numbers.integers(scalar, SIZE)
    body = f"abs.{scalar} d, a; neg.{scalar} e, a;"
    d, e = run_elementwise(body, a=(scalar, a), d=scalar, e=scalar)
    check(d, scalar, [abs(int(x)) for x in a])
    check(e, scalar, [-int(x) for x in a])


def test_immediates_of_either_sign(run_elementwise: Any) -> None:
    a = np.arange(32)
    d = run_elementwise("add.s32 d, a, -5; add.u32 d, d, 0xffffffff;", a=("s32", a), d="s32")
    np.testing.assert_array_equal(d, a - 6)
