"""cvt and cvta."""

from collections.abc import Callable

import numpy as np

from cuevo.sim import float32, halves
from cuevo.sim.aliases import AnyArray, Step
from cuevo.sim.binder import Binder
from cuevo.sim.instructions.table import Modifiers, form
from cuevo.sim.types import TYPES, ScalarType

_INTEGERS = ".u8|.u16|.u32|.u64|.s8|.s16|.s32|.s64"
_FLOATS = ".f16|.f32|.f64"
_TO_INTEGER: dict[str, Callable[[AnyArray], AnyArray]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def _store_integer(out: AnyArray, value: AnyArray, scalar: ScalarType) -> None:
    """Write an integer; a wider register gets it extended by its sign, or by zeros."""
    np.copyto(out, value.astype(scalar.dtype), casting="unsafe")


@form(f"cvt{{.sat}}<to:{_INTEGERS}><from:{_INTEGERS}>")
def integer_to_integer(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    target, origin = TYPES[m["to"]], TYPES[m["from"]]
    x = b.source(b.operand(1), origin, wider=True)
    d = b.destination(b.operand(0), target, wider=True)
    info = np.iinfo(target.dtype)

    def compute(out: AnyArray) -> None:
        value = x
        if m["sat"]:
            value = np.maximum(value, max(info.min, int(np.iinfo(x.dtype).min)))
            value = np.minimum(value, min(info.max, int(np.iinfo(x.dtype).max)))
        _store_integer(out, value, target)

    return b.alu(d, compute)


@form(f"cvt<round:.rni|.rzi|.rmi|.rpi>{{.ftz}}{{.sat}}<to:{_INTEGERS}><from:{_FLOATS}>")
def float_to_integer(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    target, origin = TYPES[m["to"]], TYPES[m["from"]]
    x = b.source(b.operand(1), origin, wider=True)
    d = b.destination(b.operand(0), target, wider=True)
    info = np.iinfo(target.dtype)
    rounding = _TO_INTEGER[m["round"]]

    def compute(out: AnyArray) -> None:
        value = rounding((float32.flushed(x) if m["ftz"] else x).astype(np.float64))
        # Out of range saturates; NaN gives 0 (the ISA's rule for up to 32 bits).
        value = np.nan_to_num(value, nan=0.0, posinf=np.inf, neginf=-np.inf)
        low, high = value <= float(info.min), value >= float(info.max)
        result = np.where(low | high, 0, value).astype(target.dtype)
        result = np.where(low, target.dtype.type(info.min), result)
        _store_integer(out, np.where(high, target.dtype.type(info.max), result), target)

    return b.alu(d, compute)


@form(f"cvt<round:.rn|.rz|.rm|.rp><to:{_FLOATS}><from:{_INTEGERS}>")
def integer_to_float(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    target, origin, mode = TYPES[m["to"]], TYPES[m["from"]], m["round"]
    x = b.source(b.operand(1), origin, wider=True)
    d = b.destination(b.operand(0), target)
    if target.bits != 32 and mode != "rn":
        raise b.refusal(f".{mode} to .{target.name} is not supported")

    def compute(out: AnyArray) -> None:
        if mode == "rn":
            # NumPy rounds integers to nearest even; to float16 it goes by way of a wider type.
            if target.bits == 16:
                np.copyto(out, _odd_float64(x).astype(np.float16))
            else:
                np.copyto(out, x, casting="unsafe")
        else:
            np.copyto(out, float32.directed(_odd_float64(x), mode))

    return b.alu(d, compute)


def _odd_float64(x: AnyArray) -> AnyArray:
    """Integers as float64, rounded to odd where they are not exact."""
    if x.dtype.itemsize < 8:
        return x.astype(np.float64)
    low = (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64)
    return float32.sum_to_odd((x >> x.dtype.type(32)).astype(np.float64) * 2.0**32, low)


@form("cvt{.ftz}{.sat}.f32.f16", "cvt{.ftz}.f64.f32", "cvt.f64.f16")
@form("cvt.f32.bf16", since=80)
def widen(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    name = b.instruction.opcode.split(".")[-1]
    target = TYPES["f64" if ".f64" in b.instruction.opcode else "f32"]
    origin = TYPES[name]
    x = b.source(b.operand(1), origin, wider=True)
    d = b.destination(b.operand(0), target)

    def compute(out: AnyArray) -> None:
        value = halves.widen(x.view(np.uint16), name) if origin.bits == 16 else x
        if m.get("ftz"):
            value = float32.flushed(value)
        if m.get("sat"):
            value = np.nan_to_num(np.clip(value, 0, 1), nan=0.0) + np.float32(0)
        np.copyto(out, value)
        float32.canonicalize(out)

    return b.alu(d, compute)


@form("cvt<round:.rn|.rz>{.ftz}{.sat}.f16.f32")
@form("cvt<round:.rn|.rz>.relu.f16.f32", "cvt<round:.rn|.rz>{.relu}<to:.bf16>.f32", since=80)
def narrow(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    name, mode = m.get("to") or "f16", m["round"]
    x = b.source(b.operand(1), TYPES["f32"])
    d = b.destination(b.operand(0), TYPES[name], wider=True)
    raw = d if d.dtype.kind == "u" else d.view(np.uint16)
    return b.alu(raw, lambda out: np.copyto(out, halves.narrow(_prepared(x, m), name, mode)))


@form("cvt<round:.rn|.rz>{.relu}<to:.f16x2|.bf16x2>.f32", since=80)
def narrow_pair(b: Binder, m: Modifiers) -> Step:
    b.count(3)
    name, mode = m["to"].removesuffix("x2"), m["round"]
    high, low = (b.source(b.operand(i), TYPES["f32"]) for i in (1, 2))
    d = b.destination(b.operand(0), TYPES["b32"])

    def compute(out: AnyArray) -> None:
        upper = halves.narrow(_prepared(high, m), name, mode).astype(np.uint32)
        lower = halves.narrow(_prepared(low, m), name, mode)
        np.bitwise_or(upper << np.uint32(16), lower, out)

    return b.alu(d, compute)


def _prepared(x: AnyArray, m: Modifiers) -> AnyArray:
    """A source of a narrowing conversion, after the modifiers that act before rounding."""
    if m.get("ftz"):
        x = float32.flushed(x)
    if m.get("relu"):
        x = np.where(x <= 0, np.float32(0), x)
    if m.get("sat"):
        x = np.nan_to_num(np.clip(x, 0, 1), nan=0.0) + np.float32(0)
    return x


@form("cvt<round:.rn|.rz|.rm|.rp>{.ftz}{.sat}.f32.f64")
def double_to_single(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    x, d = b.source(b.operand(1), TYPES["f64"]), b.destination(b.operand(0), TYPES["f32"])

    def compute(out: AnyArray) -> None:
        np.copyto(out, float32.directed(x, m["round"]))
        if m["sat"]:
            np.copyto(out, np.nan_to_num(np.clip(out, 0, 1), nan=0.0) + np.float32(0))
        if m["ftz"]:
            float32.flush(out)
        float32.canonicalize(out)

    return b.alu(d, compute)


@form("cvt<round:.rni|.rzi|.rmi|.rpi>{.ftz}{.sat}.f32.f32")
def round_to_integral(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    x, d = b.source(b.operand(1), TYPES["f32"]), b.destination(b.operand(0), TYPES["f32"])
    rounding = _TO_INTEGER[m["round"]]

    def compute(out: AnyArray) -> None:
        np.copyto(out, rounding(float32.flushed(x) if m["ftz"] else x))
        if m["sat"]:
            np.copyto(out, np.nan_to_num(np.clip(out, 0, 1), nan=0.0) + np.float32(0))
        float32.canonicalize(out)

    return b.alu(d, compute)


@form("cvta{.to}<space:.global|.shared|.param><type:.u64|.u32>")
def convert_address(b: Binder, m: Modifiers) -> Step:
    """Generic addresses are those of global memory; those of shared memory stay in their window."""
    b.count(2)
    scalar = TYPES[m["type"]]
    x, d = b.source(b.operand(1), scalar), b.destination(b.operand(0), scalar)
    return b.alu(d, lambda out: np.copyto(out, x))
