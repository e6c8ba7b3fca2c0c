"""The CPU executor: runs rendered PTX with NumPy, and checks it harder than a GPU would."""

from cuevo.sim.executor import LoadedKernel, SimExecutor

__all__ = ["LoadedKernel", "SimExecutor"]
