"""Arrays in device memory that cuevo makes and returns."""

import sys
from typing import Any

import numpy as np
from cuda.bindings import driver as cuda

from cuevo.arrays import dlpack
from cuevo.arrays.array_view import BFLOAT16, ArrayView, DType, contiguous_strides
from cuevo.cuda import (
    LEGACY_DEFAULT,
    PER_THREAD_DEFAULT,
    check,
    primary_context,
    resolve_stream,
    wait_for,
)

_DEFAULT_STREAMS = frozenset({LEGACY_DEFAULT, PER_THREAD_DEFAULT})


class DeviceArray:
    """An array in device memory, made by a call.

    Other libraries take it without a copy: ``torch.from_dlpack(x)``, ``cupy.from_dlpack(x)``,
    ``jax.dlpack.from_dlpack(x)``, or anything that reads ``__cuda_array_interface__``; `to_numpy`
    copies it to the host. It is ready on the stream that the call ran on; both protocols make the
    consumer's stream wait for that one.

    The memory is given back in the order of the stream that it was made on, and, once exported to
    the legacy or per-thread default stream, of that one too. Who reads it on yet another stream
    keeps it until that work is done.
    """

    __slots__ = ("__weakref__", "_lease", "_view", "stream")

    def __init__(
        self,
        buffer: Any,
        shape: tuple[int, ...],
        dtype: DType,
        device: str,
        stream: int,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        """An array at the start of `buffer`, a cuda.core Buffer.

        `strides` in bytes, C order without gaps where None; `stream` is the handle of the stream
        that writes it.
        """
        if strides is None:
            strides = contiguous_strides(shape, dtype.itemsize)
        self.stream = stream
        self._lease: _Lease | None = None
        self._view = ArrayView(int(buffer.handle), shape, strides, dtype, device, False, buffer)

    @property
    def pointer(self) -> int:
        """Address of element (0, 0, ...)."""
        return self._view.pointer

    @property
    def shape(self) -> tuple[int, ...]:
        return self._view.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes."""
        return self._view.strides

    @property
    def dtype(self) -> DType:
        return self._view.dtype

    @property
    def device(self) -> str:
        """``"cuda:<ordinal>"``."""
        return self._view.device

    @property
    def ndim(self) -> int:
        return self._view.ndim

    @property
    def size(self) -> int:
        return self._view.size

    @property
    def nbytes(self) -> int:
        return self._view.nbytes

    def __repr__(self) -> str:
        return (
            f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device!r}, "
            f"pointer={self.pointer:#x})"
        )

    def view(self, stream: int | None = None) -> ArrayView:
        """The array as an argument of a call on `stream`, which is made to wait for this array."""
        self._make_wait(LEGACY_DEFAULT if stream is None else stream)
        return self._view

    def to_numpy(self, stream: object = None) -> np.ndarray[Any, Any]:
        """A copy in host memory. The host waits for `stream`; None is the stream that made the
        array.
        """
        handle = self.stream if stream is None else resolve_stream(stream)
        self._make_wait(handle)
        return copy_to_host(self._view, handle)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        raise TypeError("a DeviceArray is not copied to the host unasked: call its to_numpy()")

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self._ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule; `stream` is the consumer's, as the protocol has it (None: the legacy
        default).
        """
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array is on {self.device}; to_numpy() copies it to the host")
        if copy:
            raise BufferError("the array is exported without a copy only")
        if stream == 0:
            raise ValueError("stream: DLPack leaves 0 undefined; 1 is the legacy default stream")
        consumer = LEGACY_DEFAULT if stream is None else stream
        self._make_wait(consumer)
        exported = self._view
        owner = exported.owner
        if consumer in _DEFAULT_STREAMS and consumer != self.stream:
            owner = _Lease(owner, self.stream, consumer, self._ordinal)
        return dlpack.export(
            exported.pointer,
            exported.nbytes,
            exported.shape,
            exported.strides,
            exported.dtype,
            owner,
            max_version,
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3. There is none for bfloat16, which the protocol cannot name: hasattr is False
        then.
        """
        if self.dtype == BFLOAT16:
            raise AttributeError(
                "the CUDA array interface has no name for bfloat16; DLPack (from_dlpack) has one"
            )
        if self._lease is None and self.stream != LEGACY_DEFAULT:
            self._lease = _Lease(self._view.owner, self.stream, LEGACY_DEFAULT, self._ordinal)
        return {
            "version": 3,
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "stream": self.stream,
        }

    @property
    def _ordinal(self) -> int:
        return int(self.device[5:])

    def _make_wait(self, consumer: int) -> None:
        if consumer != self.stream:
            wait_for(consumer, self.stream, self._ordinal)


class _Lease:
    """Holds an exported buffer: at its end the buffer's stream waits for the default stream that
    read it, so that the memory does not go to somebody else before.

    Other streams may be gone by then, and a destroyed stream must not be named to the driver.
    """

    __slots__ = ("_buffer", "_consumer", "_ordinal", "_producer")

    def __init__(self, buffer: object, producer: int, consumer: int, ordinal: int) -> None:
        self._buffer = buffer
        self._producer = producer
        self._consumer = consumer
        self._ordinal = ordinal

    def __del__(self) -> None:
        if not sys.is_finalizing():
            wait_for(self._producer, self._consumer, self._ordinal)


def copy_to_host(
    source: ArrayView, stream: int, out: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    """Copy an array in device memory to `out`, or to a new NumPy array in C order.

    The host waits for `stream`. `out` has the shape and dtype of `source`, and any strides.
    """
    host = dlpack.exportable(np.empty(source.shape, source.dtype)) if out is None else out
    if source.size == 0:
        return host
    low, high = source.extent
    if source.is_contiguous and host.flags.c_contiguous:
        _fetch(host.ctypes.data, low, high - low, stream, source)
        return host
    memory = np.empty(high - low, np.uint8)
    _fetch(memory.ctypes.data, low, high - low, stream, source)
    host[...] = np.ndarray(source.shape, source.dtype, memory, source.pointer - low, source.strides)
    return host


def _fetch(address: int, pointer: int, nbytes: int, stream: int, source: ArrayView) -> None:
    doing = f"copying {nbytes} bytes from {source.device} to the host"
    with primary_context(int(source.device[5:])).current():
        check(cuda.cuMemcpyDtoHAsync(address, pointer, nbytes, stream), doing)
        check(cuda.cuStreamSynchronize(stream), doing)
