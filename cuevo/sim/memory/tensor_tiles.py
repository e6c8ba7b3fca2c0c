"""Boxes of tensor maps: where their elements are in global memory, and in shared memory."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cuevo.cuda.tensor_map import TensorMap
from cuevo.sim.aliases import AnyArray
from cuevo.sim.memory.global_memory import GlobalMemory, unit_dtype

UNIT = 16
_PATTERN = 128
"""Bytes of shared memory after which the exclusive or of a swizzle changes."""


@dataclass(frozen=True)
class Box:
    """The box of a map at the given coordinates, of which the contiguous axis is the first."""

    map: TensorMap
    coordinates: tuple[int, ...]

    def elements(self) -> tuple[AnyArray, AnyArray]:
        """Global addresses of all elements in the order of shared memory, and which there are."""
        steps = (self.map.element_bytes, *self.map.strides)
        addresses = np.array([self.map.pointer], np.int64)
        exist = np.ones(1, np.bool_)
        shape = self.map.box_shape
        for axis in reversed(range(self.map.rank)):
            index = self.coordinates[axis] + np.arange(shape[axis]) * self.map.element_strides[axis]
            inside = (index >= 0) & (index < self.map.extents[axis])
            index = np.where(inside, index, 0)
            addresses = (addresses[:, None] + index * steps[axis]).ravel()
            exist = (exist[:, None] & inside).ravel()
        return addresses.astype(np.uint64), exist

    def read(self, memory: GlobalMemory) -> AnyArray:
        """The box's bytes as units of 16, in the order of shared memory before the swizzle;
        zeros, or NaN, for elements outside of the array.
        """
        addresses, exist = self.elements()
        size = self.map.element_bytes
        values = np.full(addresses.shape, self._filling(), unit_dtype(size))
        if exist.all() and self._contiguous(addresses, size):
            return memory.load(addresses[:: UNIT // size], UNIT, None)
        if exist.any():
            values[exist] = memory.load(addresses[exist], size, None)
        return values.view(unit_dtype(UNIT))

    def write(
        self,
        memory: GlobalMemory,
        units: AnyArray,
        combine: Callable[[AnyArray, AnyArray], AnyArray] | None = None,
    ) -> None:
        """Put units of 16 bytes to where they exist: their elements, or what `combine` makes of
        those that are there and them.
        """
        addresses, exist = self.elements()
        size = self.map.element_bytes
        values = np.ascontiguousarray(units).view(unit_dtype(size))[exist]
        if not values.size:
            return
        addresses = addresses[exist]
        if combine is not None:
            values = combine(memory.load(addresses, size, None), values)
        memory.store(addresses, size, values, None)

    def offsets(self, address: int) -> AnyArray:
        """Bytes from shared `address` to where each unit of 16 is."""
        rows = np.arange(0, self.map.shared_bytes, self.map.row_bytes)
        of_row = np.arange(0, self.map.box_bytes // len(rows), UNIT)
        places = address + np.add.outer(rows, of_row).ravel()
        if self.map.swizzle:
            span = self.map.swizzle // UNIT
            places = places ^ (places // _PATTERN % span * UNIT)
        return places - address

    def _contiguous(self, addresses: AnyArray, size: int) -> bool:
        """Whether elements come in aligned runs of 16 bytes."""
        if self.map.element_strides[0] != 1:
            return False
        return not (addresses[:: UNIT // size] & np.uint64(UNIT - 1)).any()

    def _filling(self) -> AnyArray:
        patterns = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FFFFFFFFFFFFFFF}
        pattern = patterns[self.map.dtype] if self.map.nan_fill else 0
        size = self.map.element_bytes
        filling: AnyArray = np.array([pattern], f"u{size}").view(unit_dtype(size))
        return filling
