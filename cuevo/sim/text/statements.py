"""Statements on a line of their own, read once for all kernels that have them.

Most lines of a kernel are an instruction on registers, constants and parameters, and instances of
a kernel differ in few of them. Such a line is a `Statement`; on registers of given types it is a
`Pattern`, and all that is left to do for an instruction are the registers that its names stand for.
Most others declare registers.
"""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from cuevo.sim.faults import PtxError
from cuevo.sim.text.lex import LOCATION, Token, tokens
from cuevo.sim.text.operands import Meaning, OperandReader
from cuevo.sim.text.syntax import (
    SPECIAL_REGISTERS,
    Instruction,
    Pattern,
    Register,
    RegisterOperand,
    Variable,
)
from cuevo.sim.text.types import REGISTER_TYPES, TYPES, ScalarType

# Distinct lines that are remembered; the kernels of the package have some thousand each.
_LINES_KEPT = 1 << 15
_BLANK = " \t\r\f\v"
_LOCATION = re.compile(LOCATION, re.X)
_NAME = r"[A-Za-z$%][\w$]*"
_DECLARATION = re.compile(rf"\.reg[ \t]+\.(\w+)[ \t]+({_NAME}(?:[ \t]*,[ \t]*{_NAME})*)[ \t]*;")
_COMPLETE = frozenset(";{}:")
"""Tokens that a statement may follow."""
_RESERVED = SPECIAL_REGISTERS | {"_", "WARP_SZ"}
_NOT_PLAIN = frozenset(("bra", "brx", "call", "addc", "subc", "madc"))
"""Instructions with operands beyond registers and constants, or that read the carry flag."""


Kinds = tuple[ScalarType | Variable, ...]
"""What names stand for: a register of that type, or that parameter of the kernel."""


class Statement:
    """A line that is one instruction, of which nothing is known but its tokens; `names` are the
    words among them that may be registers, each once.
    """

    def __init__(self, found: tuple[Token, ...], names: tuple[str, ...]) -> None:
        self._tokens = found
        self.names = names
        self._patterns: dict[Kinds, Pattern | None] = {}

    def pattern(self, kinds: Kinds) -> Pattern | None:
        """The instruction, its names being of these kinds; None if it is wrong then."""
        try:
            return self._patterns[kinds]
        except KeyError:
            places = {name: _place(index) for index, name in enumerate(self.names)}
            shape = tuple((kind, places.get(text, text)) for kind, text, _ in self._tokens)
            found = self._patterns[kinds] = _pattern(shape, kinds)
            return found

    def at_line(self, line: int) -> list[Token]:
        """The statement's tokens, and an end behind them."""
        return _at_line(((kind, text) for kind, text, _ in self._tokens), line)


def kinds_of(meanings: Iterable[Meaning | None]) -> Kinds | None:
    """What names with these meanings stand for, wherever the kernel declares its parameters; None
    if one is of something else, or of nothing.
    """
    found: list[ScalarType | Variable] = []
    for each in meanings:
        if isinstance(each, RegisterOperand):
            found.append(each.register.type)
        elif isinstance(each, Variable) and each.space == ".param":
            found.append(each)
        else:
            return None
    return tuple(found)


class Declaration(NamedTuple):
    """A line that declares registers, and no vectors or ranges of them."""

    type: ScalarType
    names: tuple[str, ...]


def _place(index: int) -> str:
    """Stand-in for a name where the name does not matter; no lexer makes such a word."""
    return f"#{index}"


def _at_line(found: Iterable[tuple[str, str]], line: int) -> list[Token]:
    return [*(Token(kind, text, line) for kind, text in found), Token("end", "", line)]


@lru_cache(_LINES_KEPT)
def _pattern(shape: tuple[tuple[str, str], ...], kinds: Kinds) -> Pattern | None:
    """The pattern of all statements of a shape, which differ in names only."""
    reader = OperandReader(_at_line(shape, 0))
    registers = 0
    for index, kind in enumerate(kinds):
        name = _place(index)
        if isinstance(kind, Variable):
            reader.declare(name, kind, 0)
        else:
            reader.declare(name, RegisterOperand(Register(name, kind, registers)), 0)
            registers += 1
    try:
        guard, opcode = reader.guard(), reader.kind("word").text
        operands = reader.operands()
        reader.end()
    except PtxError:
        return None
    return Pattern(Instruction(opcode, operands, guard, 0))


@lru_cache(_LINES_KEPT)
def statement(line: str) -> Statement | None:
    """The statement that is all of `line`; None if it is something else, or more."""
    if not line.endswith(";") or line.count(";") > 1 or '"' in line:
        return None
    found = _of_line(line)
    opcode = 0
    if found[0].text == "@":
        opcode = 3 if found[1].text == "!" else 2
    if len(found) < opcode + 2 or found[opcode].kind != "word" or found[opcode + 1].text == ":":
        return None
    text = found[opcode].text
    if text.split(".")[0] in _NOT_PLAIN or ".cc" in text or not _is_balanced(found):
        return None
    words = [token.text for token in found[:opcode] + found[opcode + 1 :] if token.kind == "word"]
    names = tuple(dict.fromkeys(word for word in words if word not in _RESERVED))
    return Statement(found, names) if text not in names else None


@lru_cache(_LINES_KEPT)
def declaration(line: str) -> Declaration | None:
    """What is declared by `line`; None if it is something else, or more."""
    match = _DECLARATION.fullmatch(line)
    if match is None or match[1] not in REGISTER_TYPES:
        return None
    return Declaration(TYPES[match[1]], tuple(x.strip() for x in match[2].split(",")))


def _is_balanced(found: tuple[Token, ...]) -> bool:
    """Whether braces and parentheses that are opened are closed, and none before."""
    for opening, closing in ("{}", "()"):
        depth = 0
        for token in found:
            depth += (token.text == opening) - (token.text == closing)
            if depth < 0:
                return False
        if depth:
            return False
    return True


def condensed(text: str) -> Iterator[Token]:
    """The tokens of a text without ``/*``, where each statement on a line of its own is one of kind
    ``statement``, each declaration of plain registers one of kind ``registers``, and a ``.loc``
    behind a statement is left out.

    What is no PTX raises `PtxError`, at a line that means nothing.
    """
    new = tuple.__new__
    complete, within_body = True, False
    number = 0
    for number, line in enumerate(text.split("\n"), 1):
        code = line.strip(_BLANK)
        if "//" in code and '"' not in code:
            code = code[: code.index("//")].rstrip(_BLANK)
        if not code:
            continue
        if complete:
            if code.startswith(".loc") and _LOCATION.fullmatch(code):
                if not within_body:
                    yield Token("location", code, number)
                continue
            if statement(code) is not None:
                within_body = True
                yield new(Token, ("statement", code, number))  # half the time of Token(...)
                continue
            if code.startswith(".reg") and declaration(code) is not None:
                within_body = False
                yield new(Token, ("registers", code, number))
                continue
        within_body = False
        last = ""
        for kind, last, _ in _of_line(code):
            yield new(Token, (kind, last, number))
        complete = last in _COMPLETE
    yield Token("end", "end of text", number)


@lru_cache(_LINES_KEPT)
def _of_line(line: str) -> tuple[Token, ...]:
    return tuple(tokens(line)[:-1])
