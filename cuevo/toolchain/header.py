"""Parameter structs and kernel prototypes, read from the C header of the kernels.

A kernel takes one parameter, a struct by value. The struct is declared once, in ``ptx/cuevo.h``:
templates take the byte offsets of its fields from here, launches take the format that packs it, C
programs include it.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cuevo.errors import CuevoError
from cuevo.toolchain import cache, sources
from cuevo.toolchain.paths import compiled_directory, ptx_directory, read_text
from cuevo.toolchain.structs import Field, Member, Struct, lay_out

__all__ = ["HEADER_NAME", "Field", "Header", "Struct", "load_header", "parse_header"]

HEADER_NAME = "cuevo.h"


@dataclass(frozen=True)
class Header:
    """Declarations of a header: structs by name, and by a kernel's name its parameter struct."""

    structs: Mapping[str, Struct]
    kernels: Mapping[str, Struct]


def load_header(path: Path | None = None) -> Header:
    """Read the header at `path` (default: the package's own ``ptx/cuevo.h``).

    Raises CuevoError, beginning with file and line, for what cannot be a parameter block.
    """
    path = ptx_directory() / HEADER_NAME if path is None else path
    try:
        status = path.stat()
    except OSError as error:
        raise CuevoError(f"cannot read the header of the kernels: {error}") from error
    return _load(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=16)
def _load(path: Path, _modified: int, _size: int) -> Header:
    own = path.parent == ptx_directory()
    text, file = read_text(path), f"ptx/{path.name}" if own else str(path)
    key = "\n".join(("header", sources.code_digest(), file, text))
    if (entry := cache.default.get(key)) is None:
        declared = (_brought(text) if own else None) or _parse(text, file)
        entry = json.dumps(declared).encode()
        cache.default.put(key, entry)
    structs, kernels = json.loads(entry)
    members = {name: [Member(*member) for member in found] for name, found in structs.items()}
    return _header(members, kernels)


def parse_header(text: str, file: str = f"ptx/{HEADER_NAME}") -> Header:
    """Read a header from its text; `file` is the name that errors give it."""
    return _header(*_parse(text, file))


def _parse(text: str, file: str) -> tuple[dict[str, tuple[Member, ...]], dict[str, str]]:
    # It imports pycparser, which takes longer than a first call whose kernels are in the cache.
    from cuevo.toolchain.header_parser import parse

    return parse(text, file)


def _header(members: Mapping[str, Sequence[Member]], kernels: Mapping[str, str]) -> Header:
    structs = {name: lay_out(name, found) for name, found in members.items()}
    of_kernels = {name: structs[struct] for name, struct in kernels.items()}
    return Header(MappingProxyType(structs), MappingProxyType(of_kernels))


# -- What a wheel brings ---------------------------------------------------------------------------

_COMPILED = f"{HEADER_NAME}.json"


def write_compiled(target: Path) -> None:
    """Write what the package's header declares to a directory that a wheel brings along."""
    text = read_text(ptx_directory() / HEADER_NAME)
    facts = {"text": _digest(text), "declared": _parse(text, f"ptx/{HEADER_NAME}")}
    (target / _COMPILED).write_text(json.dumps(facts), encoding="utf-8")


def _brought(text: str) -> Any:
    """What a wheel has found in a header of that text; None where there is no such thing."""
    try:
        facts = json.loads((compiled_directory() / _COMPILED).read_bytes())
    except OSError:
        return None
    return facts["declared"] if facts["text"] == _digest(text) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
