"""Selection and moves."""

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.arithmetic import float32
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.syntax import SinkOperand, SymbolOperand, VectorOperand
from cuevo.sim.text.types import TYPES, ScalarType


def by_predicate(b: Binder, m: Modifiers) -> Step:
    scalar = TYPES[m["type"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    p = b.predicate(b.operand(3))
    d = b.destination(b.operand(0), scalar)
    return b.alu(d, lambda out: np.copyto(out, np.where(p(), x, y)))


def by_sign(b: Binder, m: Modifiers) -> Step:
    """a where c >= 0, else b; a NaN is no c >= 0."""
    scalar, by = TYPES[m["type"]], TYPES[m["by"]]
    x, y = (b.source(b.operand(i), scalar) for i in (1, 2))
    c, d = b.source(b.operand(3), by), b.destination(b.operand(0), scalar)
    ftz = bool(m.get("ftz"))

    def compute(out: AnyArray) -> None:
        sign = float32.flushed(c) if ftz else c
        np.copyto(out, np.where(sign >= 0, x, y))

    return b.alu(d, compute)


def move(b: Binder, m: Modifiers) -> Step:
    scalar = TYPES[m["type"]]
    into, out_of = b.operand(0), b.operand(1)
    if isinstance(into, VectorOperand):
        return _unpack(b, scalar, into)
    if isinstance(out_of, VectorOperand):
        return _pack(b, scalar, out_of)
    if isinstance(into, SinkOperand):
        raise b.refusal(f"mov.{scalar.name} has no result that is kept")
    d = b.destination(into, scalar)
    if isinstance(out_of, SymbolOperand) and b.machine.local.place(out_of.variable) is not None:
        # Where it is in the stack is known when it is run; its offset is added then.
        x = b.source(SymbolOperand(out_of.variable), scalar)
        more = scalar.dtype.type(out_of.offset & ((1 << scalar.bits) - 1))
        return b.alu(d, lambda out: np.add(x, more, out))
    x = b.source(out_of, scalar)
    return b.alu(d, lambda out: np.copyto(out, x))


def move_vector(b: Binder, m: Modifiers) -> Step:
    """Each register of a vector to its like."""
    scalar, count = TYPES[m["type"]], int(m["vector"][1:])
    sources = [b.whole(each, scalar) for each in b.vector(b.operand(1), count)]
    destinations = [b.destination(each, scalar) for each in b.vector(b.operand(0), count)]

    def step(mask: Mask) -> None:
        values = [x.copy() for x in sources]
        for d, x in zip(destinations, values, strict=True):
            np.copyto(d, x, where=True if mask is None else mask)

    return step


def move_predicate(b: Binder, m: Modifiers) -> Step:
    if isinstance(b.operand(0), SinkOperand):
        raise b.refusal("mov.pred has no result that is kept")
    x, d = b.predicate(b.operand(1)), b.destination(b.operand(0), TYPES["pred"])
    return b.alu(d, lambda out: np.copyto(out, x()))


def _part(b: Binder, scalar: ScalarType, vector: VectorOperand) -> ScalarType:
    """The type of a vector's elements."""
    count = len(vector.elements)
    if scalar.kind != "b" or count not in (1, 2, 4) or scalar.bits // count < 8:
        raise b.refusal(f"mov.{scalar.name} does not pack {count} elements")
    return TYPES[f"b{scalar.bits // count}"]


def _unpack(b: Binder, scalar: ScalarType, vector: VectorOperand) -> Step:
    part = _part(b, scalar, vector)
    if all(isinstance(each, SinkOperand) for each in vector.elements):
        raise b.refusal(f"mov.{scalar.name} has no result that is kept")
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
