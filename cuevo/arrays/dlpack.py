"""DLPack export of device memory, and of host arrays of bfloat16.

A device's capsule is made by cuda.core, because its release has to be C code: a consumer may let go
of a tensor while an exception is on its way up, and a callback written in Python, by way of ctypes,
would run with that exception pending and lose it. cuda.core has no name for bfloat16, which NumPy
knows as a void type of 2 bytes and does not export, so bfloat16 is exported as uint16 and its type
code is then written into the finished capsule.
"""

import ctypes
from typing import Any

import numpy as np

from cuevo.arrays.array_view import BFLOAT16

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
"""DLDeviceType."""

_BFLOAT_CODE = 4  # kDLBfloat of DLDataTypeCode


class _Device(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _ManagedTensorVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_LAYOUTS: dict[bytes, Any] = {
    b"dltensor": _ManagedTensor,
    b"dltensor_versioned": _ManagedTensorVersioned,
}
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def export(
    pointer: int,
    nbytes: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    owner: object,
    max_version: tuple[int, int] | None,
) -> object:
    """A capsule for the device memory at `pointer`; `owner` lives until the consumer lets go of it.

    `strides` in bytes. `max_version` is the newest DLPack that the consumer reads; None is one
    before 1.0.
    """
    from cuda.core import Buffer
    from cuda.core.utils import StridedMemoryView

    stored = np.dtype(np.uint16) if dtype == BFLOAT16 else dtype
    memory = StridedMemoryView.from_buffer(
        Buffer.from_handle(pointer, nbytes, owner=owner),
        shape,
        tuple(stride // dtype.itemsize for stride in strides),
        dtype=stored,
    )
    capsule = memory.__dlpack__(max_version=max_version)
    if dtype == BFLOAT16:
        name_bfloat16(capsule)
    return capsule


class HostArray(np.ndarray[Any, Any]):
    """A NumPy array that other libraries take by DLPack where it is of bfloat16, too."""

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule; the options are those of NumPy's."""
        if self.dtype != BFLOAT16:
            return super().__dlpack__(**options)
        capsule = np.asarray(self).view(np.uint16).__dlpack__(**options)
        name_bfloat16(capsule)
        return capsule


def exportable(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """`x`, as a `HostArray` of the same memory where NumPy would not export it."""
    return x.view(HostArray) if x.dtype == BFLOAT16 else x


def name_bfloat16(capsule: object) -> None:
    """Turn the type of an unused capsule of 2-byte elements into bfloat16."""
    for name, layout in _LAYOUTS.items():
        if _is_valid(capsule, name):
            dtype = layout.from_address(_get_pointer(capsule, name)).tensor.dtype
            if (dtype.bits, dtype.lanes) != (16, 1):
                raise BufferError(
                    "bfloat16 has 16 bits and 1 lane; the capsule's elements have "
                    f"{dtype.bits} and {dtype.lanes}"
                )
            dtype.code = _BFLOAT_CODE
            return
    raise BufferError("not an unused DLPack capsule")
