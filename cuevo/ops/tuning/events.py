"""The clock of a device: the driver's events, on the stream of its executor."""

from typing import Any

from cuda.bindings import driver as cuda

from cuevo.cuda import check, resolve_stream
from cuevo.executors import DriverExecutor

__all__ = ["EventClock", "free_bytes"]

_HELD_BYTES = 2**29
_HELD_TIMES = 6
"""Memory that is cleared to keep a device busy, more than an L2 cache has, and how often: about a
millisecond at 3 TB/s.
"""


class EventClock:
    """Milliseconds between events on the executor's own stream."""

    def __init__(self, place: DriverExecutor) -> None:
        self._place = place
        self._memory: Any = None

    def record(self) -> Any:
        return self._place.record_event(self._place.stream)

    def elapsed(self, start: Any, end: Any) -> float:
        return float(end - start)

    def synchronize(self) -> None:
        self._place.synchronize(self._place.stream)

    def hold(self) -> None:
        stream = self._place.stream
        if self._memory is None:
            nbytes = min(_HELD_BYTES, free_bytes(self._place) // 8) // 4 * 4
            self._memory = self._place.allocate(nbytes, stream)
        with self._place.context.current():
            for _ in range(_HELD_TIMES):
                self._place.clear(
                    int(self._memory.handle), self._memory.size, resolve_stream(stream)
                )


def free_bytes(place: DriverExecutor) -> int:
    """Memory of a device that is free now."""
    with place.context.current():
        free, _ = check(cuda.cuMemGetInfo(), f"reading the free memory of {place.name}")
    return int(free)
