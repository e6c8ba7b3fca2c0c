"""Arithmetic in f64."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Step
from cuevo.sim.arithmetic import float64
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.types import TYPES

_NANS = {"fma": (0, 2, 1), "mad": (0, 2, 1), "div": (1, 0)}
"""Operands in the order in which their NaNs are overridden, as an H200 does it."""


def _float64(b: Binder, compute: Callable[..., AnyArray]) -> Step:
    """A step for compute(*sources) in f64."""
    f64 = TYPES["f64"]
    sources = [b.source(operand, f64) for operand in b.instruction.operands[1:]]
    d = b.destination(b.operand(0), f64)
    order = _NANS.get(b.instruction.opcode.split(".")[0], range(len(sources)))
    ranked = [sources[i] for i in order]
    return b.alu(
        d, lambda out: np.copyto(out, float64.keep_nans(np.asarray(compute(*sources)), *ranked))
    )


def arithmetic(b: Binder, m: Modifiers) -> Step:
    mode = m["round"] or "rn"
    operations: dict[str, Callable[..., AnyArray]] = {
        "add": lambda x, y: float64.add(x, y, mode),
        "sub": lambda x, y: float64.add(x, -y, mode),
        "mul": lambda x, y: float64.multiply(x, y, mode),
        "fma": lambda x, y, z: float64.fma(x, y, z, mode),
        "mad": lambda x, y, z: float64.fma(x, y, z, mode),
        "div": lambda x, y: float64.divide(x, y, mode),
        "rcp": lambda x: float64.divide(np.ones_like(x), x, mode),
        "sqrt": lambda x: float64.square_root(x, mode),
    }
    return _float64(b, operations[m["op"]])


def approximate(b: Binder, m: Modifiers) -> Step:
    """Approximate by the upper words alone with ``.ftz``: the result has nothing in its lower."""
    rough = bool(m.get("ftz"))
    word = ~np.uint64(0xFFFFFFFF)

    def compute(x: AnyArray) -> AnyArray:
        if rough:
            x = (x.view(np.uint64) & word).view(np.float64)
            x = np.where(np.abs(x) < np.finfo(np.float64).tiny, x * 0, x)
        result = np.asarray(1 / x if m["op"] == "rcp" else 1 / np.sqrt(x))
        if rough:
            result = (result.view(np.uint64) & word).view(np.float64)
            result = np.where(np.abs(result) < np.finfo(np.float64).tiny, result * 0, result)
        return result

    return _float64(b, compute)


def extremum(b: Binder, m: Modifiers) -> Step:
    greatest = m["op"] == "max"
    function: np.ufunc = np.fmax if greatest else np.fmin

    def compute(x: AnyArray, y: AnyArray) -> AnyArray:
        # +0 is greater than -0.
        negative = np.signbit(x) & np.signbit(y) if greatest else np.signbit(x) | np.signbit(y)
        zeros = (x == 0) & (y == 0)
        return np.where(zeros, np.where(negative, -0.0, 0.0), function(x, y))

    return _float64(b, compute)


def sign(b: Binder, m: Modifiers) -> Step:
    return _float64(b, np.negative if m["op"] == "neg" else np.absolute)
