"""Reading tokens one after the other; constant expressions and literals."""

import operator
import struct
from collections.abc import Callable
from math import isinf

from cuevo.sim.faults import PtxError
from cuevo.sim.text.lex import Token
from cuevo.sim.text.syntax import FloatOperand

_WARP_SIZE = 32
_MOST_BITS = 64


def _quotient(a: int, b: int) -> int:
    """Rounded toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shift(function: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def shifted(a: int, b: int) -> int:
        if not 0 <= b < _MOST_BITS:
            raise ValueError(f"a shift by {b}")
        return function(a, b)

    return shifted


# Binary operators of constant expressions, loosest first.
_PRECEDENCE: list[dict[str, Callable[[int, int], int]]] = [
    {"||": lambda a, b: a != 0 or b != 0},
    {"&&": lambda a, b: a != 0 and b != 0},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
    {"<<": _shift(operator.lshift), ">>": _shift(operator.rshift)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": lambda a, b: a - b * _quotient(a, b)},
]
_ENDS = frozenset(",;]})")
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

    def refuse(self, text: str) -> None:
        if self.token.text == text:
            raise PtxError(self.token.line, f"{text!r} cannot stand here")

    def kind(self, kind: str) -> Token:
        token = self.take()
        if token.kind != kind:
            raise PtxError(token.line, f"expected a {kind}, found {token.text!r}")
        return token

    # -- Constants --------------------------------------------------------------------------------

    def integer(self) -> int:
        """A literal, where no expression may stand."""
        return _integer(self.kind("integer"))

    def constant(self) -> int:
        """The value of a constant expression."""
        value = self._binary(0)
        if self.accept("?"):
            one = self.constant()
            self.expect(":")
            other = self.constant()
            return one if value else other
        return value

    def _binary(self, level: int) -> int:
        if level == len(_PRECEDENCE):
            return self._unary()
        if self.token.kind == "integer" and self.following.text in _ENDS:
            return self._unary()
        value = self._binary(level + 1)
        while self.token.text in _PRECEDENCE[level]:
            token = self.take()
            other = self._binary(level + 1)
            try:
                value = _wrapped(_PRECEDENCE[level][token.text](value, other))
            except ZeroDivisionError:
                raise PtxError(token.line, "a constant expression divides by zero") from None
            except ValueError as error:
                raise PtxError(token.line, f"{error} in a constant expression") from None
        return value

    def _unary(self) -> int:
        token = self.take()
        match token.text:
            case "-":
                return _wrapped(-self._unary())
            case "+":
                return self._unary()
            case "~":
                return ~self._unary()
            case "!":
                return int(not self._unary())
            case "(":
                value = self.constant()
                self.expect(")")
                return value
            case "WARP_SZ":
                return _WARP_SIZE
        if token.kind != "integer":
            raise PtxError(token.line, f"expected an operand, found {token.text!r}")
        return _integer(token)


def _wrapped(value: int) -> int:
    """A number of 64 bits, with a sign or without."""
    if -(1 << _MOST_BITS - 1) <= value < 1 << _MOST_BITS:
        return int(value)
    value &= (1 << _MOST_BITS) - 1
    return value - (value >> _MOST_BITS - 1 << _MOST_BITS)


def _integer(token: Token) -> int:
    digits = token.text.rstrip("U").lower()
    is_octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
    try:
        # Python, too, refuses numbers of thousands of digits.
        value = int(digits, 8 if is_octal else 0)
    except ValueError:
        raise PtxError(token.line, f"{token.text[:20]} is no number") from None
    if value >> _MOST_BITS:
        raise PtxError(token.line, f"{token.text[:20]} has more than {_MOST_BITS} bits")
    return value


def float_literal(token: Token) -> FloatOperand:
    text = token.text.lower()
    if text.startswith("0f"):
        pattern = int(text[2:], 16)
        return FloatOperand(struct.unpack("<f", struct.pack("<I", pattern))[0], pattern, 32)
    if text.startswith("0d"):
        pattern = int(text[2:], 16)
        return FloatOperand(struct.unpack("<d", struct.pack("<Q", pattern))[0], pattern, 64)
    value = float(text)
    if isinf(value):
        raise PtxError(token.line, f"{token.text} is too large for a number of 64 bits")
    return FloatOperand(value, struct.unpack("<Q", struct.pack("<d", value))[0], None)


def negated(literal: FloatOperand) -> FloatOperand:
    sign = 1 << ((literal.bits or 64) - 1)
    return FloatOperand(-literal.value, literal.pattern ^ sign, literal.bits)
