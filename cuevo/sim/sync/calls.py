"""Threads that are in device functions: where they return to, and their frames of recursion."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.memory.thread_memory import LocalMemory
from cuevo.sim.sync.flow import Flow
from cuevo.sim.text.syntax import Function


class Transfer(NamedTuple):
    """A value on its way into a function, or back: `put` writes what `fetch` has read, for lanes.
    Between the two, the frame is another one.
    """

    fetch: Callable[[Mask], object]
    put: Callable[[object, Mask], None]


class Calls:
    """`register` gives the array of a register, `written` has the flags of those that are tracked;
    both arrays of shape (32, warps).
    """

    def __init__(
        self,
        function: Function,
        shape: tuple[int, int],
        register: Callable[[int], AnyArray],
        written: dict[int, AnyArray],
        local: LocalMemory,
    ) -> None:
        self._shape = shape
        self._back: dict[str, AnyArray] = {}
        self._results: dict[tuple[str, int], Sequence[Transfer]] = {}
        self._frames: dict[str, _Frames] = {}
        for name, each in function.subroutines.items():
            self._back[name] = np.zeros(shape, np.int64)
            if each.recursive:
                slots = [own.slot for own in each.registers]
                self._frames[name] = _Frames(
                    name, shape, slots, register, written, local, self._back[name]
                )

    def reset(self) -> None:
        for frames in self._frames.values():
            frames.reset()

    def enter(self, name: str, back: int, lanes: AnyArray, results: Sequence[Transfer]) -> None:
        """The lanes call the function `name`, and go on at `back`."""
        if name in self._frames:
            self._frames[name].push(lanes)
        np.copyto(self._back[name], back, where=lanes)
        self._results[name, back] = results

    def leave(self, name: str, mask: Mask, flow: Flow) -> None:
        """Return to the callers."""
        counters = self._back[name]
        here = np.ones(self._shape, np.bool_) if mask is None else mask
        returns = []
        for back in np.unique(counters[here]):
            lanes = here & (counters == back)
            results = self._results[name, int(back)]
            values = [(each.put, each.fetch(lanes)) for each in results]
            returns.append((int(back), lanes, values))
        if name in self._frames:
            self._frames[name].pop(here)
        for back, lanes, values in returns:
            for put, value in values:
                put(value, lanes)
            flow.jump(back, lanes)


class _Frames:
    """Of a function that may call itself, what it has in each of its calls that is not the last:
    registers, whether they were written, the place to return to, and the place of its variables.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, int],
        slots: Sequence[int],
        register: Callable[[int], AnyArray],
        written: dict[int, AnyArray],
        local: LocalMemory,
        back: AnyArray,
    ) -> None:
        self._name = name
        self._slots = slots
        # Registers and the place to return to take room on a GPU's stack, too.
        self._saved_bytes = 8 * len(slots) + 8
        self._register = register
        self._written = written
        self._local = local
        self._back = back
        self._depth = np.zeros(shape, np.int64)
        self._saved: list[dict[tuple[str, int], AnyArray]] = []

    def reset(self) -> None:
        self._depth.fill(0)
        self._saved.clear()

    def push(self, lanes: AnyArray) -> None:
        for depth in np.unique(self._depth[lanes]):
            if depth > 0:
                self._save(int(depth) - 1, lanes & (self._depth == depth))
        for slot in self._slots:
            if slot in self._written:
                self._written[slot] &= ~lanes
        self._depth += lanes
        self._local.open_frame(self._name, self._saved_bytes, lanes)

    def pop(self, lanes: AnyArray) -> None:
        self._local.close_frame(self._name, self._saved_bytes, lanes)
        self._depth -= lanes
        for depth in np.unique(self._depth[lanes]):
            if depth > 0:
                self._restore(int(depth) - 1, lanes & (self._depth == depth))

    def _arrays(self) -> dict[tuple[str, int], AnyArray]:
        return {
            ("back", 0): self._back,
            **{("register", slot): self._register(slot) for slot in self._slots},
            **{
                ("flags", slot): self._written[slot]
                for slot in self._slots
                if slot in self._written
            },
            **{("place", i): x for i, x in enumerate(self._local.places_of(self._name))},
        }

    def _save(self, depth: int, lanes: AnyArray) -> None:
        if depth == len(self._saved):
            self._saved.append({})
        for key, array in self._arrays().items():
            kept = self._saved[depth].setdefault(key, np.zeros_like(array))
            np.copyto(kept, array, where=lanes)

    def _restore(self, depth: int, lanes: AnyArray) -> None:
        for key, array in self._arrays().items():
            # Flags that are new since then are those of registers that nothing had written.
            np.copyto(array, self._saved[depth].get(key, False), where=lanes)
