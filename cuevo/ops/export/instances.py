"""The kernels of an exported folder: rendered, assembled, and put into fat binaries."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from types import ModuleType
from typing import Any

from cuevo.architectures import Architecture
from cuevo.errors import CuevoError
from cuevo.kernels import registry
from cuevo.toolchain import cache as _cache
from cuevo.toolchain.assembler import Cubin, assemble, target_for
from cuevo.toolchain.template import RenderedKernel, render

__all__ = [
    "KERNEL_FILE",
    "Instance",
    "Instances",
    "digest",
    "fat_binaries",
    "find_spilling",
    "processes",
    "require_extra",
]


Map = Callable[[Callable[["Instance"], Any], Sequence["Instance"]], list[Any]]
_OPTIONS = ("-64", "-compress=true", "-compress-mode=size")
KERNEL_FILE = re.compile(r"kernels/\w+-[0-9a-f]{12}\.fatbin")
"""What files of instances are called, below the folder."""
Spilling = tuple[str, Any, str]
"""Name of a kernel, configuration and architecture."""


@dataclass(frozen=True)
class Instance:
    """A kernel of a folder."""

    name: str
    config: Any
    architectures: tuple[str, ...]

    @property
    def file(self) -> str:
        """Its fat binary, below the folder."""
        own = hashlib.sha256(repr(self.config).encode()).hexdigest()[:12]
        return f"kernels/{self.name}-{own}.fatbin"

    def pairs(self) -> set[Spilling]:
        """Itself on each of its architectures."""
        return {(self.name, self.config, name) for name in self.architectures}

    def render(self) -> RenderedKernel:
        """Its text."""
        return render(self.name, registry()[self.name].values(self.config))


class Instances:
    """The instances of a folder, each under a number."""

    def __init__(self, spilling: Set[Spilling] = frozenset()) -> None:
        """None yet; for `spilling` registers do not suffice."""
        self._spilling = spilling
        self._found: dict[tuple[str, Any], dict[str, None]] = {}
        self._numbers: dict[tuple[str, Any], int] = {}

    def add(self, module: ModuleType, config: Any, arch: Architecture) -> int:
        """The number of the kernel of that host half with `config`, on `arch` too."""
        key = (module.NAME, config)
        self._found.setdefault(key, {})[arch.name] = None
        return self._numbers.setdefault(key, len(self._numbers))

    def without_spills(self, module: ModuleType, config: Any, arch: Architecture) -> Any:
        """The first of the fallbacks of `config` for which registers suffice, or the last."""
        for each in module.spill_fallbacks(config):
            if (module.NAME, each, arch.name) not in self._spilling:
                break
        return each

    def __iter__(self) -> Iterator[Instance]:
        for (name, config), architectures in self._found.items():
            yield Instance(name, config, tuple(architectures))


def find_spilling(instances: Sequence[Instance], each: Map) -> set[Spilling]:
    """Those that spill, found by assembling all."""
    return {found for some in each(_spilling, instances) for found in some}


def fat_binaries(instances: Sequence[Instance], each: Map) -> list[bytes]:
    """Machine code of every architecture, and PTX for those that follow, compressed: the fat binary
    of each instance.

    Raises AssemblerError; see also `require_extra`.
    """
    return each(_fat_binary, instances)


def require_extra() -> None:
    """CuevoError where the library that makes fat binaries is missing."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        load_nvidia_dynamic_lib("nvfatbin")
    except RuntimeError as error:  # as its own errors are
        raise CuevoError(
            "fat binaries are made by nvFatbin, which is not here: pip install 'cuevo[export]'"
        ) from error


@contextmanager
def processes(count: int) -> Iterator[Map]:
    """What calls a function for each of some instances, in so many processes."""
    if count == 1:
        yield lambda function, instances: [*map(function, instances)]
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        yield lambda function, instances: [*pool.map(function, instances, chunksize=4)]


def _assembled(kernel: RenderedKernel, name: str) -> Cubin:
    # Only kernels with a target of one architecture alone are assembled for such a one.
    return assemble(kernel, target_for(kernel, name.rstrip("a")), line_info=False)


def _spilling(instance: Instance) -> list[Spilling]:
    kernel = instance.render()
    return [
        (instance.name, instance.config, name)
        for name in instance.architectures
        if _assembled(kernel, name).resources.spill_stores
    ]


def _fat_binary(instance: Instance) -> bytes:
    kernel = instance.render()
    cubins = [(name, _assembled(kernel, name)) for name in instance.architectures]
    made_by = (f"{name} {cubin.assembler}" for name, cubin in cubins)
    key = "\n".join(("fat binary", kernel.digest, *made_by, *_OPTIONS))
    if (known := _cache.default.get(key)) is not None:
        return known
    from cuda.bindings import nvfatbin

    handle = nvfatbin.create(_OPTIONS, len(_OPTIONS))
    try:
        for _, cubin in cubins:
            number = cubin.arch.removeprefix("sm_")
            nvfatbin.add_cubin(handle, cubin.code, len(cubin.code), number, kernel.name)
        portable = [cubin.arch for _, cubin in cubins if not cubin.arch.endswith("a")]
        if portable:
            text = kernel.text.encode() + b"\0"
            number = portable[0].removeprefix("sm_")
            nvfatbin.add_ptx(handle, text, len(text), number, kernel.name, "")
        found = bytearray(nvfatbin.size(handle))
        nvfatbin.get(handle, found)
    finally:
        nvfatbin.destroy(handle)
    _cache.default.put(key, bytes(found))
    return bytes(found)


def digest(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
