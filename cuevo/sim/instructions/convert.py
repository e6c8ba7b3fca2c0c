"""cvt among integers and floating-point numbers."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Step
from cuevo.sim.arithmetic import float32, float64, formats, halves
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.types import TYPES, ScalarType

_TO_INTEGER: dict[str, Callable[[AnyArray], AnyArray]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


_FLUSHED_NAN = float32.CANONICAL_NAN.reshape(1).view(np.float32).astype(np.float64)


def _exact(x: AnyArray, name: str, m: Modifiers) -> AnyArray:
    """A floating-point source as float64; with ``.ftz`` subnormals of f32 are zeros."""
    if TYPES[name].bits == 16:
        return halves.widen(x.view(np.uint16), name).astype(np.float64)
    if name == "f32" and m.get("ftz"):
        x = float32.flushed(x)
    return x.astype(np.float64)


def _saturated(x: AnyArray) -> AnyArray:
    """To between 0 and 1; NaN becomes +0, and so does -0."""
    return np.asarray(np.nan_to_num(np.clip(x, 0, 1), nan=0.0) + x.dtype.type(0))


def _float_destination(
    b: Binder, scalar: ScalarType, *, wider: bool = True
) -> tuple[AnyArray, bool]:
    """The register, and whether it wants patterns: one that is wider than the type takes them,
    extended by zeros.
    """
    d = b.destination(b.operand(0), scalar, wider=wider)
    if scalar.bits == 16:
        return (d if d.dtype.kind == "u" else d.view(np.uint16)), True
    return d, d.dtype.kind == "u"


def _put(out: AnyArray, value: AnyArray, scalar: ScalarType, as_bits: bool) -> None:
    """Write numbers of the type `scalar`, any NaN as the canonical one; those of f64 stay."""
    if scalar.bits == 16:
        np.copyto(out, formats.patterns(value, scalar.name))
        return
    target = np.empty(out.shape, scalar.dtype) if as_bits else out
    np.copyto(target, value, casting="unsafe")
    if scalar.bits == 32:
        float32.canonicalize(target)
    if as_bits:
        _put_bits(out, target)


def _put_bits(out: AnyArray, value: AnyArray) -> None:
    """Write the patterns of `value`, which a wider register gets extended by zeros."""
    np.copyto(out.view(f"u{out.itemsize}"), value.view(f"u{value.itemsize}"))


# -- Integers -------------------------------------------------------------------------------------


def _store_integer(out: AnyArray, value: AnyArray, scalar: ScalarType) -> None:
    """Write an integer; a wider register gets it extended by its sign, or by zeros."""
    np.copyto(out, value.astype(scalar.dtype), casting="unsafe")


def between_integers(b: Binder, m: Modifiers) -> Step:
    target, origin = TYPES[m["to"]], TYPES[m["from"]]
    x = b.source(b.operand(1), origin, wider=True)
    d = b.destination(b.operand(0), target, wider=True)
    info = np.iinfo(target.dtype)

    def compute(out: AnyArray) -> None:
        value = x
        if m.get("sat"):
            value = np.maximum(value, max(info.min, int(np.iinfo(x.dtype).min)))
            value = np.minimum(value, min(info.max, int(np.iinfo(x.dtype).max)))
        _store_integer(out, value, target)

    return b.alu(d, compute)


def to_integer(b: Binder, m: Modifiers) -> Step:
    """Out of range saturates. A NaN gives 0, but where f64 or 64 bits take part the top bit."""
    target, name = TYPES[m["to"]], m["from"]
    x = b.source(b.operand(1), TYPES[name], wider=True)
    d = b.destination(b.operand(0), target, wider=name != "bf16")
    info = np.iinfo(target.dtype)
    rounding = _TO_INTEGER[m["round"]]
    has_64_bits = name == "f64" or target.bits == 64
    of_nan = np.array(1 << (target.bits - 1) if has_64_bits else 0, f"u{target.bits // 8}")

    def compute(out: AnyArray) -> None:
        value = rounding(_exact(x, name, m))
        nan = np.isnan(value)
        low, high = value <= float(info.min), value >= float(info.max)
        result = np.where(low | high | nan, 0, value).astype(target.dtype)
        result = np.where(low, target.dtype.type(info.min), result)
        result = np.where(high, target.dtype.type(info.max), result)
        _store_integer(out, np.where(nan, of_nan.view(target.dtype), result), target)

    return b.alu(d, compute)


def from_integer(b: Binder, m: Modifiers) -> Step:
    target, origin, mode = TYPES[m["to"]], TYPES[m["from"]], m["round"]
    x = b.source(b.operand(1), origin, wider=target.name != "bf16")
    d, as_bits = _float_destination(b, target)
    saturate = bool(m.get("sat"))
    if mode == "rn" and target.bits >= 32 and not saturate and not as_bits:
        # NumPy rounds integers to nearest even.
        return b.alu(d, lambda out: np.copyto(out, x, casting="unsafe"))

    def compute(out: AnyArray) -> None:
        if target.bits == 64:
            value = x.astype(np.float64) if x.dtype.itemsize < 8 else float64.add(*_parts(x), mode)
        elif target.bits == 32:
            value = float32.directed(_odd_float64(x), mode)
        else:
            value = formats.rounded(_odd_float64(x), target.name, mode)
        _put(out, _saturated(value) if saturate else value, target, as_bits)

    return b.alu(d, compute)


def _parts(x: AnyArray) -> tuple[AnyArray, AnyArray]:
    """A 64-bit integer as the sum of two float64."""
    high, low = x >> x.dtype.type(32), x & x.dtype.type(0xFFFFFFFF)
    return high.astype(np.float64) * 2.0**32, low.astype(np.float64)


def _odd_float64(x: AnyArray) -> AnyArray:
    """Integers as float64, rounded to odd where they are not exact."""
    if x.dtype.itemsize < 8:
        return x.astype(np.float64)
    return float32.sum_to_odd(*_parts(x))


# -- Floating-point numbers -----------------------------------------------------------------------


def between_floats(b: Binder, m: Modifiers) -> Step:
    """A NaN becomes canonical, unless f64 takes part: then it stays, made quiet, with as much of
    its fraction as there is room for.
    """
    target, name = TYPES[m["to"]], m["from"]
    x = b.source(b.operand(1), TYPES[name], wider=target.name != "bf16")
    mode, ftz, saturate = m.get("round") or "rn", bool(m.get("ftz")), bool(m.get("sat"))
    narrow = name == "bf16" or (ftz and name == "f64")
    d, as_bits = _float_destination(b, target, wider=not narrow)
    if (name, target.name) == ("bf16", "f32"):
        # A shift, by which a NaN stays what it is.
        return b.alu(d, lambda out: _put_bits(out, halves.widen(x.view(np.uint16), name)))

    def compute(out: AnyArray) -> None:
        if target.bits == 32 and name != "f64":
            value = halves.widen(x.view(np.uint16), name)
        else:
            value = _exact(x, name, m)
        if target.bits == 32 and name == "f64":
            value = float32.directed(value, mode)
            if ftz:
                float32.flush_rounded(value, lambda: x, mode)
        elif target.bits == 16:
            value = formats.rounded(value, target.name, mode)
        elif ftz and target.bits == 64:
            # What flushes the source makes a canonical NaN of float32 of it.
            value[np.isnan(value)] = _FLUSHED_NAN
        if saturate:
            value = _saturated(value)
        _put(out, value, target, as_bits)
        if name == "f64" and not saturate:
            nan = np.isnan(x)
            if np.count_nonzero(nan):
                patterns = formats.nan_patterns(x, target.name)
                np.copyto(out.view(f"u{out.itemsize}"), patterns, where=nan, casting="unsafe")

    return b.alu(d, compute)


def narrow(b: Binder, m: Modifiers) -> Step:
    name, mode = m["to"], m["round"]
    x = b.source(b.operand(1), TYPES["f32"], wider=name == "f16")
    d, _ = _float_destination(b, TYPES[name])
    return b.alu(d, lambda out: np.copyto(out, _narrowed(x, m, name, mode)))


def narrow_pair(b: Binder, m: Modifiers) -> Step:
    name, mode = m["to"].removesuffix("x2"), m["round"]
    high, low = (b.source(b.operand(i), TYPES["f32"], wider=name == "f16") for i in (1, 2))
    d = b.destination(b.operand(0), TYPES[m["to"]])

    def compute(out: AnyArray) -> None:
        upper = _narrowed(high, m, name, mode).astype(np.uint32)
        np.bitwise_or(upper << np.uint32(16), _narrowed(low, m, name, mode), out)

    return b.alu(d, compute)


def _narrowed(x: AnyArray, m: Modifiers, name: str, mode: str) -> AnyArray:
    """f32 to patterns of f16 or bf16, with the modifiers that act before rounding. On an H200
    ``.ftz`` does nothing here: rounded up, the smallest number of f32 becomes that of f16.
    """
    if m.get("relu"):
        x = np.where(x <= 0, np.float32(0), x)
    if m.get("sat"):
        x = _saturated(x)
    if m.get("satfinite") or mode not in ("rn", "rz"):
        finite = bool(m.get("satfinite"))
        value = formats.rounded(x.astype(np.float64), name, mode, finite=finite)
        return formats.patterns(value, name)
    return halves.narrow(x, name, mode)


def to_tf32(b: Binder, m: Modifiers) -> Step:
    x, d = b.source(b.operand(1), TYPES["f32"]), b.destination(b.operand(0), TYPES["tf32"])

    if m["round"] == "rna":
        return b.alu(d, lambda out: np.copyto(out, _nearest_away_tf32(x, bool(m["satfinite"]))))

    def compute(out: AnyArray) -> None:
        exact = x.astype(np.float64)
        if m.get("relu"):
            exact = np.where(exact <= 0, 0.0, exact)
        value = formats.rounded(exact, "tf32", m["round"], finite=bool(m["satfinite"]))
        np.copyto(out, formats.patterns(value, "tf32"))

    return b.alu(d, compute)


def _nearest_away_tf32(x: AnyArray, finite: bool) -> AnyArray:
    """f32 to patterns of tf32, halves away from zero: an addition and a mask of integers, and so
    also with infinities and NaNs, of which only the mask is; what has no finite exponent then is
    one place less if it is to be finite.
    """
    bits, infinity = x.view(np.uint32), np.uint32(0x7F800000)
    below = np.uint32((1 << 13) - 1)
    bits = (bits + (bits & infinity != infinity) * np.uint32(1 << 12)) & ~below
    if finite:
        bits = bits - (bits & infinity == infinity) * np.uint32(1 << 13)
    return np.asarray(bits)


def to_integral(b: Binder, m: Modifiers) -> Step:
    """Rounding to an integer within a floating-point type; or no rounding, the modifiers alone."""
    scalar = TYPES[m["type"]]
    x, (d, as_bits) = b.source(b.operand(1), scalar, wider=True), _float_destination(b, scalar)
    rounding = _TO_INTEGER.get(m.get("round", ""))
    if scalar.bits >= 32 and not (rounding or m.get("ftz") or m.get("sat")):
        # No arithmetic: a NaN stays what it is.
        return b.alu(d, lambda out: _put_bits(out, x))

    def compute(out: AnyArray) -> None:
        value = _exact(x, scalar.name, m)
        if rounding is not None:
            value = rounding(value)
        if scalar.bits == 64:
            value = float64.keep_nans(value, x)
        _put(out, _saturated(value) if m.get("sat") else value, scalar, as_bits)

    return b.alu(d, compute)
