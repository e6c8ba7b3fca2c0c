"""cuevo.sim.instructions.integer and bits: carries, products of 24 bits, dot products, fields."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.unit

WORD, LONG = 2**32, 2**64


def signed(value: int, bits: int) -> int:
    value %= 2**bits
    return value - 2**bits if value >= 2 ** (bits - 1) else value


def number(value: Any, scalar: str) -> int:
    """The integer that a pattern of a type stands for."""
    bits = int(scalar[1:])
    return signed(int(value), bits) if scalar[0] == "s" else int(value) % 2**bits


@pytest.mark.parametrize("bits", [32, 64])
def test_carries_make_longer_sums(run_elementwise: Any, numbers: Any, bits: int) -> None:
    t = f"u{bits}"
    a, b, c, d = (numbers.integers(t, 128) for _ in range(4))
    body = f"""
    add.cc.{t} x, a, c; addc.{t} y, b, d; sub.cc.{t} u, a, c; subc.{t} v, b, d;
    mad.lo.cc.{t} p, a, c, d; madc.hi.{t} q, a, c, b;
    """
    given = dict(zip("abcd", ((t, each) for each in (a, b, c, d)), strict=True))
    x, y, u, v, p, q = run_elementwise(body, **given, x=t, y=t, u=t, v=t, p=t, q=t)
    for i in range(a.size):
        left, right = int(a[i]) | int(b[i]) << bits, int(c[i]) | int(d[i]) << bits
        whole = 2 ** (2 * bits)
        assert int(x[i]) | int(y[i]) << bits == (left + right) % whole
        assert int(u[i]) | int(v[i]) << bits == (left - right) % whole
        product = int(a[i]) * int(c[i]) + (int(d[i]) | int(b[i]) << bits)
        assert int(p[i]) | int(q[i]) << bits == product % whole


def test_carries_go_through(run_elementwise: Any) -> None:
    ones = np.full(32, WORD - 1, np.uint32)
    body = "add.cc.u32 x, a, 1; addc.cc.u32 x, a, 0; addc.cc.u32 x, a, 0; addc.u32 x, 0, 0;"
    assert (run_elementwise(body, a=("u32", ones), x="u32") == 1).all()
    body = "sub.cc.u32 x, 0, 1; subc.cc.u32 x, 0, 0; subc.cc.u32 x, a, a; subc.u32 x, 5, 0;"
    assert (run_elementwise(body, a=("u32", ones), x="u32") == 4).all()


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("second", ["addc", "subc", "madc.lo", "madc.hi"])
@pytest.mark.parametrize("first", ["add", "sub", "mad.lo", "mad.hi"])
def test_one_carry_flag_for_sums_and_differences(
    run_elementwise: Any, numbers: Any, first: str, second: str, bits: int
) -> None:
    """What sub leaves is the carry of a + ~b + 1, and subc adds it to a + ~b."""
    t, top = f"u{bits}", 2**bits - 1
    a, b, c = (numbers.integers(t, 96) for _ in range(3))

    def terms(name: str, x: int, y: int, z: int) -> tuple[int, int]:
        product = x * y & top if name.endswith("lo") else x * y >> bits
        return (product, z) if name.startswith("mad") else (x, y ^ top * name.startswith("sub"))

    third = {name: ", c" if name.startswith("mad") else "" for name in (first, second)}
    # The destination is one of the sources.
    body = f"mov.{t} d, a; {first}.cc.{t} d, d, b{third[first]}; "
    body += f"{second}.cc.{t} e, b, a{third[second]}; addc.{t} f, 0, 0;"
    operands = {name: (t, x) for name, x in (("a", a), ("b", b), ("c", c))}
    d, e, f = run_elementwise(body, **operands, d=t, e=t, f=t)
    for i, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True)):
        one = sum(terms(first, x, y, z)) + (first == "sub")
        two = sum(terms(second, y, x, z)) + (one >> bits)
        assert (int(d[i]), int(e[i]), int(f[i])) == (one & top, two & top, two >> bits)


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_absolute_differences(run_elementwise: Any, numbers: Any, t: str) -> None:
    a, b, c = (numbers.integers(t, 64) for _ in range(3))
    d = run_elementwise("sad." + t + " d, a, b, c;", a=(t, a), b=(t, b), c=(t, c), d=t)
    for x, y, z, found in zip(a, b, c, d, strict=True):
        expected = int(z) + abs(int(x) - int(y))
        assert int(found) == number(expected, t)


@pytest.mark.parametrize("t", ["u32", "s32"])
def test_24_bits(run_elementwise: Any, numbers: Any, t: str) -> None:
    a, b, c = (numbers.integers(t, 128) for _ in range(3))
    body = f"""
    mul24.lo.{t} x, a, b; mul24.hi.{t} y, a, b; mad24.lo.{t} u, a, b, c; mad24.hi.{t} v, a, b, c;
    mad24.hi{".sat" if t == "s32" else ""}.{t} w, a, b, c;
    """
    given = dict(a=(t, a), b=(t, b), c=(t, c))
    x, y, u, v, w = run_elementwise(body, **given, x=t, y=t, u=t, v=t, w=t)
    for i in range(a.size):
        product = number(a[i], t[0] + "24") * number(b[i], t[0] + "24")
        low, high = number(product, t), number(product >> 16, t)
        assert (int(x[i]), int(y[i])) == (low, high)
        assert int(u[i]) == number(low + int(c[i]), t)
        assert int(v[i]) == number(high + int(c[i]), t)
        if t == "s32":
            assert int(w[i]) == min(max(high + int(c[i]), -(2**31)), 2**31 - 1)


def test_saturation(run_elementwise: Any, numbers: Any) -> None:
    a, b, c = (numbers.integers("s32", 128) for _ in range(3))
    body = "add.sat.s32 x, a, b; sub.sat.s32 y, a, b; mad.hi.sat.s32 z, a, b, c;"
    given = dict(a=("s32", a), b=("s32", b), c=("s32", c))
    x, y, z = run_elementwise(body, **given, x="s32", y="s32", z="s32")
    wide = [each.astype(object) for each in (a, b, c)]
    low, high = -(2**31), 2**31 - 1
    for found, exact in (
        (x, wide[0] + wide[1]),
        (y, wide[0] - wide[1]),
        (z, (wide[0] * wide[1] // WORD) + wide[2]),
    ):
        assert [int(e) for e in found] == [min(max(e, low), high) for e in exact]


def test_halves_of_a_word(run_elementwise: Any, numbers: Any) -> None:
    a, b = (numbers.integers("u32", 256) for _ in range(2))
    names = {
        "add.u16x2": lambda x, y: x + y,
        "min.u16x2": np.minimum,
        "max.s16x2": np.maximum,
        "min.relu.s16x2": lambda x, y: np.maximum(np.minimum(x, y), 0),
    }
    for opcode, function in names.items():
        d = run_elementwise(f"{opcode} d, a, b;", "sm_90", a=("u32", a), b=("u32", b), d="u32")
        view = np.int16 if "s16" in opcode else np.uint16
        np.testing.assert_array_equal(d.view(view), function(a.view(view), b.view(view)))
    a, b = numbers.integers("s32", 64), numbers.integers("s32", 64)
    d = run_elementwise("max.relu.s32 d, a, b;", "sm_90", a=("s32", a), b=("s32", b), d="s32")
    np.testing.assert_array_equal(d, np.maximum(np.maximum(a, b), 0))


@pytest.mark.parametrize("of_a", ["u32", "s32"])
@pytest.mark.parametrize("of_b", ["u32", "s32"])
def test_dot_products(run_elementwise: Any, numbers: Any, of_a: str, of_b: str) -> None:
    a, b, c = (numbers.integers("u32", 64) for _ in range(3))
    kinds = f"{of_a}.{of_b}"
    body = f"""
    dp4a.{kinds} x, a, b, c; dp2a.lo.{kinds} y, a, b, c; dp2a.hi.{kinds} z, a, b, c;
    """
    given = dict(a=("u32", a), b=("u32", b), c=("u32", c))
    x, y, z = run_elementwise(body, **given, x="u32", y="u32", z="u32")

    def parts(value: Any, bits: int, kind: str) -> list[int]:
        return [number(int(value) >> i, f"{kind[0]}{bits}") for i in range(0, 32, bits)]

    for i in range(a.size):
        of_four = parts(b[i], 8, of_b)
        four = sum(p * q for p, q in zip(parts(a[i], 8, of_a), of_four, strict=True))
        halves = parts(a[i], 16, of_a)
        low = sum(p * q for p, q in zip(halves, of_four[:2], strict=True))
        high = sum(p * q for p, q in zip(halves, of_four[2:], strict=True))
        expected = [(total + int(c[i])) % WORD for total in (four, low, high)]
        assert [int(x[i]), int(y[i]), int(z[i])] == expected


def test_fields(run_elementwise: Any, numbers: Any) -> None:
    a, b = numbers.integers("u32", 128) % 40, numbers.integers("u32", 128) % 40
    value = numbers.integers("u32", 128)
    body = """
    bmsk.clamp.b32 x, a, b; bmsk.wrap.b32 y, a, b;
    szext.clamp.s32 u, c, a; szext.wrap.u32 v, c, a;
    """
    given = dict(a=("u32", a), b=("u32", b), c=("u32", value))
    x, y, u, v = run_elementwise(body, **given, x="u32", y="u32", u="s32", v="u32")
    for i in range(a.size):
        at, count = int(a[i]), int(b[i])
        ones = (2 ** min(count, 32) - 1) << min(at, 32)
        assert int(x[i]) == ones % WORD
        assert int(y[i]) == ((2 ** (count % 32) - 1) << at % 32) % WORD
        width = min(at, 32)
        kept = int(value[i]) % 2**width
        assert int(u[i]) == (signed(kept, width) if width else 0)
        assert int(v[i]) == int(value[i]) % 2 ** (at % 32)


@pytest.mark.parametrize("bits", [32, 64])
def test_what_counts_of_places_and_lengths(run_elementwise: Any, numbers: Any, bits: int) -> None:
    """The low 8 bits for 32-bit fields; all of them for 64-bit ones."""
    edges = [0, 1, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 0x111, 0x80000011, 2**32 - 1]
    a, b = (x.ravel().astype(np.uint32) for x in np.meshgrid(edges, edges))
    value, under = (numbers.integers(f"u{bits}", a.size) for _ in range(2))
    body = f"""
    bfe.u{bits} x, c, a, b; bfe.s{bits} y, c, a, b; bfi.b{bits} z, c, e, a, b;
    """
    given = dict(a=("u32", a), b=("u32", b), c=(f"u{bits}", value), e=(f"u{bits}", under))
    found = run_elementwise(body, **given, x=f"u{bits}", y=f"u{bits}", z=f"u{bits}")
    whole = 2**bits
    for at, count, x, y, *results in zip(
        *(each.tolist() for each in (a, b, value, under, *found)), strict=True
    ):
        if bits == 32:
            at, count = at % 256, count % 256
        at, count = min(at, 2 * bits), min(count, 2 * bits)
        field = (x >> at) % 2**count
        negative = count > 0 and x >> min(at + count - 1, bits - 1) & 1
        above = whole - 2 ** min(count, bits - min(at, bits)) if negative else 0
        mask = ((2**count - 1) << at) % whole
        assert results == [field, field | above, (y & ~mask) | (x << at & mask)]


def test_nth_set_bit(run_elementwise: Any, numbers: Any) -> None:
    mask = numbers.integers("u32", 256)
    base = numbers.rng.integers(0, 32, 256).astype(np.uint32)
    n = numbers.rng.integers(-20, 20, 256).astype(np.int32)
    d = run_elementwise(
        "fns.b32 d, a, b, c;", a=("u32", mask), b=("u32", base), c=("s32", n), d="u32"
    )
    for i in range(256):
        bits, at, count = int(mask[i]), int(base[i]), int(n[i])
        places = [at] if count == 0 else list(range(at, 32) if count > 0 else range(at, -1, -1))
        found = [place for place in places if bits >> place & 1]
        wanted = max(abs(count), 1)
        assert int(d[i]) == (found[wanted - 1] if len(found) >= wanted else WORD - 1)


def test_shift_amounts_of_the_leading_bit(run_elementwise: Any, numbers: Any) -> None:
    a = numbers.integers("u32", 64)
    x, y = run_elementwise(
        "bfind.u32 x, a; bfind.shiftamt.u32 y, a;", a=("u32", a), x="u32", y="u32"
    )
    for value, place, amount in zip(a, x, y, strict=True):
        if value:
            assert int(place) + int(amount) == 31
        else:
            assert int(place) == int(amount) == WORD - 1


def test_lop3_with_a_predicate(run_elementwise: Any, numbers: Any) -> None:
    a, b = numbers.integers("u32", 64) & 3, numbers.integers("u32", 64) & 3
    body = """
    .reg .pred p, q; setp.gt.u32 q, a, 1;
    lop3.or.b32 d|p, a, b, 0, 0xC0, q; selp.b32 e, 1, 0, p;
    lop3.and.b32 _|p, a, b, 0, 0xC0, q; selp.b32 f, 1, 0, p;
    """
    d, e, f = run_elementwise(body, a=("u32", a), b=("u32", b), d="u32", e="u32", f="u32")
    np.testing.assert_array_equal(d, a & b)
    np.testing.assert_array_equal(e, ((a & b) != 0) | (a > 1))
    np.testing.assert_array_equal(f, ((a & b) != 0) & (a > 1))
