"""Where kernels run: the contract that the CUDA driver and the CPU executor share, the driver's
side of it, and which executor a call gets.
"""

from cuevo.executors.driver import DriverExecutor, executor
from cuevo.executors.placement import architecture_of, executor_for
from cuevo.executors.protocol import Executor, LoadedKernel

__all__ = [
    "DriverExecutor",
    "Executor",
    "LoadedKernel",
    "architecture_of",
    "executor",
    "executor_for",
]
