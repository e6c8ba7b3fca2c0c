"""Reading tokens one after the other; constant expressions and literals."""

import operator
import struct
from collections.abc import Callable

from cuevo.sim.faults import PtxError
from cuevo.sim.text.lex import Token
from cuevo.sim.text.syntax import FloatOperand

# Binary operators of constant expressions, loosest first.
_PRECEDENCE: list[dict[str, Callable[[int, int], int]]] = [
    {"^": operator.xor},
    {"&": operator.and_},
    {"<<": operator.lshift, ">>": operator.rshift},
    {"+": operator.add, "-": operator.sub},
    {
        "*": operator.mul,
        "/": lambda a, b: int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1),
        "%": lambda a, b: a - b * (int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)),
    },
]
_ENDS = frozenset(",;]})>")
"""Tokens that may follow an operand that is no expression."""


class Cursor:
    """Stands before a token of the text."""

    def __init__(self, stream: list[Token]) -> None:
        self._tokens = stream
        self.position = 0
        self.token = stream[0]
        """The one at the position."""

    def go_to(self, position: int) -> None:
        self.position = position
        self.token = self._tokens[position]

    def change_stream(self, stream: list[Token], position: int) -> tuple[list[Token], int]:
        """Go on in another stream of tokens; returns the present one and the place there."""
        left = self._tokens, self.position
        self._tokens = stream
        self.go_to(position)
        return left

    @property
    def following(self) -> Token:
        """The token after the next one."""
        return self._tokens[self.position + 1]

    def take(self) -> Token:
        token = self.token
        if token.kind != "end":
            self.position += 1
            self.token = self._tokens[self.position]
        return token

    def accept(self, text: str) -> bool:
        if self.token.text == text and self.token.kind != "string":
            self.take()
            return True
        return False

    def expect(self, text: str) -> Token:
        token = self.take()
        if token.text != text:
            raise PtxError(token.line, f"expected {text!r}, found {token.text!r}")
        return token

    def kind(self, kind: str) -> Token:
        token = self.take()
        if token.kind != kind:
            raise PtxError(token.line, f"expected a {kind}, found {token.text!r}")
        return token

    # -- Constant expressions ---------------------------------------------------------------------

    def constant(self) -> int:
        return self._binary(0)

    def product(self) -> int:
        """A constant without a sum on its outside, as may follow a sign."""
        return self._binary(len(_PRECEDENCE) - 1)

    def _binary(self, level: int) -> int:
        if level == len(_PRECEDENCE):
            return self._unary()
        if self.token.kind == "integer" and self.following.text in _ENDS:
            return self._unary()
        value = self._binary(level + 1)
        while self.token.text in _PRECEDENCE[level]:
            function = _PRECEDENCE[level][self.take().text]
            value = function(value, self._binary(level + 1))
        return value

    def _unary(self) -> int:
        token = self.take()
        match token.text:
            case "-":
                return -self._unary()
            case "+":
                return self._unary()
            case "~":
                return ~self._unary()
            case "(":
                value = self.constant()
                self.expect(")")
                return value
        if token.kind != "integer":
            raise PtxError(token.line, f"expected an operand, found {token.text!r}")
        digits = token.text.rstrip("U").lower()
        is_octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
        return int(digits, 8 if is_octal else 0)


def float_literal(token: Token) -> FloatOperand:
    text = token.text.lower()
    if text.startswith("0f"):
        pattern = int(text[2:], 16)
        return FloatOperand(struct.unpack("<f", struct.pack("<I", pattern))[0], pattern, 32)
    if text.startswith("0d"):
        pattern = int(text[2:], 16)
        return FloatOperand(struct.unpack("<d", struct.pack("<Q", pattern))[0], pattern, 64)
    value = float(text)
    return FloatOperand(value, struct.unpack("<Q", struct.pack("<d", value))[0], None)


def negated(literal: FloatOperand) -> FloatOperand:
    sign = 1 << ((literal.bits or 64) - 1)
    return FloatOperand(-literal.value, literal.pattern ^ sign, literal.bits)
