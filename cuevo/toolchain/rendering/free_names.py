"""Free names: identifiers that a macro's text uses without declaring them or being given them.

A macro's text stands where it is called, and PTX scopes are lexical: a name that the macro did not
declare is whatever register the caller happens to have. So the operands of a macro's instructions
may name

- what the macro declares itself, by ``.reg``, ``.shared`` or as a label;
- what the text around its definition, in the same file, has declared in a scope still open there;
- what it is given: ``${name}``, and whatever begins with an expression (``${q}_from``);
- special registers (``%tid.x``), the names in `EVERYWHERE`, and ``_``, which takes what nobody
  wants.

``acc${i}`` is an element of an array ``acc<n>``. A template is checked when it is compiled, once in
a process. Names in the arguments of calls are not followed.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import jinja2
from jinja2.lexer import Token

__all__ = ["EVERYWHERE", "FreeName", "find", "refuse"]

EVERYWHERE = frozenset({"params", "smem"})
"""Names of every kernel: its parameter block, its dynamic shared memory."""

_VALUE = "\x07"  # stands for an expression: source_map lets no template have control characters
_NAME = rf"[\w${_VALUE}]+"
_WORD = re.compile(rf"%[\w.]+|({_NAME})")
_LABEL = re.compile(rf"\s*({_NAME})\s*:(?!:)")
_INSTRUCTION = re.compile(rf"(?:@!?({_NAME})\s+)?\S+(.*)", re.DOTALL)
_DECLARATION = re.compile(
    r"(?:\.extern\s+)?\.(?:reg|shared|local|global|const)\b(?:\s*\.\w+(?:\s+\d+)?)*(.*)"
)
_VARIABLE = re.compile(rf"({_NAME})(<)?")
_DIRECTIVE = re.compile(r"\s*\.(version|target|address_size|visible|entry|max|min|req)")
_COMMENT = re.compile(r"//.*|/\*.*?\*/")


@dataclass(frozen=True)
class FreeName:
    """A name that is free in a macro."""

    name: str
    macro: str
    line: int


def refuse(tokens: Iterable[Token], name: str | None, filename: str | None) -> None:
    """TemplateSyntaxError for the first free name of the template `name`, of these tokens."""
    for free in find(tokens):
        raise jinja2.TemplateSyntaxError(
            f"the macro {free.macro} uses {free.name}, which it neither declares nor is "
            "given: pass the register's name as an argument, or declare it in the macro",
            free.line,
            name,
            filename,
        )


def find(tokens: Iterable[Token]) -> Iterator[FreeName]:
    """The free names of a template, in the order of its text."""
    scopes: list[set[str]] = [set()]
    macros: list[tuple[str, int]] = []  # those whose end is to come, and the scopes around them
    for event, line, text in _events(tokens):
        if event == "macro":
            macros.append((text, len(scopes)))
            scopes.append(set())
        elif event == "endmacro" and macros:
            del scopes[macros.pop()[1] :]
        elif event == "open":
            scopes.append(set())
        elif event == "close":
            del scopes[max(len(scopes) - 1, macros[-1][1] + 1 if macros else 1) :]
        elif event == "declaration":
            scopes[-1].add(text)
        elif event == "use" and macros and not _is_known(text, scopes):
            yield FreeName(text.partition(_VALUE)[0], macros[-1][0], line)


def _is_known(word: str, scopes: list[set[str]]) -> bool:
    if word[0] == _VALUE or word[0].isdigit() or word == "_" or word in EVERYWHERE:
        return True
    array = _array(word.partition(_VALUE)[0])
    return any(array in scope or word in scope for scope in scopes)


def _array(name: str) -> str:
    """The array that `name` is an element of, or belongs to: ``acc<`` for ``acc3`` and ``acc``."""
    return name.rstrip("0123456789") + "<"


# -- From tokens to names --------------------------------------------------------------------------

_Event = tuple[str, int, str]


def _events(tokens: Iterable[Token]) -> Iterator[_Event]:
    """Events, with their lines: "macro" and "endmacro"; "open" and "close" of a brace;
    "declaration" and "use" of a name.
    """
    pending, start = "", 0  # a statement without its end, and its first line
    open_brackets = 0  # of an entry's parameters
    for kind, line, text in _lines(tokens):
        if kind != "text":
            pending = ""
            yield kind, line, text
            continue
        code = _COMMENT.sub(" ", text)
        if open_brackets or (_DIRECTIVE.match(code) and not pending):
            open_brackets += code.count("(") - code.count(")")
            continue
        start = start if pending else line
        pending = (pending + " " + code).strip()
        while pending:
            if pending[0] in "{}":
                yield "open" if pending[0] == "{" else "close", line, ""
                pending = pending[1:].lstrip()
            elif label := _LABEL.match(pending):
                yield "declaration", line, label[1]
                pending = pending[label.end() :].lstrip()
            elif ";" in pending:
                statement, _, pending = pending.partition(";")
                yield from _names(statement, start)
                pending = pending.lstrip()
            elif set(pending) <= {_VALUE, " "}:
                pending = ""  # calls alone on their lines
            else:
                break
            start = line


def _names(statement: str, line: int) -> Iterator[_Event]:
    if declared := _DECLARATION.match(statement):
        for variable in declared[1].split(","):
            if found := _VARIABLE.search(variable):
                name = found[1].partition(_VALUE)[0]
                is_array = found[2] or _VALUE in found[1]
                yield "declaration", line, _array(name) if is_array else name
    elif instruction := _INSTRUCTION.match(statement):
        guard, operands = instruction.groups()
        for word in [guard, *_WORD.findall(operands)]:
            if word:
                yield "use", line, word


def _lines(tokens: Iterable[Token]) -> Iterator[_Event]:
    """The literal text by lines ("text"), each expression in it one character; "macro" with its
    name, and "endmacro".
    """
    text, line = "", 1
    words: list[str] = []  # of the statement that is open
    inside = False
    for token in tokens:
        if token.type == "data":
            first, *others = token.value.split("\n")
            line = line if text else token.lineno
            text += first
            for number, other in enumerate(others, 1):
                yield "text", line, text
                text, line = other, token.lineno + number
        elif token.type == "variable_begin":
            line = line if text else token.lineno
            text, inside = text + _VALUE, True
        elif token.type == "block_begin":
            yield "text", line, text
            text, words, inside = "", [], True
        elif token.type in ("variable_end", "block_end"):
            inside = False
            if token.type == "block_end" and words[:1] in (["macro"], ["endmacro"]):
                yield words[0], token.lineno, " ".join(words[1:2])
        elif inside:
            words.append(str(token.value))
    yield "text", line, text
