"""Arithmetic in f32."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Step
from cuevo.sim.arithmetic import float32
from cuevo.sim.arithmetic.exponential import gradual_power_of_two, power_of_two
from cuevo.sim.arithmetic.logarithm import gradual_logarithm, logarithm
from cuevo.sim.arithmetic.reciprocal import gradual_reciprocal, reciprocal
from cuevo.sim.arithmetic.reciprocal_root import gradual_reciprocal_root, reciprocal_root
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.types import TYPES

_ROUND = "{round:.rn|.rz|.rm|.rp}"


def _finish(out: AnyArray, sat: bool) -> None:
    """Finish a rounded and flushed result: saturation, the canonical NaN."""
    if sat:
        # NaN saturates to +0; the sum turns -0 into +0.
        np.copyto(out, np.nan_to_num(np.clip(out, 0, 1), nan=0.0) + np.float32(0))
    else:
        float32.canonicalize(out)


def _float32(
    b: Binder,
    m: Modifiers,
    compute: Callable[..., object],
    exact: Callable[..., AnyArray] | None = None,
) -> Step:
    """A step for compute(out, *sources) in f32; out may be one of the sources.

    `exact` gives what is rounded, as float64, where a result may be as small as the smallest normal
    number and not be exact: then .ftz depends on it.
    """
    f32 = TYPES["f32"]
    sources = [b.source(operand, f32) for operand in b.instruction.operands[1:]]
    d = b.destination(b.operand(0), f32)
    ftz, sat, mode = bool(m.get("ftz")), bool(m.get("sat")), m.get("round") or "rn"

    def run(out: AnyArray) -> None:
        compute(out, *sources)
        _finish(out, sat)

    def run_flushing(out: AnyArray) -> None:
        compute(out, *map(float32.flushed, sources))
        float32.flush(out)
        _finish(out, sat)

    if not ftz:
        return b.alu(d, run)
    if exact is None:
        return b.alu(d, run_flushing)
    unrounded = exact
    # Sources may be asked for again: a result does not take their place before.
    apart = b.scratch("rounded", f32.dtype)
    in_place = any(np.may_share_memory(d, source) for source in sources)

    def run_flushing_exactly(out: AnyArray) -> None:
        values = [float32.flushed(source) for source in sources]
        result = apart if in_place else out
        compute(result, *values)
        float32.flush_rounded(result, lambda: unrounded(*values), mode)
        _finish(result, sat)
        if in_place:
            np.copyto(out, result)

    return b.alu(d, run_flushing_exactly)


def add(b: Binder, m: Modifiers) -> Step:
    mode = m["round"] or "rn"
    function = np.add if m["op"] == "add" else np.subtract
    if mode == "rn":
        return _float32(b, m, lambda out, x, y: function(x, y, out))
    sign = 1 if m["op"] == "add" else -1

    def compute(out: AnyArray, x: AnyArray, y: AnyArray) -> None:
        wide = x.astype(np.float64), sign * y.astype(np.float64)
        np.copyto(out, float32.directed_sum(*wide, mode))

    return _float32(b, m, compute)


def multiply(b: Binder, m: Modifiers) -> Step:
    mode = m["round"] or "rn"

    def exact(x: AnyArray, y: AnyArray) -> AnyArray:
        return np.asarray(np.multiply(x, y, dtype=np.float64))

    if mode == "rn":
        return _float32(b, m, lambda out, x, y: np.multiply(x, y, out), exact)
    return _float32(
        b, m, lambda out, x, y: np.copyto(out, float32.directed(exact(x, y), mode)), exact
    )


def fused(b: Binder, m: Modifiers) -> Step:
    mode = m["round"]

    def wide(x: AnyArray, y: AnyArray, z: AnyArray) -> tuple[AnyArray, AnyArray]:
        return np.multiply(x, y, dtype=np.float64), z.astype(np.float64)

    def exact(x: AnyArray, y: AnyArray, z: AnyArray) -> AnyArray:
        return float32.sum_to_odd(*wide(x, y, z))

    if mode == "rn":
        return _float32(b, m, lambda out, x, y, z: float32.fma(x, y, z, out), exact)
    return _float32(
        b,
        m,
        lambda out, x, y, z: np.copyto(out, float32.directed_sum(*wide(x, y, z), mode)),
        exact,
    )


def extremum(b: Binder, m: Modifiers) -> Step:
    greatest = m["op"] == "max"
    function: np.ufunc = np.fmax if greatest else np.fmin
    if m.get("NaN"):
        function = np.maximum if greatest else np.minimum
    signs = np.bitwise_and if greatest else np.bitwise_or
    crossed = bool(m.get("xorsign_abs"))
    # +0 is greater than -0, for which NumPy makes no promise.
    result = b.scratch("extremum", np.dtype(np.float32))

    def compute(out: AnyArray, x: AnyArray, y: AnyArray) -> None:
        if crossed:
            # Of the magnitudes; the sign is that of the product.
            sign = (x.view(np.uint32) ^ y.view(np.uint32)) & np.uint32(1 << 31)
            function(np.abs(x), np.abs(y), out=result)
            np.bitwise_or(result.view(np.uint32), sign, out=out.view(np.uint32))
            return
        function(x, y, out=result)
        zeros = (result == 0) & (x == y)
        if np.count_nonzero(zeros):
            bits = signs(x.view(np.uint32), y.view(np.uint32))
            np.copyto(result.view(np.uint32), bits, where=zeros)
        np.copyto(out, result)

    return _float32(b, m, compute)


def sign(b: Binder, m: Modifiers) -> Step:
    function = np.negative if m["op"] == "neg" else np.absolute
    return _float32(b, m, lambda out, x: function(x, out))


def copy_sign(b: Binder, m: Modifiers) -> Step:
    """The sign of the first source on the second; on bits, so that a NaN stays the one it is."""
    scalar = TYPES[m["type"]]
    bits = np.dtype(f"u{scalar.bits // 8}")
    x, y = (b.source(b.operand(i), scalar).view(bits) for i in (1, 2))
    d = b.destination(b.operand(0), scalar).view(bits)
    sign = bits.type(1 << (scalar.bits - 1))
    return b.alu(d, lambda out: np.bitwise_or(x & sign, y & ~sign, out))


def _in_float64(function: Callable[[AnyArray], AnyArray]) -> Callable[[AnyArray, AnyArray], None]:
    """An approximate function as the correctly rounded one: evaluated in float64."""

    def compute(out: AnyArray, x: AnyArray) -> None:
        np.copyto(out, function(x.astype(np.float64)), casting="unsafe")

    return compute


_APPROXIMATE: dict[str, Callable[[AnyArray], AnyArray]] = {
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
}


_MODELLED: dict[str, tuple[Callable[[AnyArray], AnyArray], Callable[[AnyArray], AnyArray]]] = {
    "ex2": (power_of_two, gradual_power_of_two),
    "rcp": (reciprocal, gradual_reciprocal),
    "lg2": (logarithm, gradual_logarithm),
    "rsqrt": (reciprocal_root, gradual_reciprocal_root),
}
"""Functions with ``.ftz``, and without."""


def approximate(b: Binder, m: Modifiers) -> Step:
    if m["op"] in _MODELLED:
        function = _MODELLED[m["op"]][0 if m["ftz"] else 1]
        return _float32(b, m, lambda out, x: np.copyto(out, function(x)))
    return _float32(b, m, _in_float64(_APPROXIMATE[m["op"]]))


def tanh(b: Binder, m: Modifiers) -> Step:
    return _float32(b, m, _in_float64(np.tanh))


def quotient(b: Binder, m: Modifiers) -> Step:
    """rcp, sqrt and div, rounded once. In float64 no result is close enough to a float32 number
    for its own rounding to reach it, so that a second rounding does no harm.
    """
    mode, op = m["round"], m["op"]

    def exact(x: AnyArray, y: AnyArray | None = None) -> AnyArray:
        wide = x.astype(np.float64)
        return np.asarray(np.sqrt(wide) if op == "sqrt" else 1 / wide if y is None else wide / y)

    if mode != "rn":
        return _float32(
            b, m, lambda out, *x: np.copyto(out, float32.directed(exact(*x), mode)), exact
        )
    if op == "sqrt":
        return _float32(b, m, lambda out, x: np.sqrt(x, out))
    if op == "rcp":
        return _float32(b, m, lambda out, x: np.divide(np.float32(1), x, out), exact)
    return _float32(b, m, lambda out, x, y: np.divide(x, y, out), exact)


def divide_approximately(b: Binder, m: Modifiers) -> Step:
    return _float32(b, m, lambda out, x, y: np.divide(x, y, out))


def test_property(b: Binder, m: Modifiers) -> Step:
    x = b.source(b.operand(1), TYPES[m["type"]])
    tiny = np.finfo(x.dtype).tiny
    p = b.destination(b.operand(0), TYPES["pred"])
    tests: dict[str, Callable[[], AnyArray]] = {
        "finite": lambda: np.isfinite(x),
        "infinite": lambda: np.isinf(x),
        "number": lambda: ~np.isnan(x),
        "notanumber": lambda: np.isnan(x),
        # A zero counts as normal.
        "normal": lambda: np.isfinite(x) & ((np.abs(x) >= tiny) | (x == 0)),
        "subnormal": lambda: (np.abs(x) < tiny) & (x != 0),
    }
    test = tests[m["test"]]
    return b.alu(p, lambda out: np.copyto(out, test()))
