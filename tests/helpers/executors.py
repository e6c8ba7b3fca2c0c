"""CPU executors that know what a call asked of them."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from cuevo.arrays import view
from cuevo.executors.placement import executor_for
from cuevo.sim import SimExecutor
from cuevo.toolchain.template import RenderedKernel


@cache
def shared(arch: str) -> SimExecutor:
    """The executor of ``device="sim:<arch>"``: what one test parsed is there for the next."""
    place = executor_for(f"sim:{arch}", {"x": view(np.zeros(1, np.float32))})
    assert isinstance(place, SimExecutor)
    return place


class Recorder(SimExecutor):
    """One that remembers the kernels that were loaded; they run on the executor that is shared."""

    def __init__(self, arch: str = "sm_80") -> None:
        super().__init__(arch)
        self.loaded: list[RenderedKernel] = []
        self.expected: list[RenderedKernel] = []
        """Those of which it knew that they would be loaded, before the first one was."""

    def expect(self, kernel: RenderedKernel) -> None:
        if not self.loaded:
            self.expected.append(kernel)

    def load(self, kernel: RenderedKernel) -> Any:
        self.loaded.append(kernel)
        return shared(self.arch).load(kernel)

    @property
    def names(self) -> list[str]:
        return [kernel.name for kernel in self.loaded]

    @property
    def values(self) -> list[Mapping[str, Any]]:
        """The parameters of each."""
        return [kernel.values for kernel in self.loaded]

    @property
    def configs(self) -> list[Any]:
        """The configuration of each, where it is a parameter."""
        return [values["config"] for values in self.values]


class Idle(SimExecutor):
    """One that nobody may use."""

    def load(self, kernel: RenderedKernel) -> Any:
        raise AssertionError(f"{kernel.describe()} was loaded")
