"""NaNs of f64 and of conversions; elsewhere they are the canonical one.

The PTX ISA leaves it open; these are the rules of an H200.
"""

from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.unit,
    pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning"),
]

QUIET = 1 << 51
SIGNALING, NEGATIVE, PLAIN = 0x7FF0000000000001, 0xFFF0000000000300, 0x7FF8000000000000
ONE, INFINITY, LARGEST = 0x3FF0000000000000, 0x7FF0000000000000, 0x7FEFFFFFFFFFFFFF
INVALID = 0xFFF8000000000000
SIGN = 1 << 63


def doubles(run_elementwise: Any, opcode: str, *operands: int) -> int:
    names = "abc"[: len(operands)]
    given = {
        name: ("f64", np.array([bits], np.uint64).view(np.float64))
        for name, bits in zip(names, operands, strict=True)
    }
    return int(run_elementwise(f"{opcode} d, {', '.join(names)};", **given, d="u64")[0])


@pytest.mark.parametrize("op", ["add", "sub", "mul", "min", "max", "div.rn", "fma.rn"])
def test_one_operand_that_is_none_goes_on(run_elementwise: Any, op: str) -> None:
    """Quiet, and with its sign, also where it is subtracted."""
    others = [ONE] * (2 if op == "fma.rn" else 1)
    for nan in (SIGNALING, NEGATIVE, PLAIN):
        for place in range(len(others) + 1):
            found = doubles(run_elementwise, f"{op}.f64", *others[:place], nan, *others[place:])
            assert found == (ONE if op in ("min", "max") else nan | QUIET)


@pytest.mark.parametrize("op", ["add.rz", "sub", "mul.rp", "min", "max"])
def test_the_second_one_goes_before_the_first(run_elementwise: Any, op: str) -> None:
    assert doubles(run_elementwise, f"{op}.f64", SIGNALING, NEGATIVE) == NEGATIVE | QUIET
    assert doubles(run_elementwise, f"{op}.f64", NEGATIVE, SIGNALING) == SIGNALING | QUIET


def test_ranks_of_three_and_of_a_quotient(run_elementwise: Any) -> None:
    """The second factor, then the summand, then the first factor; the numerator first."""
    fma, div = "fma.rn.f64", "div.rn.f64"
    assert doubles(run_elementwise, fma, SIGNALING, NEGATIVE, PLAIN) == NEGATIVE | QUIET
    assert doubles(run_elementwise, fma, SIGNALING, ONE, NEGATIVE) == NEGATIVE | QUIET
    assert doubles(run_elementwise, div, SIGNALING, NEGATIVE) == SIGNALING | QUIET


def test_signs_of_nothing(run_elementwise: Any) -> None:
    for op in ("neg", "abs"):
        assert doubles(run_elementwise, f"{op}.f64", NEGATIVE) == NEGATIVE | QUIET


def test_operations_without_a_result(run_elementwise: Any) -> None:
    assert doubles(run_elementwise, "sub.f64", INFINITY, INFINITY) == INVALID
    assert doubles(run_elementwise, "mul.f64", 0, INFINITY) == INVALID
    assert doubles(run_elementwise, "sqrt.rn.f64", ONE | SIGN) == INVALID
    assert doubles(run_elementwise, "fma.rn.f64", 0, INFINITY, ONE) == INVALID
    assert doubles(run_elementwise, "fma.rn.f64", 0, INFINITY, SIGNALING) == SIGNALING | QUIET


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_a_product_too_large_is_nothing_beside_an_infinity(run_elementwise: Any, mode: str) -> None:
    minus = INFINITY | SIGN
    assert doubles(run_elementwise, f"fma.{mode}.f64", LARGEST, LARGEST, minus) == minus


def test_conversions_of_f64_keep_the_first_bits(run_elementwise: Any) -> None:
    a = np.array([SIGNALING, 0xFFF4000000000000, 0x7FFA5FFFFFFFFFFF], np.uint64).view(np.float64)
    body = """
    cvt.rn.f32.f64 d, a; cvt.rz.ftz.f32.f64 e, a; cvt.rp.f16.f64 f, a; cvt.rm.bf16.f64 g, a;
    cvt.rn.sat.f16.f64 h, a; cvt.rni.f64.f64 i, a; cvt.f64.f64 j, a;
    """
    types = dict(d="u32", e="u32", f="u16", g="u16", h="u16", i="u64", j="u64")
    d, e, f, g, h, i, j = run_elementwise(body, "sm_90", a=("f64", a), **types)
    assert d.tolist() == e.tolist() == [0x7FC00000, 0xFFE00000, 0x7FD2FFFF]
    assert f.tolist() == [0x7E00, 0xFF00, 0x7E97]
    assert g.tolist() == [0x7FC0, 0xFFE0, 0x7FD2]
    assert h.tolist() == [0, 0, 0]
    assert i.tolist() == [x | QUIET for x in a.view(np.uint64).tolist()]
    assert j.tolist() == a.view(np.uint64).tolist()


def test_conversions_of_f32(run_elementwise: Any) -> None:
    a = np.array([0x7F800001, 0xFFC00000], np.uint32).view(np.float32)
    body = """
    cvt.f64.f32 d, a; cvt.ftz.f64.f32 e, a; cvt.sat.f64.f32 f, a; cvt.f32.f32 g, a;
    cvt.ftz.f32.f32 h, a; cvt.rni.f32.f32 i, a;
    """
    types = dict(d="u64", e="u64", f="u64", g="u32", h="u32", i="u32")
    d, e, f, g, h, i = run_elementwise(body, a=("f32", a), **types)
    assert d.tolist() == [0x7FF8000020000000, 0xFFF8000000000000]
    # .ftz is an instruction before it, with the canonical NaN of f32.
    assert e.tolist() == [0x7FFFFFFFE0000000] * 2
    assert f.tolist() == [0, 0]
    # No arithmetic at all.
    assert g.tolist() == a.view(np.uint32).tolist()
    assert h.tolist() == i.tolist() == [0x7FFFFFFF] * 2
