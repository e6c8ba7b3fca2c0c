"""The CUDA driver as an executor: devices, memory, launches, graphs.

`executor(0)` is the executor of the first device. Kernels are loaded once and kept; a launch of a
kept kernel costs a few microseconds of the host's time and never waits for the device. Nothing here
imports torch, and a thread's current context is left as it was found.
"""

import math
import operator
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from cuda.bindings import driver as cuda
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    Buffer,
    Device,
    DeviceMemoryResource,
    Event,
    EventOptions,
    Stream,
)

from cuevo.arrays import ArrayView, DeviceArray, without_gaps
from cuevo.cuda import (
    LEGACY_DEFAULT,
    PER_THREAD_DEFAULT,
    SideStream,
    check,
    driver_error,
    is_capturing,
    primary_context,
    relaxed_capture,
    require_device,
    resolve_stream,
)
from cuevo.errors import DriverError
from cuevo.executors.driver_kernel import DriverKernel
from cuevo.executors.scratch import Scratch
from cuevo.toolchain.assembler import assemble, begin_assembly, target_for
from cuevo.toolchain.template import RenderedKernel

__all__ = ["CapturedGraph", "DriverExecutor", "DriverKernel", "executor"]


class _Borrowed:
    """A caller's stream for cuda.core, which keeps the caller's object alive through this one."""

    def __init__(self, handle: int, owner: object) -> None:
        self._protocol = (0, handle)
        self._owner = owner

    def __cuda_stream__(self) -> tuple[int, int]:
        return self._protocol


class _SideStreams(threading.local):
    """A thread's side streams, by the streams that they are beside."""

    KEPT = 32

    def __init__(self) -> None:
        self.beside: dict[int, SideStream] = {}


class CapturedGraph:
    """Captured work that can be launched again and again; made by `DriverExecutor.capture`.

    The arrays that the work reads and writes have to stay alive; `result` is kept here.
    """

    def __init__(self, owner: "DriverExecutor", graph: Any, stream: Stream, result: object) -> None:
        self._executor = owner
        self._graph = graph
        self._stream = stream
        self.result = result
        """Return value of the captured function; each launch writes its arrays anew."""

    def launch(self, stream: object = None) -> None:
        """Queue the captured work on `stream`; None is the stream that it was captured on."""
        queue = self._stream if stream is None else self._executor.wrap_stream(stream)
        with self._executor.context.current():
            try:
                self._graph.launch(queue)
            except Exception as error:
                raise DriverError(f"launching a graph on {self._executor.name}: {error}") from error


class DriverExecutor:
    """One CUDA device; `executor(ordinal)` gives a shared one.

    Raises DeviceUnavailable where there is no such device, DriverError where its context cannot be
    made.
    """

    _STREAMS_KEPT = 256
    knows_addresses = True

    def __init__(self, ordinal: int = 0) -> None:
        self.info = require_device(ordinal)
        self.name = f"cuda:{ordinal}"
        self.arch = self.info.arch
        self.context = primary_context(ordinal)
        self._loaded: dict[str, DriverKernel] = {}
        self._loading = threading.Lock()
        self._streams: dict[int, Stream] = {
            LEGACY_DEFAULT: LEGACY_DEFAULT_STREAM,
            PER_THREAD_DEFAULT: PER_THREAD_DEFAULT_STREAM,
        }
        self._side_streams = _SideStreams()
        self.scratch = Scratch(self.context)
        # The device's current pool. cuda.core lets it keep freed memory, where the driver would
        # give it back at each synchronization and have to map it anew for the next call.
        with self.context.current():
            self._pool = DeviceMemoryResource(ordinal)
        self.stream: Stream = self.new_stream()
        """The executor's own stream, for calls on host arrays."""

    def __repr__(self) -> str:
        return f"DriverExecutor({self.name}: {self.info.name}, {self.arch})"

    # Kernels

    def expect(self, kernel: RenderedKernel) -> None:
        """`kernel` will be loaded: begin to assemble it."""
        if kernel.digest not in self._loaded:
            begin_assembly(kernel, target_for(kernel, self.arch))

    def load(self, kernel: RenderedKernel) -> DriverKernel:
        """Assemble and load `kernel`, or return the kept one of the same text.

        Raises AssemblerError for a kernel that does not assemble, DriverError for one that the
        driver refuses or whose parameters are not those of the header.
        """
        loaded = self._loaded.get(kernel.digest)
        if loaded is None:
            with self._loading:
                loaded = self._loaded.get(kernel.digest)
                if loaded is None:
                    cubin = assemble(kernel, target_for(kernel, self.arch))
                    with relaxed_capture(f"loading {kernel.describe()} on {self.name}"):
                        loaded = DriverKernel(self.info, self.context, kernel, cubin)
                    self._loaded[kernel.digest] = loaded
        return loaded

    # Streams, events, graphs

    def new_stream(self) -> Stream:
        """A stream that does not wait for the legacy default one; its last reference ends it."""
        return self._create_stream(None)

    def wrap_stream(self, stream: object = None) -> Stream:
        """The cuda.core Stream for anything that `cuevo.cuda.resolve_stream` takes.

        Objects are kept alive; a stream given by its handle must outlive the arrays that are made
        on it.
        """
        if isinstance(stream, Stream):
            return stream
        handle = resolve_stream(stream)
        wrapped = self._streams.get(handle)
        if wrapped is None:
            wrapped = self._create_stream(_Borrowed(handle, stream))
            if len(self._streams) >= self._STREAMS_KEPT:
                self._streams = dict(list(self._streams.items())[:2])  # the default streams
            self._streams[handle] = wrapped
        return wrapped

    def _create_stream(self, borrowed: _Borrowed | None) -> Stream:
        with self.context.current():
            device = Device(self.info.ordinal)
            device.set_current()  # It is already; this tells cuda.core's object.
            try:
                return device.create_stream(borrowed)
            except Exception as error:
                raise DriverError(f"making a stream on {self.name}: {error}") from error

    def side_stream(self, stream: int) -> SideStream:
        """This thread's side stream beside `stream`, a handle."""
        beside = self._side_streams.beside
        found = beside.get(stream)
        if found is None:
            if len(beside) >= _SideStreams.KEPT:
                beside.clear()
            doing = f"making a side stream beside {stream:#x} of {self.name}"
            with self.context.current(), relaxed_capture(doing):
                try:
                    found = beside[stream] = SideStream(stream, self.info.ordinal)
                except Exception as error:
                    raise DriverError(f"{doing}: {error}") from error
        return found

    def record_event(self, stream: object = None) -> Event:
        """An event after the work that `stream` has now. ``later - earlier`` is in milliseconds."""
        with self.context.current():
            return self.wrap_stream(stream).record(options=EventOptions(timing_enabled=True))

    def synchronize(self, stream: object = None) -> None:
        """Wait for all work of `stream`; faults of kernels come out here, as DriverError."""
        handle = resolve_stream(stream)
        with self.context.current():
            check(
                cuda.cuStreamSynchronize(handle), f"waiting for stream {handle:#x} of {self.name}"
            )

    def capture(self, function: Callable[[Stream], object], stream: object = None) -> CapturedGraph:
        """Capture what `function` queues on a stream, which it is called with, as a graph.

        `stream` is the stream to capture on, a new one where None; the legacy default stream cannot
        be captured. Nothing runs until the graph is launched. Arrays that `function` allocates
        belong to the graph's result: every launch writes the same memory.
        """
        queue = self.new_stream() if stream is None else self.wrap_stream(stream)
        if queue is LEGACY_DEFAULT_STREAM or resolve_stream(queue) == LEGACY_DEFAULT:
            raise ValueError(
                "stream: CUDA cannot capture the legacy default stream; give another one"
            )
        with self.context.current():
            builder = queue.create_graph_builder()
            try:
                # Relaxed, as an allocation for the result has to be possible meanwhile.
                builder.begin_building("relaxed")
                result = function(queue)
            except BaseException:
                with suppress(Exception):  # of a capture that is spoilt already
                    builder.close()
                raise
            try:
                graph = builder.end_building().complete()
            except Exception as error:
                with suppress(Exception):
                    builder.close()
                raise DriverError(f"capturing a graph on {self.name}: {error}") from error
            builder.close()
        return CapturedGraph(self, graph, queue, result)

    # Memory

    def allocate(self, nbytes: int, stream: object = None) -> Buffer:
        """Device memory in the order of `stream`, given back in that order once the Buffer is gone.

        On a stream under graph capture the memory is taken outside of the graph, at once, for as
        long as the Buffer lives. Raises DriverError where there is not enough memory.
        """
        queue = self._streams.get(stream) if type(stream) is int else None
        if queue is None:
            queue = self.wrap_stream(stream)
        entered = self.context.enter()
        try:
            return self._pool.allocate(nbytes or 1, stream=queue)
        except Exception as error:
            if is_capturing(resolve_stream(queue), self.info.ordinal):
                return self._allocate_outside_of_capture(nbytes)
            raise self._allocation_error(nbytes, error) from error
        finally:
            if entered:
                self.context.leave()

    def take_workspace(self, nbytes: int, stream: int) -> int:
        """Address of memory for work on `stream`, a handle of the current context, in whose order
        it is taken and, by `give_back_workspace`, given back: under a graph capture, by the graph.
        """
        status, address = cuda.cuMemAllocAsync(nbytes, stream)
        if status:
            doing = f"allocating {nbytes:,} bytes on {self.name} for the workspace of a call"
            raise driver_error(status, doing)
        return int(address)

    def give_back_workspace(self, address: int, stream: int) -> None:
        """Give back what `take_workspace` gave, once `stream` has done its work."""
        check(cuda.cuMemFreeAsync(address, stream), "giving back the workspace of a call")

    def _allocate_outside_of_capture(self, nbytes: int) -> Buffer:
        with relaxed_capture(f"allocating {nbytes} bytes on {self.name} during a graph capture"):
            try:
                queue = self.new_stream()
                buffer = self._pool.allocate(nbytes or 1, stream=queue)
                queue.sync()
                return buffer
            except Exception as error:
                raise self._allocation_error(nbytes, error) from error

    def _allocation_error(self, nbytes: int, error: Exception) -> DriverError:
        """What to raise; the pool gives back what it holds in vain, which others may need now."""
        cuda.cuMemPoolTrimTo(self._pool.handle, 0)
        status, free, total = cuda.cuMemGetInfo()
        left = "" if status else f" Of {total:,} bytes {free:,} are free."
        return DriverError(f"allocating {nbytes:,} bytes on {self.name}: {error}{left}")

    def empty(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        stream: object = None,
        strides: tuple[int, ...] | None = None,
        nbytes: int | None = None,
    ) -> DeviceArray:
        """A new array, not initialised, to be written by work on `stream`.

        `strides` in bytes, none negative; C order without gaps where None. `nbytes` is what the
        array takes, where the caller knows it.
        """
        if nbytes is None:
            nbytes = _bytes_of(shape, dtype.itemsize, strides)
        handle = stream if type(stream) is int and stream > 0 else resolve_stream(stream)
        buffer = self.allocate(nbytes, handle if type(stream) is int else stream)
        return DeviceArray(buffer, shape, dtype, self.name, handle, strides)

    def fill(self, target: ArrayView, value: float, stream: object = None) -> None:
        """Set every element of `target` to `value`, queued on `stream`.

        `target` has elements of 2 or 4 bytes, and a contiguous last axis.
        """
        if target.size == 0:
            return
        handle = resolve_stream(stream)
        wide = target.dtype.itemsize == 4
        set_elements = cuda.cuMemsetD32Async if wide else cuda.cuMemsetD16Async
        bits = np.array([value], target.dtype).view(np.uint32 if wide else np.uint16)
        if target.is_contiguous:
            rows, length = [target.pointer], target.size
        else:
            *outer, length = target.shape
            rows = [
                target.pointer + sum(map(operator.mul, row, target.strides))
                for row in np.ndindex(*outer)
            ]
        with self.context.current():
            for row in rows:
                check(
                    set_elements(row, int(bits[0]), length, handle),
                    f"filling an array on {self.name}",
                )

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        """Zero memory, a multiple of 4 bytes, on `stream`, a handle of the current context."""
        check(cuda.cuMemsetD32Async(address, 0, nbytes // 4, stream), "clearing a workspace")

    def copy_bytes(self, target: int, source: int, nbytes: int, stream: object = None) -> None:
        """Copy device memory, from one address to another, on `stream`."""
        with self.context.current():
            check(
                cuda.cuMemcpyDtoDAsync(target, source, nbytes, resolve_stream(stream)),
                f"copying {nbytes} bytes on {self.name}",
            )

    def copy_to_device(self, source: ArrayView, stream: object = None) -> ArrayView:
        """A view of a copy in device memory of a host array, queued on `stream`.

        Strides are kept, so that a broadcast array stays one and takes no more memory than on the
        host. Only an array with large gaps is packed: into rows that begin at multiples of 16
        bytes. `source` must not change until `stream` has done the copy.
        """
        if source.size == 0:
            buffer = self.allocate(0, stream)
            return _moved(source, int(buffer.handle), self.name, buffer)
        packed = without_gaps(source)
        low, high = packed.extent
        # The copy keeps the address modulo 256, and with it every alignment that a kernel can ask
        # for.
        offset = low % 256
        buffer = self.allocate(offset + high - low, stream)
        base = int(buffer.handle) + offset
        with self.context.current():
            check(
                cuda.cuMemcpyHtoDAsync(base, low, high - low, resolve_stream(stream)),
                f"copying {high - low} bytes to {self.name}",
            )
        return _moved(packed, base + packed.pointer - low, self.name, (buffer, packed.owner))


def _bytes_of(shape: tuple[int, ...], itemsize: int, strides: tuple[int, ...] | None) -> int:
    if strides is None:
        return itemsize * math.prod(shape)
    if 0 in shape:
        return 0
    return itemsize + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))


def _moved(source: ArrayView, pointer: int, device: str, owner: object) -> ArrayView:
    return ArrayView(
        pointer, source.shape, source.strides, source.dtype, device, source.readonly, owner
    )


@cache
def executor(ordinal: int = 0) -> DriverExecutor:
    """The executor of device `ordinal`, one for the whole process.

    Raises DeviceUnavailable where there is no such device.
    """
    return DriverExecutor(ordinal)
