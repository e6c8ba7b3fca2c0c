"""A place whose kernels are assembled for an architecture, and never launched: for plans that are
looked at, or whose kernels are to be in the cache.
"""

from dataclasses import dataclass
from typing import Any

from cuevo.architectures import architecture
from cuevo.executors.protocol import Executor
from cuevo.toolchain.assembler import LOWEST_ARCH, Cubin, assemble, begin_assembly, target_for
from cuevo.toolchain.template import RenderedKernel

__all__ = ["assembling"]


@dataclass(frozen=True)
class _Assembled:
    """A kernel that is never launched."""

    kernel: RenderedKernel
    cubin: Cubin | None
    """None for an architecture that the assembler does not know."""

    @property
    def spills(self) -> bool:
        taken = self.cubin and self.cubin.resources
        return bool(taken and taken.spill_stores + taken.spill_loads)


def assembling(arch_name: str, device: str = "", *, knows_addresses: bool = True) -> Executor:
    """A place of that architecture, with what only it has; tuned choices are those of `device`, a
    name such as ``NVIDIA H200``, if any; `knows_addresses` as of `Executor`.
    """
    from cuevo.sim import SimExecutor

    arch = architecture(architecture(arch_name).specific_name)

    class Assembling(SimExecutor):
        def expect(self, kernel: Any) -> None:
            if arch.number >= LOWEST_ARCH:
                begin_assembly(kernel, target_for(kernel, f"sm_{arch.number}"))

        def load(self, kernel: Any) -> Any:
            if arch.number < LOWEST_ARCH:
                return _Assembled(kernel, None)
            return _Assembled(kernel, assemble(kernel, target_for(kernel, f"sm_{arch.number}")))

    place = Assembling(arch.name)
    place.name = device
    place.knows_addresses = knows_addresses
    return place
