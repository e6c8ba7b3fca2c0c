"""Local memory, which no other thread sees, and constant memory, which is never written."""

from collections.abc import Sequence

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.faults import Fault
from cuevo.sim.memory.global_memory import unit_dtype
from cuevo.sim.text.syntax import Variable

FIRST = 64
"""Address of the first byte in its state space; not 0, so that a null pointer is caught."""


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
    """The local memory of all threads of a chunk; `shape` is (32, warps)."""

    def __init__(self, variables: Sequence[Variable], shape: tuple[int, int]) -> None:
        self.addresses, end = layout(variables)
        self._end = end
        self._stride = -(-end // 16) * 16 if variables else 0
        threads = shape[0] * shape[1]
        self._data = np.zeros(max(threads * self._stride, 16), np.uint8)
        self._written = np.zeros_like(self._data)
        self._base = (np.arange(threads) * self._stride).reshape(shape)

    def reset(self) -> None:
        self._written.fill(0)

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

    def copy(self, to: Variable, origin: Variable, mask: Mask) -> None:
        """One variable to another, what was not written included."""
        assert to.size is not None
        lanes = np.ones(self._base.shape, np.bool_) if mask is None else mask
        base = self._base[lanes]
        for i in range(to.size):
            into, out_of = (
                base + (self.addresses[id(to)] + i),
                base + (self.addresses[id(origin)] + i),
            )
            self._data[into] = self._data[out_of]
            self._written[into] = self._written[out_of]

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
            at = self.addresses[id(variable)]
            self._data[at : at + len(variable.content)] = np.frombuffer(variable.content, np.uint8)

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
