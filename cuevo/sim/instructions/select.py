"""Comparison, selection and moves."""

from collections.abc import Callable

import numpy as np

from cuevo.sim import float32
from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.binder import Binder
from cuevo.sim.instructions.table import Modifiers, form
from cuevo.sim.syntax import VectorOperand
from cuevo.sim.types import TYPES, ScalarType

_ORDERED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED = {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}
_TYPES = ".b16|.b32|.b64|.u16|.u32|.u64|.s16|.s32|.s64|.f32|.f64"
_COMPARE = ".eq|.ne|.lt|.le|.gt|.ge|.lo|.ls|.hi|.hs|.equ|.neu|.ltu|.leu|.gtu|.geu|.num|.nan"


def _comparison(
    b: Binder, m: Modifiers, x: AnyArray, y: AnyArray, scalar: ScalarType
) -> Callable[[AnyArray], object]:
    """Writes the outcome for each lane."""
    name = m["compare"]
    is_float = scalar.name in ("f16", "bf16", "f32", "f64")
    if not is_float:
        if scalar.kind == "b" and name not in ("eq", "ne"):
            raise b.refusal(f".{name} does not compare untyped bits (.{scalar.name})")
        if name in _UNSIGNED and scalar.kind == "s":
            raise b.refusal(f".{name} compares unsigned integers, not .{scalar.name}")
        function = {**_ORDERED, **_UNSIGNED}.get(name)
        if function is None:
            raise b.refusal(f".{name} compares floating-point numbers, not .{scalar.name}")
        return lambda out: function(x, y, out)
    ftz = bool(m.get("ftz"))

    def prepared() -> tuple[AnyArray, AnyArray]:
        p, q = x, y
        if scalar.bits == 16:
            p, q = p.astype(np.float32), q.astype(np.float32)
        return (float32.flushed(p), float32.flushed(q)) if ftz else (p, q)

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
    if name[:-1] in _ORDERED and name.endswith("u"):
        loose = _ORDERED[name[:-1]]
        return lambda out: np.copyto(out, loose(*prepared()) | unordered())
    raise b.refusal(f".{name} compares integers, not .{scalar.name}")


_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


_SETP = f"setp<compare:{_COMPARE}>{{combine:.and|.or|.xor}}{{.ftz}}"


@form(f"{_SETP}<type:{_TYPES}|.f16>")
@form(f"{_SETP}<type:.bf16>", since=90)
def set_predicate(b: Binder, m: Modifiers) -> Step:
    b.count(4 if m["combine"] else 3)
    scalar = TYPES[m["type"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    compare = _comparison(b, m, x, y, scalar)
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


@form(
    f"set<compare:{_COMPARE}>{{combine:.and|.or|.xor}}{{.ftz}}<result:.u32|.s32|.f32><type:{_TYPES}>"
)
def set_value(b: Binder, m: Modifiers) -> Step:
    b.count(4 if m["combine"] else 3)
    scalar, result = TYPES[m["type"]], TYPES[m["result"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    compare = _comparison(b, m, x, y, scalar)
    third = b.predicate(b.operand(3)) if m["combine"] else None
    d = b.destination(b.operand(0), result)
    outcome = b.scratch("outcome", np.dtype(np.bool_))
    true = (
        np.float32(1)
        if m["result"] == "f32"
        else result.dtype.type(-1 if result.kind == "s" else 2**32 - 1)
    )

    def compute(out: AnyArray) -> None:
        compare(outcome)
        truth = outcome if third is None else _COMBINE[m["combine"]](outcome, third())
        np.copyto(out, np.where(truth, true, result.dtype.type(0)))

    return b.alu(d, compute)


@form(f"selp<type:{_TYPES}>")
def select(b: Binder, m: Modifiers) -> Step:
    b.count(4)
    scalar = TYPES[m["type"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    p = b.predicate(b.operand(3))
    d = b.destination(b.operand(0), scalar)
    return b.alu(d, lambda out: np.copyto(out, np.where(p(), x, y)))


@form("mov<type:.b16|.b32|.b64|.u16|.u32|.u64|.s16|.s32|.s64|.f16|.f32|.f64>")
def move(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    scalar = TYPES[m["type"]]
    into, out_of = b.operand(0), b.operand(1)
    if isinstance(into, VectorOperand):
        return _unpack(b, scalar, into)
    if isinstance(out_of, VectorOperand):
        return _pack(b, scalar, out_of)
    x, d = b.source(out_of, scalar), b.destination(into, scalar)
    return b.alu(d, lambda out: np.copyto(out, x))


@form("mov.pred")
def move_predicate(b: Binder, m: Modifiers) -> Step:
    b.count(2)
    x, d = b.source(b.operand(1), TYPES["pred"]), b.destination(b.operand(0), TYPES["pred"])
    return b.alu(d, lambda out: np.copyto(out, x))


def _part(b: Binder, scalar: ScalarType, vector: VectorOperand) -> ScalarType:
    """The type of a vector's elements."""
    count = len(vector.elements)
    if scalar.kind != "b" or scalar.bits // count not in (16, 32) or scalar.bits % count:
        raise b.refusal(f"mov.{scalar.name} does not pack {count} elements")
    return TYPES[f"b{scalar.bits // count}"]


def _unpack(b: Binder, scalar: ScalarType, vector: VectorOperand) -> Step:
    part = _part(b, scalar, vector)
    x = b.whole(b.operand(1), scalar)
    destinations = [b.destination(element, part) for element in vector.elements]

    def step(mask: Mask) -> None:
        # A destination may be the source's own register only if it has another size, which types
        # forbid.
        pieces = np.ascontiguousarray(x).view(part.dtype).reshape(*x.shape, len(destinations))
        where = True if mask is None else mask
        for i, d in enumerate(destinations):
            np.copyto(d, pieces[..., i], where=where)

    return step


def _pack(b: Binder, scalar: ScalarType, vector: VectorOperand) -> Step:
    part = _part(b, scalar, vector)
    sources = [b.source(element, part) for element in vector.elements]
    d = b.destination(b.operand(0), scalar)

    def compute(out: AnyArray) -> None:
        result = out.view(part.dtype).reshape(*out.shape, len(sources))
        for i, x in enumerate(sources):
            result[..., i] = x

    return b.alu(d, compute)
