"""Memory that a caller gives for a call: arrays for its results, in the place of new ones, and the
workspace, for arrays that only its kernels see.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cuevo.arrays import ArrayView, as_numpy, view

__all__ = ["ALIGNMENT", "check_apart", "check_result", "device_workspace", "host_workspace"]

ALIGNMENT = 256
"""Bytes to whose multiples a workspace and each array in it are aligned."""


def device_workspace(workspace: Any, nbytes: int, device: str, stream: int) -> int:
    """Address of the caller's workspace, of `nbytes` or more on `device`, for use on `stream`.

    Raises ValueError or TypeError for what is none.
    """
    found = view(workspace, name="workspace", stream=stream)
    if found.device != device:
        raise ValueError(f"workspace: expected memory of {device}; this is on {found.device}")
    _check(found, nbytes)
    return found.pointer


def host_workspace(workspace: Any, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The caller's workspace in host memory as bytes, or a new one, full of NaN, where None."""
    if workspace is None:
        memory = np.full(nbytes + ALIGNMENT, 0xFF, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        return memory[start : start + nbytes]
    found = view(workspace, name="workspace")
    if found.device != "cpu":
        raise ValueError(f"workspace: expected host memory; this is on {found.device}")
    _check(found, nbytes)
    return as_numpy(replace(found, shape=(found.nbytes,), strides=(1,), dtype=np.dtype(np.uint8)))


def _check(found: ArrayView, nbytes: int) -> None:
    if not found.is_contiguous:
        raise ValueError("workspace: has to be contiguous")
    if found.readonly:
        raise ValueError("workspace: has to be writable; this array is read-only")
    if found.nbytes < nbytes:
        raise ValueError(f"workspace: expected {nbytes:,} bytes; got {found.nbytes:,}")
    if found.pointer % ALIGNMENT:
        raise ValueError(
            f"workspace: has to start at a multiple of {ALIGNMENT} bytes; its address is "
            f"{found.pointer:#x}"
        )


# -- Results ---------------------------------------------------------------------------------------

_RESULT_ALIGNMENT = 16


def check_apart(label: str, x: ArrayView, axes: Sequence[str]) -> None:
    """Check that no row, along the last axis, of what is written begins within its neighbour along
    another one; ValueError, beginning with `label`, where one does.
    """
    if 0 in x.shape:
        return
    row = x.shape[-1] * x.dtype.itemsize
    for axis, extent, stride in zip(axes[:-1], x.shape, x.strides, strict=False):
        if extent > 1 and abs(stride) < row:
            raise ValueError(
                f"{label}: the stride of axis {axis} is {stride} bytes, so that rows of {row} "
                "bytes overlap"
            )


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
    if x.pointer % _RESULT_ALIGNMENT:
        raise ValueError(
            f"{label}: has to start at a multiple of {_RESULT_ALIGNMENT} bytes; its address is "
            f"{x.pointer:#x}"
        )
