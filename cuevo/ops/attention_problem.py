"""Checks of a call of `cuevo.attention`, and the problem that it states.

Every error names the argument, what was expected and what came.
"""

import math
import numbers
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from cuevo.arrays import BFLOAT16, ArrayView
from cuevo.kernels.forward import Problem
from cuevo.ops.given_memory import check_apart
from cuevo.ops.packing import ROW_ALIGNMENT, row_alignment

__all__ = [
    "AXES",
    "MOST_EXTENT",
    "MOST_POSITIONS",
    "MOST_SCALE",
    "Axes",
    "broadcast_biases",
    "check_backward",
    "check_scale",
    "check_shapes",
    "is_mapped",
    "state_problem",
]

_TYPES = {np.dtype(np.float16): "f16", np.dtype(BFLOAT16): "bf16"}
_BIAS_TYPES = {**_TYPES, np.dtype(np.float32): "f32"}
MOST_POSITIONS = 2**28
"""Queries or keys: their bytes are counted in 32 bits within a row."""
MOST_EXTENT = 2**31 - 1
"""B, N or H: what kernels count them in."""

MOST_SCALE = 2.0**64
"""Magnitude of a scale."""

Axes = tuple[str, ...]
AXES: Mapping[str, Axes] = {
    "q": ("B", "N", "Lq", "H", "D"),
    "k": ("B", "N", "Lk", "H", "D"),
    "v": ("B", "N", "Lk", "H", "D"),
    "out": ("B", "N", "Lq", "H", "D"),
    "dout": ("B", "N", "Lq", "H", "D"),
    "lse": ("B", "N", "H", "Lq"),
    "mask_bias": ("B", "N", "1", "1", "Lk"),
    "pair_bias": ("B", "1", "H", "Lq", "Lk"),
}
"""Of each array of a call."""
_BROADCAST = {"mask_bias": ("B", "N"), "pair_bias": ("B",)}
"""Axes along which an operand may have extent 1 in the place of the problem's."""


def state_problem(
    q: ArrayView,
    k: ArrayView,
    v: ArrayView,
    mask_bias: ArrayView | None = None,
    pair_bias: ArrayView | None = None,
    out: ArrayView | None = None,
) -> Problem:
    """The problem that these arrays state; ValueError or TypeError where they do not fit each
    other.
    """
    present = {"q": q, "k": k, "v": v, "mask_bias": mask_bias, "pair_bias": pair_bias, "out": out}
    check_shapes({name: x.shape for name, x in present.items() if x is not None})
    batch, rows, queries, heads, head_dim = q.shape
    keys = k.shape[2]
    if q.dtype not in _TYPES:
        raise TypeError(f"q: expected float16 or bfloat16; got {q.dtype}")
    for name, operand in (("k", k), ("v", v), ("out", out)):
        if operand is not None and operand.dtype != q.dtype:
            raise TypeError(f"{name}: expected {q.dtype}, the type of q; got {operand.dtype}")
    if head_dim % 8 or not 8 <= head_dim <= 128:
        raise ValueError(f"q: the head dim D must be a multiple of 8 from 8 to 128; got {head_dim}")
    for axis, extent in (("B", batch), ("N", rows), ("H", heads)):
        if extent > MOST_EXTENT:
            raise ValueError(f"{axis}: at most {MOST_EXTENT}; got {extent}")
    for axis, extent in (("Lq", queries), ("Lk", keys)):
        if extent > MOST_POSITIONS:
            raise ValueError(f"{axis}: at most {MOST_POSITIONS} positions in a row; got {extent}")
    for name, operand in (("q", q), ("k", k), ("v", v), ("out", out)):
        if operand is not None and 0 not in operand.shape:
            _check_rows(name, operand)
    if out is not None:
        _check_writable(out)
    return Problem(
        batch=batch,
        rows=rows,
        heads=heads,
        queries=queries,
        keys=keys,
        head_dim=head_dim,
        dtype=_TYPES[q.dtype],
        mask="none" if mask_bias is None else _mask_type(mask_bias, q),
        pair="none" if pair_bias is None else _bias_type("pair_bias", pair_bias, q),
        pair_alignment=16 if pair_bias is None else row_alignment(pair_bias),
        pair_mapped=pair_bias is None or _is_mapped_bias(pair_bias),
        mapped=all(is_mapped(x) for x in (q, k, v, out) if x is not None),
    )


def _is_mapped_bias(pair_bias: ArrayView) -> bool:
    """Whether a tensor map can describe the pair bias, which batches may share."""
    one_batch = replace(pair_bias, shape=(1, *pair_bias.shape[1:]))
    seen = pair_bias if pair_bias.strides[0] else one_batch
    return row_alignment(seen) == ROW_ALIGNMENT and is_mapped(seen)


def check_shapes(
    shapes: Mapping[str, tuple[int, ...]],
    labels: Mapping[str, str] | None = None,
    axes: Mapping[str, Axes] = AXES,
) -> None:
    """Check that these shapes of operands, by name, fit each other: of q, k and v, and of what
    else there is. ValueError where they do not.

    labels : what messages call an operand, where that is not its name.
    axes : of each operand, where they are not in the order of `AXES`; the axis B may be missing.
    """
    labels = labels or {}
    for name in ("q", "k", "v"):
        if len(shapes[name]) != len(axes[name]):
            label = labels.get(name, name)
            raise ValueError(
                f"{label}: expected {_shape_name(name, axes[name])}; got {_describe(shapes[name])}"
            )
    extents = {"1": 1, "B": 1}
    for name in ("k", "q"):
        extents |= zip(axes[name], shapes[name], strict=True)
    for name, shape in shapes.items():
        _check_shape(name, shape, extents, labels.get(name, name), axes[name])


def broadcast_biases(views: Mapping[str, ArrayView], problem: Problem) -> dict[str, ArrayView]:
    """The views of a call that states `problem`, with biases as large as that: where one has
    extent 1 and the problem has another, its stride is 0.
    """
    extents = {"B": problem.batch, "N": problem.rows}
    found = dict(views)
    for name in views.keys() & _BROADCAST.keys():
        bias = views[name]
        shape, strides = list(bias.shape), list(bias.strides)
        for axis in _BROADCAST[name]:
            i = AXES[name].index(axis)
            if shape[i] != extents[axis]:
                shape[i], strides[i] = extents[axis], 0
        found[name] = replace(bias, shape=tuple(shape), strides=tuple(strides))
    return found


def check_backward(dout: ArrayView, out: ArrayView, lse: ArrayView, q: ArrayView) -> None:
    """Check what a backward pass for queries `q` takes beside the operands of the forward pass;
    ValueError or TypeError where it does not fit.
    """
    batch, rows, queries, heads, head_dim = q.shape
    extents = {"B": batch, "N": rows, "Lq": queries, "H": heads, "D": head_dim}
    for name, operand in (("dout", dout), ("out", out)):
        _check_shape(name, operand.shape, extents)
    check_lse(lse, q)
    for name, operand in (("dout", dout), ("out", out)):
        if operand.dtype != q.dtype:
            raise TypeError(f"{name}: expected {q.dtype}, the type of q; got {operand.dtype}")
    if 0 not in out.shape:
        _check_rows("out", out)


def check_lse(lse: ArrayView, q: ArrayView) -> None:
    """Check an array for the log-sum-exps of queries `q`; ValueError or TypeError where it does
    not fit.
    """
    batch, rows, queries, heads, _ = q.shape
    _check_shape("lse", lse.shape, {"B": batch, "N": rows, "H": heads, "Lq": queries})
    if lse.dtype != np.float32:
        raise TypeError(f"lse: expected float32; got {lse.dtype}")
    if not lse.is_contiguous:
        raise ValueError(f"lse: has to be contiguous; its strides are {lse.strides}")
    if lse.pointer % 4:
        raise ValueError("lse: its elements must be aligned to their 4 bytes")


def check_scale(scale: float | None, head_dim: int) -> float:
    """`scale` as a float, ``1 / sqrt(D)`` where it is None; TypeError or ValueError for what
    cannot be one.
    """
    if scale is None:
        return 1.0 / math.sqrt(head_dim)
    if not isinstance(scale, numbers.Real):
        raise TypeError(f"scale: expected a real number; got {type(scale).__name__}")
    try:
        factor = float(scale)
    except OverflowError:
        factor = math.inf
    if not abs(factor) <= MOST_SCALE:
        raise ValueError(
            f"scale: expected a finite number of at most 2^64 in magnitude; got {factor}"
        )
    return factor


def _shape_name(name: str, axes: Axes) -> str:
    single = _BROADCAST.get(name, ())
    return f"an array [{', '.join([x + ' or 1' * (x in single) for x in axes])}]"


def _describe(shape: tuple[int, ...]) -> str:
    return f"{len(shape)} axes, shape {shape}"


def _check_shape(
    name: str,
    shape: tuple[int, ...],
    extents: Mapping[str, int],
    label: str = "",
    axes: Axes = (),
) -> None:
    axes, single = axes or AXES[name], _BROADCAST.get(name, ())
    expected = tuple([extents[axis] for axis in axes])
    if shape == expected:
        return
    if len(shape) != len(axes) or any(
        own != extent and not (own == 1 and axis in single)
        for axis, own, extent in zip(axes, shape, expected, strict=True)
    ):
        raise ValueError(
            f"{label or name}: expected {_shape_name(name, axes)} = {expected}; "
            f"got {_describe(shape)}"
        )


def _bias_type(name: str, bias: ArrayView, q: ArrayView) -> str:
    if bias.dtype not in (q.dtype, np.dtype(np.float32)):
        raise TypeError(f"{name}: expected {q.dtype}, the type of q, or float32; got {bias.dtype}")
    return _BIAS_TYPES[bias.dtype]


def _mask_type(mask_bias: ArrayView, q: ArrayView) -> str:
    if mask_bias.dtype == np.bool_:
        return "bool"
    if mask_bias.dtype not in (q.dtype, np.dtype(np.float32)):
        raise TypeError(
            f"mask_bias: expected {q.dtype}, the type of q, float32 or bool; got {mask_bias.dtype}"
        )
    return _BIAS_TYPES[mask_bias.dtype]


def _check_rows(name: str, x: ArrayView) -> None:
    itemsize = x.dtype.itemsize
    if x.strides[-1] != itemsize:
        raise ValueError(
            f"{name}: its last axis, D, must be contiguous, a stride of {itemsize} "
            "bytes, since a row is copied "
            f"by 16 bytes; its stride is {x.strides[-1]}"
        )
    if x.pointer % ROW_ALIGNMENT:
        raise ValueError(
            f"{name}: its rows must start at multiples of {ROW_ALIGNMENT} bytes; its "
            f"address is {x.pointer:#x}"
        )
    for axis, extent, stride in zip(AXES[name][:-1], x.shape, x.strides, strict=False):
        if extent > 1 and stride % ROW_ALIGNMENT:
            raise ValueError(
                f"{name}: its rows must start at multiples of {ROW_ALIGNMENT} bytes; "
                f"the stride of axis {axis} is {stride} bytes"
            )


def is_mapped(x: ArrayView) -> bool:
    """Whether a tensor map can describe the array: steps forward, each to another element."""
    pairs = zip(x.shape[:-1], x.strides[:-1], strict=True)
    return all(extent == 1 or 0 < stride < 2**40 for extent, stride in pairs)


def _check_writable(out: ArrayView) -> None:
    if out.readonly:
        raise ValueError("out: has to be writable; this array is read-only")
    check_apart("out", out, AXES["out"])
