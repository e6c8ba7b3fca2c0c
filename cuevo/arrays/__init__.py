"""Arrays of every library, seen without copying, and the arrays that cuevo makes.

`readers` takes what a caller has to an `ArrayView` (`array_view`); `device_array` is what a call
gives back; `dlpack` carries either across libraries; `host_arrays` decides what of a host array is
copied to a device; `guards` know torch's tensors again.
"""

from cuevo.arrays.array_view import (
    BFLOAT16,
    ArrayView,
    DType,
    as_numpy,
    contiguous_strides,
    packed,
)
from cuevo.arrays.device_array import DeviceArray, copy_to_host
from cuevo.arrays.dlpack import exportable
from cuevo.arrays.guards import Addresses, Guarded, Pick
from cuevo.arrays.host_arrays import without_gaps
from cuevo.arrays.readers import array_from_pointer, identify, view

__all__ = [
    "BFLOAT16",
    "Addresses",
    "ArrayView",
    "DType",
    "DeviceArray",
    "Guarded",
    "Pick",
    "array_from_pointer",
    "as_numpy",
    "contiguous_strides",
    "copy_to_host",
    "exportable",
    "identify",
    "packed",
    "view",
    "without_gaps",
]
