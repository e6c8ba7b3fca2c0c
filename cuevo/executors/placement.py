"""Where a call runs: from the `device` argument and the arrays to an executor, and what that
executor can do.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from cuevo.architectures import Architecture, architecture
from cuevo.arrays import ArrayView
from cuevo.cuda import devices
from cuevo.executors.driver import DriverExecutor, executor
from cuevo.executors.protocol import Executor

if TYPE_CHECKING:
    from cuevo.sim import SimExecutor

__all__ = ["architecture_of", "executor_for"]

_DEFAULT_SIM = "sm_80"


def executor_for(device: object, views: Mapping[str, ArrayView]) -> Executor:
    """The executor that `device` means for a call on `views`, by the names of arguments.

    device : None (where the arrays live; for arrays in host memory the first GPU, or the CPU
        executor if there is none), "sim", "sim:sm_90", "cuda", "cuda:1", or an executor.

    Raises ValueError for arrays on several devices, or on another device than the one asked for,
    TypeError for what names no device, DeviceUnavailable for a GPU that is not there.
    """
    first = next(iter(views), None)
    place = "cpu" if first is None else views[first].device
    for name, view in views.items():
        if view.device != place:
            raise ValueError(
                f"{name}: expected an array on {place}, where {first} is; it is on {view.device}"
            )
    chosen = _chosen(device, place)
    if place not in ("cpu", chosen.name):
        raise ValueError(
            f"device: the arrays are on {place}, and {chosen.name} cannot read them there; "
            "copy them first, or leave device out"
        )
    return chosen


def _chosen(device: object, place: str) -> Executor:
    if device is None:
        if place != "cpu":
            return executor(int(place.removeprefix("cuda:")))
        return executor(0) if devices() else _sim(_DEFAULT_SIM)
    if isinstance(device, str):
        kind, _, which = device.partition(":")
        if kind == "sim":
            return _sim(which or _DEFAULT_SIM)
        if kind == "cuda" and (which.isdecimal() or not which):
            return executor(int(which or 0))
        raise ValueError(f"device: expected 'sim', 'sim:sm_90', 'cuda' or 'cuda:0'; got {device!r}")
    if isinstance(device, DriverExecutor):
        return device
    from cuevo.sim import SimExecutor

    if isinstance(device, SimExecutor):
        return device
    raise TypeError(
        "device: expected None, a name such as 'sim' or 'cuda:0', or an executor; got "
        f"{type(device).__name__}"
    )


@lru_cache
def _sim(arch: str) -> "SimExecutor":
    # The largest part of cuevo, which calls on a GPU have no use for.
    from cuevo.sim import SimExecutor

    return SimExecutor(arch)


def architecture_of(place: Executor) -> Architecture:
    """The limits of an executor's architecture; a present device's own numbers where there is one,
    and its name with what only it has: "sm_90a".
    """
    limits = architecture(place.arch)
    if not isinstance(place, DriverExecutor):
        return limits
    info = place.info
    return replace(
        limits,
        name=limits.specific_name,
        shared_per_block=info.shared_per_block_optin,
        multiprocessors=info.sm_count,
    )
