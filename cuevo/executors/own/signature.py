"""Parameters of the entry points of PTX text, as their ``.entry`` declares them.

Only declarations are read: a text may hold instructions that nobody here knows.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from cuevo.architectures import Block
from cuevo.errors import CuevoError
from cuevo.toolchain.structs import Member, Struct, lay_out

__all__ = ["Parameter", "declared_blocks", "entry_points", "parameter_block", "target_of"]

_KINDS = {
    **{f"{kind}{bits}": f"uint{bits}_t" for kind in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}_t" for bits in (8, 16, 32, 64)},
    "f16": "uint16_t",
    "bf16": "uint16_t",
    "f32": "float",
    "f64": "double",
}
"""Name of the C type, by the type of a parameter."""

_BLANKED = re.compile(r"/\*.*?\*/|//[^\n]*|\"[^\"\n]*\"", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?")
_PARAMETER = re.compile(
    r"""\s* \.param (?:\s+\.align\s+(?P<alignment>\d+))?
        \s+\.(?P<type>\w+)
        (?P<pointer> \s+\.ptr (?:\s+\.(?:global|const|shared|local))? (?:\s+\.align\s+\d+)? )?
        \s+(?P<name>[\w$%]+) \s* (?:\[\s*(?P<count>\d+)\s*\])? \s*""",
    re.VERBOSE,
)
_DECLARED = re.compile(r"\.(req|max)ntid\s+(\d+(?:\s*,\s*\d+)*)")


@dataclass(frozen=True)
class Parameter:
    """A parameter of an entry point."""

    name: str
    type: str
    """Type of a scalar or of an element, without the dot: "u64", "f32", "b8"."""
    count: int
    """Number of elements of an array; 0 for a scalar."""
    alignment: int
    """What ``.align`` asks for; 1 where there is none."""

    @property
    def bits(self) -> int:
        """Width of the type."""
        return int(re.sub(r"\D", "", self.type))

    def __str__(self) -> str:
        return f".{self.type} {self.name}" + (f"[{self.count}]" if self.count else "")


@lru_cache(maxsize=64)
def entry_points(text: str, file: str = "text") -> Mapping[str, tuple[Parameter, ...]]:
    """Parameters of each ``.entry`` of a text, in order; `file` is the name that errors give it.

    Raises CuevoError, with file and line, for a parameter that no launch can be given.
    """
    bare = _BLANKED.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    found = {
        entry[1]: tuple(_parameters(bare, file, entry.start(2), entry[2] or ""))
        for entry in _ENTRY.finditer(bare)
    }
    return MappingProxyType(found)


def _parameters(text: str, file: str, begin: int, declared: str) -> Iterator[Parameter]:
    for part in declared.split(",") if declared.strip() else ():
        match = _PARAMETER.fullmatch(part)
        if match is None or match["type"] not in _KINDS:
            line = text.count("\n", 0, begin + len(part) - len(part.lstrip())) + 1
            raise CuevoError(
                f"{file}:{line}: {' '.join(part.split())!r} is no parameter that a launch can be "
                "given"
            )
        counts = int(match["count"] or 0), int(match["alignment"] or 1)
        yield Parameter(match["name"], match["type"], *counts)
        begin += len(part) + 1


def parameter_block(entry: str, parameters: tuple[Parameter, ...]) -> Struct:
    """The parameters as the fields of a block, as a launch packs them: it ends with the last."""
    members = [Member(x.name, _KINDS[x.type], x.count, x.alignment) for x in parameters]
    block = lay_out(entry, members)
    return replace(block, size=max((x.offset + x.size for x in block.fields), default=0))


def declared_blocks(text: str, entry: str) -> tuple[Block | None, Block | None]:
    """Threads of a block, along its axes, that ``.reqntid`` and ``.maxntid`` of an entry point
    state; None where one does not.
    """
    head = re.search(rf"\.entry\s+{re.escape(entry)}\b[^{{]*", text)
    stated = dict(_DECLARED.findall(head[0])) if head else {}

    def block(kind: str) -> Block | None:
        if kind not in stated:
            return None
        x, y, z = (*map(int, stated[kind].split(",")), 1, 1)[:3]
        return x, y, z

    return block("req"), block("max")


def target_of(text: str) -> str:
    """The architecture of the ``.target`` line: "sm_80"; "" where there is none."""
    match = re.search(r"^\s*\.target\s+(\w+)", text, re.MULTILINE)
    return match[1] if match else ""
