"""Rounding modes, signs, comparisons and conversions that need more than one plain operand."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from sim.instructions.rounding import DTYPES, rounded

pytestmark = [
    pytest.mark.unit,
    pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning"),
]

MODES = ("rn", "rz", "rm", "rp")


@pytest.mark.parametrize("mode", MODES)
def test_quotients_and_roots(run_elementwise: Any, numbers: Any, mode: str) -> None:
    a, b = numbers.floats(1024, finite=True), numbers.floats(1024, finite=True)
    b = np.where(b == 0, np.float32(3), b)
    body = f"div.{mode}.f32 d, a, b; rcp.{mode}.f32 e, b; sqrt.{mode}.f32 f, a;"
    d, e, f = run_elementwise(body, a=("f32", a), b=("f32", b), d="f32", e="f32", f="f32")
    for i in range(a.size):
        x, y = Fraction(float(a[i])), Fraction(float(b[i]))
        assert d[i] == numbers.rounded(x / y, "f32", mode)
        assert e[i] == numbers.rounded(1 / y, "f32", mode)
        root = Fraction(float(f[i])) ** 2 if a[i] >= 0 else None
        if root is not None and mode != "rn":
            other = np.nextafter(f[i], np.float32(np.inf if mode != "rp" else 0))
            ends = sorted((root, Fraction(float(other)) ** 2))
            assert ends[0] <= x <= ends[1] and (root <= x) == (mode != "rp" or root == x)


@pytest.mark.parametrize("mode", MODES)
def test_double(run_elementwise: Any, numbers: Any, mode: str) -> None:
    a, b, c = (numbers.rng.standard_normal(256) for _ in range(3))
    opcodes = {
        "add": lambda x, y, z: x + y,
        "sub": lambda x, y, z: x - y,
        "mul": lambda x, y, z: x * y,
        "fma": lambda x, y, z: x * y + z,
        "div": lambda x, y, z: x / y,
        "rcp": lambda x, y, z: 1 / x,
    }
    given = dict(a=("f64", a), b=("f64", b), c=("f64", c))
    for opcode, function in opcodes.items():
        operands = {"fma": "a, b, c", "rcp": "a"}.get(opcode, "a, b")
        d = run_elementwise(f"{opcode}.{mode}.f64 d, {operands};", **given, d="f64")
        for x, y, z, found in zip(a, b, c, d, strict=True):
            exact = function(Fraction(x), Fraction(y), Fraction(z))
            near = float(exact)
            if mode == "rn":
                assert found == near
                continue
            down, up = Fraction(near) > exact, Fraction(near) < exact
            toward = {"rz": 0.0, "rm": -math.inf, "rp": math.inf}[mode]
            wrong = {"rz": down if exact > 0 else up, "rm": down, "rp": up}[mode]
            assert found == (math.nextafter(near, toward) if wrong else near)


def test_extrema_of_doubles(run_elementwise: Any) -> None:
    a = np.array([0.0, -0.0, 1, np.nan, np.nan, -np.inf])
    b = np.array([-0.0, 0.0, 2, 5, np.nan, 0.0])
    body = "min.f64 d, a, b; max.f64 e, a, b;"
    d, e = run_elementwise(body, a=("f64", a), b=("f64", b), d="f64", e="f64")
    assert np.signbit(d[:2]).all() and not np.signbit(e[:2]).any()
    np.testing.assert_array_equal(d[2:], [1, 5, np.nan, -np.inf])
    np.testing.assert_array_equal(e[2:], [2, 5, np.nan, 0])


def test_rough_doubles(run_elementwise: Any, numbers: Any) -> None:
    a = np.concatenate([np.abs(numbers.rng.standard_normal(60)), [1e-310, 0.0, np.inf, 4.0]])
    body = "rcp.approx.ftz.f64 d, a; rsqrt.approx.ftz.f64 e, a; rsqrt.approx.f64 f, a;"
    d, e, f = run_elementwise(body, a=("f64", a), d="f64", e="f64", f="f64")
    for found in (d, e):
        assert (found.view(np.uint64) & np.uint64(0xFFFFFFFF) == 0).all()
    np.testing.assert_allclose(d[:60], 1 / a[:60], rtol=2e-6)
    np.testing.assert_allclose(e[:60], a[:60] ** -0.5, rtol=2e-6)
    np.testing.assert_allclose(f[:60], a[:60] ** -0.5, rtol=1e-15)
    assert d[60:].tolist() == [np.inf, np.inf, 0, 0.25] and e[60:].tolist() == [
        *(np.inf, np.inf, 0, 0.5)
    ]


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_signs_of_products(
    run_elementwise: Any, numbers: Any, same_floats: Callable[..., None], op: str, name: str
) -> None:
    dtype = DTYPES.get(name, np.float32)
    bits = np.dtype(f"u{np.dtype(dtype).itemsize}")
    a, b = (numbers.floats(512).astype(dtype) for _ in range(2))
    given = dict(a=(name, a), b=(name, b))
    body = f"{op}.xorsign.abs.{name} d, a, b; {op}.NaN.xorsign.abs.{name} e, a, b;"
    d, e = run_elementwise(body, "sm_90", **given, d=name, e=name)
    x, y = np.abs(a.astype(np.float32)), np.abs(b.astype(np.float32))
    loose, strict = (np.fmin, np.minimum) if op == "min" else (np.fmax, np.maximum)
    sign = (a.view(bits) ^ b.view(bits)) & bits.type(1 << (8 * bits.itemsize - 1))
    for found, function in ((d, loose), (e, strict)):
        expected = function(x, y).astype(dtype)
        same_floats(found, (expected.view(bits) | sign).view(dtype))


COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: (x < y) | (x > y),
    "lt": lambda x, y: x < y,
    "geu": lambda x, y: ~(x < y),
    "neu": lambda x, y: ~(x == y),
    "num": lambda x, y: ~np.isnan(x) & ~np.isnan(y),
    "nan": lambda x, y: np.isnan(x) | np.isnan(y),
}


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("compare", COMPARE)
def test_comparisons_of_pairs(run_elementwise: Any, numbers: Any, name: str, compare: str) -> None:
    a = numbers.rng.integers(0, 65536, (512, 2)).astype(np.uint16)
    b = np.where(numbers.rng.random((512, 2)) < 0.3, a, np.roll(a, 1, axis=0))
    words = [each.view(np.uint32)[:, 0].copy() for each in (a, b)]
    body = f"""
    .reg .pred p, q, c; setp.{compare}.{name}x2 p|q, a, b; setp.lt.u32 c, a, b;
    selp.b32 d, 1, 0, p; selp.b32 e, 1, 0, q;
    setp.{compare}.xor.{name}x2 p|q, a, b, c; selp.b32 f, 1, 0, p;
    set.{compare}.u32.{name}x2 g, a, b; set.{compare}.{name}x2.{name}x2 h, a, b;
    """
    results = dict.fromkeys("defgh", "u32")
    given = dict(a=("u32", words[0]), b=("u32", words[1]))
    d, e, f, g, h = run_elementwise(body, "sm_90", **given, **results)
    with np.errstate(invalid="ignore"):
        x, y = (each.view(DTYPES[name]).astype(np.float64) for each in (a, b))
    truth = COMPARE[compare](x, y)
    np.testing.assert_array_equal(np.stack([d, e], axis=1), truth)
    np.testing.assert_array_equal(f, truth[:, 0] ^ (words[0] < words[1]))
    np.testing.assert_array_equal(g.view(np.uint16).reshape(-1, 2), truth * 0xFFFF)
    one = np.ones(1, DTYPES[name]).view(np.uint16)
    np.testing.assert_array_equal(h.view(np.uint16).reshape(-1, 2), truth * one)


def test_subnormal_halves_compare_as_zeros(run_elementwise: Any) -> None:
    a = np.array([0x0001, 0x8001, 0x0400], np.uint16).view(np.float16)
    b = np.zeros(3, np.float16)
    body = "set.eq.u16.f16 d, a, b; set.eq.ftz.u16.f16 e, a, b; set.eq.ftz.f16.f16 f, a, b;"
    d, e, f = run_elementwise(body, a=("f16", a), b=("f16", b), d="u16", e="u16", f="f16")
    assert d.tolist() == [0, 0, 0] and e.tolist() == [65535, 65535, 0] and f.tolist() == [1, 1, 0]


def test_selection_by_sign(run_elementwise: Any) -> None:
    c = np.array([0.0, -0.0, 1, -1, np.nan, -1e-40, np.inf, -np.inf], np.float32)
    n = np.array([0, 1, -1, 5, -5, 2**31 - 1, -(2**31), 7], np.int32)
    body = """
    slct.b32.f32 d, 1, 2, c; slct.ftz.u16.f32 e, 1, 2, c; slct.f32.s32 f, 0f3F800000, 0f40000000, n;
    """
    d, e, f = run_elementwise(body, c=("f32", c), n=("s32", n), d="u32", e="u16", f="f32")
    assert d.tolist() == [1, 1, 1, 2, 2, 2, 1, 2] and e.tolist() == [1, 1, 1, 2, 2, 1, 1, 2]
    assert f.tolist() == [1, 1, 2, 1, 2, 1, 2, 1]


def test_narrowing_that_stays_finite(run_elementwise: Any, numbers: Any) -> None:
    a, b = numbers.floats(512), numbers.floats(512)
    a[:4] = [65519, 65520, -1e9, 3.4e38]
    names = {"f16": 65504.0, "bf16": 3.3895313892515355e38}
    for name in names:
        for mode in ("rn", "rz"):
            body = f"""
            cvt.{mode}.satfinite.{name}.f32 d, a; cvt.{mode}.relu.satfinite.{name}x2.f32 e, a, b;
            """
            d, e = run_elementwise(body, a=("f32", a), b=("f32", b), d="u16", e="u32")
            x, y = a.astype(np.float64), b.astype(np.float64)
            np.testing.assert_array_equal(d, rounded(x, name, mode, finite=True))
            both = [np.where(each <= 0, 0.0, each) for each in (x, y)]
            high, low = (rounded(each, name, mode, finite=True).astype(np.uint32) for each in both)
            np.testing.assert_array_equal(e, high << 16 | low)


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_eight_bits_of_singles(run_elementwise: Any, numbers: Any, name: str) -> None:
    a, b = numbers.floats(1024), numbers.floats(1024)
    # Ties, and what is around the ends of the range.
    a[:256] = np.arange(256, dtype=np.float32) * 2.0**-11
    b[:256] = np.arange(256, dtype=np.float32) * 2 + 400
    d = run_elementwise(
        f"cvt.rn.satfinite.{name}x2.f32 d, a, b;", "sm_90", a=("f32", a), b=("f32", b), d="u16"
    )
    high, low = (rounded(x.astype(float), name, "rn", finite=True) for x in (a, b))
    np.testing.assert_array_equal(d, high.astype(np.uint16) << 8 | low)


def test_tf32(run_elementwise: Any, numbers: Any) -> None:
    a = numbers.floats(1024, finite=True)
    a[:32] = 1 + np.arange(32) * 2.0**-13
    body = "cvt.rna.tf32.f32 d, a; cvt.rn.tf32.f32 e, a; cvt.rz.relu.tf32.f32 f, a;"
    d, e, f = run_elementwise(body, "sm_90", a=("f32", a), d="f32", e="f32", f="f32")
    bits = a.view(np.uint32).astype(np.uint64)
    away = ((bits + 0x1000) & ~np.uint64(0x1FFF)).astype(np.uint32)
    even = ((bits + 0xFFF + (bits >> np.uint64(13) & np.uint64(1))) & ~np.uint64(0x1FFF)).astype(
        np.uint32
    )
    zero = np.where(a > 0, bits & ~np.uint64(0x1FFF), 0).astype(np.uint32)
    for found, expected in ((d, away), (e, even), (f, zero)):
        np.testing.assert_array_equal(found.view(np.uint32), expected)


def test_tf32_of_what_is_not_finite(run_elementwise: Any) -> None:
    """Halves away from zero is integer arithmetic, which goes on with infinities and NaNs."""
    a = np.array(
        [0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00000, 0x7FFFFFFF, 0x7F7FFFFF], np.uint32
    )
    body = "cvt.rna.tf32.f32 d, a; cvt.rna.satfinite.tf32.f32 e, a; cvt.rn.relu.tf32.f32 f, a;"
    d, e, f = run_elementwise(
        body, "sm_90", a=("f32", a.view(np.float32)), d="u32", e="u32", f="u32"
    )
    cut = [0x7F800000, 0xFF800000, 0x7F800000, 0xFFC00000, 0x7FFFE000, 0x7F800000]
    assert d.tolist() == cut
    assert e.tolist() == [x - 0x2000 for x in cut]
    assert f.tolist() == [0x7F800000, 0, *[0x7FFFE000] * 3, 0x7F800000]


def test_packs(run_elementwise: Any, numbers: Any) -> None:
    a, b, c = (numbers.integers("s32", 64) >> shift for shift in (14, 15, 0))
    body = """
    cvt.pack.sat.s16.s32 d, a, b; cvt.pack.sat.u8.s32.b32 e, a, b, c;
    cvt.pack.sat.s8.s32.b32 f, a, b, c;
    """
    given = dict(a=("s32", a), b=("s32", b), c=("s32", c))
    d, e, f = run_elementwise(body, **given, d="u32", e="u32", f="u32")

    def clipped(x: Any, low: int, high: int) -> Any:
        return np.clip(x.astype(np.int64), low, high) & (high - low)

    upper, lower = (clipped(x, -(2**15), 2**15 - 1) for x in (a, b))
    np.testing.assert_array_equal(d, upper << 16 | lower)
    for found, low in ((e, 0), (f, -128)):
        upper, lower = (clipped(x, low, low + 255) for x in (a, b))
        expected = (c.astype(np.int64) & 0xFFFF) << 16 | upper << 8 | lower
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("origin", ["u64", "s64"])
def test_long_integers(run_elementwise: Any, numbers: Any, origin: str, mode: str) -> None:
    a = numbers.integers(origin, 256)
    body = f"cvt.{mode}.f64.{origin} d, a; cvt.{mode}.bf16.{origin} e, a;"
    d, e = run_elementwise(body, "sm_90", a=(origin, a), d="f64", e="bf16")
    for x, double, half in zip(a, d, e, strict=True):
        exact = int(x)
        near = float(exact)
        if mode != "rn" and int(near) != exact:
            far = {"rz": abs(int(near)) > abs(exact), "rm": near > exact, "rp": near < exact}[mode]
            toward = {"rz": 0.0, "rm": -math.inf, "rp": math.inf}[mode]
            near = math.nextafter(near, toward) if far else near
        assert double == near
        assert float(half) == numbers.rounded(Fraction(exact), "bf16", mode)


def test_from_double_to_halves(run_elementwise: Any, numbers: Any) -> None:
    a = numbers.rng.standard_normal(512) * 10.0 ** numbers.rng.integers(-8, 6, 512)
    # Halfway in float32 and beyond it in float64: two roundings would be wrong.
    a[:2] = [1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-40]
    for name in ("f16", "bf16"):
        for mode in MODES:
            body = f"cvt.{mode}.{name}.f64 d, a;"
            d = run_elementwise(body, "sm_90", a=("f64", a), d="u16")
            np.testing.assert_array_equal(d, rounded(a, name, mode))


def test_truth_in_halves(run_elementwise: Any) -> None:
    a, b = np.array([1, 2, 3, 2], np.int32), np.array([2, 2, 2, 1], np.int32)
    body = """
    set.lt.f16.s32 d, a, b; set.eq.bf16.b32 e, a, b; cvt.rn.f32.s32 x, a; cvt.rn.f32.s32 y, b;
    set.gtu.f16.f32 f, x, y;
    """
    declared = ".reg .f32 x, y;"
    d, e, f = run_elementwise(
        declared + body, "sm_90", a=("s32", a), b=("s32", b), d="f16", e="bf16", f="f16"
    )
    assert d.tolist() == [1, 0, 0, 0] and f.tolist() == [0, 0, 1, 1]
    assert e.astype(float).tolist() == [0, 1, 0, 0]
