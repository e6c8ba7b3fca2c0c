"""Arithmetic in f32 and f64."""

from collections.abc import Callable

import numpy as np

from cuevo.sim import float32
from cuevo.sim.aliases import AnyArray, Step
from cuevo.sim.binder import Binder
from cuevo.sim.instructions.table import Modifiers, form
from cuevo.sim.types import TYPES

_ROUND = "{round:.rn|.rz|.rm|.rp}"


def _finish(out: AnyArray, ftz: bool, sat: bool) -> None:
    """What comes after rounding: flushing, saturation, the canonical NaN."""
    if ftz:
        float32.flush(out)
    if sat:
        # NaN saturates to +0; the sum turns -0 into +0.
        np.copyto(out, np.nan_to_num(np.clip(out, 0, 1), nan=0.0) + np.float32(0))
    else:
        float32.canonicalize(out)


def _float32(b: Binder, m: Modifiers, compute: Callable[..., object]) -> Step:
    """A step for compute(out, *sources) in f32; out may be one of the sources."""
    f32 = TYPES["f32"]
    sources = [b.source(operand, f32) for operand in b.instruction.operands[1:]]
    d = b.destination(b.operand(0), f32)
    ftz, sat = bool(m.get("ftz")), bool(m.get("sat"))

    def run(out: AnyArray) -> None:
        if ftz:
            compute(out, *map(float32.flushed, sources))
        else:
            compute(out, *sources)
        _finish(out, ftz, sat)

    return b.alu(d, run)


@form(f"<op:add|sub>{_ROUND}{{.ftz}}{{.sat}}.f32")
def add(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    mode = m["round"] or "rn"
    function = np.add if m["op"] == "add" else np.subtract
    if mode == "rn":
        return _float32(b, m, lambda out, x, y: function(x, y, out))
    sign = 1 if m["op"] == "add" else -1

    def compute(out: AnyArray, x: AnyArray, y: AnyArray) -> None:
        wide = x.astype(np.float64), sign * y.astype(np.float64)
        np.copyto(out, float32.directed_sum(*wide, mode))

    return _float32(b, m, compute)


@form(f"mul{_ROUND}{{.ftz}}{{.sat}}.f32")
def multiply(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    mode = m["round"] or "rn"
    if mode == "rn":
        return _float32(b, m, lambda out, x, y: np.multiply(x, y, out))
    return _float32(
        b,
        m,
        lambda out, x, y: np.copyto(
            out, float32.directed(np.multiply(x, y, dtype=np.float64), mode)
        ),
    )


@form("fma<round:.rn|.rz|.rm|.rp>{.ftz}{.sat}.f32", "mad<round:.rn|.rz|.rm|.rp>{.ftz}{.sat}.f32")
def fused(b: Binder, m: Modifiers) -> Step:
    b.count(4)
    mode = m["round"]
    if mode == "rn":
        return _float32(b, m, lambda out, x, y, z: float32.fma(x, y, z, out))

    def compute(out: AnyArray, x: AnyArray, y: AnyArray, z: AnyArray) -> None:
        wide = np.multiply(x, y, dtype=np.float64), z.astype(np.float64)
        np.copyto(out, float32.directed_sum(*wide, mode))

    return _float32(b, m, compute)


@form("<op:min|max>{.ftz}.f32")
@form("<op:min|max>{.ftz}<NaN:.NaN>.f32", since=80)
def extremum(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    greatest = m["op"] == "max"
    function: np.ufunc = np.fmax if greatest else np.fmin
    if m.get("NaN"):
        function = np.maximum if greatest else np.minimum
    signs = np.bitwise_and if greatest else np.bitwise_or
    # +0 is greater than -0, for which NumPy makes no promise.
    result = b.scratch("extremum", np.dtype(np.float32))

    def compute(out: AnyArray, x: AnyArray, y: AnyArray) -> None:
        function(x, y, out=result)
        zeros = (result == 0) & (x == y)
        if np.count_nonzero(zeros):
            bits = signs(x.view(np.uint32), y.view(np.uint32))
            np.copyto(result.view(np.uint32), bits, where=zeros)
        np.copyto(out, result)

    return _float32(b, m, compute)


@form("<op:neg|abs>{.ftz}.f32")
def sign(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    function = np.negative if m["op"] == "neg" else np.absolute
    return _float32(b, m, lambda out, x: function(x, out))


@form("copysign.f32")
def copy_sign(b: Binder, m: Modifiers) -> Step:
    """The sign of the first source on the second; on bits, so that a NaN stays the one it is."""
    b.count(3)
    f32 = TYPES["f32"]
    x, y = (b.source(b.operand(i), f32).view(np.uint32) for i in (1, 2))
    d = b.destination(b.operand(0), f32).view(np.uint32)
    sign, rest = np.uint32(1 << 31), np.uint32(0x7FFFFFFF)
    return b.alu(d, lambda out: np.bitwise_or(x & sign, y & rest, out))


def _in_float64(function: Callable[[AnyArray], AnyArray]) -> Callable[[AnyArray, AnyArray], None]:
    """An approximate function as the correctly rounded one: evaluated in float64."""

    def compute(out: AnyArray, x: AnyArray) -> None:
        np.copyto(out, function(x.astype(np.float64)), casting="unsafe")

    return compute


_APPROXIMATE: dict[str, Callable[[AnyArray], AnyArray]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
}


@form("<op:ex2|lg2|rcp|sqrt|rsqrt|sin|cos>.approx{.ftz}.f32")
def approximate(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    return _float32(b, m, _in_float64(_APPROXIMATE[m["op"]]))


@form("tanh.approx.f32", since=75)
def tanh(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    return _float32(b, m, _in_float64(np.tanh))


@form("<op:rcp|sqrt>.rn{.ftz}.f32")
def exact_unary(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    if m["op"] == "sqrt":
        return _float32(b, m, lambda out, x: np.sqrt(x, out))
    return _float32(b, m, lambda out, x: np.divide(np.float32(1), x, out))


@form("div<kind:.rn|.approx|.full>{.ftz}.f32")
def divide(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    return _float32(b, m, lambda out, x, y: np.divide(x, y, out))


@form(
    "<op:add|sub|mul>{.rn}.f64",
    "<op:div>.rn.f64",
    "<op:min|max>.f64",
)
def float64_binary(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    f64 = TYPES["f64"]
    x, y = (b.source(b.operand(i), f64) for i in (1, 2))
    d = b.destination(b.operand(0), f64)
    function = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
        "min": np.fmin,
        "max": np.fmax,
    }[m["op"]]
    return b.alu(d, lambda out: function(x, y, out))


@form("<op:neg|abs>.f64", "<op:sqrt>.rn.f64", "<op:rcp>.rn.f64")
def float64_unary(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    f64 = TYPES["f64"]
    x, d = b.source(b.operand(1), f64), b.destination(b.operand(0), f64)
    function = {"neg": np.negative, "abs": np.absolute, "sqrt": np.sqrt, "rcp": np.reciprocal}
    chosen = function[m["op"]]
    return b.alu(d, lambda out: chosen(x, out))


@form("testp<test:.finite|.infinite|.number|.notanumber|.normal|.subnormal>.f32")
def test_property(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    x = b.source(b.operand(1), TYPES["f32"])
    p = b.destination(b.operand(0), TYPES["pred"])
    tests: dict[str, Callable[[], AnyArray]] = {
        "finite": lambda: np.isfinite(x),
        "infinite": lambda: np.isinf(x),
        "number": lambda: ~np.isnan(x),
        "notanumber": lambda: np.isnan(x),
        "normal": lambda: np.isfinite(x) & (np.abs(x) >= float32.TINY),
        "subnormal": lambda: (np.abs(x) < float32.TINY) & (x != 0),
    }
    test = tests[m["test"]]
    return b.alu(p, lambda out: np.copyto(out, test()))
