"""Checks of a call of `cuevo.gemm`, and the problem that it states.

Every error names the argument, what was expected and what came.
"""

import math
import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from cuevo.arrays import BFLOAT16, ArrayView, contiguous_strides
from cuevo.kernels.gemm_mma import Problem
from cuevo.ops.given_memory import check_apart

__all__ = [
    "MOST_POSITIONS",
    "Operands",
    "check_factor",
    "check_flag",
    "check_operands",
    "exchanged",
    "has_columns",
    "state_problem",
]

_TYPES = {np.dtype(np.float16): "f16", np.dtype(BFLOAT16): "bf16"}
_OUT_TYPES = {**_TYPES, np.dtype(np.float32): "f32"}
_FAR = 2**23
"""Bytes between rows at which a kernel counts some distances in 64 bits."""
_MAPPED = 2**40
"""Bytes between rows or batches that a tensor map cannot state."""
_ALIGNMENT = 16
MOST_POSITIONS = 2**28
"""M, N, K or rows: their bytes are counted in 32 bits within a row."""


@dataclass(slots=True)
class Operands:
    """The arrays of a call as the kernel sees them: three axes each, the batch first.

    A stride along an axis of extent 1, which leads nowhere, is 0, or that of contiguous elements on
    the last axis.
    """

    a: ArrayView
    """op(a) [B, M, K]; one of the last two strides is that of contiguous elements."""
    b: ArrayView
    """op(b) [B, K, N], likewise."""
    c: ArrayView | None
    """[B, rows, N], rows contiguous; None: not read."""
    bias: ArrayView | None
    """[N]"""
    scatter: ArrayView | None
    """[M], int64 or int32"""
    out: ArrayView
    """[B, rows, N], rows contiguous: the caller's, or one like the new array, at address 0."""
    shape: tuple[int, ...]
    """Shape of the result: [rows, N] where neither a nor b has a batch axis."""

    @property
    def inputs(self) -> tuple[ArrayView | None, ...]:
        return self.a, self.b, self.c, self.bias, self.scatter

    @property
    def addresses(self) -> tuple[int, ...]:
        """Addresses of the inputs; 0 where there is none."""
        return tuple([0 if x is None else x.pointer for x in self.inputs])


def check_factor(name: str, value: Any) -> float:
    """`value` as the float that float32 makes of it; TypeError or ValueError for what cannot be
    one.
    """
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected a real number; got {type(value).__name__}")
    try:
        wide = float(value)
    except OverflowError:
        wide = math.inf
    with np.errstate(over="ignore"):
        factor = float(np.float32(wide))
    if not math.isfinite(factor):
        raise ValueError(f"{name}: expected a finite number of float32's range; got {wide}")
    return factor + 0.0  # There is no -0.0, which equals 0.0 wherever a plan is looked up.


def check_flag(name: str, value: Any) -> bool:
    """`value` as a bool; TypeError for what is neither True nor False."""
    if not isinstance(value, numbers.Integral | np.bool_) or value not in (False, True):
        raise TypeError(f"{name}: expected True or False; got {value!r}")
    return bool(value)


def check_operands(
    a: ArrayView,
    b: ArrayView,
    c: ArrayView | None = None,
    bias: ArrayView | None = None,
    scatter: ArrayView | None = None,
    out: ArrayView | None = None,
    *,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
    out_dtype: Any = None,
) -> Operands:
    """The arrays of a call for the kernel; ValueError or TypeError where they do not fit each
    other.
    """
    if a.dtype not in _TYPES:
        raise TypeError(f"a: expected float16 or bfloat16; got {a.dtype}")
    if b.dtype != a.dtype:
        raise TypeError(f"b: expected {a.dtype}, the type of a; got {b.dtype}")
    a_axes, b_axes = ("KM" if trans_a else "MK"), ("NK" if trans_b else "KN")
    for name, x, axes in (("a", a, a_axes), ("b", b, b_axes)):
        if x.ndim not in (2, 3):
            raise ValueError(f"{name}: expected {_either(axes)}; got {_describe(x)}")
    a, b = exchanged(a, trans_a), exchanged(b, trans_b)
    m, depth, n = *a.shape[-2:], b.shape[-1]
    if b.shape[-2] != depth:
        raise ValueError(
            f"b: expected {_either(b_axes)} with K = {depth}, as in a; its K is {b.shape[-2]}"
        )
    if a.ndim == b.ndim == 3 and a.shape[0] != b.shape[0]:
        raise ValueError(f"b: expected B = {a.shape[0]}, as in a; its B is {b.shape[0]}")
    batch = a.shape[:-2] or b.shape[:-2]
    dtype = _out_dtype(out, out_dtype, a)
    rows, rows_name = m, "M"
    if scatter is not None:
        _check_vector("scatter", scatter, "M", m)
        _check_scatter(scatter, out)
        if out is not None and out.ndim == len(batch) + 2:
            rows = out.shape[-2]
        rows_name = "rows"
    shape = (*batch, rows, n)
    if out is None:
        target = _new_out(shape, dtype, a.device)
    else:
        _check_shape("out", out, shape, rows_name)
        if out.readonly:
            raise ValueError("out: has to be writable; this array is read-only")
        target = out
    if c is not None:
        if c.dtype not in _OUT_TYPES:
            raise TypeError(f"c: expected float16, bfloat16 or float32; got {c.dtype}")
        _check_shape("c", c, shape if c.ndim != 2 else shape[-2:], rows_name)
    if bias is not None:
        is_wide = dtype == np.float32
        if bias.dtype != dtype and not (is_wide and bias.dtype == a.dtype):
            hint = f", or {a.dtype}, that of a" if is_wide else ""
            raise TypeError(
                f"bias: expected {dtype}, the type of the result{hint}; got {bias.dtype}"
            )
        _check_vector("bias", bias, "N", n)
    for axis, extent in (("M", m), ("N", n), ("K", depth), ("rows", rows)):
        if extent > MOST_POSITIONS:
            raise ValueError(f"{axis}: at most {MOST_POSITIONS}; got {extent}")
    (count,) = batch or (1,)
    result = Operands(
        a=_one_contiguous("a", _batched(a, count)),
        b=_one_contiguous("b", _batched(b, count)),
        c=None if c is None else _contiguous_rows("c", _batched(c, count)),
        bias=bias,
        scatter=scatter,
        out=_contiguous_rows("out", _batched(target, count)),
        shape=shape,
    )
    check_apart("out", result.out, ("B", "M", "N"))
    for name, operand in zip(("a", "b", "c", "out"), (*result.inputs[:3], result.out), strict=True):
        if operand is not None:
            _alignment(name, operand)
    if beta == 0.0:
        result.c = None
    return result


def state_problem(operands: Operands) -> Problem:
    """The problem that these arrays state."""
    a, b, c, out = operands.a, operands.b, operands.c, operands.out
    batch, m, depth = a.shape
    return Problem(
        batch=batch,
        m=m,
        n=b.shape[2],
        k=depth,
        dtype=_TYPES[a.dtype],
        out_dtype=_OUT_TYPES[out.dtype],
        a_columns=has_columns(a),
        b_columns=has_columns(b),
        c="none" if c is None else _OUT_TYPES[c.dtype],
        bias=operands.bias is not None,
        bias_of_inputs=operands.bias is not None and operands.bias.dtype != out.dtype,
        scatter=operands.scatter is not None,
        index_bytes=8 if operands.scatter is None else operands.scatter.dtype.itemsize,
        a_alignment=_alignment("a", a),
        b_alignment=_alignment("b", b),
        c_alignment=_ALIGNMENT if c is None else _alignment("c", c),
        d_alignment=_alignment("out", out),
        far=any(abs(stride) >= _FAR for x in (a, b) for stride in x.strides[1:]),
        mapped=all(_goes_forward(x) for x in (a, b)),
    )


# -- Words -----------------------------------------------------------------------------------------


def _either(axes: str) -> str:
    return f"an array [{', '.join(axes)}] or [{', '.join('B' + axes)}]"


def _describe(x: ArrayView) -> str:
    return f"{x.ndim} axes, shape {x.shape}"


# -- Shapes and types ------------------------------------------------------------------------------


def _check_shape(name: str, x: ArrayView, shape: tuple[int, ...], rows: str) -> None:
    if x.shape != shape:
        axes = ", ".join(["B", rows, "N"][-len(shape) :])
        raise ValueError(f"{name}: expected an array [{axes}] = {shape}; got {_describe(x)}")


def _check_vector(name: str, x: ArrayView, axis: str, extent: int) -> None:
    """A contiguous vector of aligned elements."""
    size = x.dtype.itemsize
    if x.shape != (extent,):
        raise ValueError(f"{name}: expected an array [{axis}] = ({extent},); got {_describe(x)}")
    if extent > 1 and x.strides[0] != size:
        raise ValueError(
            f"{name}: must be contiguous, a stride of {size} bytes; its stride is {x.strides[0]}"
        )
    if extent and x.pointer % size:
        raise ValueError(f"{name}: its elements must be aligned to their {size} bytes")


def _check_scatter(scatter: ArrayView, out: ArrayView | None) -> None:
    if scatter.dtype not in (np.int64, np.int32):
        hint = "; scatter.astype(numpy.int64) is that" if scatter.dtype.kind in "iu" else ""
        raise TypeError(f"scatter: expected int64 or int32; got {scatter.dtype}{hint}")
    if out is None:
        raise ValueError(
            "out: has to be given with scatter, since rows that scatter does not name stay as they "
            "are"
        )


def _out_dtype(out: ArrayView | None, wanted: Any, a: ArrayView) -> np.dtype[Any]:
    dtype = a.dtype if out is None else out.dtype
    if wanted is not None:
        stated = _dtype_named(wanted)
        if out is not None and stated != dtype:
            raise TypeError(f"out_dtype: expected {dtype}, the type of out, or None; got {stated}")
        dtype = stated
    if dtype not in _OUT_TYPES:
        name = "out" if wanted is None else "out_dtype"
        raise TypeError(f"{name}: expected float16, bfloat16 or float32; got {dtype}")
    return dtype


def _dtype_named(wanted: Any) -> np.dtype[Any]:
    """NumPy's dtype for whatever names one, ``torch.bfloat16`` too."""
    for name in (wanted, str(wanted).rpartition(".")[2]):
        try:
            return np.dtype(name)
        except TypeError:
            continue
    raise TypeError(f"out_dtype: expected float16, bfloat16 or float32; got {wanted!r}")


# -- Strides ---------------------------------------------------------------------------------------


def exchanged(x: ArrayView, exchange: bool) -> ArrayView:
    """`x` with its last two axes exchanged, where `exchange`."""
    if not exchange:
        return x
    *outer, rows, columns = x.shape
    *steps, row_step, column_step = x.strides
    return _with_axes(x, (*outer, columns, rows), (*steps, column_step, row_step))


def _batched(x: ArrayView, count: int) -> ArrayView:
    """`x` with a batch axis, of stride 0 where it had none."""
    if x.ndim == 3:
        return x
    return _with_axes(x, (count, *x.shape), (0, *x.strides))


def _with_axes(x: ArrayView, shape: tuple[int, ...], strides: tuple[int, ...]) -> ArrayView:
    return ArrayView(x.pointer, shape, strides, x.dtype, x.device, x.readonly, x.owner)


def _new_out(shape: tuple[int, ...], dtype: np.dtype[Any], device: str) -> ArrayView:
    strides = contiguous_strides(shape, dtype.itemsize)
    return ArrayView(0, shape, strides, dtype, device, False, None)


def _contiguous_rows(name: str, x: ArrayView) -> ArrayView:
    """`x` with strides of the kernel; ValueError where its rows are not contiguous."""
    batch, rows, columns = x.shape
    size = x.dtype.itemsize
    if 0 in x.shape:
        return _with_axes(x, x.shape, contiguous_strides(x.shape, size))
    if columns > 1 and x.strides[2] != size:
        raise ValueError(
            f"{name}: its rows must be contiguous, a stride of {size} bytes; the stride of axis N "
            f"is {x.strides[2]}"
        )
    steps = (x.strides[0] if batch > 1 else 0, x.strides[1] if rows > 1 else 0, size)
    return _with_axes(x, x.shape, steps)


def _one_contiguous(name: str, x: ArrayView) -> ArrayView:
    """`x` with strides of the kernel; ValueError where neither rows nor columns are contiguous."""
    batch, rows, columns = x.shape
    size = x.dtype.itemsize
    _, row_step, column_step = x.strides
    if 0 in x.shape:
        return _with_axes(x, x.shape, contiguous_strides(x.shape, size))
    first = x.strides[0] if batch > 1 else 0
    if columns == 1 or column_step == size:
        return _with_axes(x, x.shape, (first, row_step if rows > 1 else 0, size))
    if rows == 1 or row_step == size:
        return _with_axes(x, x.shape, (first, size, column_step))
    raise ValueError(
        f"{name}: one of its last two axes must be contiguous, a stride of {size} bytes; their "
        f"strides are {row_step} and {column_step}"
    )


def _goes_forward(x: ArrayView) -> bool:
    """Whether no row begins at or before the one in front of it, and no batch before another."""
    _, rows, columns = x.shape
    stored = columns if has_columns(x) else rows
    stride = x.strides[2 if has_columns(x) else 1]
    return (stored == 1 or 0 < stride < _MAPPED) and 0 <= x.strides[0] < _MAPPED


def has_columns(x: ArrayView) -> bool:
    """Whether the columns of `x` are contiguous, and its rows are not."""
    return x.strides[2] != x.dtype.itemsize


def _alignment(name: str, x: ArrayView) -> int:
    """Bytes, 16 at most, that the rows of `x`, or its contiguous columns, are aligned to."""
    bits = _ALIGNMENT
    if 0 not in x.shape:
        bits |= x.pointer | x.strides[0] | x.strides[2 if has_columns(x) else 1]
    alignment = bits & -bits
    if alignment < x.dtype.itemsize:
        raise ValueError(f"{name}: its elements must be aligned to their {x.dtype.itemsize} bytes")
    return alignment
