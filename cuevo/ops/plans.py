"""What the operations share: plans kept from call to call, configurations, launches.

A plan is what a call has found out and the next call of its kind need not: the loaded kernel, its
launch geometry and its parameter block, in which only the addresses are new.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.executors.placement import architecture_of
from cuevo.executors.protocol import Executor, LoadedKernel
from cuevo.toolchain.template import render

__all__ = ["Addresses", "HostHalf", "KernelConfig", "Launch", "Plans", "configure", "load"]

_PLANS_KEPT = 1024


class KernelConfig(Protocol):
    """One instance of a kernel: a frozen dataclass."""

    @property
    def threads(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...


P = TypeVar("P", contravariant=True)
C = TypeVar("C", bound=KernelConfig)
T = TypeVar("T")


class HostHalf(Protocol[P, C]):
    """A module of `cuevo.kernels`: the host half of a kernel for problems P, with configurations
    C.
    """

    @property
    def NAME(self) -> str: ...  # noqa: N802
    @property
    def Config(self) -> type[C]: ...  # noqa: N802

    def choose(self, problem: P, arch: Architecture) -> C: ...
    def adapt(self, config: C, problem: P) -> C: ...
    def violations(
        self, config: C, arch: Architecture, problem: P | None = None
    ) -> tuple[str, ...]: ...
    def spill_fallbacks(self, config: C) -> Iterator[C]: ...
    def values(self, config: C) -> dict[str, object]: ...


class Plans(dict[tuple[object, ...], T]):
    """The plans of an operation, by everything of a call that they depend on."""

    def keep(self, key: tuple[object, ...], plan: T) -> None:
        """Add a plan; where there are very many, the old ones go."""
        if len(self) >= _PLANS_KEPT:
            self.clear()
        self[key] = plan


def configure(
    kernel: HostHalf[P, C], problem: P, place: Executor, config: C | Mapping[str, object] | None
) -> C:
    """The configuration for `problem` on `place`: the one chosen, that one with some fields
    changed, or the caller's.

    Raises TypeError for what is none, ValueError for one that cannot run.
    """
    arch = architecture_of(place)
    if config is None:
        return kernel.choose(problem, arch)
    if isinstance(config, Mapping):
        changes: dict[str, Any] = dict(config)
        chosen: Any = kernel.choose(problem, arch)
        try:
            config = replace(chosen, **changes)
        except TypeError as error:
            raise TypeError(f"config: {error}") from None
    if not isinstance(config, kernel.Config):
        raise TypeError(
            f"config: expected {kernel.NAME}.Config or a mapping of its fields; got "
            f"{type(config).__name__}"
        )
    wanted = kernel.adapt(config, problem)
    reasons = kernel.violations(wanted, arch, problem)
    if reasons:
        raise ValueError(f"config: {wanted} cannot run: {'; '.join(reasons)}")
    return wanted


def load(
    kernel: HostHalf[P, C], chosen: C, place: Executor, *, fixed: bool
) -> tuple[LoadedKernel, C]:
    """The loaded kernel and its configuration; unless the caller has fixed that, with more
    registers for a thread where it would spill: assemblers differ in how far registers go.
    """
    for config in kernel.spill_fallbacks(chosen):
        loaded = place.load(render(kernel.NAME, kernel.values(config)))
        if fixed or not loaded.spills:
            break
    return loaded, config


class Addresses(Protocol):
    """What packs the addresses of a call for the front of a parameter block, such as a Struct."""

    @property
    def size(self) -> int: ...

    def pack(self, *addresses: Any) -> bytes: ...


class Launch:
    """A kernel, its launch geometry, and its parameter block but for the addresses in front."""

    __slots__ = ("block", "constants", "grid", "kernel", "pack_addresses", "shared_bytes")

    constants: bytes
    """What follows the addresses."""
    pack_addresses: Callable[..., bytes]

    def __init__(
        self,
        kernel: LoadedKernel,
        config: KernelConfig,
        grid: tuple[int, int, int],
        addresses: Addresses,
    ) -> None:
        """A launch without its constants.

        Raises ValueError for a grid that no device takes.
        """
        if grid[0] >= 2**31:
            raise ValueError(
                f"the problem is too large: {grid[0]} threadblocks; a launch has fewer than 2^31"
            )
        self.kernel = kernel
        self.grid = grid
        self.block = (config.threads, 1, 1)
        self.shared_bytes = config.shared_bytes
        self.pack_addresses = addresses.pack

    def __call__(
        self,
        addresses: tuple[int, ...],
        constants: bytes,
        stream: int,
        buffers: Sequence[ArrayView] = (),
    ) -> None:
        """Queue the kernel. `constants` are its own, or those for arrays of other strides."""
        self.kernel.launch(
            self.grid,
            self.block,
            self.shared_bytes,
            self.pack_addresses(*addresses) + constants,
            buffers=buffers,
            stream=stream,
        )
