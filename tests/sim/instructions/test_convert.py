"""cuevo.sim.instructions.convert."""

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuevo.errors import SimulatorError

pytestmark = pytest.mark.unit

INTEGERS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")


def signed(value: int, scalar: str) -> int:
    bits = int(scalar[1:])
    value %= 2**bits
    return value - 2**bits if scalar[0] == "s" and value >= 2 ** (bits - 1) else value


def can_hold(target: str, origin: str) -> bool:
    """Whether every value of `origin` is one of `target`."""
    if target[0] == origin[0]:
        return int(target[1:]) >= int(origin[1:])
    return target[0] == "s" and int(target[1:]) > int(origin[1:])


@pytest.mark.parametrize("origin", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
def test_between_integers(run_elementwise: Any, numbers: Any, target: str, origin: str) -> None:
    wide = {"u8": "u16", "s8": "s16"}
    a = numbers.integers(origin, 64)
    into, of = wide.get(target, target), wide.get(origin, origin)
    # Where no value can be out of range there is no .sat.
    sat = "" if can_hold(target, origin) else ".sat"
    body = f"cvt.{target}.{origin} d, a; cvt{sat}.{target}.{origin} e, a;"
    d, e = run_elementwise(body, a=(of, a.astype(int if of != "u64" else a.dtype)), d=into, e=into)
    bits = int(target[1:])
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if target[0] == "s" else (0, 2**bits - 1)
    assert [int(x) for x in d] == [signed(int(x), target) for x in a]
    assert [int(x) for x in e] == [min(max(int(x), low), high) for x in a]


@pytest.mark.parametrize("target", INTEGERS[1:4] + INTEGERS[5:])
@pytest.mark.parametrize(
    ("mode", "function"), [("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)]
)
def test_float_to_integer(
    run_elementwise: Any, numbers: Any, target: str, mode: str, function: Any
) -> None:
    halves = np.arange(-5, 5, 0.5, dtype=np.float32)
    a = np.concatenate([numbers.floats(64), halves, np.float32([np.inf, -np.inf, np.nan, 1e30])])
    d = run_elementwise(f"cvt.{mode}.{target}.f32 d, a;", a=("f32", a), d=target)
    info = np.iinfo(d.dtype)
    for x, result in zip(a.tolist(), d, strict=True):
        if np.isnan(x):
            assert int(result) == (0 if info.bits < 64 else info.min or 2**63)
        elif np.isinf(x):
            assert int(result) == (info.max if x > 0 else info.min)
        else:
            assert int(result) == min(max(int(function(x)), info.min), info.max), x


@pytest.mark.parametrize("origin", INTEGERS[1:4] + INTEGERS[5:])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_integer_to_float(run_elementwise: Any, numbers: Any, origin: str, mode: str) -> None:
    a = numbers.integers(origin, 128)
    d = run_elementwise(f"cvt.{mode}.f32.{origin} d, a;", a=(origin, a), d="f32")
    for x, result in zip(a, d.tolist(), strict=True):
        assert result == numbers.rounded(Fraction(int(x)), "f32", mode)
    if mode == "rn":
        h = run_elementwise(f"cvt.rn.f16.{origin} d, a;", a=(origin, a), d="f16")
        for x, result in zip(a, h.tolist(), strict=True):
            assert result == numbers.rounded(Fraction(int(x)), "f16")


@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_narrowing(run_elementwise: Any, numbers: Any, name: str, mode: str) -> None:
    a, b = numbers.floats(512, finite=True), numbers.floats(512, finite=True)
    body = f"cvt.{mode}.{name}.f32 d, a; cvt.{mode}.{name}x2.f32 e, a, b;"
    d, e = run_elementwise(body, a=("f32", a), b=("f32", b), d=name, e="u32")
    wanted = [numbers.rounded(Fraction(x), name, mode) for x in a.tolist()]
    assert d.astype(np.float64).tolist() == wanted
    # The first source is the upper half.
    upper, lower = e >> 16, e & 0xFFFF
    np.testing.assert_array_equal(upper.astype(np.uint16), d.view(np.uint16))
    low = lower.astype(np.uint16).view(d.dtype).astype(np.float64).tolist()
    assert low == [numbers.rounded(Fraction(x), name, mode) for x in b.tolist()]


def test_narrowing_specials(run_elementwise: Any) -> None:
    a = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, -3.0], np.float32)
    body = """
    cvt.rn.bf16.f32 d, a; cvt.rn.f16.f32 e, a;
    cvt.rn.relu.bf16x2.f32 f, a, a; cvt.rn.sat.f16.f32 g, a;
    """
    d, e, f, g = run_elementwise(body, a=("f32", a), d="u16", e="u16", f="u32", g="u16")
    assert d.tolist() == [0x7FFF, 0x7F80, 0xFF80, 0x8000, 0, 0xC040]
    assert e.tolist() == [0x7FFF, 0x7C00, 0xFC00, 0x8000, 0, 0xC200]
    assert f.tolist() == [0x7FFF7FFF, 0x7F807F80, 0, 0, 0, 0]
    assert g.tolist() == [0, 0x3C00, 0, 0, 0, 0]


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_widening(run_elementwise: Any, same_floats: Any, name: str, dtype: Any) -> None:
    a = np.arange(65536, dtype=np.uint16)[::7].view(dtype)
    d = run_elementwise(f"cvt.f32.{name} d, a;", "sm_90", a=(name, a), d="f32")
    if name == "f16":
        same_floats(d, a.astype(np.float32))
    else:
        shifted = a.view(np.uint16).astype(np.uint32) << np.uint32(16)
        np.testing.assert_array_equal(d.view(np.uint32), shifted)


def test_what_is_tiny_is_kept_by_a_conversion_to_half(run_elementwise: Any) -> None:
    a = np.array([1, 0x7FFFFF, 0x80000001, 0x807FFFFF], np.uint32).view(np.float32)
    body = "cvt.rp.ftz.f16.f32 d, a; cvt.rm.ftz.f16.f32 e, a; cvt.rn.ftz.f16.f32 f, a;"
    d, e, f = run_elementwise(body, a=("f32", a), d="u16", e="u16", f="u16")
    assert d.tolist() == [1, 1, 0x8000, 0x8000]
    assert e.tolist() == [0, 0, 0x8001, 0x8001]
    assert f.tolist() == [0, 0, 0x8000, 0x8000]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_flushing_of_what_float64_becomes(run_elementwise: Any, numbers: Any, mode: str) -> None:
    near = 1 + np.arange(-64, 8) * 2.0**-28
    a = np.concatenate([near, -near]) * 2.0**-126
    d = run_elementwise(f"cvt.{mode}.ftz.f32.f64 d, a;", a=("f64", a), d="f32")
    for x, found in zip(a.tolist(), d.tolist(), strict=True):
        unbounded = numbers.rounded(Fraction(x) * 2**100, "f32", mode) * 2.0**-100
        wanted = unbounded if abs(unbounded) >= 2.0**-126 else 0.0
        assert found == wanted and np.signbit(found) == (x < 0)


def test_float64(run_elementwise: Any, numbers: Any, same_floats: Any) -> None:
    a = numbers.floats(128)
    d = run_elementwise("cvt.f64.f32 d, a;", a=("f32", a), d="f64")
    same_floats(d, a.astype(np.float64))
    with np.errstate(all="ignore"):
        x = np.nan_to_num(d) * (1 + 2.0**-30)
    x[np.isinf(x)] = 1
    for mode in ("rn", "rz", "rm", "rp"):
        back = run_elementwise(f"cvt.{mode}.f32.f64 d, a;", a=("f64", x), d="f32")
        wanted = [numbers.rounded(Fraction(v), "f32", mode) for v in x.tolist()]
        assert back.tolist() == wanted


def test_rounding_to_integral(run_elementwise: Any) -> None:
    a = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e20, 0.49999997], np.float32)
    body = "cvt.rni.f32.f32 d, a; cvt.rmi.f32.f32 e, a;"
    d, e = run_elementwise(body, a=("f32", a), d="f32", e="f32")
    np.testing.assert_array_equal(d, np.rint(a))
    np.testing.assert_array_equal(e, np.floor(a))


@pytest.mark.parametrize(
    "opcode", ["cvt.f32.s32", "cvt.s32.f32", "cvt.rn.f16x2.f16", "cvt.rn.e4m3x2.f32"]
)
def test_what_is_not_known(run_elementwise: Any, opcode: str) -> None:
    with pytest.raises(SimulatorError, match="does not support the instruction"):
        run_elementwise(f"{opcode} d, a;", a=("b32", np.arange(32)), d="b32")


def test_addresses(run_kernel: Any) -> None:
    out = np.zeros(1, np.uint64)
    body = """
    .reg .b64 p, q; ld.param.u64 p, [p0]; cvta.to.global.u64 q, p; cvta.global.u64 p, q;
    st.global.u64 [q], p; ret;
    """
    run_kernel(body, out)
    assert int(out[0]) == out.ctypes.data
