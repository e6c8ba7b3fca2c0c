"""The contract that the CUDA driver (`cuevo.executors.driver`) and the CPU executor (`cuevo.sim`)
share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from cuevo.arrays import ArrayView

if TYPE_CHECKING:
    from cuevo.toolchain.template import RenderedKernel


class LoadedKernel(Protocol):
    """A rendered kernel, ready to be launched on one executor."""

    @property
    def spills(self) -> bool:
        """Whether its assembler ran out of registers; never on the CPU executor."""
        ...

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        params: bytes | bytearray,
        *,
        buffers: Sequence[ArrayView] = (),
        stream: object = None,
    ) -> None:
        """Run the kernel on `grid` threadblocks of `block` threads each.

        `shared_bytes` is the dynamic shared memory of one threadblock. `params` is the packed
        parameter struct, little endian, exactly as long as the struct; it is read before the call
        returns.

        `buffers` are the arrays behind the struct's pointers. The CUDA driver has no use for them;
        the CPU executor refuses every access outside of them, and every write to one that is
        readonly. `stream` is anything that `cuevo.cuda.resolve_stream` takes; the CPU executor
        has none, and is done when the call returns, while the CUDA driver only has queued the
        kernel.
        """
        ...


class Executor(Protocol):
    """A place where kernels run."""

    @property
    def name(self) -> str:
        """``"cuda:0"``, ``"sim:sm_80"``."""
        ...

    @property
    def arch(self) -> str:
        """The architecture that kernels are chosen, assembled and computed for: ``"sm_90"``."""
        ...

    @property
    def knows_addresses(self) -> bool:
        """Whether a launch is told where its arrays are: what tensor maps are made of."""
        ...

    def expect(self, kernel: RenderedKernel) -> None:
        """`kernel` will be loaded: what takes long may begin, beside what the caller does next."""
        ...

    def load(self, kernel: RenderedKernel) -> LoadedKernel:
        """Make `kernel` ready; a kernel of the same text is kept and returned again."""
        ...
