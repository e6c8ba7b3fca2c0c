"""Views of arrays: where their elements lie, whoever owns them."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

DType = np.dtype[Any]
BFLOAT16: DType = np.dtype(ml_dtypes.bfloat16)


@dataclass(slots=True, eq=False)
class ArrayView:
    """Place of an array's elements in memory. Nobody changes a view once it is made.

    (It is not a frozen dataclass because those take four times as long to make, and every call
    makes several.)
    """

    pointer: int
    """Address of element (0, 0, ...)."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes; zero along a broadcast axis, negative along a reversed one."""
    dtype: DType
    device: str
    """``"cpu"`` or ``"cuda:<ordinal>"``."""
    readonly: bool
    owner: object
    """Keeps the memory alive."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements, repeated ones counted each time."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a contiguous copy."""
        return self.size * self.dtype.itemsize

    @property
    def extent(self) -> tuple[int, int]:
        """Lowest byte address that an element touches, and one past the highest.

        Both are `pointer` where there are no elements.
        """
        if 0 in self.shape:
            return self.pointer, self.pointer
        low = high = self.pointer
        for length, stride in zip(self.shape, self.strides, strict=True):
            if stride < 0:
                low += (length - 1) * stride
            else:
                high += (length - 1) * stride
        return low, high + self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps; how far apart the positions of an axis
        would be that has one, or none, does not matter.
        """
        expected = contiguous_strides(self.shape, self.dtype.itemsize)
        axes = zip(self.shape, self.strides, expected, strict=True)
        return 0 in self.shape or all(extent == 1 or step == own for extent, step, own in axes)

    def alignment(self, *, but: int | None = None) -> int:
        """Largest power of two, 16 at most, that divides the address and the strides of all axes of
        more than one position, `but` that axis.

        >>> packed((4, 6), np.dtype(np.float16)).alignment(but=1)
        4
        """
        axes = enumerate(zip(self.shape, self.strides, strict=True))
        steps = (stride for i, (extent, stride) in axes if extent > 1 and i != but)
        return math.gcd(16, self.pointer, *steps)


@lru_cache(maxsize=1024)
def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of an array in C order without gaps."""
    strides = []
    step = itemsize
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def packed(shape: tuple[int, ...], dtype: DType, pointer: int = 0, device: str = "") -> ArrayView:
    """A writable array in C order without gaps, at `pointer` or nowhere yet."""
    strides = contiguous_strides(shape, dtype.itemsize)
    return ArrayView(pointer, shape, strides, dtype, device, False, None)


def as_numpy(source: ArrayView) -> np.ndarray[Any, Any]:
    """The memory of a view in host memory as a NumPy array, not copied; strides are kept."""
    if source.device != "cpu":
        raise ValueError(f"only host memory is seen by NumPy; the array is on {source.device}")
    if source.size == 0:
        return np.empty(source.shape, source.dtype)
    low, high = source.extent
    memory = _Memory(low, high - low, source.readonly, source.owner)
    return np.ndarray(
        source.shape, source.dtype, np.asarray(memory), source.pointer - low, source.strides
    )


class _Memory:
    """Bytes at an address, for NumPy, which keeps this object and so the owner of the bytes."""

    def __init__(self, address: int, nbytes: int, readonly: bool, owner: object) -> None:
        self._owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, readonly),
        }
