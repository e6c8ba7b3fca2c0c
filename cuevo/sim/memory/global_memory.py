"""Global memory: the buffers of a launch, at their real host addresses."""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from cuevo.sim.aliases import AnyArray, AnyDType, Mask
from cuevo.sim.faults import Fault, first_thread
from cuevo.sim.text.syntax import Variable

_UNIT: dict[int, AnyDType] = {
    size: np.dtype(name) for size, name in ((1, "u1"), (2, "u2"), (4, "u4"), (8, "u8"), (16, "c16"))
}
_FAR = 4096
"""Bytes before and after an array at which an element would still be one of its own."""
# Regions begin and end on this boundary as arrays, so that every aligned access is one element of
# some view.
_ALIGNMENT = 16
_APART = 48
"""Bits of an offset in a buffer: more than any memory has."""


class Buffer(Protocol):
    """An array as a launch takes it; `cuevo.arrays.ArrayView` is one."""

    @property
    def pointer(self) -> int: ...
    @property
    def extent(self) -> tuple[int, int]: ...
    @property
    def readonly(self) -> bool: ...


@runtime_checkable
class Shaped(Buffer, Protocol):
    """One whose elements have coordinates; strides are in bytes."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def strides(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> AnyDType: ...


class ModuleMemory:
    """A ``.global`` variable of a module; it lives as long as the loaded kernel."""

    readonly = False

    def __init__(self, variable: Variable) -> None:
        size = variable.size or 0
        storage = np.zeros(size + variable.alignment, np.uint8)
        shift = -storage.ctypes.data % variable.alignment
        self._bytes = storage[shift : shift + size]
        self.fill(variable.content)

    def fill(self, content: bytes) -> None:
        self._bytes[: len(content)] = np.frombuffer(content, np.uint8)

    @property
    def pointer(self) -> int:
        return int(self._bytes.ctypes.data)

    @property
    def extent(self) -> tuple[int, int]:
        return self.pointer, self.pointer + self._bytes.size


def unit_dtype(size: int) -> AnyDType:
    """The NumPy type that moves `size` bytes (1 to 16) at once; 16 bytes travel as a complex
    number.
    """
    return _UNIT[size]


@dataclass(frozen=True)
class _Region:
    """Addresses from `begin` up to `end` belong to one buffer, or to several that overlap."""

    begin: int
    end: int
    base: int
    views: dict[int, AnyArray]


def _region(begin: int, end: int) -> _Region:
    base = begin // _ALIGNMENT * _ALIGNMENT
    size = -(-(end - base) // _ALIGNMENT) * _ALIGNMENT
    # The few bytes outside of the buffer are never touched: all addresses are compared with begin
    # and end.
    raw: AnyArray = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(base))
    return _Region(begin, end, base, {unit: raw.view(dtype) for unit, dtype in _UNIT.items()})


def _merged(extents: Iterable[tuple[int, int]]) -> list[_Region]:
    """Disjoint regions, sorted. Buffers that merely touch stay apart: to run from one into the
    next is an error.
    """
    merged: list[list[int]] = []
    for begin, end in sorted(extents):
        if end <= begin:
            continue
        if merged and begin < merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return [_region(begin, end) for begin, end in merged]


class GlobalMemory:
    """Reads and writes of vectors of addresses, each access checked against the buffers. `name_of`
    gives a name to the memory from one address up to another, "" where it has none.
    """

    def __init__(
        self, buffers: Sequence[Buffer], name_of: Callable[[int, int], str] = lambda begin, end: ""
    ) -> None:
        self._buffers, self._name_of = buffers, name_of
        extents = [(buffer.extent, buffer.readonly) for buffer in buffers]
        self._readable = _merged(extent for extent, _ in extents)
        self._writable = _merged(extent for extent, readonly in extents if not readonly)
        self.watch: Callable[[AnyArray, int, Mask], None] | None = None
        """Called with the addresses of each access of warps, (32, warps), its size and its
        lanes.
        """

    def load(self, addresses: AnyArray, size: int, mask: Mask) -> AnyArray:
        """Units of `size` bytes from `addresses` (uint64); what comes for lanes outside of `mask`
        has no meaning.
        """
        if self.watch is not None and addresses.ndim == 2:
            self.watch(addresses, size, mask)
        if mask is not None:
            addresses = _with_stand_in(addresses, mask)
        region = self._only_region(self._readable, addresses, size)
        if region is None:
            return self._scattered_load(addresses, size)
        return region.views[size].take(_indices(addresses, region.base, size))

    def store(self, addresses: AnyArray, size: int, values: AnyArray, mask: Mask) -> None:
        """Write units of `size` bytes; of lanes that hit the same address, the last one in memory
        order wins.
        """
        if self.watch is not None and addresses.ndim == 2:
            self.watch(addresses, size, mask)
        checked = addresses if mask is None else _with_stand_in(addresses, mask)
        region = self._only_region(self._writable, checked, size)
        if region is None:
            self._check(self._writable, checked, size, "write")
            for region in self._writable:
                inside = (checked >= region.begin) & (checked < region.end)
                inside = inside if mask is None else inside & mask
                if inside.any():
                    region.views[size][_indices(addresses[inside], region.base, size)] = values[
                        inside
                    ]
        elif mask is None:
            region.views[size][_indices(addresses, region.base, size)] = values
        else:
            region.views[size][_indices(addresses[mask], region.base, size)] = values[mask]

    def _only_region(
        self, regions: list[_Region], addresses: AnyArray, size: int
    ) -> _Region | None:
        """The region that all of the accesses hit; None if there are several, or something is
        wrong.
        """
        if size > 1 and np.bitwise_or.reduce(addresses, axis=None) & (size - 1):
            lanes = (addresses & np.uint64(size - 1)) != 0
            raise Fault(
                f"misaligned global access: {_first(addresses, lanes):#x} is no multiple of {size}",
                lanes,
            )
        low, high = int(addresses.min()), int(addresses.max()) + size
        for region in regions:
            if region.begin <= low and high <= region.end:
                return region
        return None

    def _scattered_load(self, addresses: AnyArray, size: int) -> AnyArray:
        self._check(self._readable, addresses, size, "read")
        values = np.zeros(addresses.shape, _UNIT[size])
        for region in self._readable:
            inside = (addresses >= region.begin) & (addresses < region.end)
            if inside.any():
                values[inside] = region.views[size][_indices(addresses[inside], region.base, size)]
        return values

    def _check(self, regions: list[_Region], addresses: AnyArray, size: int, verb: str) -> None:
        inside = np.zeros(addresses.shape, np.bool_)
        for region in regions:
            inside |= (addresses >= region.begin) & (addresses + np.uint64(size) <= region.end)
        if not inside.all():
            address = _first(addresses, ~inside)
            raise Fault(self._explain(address, size, verb), ~inside)

    def _explain(self, address: int, size: int, verb: str) -> str:
        what = f"{verb} of {size} bytes at {address:#x}"
        if verb == "write":
            for region in self._readable:
                if region.begin <= address and address + size <= region.end:
                    buffer, element = self._describe(address, region.begin, region.end)
                    return f"{what}{element}: the buffer {buffer} is read-only"
        if not self._readable:
            return f"{what}: the launch was given no buffers"
        nearest = min(
            self._readable, key=lambda r: max(r.begin - address, address + size - r.end, 0)
        )
        if address < nearest.begin:
            where = f"{nearest.begin - address} bytes before the beginning"
        else:
            where = f"{address + size - nearest.end} bytes past the end"
        buffer, element = self._describe(address, nearest.begin, nearest.end)
        return f"{what} is outside of every buffer: {where} of {buffer}{element}"

    def placed(self, addresses: AnyArray) -> AnyArray:
        """Addresses (uint64) that a device could have given to the same bytes: it begins each array
        at a multiple of 256, where NumPy begins it at any of 16. What is in no buffer stays.

        A slice that begins at no multiple of 16 is as far behind one here, too.
        """
        placed = addresses
        for number, region in enumerate(self._readable, 1):
            inside = (addresses >= region.begin) & (addresses < region.end)
            offsets = addresses - np.uint64(region.base) + np.uint64(number << _APART)
            placed = np.where(inside, offsets, placed)
        return placed

    def find(self, name: str, index: Sequence[int]) -> tuple[int, int] | None:
        """Address and bytes of an element of the buffer of that name; None if there is none."""
        for each in self._buffers:
            if self._name_of(*each.extent) == name and isinstance(each, Shaped):
                extents = each.shape
                if len(index) == len(extents) and all(map(int.__lt__, index, extents)):
                    steps = zip(index, each.strides, strict=True)
                    return each.pointer + sum(i * step for i, step in steps), each.dtype.itemsize
        return None

    def element(self, address: int) -> str:
        """The element of a buffer that is there, "" if that is not known."""
        for region in self._readable:
            if region.begin <= address < region.end:
                return self._describe(address, region.begin, region.end)[1].removeprefix(", at ")
        return ""

    def _describe(self, address: int, begin: int, end: int) -> tuple[str, str]:
        """The buffer in the region from `begin` to `end`, and which element of it is, or would be,
        at an address near it.
        """
        where = f"{begin:#x}..{end:#x}"
        name = self._name_of(begin, end)
        buffer = f"{name} ({where})" if name else where
        near = [each for each in self._buffers if each.extent == (begin, end)]
        if not near or not isinstance(array := near[0], Shaped):
            return buffer, ""
        index = _element(address, array)
        if index is None or not -_FAR < address - begin < end - begin + _FAR:
            return buffer, ""
        listed = ", ".join(map(str, index))
        return buffer, f", at {name or 'element '}[{listed}] of shape {tuple(array.shape)}"


def _element(address: int, array: Shaped) -> list[int] | None:
    """Coordinates of the element that has a byte; along the axis of the widest stride they may be
    beyond the array. Those of broadcast axes are 0. None if there is no such element.
    """
    index = [0] * len(array.shape)
    distance = address - array.pointer
    steps = zip(array.strides, range(len(index)), array.shape, strict=True)
    for place, (stride, axis, extent) in enumerate(
        sorted((each for each in steps if each[0] and each[2] > 1), reverse=True)
    ):
        index[axis], distance = divmod(distance, stride)
        if stride < 0 or (place > 0 and index[axis] >= extent):
            return None
    return index if distance < array.dtype.itemsize else None


def _with_stand_in(addresses: AnyArray, mask: AnyArray) -> AnyArray:
    """`addresses` with those outside of `mask` replaced by one from inside."""
    return np.where(mask, addresses, addresses.ravel()[mask.argmax()])


def _first(addresses: AnyArray, lanes: AnyArray) -> int:
    return int(addresses[first_thread(lanes)] if lanes.ndim == 2 else addresses[lanes][0])


def _indices(addresses: AnyArray, base: int, size: int) -> AnyArray:
    offsets = (addresses - np.uint64(base)).view(np.int64)
    return offsets if size == 1 else offsets >> (size.bit_length() - 1)
