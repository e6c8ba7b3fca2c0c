"""Comparisons: setp and set."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.arithmetic import float32, halves
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.types import TYPES, ScalarType

_ORDERED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED = {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}


def _comparison(
    m: Modifiers, x: AnyArray, y: AnyArray, scalar: ScalarType
) -> Callable[[AnyArray], object]:
    """Writes the outcome for each lane."""
    name = m["compare"]
    if scalar.name not in ("f16", "bf16", "f32", "f64"):
        function = {**_ORDERED, **_UNSIGNED}[name]
        return lambda out: function(x, y, out)
    ftz = bool(m.get("ftz"))

    def prepared() -> tuple[AnyArray, AnyArray]:
        p, q = x, y
        if scalar.bits == 16:
            p, q = p.astype(np.float32), q.astype(np.float32)
        if not ftz:
            return p, q
        if scalar.bits == 16:
            tiny = halves.TINY[scalar.name]
            return p * (np.abs(p) >= tiny), q * (np.abs(q) >= tiny)
        return float32.flushed(p), float32.flushed(q)

    def unordered() -> AnyArray:
        p, q = prepared()
        return np.isnan(p) | np.isnan(q)

    if name == "nan":
        return lambda out: np.copyto(out, unordered())
    if name == "num":
        return lambda out: np.copyto(out, ~unordered())
    if name == "ne":
        return lambda out: np.copyto(out, np.not_equal(*prepared()) & ~unordered())
    if name == "neu":
        # IEEE's "not equal" is the unordered one.
        return lambda out: np.not_equal(*prepared(), out)
    if name in _ORDERED:
        ordered = _ORDERED[name]
        return lambda out: ordered(*prepared(), out)
    loose = _ORDERED[name[:-1]]
    return lambda out: np.copyto(out, loose(*prepared()) | unordered())


_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def set_predicate(b: Binder, m: Modifiers) -> Step:
    scalar = TYPES[m["type"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    compare = _comparison(m, x, y, scalar)
    third = b.predicate(b.operand(3)) if m["combine"] else None
    first, second = b.pair(b.operand(0))
    p = b.destination(first, TYPES["pred"])
    if third is None and first is b.operand(0):
        return b.alu(p, compare)
    q = b.destination(second, TYPES["pred"])
    outcome = b.scratch("outcome", np.dtype(np.bool_))
    combine = _COMBINE[m["combine"]] if m["combine"] else None

    def step(mask: Mask) -> None:
        compare(outcome)
        if combine is None or third is None:
            results = outcome, ~outcome
        else:
            results = combine(outcome, third()), combine(~outcome, third())
        where = True if mask is None else mask
        np.copyto(p, results[0], where=where)
        np.copyto(q, results[1], where=where)

    return step


def set_value(b: Binder, m: Modifiers) -> Step:
    scalar, result = TYPES[m["type"]], TYPES[m["to"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    compare = _comparison(m, x, y, scalar)
    third = b.predicate(b.operand(3)) if m["combine"] else None
    d = b.destination(b.operand(0), result)
    outcome = b.scratch("outcome", np.dtype(np.bool_))
    zero = result.dtype.type(0)
    true = zero + result.dtype.type(1)
    if result.dtype.kind in "ui":
        true = ~zero

    def compute(out: AnyArray) -> None:
        compare(outcome)
        truth = outcome if third is None else _COMBINE[m["combine"]](outcome, third())
        np.copyto(out, np.where(truth, true, zero))

    return b.alu(d, compute)


def _pair(b: Binder, m: Modifiers) -> Callable[[], tuple[AnyArray, AnyArray]]:
    """The outcomes for the low and for the high halves of two registers."""
    scalar, half = TYPES[m["type"]], TYPES[m["type"].removesuffix("x2")]
    sources = [b.whole(b.operand(i), scalar) for i in (1, 2)]
    third = b.predicate(b.operand(3)) if m["combine"] else None
    shape = b.machine.shape

    def outcomes() -> tuple[AnyArray, AnyArray]:
        low, high = np.empty(shape, np.bool_), np.empty(shape, np.bool_)
        for out, by in ((low, 0), (high, 16)):
            x, y = ((x >> np.uint32(by)).astype(np.uint16).view(half.dtype) for x in sources)
            _comparison(m, x, y, half)(out)
            if third is not None:
                _COMBINE[m["combine"]](out, third(), out)
        return low, high

    return outcomes


def set_predicates(b: Binder, m: Modifiers) -> Step:
    """``p|q``: p of the low halves, q of the high ones."""
    outcomes = _pair(b, m)
    first, second = b.pair(b.operand(0))
    p, q = (b.destination(each, TYPES["pred"]) for each in (first, second))

    def step(mask: Mask) -> None:
        low, high = outcomes()
        where = True if mask is None else mask
        np.copyto(p, low, where=where)
        np.copyto(q, high, where=where)

    return step


def set_values(b: Binder, m: Modifiers) -> Step:
    """1.0 or all ones in each half where the comparison holds."""
    outcomes = _pair(b, m)
    d = b.destination(b.operand(0), TYPES[m["to"]]).view(np.uint32)
    true = np.uint32({"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(m["to"], 0xFFFF))

    def compute(out: AnyArray) -> None:
        low, high = outcomes()
        np.copyto(out, low * true | high * true << np.uint32(16))

    return b.alu(d, compute)
