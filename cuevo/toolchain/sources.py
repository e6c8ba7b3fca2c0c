"""What PTX text is made from besides the values of an instance: files, and their digest.

A rendering that another process has left in the cache is believed where the digest is the same: of
the content of every template, of cuevo's own code that renders, and of the packages that it uses.
"""

import hashlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path

__all__ = ["State", "code_digest", "digest", "state"]

State = tuple[tuple[str, int, int], ...]
"""Path, time of the last change in ns, and size of each file, by path."""

_IMPORTED = time.time_ns()
_FOLDERS = ("", "kernels", "layouts", "toolchain", "toolchain/rendering")
"""Of the package: what templates and their values are made with."""
_PACKAGES = ("jinja2", "pycparser")


def state(directories: Iterable[Path]) -> State:
    """The templates and headers in `directories` and below."""
    found: list[tuple[str, int, int]] = []
    waiting = list(dict.fromkeys(map(str, directories)))
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting.append(entry.path)
                elif entry.name.endswith((".ptx", ".h")):
                    status = entry.stat()
                    found.append((entry.path, status.st_mtime_ns, status.st_size))
    return tuple(sorted(found))


@lru_cache(maxsize=16)
def digest(files: State) -> str:
    """SHA-256 of the content of `files`, which may have moved, and of the code that renders."""
    paths = [Path(path) for path, _, _ in files]
    return _digest(paths, code_digest())


@cache
def code_digest() -> str:
    """SHA-256 of the code that renders."""
    paths = list(_code())
    # Code that was edited since it was imported made neither what other processes have left, nor
    # what they may find.
    is_other = any(path.stat().st_mtime_ns > _IMPORTED for path in paths)
    mark = os.urandom(16).hex() if is_other else sys.version
    return _digest(paths, mark)


def _code() -> Iterator[Path]:
    package = Path(__file__).resolve().parents[1]
    folders = [package / name for name in _FOLDERS]
    for name in _PACKAGES:
        # Finding a package does not import it.
        spec = importlib.util.find_spec(name)
        folders += map(Path, (spec and spec.submodule_search_locations) or ())
    for folder in folders:
        yield from sorted(folder.glob("*.py"))


def _digest(paths: Iterable[Path], beginning: str) -> str:
    total = hashlib.sha256(beginning.encode())
    for path in paths:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"\n{path.parent.name}/{path.name} {content}".encode())
    return total.hexdigest()
