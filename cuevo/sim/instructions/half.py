"""Arithmetic in f16 and bf16, single and packed in pairs."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Step
from cuevo.sim.arithmetic import float32, halves
from cuevo.sim.arithmetic.exponential import narrow_power_of_two
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.types import TYPES

Compute = Callable[..., AnyArray]
"""float32 sources to the exact result (float64), or one rounded to odd."""


def _halves(b: Binder, m: Modifiers, compute: Compute) -> Step:
    name, packed = m["type"].removesuffix("x2"), m["type"].endswith("x2")
    scalar = TYPES[m["type"]] if packed else TYPES[name]
    raw = np.dtype(np.uint32 if packed else np.uint16)
    sources = [b.source(operand, scalar).view(raw) for operand in b.instruction.operands[1:]]
    d = b.destination(b.operand(0), scalar).view(raw)
    tiny = halves.TINY[name]
    # Below, a result is smaller than the smallest normal number even after rounding, as if
    # exponents had no end.
    flushed = tiny * (1 - 2.0 ** -(12 if name == "f16" else 9))
    ftz, sat, relu = bool(m.get("ftz")), bool(m.get("sat")), bool(m.get("relu"))

    def one(sources: list[AnyArray]) -> AnyArray:
        values = [halves.widen(source, name) for source in sources]
        if ftz:
            values = [np.where(np.abs(v) < tiny, v * 0, v) for v in values]
        exact = compute(*values)
        if sat:
            exact = np.nan_to_num(np.clip(exact, 0, 1), nan=0.0) + 0.0
        if relu:
            exact = np.where(exact <= 0, 0.0, exact)
        if ftz:
            exact = np.where(np.abs(exact) < flushed, exact * 0, exact)
        return halves.narrow_exact(np.asarray(exact, np.float64), name)

    def run(out: AnyArray) -> None:
        if not packed:
            np.copyto(out, one(sources))
            return
        low = one([source.astype(np.uint16) for source in sources])
        high = one([(source >> np.uint32(16)).astype(np.uint16) for source in sources])
        np.copyto(out, low | (high.astype(np.uint32) << np.uint32(16)))

    return b.alu(d, run)


def _sum(x: AnyArray, y: AnyArray) -> AnyArray:
    return float32.sum_to_odd(x.astype(np.float64), y.astype(np.float64))


def _product(x: AnyArray, y: AnyArray) -> AnyArray:
    return np.asarray(np.multiply(x, y, dtype=np.float64))


_BINARY: dict[str, Compute] = {
    "add": _sum,
    "sub": lambda x, y: _sum(x, -y),
    "mul": _product,
}


def binary(b: Binder, m: Modifiers) -> Step:
    return _halves(b, m, _BINARY[m["op"]])


def _fused(x: AnyArray, y: AnyArray, z: AnyArray) -> AnyArray:
    return float32.sum_to_odd(_product(x, y), z.astype(np.float64))


def fused(b: Binder, m: Modifiers) -> Step:
    return _halves(b, m, _fused)


def extremum(b: Binder, m: Modifiers) -> Step:
    greatest = m["op"] == "max"
    function: np.ufunc = np.fmax if greatest else np.fmin
    if m["NaN"]:
        function = np.maximum if greatest else np.minimum

    def compute(x: AnyArray, y: AnyArray) -> AnyArray:
        if m["xorsign_abs"]:
            # Of the magnitudes; the sign is that of the product.
            magnitude = function(np.abs(x), np.abs(y))
            return np.asarray(np.where(np.signbit(x) ^ np.signbit(y), -magnitude, magnitude))
        result = function(x, y)
        # +0 is greater than -0.
        negative = np.signbit(x) & np.signbit(y) if greatest else np.signbit(x) | np.signbit(y)
        zero = np.where(negative, np.float32(-0.0), np.float32(0.0))
        return np.where((x == 0) & (y == 0), zero, result)

    return _halves(b, m, compute)


def sign(b: Binder, m: Modifiers) -> Step:
    return _halves(b, m, np.negative if m["op"] == "neg" else np.absolute)


def approximate(b: Binder, m: Modifiers) -> Step:
    if m["op"] == "ex2":
        name = m["type"].removesuffix("x2")
        return _halves(b, m, lambda x: narrow_power_of_two(x, name))
    return _halves(b, m, lambda x: np.asarray(np.tanh(x.astype(np.float64))))
