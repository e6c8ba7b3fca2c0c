"""The CUDA driver as it is.

`context` has the primary contexts and the driver's errors, `device_info` what devices there are,
`stream` the rules of streams and their order, `side_stream` a stream beside a caller's,
`tensor_map` the descriptors of TMA.
"""

from cuevo.cuda.context import (
    PrimaryContext,
    check,
    describe_status,
    driver_error,
    primary_context,
    relaxed_capture,
)
from cuevo.cuda.device_info import (
    DeviceInfo,
    devices,
    require_device,
    require_driver,
    why_none,
)
from cuevo.cuda.side_stream import SideStream
from cuevo.cuda.stream import (
    LEGACY_DEFAULT,
    NO_ORDER,
    PER_THREAD_DEFAULT,
    is_capturing,
    may_be_captured,
    resolve_stream,
    torch_stream,
    torch_streams,
    wait_for,
)
from cuevo.cuda.tensor_map import TensorMap

__all__ = [
    "LEGACY_DEFAULT",
    "NO_ORDER",
    "PER_THREAD_DEFAULT",
    "DeviceInfo",
    "PrimaryContext",
    "SideStream",
    "TensorMap",
    "check",
    "describe_status",
    "devices",
    "driver_error",
    "is_capturing",
    "may_be_captured",
    "primary_context",
    "relaxed_capture",
    "require_device",
    "require_driver",
    "resolve_stream",
    "torch_stream",
    "torch_streams",
    "wait_for",
    "why_none",
]
