"""Declarations of variables, and what they are initialised with."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from cuevo.sim.faults import PtxError
from cuevo.sim.text.cursor import float_literal, negated
from cuevo.sim.text.lex import Token
from cuevo.sim.text.operands import OperandReader
from cuevo.sim.text.syntax import Address, Variable
from cuevo.sim.text.types import REGISTER_TYPES, TYPES, ScalarType

_ALL_BITS = 2**64 - 1
_BYTES_OF_ADDRESS = tuple(0xFF << 8 * i for i in range(8))
_MOST_ALIGNED = 2**31
_MOST_BYTES = {
    ".param": 32_764, ".shared": 2**28, ".const": 65_536, ".local": 512 * 1024, ".global": 2**30,
}  # fmt: skip
"""What a device has of each space, at most, but that .global memory of a text is kept small here:
the host has it all.
"""


class AddressError(PtxError):
    """The variable `name` is initialised with an address that there is none of."""

    def __init__(self, name: Token, message: str) -> None:
        super().__init__(name.line, f"{name.text!r} {message}")
        self.name = name.text


class Kind(NamedTuple):
    """What a declaration says of all its variables."""

    element: ScalarType | None
    elements: int
    alignment: int | None


class DeclarationReader(OperandReader):
    """Reads declarations, a directive such as ``.shared`` behind it."""

    def variables(self, space: str, *, external: bool = False) -> Iterator[Variable]:
        """After ``.shared``: ``.align 8 .b8 name[24], other;``; what is `external` and there may
        have an extent that is not known.
        """
        kind = self._kind()
        yield self._variable(space, kind, external)
        while self.accept(","):
            yield self._variable(space, kind, external)
        self.expect(";")

    def parameter(self, space: str) -> Variable:
        """After ``.param``, one of a list: ``.align 8 .b8 name[24]``."""
        return self._variable(space, self._kind(), external=False)

    def _kind(self) -> Kind:
        alignment, element, of_pointee, elements = None, None, False, 1
        while self.token.kind == "directive":
            token = self.take()
            if token.text == ".align":
                stated = self._alignment()
                alignment = alignment if of_pointee else stated
            elif token.text == ".ptr":
                of_pointee = True
            elif of_pointee and token.text in (".global", ".const", ".shared", ".local"):
                pass
            elif token.text in (".v2", ".v4"):
                elements = int(token.text[2:])
            elif token.text[1:] in TYPES and token.text != ".pred":
                element = TYPES[token.text[1:]]
            else:
                raise PtxError(token.line, f"cannot declare a variable with {token.text}")
        return Kind(element, elements, alignment)

    def _variable(self, space: str, kind: Kind, external: bool) -> Variable:
        element, elements, alignment = kind
        name = self.kind("word")
        if element is None:
            raise PtxError(name.line, f"the variable {name.text!r} has no type")
        if elements > 1 and space == ".param":
            raise PtxError(name.line, f"the parameter {name.text!r} cannot be a vector")
        extents = self._extents() if elements == 1 else [*self._extents(), elements]
        content, addresses = b"", list[Address]()
        if self.accept("="):
            if space not in (".const", ".global"):
                raise PtxError(name.line, f"a variable in {space} cannot be initialised")
            content = self._content(name, element, extents, 0, addresses)
            if extents and extents[0] is None:
                inner = element.bits // 8 * prod(each or 1 for each in extents[1:])
                extents[0] = -(-len(content) // inner)
        size: int | None = None
        if None not in extents:
            size = element.bits // 8 * prod(each or 0 for each in extents)
            if size > _MOST_BYTES[space]:
                raise PtxError(
                    name.line,
                    f"{name.text!r} has {size:,} bytes; a variable in {space} has at most "
                    f"{_MOST_BYTES[space]:,}",
                )
        if not size and not (external and space == ".shared"):
            raise PtxError(name.line, f"the extent of {name.text!r} is missing or 0")
        natural = elements * element.bits // 8
        return Variable(
            name.text, space, size, alignment or natural, name.line, content, tuple(addresses)
        )

    def _alignment(self) -> int:
        line, stated = self.token.line, self.integer()
        if stated.bit_count() != 1 or stated > _MOST_ALIGNED:
            raise PtxError(line, f"an alignment of {stated}, which is no power of two below 2^32")
        return stated

    def _extents(self) -> list[int | None]:
        """``[4][3]``, or ``[]`` for the first of them."""
        found: list[int | None] = []
        while self.accept("["):
            known = found or self.token.text != "]"
            found.append(self.integer() if known else None)
            self.expect("]")
        return found

    def register_type(self) -> ScalarType:
        """After ``.reg``."""
        token = self.kind("directive")
        if token.text[1:] not in REGISTER_TYPES:
            raise PtxError(token.line, f"there are no registers of type {token.text}")
        return TYPES[token.text[1:]]

    def _content(
        self,
        name: Token,
        element: ScalarType,
        extents: Sequence[int | None],
        at: int,
        addresses: list[Address],
    ) -> bytes:
        """A number or an address, or such in braces, nested or not, from the byte `at` of the
        variable on; what is in braces of their own fills its row with zeros.
        """
        if not self.accept("{"):
            return self._value(name, element, at, addresses)
        if not extents:
            raise PtxError(name.line, f"{name.text!r} has fewer extents than its content")
        content, row = b"", element.bits // 8 * prod(each or 1 for each in extents[1:])
        while True:
            nested = self.token.text == "{"
            more = self._content(name, element, extents[1:], at + len(content), addresses)
            content += more.ljust(row, b"\0") if nested else more
            if not self.accept(","):
                break
        self.expect("}")
        if extents[0] is not None and len(content) > extents[0] * row:
            bound = extents[0] * row
            raise PtxError(name.line, f"{name.text!r} has {bound} bytes, its content more")
        return content

    def _value(self, name: Token, element: ScalarType, at: int, addresses: list[Address]) -> bytes:
        size = element.bits // 8
        if self.token.kind == "word":
            addresses.append(self._address_in(name, size, at, _ALL_BITS))
            return bytes(size)
        if self.token.kind == "integer" and self.following.text == "(":
            mask = self.integer()
            if mask not in _BYTES_OF_ADDRESS:
                raise PtxError(name.line, f"{mask:#x} is not the mask of one byte of an address")
            self.expect("(")
            addresses.append(self._address_in(name, size, at, mask))
            self.expect(")")
            return bytes(size)
        negative = self.token.text == "-" and self.following.kind == "float"
        if negative:
            self.take()
        if self.token.kind == "float":
            literal = float_literal(self.take())
            if element.kind not in "bf" or size < 4:
                raise PtxError(name.line, f"{literal.value} is no content of type .{element.name}")
            literal = negated(literal) if negative else literal
            if literal.bits == element.bits:
                return literal.pattern.to_bytes(size, "little")
            with np.errstate(over="ignore"):
                return np.array([literal.value], "<f8").astype(f"<f{size}").tobytes()
        if element.kind == "f":
            raise PtxError(name.line, f"an integer is no content of type .{element.name}")
        return (self.constant() & ((1 << 8 * size) - 1)).to_bytes(size, "little")

    def _address_in(self, name: Token, size: int, at: int, mask: int) -> Address:
        """``f``, ``x + 4`` or ``generic(x) + 4``."""
        token = self.kind("word")
        generic = token.text == "generic" and self.accept("(")
        if generic:
            token = self.kind("word")
            self.expect(")")
        found = self.visible.get(token.text)
        if not isinstance(found, Variable) or found.space not in (".global", ".const", ".func"):
            raise AddressError(
                name,
                f"is initialised with the address {token.text}, which is none of a function, a "
                ".global or a .const variable that is known by then",
            )
        return Address(at, size, found, self._offset(), generic, mask)
