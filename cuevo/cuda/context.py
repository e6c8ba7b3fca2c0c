"""Calls of the CUDA driver: a failure in words, and a device's primary context.

A library in somebody's process leaves the thread's current context as it found it. cuevo works in
the device's primary context, the one that torch, JAX and CuPy work in, and makes it current only
for as long as it needs it, and only where another one, or none, is current.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda.bindings import driver as cuda

from cuevo.errors import DriverError

_STATUS = cuda.CUresult

_CONTEXT_IS_LOST = frozenset(
    {
        _STATUS.CUDA_ERROR_ILLEGAL_ADDRESS,
        _STATUS.CUDA_ERROR_LAUNCH_TIMEOUT,
        _STATUS.CUDA_ERROR_ASSERT,
        _STATUS.CUDA_ERROR_HARDWARE_STACK_ERROR,
        _STATUS.CUDA_ERROR_ILLEGAL_INSTRUCTION,
        _STATUS.CUDA_ERROR_MISALIGNED_ADDRESS,
        _STATUS.CUDA_ERROR_INVALID_ADDRESS_SPACE,
        _STATUS.CUDA_ERROR_INVALID_PC,
        _STATUS.CUDA_ERROR_LAUNCH_FAILED,
        _STATUS.CUDA_ERROR_CONTEXT_IS_DESTROYED,
        _STATUS.CUDA_ERROR_ECC_UNCORRECTABLE,
    }
)
_LOST_ADVICE = (
    "The driver reports the failure of a kernel at a later call: it may be this one's or an "
    "earlier one's. The device's context is lost; start a new process. CUDA_LAUNCH_BLOCKING=1, or "
    "compute-sanitizer, shows which kernel it was"
)


def describe_status(status: Any) -> str:
    """The driver's name and text of a status: ``CUDA_ERROR_INVALID_VALUE (invalid argument)``."""
    _, name = cuda.cuGetErrorName(status)
    _, text = cuda.cuGetErrorString(status)
    if not name:
        return f"CUDA error {int(status)}"
    return f"{name.decode()} ({text.decode()})" if text else str(name.decode())


def driver_error(status: Any, doing: str, *details: str) -> DriverError:
    """The error for a `status` other than success: what was being done, the driver's words,
    `details`.
    """
    sentences = [f"{doing}: {describe_status(status)}", *details]
    if status in _CONTEXT_IS_LOST:
        sentences.append(_LOST_ADVICE)
    return DriverError(". ".join(sentences) + ".")


def check(result: tuple[Any, ...], doing: str) -> Any:
    """Result of a call of cuda.bindings beside its status: None, one value, or a tuple.

    `doing` begins the message of the DriverError that a failed call raises: "loading the kernel x".
    """
    if result[0]:
        raise driver_error(result[0], doing)
    if len(result) == 2:
        return result[1]
    return result[1:] or None


class PrimaryContext:
    """The primary context of device `ordinal`, kept for as long as this object lives.

    Raises DriverError where the driver cannot make the context (no memory left, a device that
    another process owns); nothing is left behind then.
    """

    __slots__ = ("_context", "handle", "ordinal")

    def __init__(self, ordinal: int) -> None:
        doing = f"making the primary context of cuda:{ordinal}"
        device = check(cuda.cuDeviceGet(ordinal), doing)
        self._context = check(cuda.cuDevicePrimaryCtxRetain(device), doing)
        self.ordinal = ordinal
        self.handle = int(self._context)

    def enter(self) -> bool:
        """Make the context current if it is not; True if a `leave` has to follow."""
        status, current = cuda.cuCtxGetCurrent()
        if not status and current == self._context:
            return False
        check(cuda.cuCtxPushCurrent(self._context), f"entering the context of cuda:{self.ordinal}")
        return True

    def leave(self) -> None:
        """Give the thread back the context that it had before `enter`."""
        check(cuda.cuCtxPopCurrent(), f"leaving the context of cuda:{self.ordinal}")

    @contextmanager
    def current(self) -> Iterator[None]:
        """The context is the thread's current one inside of the ``with`` block."""
        entered = self.enter()
        try:
            yield
        finally:
            if entered:
                self.leave()


@contextmanager
def relaxed_capture(doing: str) -> Iterator[None]:
    """Inside of the ``with`` block this thread may allocate and load while some stream is captured.

    CUDA forbids it otherwise, since it cannot know that the captured work has no part in it.
    """
    mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = check(cuda.cuThreadExchangeStreamCaptureMode(mode), doing)
    try:
        yield
    finally:
        check(cuda.cuThreadExchangeStreamCaptureMode(before), doing)


_contexts: dict[int, PrimaryContext] = {}
_contexts_lock = threading.Lock()


def primary_context(ordinal: int) -> PrimaryContext:
    """The primary context of device `ordinal`, made at the first call and shared by later ones."""
    context = _contexts.get(ordinal)
    if context is None:
        with _contexts_lock:
            context = _contexts.get(ordinal)
            if context is None:
                check(cuda.cuInit(0), "starting the CUDA driver")
                context = _contexts[ordinal] = PrimaryContext(ordinal)
    return context
