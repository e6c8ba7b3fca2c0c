"""The approximate functions: what they approximate, and how near the PTX ISA has them come.

No bits are promised of them. What a GPU gives is recorded whole, as the distance from the correctly
rounded result, and has to be within the bound, as has what the CPU executor gives.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import pi

import ml_dtypes
import numpy as np
from sim.recordings.fills import Array
from sim.recordings.probes import Probe, Source

BINDERS = (
    "floating.approximate",
    "floating.tanh",
    "floating.divide_approximately",
    "half.approximate",
    "double.approximate",
)
DTYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}


@dataclass(frozen=True)
class Bound:
    """The largest error; infinite where nothing is said."""

    relative: float = 0.0
    absolute: float = 0.0
    ulps: float = 0.0
    where: Callable[..., Array] | None = None
    """Flags of the arguments for which the bound holds. Elsewhere nothing is said."""
    inside: tuple[Callable[[Array], Array], float] | None = None
    """Flags of those with an absolute bound instead, and that bound."""

    def allowed(self, exact: Array, arguments: Sequence[Array], step: Array) -> Array:
        """The error that is allowed; `step` is the distance of neighbours at `exact`."""
        found = np.abs(exact) * self.relative + self.absolute + step * self.ulps
        if self.inside is not None:
            found = np.where(self.inside[0](arguments[0]), self.inside[1], found)
        if self.where is not None:
            found = np.where(self.where(*arguments), found, np.inf)
        return np.asarray(found)


_TURN = Bound(
    absolute=2**-14.7,
    where=lambda x: np.abs(x) <= 100 * pi,
    inside=(lambda x: np.abs(x) <= 2 * pi, 2**-20.5),
)
BOUNDS = {
    "ex2 f32": Bound(ulps=2),
    "lg2 f32": Bound(relative=2**-22, inside=(lambda x: (x > 0.5) & (x < 2), 2**-22)),
    "rcp f32": Bound(ulps=1),
    "sqrt f32": Bound(relative=2**-23),
    "rsqrt f32": Bound(relative=2**-22.9),
    "sin f32": _TURN,
    "cos f32": _TURN,
    "tanh f32": Bound(relative=2**-11),
    "div full f32": Bound(ulps=2),
    "div approx f32": Bound(
        ulps=2, where=lambda x, y: (np.abs(y) >= 2.0**-126) & (np.abs(y) <= 2.0**126)
    ),
    "ex2 f16": Bound(relative=2**-9.9),
    "ex2 bf16": Bound(relative=2**-7),
    "tanh f16": Bound(absolute=2**-10.987),
    "tanh bf16": Bound(absolute=2**-7.9999),
    "rcp f64": Bound(relative=2**-19),
    "rsqrt ftz f64": Bound(relative=2**-19),
    "rsqrt f64": Bound(relative=2**-50),
}
"""Bounds of the PTX ISA; ex2 in f32 as docs/numerics.md counts on it. That of tanh in bf16 is
2^-8 there, as if rounded: at 0x3f3f the exact result is by 0.00007 of that above a number of bf16,
and an H200 has the one below that number.
"""
_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.asarray(1 / np.sqrt(x)),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "div": np.divide,
}


MODELLED = ("ex2 f32", "ex2 f16", "ex2 bf16", "rcp f32", "lg2 f32", "rsqrt f32")
"""Functions whose bits the executor has: they are compared exactly."""


def approximate(probe: Probe) -> bool:
    """Whether its results are compared with bounds."""
    return probe.binder in BINDERS and _function(probe) not in MODELLED


def bound(probe: Probe) -> Bound:
    return BOUNDS[_function(probe)]


def _function(probe: Probe) -> str:
    op, _, rest = probe.opcode.partition(".")
    scalar = _scalar(probe)
    kind = ""
    if op == "div":
        kind = rest.split(".")[0] + " "
    elif probe.opcode == "rsqrt.approx.ftz.f64":
        kind = "ftz "
    return f"{op} {kind}{scalar}"


def predicted(probe: Probe, inputs: Sequence[Array]) -> Array:
    """The correctly rounded results, as they are recorded: (lanes, 1) of uint64."""
    with np.errstate(all="ignore"):
        exact = _exact(probe, inputs)
        return _joined(exact.astype(_dtype(probe)))


def beyond(probe: Probe, inputs: Sequence[Array], results: Array) -> Array:
    """Indices of the lanes whose results, (lanes, 1) of uint64, are farther away than allowed."""
    with np.errstate(all="ignore"):
        exact = _exact(probe, inputs)
        dtype = _dtype(probe)
        found = _apart(results[:, 0], dtype, exact.shape[1])
        info = ml_dtypes.finfo(dtype)
        rounded = exact.astype(dtype)
        step = np.maximum(np.abs(exact), float(info.smallest_normal))
        step = np.exp2(np.floor(np.log2(step))) * float(info.eps)
        arguments = [x.astype(np.float64) for x in _arguments(probe, inputs)]
        allowed = bound(probe).allowed(exact, arguments, step)
        # A subnormal result may be flushed with .ftz, and is rounded without.
        tiny = float(info.smallest_normal if ".ftz" in probe.opcode else info.smallest_subnormal)
        near = np.abs(found.astype(np.float64) - exact) <= np.maximum(allowed, tiny)
        # What rounds to infinity may also be the largest number, and the other way round.
        largest = float(info.max)
        edge = (np.abs(exact) >= largest * (1 - bound(probe).relative - 2.0**-20)) & (
            np.abs(found.astype(np.float64)) >= largest * (1 - 2.0**-9)
        )
        edge &= np.signbit(found.astype(np.float64)) == np.signbit(exact)
        good = near | edge | (rounded == found) | (np.isnan(exact) & np.isnan(found))
        good |= np.isinf(allowed)
        return np.unique(np.argwhere(~good)[:, 0])


def _scalar(probe: Probe) -> str:
    return probe.results[0].scalar.removesuffix("x2")


def _dtype(probe: Probe) -> np.dtype:
    return DTYPES[_scalar(probe)]


def _apart(patterns: Array, dtype: np.dtype, count: int) -> Array:
    """The `count` elements of registers, (lanes, elements)."""
    words = np.ascontiguousarray(patterns.astype("<u8"))
    return words.view(dtype).reshape(len(patterns), -1)[:, :count]


def _joined(elements: Array) -> Array:
    """Registers (lanes, 1) of (lanes, elements)."""
    size = elements.dtype.itemsize
    whole = np.zeros((len(elements), 8 // size), elements.dtype)
    whole[:, : elements.shape[1]] = elements
    return whole.view("<u8")


def _arguments(probe: Probe, inputs: Sequence[Array]) -> list[Array]:
    """The operands' elements, subnormals flushed where the instruction does so."""
    dtype = _dtype(probe)
    found = []
    for patterns in inputs:
        x = patterns[0].view(dtype).reshape(-1, patterns.itemsize // dtype.itemsize)
        if ".ftz" in probe.opcode and dtype == np.float64:
            # Of the upper words alone.
            x = (x.view(np.uint64) & ~np.uint64(0xFFFFFFFF)).view(np.float64)
        if ".ftz" in probe.opcode:
            tiny = ml_dtypes.finfo(dtype).smallest_normal
            x = np.where(np.abs(x) < tiny, np.copysign(np.zeros_like(x), x), x)
        found.append(x)
    return found


def _exact(probe: Probe, inputs: Sequence[Array]) -> Array:
    wide = [x.astype(np.float64) for x in _arguments(probe, inputs)]
    return np.asarray(_FUNCTIONS[probe.opcode.split(".")[0]](*wide))


# -- Every argument of an octave -------------------------------------------------------------------

DENSE = (
    ("ex2.approx.ftz.f32", (0x3F800000, 0x3F000000, 0x40000000, 0xBF800000, 0xBF000000)),
    ("ex2.approx.ftz.f32", (0x3D000000, 0x41000000, 0xC2800000)),
    ("rcp.approx.ftz.f32", (0x3F800000,)),
    ("rsqrt.approx.ftz.f32", (0x3F800000, 0x40000000)),
    ("lg2.approx.ftz.f32", (0x3F800000, 0x3F000000)),
    ("sqrt.approx.ftz.f32", (0x3F800000,)),
    ("tanh.approx.f32", (0x3F000000,)),
    ("sin.approx.ftz.f32", (0x3F800000,)),
    ("cos.approx.ftz.f32", (0x3F800000,)),
)
"""Octaves by the pattern of their first number."""
OCTAVE = 1 << 23


def dense(probes: Sequence[Probe]) -> list[Probe]:
    """Probes with all 2^23 arguments of an octave, for models of the functions."""
    known = {probe.opcode: probe for probe in probes}
    return [
        replace(known[opcode], sources=(Source("f32", 1, f"octave {first:08x}"),))
        for opcode, octaves in DENSE
        for first in octaves
    ]
