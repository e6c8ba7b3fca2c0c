"""Arrays of tests in memory with guard bands, on the host and on a device, and their comparison.

Every array lies in bytes of its own, and all bytes that are not its elements are NaN: what is read
there comes out, and what is written there is found.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cuevo.arrays import BFLOAT16, ArrayView, copy_to_host, view
from cuevo.executors.driver import DriverExecutor

DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": BFLOAT16,
    "f32": np.dtype(np.float32),
    "bool": np.dtype(np.bool_),
}
GUARD = 256
POISON = 0xFF
"""The byte around and between elements: NaN in every floating-point type."""


class Strided:
    """An array in memory with a guard band at each end, and gaps where the strides leave some."""

    def __init__(
        self,
        memory: np.ndarray,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self.memory = memory
        self.offset = offset
        self.array: np.ndarray = np.ndarray(shape, dtype, memory, offset, strides)

    def narrowed(self, index: object) -> "Strided":
        """A part of the array, in the same memory."""
        part = self.array[index]
        offset = self.offset + part.ctypes.data - self.array.ctypes.data
        return Strided(self.memory, offset, part.shape, part.strides, part.dtype)

    def outside(self, memory: np.ndarray | None = None) -> np.ndarray:
        """The bytes of `memory` (its own by default) that are no element's."""
        elements = np.zeros(self.memory.shape, np.bool_)
        shape = (*self.array.shape, self.array.itemsize)
        np.ndarray(shape, np.bool_, elements, self.offset, (*self.array.strides, 1))[...] = True
        return (self.memory if memory is None else memory)[~elements]


def bytes_around(nbytes: int) -> np.ndarray:
    """Poisoned memory of `nbytes` and two guard bands, at a multiple of 256 bytes."""
    memory = np.full(nbytes + 3 * GUARD, POISON, np.uint8)
    first = -memory.ctypes.data % GUARD
    return memory[first : first + nbytes + 2 * GUARD]


def lay_out(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    order: tuple[int, ...] | None = None,
    row_bytes: int | None = None,
    unit: int = 16,
    gaps: bool = False,
    stepped: tuple[int, ...] = (),
    backwards: tuple[int, ...] = (),
    broadcast: tuple[int, ...] = (),
    shift: int = 0,
) -> Strided:
    """Memory for an array of `shape`.

    order : axes from the slowest to the fastest.
    row_bytes : from one row of the fastest axis to the next.
    gaps : `unit` bytes between the blocks of every outer axis.
    stepped : axes of which only every other position is used.
    backwards : axes with negative strides.
    broadcast : axes with stride 0.
    shift : bytes that the beginning is off a multiple of 256.
    """
    order = tuple(range(len(shape))) if order is None else order
    strides = [0] * len(shape)
    step = dtype.itemsize
    for place, axis in enumerate(reversed(order)):
        if axis in broadcast:
            continue
        strides[axis] = step * (2 if axis in stepped else 1)
        step = strides[axis] * max(shape[axis], 1)
        if place == 0 and row_bytes is not None:
            step = row_bytes
        elif gaps:
            step += unit
    offset = GUARD + shift
    for axis in backwards:
        offset += (shape[axis] - 1) * strides[axis]
        strides[axis] = -strides[axis]
    return Strided(bytes_around(step + shift), offset, shape, tuple(strides), dtype)


# -- On the CPU executor and on a device ----------------------------------------------------------


def host_views(arrays: Mapping[str, Strided], *, readonly: bool) -> dict[str, ArrayView]:
    """The arrays for the CPU executor."""
    return {
        name: replace(view(x.array, name=name), readonly=readonly) for name, x in arrays.items()
    }


class OnDevice:
    """Arrays copied to a device, with all the memory that they lie in."""

    def __init__(self, arrays: Mapping[str, Strided], place: DriverExecutor) -> None:
        self._copies: dict[int, ArrayView] = {}
        self.views: dict[str, ArrayView] = {}
        for name, x in arrays.items():
            memory = x.memory
            if id(memory) not in self._copies:
                self._copies[id(memory)] = place.copy_to_device(view(memory), place.stream)
            copy = self._copies[id(memory)]
            self.views[name] = ArrayView(
                copy.pointer + x.offset,
                x.array.shape,
                x.array.strides,
                x.array.dtype,
                place.name,
                False,
                copy,
            )
        place.synchronize(place.stream)

    def fetch(self, arrays: Mapping[str, Strided]) -> None:
        """Bring the memory of `arrays` back, after all work of the legacy default stream."""
        for x in arrays.values():
            copy_to_host(self._copies[id(x.memory)], 1, x.memory)


# -- Comparing -------------------------------------------------------------------------------------


def check_guards(case: object, results: Mapping[str, Strided]) -> None:
    """Nothing was written outside of the results."""
    for name, x in results.items():
        touched = np.count_nonzero(x.outside() != POISON)
        assert not touched, f"{case}\n{name}: {touched} bytes outside of it were written"


def assert_same_bytes(case: object, name: str, found: np.ndarray, expected: np.ndarray) -> None:
    """Equal in every bit, NaN too."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    bits = f"u{found.itemsize}"
    differs = np.ascontiguousarray(found).view(bits) != np.ascontiguousarray(expected).view(bits)
    if differs.any():
        fail(case, f"{name}: not the same bits", differs, found, expected)


def fail(
    case: object, message: str, wrong: np.ndarray, found: np.ndarray, exact: np.ndarray
) -> None:
    """Raise AssertionError with the case and the first coordinate that is wrong."""
    lines = [str(case), message]
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        lines.append(
            f"{np.count_nonzero(wrong)} of {wrong.size} wrong; the first is {first}: "
            f"{found[first]!r} instead of {exact[first]!r}"
        )
    raise AssertionError("\n".join(lines))
