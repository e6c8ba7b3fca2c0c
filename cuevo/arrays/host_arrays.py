"""Host arrays on their way to a device: what of their memory is copied."""

import numpy as np

from cuevo.arrays.array_view import ArrayView, as_numpy

_WORTH_PACKING = 4
"""Bytes covered to bytes of elements, above which an array is packed before it is copied."""


def without_gaps(source: ArrayView) -> ArrayView:
    """`source`, or a packed copy in host memory where most of the bytes that it covers are no
    elements of it.

    Zero strides stay zero, and the axis that is contiguous stays contiguous. Its rows begin at
    multiples of 16 bytes in a packed copy.
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
    axis = _contiguous_axis(source)
    outer = [extent for i, extent in enumerate(once) if i != axis]
    row = -(-once[axis] * itemsize // 16) * 16 // itemsize
    rows = np.empty((*outer, row), source.dtype)[..., : once[axis]]
    packed = np.moveaxis(rows, -1, axis)
    packed[...] = as_numpy(source)[tuple(slice(extent) for extent in once)]
    strides = tuple(
        0 if stride == 0 else step
        for stride, step in zip(source.strides, packed.strides, strict=True)
    )
    return ArrayView(
        packed.ctypes.data, source.shape, strides, source.dtype, "cpu", source.readonly, packed
    )


def _contiguous_axis(source: ArrayView) -> int:
    """The last axis whose elements lie side by side; the last one where there is none."""
    axes = range(len(source.shape))
    size = source.dtype.itemsize
    found = [i for i in axes if source.strides[i] == size and source.shape[i] > 1]
    return found[-1] if found else axes[-1]
