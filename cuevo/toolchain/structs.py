"""Parameter structs of kernels: where each field lies, and how a block of them is packed."""

import ctypes
import reprlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from operator import index
from types import MappingProxyType
from typing import Any, NamedTuple

SCALARS: Mapping[str, Any] = MappingProxyType(
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

POINTER = "void *"


class Member(NamedTuple):
    """A member of a struct as it is declared."""

    name: str
    kind: str
    """A name of `SCALARS`, or `POINTER` for a pointer to anything."""
    length: int
    """Length of an array; 0 for what is none."""
    alignment: int
    """What ``_Alignas`` asks for; 1 where there is none."""
    is_written: bool = False
    """Whether it points to what is not const."""


@dataclass(frozen=True)
class Field:
    """One member of a parameter struct; ``offset`` and ``size`` in bytes."""

    name: str
    offset: int
    size: int
    ctype: Any
    """A ctypes type: ``c_void_p`` for every pointer, ``c_float * 4`` for an array."""
    is_written: bool = False
    """Whether the kernel may write to what it points to."""


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
        text, end = "@", 0
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
        text, end = "@", 0
        for field in self.fields[: len(self.address_fields)]:
            code = "P" if field.ctype is ctypes.c_void_p else f"{field.size}s"
            text += _padding(field.offset - end) + code
            end = field.offset + field.size
        return struct.Struct(text)

    def pack(self, values: Mapping[str, int | float | Sequence[int | float]]) -> bytes:
        """The struct's bytes with each field from `values`, that of an array a sequence.

        Raises ValueError where names differ, and with the field's name for integers that are out of
        range and for too few or too many numbers; TypeError for what is no such number.
        """
        if values.keys() != self._offsets.keys():
            missing = ", ".join(self._offsets.keys() - values.keys()) or "none"
            foreign = ", ".join(values.keys() - self._offsets.keys()) or "none"
            raise ValueError(f"struct {self.name}: missing fields: {missing}; unknown: {foreign}")
        flat: list[Any] = []
        for field in self.fields:
            flat += self._numbers(field, values[field.name])
        try:
            return struct.pack(self.pack_format, *flat)
        except (struct.error, OverflowError):
            for field in self.fields:
                for number in self._numbers(field, values[field.name]):
                    self._check(field, number)
            raise

    def _numbers(self, field: Field, value: Any) -> Sequence[Any]:
        """The numbers of a field, as many as it has."""
        if not issubclass(field.ctype, ctypes.Array):
            return (value,)
        count, name = field.ctype._length_, _c_name(_element(field))
        expected = f"struct {self.name}: {field.name}: expected {count} of {name}"
        if not isinstance(value, Iterable) or isinstance(value, str):
            raise TypeError(f"{expected}; got {reprlib.repr(value)}")
        numbers = tuple(value)
        if len(numbers) != count:
            raise ValueError(f"{expected}; got {len(numbers)}")
        return numbers

    def _check(self, field: Field, number: Any) -> None:
        """TypeError or ValueError if a number is none that the field can have."""
        code = _PACK_CODES[_element(field)]
        wrong = f"struct {self.name}: {field.name}: expected {_c_name(_element(field))}; "
        wrong += f"got {reprlib.repr(number)}"
        try:
            plain = float(number) if code in "fd" and not isinstance(number, str) else index(number)
        except TypeError:
            raise TypeError(wrong) from None
        try:
            struct.pack(f"@{code}", plain)
        except (struct.error, OverflowError):
            raise ValueError(f"{wrong}, which is out of range") from None


def _element(field: Field) -> Any:
    """Type of a field, or of the elements of an array."""
    return field.ctype._type_ if issubclass(field.ctype, ctypes.Array) else field.ctype


def _c_name(ctype: Any) -> str:
    return next((name for name, each in SCALARS.items() if each is ctype), "an address")


def lay_out(name: str, members: Sequence[Member]) -> Struct:
    """The struct of that name with those members, one at least, as a C compiler lays it out."""
    kinds = [(member.name, _ctype(member)) for member in members]
    padded, alignment = _with_padding(kinds, {x.name: x.alignment for x in members})
    ctype = type(name, (ctypes.Structure,), {"_fields_": padded})
    fields = tuple(
        Field(x.name, getattr(ctype, x.name).offset, ctypes.sizeof(kind), kind, bool(x.is_written))
        for x, (_, kind) in zip(members, kinds, strict=True)
    )
    return Struct(name, ctypes.sizeof(ctype), alignment, fields, ctype)


def _ctype(member: Member) -> Any:
    element = ctypes.c_void_p if member.kind == POINTER else SCALARS[member.kind]
    return element * member.length if member.length else element


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


def _holds_address(ctype: Any) -> bool:
    if issubclass(ctype, ctypes.Array):
        return ctype._type_ is ctypes.c_uint8
    return ctype is ctypes.c_void_p


def _padding(count: int) -> str:
    return f"{count}x" if count else ""


RESERVED = frozenset(
    (
        *("name", "size", "alignment", "fields", "ctype", "offset"),
        *("pack", "pack_format", "address_fields", "addresses"),
    )
)
"""Names that no field may have: an attribute of `Struct` would hide it."""
