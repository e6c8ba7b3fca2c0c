"""Marks: how each line of a rendered template remembers the line that it was written in.

When a template is compiled, each line end in its literal text gets a mark in front, holding file
and line. Marks travel through macros, loops and captures like any other text. After rendering,
`take_marks` turns them into a list. Marks are put in between Jinja's lexer and its parser: literal
text is known there, so nothing gets into an expression, and the values of expressions cannot get
into a mark.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import jinja2
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.runtime import Macro, Undefined

from cuevo.toolchain.lineinfo import SourceLine

LINE_STATEMENT = "//%"
LINE_COMMENT = "//#"

# Control characters are in no template. (Not 0x1c to 0x1f: Python counts those as white space.)
_BEGIN, _END = "\x01", "\x02"
_MARK = re.compile(f"{_BEGIN}([^{_END}]*):([0-9]+){_END}")
_SIGNED = re.compile(r"\$\{[-+]")
"""What Jinja would take for white-space control, and not for a sign."""
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")
UNUSED_DELIMITERS = ("\x03", "\x04", "\x05", "\x06")
"""For the blocks and comments within a line that Jinja wants to have names for."""

_BRACKETS_AND_STRINGS = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[(\[{]|[)\]}]""")


class Marks(Extension):
    """Marks the line ends of literal text, and indents a value like the line it has to itself."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """Take out ``//#`` comments, and the ``//%`` of lines that continue an open bracket."""
        lines = []
        depth = opened = 0  # open brackets of a line statement, and its line
        for number, line in enumerate(re.split(r"\r\n|\r|\n", source), 1):
            if _CONTROL.search(line):
                raise _syntax_error("there is a control character in this line", number, name)
            if _SIGNED.search(line):
                message = "an expression begins with a sign: write ${0 - x}"
                raise _syntax_error(message, number, name)
            if LINE_COMMENT in line:
                line = line[: line.index(LINE_COMMENT)].rstrip()
            body = line.lstrip()
            if body.startswith(LINE_STATEMENT):
                code = body.removeprefix(LINE_STATEMENT)
                lines.append(code if depth else line)
                opened = opened if depth else number
                depth += _open_brackets(code)
            else:
                lines.append(line)
                depth += _open_brackets(line) if depth else 0
        if depth > 0:
            raise _syntax_error("a bracket that is opened here is never closed", opened, name)
        # The last line, too, must have an end to carry a mark.
        return "\n".join(lines).rstrip("\n") + "\n"

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Mark the literal text; wrap each value into a call of `word`, or of `block` if alone."""
        tokens = list(stream)
        ends = _ends_of_values(tokens)
        line = ""  # literal text since the last line end, with a $ for each value
        margins: dict[int, str | None] = {}  # of the value ending there; None: it is not alone
        for index, token in enumerate(tokens):
            if token.type == "data":
                text = token.value
                line = (line + text).rpartition("\n")[2]
                end = ends.get(index + 1)
                if end is not None and not line.strip() and _ends_line(tokens, end):
                    text = text.removesuffix(line)  # `block` puts it in front of each line
                yield Token(token.lineno, "data", _with_marks(text, stream.name, token.lineno))
            elif token.type == "block_begin":
                line = ""
                yield token
            elif token.type == "variable_begin":
                yield token
                if (end := ends.get(index)) is None:
                    continue  # not closed: the parser will say so
                margin = line if not line.strip() and _ends_line(tokens, end) else None
                margins[end] = margin
                line += "$"
                yield Token(token.lineno, "name", "__word" if margin is None else "__block")
                yield from (Token(token.lineno, "lparen", "("), Token(token.lineno, "lparen", "("))
            elif token.type == "variable_end":
                yield Token(token.lineno, "rparen", ")")
                if (margin := margins[index]) is not None:
                    yield Token(token.lineno, "comma", ",")
                    yield Token(token.lineno, "string", margin)
                yield Token(token.lineno, "rparen", ")")
                yield token
            else:
                yield token


def _syntax_error(message: str, line: int, name: str | None) -> jinja2.TemplateSyntaxError:
    return jinja2.TemplateSyntaxError(message, line, name, name)


def _open_brackets(code: str) -> int:
    found = _BRACKETS_AND_STRINGS.findall(code)
    return sum((token in "([{") - (token in ")]}") for token in found if len(token) == 1)


def _ends_of_values(tokens: Sequence[Token]) -> dict[int, int]:
    """For the position of each ``${`` that of its ``}``."""
    ends, begin = {}, 0
    for index, token in enumerate(tokens):
        if token.type == "variable_begin":
            begin = index
        elif token.type == "variable_end":
            ends[begin] = index
    return ends


def _ends_line(tokens: Sequence[Token], end: int) -> bool:
    """Whether nothing stands on the line behind the value that ends at position `end`."""
    if end + 1 == len(tokens):
        return True
    following = tokens[end + 1]
    return following.type == "data" and re.match(r"[ \t]*\n", following.value) is not None


def _with_marks(text: str, name: str | None, line: int) -> str:
    head, *rest = text.split("\n")
    return head + "".join(
        f"{_BEGIN}{name}:{line + index}{_END}\n{part}" for index, part in enumerate(rest)
    )


# -- What the values of a template become ----------------------------------------------------------


def word(value: object) -> str:
    """A value within a line: the result of a macro loses its indentation and its line end."""
    text = _text(value)
    if _BEGIN not in text:
        return text
    lines = text.split("\n")
    visible = [index for index, line in enumerate(lines) if _bare(line).strip()]
    if not visible:
        return ""
    text = "\n".join(lines[visible[0] : visible[-1] + 1]).lstrip()
    return _bare(text).rstrip() if len(visible) == 1 else text


def block(value: object, margin: str) -> str:
    """A value alone on its line: its lines, moved together until the leftmost is at `margin`."""
    lines = _text(value).split("\n")
    bare = list(map(_bare, lines))
    visible = [each.lstrip() for each in bare]
    widths = [len(whole) - len(rest) for whole, rest in zip(bare, visible, strict=True) if rest]
    common = min(widths, default=0)
    return "\n".join(
        margin + line[common:] if rest else line for line, rest in zip(lines, visible, strict=True)
    )


def _text(value: object) -> str:
    if isinstance(value, Macro):
        raise TypeError(f"macro {value.name} stands here without its (arguments)")
    if isinstance(value, (str, int, float, Undefined)) or hasattr(value, "__index__"):
        return str(value)  # an Undefined raises here, with the name that is not defined
    raise TypeError(f"{value!r} of type {type(value).__name__} has no meaning in PTX text")


def _bare(line: str) -> str:
    head, mark, rest = line.partition(_BEGIN)
    # Mostly there is one, at the end.
    return head if not mark or rest.find(_END) == len(rest) - 1 else _MARK.sub("", line)


# -- After rendering -------------------------------------------------------------------------------


def take_marks(marked: str) -> tuple[list[str], list[SourceLine | None]]:
    """The lines of a rendered template that are not empty, without marks, and their origins."""
    text: list[str] = []
    origins: list[SourceLine | None] = []
    waiting = (
        0  # lines of a value that brought no marks: they belong to the line that the value is in
    )
    for line in marked.split("\n"):
        bare = _bare(line).rstrip()
        owner = _owner(line)
        if owner is not None and waiting:
            origins[-waiting:] = [owner] * waiting
            waiting = 0
        if bare:
            text.append(bare)
            origins.append(owner)
            waiting += owner is None
    return text, origins


def _owner(line: str) -> SourceLine | None:
    """The line that wrote the last visible character: the first mark behind this one."""
    first, begin = None, len(line)
    for mark in reversed(list(_MARK.finditer(line))):
        if first is not None and line[mark.end() : begin].strip():
            break
        first, begin = mark, mark.start()
    return None if first is None else _origin(first[1], first[2])


@lru_cache(maxsize=4096)
def _origin(file: str, line: str) -> SourceLine:
    return SourceLine(f"ptx/{file}", int(line))
