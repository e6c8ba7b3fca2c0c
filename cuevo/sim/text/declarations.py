"""Declarations of variables, and what they are initialised with."""

import struct

from cuevo.sim.faults import PtxError
from cuevo.sim.text.cursor import float_literal
from cuevo.sim.text.lex import Token
from cuevo.sim.text.operands import OperandReader
from cuevo.sim.text.syntax import Address, Variable
from cuevo.sim.text.types import REGISTER_TYPES, TYPES, ScalarType

_ALL_BITS = 2**64 - 1


class AddressError(PtxError):
    """A variable that is initialised with an address that there is none of."""


class DeclarationReader(OperandReader):
    """Reads declarations, a directive such as ``.shared`` behind it."""

    def variable(self, space: str) -> Variable:
        """After ``.param`` or ``.shared``: ``.align 8 .b8 name[24]``."""
        alignment, element, of_pointee = None, None, False
        while self.token.kind == "directive":
            token = self.take()
            if token.text == ".align":
                stated = int(self.kind("integer").text)
                alignment = alignment if of_pointee else stated
            elif token.text == ".ptr":
                of_pointee = True
            elif of_pointee and token.text in (".global", ".const", ".shared", ".local"):
                pass
            elif token.text[1:] in TYPES and token.text != ".pred":
                element = TYPES[token.text[1:]].bits // 8
            else:
                raise PtxError(token.line, f"cannot declare a variable with {token.text}")
        name = self.kind("word")
        if element is None:
            raise PtxError(name.line, f"the variable {name.text!r} has no type")
        size: int | None = element
        while self.accept("["):
            if self.accept("]"):
                size = None
                break
            assert size is not None
            size *= self.constant()
            self.expect("]")
        content, addresses = b"", list[Address]()
        if self.accept("="):
            content = self._content(name, element, 0, addresses)
        if content and space not in (".const", ".global"):
            raise PtxError(name.line, f"a variable in {space} cannot be initialised")
        if content and size is None:
            size = len(content)
        if size is not None and len(content) > size:
            raise PtxError(name.line, f"{name.text!r} has {size} bytes, its content more")
        return Variable(
            name.text, space, size, alignment or element, name.line, content, tuple(addresses)
        )

    def register_type(self) -> ScalarType:
        """After ``.reg``."""
        token = self.kind("directive")
        if token.text[1:] not in REGISTER_TYPES:
            raise PtxError(token.line, f"there are no registers of type {token.text}")
        return TYPES[token.text[1:]]

    def _content(self, name: Token, size: int, at: int, addresses: list[Address]) -> bytes:
        """A number or an address, or such in braces, nested or not; `size` bytes each, from the
        byte `at` of the variable on.
        """
        if self.accept("{"):
            content = self._content(name, size, at, addresses)
            while self.accept(","):
                content += self._content(name, size, at + len(content), addresses)
            self.expect("}")
            return content
        if self.token.kind == "word":
            addresses.append(self._address_in(name, size, at, _ALL_BITS))
            return bytes(size)
        if self.token.kind == "integer" and self.following.text == "(":
            mask = int(self.take().text.rstrip("U"), 0)
            self.expect("(")
            addresses.append(self._address_in(name, size, at, mask))
            self.expect(")")
            return bytes(size)
        if self.token.kind == "float":
            literal = float_literal(self.take())
            if literal.bits is None and size == 4:
                return struct.pack("<f", literal.value)
            return literal.pattern.to_bytes(size, "little")
        value = self.constant() & ((1 << 8 * size) - 1)
        return value.to_bytes(size, "little")

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
                name.line,
                f"{name.text!r} is initialised with the address {token.text}, which is none of a "
                "function, a .global or a .const variable that is known by then",
            )
        return Address(at, size, found, self._offset(), generic, mask)
