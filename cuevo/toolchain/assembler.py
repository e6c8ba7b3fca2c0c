"""PTX to machine code, with neither GPU nor driver: nvJitLink, by way of `cuda.core.Linker`.

Where nvJitLink cannot be loaded the Linker turns to the driver's own compiler, which needs a
driver. cuda.core and the bindings are imported where they are used: they take a tenth of a second.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cuevo.architectures import KNOWN
from cuevo.errors import AssemblerError, DeviceUnavailable
from cuevo.toolchain import cache as _cache
from cuevo.toolchain.cache import Cache
from cuevo.toolchain.image import Image
from cuevo.toolchain.lineinfo import SourceLine
from cuevo.toolchain.template import RenderedKernel

LOWEST_ARCH = 75
"""Lowest of the architectures that nvJitLink 13 assembles for, as `Architecture.number` counts
them.
"""
_PTXAS_OPTIONS = ("-v", "--warn-on-spills")
_REPORT = "report 2"
"""Part of the key of a cached cubin: another one where `_read_resources` says something else of the
same code.
"""


@dataclass(frozen=True)
class Resources:
    """Registers and memory that one kernel needs; sizes in bytes."""

    registers: int
    """Registers a thread."""
    spill_stores: int
    spill_loads: int
    """Of the kernel and of all functions that it calls; all of the stack, for each of the two,
    where an assembler does not tell.
    """
    stack: int
    """Local memory a thread, at the deepest call; functions that call themselves count once."""
    static_shared: int
    """Shared memory a block, without what a launch adds."""
    barriers: int
    constant: int
    """Constant memory, all banks."""
    code_size: int
    """Machine code of the kernel and of all functions that it calls."""


@dataclass(frozen=True)
class Cubin:
    """An assembled kernel."""

    name: str
    """The entry point."""
    arch: str
    code: bytes
    """The ELF image that a driver loads."""
    resources: Resources
    assembler: str
    """``nvJitLink 13.0``, or the driver's version where that one assembled."""
    log: str


def assemble(
    kernel: RenderedKernel,
    arch: str,
    *,
    line_info: bool = True,
    cache: Cache | None = _cache.default,
) -> Cubin:
    """Assemble `kernel` for `arch` (``"sm_80"``, ``"sm_90a"``), or take it from `cache`, if any.

    line_info : whether the machine code has the lines that it comes from, which profilers show and
        which are most of its size.

    Raises AssemblerError for what the assembler refuses: a line ``ptx/<file>:<line>: <message>``
    for each of its complaints, and the parameters of the instance.
    """
    if not re.fullmatch(r"sm_[0-9]{2,3}[af]?", arch):
        raise ValueError(f"arch must be like 'sm_80' or 'sm_90a'; got {arch!r}")
    assembler = _assembler()
    key = _key(kernel, arch, assembler, line_info)
    begun = _begun.pop(key, None)
    if cache is not None and (entry := cache.get(key)) is not None:
        return _from_bytes(entry)
    code, log = begun.result() if begun else _link(kernel, arch, assembler, line_info)
    resources = _read_resources(kernel, log, code)
    cubin = Cubin(kernel.name, arch, code, resources, assembler.name, log)
    if cache is not None:
        cache.put(key, _to_bytes(cubin))
    return cubin


def begin_assembly(kernel: RenderedKernel, arch: str) -> None:
    """Assemble `kernel` for `arch`, if the cache does not have it, while the caller does something
    else, such as rendering the next one; who calls `assemble` then waits for it.
    """
    assembler = _assembler()
    key = _key(kernel, arch, assembler, line_info=True)
    # The driver's assembler needs the context of the thread that calls it.
    if assembler.is_driver or key in _begun or _cache.default.get(key) is not None:
        return
    _begun[key] = _workers().submit(_link, kernel, arch, assembler, True)


def target_for(kernel: RenderedKernel, arch: str) -> str:
    """Target to assemble `kernel` for on a device of `arch`: where the kernel's target is that very
    architecture with what only it has, such as sm_90a, the target.
    """
    named = re.search(r"^\s*\.target\s+(sm_[0-9]+[af])\b", kernel.text, re.M)
    return named[1] if named and named[1][:-1] == arch else arch


# -- The assembler ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Assembler:
    name: str
    identity: str
    """The name, and what tells patch releases apart, which the version number does not."""
    is_driver: bool


@lru_cache(maxsize=1)
def _assembler() -> _Assembler:
    from cuda.core import Linker

    if Linker.which_backend() == "driver":
        return _driver_as_assembler()
    from cuda.bindings import nvjitlink
    from cuda.pathfinder import load_nvidia_dynamic_lib

    name = "nvJitLink " + ".".join(map(str, nvjitlink.version()))
    library = load_nvidia_dynamic_lib("nvJitLink").abs_path
    size = Path(library).stat().st_size if library else 0
    return _Assembler(name, f"{name} ({size} bytes)", is_driver=False)


def _driver_as_assembler() -> _Assembler:
    from cuda.bindings import driver

    try:
        _, version = driver.cuDriverGetVersion()
    except Exception as error:
        raise DeviceUnavailable(
            "kernels cannot be assembled: looked for nvJitLink and for the CUDA driver, found "
            f"neither ({error}); install the package nvidia-nvjitlink, or a driver"
        ) from error
    name = f"driver {version // 1000}.{version % 1000 // 10}"
    return _Assembler(name, name, is_driver=True)


def _key(kernel: RenderedKernel, arch: str, assembler: _Assembler, line_info: bool) -> str:
    """What an entry of the cache is found by."""
    options = (*_PTXAS_OPTIONS, *(() if line_info else ("no line info",)))
    return "\n".join((kernel.name, kernel.digest, arch, assembler.identity, _REPORT, *options))


_begun: dict[str, Future[tuple[bytes, str]]] = {}
"""What `begin_assembly` has begun and nobody has waited for yet, by the keys of the cache."""


@lru_cache(maxsize=1)
def _workers() -> ThreadPoolExecutor:
    """They wait for nvJitLink, which lets other threads run."""
    return ThreadPoolExecutor(os.cpu_count(), "cuevo assembles")


def _forget_workers() -> None:
    """A forked process has none of the threads of the one that it comes from."""
    _begun.clear()
    _workers.cache_clear()


os.register_at_fork(after_in_child=_forget_workers)


def _link(
    kernel: RenderedKernel, arch: str, assembler: _Assembler, line_info: bool
) -> tuple[bytes, str]:
    from cuda.bindings import driver
    from cuda.core import Device, Linker, LinkerOptions, ObjectCode

    options = LinkerOptions(name=kernel.name, arch=arch, lineinfo=line_info)
    if assembler.is_driver:
        # It takes no options for ptxas, but reports the same. Unlike nvJitLink it needs a context.
        options.verbose = True
        status, current = driver.cuCtxGetCurrent()
        if status or not int(current):  # no context, or a driver that nobody has started
            Device().set_current()
    else:
        options.ptxas_options = list(_PTXAS_OPTIONS)
        # What its own cache has, it does not report on.
        options.no_cache = True
    text = kernel.located.text if line_info else kernel.text
    module = ObjectCode.from_ptx(text.encode(), name=f"{kernel.name}.ptx")
    linker = None
    try:
        linker = Linker(module, options=options)
        code = linker.link("cubin").code
        log = linker.get_info_log()
    except Exception as error:
        # The class depends on which library was at work; the log is in the text of all of them.
        log = str(error).replace("\0", "")
        origin = kernel.located.origin if line_info else kernel.origin
        raise AssemblerError(_explain(kernel, origin, arch, assembler, log)) from error
    finally:
        if linker is not None:
            linker.close()
    return bytes(code), log.replace("\0", "").strip()


_NO_SUCH_ARCH = re.compile(r"(?:UNSUPPORTED|UNRECOGNIZED)_ARCH")
_COMPLAINT = re.compile(r"(?:\bline (\d+); *)?\b(?:error|fatal)\s*: *(.*)$", re.M)


def _explain(
    kernel: RenderedKernel,
    origin: Callable[[int], SourceLine | None],
    arch: str,
    assembler: _Assembler,
    log: str,
) -> str:
    """The complaints in the assembler's log, each at the line of the template that it is about."""
    explained: dict[str, None] = {}
    for number, message in _COMPLAINT.findall(log):
        if "assembly aborted" in message:
            continue
        if not number:
            explained[f"{kernel.file}: {message}"] = None
            continue
        line = origin(int(number))
        place = str(line) if line else f"line {number} of the PTX text of {kernel.name}"
        # The loop that made hundreds of equal lines gets one complaint.
        explained[f"{place}: {message}"] = None
    if _NO_SUCH_ARCH.search(log):
        known = ", ".join(f"sm_{number}" for number in KNOWN if number >= LOWEST_ARCH)
        message = f"there is no assembler for {arch}; there is for {known}"
        explained[f"{kernel.file}: {message}"] = None
    lines = list(explained) or [log.strip() or "the assembler failed without a message"]
    return "\n".join([*lines, f"in {kernel.describe()} for {arch}, by {assembler.name}"])


# -- The report ------------------------------------------------------------------------------------


def _read_resources(kernel: RenderedKernel, log: str, code: bytes) -> Resources:
    image, name = Image(code), kernel.name
    registers = image.registers(name)
    if registers is None:
        raise AssemblerError(
            f"{kernel.file}: the assembler's result has no entry point {name}; its log is\n"
            f"{log.strip()}\nin {kernel.describe()}"
        )
    stack = image.stack(name)
    stores, loads = _spilled(image.functions(name), log) or (stack, stack)
    return Resources(
        registers=registers,
        spill_stores=stores,
        spill_loads=loads,
        stack=stack,
        static_shared=image.static_shared(name),
        barriers=image.barriers(name),
        constant=image.constant(name),
        code_size=image.code_size(name),
    )


_SPILLS = re.compile(
    r"Function properties for (\S+)\n.* (\d+) bytes spill stores, (\d+) bytes spill loads"
)


def _spilled(functions: Sequence[str], log: str) -> tuple[int, int] | None:
    """Bytes of spill stores and loads of a kernel and of what it calls; None where the log does not
    tell. They are in the log alone, and not in every driver's: kernels that declare no local memory
    have a stack for nothing else.
    """
    told = {name: (int(stores), int(loads)) for name, stores, loads in _SPILLS.findall(log)}
    if functions[0] not in told:
        return None
    stores, loads = zip(*(told.get(each, (0, 0)) for each in functions), strict=True)
    return sum(stores), sum(loads)


# -- Cache entries ---------------------------------------------------------------------------------


def _to_bytes(cubin: Cubin) -> bytes:
    facts = asdict(cubin)
    code = facts.pop("code")
    return json.dumps(facts).encode() + b"\n" + bytes(code)


def _from_bytes(entry: bytes) -> Cubin:
    head, code = entry.split(b"\n", 1)
    facts: dict[str, Any] = json.loads(head)
    return Cubin(code=code, **(facts | {"resources": Resources(**facts["resources"])}))
