"""The CUDA driver as an executor: devices, memory, launches, graphs.

`executor(0)` is the executor of the first device. Kernels are loaded once and kept; a launch of a
kept kernel costs a few microseconds of the host's time and never waits for the device. Nothing here
imports torch, and a thread's current context is left as it was found.
"""

import ctypes
import operator
import threading
from collections.abc import Callable, Sequence
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

from cuevo.arrays import ArrayView, DeviceArray, as_numpy, contiguous_strides
from cuevo.assemble import Cubin, assemble
from cuevo.context import check, driver_error, primary_context
from cuevo.devices import DeviceInfo, devices, require_device, why_none
from cuevo.errors import DriverError
from cuevo.stream import LEGACY_DEFAULT, PER_THREAD_DEFAULT, is_capturing, resolve_stream
from cuevo.template import RenderedKernel

__all__ = [
    "CapturedGraph",
    "DeviceInfo",
    "DriverExecutor",
    "DriverKernel",
    "devices",
    "executor",
    "require_device",
    "why_none",
]

_Dim = tuple[int, int, int]


# -- Kernels ---------------------------------------------------------------------------------------


class _ThreadState(threading.local):
    """What one thread needs to launch one kernel: made at its first launch, used again by the next
    ones.

    The driver lets other threads run while it launches, so that no two may share a parameter block.
    """

    def __init__(self, size: int) -> None:
        block = ctypes.create_string_buffer(size)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(block))
        self.config = cuda.CUlaunchConfig()
        self.configured: tuple[_Dim, _Dim, int, int] | None = None
        self.params = memoryview(block).cast("B")
        self.kernel_params = ctypes.addressof(pointers)
        self.keep_alive = pointers


class DriverKernel:
    """A kernel loaded on a device; made and kept by `DriverExecutor.load`."""

    def __init__(self, owner: "DriverExecutor", kernel: RenderedKernel, cubin: Cubin) -> None:
        self.kernel = kernel
        self.cubin = cubin
        self._info = owner.info
        self._context = owner.context
        self._size = kernel.params.size
        self._state = _ThreadState(self._size)
        doing = f"loading {kernel.describe()} on {owner.name} ({owner.info.name}, {owner.arch})"
        with self._context.current():
            module = check(cuda.cuModuleLoadData(cubin.code), doing)
            try:
                self.function = check(cuda.cuModuleGetFunction(module, kernel.name.encode()), doing)
                self._prepare(doing)
            except BaseException:
                cuda.cuModuleUnload(module)
                raise

    def _prepare(self, doing: str) -> None:
        names = cuda.CUfunction_attribute

        def attribute(name: Any) -> int:
            return int(check(cuda.cuFuncGetAttribute(name, self.function), doing))

        self.max_threads = attribute(names.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        self.registers = attribute(names.CU_FUNC_ATTRIBUTE_NUM_REGS)
        self.max_dynamic_shared = self._info.shared_per_block_optin - attribute(
            names.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        )
        # Above 48 KiB, dynamic shared memory has to be asked for; asking for the most is free.
        check(
            cuda.cuFuncSetAttribute(
                self.function,
                names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                self.max_dynamic_shared,
            ),
            doing,
        )
        expected = ((0, self._size),)
        if self.parameters != expected:
            raise DriverError(
                f"{doing}: the kernel's parameters are (offset, size) = {self.parameters}; the "
                f"struct {self.kernel.params.name} of the header has {self._size} bytes, so "
                f"{expected} is right."
            )

    @property
    def parameters(self) -> tuple[tuple[int, int], ...]:
        """Offset and size in bytes of each of the kernel's parameters, as the driver reads them."""
        found: list[tuple[int, int]] = []
        while True:
            status, offset, size = cuda.cuFuncGetParamInfo(self.function, len(found))
            if status == cuda.CUresult.CUDA_ERROR_INVALID_VALUE:  # past the last one
                return tuple(found)
            check((status,), f"reading the parameters of {self.kernel.name}")
            found.append((int(offset), int(size)))

    def resident_blocks(self, threads: int, shared_bytes: int) -> int:
        """How many threadblocks of this kind one SM holds at a time."""
        with self._context.current():
            return int(
                check(
                    cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                        self.function, threads, shared_bytes
                    ),
                    f"computing the occupancy of {self.kernel.describe()}",
                )
            )

    def launch(
        self,
        grid: _Dim,
        block: _Dim,
        shared_bytes: int,
        params: bytes | bytearray,
        *,
        buffers: Sequence[ArrayView] = (),
        stream: object = None,
    ) -> None:
        """Queue the kernel on `stream`; see `cuevo.executor.LoadedKernel.launch`.

        Raises DriverError with the driver's error, the kernel, the configuration, and which limit
        it breaks. A fault while the kernel runs is reported by a later call, as always with CUDA.
        """
        handle = stream if type(stream) is int and stream > 0 else resolve_stream(stream)
        state = self._state
        wanted = (grid, block, shared_bytes, handle)
        if state.configured != wanted:
            self._configure(state, wanted)
        if len(params) != self._size:
            raise ValueError(
                f"params: {self.kernel.name} takes {self._size} bytes "
                f"({self.kernel.params.name}); got {len(params)}"
            )
        state.params[:] = params
        entered = self._context.enter()
        try:
            (status,) = cuda.cuLaunchKernelEx(state.config, self.function, state.kernel_params, 0)
        finally:
            if entered:
                self._context.leave()
        if status:
            raise self._launch_error(status, wanted)

    def _configure(self, state: _ThreadState, wanted: tuple[_Dim, _Dim, int, int]) -> None:
        grid, block, shared_bytes, handle = wanted
        config = state.config
        state.configured = None
        try:
            config.gridDimX, config.gridDimY, config.gridDimZ = grid
            config.blockDimX, config.blockDimY, config.blockDimZ = block
            config.sharedMemBytes = shared_bytes
        except (OverflowError, ValueError, TypeError) as error:
            raise ValueError(
                "a grid and a block are three integers each, not negative and below 2**32; got "
                f"grid {grid}, block {block}, {shared_bytes} bytes of shared memory: {error}"
            ) from None
        config.hStream = handle
        state.configured = wanted

    def _launch_error(self, status: Any, wanted: tuple[_Dim, _Dim, int, int]) -> DriverError:
        grid, block, shared_bytes, handle = wanted
        doing = (
            f"launching {self.kernel.describe()} on cuda:{self._info.ordinal} ({self._info.name}) "
            f"with grid {grid}, block {block}, {shared_bytes} bytes of dynamic shared memory, "
            f"stream {handle:#x}"
        )
        return driver_error(status, doing, *self._broken_limits(grid, block, shared_bytes))

    def _broken_limits(self, grid: _Dim, block: _Dim, shared_bytes: int) -> list[str]:
        broken = []
        threads = block[0] * block[1] * block[2]
        if threads > self.max_threads:
            broken.append(
                f"A block of {threads} threads is more than the {self.max_threads} that this "
                f"kernel can have ({self.registers} registers a thread)"
            )
        if shared_bytes > self.max_dynamic_shared:
            broken.append(
                f"{shared_bytes} bytes of dynamic shared memory are more than the "
                f"{self.max_dynamic_shared} that this kernel can have"
            )
        if 0 in grid or 0 in block:
            broken.append("A grid or a block without elements cannot be launched")
        if grid[1] > 65535 or grid[2] > 65535 or grid[0] > 2**31 - 1:
            broken.append("A grid has at most 2**31 - 1, 65535 and 65535 blocks along its axes")
        return broken


# -- The executor ----------------------------------------------------------------------------------


class _Borrowed:
    """A caller's stream for cuda.core, which keeps the caller's object alive through this one."""

    def __init__(self, handle: int, owner: object) -> None:
        self._protocol = (0, handle)
        self._owner = owner

    def __cuda_stream__(self) -> tuple[int, int]:
        return self._protocol


class CapturedGraph:
    """Work that was captured once and can be launched again and again; made by
    `DriverExecutor.capture`.

    The arrays that the work reads and writes have to stay alive; `result` is kept here.
    """

    def __init__(self, owner: "DriverExecutor", graph: Any, stream: Stream, result: object) -> None:
        self._executor = owner
        self._graph = graph
        self._stream = stream
        self.result = result
        """What the captured function returned; each launch writes its arrays anew."""

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
        # The device's current pool. cuda.core lets it keep freed memory, where the driver would
        # give it back at each synchronization and have to map it anew for the next call.
        self._pool = DeviceMemoryResource(ordinal)
        self.stream: Stream = self.new_stream()
        """The executor's own stream, for calls on host arrays: it does not wait for the default
        stream.
        """

    def __repr__(self) -> str:
        return f"DriverExecutor({self.name}: {self.info.name}, {self.arch})"

    # Kernels

    def load(self, kernel: RenderedKernel) -> DriverKernel:
        """Assemble `kernel` for this device and load it; a kernel of the same text is kept and
        returned again.

        Raises AssemblerError for a kernel that does not assemble, DriverError for one that the
        driver refuses or whose parameters are not those of the header.
        """
        loaded = self._loaded.get(kernel.digest)
        if loaded is None:
            with self._loading:
                loaded = self._loaded.get(kernel.digest)
                if loaded is None:
                    loaded = DriverKernel(self, kernel, assemble(kernel, self.arch))
                    self._loaded[kernel.digest] = loaded
        return loaded

    # Streams, events, graphs

    def new_stream(self) -> Stream:
        """A stream that does not wait for the legacy default stream; destroyed with its last
        reference.
        """
        return self._create_stream(None)

    def wrap_stream(self, stream: object = None) -> Stream:
        """The cuda.core Stream for anything that `cuevo.stream.resolve_stream` takes.

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
            device.set_current()  # marks cuda.core's object as ready; the primary context is current already
            try:
                return device.create_stream(borrowed)
            except Exception as error:
                raise DriverError(f"making a stream on {self.name}: {error}") from error

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
        doing = f"capturing a graph on {self.name}"
        with self.context.current():
            builder = queue.create_graph_builder()
            try:
                # Relaxed, as an allocation for the result has to be possible meanwhile.
                builder.begin_building("relaxed")
                result = function(queue)
                graph = builder.end_building().complete()
            except Exception as error:
                if isinstance(error, DriverError | ValueError | TypeError):
                    raise
                raise DriverError(f"{doing}: {error}") from error
            finally:
                builder.close()  # ends a capture that is still going on
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

    def _allocate_outside_of_capture(self, nbytes: int) -> Buffer:
        doing = f"allocating {nbytes} bytes on {self.name} during a graph capture"
        modes = cuda.CUstreamCaptureMode
        relaxed = modes.CU_STREAM_CAPTURE_MODE_RELAXED
        before = check(cuda.cuThreadExchangeStreamCaptureMode(relaxed), doing)
        try:
            queue = self.new_stream()
            buffer = self._pool.allocate(nbytes or 1, stream=queue)
            queue.sync()
            return buffer
        except Exception as error:
            raise self._allocation_error(nbytes, error) from error
        finally:
            check(cuda.cuThreadExchangeStreamCaptureMode(before), doing)

    def _allocation_error(self, nbytes: int, error: Exception) -> DriverError:
        status, free, total = cuda.cuMemGetInfo()
        left = "" if status else f" Of {total:,} bytes {free:,} are free."
        return DriverError(f"allocating {nbytes:,} bytes on {self.name}: {error}{left}")

    def empty(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        stream: object = None,
        strides: tuple[int, ...] | None = None,
    ) -> DeviceArray:
        """A new array, not initialised, to be written by work on `stream`.

        `strides` in bytes, none negative; C order without gaps where None.
        """
        size = dtype.itemsize
        if strides is None:
            for extent in shape:
                size *= extent
        elif 0 in shape:
            size = 0
        else:
            size += sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        handle = stream if type(stream) is int and stream > 0 else resolve_stream(stream)
        buffer = self.allocate(size, handle if type(stream) is int else stream)
        return DeviceArray(buffer, shape, dtype, self.name, handle, strides)

    def fill(self, target: ArrayView, value: float, stream: object = None) -> None:
        """Set every element of `target`, of a 2- or 4-byte type, to `value`, queued on `stream`."""
        if target.size == 0:
            return
        handle = resolve_stream(stream)
        element = np.full(1, value, target.dtype)
        wide = target.dtype.itemsize == 4
        set_elements = cuda.cuMemsetD32Async if wide else cuda.cuMemsetD16Async
        pattern = int(element.view(np.uint32 if wide else np.uint16)[0])
        packed = target.strides == contiguous_strides(target.shape, target.dtype.itemsize)
        row = target.shape[-1]
        with self.context.current():
            for address, count in (
                [(target.pointer, target.size)]
                if packed
                else [
                    (target.pointer + sum(map(operator.mul, index, target.strides)), row)
                    for index in np.ndindex(*target.shape[:-1])
                ]
            ):
                check(
                    set_elements(address, pattern, count, handle), f"filling an array on {self.name}"
                )

    def copy_to_device(self, source: ArrayView, stream: object = None) -> ArrayView:
        """A view of a copy in device memory of a host array, queued on `stream`.

        Strides are kept, so that a broadcast array stays one and takes no more room than it has on
        the host. Only an array with large gaps is packed: into rows that begin at multiples of 16
        bytes. `source` must not change until `stream` has done the copy.
        """
        if source.size == 0:
            buffer = self.allocate(0, stream)
            return _moved(source, int(buffer.handle), self.name, buffer)
        packed = _without_gaps(source)
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


def _moved(source: ArrayView, pointer: int, device: str, owner: object) -> ArrayView:
    return ArrayView(
        pointer, source.shape, source.strides, source.dtype, device, source.readonly, owner
    )


_WORTH_PACKING = 4
"""An array is packed before it is copied where it covers this many times the bytes of its elements.
"""


def _without_gaps(source: ArrayView) -> ArrayView:
    """`source` itself, or a packed copy in host memory where most of what it covers is not its own."""
    low, high = source.extent
    once = [
        1 if stride == 0 else extent
        for extent, stride in zip(source.shape, source.strides, strict=True)
    ]
    itemsize = source.dtype.itemsize
    distinct = itemsize
    for extent in once:
        distinct *= extent
    if high - low <= _WORTH_PACKING * distinct:
        return source
    row = -(-once[-1] * itemsize // 16) * 16 // itemsize
    packed = np.empty((*once[:-1], row), source.dtype)[..., : once[-1]]
    packed[...] = as_numpy(source)[tuple(slice(extent) for extent in once)]
    strides = tuple(
        0 if stride == 0 else step
        for stride, step in zip(source.strides, packed.strides, strict=True)
    )
    return ArrayView(
        packed.ctypes.data, source.shape, strides, source.dtype, "cpu", source.readonly, packed
    )


@cache
def executor(ordinal: int = 0) -> DriverExecutor:
    """The executor of device `ordinal`, one for the whole process.

    Raises DeviceUnavailable where there is no such device.
    """
    return DriverExecutor(ordinal)
