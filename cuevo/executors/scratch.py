"""Memory for workspaces that calls leave where it is.

Memory that a call takes from the stream's pool and gives back keeps the device waiting for most of
a microsecond, and the host for three. Calls that one thread queues on one stream come one behind
the other, and share theirs.
"""

import threading
import weakref
from contextlib import suppress

from cuda.bindings import driver as cuda

from cuevo.cuda import LEGACY_DEFAULT, PrimaryContext, check, may_be_captured, relaxed_capture
from cuevo.errors import DriverError

__all__ = ["Scratch"]

NBYTES = 8 << 20
"""For each thread and stream; a larger workspace is of calls of which that microsecond is little.
0: no call leaves memory where it is, so that a tool sees what each has.
"""
_KEPT = 32
"""Streams of a thread, at most, that have some."""


class _Memory:
    """Device memory, freed once nobody has it and the device has done its work."""

    __slots__ = ("__weakref__", "address", "stream")

    def __init__(self, stream: int, context: PrimaryContext) -> None:
        """`stream` says which one it is for, a number that no later stream has."""
        doing = "allocating memory for workspaces"
        with relaxed_capture(doing):
            self.address = int(check(cuda.cuMemAlloc(NBYTES), doing))
        self.stream = stream
        weakref.finalize(self, _free, self.address, context).atexit = False


def _free(address: int, context: PrimaryContext) -> None:
    doing = "giving back memory of workspaces"
    with suppress(DriverError), context.current(), relaxed_capture(doing):
        check(cuda.cuMemFree(address), doing)


class Scratch(threading.local):
    """A thread's memory for workspaces on one device, by stream."""

    def __init__(self, context: PrimaryContext) -> None:
        self._context = context
        self._memories: dict[int, _Memory] = {}

    def find(self, nbytes: int, stream: int) -> int | None:
        """Address of memory for a call on `stream`, a handle of the current context, or None: where
        too much is asked for, or a graph capture of the stream would keep the address.
        """
        if nbytes > NBYTES:
            return None
        memory = self._memories.get(stream)
        number = 0
        if stream != LEGACY_DEFAULT:
            if may_be_captured(stream):
                return None
            # What was queued on a stream that is gone, whose handle this one has, may still run. To
            # ask a stream that is being captured spoils the capture.
            status, number = cuda.cuStreamGetId(stream)
            if status:
                return None
        if memory is None or memory.stream != number:
            memory = self._make(stream, number)
        return None if memory is None else memory.address

    def _make(self, stream: int, number: int) -> _Memory | None:
        memories = self._memories
        if len(memories) >= _KEPT and stream not in memories:
            memories.clear()
        try:
            memory = memories[stream] = _Memory(number, self._context)
        except DriverError:
            return None
        return memory
