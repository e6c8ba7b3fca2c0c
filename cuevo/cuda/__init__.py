"""The CUDA driver as it is: contexts and their errors, devices, streams and their order, a side
stream beside a caller's, tensor maps.
"""

from cuevo.cuda.context import PrimaryContext, check, driver_error
from cuevo.cuda.device_info import DeviceInfo, devices
from cuevo.cuda.side_stream import SideStream
from cuevo.cuda.stream import LEGACY_DEFAULT, resolve_stream
from cuevo.cuda.tensor_map import TensorMap

__all__ = [
    "LEGACY_DEFAULT",
    "DeviceInfo",
    "PrimaryContext",
    "SideStream",
    "TensorMap",
    "check",
    "devices",
    "driver_error",
    "resolve_stream",
]
