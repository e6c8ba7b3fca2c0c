"""cuevo.sim.arithmetic.tensor_core against a slow model of the definition in exact fractions."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from cuevo.sim.arithmetic.tensor_core import (
    BF16,
    F16,
    TF32,
    Block,
    block,
    block_dot,
    multiply_accumulate,
    round_toward_zero,
)

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("each_way")]

ARCHITECTURES = (70, 75, 80, 90)
WARPS = 2
M, N, K = 16, 8, 16
SUBNORMAL = {"float16": -14, "bfloat16": -126, "float32": -126}
NAN = float("nan")


def exponent(x: float, lowest: int) -> int:
    """Exponent of a finite number that is not zero; that of subnormals is the lowest one."""
    return max(math.frexp(x)[1] - 1, lowest)


def one_block(
    a: list[float], b: list[float], c: float, fraction: int, dtype: str, out: str
) -> float:
    """c + sum of a_i * b_i, in Python's integers and fractions."""
    terms = [*(x * y for x, y in zip(a, b, strict=True)), c]
    special = [t for t in terms if not math.isfinite(t)]
    if special:
        return special[0] if len(set(special)) == 1 and not math.isnan(special[0]) else NAN
    exact = [
        (exponent(x, SUBNORMAL[dtype]) + exponent(y, SUBNORMAL[dtype]), Fraction(x) * Fraction(y))
        for x, y in zip(a, b, strict=True)
        if x and y
    ]
    if c:
        exact.append((exponent(c, SUBNORMAL[out]), Fraction(c)))
    largest = max((-133, *(e for e, _ in exact)))
    unit = Fraction(2) ** (largest - fraction)
    # int() truncates toward zero.
    total = sum(int(value / unit) for _, value in exact) * unit
    return rounded(total, out)


def rounded(value: Fraction, out: str) -> float:
    if value == 0:
        return 0.0
    if out == "float16":
        # A float64 holds the sum: the conversion rounds once, to nearest even.
        with np.errstate(over="ignore"):
            return float(np.float16(float(value))) + 0.0
    size = abs(value)
    e = size.numerator.bit_length() - size.denominator.bit_length()
    e -= Fraction(2) ** e > size
    unit = Fraction(2) ** (max(e, -126) - 23)
    size = size // unit * unit
    magnitude = math.inf if size >= Fraction(2) ** 128 else float(size)
    # Adding +0 takes the sign from what is rounded to zero, as hardware does.
    return math.copysign(magnitude, value) + 0.0


def model(a: Any, b: Any, c: Any, arithmetic: Block, dtype: str) -> Any:
    out = np.empty_like(c)
    for i, j, w in np.ndindex(c.shape):
        row, column, total = a[i, :, w].tolist(), b[:, j, w].tolist(), float(c[i, j, w])
        for k in range(0, len(row), arithmetic.terms):
            part = slice(k, k + arithmetic.terms)
            args = (row[part], column[part], total, arithmetic.fraction_bits, dtype, c.dtype.name)
            total = one_block(*args)
        out[i, j, w] = total
    return out


def patterns(x: Any) -> Any:
    return x.view(f"u{x.dtype.itemsize}")


def truncated(x: Any) -> Any:
    """float32 as the tf32 numbers that are read: bit 13 is the last one."""
    return (patterns(x) >> 13 << 13).view(np.float32)


def compare(a: Any, b: Any, c: Any, dtype: Any, arch: int) -> None:
    """`a` and `b` hold numbers of `dtype`."""
    arithmetic = block(arch, dtype)
    with np.errstate(all="ignore"):
        result = multiply_accumulate(patterns(a), patterns(b), c, dtype, arithmetic)
        if dtype == TF32:
            a, b = truncated(a), truncated(b)
        wide = a.astype(np.float64), b.astype(np.float64)
    expected = model(*wide, c, arithmetic, dtype.name)
    bits = np.uint16 if c.dtype == np.float16 else np.uint32
    canonical = bits(0x7FFF if c.dtype == np.float16 else 0x7FFFFFFF)
    wanted = np.where(np.isnan(expected), canonical, expected.view(bits))
    wrong = np.argwhere(result.view(bits) != wanted)
    if wrong.size:
        i, j, w = wrong[0]
        raise AssertionError(
            f"{len(wrong)} of {c.size} wrong, first at row {i}, column {j}: {result[i, j, w]!r}, "
            f"not {expected[i, j, w]!r}; a {a[i, :, w]}, b {b[:, j, w]}, c {c[i, j, w]!r}"
        )


FILLS = ("normal", "wide", "patterns", "tiny", "cancelling", "sparse", "special")


def fill(rng: Any, kind: str, shape: tuple[int, ...], dtype: Any) -> Any:
    spread = 12 if dtype == F16 else 60
    match kind:
        case "normal":
            x = rng.standard_normal(shape)
        case "wide":
            x = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread, shape)
        case "patterns" | "special":
            unsigned = np.dtype(f"u{dtype.itemsize}")
            x = rng.integers(0, 256**dtype.itemsize, shape).astype(unsigned).view(dtype)
            wanted = np.isfinite(x.astype(np.float32))
            if kind == "special":
                wanted |= rng.random(shape) < 0.05
            return np.where(wanted, x, dtype.type(1)).astype(dtype)
        case "tiny":
            # Subnormals, and sums around the smallest float32.
            lowest = -24 if dtype == F16 else -133
            x = rng.integers(-8, 9, shape) * 2.0 ** rng.integers(lowest, lowest + 60, shape) / 8
        case "cancelling":
            x = rng.choice([-1, 1], shape) * (1 + rng.integers(0, 3, shape) / 128)
        case _:
            x = np.where(rng.random(shape) < 0.8, 0.0, rng.standard_normal(shape))
    with np.errstate(all="ignore"):
        return x.astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "arch"),
    [
        *((dtype, arch) for dtype in (F16, BF16) for arch in ARCHITECTURES),
        *((TF32, arch) for arch in ARCHITECTURES[2:]),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", FILLS)
def test_fp32_accumulators(dtype: Any, kind: str, arch: int) -> None:
    rng = np.random.default_rng(arch)
    a, b = fill(rng, kind, (M, K, WARPS), dtype), fill(rng, kind, (K, N, WARPS), dtype)
    c = (rng.standard_normal((M, N, WARPS)) * 2.0 ** rng.integers(-20, 20, (M, N, WARPS))).astype(
        np.float32
    )
    if kind in ("patterns", "special"):
        c = rng.integers(0, 2**32, c.shape, dtype=np.uint32).view(np.float32)
        c = np.where(np.isfinite(c) | (kind == "special"), c, np.float32(1))
    elif kind == "tiny":
        c = (rng.integers(-3, 4, c.shape) * 2.0 ** rng.integers(-149, -100, c.shape)).astype(
            np.float32
        )
    elif kind in ("cancelling", "sparse"):
        c = np.round(c / 8) * (rng.random(c.shape) < 0.5).astype(np.float32)
    compare(a, b, c, dtype, arch)


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kind", FILLS)
def test_fp16_accumulators(kind: str, arch: int) -> None:
    rng = np.random.default_rng(arch)
    a, b = fill(rng, kind, (M, K, WARPS), F16), fill(rng, kind, (K, N, WARPS), F16)
    compare(a, b, fill(rng, kind, (M, N, WARPS), F16), F16, arch)


def single(terms: list[tuple[float, float]], c: float, arch: int, dtype: Any = BF16) -> np.float32:
    """One element of the result."""
    a, b = np.zeros((1, K, 1), dtype), np.zeros((K, 1, 1), dtype)
    for k, (x, y) in enumerate(terms):
        a[0, k, 0], b[k, 0, 0] = x, y
    with np.errstate(all="ignore"):
        start = np.full((1, 1, 1), c, np.float32)
        result = multiply_accumulate(patterns(a), patterns(b), start, dtype, block(arch, dtype))
    return np.float32(result[0, 0, 0])


def test_fraction_bits_of_the_architectures() -> None:
    # 1 - 1 + 2^-e survives the alignment while e is at most F.
    for arch, kept in ((70, 23), (75, 24), (80, 24), (86, 24), (89, 24), (90, 25), (100, 25)):
        for e in (23, 24, 25, 26):
            found = single([(1, 1), (1, 2.0**-e)], -1, arch)
            assert found == (2.0**-e if e <= kept else 0), (arch, e)


def test_terms_of_a_block() -> None:
    # Within a block the small term is lost beside the large one; after it the large one has gone.
    for arch, terms in ((70, 4), (80, 8), (90, 16)):
        for position in range(1, K):
            pairs = [(2.0**30, 1), *[(0, 0)] * (position - 1), (1, 2.0**-10)]
            in_first_block = single(pairs, -(2.0**30), arch) == 0
            assert in_first_block == (position < terms), (arch, position)


def test_terms_of_a_block_of_tf32() -> None:
    for arch, terms in ((80, 4), (90, 8)):
        for position in range(1, K):
            pairs = [(2.0**30, 1), *[(0, 0)] * (position - 1), (1, 2.0**-10)]
            in_first_block = single(pairs, -(2.0**30), arch, TF32) == 0
            assert in_first_block == (position < terms), (arch, position)


def test_tf32_is_cut_off() -> None:
    # Of 1 + 2^-10 + 2^-11 the last bit is not read, nor what makes this a NaN.
    assert single([(1 + 2.0**-10 + 2.0**-11, 1)], 0, 90, TF32) == np.float32(1 + 2.0**-10)
    nearly = np.uint32(0x7F800001).view(np.float32)
    assert single([(nearly, 1)], 0, 90, TF32) == np.inf
    assert (
        single([(np.uint32(0x7F802000).view(np.float32), 1)], 0, 90, TF32).view("u4") == 2**31 - 1
    )
    # 2^-149 is below the last bit; 2^-136 is not.
    assert single([(2.0**-149, 2.0**126)], 0, 90, TF32) == 0
    assert single([(2.0**-136, 2.0**126)], 0, 90, TF32) == np.float32(2.0**-10)


def test_rounding_is_toward_zero() -> None:
    assert single([(1, 2.0**-24)], 1, 80) == 1
    assert single([(1, -(2.0**-24))], 1, 80) == np.float32(1 - 2.0**-24)
    assert single([(1, 2.0**-24), (1, 2.0**-24)], 1, 80) == np.float32(1 + 2.0**-23)
    assert single([(-1, 2.0**-24)] * 3, -1, 80) == np.float32(-1 - 2.0**-23)


def test_overflow_zero_and_specials() -> None:
    huge = 2.0**127
    assert single([(huge, 1), (huge, 1)], 0, 80) == np.inf
    assert single([(-huge, 2)], 0, 80) == -np.inf
    assert single([(huge, 1), (huge, 1), (-huge, 1)], 0, 80) == huge
    zero = single([(1, 1), (-1, 1)], -0.0, 80)
    assert zero == 0 and not np.signbit(zero)
    assert not np.signbit(single([], -0.0, 80))
    underflow = single([(-(2.0**-100), 2.0**-100)], 0, 80)
    assert underflow == 0 and not np.signbit(underflow)
    for terms, c in (([(np.inf, 0)], 0.0), ([(np.inf, 1)], -np.inf), ([(np.nan, 0)], 0.0)):
        assert single(terms, c, 80).view(np.uint32) == 0x7FFFFFFF
    assert single([(np.inf, -2), (5, 5)], 1, 80) == -np.inf
    # What is not reached stays exact: an infinity in c alone, in a chained block.
    assert single([(1, 1)] * 16, np.inf, 80) == np.inf


def test_round_toward_zero() -> None:
    x = np.array(
        [1 + 2.0**-24, -1 - 2.0**-24, 2.0**-149 * 1.9, -(2.0**-150), 3.5e38, 2.0**128 - 2.0**100]
    )
    expected = [1, -1, 2.0**-149, -0.0, np.inf, float(np.finfo(np.float32).max)]
    with np.errstate(all="ignore"):
        assert round_toward_zero(x).tolist() == expected


# -- Dot products ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("out", [np.float32, np.float16], ids=["f32", "f16"])
@pytest.mark.parametrize("depth", [1, 4, 16, 20])
def test_dot_products(depth: int, out: Any, arch: int) -> None:
    """Broadcast operands, and one block to five of them."""
    rng = np.random.default_rng(depth)
    a, b = fill(rng, "wide", (3, 1, depth), F16), fill(rng, "normal", (5, depth), F16)
    c = rng.standard_normal((3, 1)).astype(out)
    found = block_dot(a, b, c, arch=f"sm_{arch}")
    assert found.shape == (3, 5) and found.dtype == out
    for i, j in np.ndindex(3, 5):
        left, right = a[i].reshape(1, depth, 1), b[j].reshape(depth, 1, 1)
        wide = left.astype(np.float64), right.astype(np.float64)
        expected = model(*wide, c[i].reshape(1, 1, 1), block(arch), "float16")
        assert found[i, j].tobytes() == expected.tobytes()


@pytest.mark.parametrize("arch", [80, 90])
def test_dot_products_of_tf32(arch: int) -> None:
    rng = np.random.default_rng(arch)
    a, b = fill(rng, "wide", (3, 1, 12), TF32), fill(rng, "normal", (5, 12), TF32)
    c = rng.standard_normal((3, 1)).astype(np.float32)
    found = block_dot(a, b, c, arch=f"sm_{arch}")
    for i, j in np.ndindex(3, 5):
        left, right = truncated(a[i].reshape(1, 12, 1)), truncated(b[j].reshape(12, 1, 1))
        wide = left.astype(np.float64), right.astype(np.float64)
        expected = model(*wide, c[i].reshape(1, 1, 1), block(arch, TF32), "float32")
        assert found[i, j].tobytes() == expected.tobytes()
    with pytest.raises(ValueError, match="tf32 needs sm_80 or later"):
        block_dot(a, b, c, arch="sm_75")


def test_a_dot_product_without_terms_is_c() -> None:
    nothing = np.zeros((4, 0), BF16)
    c = np.array([1.5, -0.0, np.inf, 3], np.float32)
    assert block_dot(nothing, nothing, c, arch="sm_90").tobytes() == c.tobytes()
    empty = np.zeros((0, 8), BF16)
    assert block_dot(empty, empty, np.float32(0), arch="sm_90").shape == (0,)


@pytest.mark.parametrize(
    ("a", "b", "c", "arch", "error", "words"),
    [
        ((2, 4), (2, 4), np.float64, "sm_80", TypeError, "c: expected float32"),
        ((2, 4), (2, 4), np.float16, "sm_80", TypeError, "c: expected float32"),
        ((2, 4), (2, 5), np.float32, "sm_80", ValueError, "the same K"),
        ((), (4,), np.float32, "sm_80", ValueError, "the same K"),
        ((3, 4), (2, 4), np.float32, "sm_80", ValueError, "broadcast"),
        ((2, 4), (2, 4), np.float32, "sm_7", ValueError, "sm_7"),
    ],
)
def test_dot_products_that_are_none(
    a: Any, b: Any, c: Any, arch: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        block_dot(np.ones(a, BF16), np.ones(b, BF16), c(1), arch=arch)


def test_operands_of_other_types_have_no_dot_product() -> None:
    with pytest.raises(TypeError, match="a, b: expected float16 or bfloat16"):
        block_dot(np.ones(4, F16), np.ones(4, BF16), np.float32(0), arch="sm_80")
