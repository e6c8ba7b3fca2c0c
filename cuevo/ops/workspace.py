"""The workspace of a call: memory for arrays that only its kernels see, from the caller or anew."""

from dataclasses import replace
from typing import Any

import numpy as np

from cuevo.arrays import ArrayView, as_numpy, view

__all__ = ["ALIGNMENT", "device_workspace", "host_workspace"]

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
