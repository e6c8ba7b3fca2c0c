"""A kernel on a CUDA device: loading it, launching it, and what a refused launch did wrong."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import Any

from cuda.bindings import driver as cuda

from cuevo.arrays import ArrayView
from cuevo.cuda import DeviceInfo, PrimaryContext, check, driver_error, resolve_stream
from cuevo.errors import DriverError
from cuevo.toolchain.assembler import Cubin
from cuevo.toolchain.template import RenderedKernel

_Dim = tuple[int, int, int]
Shape = tuple[_Dim, _Dim, int]
"""Grid, block, bytes of dynamic shared memory of a threadblock."""
_Launch = Callable[[], tuple[Any, ...]]
"""The driver's function with all that it takes."""


class ParameterBlock:
    """The parameters of a kernel in memory, as the driver reads them: addresses, then constants."""

    __slots__ = ("_pointers", "address", "front")

    def __init__(self, size: int, offsets: Sequence[int], constants: bytes) -> None:
        """A block of parameters at `offsets`; it ends with `constants`."""
        # No view of an empty one can be cast.
        block = ctypes.create_string_buffer(max(size, 1))
        begin = ctypes.addressof(block)
        self._pointers = (ctypes.c_void_p * len(offsets))(*(begin + offset for offset in offsets))
        params = memoryview(block).cast("B")[:size]
        front = size - len(constants)
        params[front:] = constants
        self.front = params[:front]
        """What comes before the constants, to be written."""
        self.address = ctypes.addressof(self._pointers)
        """Of the pointers to each parameter."""


class _Prepared(threading.local):
    """What one thread has prepared for launches of one kernel.

    The driver lets other threads run while it launches, so that no two may share a parameter block.
    """

    def __init__(self, size: int, offsets: Sequence[int], constants: bytes = b"") -> None:
        self.block = ParameterBlock(size, offsets, constants)
        self.last: tuple[memoryview, int, _Launch] = (self.block.front, 0, tuple)
        """What comes before the constants, a stream, and the launch on it. All in one: what belongs
        to a thread is slow to look up.
        """


def _launch_config(
    numbers: Sequence[int], stream: cuda.CUstream, *, early: bool
) -> cuda.CUlaunchConfig:
    """Of a launch with these extents of grid and block and this much dynamic shared memory; an
    `early` one may begin before the one in front of it has ended.
    """
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = numbers[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = numbers[3:6]
    config.sharedMemBytes = numbers[6]
    config.hStream = stream
    if early:
        allowed = cuda.CUlaunchAttribute()
        allowed.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        allowed.value.programmaticStreamSerializationAllowed = 1
        config.attrs = [allowed]
        config.numAttrs = 1
    return config


class DriverKernel:
    """A kernel loaded on a device; made and kept by `DriverExecutor.load`.

    One that waits for the launches in front of it (``griddepcontrol.wait``) may begin before they
    have ended.
    """

    def __init__(
        self, info: DeviceInfo, context: PrimaryContext, kernel: RenderedKernel, cubin: Cubin
    ) -> None:
        self.kernel = kernel
        self.cubin = cubin
        self._info = info
        self._context = context
        self._size = kernel.params.size
        self.waits_itself = "griddepcontrol.wait" in kernel.text
        """Whether it waits for what the launch in front of it has written, and not the driver."""
        doing = f"loading {kernel.describe()} on cuda:{info.ordinal} ({info.name}, {info.arch})"
        with self._context.current():
            module = check(cuda.cuModuleLoadData(cubin.code), doing)
            try:
                self.function = check(cuda.cuModuleGetFunction(module, kernel.name.encode()), doing)
                self._prepare(doing)
                self._prepared = _Prepared(self._size, self._offsets)
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
        # Where the driver has them is its own affair: a struct that wants to be aligned to more
        # than 16 bytes does not begin at 0 there.
        sizes = [size for _, size in self.parameters]
        fields = [(field.offset, field.size) for field in self.kernel.params.fields]
        packed = [(0, self._size)] if len(sizes) == 1 else fields
        if sizes != [size for _, size in packed]:
            raise DriverError(
                f"{doing}: the kernel's parameters have {sizes} bytes; {self.kernel.params.name} "
                f"that a launch packs has {self._size} bytes."
            )
        self._offsets = [offset for offset, _ in packed]

    @property
    def spills(self) -> bool:
        """Whether registers are spilled to memory."""
        resources = self.cubin.resources
        return resources.spill_stores + resources.spill_loads > 0

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
        """Number of threadblocks of this kind that one SM holds at a time."""
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
        """Queue the kernel on `stream`; see `cuevo.executors.protocol.LoadedKernel.launch`.

        Raises DriverError with the driver's error, the kernel, the configuration, and which limit
        it breaks. A fault while the kernel runs is reported by a later call, as always with CUDA.
        """
        shape, handle = (grid, block, shared_bytes), resolve_stream(stream)
        own = self._prepared.block
        launch = self._prepare_launch(shape, handle, own)
        entered = self._context.enter()
        try:
            try:
                own.front[:] = params
            except ValueError:  # of another length
                raise ValueError(
                    f"params: {self.kernel.name} takes {self._size} bytes "
                    f"({self.kernel.params.name}); got {len(params)}"
                ) from None
            (status,) = launch()
            if status:
                raise self._launch_error(status, shape, handle)
        finally:
            if entered:
                self._context.leave()

    def launcher(
        self,
        shape: Shape,
        pick: Callable[[Sequence[int]], Sequence[int]],
        pack: Callable[..., bytes],
        constants: bytes,
    ) -> Callable[..., None]:
        """A function for launches of this shape: ``queue(table, stream)`` queues the kernel, in the
        device's context, on the stream of that handle.

        The parameter block is ``pack(*pick(table))``, then `constants`. Everything else is made
        once: a launch costs the host little beside what the driver takes.
        """
        own = _Prepared(self._size, self._offsets, constants)

        def queue(table: Sequence[int], stream: int) -> None:
            front, prepared_for, launch = own.last
            if prepared_for != stream:
                launch = self._prepare_launch(shape, stream, own.block)
                own.last = (front, stream, launch)
            front[:] = pack(*pick(table))
            (status,) = launch()
            if status:
                raise self._launch_error(status, shape, stream)

        return queue

    def parameter_block(self, constants: bytes) -> ParameterBlock:
        """A parameter block for this kernel that ends with `constants`."""
        return ParameterBlock(self._size, self._offsets, constants)

    def _prepare_launch(self, shape: Shape, stream: int, params: ParameterBlock) -> _Launch:
        """Check a launch, and give the driver's function with its arguments."""
        grid, block, shared_bytes = shape
        try:
            numbers = [index(number) for number in (*grid, *block, shared_bytes)]
        except TypeError:
            numbers = []
        if (len(grid), len(block), len(numbers)) != (3, 3, 7) or not all(
            0 <= number < 2**32 for number in numbers
        ):
            raise ValueError(
                "a grid and a block are three integers each, not negative and below 2**32; got "
                f"grid {grid}, block {block}, {shared_bytes} bytes of shared memory"
            )
        queue = cuda.CUstream(stream)
        config = _launch_config(numbers, queue, early=self.waits_itself)
        return partial(cuda.cuLaunchKernelEx, config, self.function, params.address, 0)

    def _launch_error(self, status: Any, shape: Shape, stream: int) -> DriverError:
        grid, block, shared_bytes = shape
        doing = (
            f"launching {self.kernel.describe()} on cuda:{self._info.ordinal} ({self._info.name}) "
            f"with grid {grid}, block {block}, {shared_bytes} bytes of dynamic shared memory, "
            f"stream {stream:#x}"
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
