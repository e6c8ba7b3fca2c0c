"""`cuevo doctor`: what this machine has, what it lacks, what to do about it."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

from cuevo.cli.arguments.usage import (
    EXIT_FAILED,
    EXIT_OK,
    Subparsers,
    add_command,
    add_json_option,
    print_json,
    print_table,
    table,
)
from cuevo.errors import CuevoError, DeviceUnavailable

_DETAILS = """\
states:
  ok       found, and it works
  note     not found, and something that you may want does not work without it
  missing  not found, and cuevo does not work without it: the exit code is 1

examples:
  cuevo doctor
  cuevo doctor --json | jq '.checks[] | select(.state != "ok")'

No GPU is a note: the CPU executor runs the same kernels.
"""

State = Literal["ok", "note", "missing"]

OLDEST_PYTHON = (3, 11)

# Distribution -> what cuevo uses it for. cuda-python itself is a name for these three.
PACKAGES = {
    "cuda-bindings": "the driver's interface, and nvJitLink's",
    "cuda-core": "devices, streams, memory, linking",
    "cuda-pathfinder": "finds the CUDA libraries",
    "numpy": "arrays, the reference, the CPU executor",
    "ml_dtypes": "bfloat16 in NumPy",
    "pycparser": "reads ptx/cuevo.h",
    "jinja2": "renders the kernels",
    "rich": "tables and progress",
}

OPTIONAL = {
    "numba": "the CPU executor, twice as fast",
    "matplotlib": "cuevo layout --output, cuevo tune and roofline --plot",
    "nvidia-nvfatbin": "cuevo export",
    "torch": "cuevo.torch",
    "jax": "cuevo.jax",
    "nvidia-cuda-nvdisasm": "cuevo inspect: the disassembler",
}
"""Distribution -> what it gives, where it is installed."""


@dataclass(frozen=True)
class Check:
    """One thing looked for: what it is, whether it is there, what was found, what to do."""

    subject: str
    state: State
    found: str
    advice: str = ""


def add_commands(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "doctor",
        "Show what was found on this machine and what is missing.",
        _DETAILS,
        run,
    )
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    checks = list(examine())
    missing = [check for check in checks if check.state == "missing"]
    if arguments.json:
        print_json({"healthy": not missing, "checks": [asdict(check) for check in checks]})
        return EXIT_FAILED if missing else EXIT_OK
    shown = table("what", "state", "found", "what to do")
    colours = {"ok": "green", "note": "yellow", "missing": "bold red"}
    for check in checks:
        state = f"[{colours[check.state]}]{check.state}[/]"
        shown.add_row(check.subject, state, check.found, check.advice)
    print_table(shown)
    if missing:
        print(f"Missing: {', '.join(check.subject for check in missing)}.")
        return EXIT_FAILED
    print("Nothing that cuevo needs is missing.")
    return EXIT_OK


def examine() -> Iterator[Check]:
    """All checks, in the order in which they build on each other."""
    yield check_python(sys.version_info[:2])
    for package, purpose in PACKAGES.items():
        yield check_package(package, purpose)
    for package, gives in OPTIONAL.items():
        yield check_package(package, gives, lacking="note")
    for subject, probe in _PROBES.items():
        try:
            yield from probe()
        except (CuevoError, ImportError, OSError) as error:
            yield Check(subject, "missing", str(error), "Install cuevo again: pip install cuevo")


def check_python(version: tuple[int, int]) -> Check:
    found = f"{platform.python_version()} at {sys.executable}"
    if version < OLDEST_PYTHON:
        needed = ".".join(map(str, OLDEST_PYTHON))
        return Check("Python", "missing", found, f"Use Python {needed} or later.")
    return Check("Python", "ok", found)


def check_package(package: str, purpose: str, *, lacking: State = "missing") -> Check:
    try:
        return Check(package, "ok", importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        advice = f"pip install {package}   # {purpose}"
        return Check(package, lacking, "not installed", advice)


def check_kernel_files() -> Iterator[Check]:
    from cuevo.toolchain.paths import ptx_directory
    from cuevo.toolchain.template import kernel_names

    yield Check("kernel files", "ok", f"{len(kernel_names())} kernels in {ptx_directory()}")


def check_assembler() -> Iterator[Check]:
    from cuda.bindings import nvjitlink

    subject = "nvJitLink"
    try:
        major, minor = nvjitlink.version()
    except Exception as error:  # the bindings raise several unrelated types here
        yield Check(
            subject,
            "note",
            _first_line(error),
            "Without it only the driver of a GPU can assemble: pip install nvidia-nvjitlink",
        )
    else:
        yield Check(subject, "ok", f"{major}.{minor}")


def check_devices() -> Iterator[Check]:
    from cuevo.cuda import devices, require_device, why_none

    found = devices()
    if not found:
        yield Check("GPU", "note", "none", why_none() + ". Kernels run on the CPU executor.")
    for info in found:
        subject = f"GPU {info.ordinal}"
        memory = f"{info.memory_bytes / 2**30:.0f} GiB"
        words = (info.name, info.arch, f"{info.sm_count} SMs", memory)
        try:
            require_device(info.ordinal)
        except DeviceUnavailable as error:
            yield Check(subject, "note", ", ".join(words), str(error))
        else:
            yield Check(subject, "ok", ", ".join((*words, f"driver of CUDA {info.driver_version}")))


def check_cache() -> Iterator[Check]:
    from cuevo.toolchain import cache

    directory = cache.default.directory
    advice = "Every process makes its kernels anew; set CUEVO_CACHE_DIR to a directory of yours."
    if directory is None:
        yield Check("cache", "note", "this user has no home directory", advice)
        return
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        yield Check("cache", "note", str(error), advice)
        return
    sizes = [entry.stat().st_size for entry in directory.rglob("*.bin")]
    yield Check("cache", "ok", f"{directory}: {len(sizes)} entries, {sum(sizes) / 1024:.0f} KiB")


def check_c_compiler() -> Iterator[Check]:
    for name in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        path = shutil.which(name)
        if path:
            yield Check("C compiler", "ok", path)
            return
    advice = "Only a test of ptx/cuevo.h wants one; it is skipped."
    yield Check("C compiler", "note", "none of $CC, cc, gcc, clang", advice)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


_PROBES: dict[str, Callable[[], Iterator[Check]]] = {
    "kernel files": check_kernel_files,
    "nvJitLink": check_assembler,
    "GPU": check_devices,
    "cache": check_cache,
    "C compiler": check_c_compiler,
}
