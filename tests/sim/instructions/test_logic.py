"""cuevo.sim.instructions: logic and bits, against Python's integers."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.unit

SIZE = 256
MASK = 0xFFFFFFFF


def pairs(*arrays: Any) -> list[tuple[int, ...]]:
    return [tuple(int(x) for x in row) for row in zip(*arrays, strict=True)]


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_bitwise(run_elementwise: Any, numbers: Any, bits: int) -> None:
    t, full = f"b{bits}", 2**bits - 1
    a, b = numbers.integers(f"u{bits}", SIZE), numbers.integers(f"u{bits}", SIZE)
    body = f"and.{t} d, a, b; or.{t} e, a, b; xor.{t} f, a, b; not.{t} g, a; cnot.{t} h, a;"
    results = run_elementwise(body, a=(t, a), b=(t, b), d=t, e=t, f=t, g=t, h=t)
    expected = [(x & y, x | y, x ^ y, ~x & full, int(x == 0)) for x, y in pairs(a, b)]
    assert pairs(*results) == expected


def test_predicates(run_elementwise: Any, numbers: Any) -> None:
    a, b = numbers.rng.integers(0, 2, 32), numbers.rng.integers(0, 2, 32)
    body = """
    .reg .pred p, q;
    setp.ne.u32 p, a, 0; setp.ne.u32 q, b, 0;
    and.pred d, p, !q; or.pred e, p, q; xor.pred f, p, q; not.pred g, p; mov.pred h, q;
    """
    names = dict.fromkeys("defgh", "pred")
    d, e, f, g, h = run_elementwise(body, a=("u32", a), b=("u32", b), **names)
    p, q = a.astype(bool), b.astype(bool)
    for actual, expected in ((d, p & ~q), (e, p | q), (f, p ^ q), (g, ~p), (h, q)):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_clamp_their_amount(run_elementwise: Any, numbers: Any, bits: int) -> None:
    a = numbers.integers(f"u{bits}", SIZE)
    n = numbers.rng.integers(0, bits + 10, SIZE)
    n[:3] = 0, bits, 0xFFFFFFFF
    body = f"shl.b{bits} d, a, n; shr.u{bits} e, a, n; shr.s{bits} f, a, n; shr.s{bits} g, a, 3;"
    names = {"d": f"u{bits}", "e": f"u{bits}", "f": f"s{bits}", "g": f"s{bits}"}
    d, e, f, g = run_elementwise(body, a=(f"u{bits}", a), n=("u32", n), **names)
    for i, (x, by) in enumerate(pairs(a, n)):
        signed = x - (x >> (bits - 1) << bits)
        shift = min(by, bits)
        assert int(d[i]) == (x << shift) % 2**bits
        assert int(e[i]) == x >> shift
        assert int(f[i]) == signed >> shift
        assert int(g[i]) == signed >> 3


def test_funnel_shift(run_elementwise: Any, numbers: Any) -> None:
    a, b = numbers.integers("u32", SIZE), numbers.integers("u32", SIZE)
    n = numbers.rng.integers(0, 70, SIZE)
    body = """
    shf.l.wrap.b32 d, a, b, n; shf.r.wrap.b32 e, a, b, n;
    shf.l.clamp.b32 f, a, b, n; shf.r.clamp.b32 g, a, b, n;
    """
    names = dict.fromkeys("defg", "u32")
    results = run_elementwise(body, a=("u32", a), b=("u32", b), n=("u32", n), **names)
    expected = []
    for low, high, by in pairs(a, b, n):
        joined, wrapped, clamped = high << 32 | low, by & 31, min(by, 32)
        left = [(joined << k >> 32) & MASK for k in (wrapped, clamped)]
        right = [(joined >> k) & MASK for k in (wrapped, clamped)]
        expected.append((left[0], right[0], left[1], right[1]))
    assert pairs(*results) == expected


@pytest.mark.parametrize("table", [0x80, 0xFE, 0x96, 0xE8, 0x1B, 0x00, 0xFF, 0x196, -107])
def test_lop3(run_elementwise: Any, numbers: Any, table: int) -> None:
    a, b, c = (numbers.integers("u32", 64) for _ in range(3))
    operands = {name: ("u32", x) for name, x in (("a", a), ("b", b), ("c", c))}
    d = run_elementwise(f"lop3.b32 d, a, b, c, {table:#x};", **operands, d="u32")
    for actual, (x, y, z) in zip(d, pairs(a, b, c), strict=True):
        bits = [
            table >> (4 * (x >> i & 1) + 2 * (y >> i & 1) + (z >> i & 1)) & 1 for i in range(32)
        ]
        assert int(actual) == sum(bit << i for i, bit in enumerate(bits))


def test_prmt(run_elementwise: Any, numbers: Any) -> None:
    a, b, s = (numbers.integers("u32", SIZE) for _ in range(3))
    modes = {
        "f4e": lambda k: [k, k + 1, k + 2, k + 3],
        "b4e": lambda k: [k, (k - 1) % 8, (k - 2) % 8, (k - 3) % 8],
        "rc8": lambda k: [k] * 4,
        "ecl": lambda k: [max(k, i) for i in range(4)],
        "ecr": lambda k: [min(k, i) for i in range(4)],
        "rc16": lambda k: [2 * (k & 1), 2 * (k & 1) + 1] * 2,
    }
    body = "prmt.b32 d, a, b, s;" + "".join(f"prmt.b32.{m} r{m}, a, b, s;" for m in modes)
    operands = {name: ("u32", x) for name, x in (("a", a), ("b", b), ("s", s))}
    names = {"d": "u32", **{f"r{m}": "u32" for m in modes}}
    d, *others = run_elementwise(body, **operands, **names)
    for i, (x, y, selector) in enumerate(pairs(a, b, s)):
        source = (y << 32 | x).to_bytes(8, "little")
        out = []
        for place in range(4):
            nibble = selector >> 4 * place & 15
            byte = source[nibble & 7]
            out.append((0xFF if byte & 0x80 else 0) if nibble & 8 else byte)
        assert int(d[i]) == int.from_bytes(bytes(out), "little")
        for result, mode in zip(others, modes.values(), strict=True):
            chosen = bytes(source[k] for k in mode(selector & 3))
            assert int(result[i]) == int.from_bytes(chosen, "little")


@pytest.mark.parametrize("scalar", ["u32", "s32", "u64", "s64"])
def test_bfe(run_elementwise: Any, numbers: Any, scalar: str) -> None:
    bits = int(scalar[1:])
    a = numbers.integers(scalar, SIZE)
    at, count = numbers.rng.integers(0, 80, SIZE), numbers.rng.integers(0, 80, SIZE)
    operands = {"a": (scalar, a), "at": ("u32", at), "count": ("u32", count)}
    d = run_elementwise(f"bfe.{scalar} d, a, at, count;", **operands, d=scalar)
    for actual, (x, position, length) in zip(d, pairs(a, at, count), strict=True):
        pattern = x % 2**bits
        # The definition of the PTX ISA, bit by bit.
        signed = scalar[0] == "s" and length > 0
        sign = signed and bool(pattern >> min(position + length - 1, bits - 1) & 1)
        expected = 0
        for i in range(bits):
            inside = i < length and position + i < bits
            expected |= int(pattern >> (position + i) & 1 if inside else sign) << i
        assert int(actual) % 2**bits == expected


@pytest.mark.parametrize("bits", [32, 64])
def test_bfi(run_elementwise: Any, numbers: Any, bits: int) -> None:
    t = f"u{bits}"
    a, b = numbers.integers(t, SIZE), numbers.integers(t, SIZE)
    at, count = numbers.rng.integers(0, 80, SIZE), numbers.rng.integers(0, 80, SIZE)
    operands = {"a": (t, a), "b": (t, b), "at": ("u32", at), "count": ("u32", count)}
    d = run_elementwise(f"bfi.b{bits} d, a, b, at, count;", **operands, d=t)
    for actual, (x, y, position, length) in zip(d, pairs(a, b, at, count), strict=True):
        field = ((1 << length) - 1 << position) % 2**bits
        assert int(actual) == (y & ~field) | (x << position & field)


@pytest.mark.parametrize("bits", [32, 64])
def test_counts(run_elementwise: Any, numbers: Any, bits: int) -> None:
    a = numbers.integers(f"u{bits}", SIZE)
    body = f"""
    popc.b{bits} d, a; clz.b{bits} e, a; bfind.u{bits} f, a; bfind.s{bits} g, a; brev.b{bits} h, a;
    """
    names = {**dict.fromkeys("defg", "u32"), "h": f"u{bits}"}
    results = run_elementwise(body, a=(f"u{bits}", a), **names)
    expected = []
    for (x,) in pairs(a):
        flipped = x ^ (2**bits - 1) if x >> (bits - 1) else x
        expected.append(
            (
                x.bit_count(),
                bits - x.bit_length(),
                (x.bit_length() - 1) & MASK,
                (flipped.bit_length() - 1) & MASK,
                int(f"{x:0{bits}b}"[::-1], 2),
            )
        )
    assert pairs(*results) == expected
