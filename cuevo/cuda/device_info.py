"""The CUDA devices of this machine, and why there are none."""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

from cuda.bindings import driver as cuda

from cuevo.cuda.context import check, driver_error
from cuevo.errors import DeviceUnavailable, DriverError

_MINIMUM = (7, 0)
_CPU_ADVICE = "Without a GPU the same kernels run on the CPU executor: device='sim'"


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """Attributes of one device, as the driver gives them; sizes in bytes."""

    ordinal: int
    name: str
    """``"NVIDIA H200"``."""
    arch: str
    """``"sm_90"``."""
    sm_count: int
    shared_per_block_optin: int
    """The most shared memory that one threadblock can have, static and dynamic together."""
    l2_bytes: int
    memory_bytes: int
    driver_version: str
    """The newest CUDA that the driver speaks: ``"13.0"``."""

    @property
    def compute_capability(self) -> tuple[int, int]:
        """``(9, 0)`` for ``"sm_90"``."""
        digits = self.arch.removeprefix("sm_")
        return int(digits[:-1]), int(digits[-1])


def devices() -> tuple[DeviceInfo, ...]:
    """The devices of this machine; none where there is no driver. Never raises."""
    found = _probe()
    return found if isinstance(found, tuple) else ()


def why_none() -> str:
    """Reason why no device was found, and what to do; empty where there is one."""
    found = _probe()
    return "" if isinstance(found, tuple) else found


def require_device(ordinal: int = 0) -> DeviceInfo:
    """Device `ordinal`.

    Raises DeviceUnavailable, with what to do, where there is none or cuevo has no kernels for it.
    """
    found = devices()
    if not found:
        raise DeviceUnavailable(f"there is no device cuda:{ordinal}: {why_none()}. {_CPU_ADVICE}")
    if not 0 <= ordinal < len(found):
        names = ", ".join(f"cuda:{info.ordinal} ({info.name})" for info in found)
        raise DeviceUnavailable(
            f"there is no device cuda:{ordinal}: looked through the driver's devices, "
            f"found {names}{_visible()}; ask for one of those. {_CPU_ADVICE}"
        )
    info = found[ordinal]
    if info.compute_capability < _MINIMUM:
        raise DeviceUnavailable(
            f"cuda:{ordinal} is too old for cuevo's kernels: looked for sm_70 (Volta) or later, "
            f"found {info.name} with {info.arch}; use another device. {_CPU_ADVICE}"
        )
    return info


def require_driver(name: str) -> None:
    """That there is a device at all, whose memory the array `name` may be in; DeviceUnavailable,
    with what to do, where there is none.
    """
    if not devices():
        raise DeviceUnavailable(
            f"{name}: its elements are in the memory of a CUDA device, and there is none here: "
            f"{why_none()}. An array in host memory runs on the CPU executor: device='sim'"
        )


@cache
def _probe() -> tuple[DeviceInfo, ...] | str:
    """The devices, or why there are none."""
    try:
        (status,) = cuda.cuInit(0)
    except Exception as error:  # cuda.pathfinder's own type where libcuda is missing
        return (
            "looked for NVIDIA's driver library (libcuda), found none: "
            f"{str(error).splitlines()[0]} Install NVIDIA's driver; a container has to be started "
            "with its GPUs (docker run --gpus all)"
        )
    try:
        return _list(status)
    except DriverError as error:
        return f"looked for a GPU, found a driver that cannot describe its devices: {error}"


def _list(status: Any) -> tuple[DeviceInfo, ...] | str:
    codes = cuda.CUresult
    if status == codes.CUDA_ERROR_NOT_INITIALIZED:
        return (
            "looked for a GPU, found that the driver does not start in this process "
            "(CUDA_ERROR_NOT_INITIALIZED), as in one that was forked after CUDA had started. "
            "Start processes with multiprocessing's 'spawn'"
        )
    if status and status != codes.CUDA_ERROR_NO_DEVICE:
        return (
            f"looked for a GPU, found that the driver does not start: "
            f"{driver_error(status, 'cuInit')} See whether nvidia-smi works: the library and the "
            "kernel module have to be of one version"
        )
    count = 0 if status else check(cuda.cuDeviceGetCount(), "counting the devices")
    if not count:
        return (
            f"looked for a GPU, found NVIDIA's driver but no device{_visible()}. See whether "
            "nvidia-smi lists one, and that CUDA_VISIBLE_DEVICES does not hide it"
        )
    return tuple(_describe(ordinal) for ordinal in range(count))


def _visible() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"


def _describe(ordinal: int) -> DeviceInfo:
    doing = f"describing cuda:{ordinal}"
    device = check(cuda.cuDeviceGet(ordinal), doing)
    names = cuda.CUdevice_attribute

    def attribute(name: Any) -> int:
        return int(check(cuda.cuDeviceGetAttribute(name, device), doing))

    major = attribute(names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
    minor = attribute(names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
    version = check(cuda.cuDriverGetVersion(), doing)
    return DeviceInfo(
        ordinal=ordinal,
        name=check(cuda.cuDeviceGetName(256, device), doing).split(b"\0")[0].decode(),
        arch=f"sm_{major}{minor}",
        sm_count=attribute(names.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        shared_per_block_optin=attribute(
            names.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        ),
        l2_bytes=attribute(names.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
        memory_bytes=int(check(cuda.cuDeviceTotalMem(device), doing)),
        driver_version=f"{version // 1000}.{version % 1000 // 10}",
    )
