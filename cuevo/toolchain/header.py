"""Parameter structs and kernel prototypes, read from the C header of the kernels.

A kernel takes one parameter, a struct by value. The struct is declared once, in ``ptx/cuevo.h``:
templates take the byte offsets of its fields from here, launches take the format that packs it, C
programs include it.
"""

import ctypes
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pycparser import CParser, c_ast
from pycparser.c_parser import ParseError

from cuevo.errors import CuevoError
from cuevo.toolchain.paths import ptx_directory

HEADER_NAME = "cuevo.h"

_SCALARS: Mapping[str, Any] = MappingProxyType(
    {
        "int8_t": ctypes.c_int8,
        "uint8_t": ctypes.c_uint8,
        "int16_t": ctypes.c_int16,
        "uint16_t": ctypes.c_uint16,
        "int32_t": ctypes.c_int32,
        "uint32_t": ctypes.c_uint32,
        "int64_t": ctypes.c_int64,
        "uint64_t": ctypes.c_uint64,
        "float": ctypes.c_float,
        "double": ctypes.c_double,
    }
)

_PACK_CODES: Mapping[Any, str] = MappingProxyType(
    {
        ctypes.c_int8: "b",
        ctypes.c_uint8: "B",
        ctypes.c_int16: "h",
        ctypes.c_uint16: "H",
        ctypes.c_int32: "i",
        ctypes.c_uint32: "I",
        ctypes.c_int64: "q",
        ctypes.c_uint64: "Q",
        ctypes.c_float: "f",
        ctypes.c_double: "d",
        ctypes.c_void_p: "Q",
    }
)

_SUPPORTED = (
    "a pointer, " + ", ".join(_SCALARS) + ", or an array of one of them with a literal length"
)


@dataclass(frozen=True)
class Field:
    """One member of a parameter struct; ``offset`` and ``size`` in bytes."""

    name: str
    offset: int
    size: int
    ctype: Any
    """A ctypes type: ``c_void_p`` for every pointer, ``c_float * 4`` for an array."""


@dataclass(frozen=True)
class Struct:
    """A parameter struct: ``struct.q`` is the byte offset of its field ``q``."""

    name: str
    size: int
    alignment: int
    fields: tuple[Field, ...]
    ctype: type[ctypes.Structure]

    @cached_property
    def _offsets(self) -> dict[str, int]:
        return {field.name: field.offset for field in self.fields}

    def offset(self, name: str) -> int:
        """Byte offset of the field `name`; ValueError when there is none."""
        try:
            return self._offsets[name]
        except KeyError:
            known = ", ".join(self._offsets)
            raise ValueError(
                f"struct {self.name} has no field {name!r}; its fields are {known}"
            ) from None

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self.offset(name)
        except ValueError as error:
            raise AttributeError(str(error)) from None

    @cached_property
    def pack_format(self) -> str:
        """Format for the ``struct`` module, fields in order, padding written out.

        Pointers are integers; an array takes as many values as it has elements.
        ``struct.pack_into(s.pack_format, block, 0, *values)`` fills a block of ``s.size`` bytes.
        """
        text, end = "<", 0
        for field in self.fields:
            element, count = field.ctype, 1
            if issubclass(element, ctypes.Array):
                element, count = element._type_, element._length_
            text += _padding(field.offset - end)
            text += (str(count) if count > 1 else "") + _PACK_CODES[element]
            end = field.offset + field.size
        text += _padding(self.size - end)
        assert struct.calcsize(text) == self.size
        return text

    @cached_property
    def address_fields(self) -> tuple[str, ...]:
        """Leading fields that follow from the addresses of a call's arrays: pointers, and arrays of
        bytes, which hold tensor maps.
        """
        leading = takewhile(lambda field: _holds_address(field.ctype), self.fields)
        return tuple(field.name for field in leading)

    @cached_property
    def addresses(self) -> struct.Struct:
        """Packer of the `address_fields`: a pointer is an integer, a tensor map is bytes. A packed
        struct goes on with what follows its first ``s.addresses.size`` bytes.
        """
        text, end = "<", 0
        for field in self.fields[: len(self.address_fields)]:
            code = "Q" if field.ctype is ctypes.c_void_p else f"{field.size}s"
            text += _padding(field.offset - end) + code
            end = field.offset + field.size
        return struct.Struct(text)

    def pack(self, values: Mapping[str, int | float | Sequence[int | float]]) -> bytes:
        """The struct's bytes with each field from `values`, that of an array a sequence; ValueError
        where names differ.
        """
        if values.keys() != self._offsets.keys():
            missing = ", ".join(self._offsets.keys() - values.keys()) or "none"
            foreign = ", ".join(values.keys() - self._offsets.keys()) or "none"
            raise ValueError(f"struct {self.name}: missing fields: {missing}; unknown: {foreign}")
        flat: list[int | float] = []
        for field in self.fields:
            value = values[field.name]
            if issubclass(field.ctype, ctypes.Array):
                flat.extend(value)  # type: ignore[arg-type]
            else:
                flat.append(value)  # type: ignore[arg-type]
        return struct.pack(self.pack_format, *flat)


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
    return parse_header(path.read_text(encoding="utf-8"), f"ptx/{path.name}")


def parse_header(text: str, file: str = f"ptx/{HEADER_NAME}") -> Header:
    """Read a header from its text; `file` is the name that errors give it."""
    preamble = "".join(
        f"typedef int {name};\n" for name in _SCALARS if name not in ("float", "double")
    )
    source = f'{preamble}#line 1 "{file}"\n{_without_comments_and_directives(text)}'
    try:
        tree = CParser().parse(source, file)
    except ParseError as error:
        raise CuevoError(f"{error}") from error

    structs: dict[str, Struct] = {}
    typedefs: dict[str, str] = {}
    kernels: dict[str, Struct] = {}
    for node in tree.ext:
        if isinstance(node, c_ast.Typedef):
            if node.name in _SCALARS:
                continue
            inner = getattr(node.type, "type", None)
            if not isinstance(inner, c_ast.Struct):
                raise _error(node, f"typedef {node.name} does not name a struct")
            tag = inner.name or node.name
            if inner.decls is not None:
                structs[tag] = _read_struct(tag, inner)
            typedefs[node.name] = tag
        elif isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.Struct):
            if node.type.decls is not None:
                structs[node.type.name] = _read_struct(node.type.name, node.type)
        elif isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl):
            kernels[node.name] = _read_prototype(node, structs, typedefs)
        elif not isinstance(node, c_ast.StaticAssert):
            raise _error(node, "only structs, their typedefs and kernel prototypes are understood")
    return Header(MappingProxyType(structs), MappingProxyType(kernels))


def _read_struct(name: str, node: Any) -> Struct:
    members: list[tuple[str, Any]] = []
    alignments: dict[str, int] = {}
    for declaration in node.decls:
        if not isinstance(declaration, c_ast.Decl) or declaration.name is None:
            raise _error(declaration, f"struct {name}: every member must have a name")
        if declaration.bitsize is not None:
            raise _error(declaration, f"{name}.{declaration.name}: bit-fields are not supported")
        if declaration.name in _RESERVED or declaration.name.startswith("_"):
            raise _error(
                declaration,
                f"{name}.{declaration.name}: the name is taken by a property of the struct itself; "
                "choose another one",
            )
        members.append((declaration.name, _read_type(declaration.type, name, declaration)))
        alignments[declaration.name] = _read_alignment(declaration, name)
    if not members:
        raise _error(node, f"struct {name} has no members")
    padded, alignment = _with_padding(members, alignments)
    ctype = type(name, (ctypes.Structure,), {"_fields_": padded})
    fields = tuple(
        Field(member, getattr(ctype, member).offset, ctypes.sizeof(kind), kind)
        for member, kind in members
    )
    return Struct(name, ctypes.sizeof(ctype), alignment, fields, ctype)


def _read_alignment(declaration: Any, struct_name: str) -> int:
    """Alignment that ``_Alignas`` asks for; 1 where there is none."""
    wanted = 1
    for specifier in declaration.align or ():
        value = getattr(specifier, "alignment", None)
        number = int(value.value, 0) if isinstance(value, c_ast.Constant) else 0
        if number < 1 or number & (number - 1):
            raise _error(
                declaration,
                f"{struct_name}.{declaration.name}: _Alignas takes a literal power of two here",
            )
        wanted = max(wanted, number)
    return wanted


def _with_padding(
    members: list[tuple[str, Any]], alignments: Mapping[str, int]
) -> tuple[list[tuple[str, Any]], int]:
    """The members with bytes between them that ``_Alignas`` asks for, which ctypes does not know;
    and the alignment of the struct.
    """
    padded: list[tuple[str, Any]] = []
    end, largest = 0, 1
    for name, kind in [*members, ("", None)]:
        alignment = largest if kind is None else max(ctypes.alignment(kind), alignments[name])
        gap = -end % alignment
        if gap and (kind is None or alignments[name] > ctypes.alignment(kind)):
            padded.append((f"_padding_{end}", ctypes.c_uint8 * gap))
        if kind is not None:
            padded.append((name, kind))
            end += gap + ctypes.sizeof(kind)
            largest = max(largest, alignment)
    return padded, largest


def _read_type(node: Any, struct_name: str, declaration: Any) -> Any:
    if isinstance(node, c_ast.PtrDecl):
        return ctypes.c_void_p
    if isinstance(node, c_ast.ArrayDecl):
        element = _read_type(node.type, struct_name, declaration)
        length = node.dim
        if isinstance(length, c_ast.Constant) and not issubclass(element, ctypes.Array):
            count = int(re.sub(r"[uUlL]+$", "", length.value), 0)
            if count > 0:
                return element * count
    elif isinstance(node, c_ast.TypeDecl) and isinstance(node.type, c_ast.IdentifierType):
        scalar = _SCALARS.get(" ".join(node.type.names))
        if scalar is not None:
            return scalar
    raise _error(declaration, f"{struct_name}.{declaration.name}: the type must be {_SUPPORTED}")


def _read_prototype(node: Any, structs: dict[str, Struct], typedefs: dict[str, str]) -> Struct:
    form = f"write `void {node.name}(const struct S params);` with a struct S declared above it"
    result = getattr(getattr(node.type.type, "type", None), "names", None)
    parameters = node.type.args.params if node.type.args is not None else []
    if result != ["void"] or len(parameters) != 1:
        raise _error(
            node, f"kernel {node.name} must return void and take one struct by value: {form}"
        )
    kind = parameters[0].type
    kind = kind.type if isinstance(kind, c_ast.TypeDecl) else None
    if isinstance(kind, c_ast.Struct):
        tag = kind.name
    elif isinstance(kind, c_ast.IdentifierType):
        tag = typedefs.get(" ".join(kind.names))
    else:
        tag = None
    if tag not in structs:
        raise _error(node, f"the parameter of kernel {node.name} is no known struct: {form}")
    return structs[tag]


def _without_comments_and_directives(text: str) -> str:
    """Blank out what the parser does not read, keeping every line where it is."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match.group().count("\n") or " "

    text = re.sub(r"/\*.*?\*/|//[^\n]*", blank, text, flags=re.S)
    text = re.sub(
        r"^[ \t]*#[ \t]*ifdef[ \t]+__cplusplus\b.*?^[ \t]*#[ \t]*endif[^\n]*",
        blank,
        text,
        flags=re.S | re.M,
    )
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)


def _holds_address(ctype: Any) -> bool:
    if issubclass(ctype, ctypes.Array):
        return ctype._type_ is ctypes.c_uint8
    return ctype is ctypes.c_void_p


def _padding(count: int) -> str:
    return f"{count}x" if count else ""


def _error(node: Any, message: str) -> CuevoError:
    return CuevoError(f"{node.coord.file}:{node.coord.line}: {message}")


# A field of one of these names would be hidden by the attribute of `Struct`.
_RESERVED = frozenset(
    (
        *("name", "size", "alignment", "fields", "ctype", "offset"),
        *("pack", "pack_format", "address_fields", "addresses"),
    )
)
