"""Local memory, which no other thread sees, and constant memory, which is never written."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.faults import Fault
from cuevo.sim.memory.global_memory import unit_dtype
from cuevo.sim.text.syntax import Variable

FIRST = 64
"""Address of the first byte in its state space; not 0, so that a null pointer is caught."""


MOST_STACK = 1 << 15
"""Bytes of a thread's stack; a GPU's has some kilobyte, unless it is told otherwise."""

STACK_NAMES = "__local_depot"
"""Begin of the names of stacks that compilers make. They copy structs with their padding and put
bit-fields into words that nobody has written, so that such memory is read before it is written.
"""
STALE = 0xA5
"""What every byte of a stack has at first, and of a register that such a compiler has nobody write:
no number that is right by chance.
"""


def _stacks(variables: Sequence[Variable], places: Sequence[int]) -> list[tuple[int, int]]:
    """Places and sizes of those variables that are stacks of a compiler."""
    return [
        (place, each.size or 0)
        for place, each in zip(places, variables, strict=True)
        if each.name.startswith(STACK_NAMES)
    ]


def _rounded(size: int) -> int:
    return -(-size // 16) * 16


def layout(variables: Sequence[Variable]) -> tuple[dict[int, int], int]:
    """The address of each variable, by its identity, and one past the last byte."""
    addresses: dict[int, int] = {}
    position = FIRST
    for variable in variables:
        assert variable.size is not None
        position = -(-position // variable.alignment) * variable.alignment
        addresses[id(variable)] = position
        position += variable.size
    return addresses, position


class LocalMemory:
    """The local memory of all threads of a chunk; `shape` is (32, warps).

    Behind the `variables` comes a stack, where functions that may call themselves have `frames` of
    their variables: there is one of each in every call.
    """

    def __init__(
        self,
        variables: Sequence[Variable],
        shape: tuple[int, int],
        frames: Mapping[str, Sequence[Variable]] = MappingProxyType({}),
    ) -> None:
        self.addresses, end = layout(variables)
        self._shape = shape
        self._end = self._stack = -(-end // 16) * 16 if frames else end
        self._stride = -(-end // 16) * 16 if variables or frames else 0
        threads = shape[0] * shape[1]
        self._data = np.zeros(max(threads * self._stride, 16), np.uint8)
        self._written = np.zeros_like(self._data)
        self._base = (np.arange(threads) * self._stride).reshape(shape)
        self._stacks = _stacks(variables, [self.addresses[id(each)] for each in variables])
        self._stacks_of: dict[str, list[tuple[int, int]]] = {}
        self._top: AnyArray = np.zeros(shape, np.uint64)
        self._offsets: dict[str, tuple[list[int], int]] = {}
        self._framed: dict[int, AnyArray] = {}
        self._places_of: dict[str, list[AnyArray]] = {}
        for name, own in frames.items():
            offsets, size = layout(own)
            places = {id(each): np.zeros(shape, np.uint64) for each in own}
            self._framed |= places
            self._places_of[name] = list(places.values())
            begins = [offsets[id(each)] - FIRST for each in own]
            self._offsets[name] = begins, size - FIRST
            self._stacks_of[name] = _stacks(own, begins)

    def reset(self) -> None:
        self._written.fill(0)
        for begin, size in self._stacks:
            self._make_stale(self._base.ravel() + begin, size)
        self._top.fill(self._stack)

    # -- Frames -----------------------------------------------------------------------------------

    def open_frame(self, name: str, more: int, lanes: AnyArray) -> None:
        """The lanes enter a function that may call itself; its frame takes `more` bytes beside
        its variables.
        """
        offsets, size = self._offsets[name]
        for place, offset in zip(self._places_of[name], offsets, strict=True):
            np.copyto(place, self._top + np.uint64(offset), where=lanes)
        begin = self._top.copy()
        end = begin + np.where(lanes, np.uint64(_rounded(size + more)), np.uint64(0))
        if (wrong := lanes & (end > self._stack + MOST_STACK)).any():
            raise Fault(
                f"{name} calls itself so often that a thread's stack has more than {MOST_STACK:,} "
                "bytes",
                wrong,
            )
        self._grow(int(end.max()))
        np.copyto(self._top, end, where=lanes)
        self._forget(begin, size, lanes)
        for offset, size in self._stacks_of[name]:
            self._make_stale((self._base + begin.astype(np.int64))[lanes] + offset, size)

    def close_frame(self, name: str, more: int, lanes: AnyArray) -> None:
        _, size = self._offsets[name]
        self._top -= np.where(lanes, np.uint64(_rounded(size + more)), np.uint64(0))

    def places_of(self, name: str) -> list[AnyArray]:
        """The addresses of the variables in the last frame of a function, which it may change."""
        return self._places_of[name]

    def place(self, variable: Variable) -> AnyArray | None:
        """The addresses of a variable in the last frame, whatever that is then; None if it is in
        none.
        """
        return self._framed.get(id(variable))

    def _forget(self, begin: AnyArray, size: int, lanes: AnyArray) -> None:
        start = (self._base + begin.astype(np.int64))[lanes]
        for i in range(size):
            self._written[start + i] = 0

    def _make_stale(self, starts: AnyArray, size: int) -> None:
        places = starts[:, None] + np.arange(size)
        self._data[places] = STALE
        self._written[places] = 1

    def _grow(self, end: int) -> None:
        """Make room up to `end` in each thread's memory."""
        if end <= self._end:
            return
        threads, old = self._shape[0] * self._shape[1], self._stride
        self._end = min(self._stack + MOST_STACK, max(end, 2 * self._end))
        self._stride = _rounded(self._end)
        for name in ("_data", "_written"):
            grown = np.zeros((threads, self._stride), np.uint8)
            grown[:, :old] = getattr(self, name)[: threads * old].reshape(threads, old)
            setattr(self, name, grown.reshape(-1))
        self._base = (np.arange(threads) * self._stride).reshape(self._shape)

    # -- Accesses ---------------------------------------------------------------------------------

    def places(self, variable: Variable) -> AnyArray:
        """The address of a variable in each thread."""
        framed = self.place(variable)
        if framed is not None:
            return framed
        return np.full(self._shape, self.addresses[id(variable)], np.uint64)

    def load(self, addresses: AnyArray, size: int, mask: Mask) -> AnyArray:
        """Units of `size` bytes; each byte must have been written."""
        indices = self._indices(addresses, size, mask)
        written = self._written.view(unit_dtype(size))[indices].view(np.uint8)
        lanes = (written.reshape(*indices.shape, size) == 0).any(axis=-1)
        if (wrong := lanes if mask is None else lanes & mask).any():
            raise Fault(f"read of {size} bytes of local memory, where nothing was written", wrong)
        return self._data.view(unit_dtype(size))[indices]

    def store(self, addresses: AnyArray, size: int, values: AnyArray, mask: Mask) -> None:
        indices = self._indices(addresses, size, mask)
        if mask is not None:
            indices, values = indices[mask], values[mask]
        self._data.view(unit_dtype(size))[indices] = values
        self._written.view(unit_dtype(size))[indices] = np.full(size, 1, np.uint8).view(
            unit_dtype(size)
        )

    def fetch(self, variable: Variable, mask: Mask) -> tuple[AnyArray, AnyArray]:
        """The bytes of a variable, and whether they were written; for `put`."""
        bytes_of = self._bytes_of(variable, mask)
        return self._data[bytes_of], self._written[bytes_of]

    def put(self, variable: Variable, fetched: tuple[AnyArray, AnyArray], mask: Mask) -> None:
        """Another variable's bytes, what was not written included."""
        bytes_of = self._bytes_of(variable, mask)
        self._data[bytes_of], self._written[bytes_of] = fetched

    def _bytes_of(self, variable: Variable, mask: Mask) -> AnyArray:
        assert variable.size is not None
        start = self._base + self.places(variable).astype(np.int64)
        lanes = start.ravel() if mask is None else start[mask]
        return np.asarray(lanes[:, None] + np.arange(variable.size))

    def _indices(self, addresses: AnyArray, size: int, mask: Mask) -> AnyArray:
        at = addresses.astype(np.int64)
        lanes = (at < FIRST) | (at > self._end - size) | (at % size != 0)
        if (wrong := lanes if mask is None else lanes & mask).any():
            raise Fault(
                f"access of {size} bytes at {int(at[wrong][0])} outside of the thread's local "
                "memory, or misaligned",
                wrong,
            )
        return (self._base + np.where(lanes, 0, at)) // size


class ConstantMemory:
    """The ``.const`` variables of a module."""

    def __init__(self, variables: Sequence[Variable]) -> None:
        self.addresses, self._end = layout(variables)
        self._data = np.zeros(-(-self._end // 16) * 16, np.uint8)
        for variable in variables:
            self.fill(variable, variable.content)

    def fill(self, variable: Variable, content: bytes) -> None:
        at = self.addresses[id(variable)]
        self._data[at : at + len(content)] = np.frombuffer(content, np.uint8)

    def load(self, addresses: AnyArray, size: int, mask: Mask) -> AnyArray:
        at = addresses.astype(np.int64)
        lanes = (at < FIRST) | (at > self._end - size) | (at % size != 0)
        if (wrong := lanes if mask is None else lanes & mask).any():
            raise Fault(
                f"read of {size} bytes at {int(at[wrong][0])} outside of constant memory, or "
                "misaligned",
                wrong,
            )
        units = self._data.view(unit_dtype(size))
        return np.asarray(units[np.where(lanes, 0, at) // size])
