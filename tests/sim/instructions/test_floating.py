"""cuevo.sim.instructions.floating, against NumPy and exact fractions."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.unit

SIZE = 512
F = Fraction


def flush(x: Any) -> Any:
    """Subnormals to zeros of their sign."""
    with np.errstate(all="ignore"):
        return np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x)


def unsigned_zero(x: Any) -> Any:
    return x + np.float32(0)


@pytest.mark.parametrize("ftz", ["", ".ftz"])
@pytest.mark.parametrize(
    ("op", "function"), [("add", np.add), ("sub", np.subtract), ("mul", np.multiply)]
)
def test_binary(
    run_elementwise: Any, numbers: Any, same_floats: Any, op: str, function: Any, ftz: str
) -> None:
    a, b = numbers.floats(SIZE), numbers.floats(SIZE)
    d = run_elementwise(f"{op}{ftz}.f32 d, a, b;", a=("f32", a), b=("f32", b), d="f32")
    with np.errstate(all="ignore"):
        expected = flush(function(flush(a), flush(b))) if ftz else function(a, b)
    same_floats(d, expected)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(
    ("op", "exact"),
    [
        ("add", lambda x, y, z: x + y),
        ("sub", lambda x, y, z: x - y),
        ("mul", lambda x, y, z: x * y),
        ("fma", lambda x, y, z: x * y + z),
    ],
)
def test_rounding_modes(
    run_elementwise: Any,
    numbers: Any,
    op: str,
    exact: Callable[[Fraction, Fraction, Fraction], Fraction],
    mode: str,
) -> None:
    a, b, c = (numbers.floats(SIZE, finite=True) for _ in range(3))
    operands = "a, b, c" if op == "fma" else "a, b"
    body = f"{op}.{mode}.f32 d, {operands};"
    d = run_elementwise(body, a=("f32", a), b=("f32", b), c=("f32", c), d="f32")
    for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), d.tolist(), strict=True):
        assert result == numbers.rounded(exact(F(x), F(y), F(z)), "f32", mode), (x, y, z)


def test_fma_specials(run_elementwise: Any, numbers: Any, same_floats: Any) -> None:
    special = numbers.SPECIAL_F32
    a, b, c = (x.ravel() for x in np.meshgrid(special, special, special))
    d = run_elementwise("fma.rn.f32 d, a, b, c;", a=("f32", a), b=("f32", b), c=("f32", c), d="f32")
    with np.errstate(all="ignore"):
        wide = a.astype(np.float64) * b + c
    # What is not finite, and signs of zeros, come out of float64 as they are.
    plain = ~np.isfinite(wide) | (wide == 0)
    same_floats(d[plain], wide[plain].astype(np.float32))
    finite = ~plain
    for x, y, z, result in zip(*(v[finite].tolist() for v in (a, b, c, d)), strict=True):
        assert result == numbers.rounded(F(x) * F(y) + F(z), "f32")


def test_fma_ftz_flushes_inputs_and_output(run_elementwise: Any) -> None:
    a = np.array([2.0**-127, 2.0**-100, 1.0, -(2.0**-100)], np.float32)
    b = np.array([2.0**10, 2.0**-30, 1.0, 2.0**-30], np.float32)
    c = np.array([0.0, 0.0, 2.0**-140, 0.0], np.float32)
    body = "fma.rn.ftz.f32 d, a, b, c;"
    d = run_elementwise(body, a=("f32", a), b=("f32", b), c=("f32", c), d="f32")
    assert d.view(np.uint32).tolist() == [0, 0, 0x3F800000, 0x80000000]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("op", ["mul", "fma", "div", "rcp"])
def test_what_is_tiny_is_decided_after_rounding(
    run_elementwise: Any, numbers: Any, op: str, mode: str
) -> None:
    """To 24 bits, as if exponents had no end: 1 - 2^-24 of the smallest normal number has as many,
    and is flushed, though there is no float32 between the two.
    """
    near = (1 + np.arange(-16, 17) * 2.0**-24).astype(np.float32)
    x, y = (v.ravel() for v in np.meshgrid(near, np.concatenate([near, -near])))
    a = x * np.float32(2.0**-63)
    b = y * np.float32(2.0**126 if op == "rcp" else 2.0 ** (63 if op == "div" else -63))
    # Far below the last place of a product.
    c = np.float32([0.0, 2.0**-126, -(2.0**-126)])[np.arange(a.size) % 3]
    operands = {"fma": "a, b, c", "rcp": "b"}.get(op, "a, b")
    body = f"{op}.{mode}.ftz.f32 d, {operands}; {op}.{mode}.f32 e, {operands};"
    body += f"mov.b32 f, a; {op}.{mode}.ftz.f32 f, {operands.replace('a', 'f')};"
    given = dict(a=("f32", a), b=("f32", b), c=("f32", c))
    d, e, f = run_elementwise(body, **given, d="f32", e="f32", f="f32")
    function = {
        "mul": lambda x, y, z: x * y,
        "fma": lambda x, y, z: x * y + z,
        "div": lambda x, y, z: x / y,
        "rcp": lambda x, y, z: 1 / y,
    }[op]
    flushed = 0
    for x, y, z, found, gradual in zip(*(v.tolist() for v in (a, b, c, d, e)), strict=True):
        exact = function(F(x), F(y), F(z))
        unbounded = numbers.rounded(exact * 2**100, "f32", mode) * 2.0**-100
        wanted = unbounded if abs(unbounded) >= 2.0**-126 else 0.0
        assert found == wanted, (x, y, z)
        flushed += wanted == 0 and abs(gradual) == 2.0**-126
    # The result without .ftz does not tell which are tiny.
    assert flushed or mode == "rz" or (mode, op) == ("rn", "rcp")
    np.testing.assert_array_equal(d.view(np.uint32), f.view(np.uint32))


def test_zeros_when_rounding_down(run_elementwise: Any) -> None:
    a = np.array([3.0, 0.0, 0.0, -0.0, -0.0], np.float32)
    b = np.array([-3.0, 0.0, -0.0, 0.0, -0.0], np.float32)
    body = "add.rm.f32 d, a, b; add.rp.f32 e, a, b; fma.rm.f32 f, a, 1.0, b;"
    results = run_elementwise(body, a=("f32", a), b=("f32", b), d="f32", e="f32", f="f32")
    signs = [np.signbit(x).tolist() for x in results]
    assert signs[0] == signs[2] == [True, False, True, True, True]
    assert signs[1] == [False, False, False, False, True]


def test_flushing_comes_before_saturation(run_elementwise: Any) -> None:
    a = np.full(32, 2.0**-126, np.float32)
    d = run_elementwise("mul.ftz.sat.f32 d, a, 0.5;", a=("f32", a), d="f32")
    assert (d == 0).all()


def test_copysign_moves_bits(run_elementwise: Any) -> None:
    a, b = np.array([0, 0x80000000], np.uint32), np.array([0xFFC00001, 0x7F800001], np.uint32)
    d = run_elementwise("copysign.f32 d, a, b;", a=("b32", a), b=("b32", b), d="u32")
    assert d.tolist() == [0x7FC00001, 0xFF800001]


def test_saturation(run_elementwise: Any, same_floats: Any) -> None:
    a = np.array([-1, -0.0, 0.25, 1, 7, np.inf, -np.inf, np.nan], np.float32)
    d = run_elementwise("add.sat.f32 d, a, 0f00000000;", a=("f32", a), d="f32")
    same_floats(d, np.array([0, 0, 0.25, 1, 1, 1, 0, 0], np.float32))


@pytest.mark.parametrize("op", ["min", "max"])
def test_extrema(run_elementwise: Any, numbers: Any, same_floats: Any, op: str) -> None:
    a, b = (x.ravel() for x in np.meshgrid(numbers.SPECIAL_F32, numbers.SPECIAL_F32))
    body = f"{op}.f32 d, a, b; {op}.NaN.f32 e, a, b; {op}.ftz.f32 f, a, b;"
    d, e, f = run_elementwise(body, a=("f32", a), b=("f32", b), d="f32", e="f32", f="f32")

    def expected(x: float, y: float, propagate: bool) -> float:
        if np.isnan(x) or np.isnan(y):
            return (
                np.nan if propagate or (np.isnan(x) and np.isnan(y)) else (y if np.isnan(x) else x)
            )
        # Ordered by value, then by sign: -0 is below +0.
        low, high = sorted((x, y), key=lambda v: (v, not np.signbit(v)))
        return low if op == "min" else high

    for result, propagate, (x, y) in (
        (d, False, (a, b)),
        (e, True, (a, b)),
        (f, False, (flush(a), flush(b))),
    ):
        wanted = [expected(p, q, propagate) for p, q in zip(x.tolist(), y.tolist(), strict=True)]
        same_floats(result, np.array(wanted, np.float32))


def test_signs(run_elementwise: Any, numbers: Any, same_floats: Any) -> None:
    a = numbers.floats(SIZE)
    body = "neg.f32 d, a; abs.f32 e, a; neg.ftz.f32 f, a;"
    d, e, f = run_elementwise(body, a=("f32", a), d="f32", e="f32", f="f32")
    same_floats(d, -a)
    same_floats(e, np.abs(a))
    same_floats(f, -flush(a))


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("sqrt.approx", np.sqrt),
        ("sin.approx", np.sin),
        ("cos.approx", np.cos),
        ("tanh.approx", np.tanh),
        ("sqrt.rn", np.sqrt),
        ("rcp.rn", lambda x: 1 / x),
    ],
)
def test_functions_are_correctly_rounded(
    run_elementwise: Any, numbers: Any, same_floats: Any, op: str, function: Any
) -> None:
    a = np.concatenate([numbers.floats(SIZE), np.linspace(-160, 140, SIZE, dtype=np.float32)])
    d = run_elementwise(f"{op}.f32 d, a;", a=("f32", a), d="f32")
    with np.errstate(all="ignore"):
        same_floats(d, function(a.astype(np.float64)).astype(np.float32))


def test_ex2_at_the_ends(run_elementwise: Any) -> None:
    a = np.array([-np.inf, np.inf, np.nan, -150, -149, -126, -130, 128, 0], np.float32)
    body = "ex2.approx.f32 d, a; ex2.approx.ftz.f32 e, a;"
    d, e = run_elementwise(body, a=("f32", a), d="f32", e="f32")
    inf, nan, one = 0x7F800000, 0x7FFFFFFF, 0x3F800000
    assert d.view(np.uint32).tolist() == [0, inf, nan, 0, 1, 0x00800000, 1 << 19, inf, one]
    assert e.view(np.uint32).tolist() == [0, inf, nan, 0, 0, 0x00800000, 0, inf, one]


def test_lg2_at_the_ends(run_elementwise: Any) -> None:
    a = np.array([0, -0.0, np.inf, np.nan, -1, -np.inf, 2.0**-149, -(2.0**-149), 1, 2], np.float32)
    body = "lg2.approx.f32 d, a; lg2.approx.ftz.f32 e, a;"
    d, e = run_elementwise(body, a=("f32", a), d="f32", e="f32")
    inf, nan, low, one = 0x7F800000, 0x7FFFFFFF, 0xFF800000, 0x3F800000
    assert d.view(np.uint32).tolist() == [low, low, inf, nan, nan, nan, 0xC3150000, nan, 0, one]
    assert e.view(np.uint32).tolist() == [low, low, inf, nan, nan, nan, low, low, 0, one]


def test_rsqrt_at_the_ends(run_elementwise: Any) -> None:
    a = np.array([0, -0.0, np.inf, np.nan, -1, -np.inf, 2.0**-148, -(2.0**-149), 4], np.float32)
    body = "rsqrt.approx.f32 d, a; rsqrt.approx.ftz.f32 e, a;"
    d, e = run_elementwise(body, a=("f32", a), d="f32", e="f32")
    inf, nan, low, half = 0x7F800000, 0x7FFFFFFF, 0xFF800000, 0x3F000000
    assert d.view(np.uint32).tolist() == [inf, low, 0, nan, nan, nan, 0x64800000, nan, half]
    assert e.view(np.uint32).tolist() == [inf, low, 0, nan, nan, nan, inf, low, half]


@pytest.mark.parametrize("kind", ["rn", "approx", "full", "approx.ftz"])
def test_division(run_elementwise: Any, numbers: Any, same_floats: Any, kind: str) -> None:
    a, b = numbers.floats(SIZE), numbers.floats(SIZE)
    d = run_elementwise(f"div.{kind}.f32 d, a, b;", a=("f32", a), b=("f32", b), d="f32")
    with np.errstate(all="ignore"):
        same_floats(d, flush(flush(a) / flush(b)) if "ftz" in kind else a / b)


def test_float64(run_elementwise: Any, numbers: Any) -> None:
    a, b = numbers.rng.standard_normal(64), numbers.rng.standard_normal(64)
    body = """
    add.f64 d, a, b; sub.rn.f64 e, a, b; mul.f64 f, a, b; div.rn.f64 g, a, b; min.f64 h, a, b;
    max.f64 i, a, b; neg.f64 j, a; abs.f64 k, a; add.f64 l, a, 0d3FF8000000000000;
    add.f64 m, a, 0.5;
    """
    names = dict.fromkeys("defghijklm", "f64")
    results = run_elementwise(body, a=("f64", a), b=("f64", b), **names)
    expected = (a + b, a - b, a * b, a / b, np.minimum(a, b), np.maximum(a, b), -a, abs(a), a + 1.5)
    for actual, wanted in zip(results, (*expected, a + 0.5), strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_properties(run_elementwise: Any, numbers: Any) -> None:
    a = numbers.SPECIAL_F32
    tests = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    body = "".join(f"testp.{test}.f32 {test}, a;" for test in tests)
    results = run_elementwise(body, a=("f32", a), **dict.fromkeys(tests, "pred"))
    normal = np.isfinite(a) & ((np.abs(a) >= 2.0**-126) | (a == 0))  # zeros count as normal
    subnormal = (np.abs(a) < 2.0**-126) & (a != 0)
    expected = (np.isfinite(a), np.isinf(a), ~np.isnan(a), np.isnan(a), normal, subnormal)
    for actual, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_literals(run_elementwise: Any) -> None:
    a = np.ones(32, np.float32)
    body = "add.f32 d, a, 0fBF000000; mul.f32 d, d, -3.0; add.f32 d, d, 1.5e1;"
    assert (run_elementwise(body, a=("f32", a), d="f32") == 13.5).all()
