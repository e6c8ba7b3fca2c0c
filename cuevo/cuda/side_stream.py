"""A side stream beside a caller's, for parts of one call that do not need each other: where one
leaves multiprocessors idle, the other runs.
"""

from cuda.bindings import driver as cuda
from cuda.core import Device, EventOptions, Stream, StreamOptions

from cuevo.cuda.context import check

__all__ = ["SideStream"]


class SideStream:
    """A stream of the highest priority beside stream `main` of device `ordinal`, in whose context
    it is made and used. It belongs to the thread that made it.
    """

    __slots__ = ("_forked", "_joined", "_main", "_owned", "_stream", "handle")

    def __init__(self, main: int, ordinal: int) -> None:
        device = Device(ordinal)
        device.set_current()
        _, highest = check(cuda.cuCtxGetStreamPriorityRange(), "asking for priorities")
        stream: Stream = device.create_stream(options=StreamOptions(priority=highest))
        events = [device.create_event(EventOptions()) for _ in range(2)]
        self._owned = (stream, *events)
        self.handle = int(stream.handle)
        self._main, self._stream = cuda.CUstream(main), cuda.CUstream(self.handle)
        self._forked, self._joined = (cuda.CUevent(int(event.handle)) for event in events)

    def __enter__(self) -> int:
        """Handle of the side stream, whose work in the ``with`` block comes after what the main
        stream has been given before, and before what the main stream is given after the block.

        Inside, both may be given work. A graph capture of the main stream has the side stream's
        work, too.
        """
        doing = "forking a stream"
        check(cuda.cuEventRecord(self._forked, self._main), doing)
        check(cuda.cuStreamWaitEvent(self._stream, self._forked, 0), doing)
        return self.handle

    def __exit__(self, *error: object) -> None:
        doing = "joining a stream"
        check(cuda.cuEventRecord(self._joined, self._stream), doing)
        check(cuda.cuStreamWaitEvent(self._main, self._joined, 0), doing)
