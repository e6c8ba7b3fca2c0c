"""Return addresses of the threads that are in device functions."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.sync.flow import Flow

Deliver = Callable[[Mask], None]
"""Copies results to where a call wants them."""


class Calls:
    """`shape` is (32, warps). There is no recursion: a thread is in a function once."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape = shape
        self._back: dict[str, AnyArray] = {}
        self._deliver: dict[tuple[str, int], Deliver] = {}

    def enter(self, name: str, back: int, mask: Mask, deliver: Deliver) -> None:
        """The lanes in `mask` call the function `name`, and go on at `back`."""
        counters = self._back.setdefault(name, np.zeros(self._shape, np.int64))
        np.copyto(counters, back, where=True if mask is None else mask)
        self._deliver[name, back] = deliver

    def leave(self, name: str, mask: Mask, flow: Flow) -> None:
        """Return to the callers."""
        counters = self._back[name]
        here = np.ones(self._shape, np.bool_) if mask is None else mask
        for back in np.unique(counters[here]):
            lanes = here & (counters == back)
            self._deliver[name, int(back)](lanes)
            flow.jump(int(back), lanes)
