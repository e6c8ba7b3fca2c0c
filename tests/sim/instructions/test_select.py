"""cuevo.sim.instructions: compare and select."""

import operator
from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError

pytestmark = pytest.mark.unit

ORDERED = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
UNSIGNED = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}


@pytest.mark.parametrize("scalar", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_integer_comparisons(run_elementwise: Any, numbers: Any, scalar: str) -> None:
    a, b = numbers.integers(scalar, 128), numbers.integers(scalar, 128)
    b[::3] = a[::3]
    tests = {**ORDERED, **(UNSIGNED if scalar[0] == "u" else {})}
    body = "".join(f"setp.{name}.{scalar} p_{name}, a, b;" for name in tests)
    names = {f"p_{name}": "pred" for name in tests}
    results = run_elementwise(body, a=(scalar, a), b=(scalar, b), **names)
    for result, test in zip(results, tests.values(), strict=True):
        np.testing.assert_array_equal(result, test(a, b))


@pytest.mark.parametrize("scalar", ["f16", "bf16", "f32", "f64"])
def test_float_comparisons(run_elementwise: Any, numbers: Any, scalar: str) -> None:
    special = np.array([np.nan, 0.0, -0.0, 1.5, -2, np.inf, -np.inf])
    a, b = (x.ravel() for x in np.meshgrid(special, special))
    unordered = np.isnan(a) | np.isnan(b)
    expected = {name: test(a, b) & ~unordered for name, test in ORDERED.items()}
    expected |= {f"{name}u": test(a, b) | unordered for name, test in ORDERED.items()}
    expected |= {"num": ~unordered, "nan": unordered}
    body = "".join(f"setp.{name}.{scalar} p_{name}, a, b;" for name in expected)
    names = {f"p_{name}": "pred" for name in expected}
    arch = "sm_90" if scalar == "bf16" else "sm_80"
    results = run_elementwise(body, arch, a=(scalar, a), b=(scalar, b), **names)
    for result, (name, wanted) in zip(results, expected.items(), strict=True):
        np.testing.assert_array_equal(result, wanted, err_msg=name)


def test_comparison_can_flush(run_elementwise: Any) -> None:
    a = np.array([2.0**-130, -(2.0**-130)], np.float32)
    body = "setp.eq.f32 d, a, 0f00000000; setp.eq.ftz.f32 e, a, 0f00000000;"
    d, e = run_elementwise(body, a=("f32", a), d="pred", e="pred")
    assert not d.any() and e.all()


def test_combination_and_second_destination(run_elementwise: Any, numbers: Any) -> None:
    a, b, c = (numbers.rng.integers(0, 2, 64) for _ in range(3))
    body = """
    .reg .pred r; setp.ne.u32 r, c, 0;
    setp.lt.u32 d|e, a, b;
    setp.lt.and.u32 f|g, a, b, r; setp.lt.or.u32 h|i, a, b, !r; setp.lt.xor.u32 j|_, a, b, r;
    setp.lt.and.u32 r, a, b, r; mov.pred k, r;
    """
    operands = {name: ("u32", x) for name, x in (("a", a), ("b", b), ("c", c))}
    results = run_elementwise(body, **operands, **dict.fromkeys("defghijk", "pred"))
    t, r = a < b, c != 0
    for actual, wanted in zip(
        results, (t, ~t, t & r, ~t & r, t | ~r, ~t | ~r, t ^ r, t & r), strict=True
    ):
        np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize(
    ("opcode", "message"),
    [
        ("setp.lt.b32 p, a, a", "does not support"),
        ("setp.lo.s32 p, a, a", "does not support"),
        ("setp.ltu.s32 p, a, a", "does not support"),
        ("setp.hi.f32 p, a, a", "does not support"),
        ("setp.foo.s32 p, a, a", "does not support the instruction setp.foo.s32"),
    ],
)
def test_what_does_not_compare(run_elementwise: Any, opcode: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        run_elementwise(f".reg .pred p; {opcode};", a=("b32", np.arange(32)), d="b32")


def test_set(run_elementwise: Any) -> None:
    a = np.arange(32)
    body = "set.lt.u32.s32 d, a, 5; set.lt.f32.s32 e, a, 5;"
    d, e = run_elementwise(body, a=("s32", a), d="u32", e="f32")
    np.testing.assert_array_equal(d, np.where(a < 5, 0xFFFFFFFF, 0))
    np.testing.assert_array_equal(e, np.where(a < 5, 1.0, 0.0))


def test_select(run_elementwise: Any, numbers: Any) -> None:
    a, b = numbers.floats(64), numbers.floats(64)
    a, b = np.nan_to_num(a), np.nan_to_num(b)
    body = """
    .reg .pred p; setp.lt.f32 p, a, b;
    selp.f32 d, a, b, p; selp.b32 e, 1, 2, p; selp.f32 f, a, b, !p;
    """
    d, e, f = run_elementwise(body, a=("f32", a), b=("f32", b), d="f32", e="u32", f="f32")
    np.testing.assert_array_equal(d, np.minimum(a, b))
    np.testing.assert_array_equal(e, np.where(a < b, 1, 2))
    np.testing.assert_array_equal(f, np.where(a < b, b, a))


def test_packing_and_unpacking(run_elementwise: Any, numbers: Any) -> None:
    a, w = numbers.integers("u32", 64), numbers.integers("u64", 64)
    body = """
    .reg .b16 lo, hi, q0, q1, q2, q3; .reg .b32 low, high;
    mov.b32 {lo, hi}, a; mov.b32 d, {hi, lo};
    mov.b64 {low, high}, w; mov.b64 e, {high, low};
    mov.b64 {q0, q1, q2, q3}, w; mov.b64 f, {q3, q2, q1, q0};
    mov.b64 {_, g}, w; mov.b64 h, {a, 7};
    """
    names = {"d": "u32", "e": "u64", "f": "u64", "g": "u32", "h": "u64"}
    d, e, f, g, h = run_elementwise(body, a=("u32", a), w=("u64", w), **names)
    np.testing.assert_array_equal(d, a << 16 | a >> 16)
    np.testing.assert_array_equal(e, w << np.uint64(32) | w >> np.uint64(32))
    np.testing.assert_array_equal(
        f.view(np.uint16).reshape(-1, 4), w.view(np.uint16).reshape(-1, 4)[:, ::-1]
    )
    np.testing.assert_array_equal(g, w >> np.uint64(32))
    np.testing.assert_array_equal(h, a.astype(np.uint64) | np.uint64(7 << 32))


def test_special_registers(run_kernel: Any) -> None:
    names = ["%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ctaid.x", "%nctaid.x", "%laneid"]
    names += ["%warpid", "%lanemask_lt", "%lanemask_ge", "%lanemask_eq"]
    out = np.zeros((3, 60, len(names)), np.uint32)
    body = """
    .reg .b64 p; .reg .b32 n, x; ld.param.u64 p, [p0];
    mov.u32 n, %tid.z; mad.lo.u32 n, n, 3, 0; mov.u32 x, %tid.y; add.u32 n, n, x;
    mov.u32 x, %tid.x; mad.lo.u32 n, n, 5, x; mov.u32 x, %ctaid.x; mad.lo.u32 n, x, 60, n;
    """
    body += f"mad.wide.u32 p, n, {4 * len(names)}, p;"
    for i, name in enumerate(names):
        body += f"mov.u32 x, {name}; st.global.u32 [p+{4 * i}], x;"
    run_kernel(body + "ret;", out, grid=3, block=(5, 3, 4))
    number = np.arange(60)
    lane = number % 32
    expected = {
        "%tid.x": number % 5,
        "%tid.y": number // 5 % 3,
        "%tid.z": number // 15,
        "%ntid.x": 5,
        "%ntid.y": 3,
        "%nctaid.x": 3,
        "%laneid": lane,
        "%warpid": number // 32,
        "%lanemask_lt": (1 << lane) - 1,
        "%lanemask_ge": 2**32 - (1 << lane),
        "%lanemask_eq": 1 << lane,
    }
    for i, name in enumerate(names):
        wanted = np.arange(3)[:, None] if name == "%ctaid.x" else expected[name]
        np.testing.assert_array_equal(out[:, :, i], np.broadcast_to(wanted, (3, 60)), err_msg=name)
