"""Executors: where kernels run.

`protocol` is the contract that the CUDA driver and the CPU executor (`cuevo.sim`) share, `driver`
and `driver_kernel` are the driver's side of it, `replay` makes graphs of repeated launches,
`scratch` keeps memory of workspaces, `placement` picks the executor of a call, `own` loads and
calls kernels of the user's own.
"""

from cuevo.executors.driver import CapturedGraph, DriverExecutor, DriverKernel, executor
from cuevo.executors.placement import architecture_of, executor_for
from cuevo.executors.protocol import Executor, LoadedKernel

__all__ = [
    "CapturedGraph",
    "DriverExecutor",
    "DriverKernel",
    "Executor",
    "LoadedKernel",
    "architecture_of",
    "executor",
    "executor_for",
]
