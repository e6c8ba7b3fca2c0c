"""Arrays that a caller gives for the results of a call, instead of new ones."""

from typing import Any

import numpy as np

from cuevo.arrays import ArrayView

__all__ = ["check_result"]

_ALIGNMENT = 16


def check_result(
    label: str, x: ArrayView, shape: tuple[int, ...], dtype: np.dtype[Any], device: str
) -> None:
    """Check that `x` can take a result of this shape and type on `device`: contiguous, writable,
    from a multiple of 16 bytes; ValueError or TypeError, beginning with `label`, where it cannot.
    """
    if x.readonly:
        raise ValueError(f"{label}: has to be writable; this array is read-only")
    if x.shape != shape:
        raise ValueError(f"{label}: expected shape {shape}; got {x.shape}")
    if x.dtype != dtype:
        raise TypeError(f"{label}: expected {dtype}; got {x.dtype}")
    if x.device != device:
        raise ValueError(f"{label}: expected an array on {device}; this is on {x.device}")
    if 0 in shape:
        return
    if not x.is_contiguous:
        raise ValueError(f"{label}: has to be contiguous; its strides are {x.strides}")
    if x.pointer % _ALIGNMENT:
        raise ValueError(
            f"{label}: has to start at a multiple of {_ALIGNMENT} bytes; its address is "
            f"{x.pointer:#x}"
        )
