"""Streams: which one a call runs on, and how it waits for the stream that made its inputs.

The rules, in one place:

- A stream is an integer handle inside of cuevo. ``1`` is CUDA's legacy default stream (``0``, its
  other name, is turned into 1), ``2`` the per-thread default stream, as in DLPack and in the CUDA
  array interface.
- A caller may give a handle, or an object with ``__cuda_stream__`` (cuda.core, CuPy, torch),
  ``cuda_stream`` (torch) or ``ptr`` (CuPy).
- ``None`` means torch's current stream of the device where an argument is a torch tensor, as every
  operator of torch means it, and the legacy default stream otherwise. torch is never imported for
  that.
- A torch tensor is taken to be ready on torch's current stream. Who gives another stream orders the
  two, as everywhere in torch.
- The stream waits for the producer of an array that comes through ``__dlpack__`` or
  ``__cuda_array_interface__``, on the device, without blocking the host.
- What a call has queued may still read its inputs after the call returned. Libraries that work in
  the order of that stream, as torch and CuPy do by default, may free them at once; an array of a
  library with streams of its own (JAX) has to be kept until the result is there.
- A stream under graph capture does not wait for work outside of the capture, which would spoil the
  capture: inputs of a captured call have to be ready when the graph is launched.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from cuda.bindings import driver as cuda

from cuevo.cuda.context import check, primary_context

LEGACY_DEFAULT = 1
PER_THREAD_DEFAULT = 2
NO_ORDER = -1
"""In place of a consumer's stream: do not wait for the producer."""


def resolve_stream(stream: object = None, arrays: Iterable[object] = ()) -> int:
    """The handle of the stream that a caller means; see the rules above.

    `arrays` are the call's arguments, or views of them, looked at only where `stream` is None.
    Raises TypeError for an object that is no stream, ValueError for a handle that cannot be one.
    """
    if stream is None:
        return _default_stream(arrays)
    if type(stream) is int:
        if stream > 0:
            return stream
        if stream == 0:
            return LEGACY_DEFAULT
        raise ValueError(f"stream: a handle is not negative; got {stream}")
    return _handle(stream) or LEGACY_DEFAULT


def _default_stream(arrays: Iterable[object]) -> int:
    torch: Any = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)  # None while torch is still being imported
    if tensor is not None:
        for array in arrays:
            found = array if isinstance(array, tensor) else getattr(array, "owner", None)
            if isinstance(found, tensor) and found.is_cuda:
                return torch_stream(found.get_device())
    return LEGACY_DEFAULT


def torch_stream(ordinal: int) -> int:
    """The handle of torch's current stream of device `ordinal`, in a process that has torch."""
    return torch_streams(ordinal)() or LEGACY_DEFAULT


def torch_streams(ordinal: int) -> Callable[[], int]:
    """What gives the handle of torch's current stream of device `ordinal`, 0 for the legacy
    default, in a process that has torch.
    """
    torch: Any = sys.modules["torch"]
    # torch's own generated code calls the raw getter; the public one makes an object first.
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return partial(raw, ordinal) if raw else lambda: torch.cuda.current_stream(ordinal).cuda_stream


def _handle(stream: object) -> int:
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version, handle = protocol() if callable(protocol) else protocol
        if version != 0:
            raise TypeError(
                f"stream: {type(stream).__name__} speaks version {version} of __cuda_stream__; "
                "cuevo speaks version 0"
            )
        return int(handle)
    for attribute in ("cuda_stream", "ptr"):
        handle = getattr(stream, attribute, None)
        if isinstance(handle, int):
            return handle
    if type(stream).__name__ in ("CUstream", "cudaStream_t"):  # of cuda.bindings
        return int(stream)  # type: ignore[call-overload, no-any-return]
    raise TypeError(
        "stream: expected None, an integer handle, or an object with __cuda_stream__ (cuda.core, "
        f"CuPy, torch), cuda_stream or ptr; got {type(stream).__name__}"
    )


def is_capturing(stream: int, ordinal: int) -> bool:
    """Whether `stream` of device `ordinal` is being captured; the legacy default never is."""
    if stream == LEGACY_DEFAULT:
        return False
    with primary_context(ordinal).current():
        status = check(
            cuda.cuStreamIsCapturing(stream), f"asking whether stream {stream:#x} is captured"
        )
    return bool(status != cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


def may_be_captured(stream: int) -> bool:
    """Whether `stream`, of the current context, is being captured, or the driver does not say; the
    legacy default never is.
    """
    if stream == LEGACY_DEFAULT:
        return False
    status, how = cuda.cuStreamIsCapturing(stream)
    return bool(status or how)


def wait_for(consumer: int, producer: int, ordinal: int) -> None:
    """Work given to stream `consumer` from now on waits for what stream `producer` has been given.

    Both belong to device `ordinal`. Nothing happens where they are one stream, where `consumer` is
    ``NO_ORDER``, and where the wait would lead into a graph capture or out of it. The host does not
    wait.
    """
    if consumer in (NO_ORDER, producer):
        return
    if is_capturing(consumer, ordinal):
        if not is_capturing(producer, ordinal):
            return
    elif consumer == LEGACY_DEFAULT and is_capturing(producer, ordinal):
        return
    doing = f"making stream {consumer:#x} wait for stream {producer:#x}"
    with primary_context(ordinal).current():
        event = check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING), doing)
        try:
            check(cuda.cuEventRecord(event, producer), doing)
            check(cuda.cuStreamWaitEvent(consumer, event, 0), doing)
        finally:
            # A destroyed event lives on in the driver for the streams that wait for it.
            check(cuda.cuEventDestroy(event), doing)
