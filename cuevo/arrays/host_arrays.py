"""Host arrays on their way to a device: what of their memory is copied."""

import numpy as np

from cuevo.arrays.array_view import ArrayView, as_numpy

_WORTH_PACKING = 4
"""Bytes covered to bytes of elements, above which an array is packed before it is copied."""


def without_gaps(source: ArrayView) -> ArrayView:
    """`source`, or a packed copy in host memory where most of the bytes that it covers are no
    elements of it.

    Zero strides stay zero. Rows of a packed copy begin at multiples of 16 bytes.
    """
    low, high = source.extent
    once = [
        1 if stride == 0 else extent
        for extent, stride in zip(source.shape, source.strides, strict=True)
    ]
    itemsize = source.dtype.itemsize
    distinct = itemsize
    for extent in once:
        distinct *= extent
    if high - low <= _WORTH_PACKING * distinct:
        return source
    row = -(-once[-1] * itemsize // 16) * 16 // itemsize
    packed = np.empty((*once[:-1], row), source.dtype)[..., : once[-1]]
    packed[...] = as_numpy(source)[tuple(slice(extent) for extent in once)]
    strides = tuple(
        0 if stride == 0 else step
        for stride, step in zip(source.strides, packed.strides, strict=True)
    )
    return ArrayView(
        packed.ctypes.data, source.shape, strides, source.dtype, "cpu", source.readonly, packed
    )
