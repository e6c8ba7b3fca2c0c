"""cuevo.sim.instructions.half, against exact fractions and NumPy."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytestmark = pytest.mark.unit

SIZE = 512
F = Fraction
DTYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
OPERATIONS: dict[str, Callable[[Fraction, Fraction, Fraction], Fraction]] = {
    "add": lambda x, y, z: x + y,
    "sub": lambda x, y, z: x - y,
    "mul": lambda x, y, z: x * y,
    "fma": lambda x, y, z: x * y + z,
}


def finite(numbers: Any, name: str, size: int = SIZE) -> Any:
    bits = numbers.rng.integers(0, 65536, size).astype(np.uint16)
    values = bits.view(DTYPES[name])
    return np.where(np.isfinite(values.astype(np.float32)), values, DTYPES[name].type(1.5))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", OPERATIONS)
def test_arithmetic_rounds_once(run_elementwise: Any, numbers: Any, name: str, op: str) -> None:
    a, b, c = (finite(numbers, name) for _ in range(3))
    with np.errstate(all="ignore"):
        c[: SIZE // 2] = -(a * b)[: SIZE // 2]
    c = np.where(np.isfinite(c.astype(np.float32)), c, DTYPES[name].type(1))
    operands, rounding = ("a, b, c", ".rn") if op == "fma" else ("a, b", "")
    body = f"{op}{rounding}.{name} d, {operands};"
    d = run_elementwise(body, "sm_90", a=(name, a), b=(name, b), c=(name, c), d=name)
    exact = OPERATIONS[op]
    for x, y, z, result in zip(a, b, c, d, strict=True):
        value = exact(F(float(x)), F(float(y)), F(float(z)))
        assert float(result) == numbers.rounded(value, name), (x, y, z)


def test_what_is_tiny_is_decided_after_rounding(run_elementwise: Any, numbers: Any) -> None:
    """To 11 bits, as if exponents had no end."""
    near = (1 + np.arange(-16, 17) * 2.0**-11).astype(np.float16)
    x, y = (v.ravel() for v in np.meshgrid(near, np.concatenate([near, -near])))
    a, b = x * np.float16(2.0**-7), y * np.float16(2.0**-7)
    body = """
    .reg .b16 zero; mov.b16 zero, 0;
    mul.ftz.f16 d, a, b; fma.rn.ftz.f16 e, a, b, zero; mul.f16 f, a, b;
    """
    d, e, f = run_elementwise(body, a=("f16", a), b=("f16", b), d="f16", e="f16", f="f16")
    for x, y, found in zip(a.tolist(), b.tolist(), d.tolist(), strict=True):
        unbounded = numbers.rounded(Fraction(x) * Fraction(y) * 2**10, "f16") * 2.0**-10
        assert found == (unbounded if abs(unbounded) >= 2.0**-14 else 0), (x, y)
    # The result without .ftz does not tell which are tiny.
    assert ((d == 0) & (np.abs(f) == 2.0**-14)).any()
    np.testing.assert_array_equal(d, e)


@pytest.mark.parametrize("name", DTYPES)
def test_packed_is_two_of_one(run_elementwise: Any, numbers: Any, name: str) -> None:
    a, b, c = (finite(numbers, name, 2 * SIZE) for _ in range(3))
    packed = {n: ("b32", x.view(np.uint32)) for n, x in (("a", a), ("b", b), ("c", c))}
    single = {n: (name, x) for n, x in (("a", a), ("b", b), ("c", c))}
    for op in ("add {}, a, b", "mul {}, a, b", "fma.rn {}, a, b, c", "max {}, a, b", "neg {}, a"):
        word, rest = op.split(" ", 1)
        rest = rest.format("d")
        both = run_elementwise(f"{word}.{name}x2 {rest};", "sm_90", **packed, d="b32")
        each = run_elementwise(f"{word}.{name} {rest};", "sm_90", **single, d=name)
        np.testing.assert_array_equal(both.view(np.uint16), each.view(np.uint16))


def test_specials_and_signs(run_elementwise: Any, same_floats: Any) -> None:
    a = np.array([np.inf, -np.inf, np.nan, 65504, 0.0, -0.0, 2.0**-24], np.float16)
    body = "add.f16 d, a, a; neg.f16 e, a; abs.f16 f, a; fma.rn.relu.f16 g, a, a, a;"
    d, e, f, g = run_elementwise(body, a=("f16", a), d="f16", e="f16", f="f16", g="f16")
    inf, nan, one = np.inf, np.nan, 2.0**-24
    same_floats(d, np.array([inf, -inf, nan, inf, 0.0, -0.0, 2 * one], np.float16))
    same_floats(e, -a)
    same_floats(f, np.abs(a))
    # -inf * -inf - inf is no number.
    same_floats(g, np.array([inf, nan, nan, inf, 0.0, 0.0, one], np.float16))


def test_multiplying_by_the_sign_of_a_scale(run_elementwise: Any) -> None:
    a = np.array([0x3F80BF80, 0x00018001, 0x80000000], np.uint32)
    d = run_elementwise(
        "fma.rn.bf16x2 d, a, m, z;",
        a=("b32", a),
        m=("b32", np.full(3, 0xBF80BF80)),
        z=("b32", np.full(3, 0x80008000)),
        d="b32",
    )
    assert [hex(x) for x in d] == ["0xbf803f80", "0x80010001", "0x8000"]


@pytest.mark.parametrize("name", DTYPES)
def test_extrema(run_elementwise: Any, same_floats: Any, name: str) -> None:
    special = np.array([np.nan, -0.0, 0.0, 1, -2, np.inf, -np.inf], DTYPES[name])
    a, b = (x.ravel() for x in np.meshgrid(special, special))
    body = f"max.{name} d, a, b; min.NaN.{name} e, a, b;"
    d, e = run_elementwise(body, a=(name, a), b=(name, b), d=name, e=name)

    def expected(x: float, y: float, greatest: bool) -> float:
        if np.isnan(x) or np.isnan(y):
            return (y if np.isnan(x) else x) if greatest else np.nan
        return sorted((x, y), key=lambda v: (v, not np.signbit(v)))[greatest]

    for result, greatest in ((d, True), (e, False)):
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        same_floats(
            result,
            np.array([expected(float(x), float(y), greatest) for x, y in pairs], DTYPES[name]),
        )


def test_functions(run_elementwise: Any, same_floats: Any, numbers: Any) -> None:
    a = finite(numbers, "f16")
    d = run_elementwise("tanh.approx.f16 d, a;", a=("f16", a), d="f16")
    with np.errstate(all="ignore"):
        same_floats(d, np.tanh(a.astype(np.float64)).astype(np.float16))
