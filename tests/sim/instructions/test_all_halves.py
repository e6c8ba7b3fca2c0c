"""All 65,536 operands of every form that has one 16-bit source, or a pair of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sim.instructions.rounding import DTYPES, rounded, to_single

pytestmark = pytest.mark.kernel

Array = NDArray[Any]
PATTERNS = np.arange(65536).astype(np.uint16)
with np.errstate(invalid="ignore"):
    VALUES = {name: PATTERNS.view(DTYPES[name]).astype(np.float64) for name in ("f16", "bf16")}
TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
TINY = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126}


@dataclass(frozen=True)
class Case:
    opcode: str
    result: str
    """Type of the result's register."""
    expected: Array
    """Patterns."""
    source: str = "x"


def kernel(cases: list[Case]) -> str:
    """Stores the result of each case for the operand whose number is the thread's; ``x`` is the
    16-bit pattern, ``w`` it and the pattern 0x1234 less in the upper half.
    """
    lines = [
        ".reg .b64 p, n; .reg .b32 i, t, w, u; .reg .b16 x, y;",
        "mov.u32 i, %ctaid.x; mov.u32 t, %tid.x; mad.lo.u32 i, i, 256, t; cvt.u16.u32 x, i;",
        "sub.u16 y, x, 0x1234; mov.b32 w, {x, y};",
    ]
    for k, case in enumerate(cases):
        size = case.expected.dtype.itemsize
        lines += [
            f".reg .b{max(8 * size, 16)} d{k}; {case.opcode} d{k}, {case.source};",
            f"ld.param.u64 p, [p{k}]; mad.wide.u32 p, i, {size}, p;",
            f"st.global.b{8 * size} [p], d{k};",
        ]
    return "\n".join([*lines, "ret;"])


def check(run_kernel: Any, cases: Iterator[Case]) -> None:
    listed = list(cases)
    found = [np.zeros(65536, case.expected.dtype) for case in listed]
    run_kernel(kernel(listed), *found, grid=256, block=256, arch="sm_100")
    wrong = []
    for case, result in zip(listed, found, strict=True):
        bad = np.flatnonzero(result != case.expected)
        if bad.size:
            i = int(bad[0])
            wrong.append(
                f"{case.opcode}: {bad.size} differ, first {i:#06x} gives {int(result[i]):#x}, "
                f"not {int(case.expected[i]):#x}"
            )
    assert not wrong, "\n".join(wrong)


def saturated(x: Array) -> Array:
    return np.where(np.isnan(x), 0.0, np.minimum(np.maximum(x, 0), 1)) + 0.0


def flushed(x: Array, name: str) -> Array:
    return np.where(np.abs(x) < TINY[name], np.copysign(0.0, x), x)


def integer(x: Array, name: str) -> Array:
    """Whole numbers (float64) as patterns of an integer type, what is out of range at its ends."""
    bits, unsigned = int(name[1:]), np.dtype(f"u{int(name[1:]) // 8}")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if name[0] == "s" else (0, 2**bits - 1)
    nan = np.isnan(x)
    negative = np.where(nan, 0, x) < 0
    size = np.abs(np.where(nan, 0, x))
    limit = np.where(negative, np.uint64(-low), np.uint64(high))
    # Compared as float64 a limit such as 2^64 - 1 is 2^64: what reaches it is beyond.
    beyond = size >= limit.astype(np.float64)
    whole = np.where(beyond, limit, np.where(beyond, 0, size).astype(np.uint64))
    patterns = np.where(negative, ~whole + np.uint64(1), whole)
    of_nan = np.uint64(1 << 63 if bits == 64 else 0)
    return np.where(nan, of_nan, patterns).astype(unsigned)


# -- From floating-point numbers ------------------------------------------------------------------


def to_integers(name: str) -> Iterator[Case]:
    for to in INTEGERS:
        if name == "bf16" and to in ("u8", "s8"):
            continue
        for mode, function in TO_INTEGER.items():
            expected = integer(function(VALUES[name]), to)
            for sat in ("", ".sat") if name == "f16" else ("",):
                yield Case(f"cvt.{mode}{sat}.{to}.{name}", to, expected)


def quiet(name: str) -> Array:
    """The patterns as those of quiet NaNs of float64."""
    bits, places = PATTERNS.astype(np.uint64), 10 if name == "f16" else 7
    fraction = (bits & np.uint64(2**places - 1)) << np.uint64(52 - places)
    return bits >> np.uint64(15) << np.uint64(63) | fraction | np.uint64(0x7FF8 << 48)


def to_wider(name: str) -> Iterator[Case]:
    x = VALUES[name]
    # Of bfloat16 a shift, which leaves a NaN what it is. In float64 it is quiet, its fraction the
    # first bits.
    shifted = PATTERNS.astype(np.uint32) << np.uint32(16)
    yield Case(f"cvt.f32.{name}", "f32", to_single(x) if name == "f16" else shifted)
    yield Case(f"cvt.f64.{name}", "f64", np.where(np.isnan(x), quiet(name), x.view(np.uint64)))
    if name == "f16":
        yield Case("cvt.ftz.f32.f16", "f32", to_single(x))
        yield Case("cvt.sat.f32.f16", "f32", to_single(saturated(x)))
        yield Case("cvt.ftz.sat.f32.f16", "f32", to_single(saturated(x)))
        yield Case("cvt.sat.f64.f16", "f64", saturated(x).view(np.uint64))


def to_same_size(name: str) -> Iterator[Case]:
    x, other = VALUES[name], "bf16" if name == "f16" else "f16"
    for mode in ("rn", "rz", "rm", "rp"):
        yield Case(f"cvt.{mode}.{other}.{name}", other, rounded(x, other, mode))
    for mode, function in TO_INTEGER.items():
        yield Case(f"cvt.{mode}.{name}.{name}", name, rounded(function(x), name, "rn"))
        if name == "f16":
            expected = rounded(saturated(function(x)), name, "rn")
            yield Case(f"cvt.{mode}.sat.f16.f16", name, expected)
    yield Case(f"cvt.{name}.{name}", name, rounded(x, name, "rn"))
    if name == "f16":
        yield Case("cvt.sat.f16.f16", name, rounded(saturated(x), name, "rn"))


def unary(name: str) -> Iterator[Case]:
    for opcode, ftz, function in unary_functions(name):
        x = flushed(VALUES[name], name) if ftz else VALUES[name]
        result = function(x)
        if ftz:
            # Of a result the size after rounding counts.
            bits = rounded(result, name, "rn")
            result = flushed(bits.view(DTYPES[name]).astype(np.float64), name)
        yield Case(f"{opcode}.{name}", name, rounded(result, name, "rn"))


def unary_functions(name: str) -> Iterator[tuple[str, bool, Callable[[Array], Array]]]:
    yield from (("neg", False, np.negative), ("abs", False, np.absolute))
    yield "tanh.approx", False, np.tanh
    if name == "f16":
        yield from (("neg.ftz", True, np.negative), ("abs.ftz", True, np.absolute))


def pairs(cases: Iterator[Case]) -> Iterator[Case]:
    """The same of both halves of a register."""
    other = (PATTERNS.astype(int) - 0x1234) % 65536
    for case in cases:
        both = case.expected.astype(np.uint32) | case.expected[other].astype(np.uint32) << 16
        yield Case(f"{case.opcode}x2", "b32", both, "w")


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize(
    "cases", [to_integers, to_wider, to_same_size, unary, lambda name: pairs(unary(name))]
)
def test_floating_point(run_kernel: Any, cases: Callable[[str], Iterator[Case]], name: str) -> None:
    with np.errstate(all="ignore"):
        check(run_kernel, cases(name))


# -- 8-bit floating-point numbers -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_eight_bits(run_kernel: Any, name: str) -> None:
    check(run_kernel, eight_bits(name))


def eight_bits(name: str) -> Iterator[Case]:
    other = (PATTERNS.astype(int) - 0x1234) % 65536
    for relu in ("", ".relu"):
        x = VALUES["f16"]
        x = np.where(x <= 0, 0.0, x) if relu else x
        byte = rounded(x, name, "rn", finite=True).astype(np.uint16)
        narrow = f"cvt.rn.satfinite{relu}.{name}x2.f16x2"
        yield Case(narrow, "b16", byte | byte[other] << 8, "w")
        values = [
            part.astype(np.uint8).view(DTYPES[name]).astype(np.float64)
            for part in (PATTERNS, PATTERNS >> 8)
        ]
        if relu:
            values = [np.where(value <= 0, 0.0, value) for value in values]
        low, high = (rounded(value, "f16", "rn").astype(np.uint32) for value in values)
        yield Case(f"cvt.rn{relu}.f16x2.{name}x2", "b32", low | high << 16)


# -- From integers --------------------------------------------------------------------------------


def from_integers(name: str) -> Iterator[Case]:
    """`name` of 8 or 16 bits, the low ones of the register."""
    bits = int(name[1:])
    exact = PATTERNS.astype(np.int64) % 2**bits
    if name[0] == "s":
        exact = np.where(exact >= 2 ** (bits - 1), exact - 2**bits, exact)
    x = exact.astype(np.float64)
    for to in INTEGERS:
        unsigned = np.dtype(f"u{max(int(to[1:]), 16) // 8}")
        kept = exact % 2 ** int(to[1:]) if to != "u64" and to != "s64" else exact
        if to[0] == "s" and to != "s64":
            kept = np.where(kept >= 2 ** (int(to[1:]) - 1), kept - 2 ** int(to[1:]), kept)
        yield Case(f"cvt.{to}.{name}", to, kept.astype(unsigned))
        if not can_hold(to, name):
            low = -(2 ** (int(to[1:]) - 1)) if to[0] == "s" else 0
            high = low + 2 ** min(int(to[1:]), 40) - 1
            clipped = np.clip(exact, low, high)
            yield Case(f"cvt.sat.{to}.{name}", to, clipped.astype(unsigned))
    for mode in ("rn", "rz", "rm", "rp"):
        yield Case(f"cvt.{mode}.f32.{name}", "f32", to_single(x))
        yield Case(f"cvt.{mode}.sat.f32.{name}", "f32", to_single(saturated(x)))
        yield Case(f"cvt.{mode}.f64.{name}", "f64", x.view(np.uint64))
        yield Case(f"cvt.{mode}.f16.{name}", "f16", rounded(x, "f16", mode))
        yield Case(f"cvt.{mode}.sat.f16.{name}", "f16", rounded(saturated(x), "f16", "rn"))
        if bits == 16:
            yield Case(f"cvt.{mode}.bf16.{name}", "bf16", rounded(x, "bf16", mode))


def can_hold(target: str, origin: str) -> bool:
    """Whether every value of `origin` is one of `target`."""
    if target[0] == origin[0]:
        return int(target[1:]) >= int(origin[1:])
    return target[0] == "s" and int(target[1:]) > int(origin[1:])


@pytest.mark.parametrize("name", ["u8", "s8", "u16", "s16"])
def test_integers(run_kernel: Any, name: str) -> None:
    check(run_kernel, from_integers(name))


def test_integer_arithmetic(run_kernel: Any) -> None:
    exact = PATTERNS.astype(int)
    signed = np.where(exact >= 32768, exact - 65536, exact)
    cases = {
        "neg.s16": -signed,
        "abs.s16": np.abs(signed),
        "not.b16": 65535 - exact,
        "cnot.b16": exact == 0,
    }
    listed = (Case(k, "b16", (v % 65536).astype(np.uint16)) for k, v in cases.items())
    check(run_kernel, listed)
