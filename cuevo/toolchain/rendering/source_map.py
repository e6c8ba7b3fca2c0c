"""The source map: how each line of a rendered template remembers the line that it was written in.

When a template is compiled, each line end in its literal text gets a mark in front: one character
of Unicode's private use area, which stands for a file and a line. Marks travel through macros,
loops and captures like any other text. After rendering, `take_marks` turns them into a list. Marks
are put in between Jinja's lexer and its parser: literal text is known there, so nothing gets into
an expression, and the values of expressions cannot get into a mark.
"""

import re
import threading
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import count

import jinja2
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.runtime import Macro, Undefined

from cuevo.toolchain.lineinfo import SourceLine
from cuevo.toolchain.rendering import free_names

LINE_STATEMENT = "//%"
LINE_COMMENT = "//#"

_FIRST, _LAST = 0xF0000, 0x10FFFD
_MARKS = f"{chr(_FIRST)}-{chr(_LAST)}"
"""The marks, as a range of a regular expression's set."""
_SIGNED = re.compile(r"\$\{[-+]")
"""Expressions that Jinja would take for white-space control, and not for a sign."""
_RESERVED = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f{_MARKS}]")
"""Characters of no template: control characters, some of which delimit what no template has, and
the marks.
"""
UNUSED_DELIMITERS = ("\x03", "\x04", "\x05", "\x06")
"""For the blocks and comments within a line that Jinja wants to have names for."""

_BRACKETS_AND_STRINGS = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[(\[{]|[)\]}]""")


class Marks(Extension):
    """Marks the line ends of literal text, and indents a value like the line it has to itself;
    before that it refuses templates with a free name. What finalizes values has to be `word`.
    """

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """Take out ``//#`` comments, and the ``//%`` of lines that continue an open bracket."""
        lines = []
        depth = opened = 0  # open brackets of a line statement, and its line
        for number, line in enumerate(re.split(r"\r\n|\r|\n", source), 1):
            if _RESERVED.search(line):
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
        """Mark the literal text; send each value that is alone on its line through `block`."""
        tokens = list(stream)
        free_names.refuse(tokens, stream.name, stream.filename)
        ends = _ends_of_values(tokens)
        line = ""  # literal text since the last line end, with a $ for each value
        values: dict[int, tuple[int, str]] = {}  # alone, ending there: their first lines, margins
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
                # A value that is not closed is for the parser to find.
                end = ends.get(index)
                if end is not None and not line.strip() and _ends_line(tokens, end):
                    values[end] = token.lineno, line
                    yield Token(token.lineno, "lparen", "(")
                line += "$"
            elif token.type == "variable_end":
                if alone := values.get(index):
                    yield from _call_of_block(*alone, stream.name)
                yield token
            else:
                yield token


def _call_of_block(first: int, margin: str, name: str | None) -> Iterator[Token]:
    """Behind the open bracket and the expression of a value that is alone from line `first` on."""
    for kind, text in (
        ("rparen", ")"),
        ("pipe", "|"),
        ("name", "__block"),
        ("lparen", "("),
        ("string", margin),
        ("comma", ","),
        ("string", _mark(f"ptx/{name}", first)),
        ("rparen", ")"),
    ):
        yield Token(first, kind, text)


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
        f"{_mark(f'ptx/{name}', line + index)}\n{part}" for index, part in enumerate(rest)
    )


# -- The marks -------------------------------------------------------------------------------------

_origins: dict[str, SourceLine] = {}
"""The line that each mark stands for; marks stay in compiled templates as long as the process."""
_unused = count(_FIRST)
_lock = threading.Lock()


@cache
def _mark(file: str, line: int) -> str:
    with _lock:
        code = next(_unused)
        if code > _LAST:
            raise _syntax_error("this process has no marks left for more templates", line, file)
        _origins[chr(code)] = SourceLine(file, line)
    return chr(code)


def marked_lines() -> list[int]:
    """The line, within its file, that each mark of this process stands for, from the first on."""
    return [origin.line for origin in _origins.values()]


def reserve(marks: int) -> None:
    """Give none of so many marks, from the first on, to a template that this process compiles.

    Raises RuntimeError where one has been given already.
    """
    global _unused
    with _lock:
        if _origins:
            raise RuntimeError("marks are reserved before any is given")
        _unused = count(_FIRST + marks)


def restore(file: str, first: int, lines: Sequence[int]) -> None:
    """Let reserved marks, from `first` on, stand for lines of a file that another process has
    compiled.
    """
    with _lock:
        for code, line in enumerate(lines, _FIRST + first):
            _origins[chr(code)] = SourceLine(file, line)


# -- What the values of a template become ----------------------------------------------------------

_VISIBLE = re.compile(rf"[^\s{_MARKS}]")
_MARGIN = re.compile(rf"(?:\A|\n)([ \t]*)[^\s{_MARKS}]")
"""White space in front of a line that is not empty: with a line end, which is found faster than ^.
"""
_ANY_MARK = re.compile(f"[{_MARKS}]")


class Block(str):
    """The lines of a value that is alone on its line."""

    __slots__ = ()


def word(value: object) -> str:
    """What a value is in the text: within a line the result of a macro loses its indentation and
    its line end.
    """
    if type(value) is Block:
        return value
    if type(value) is int:
        return str(value)
    text = value if type(value) is str else _text(value)
    if text.isascii() or not _ANY_MARK.search(text):
        return text
    lines = text.split("\n")
    visible = [index for index, line in enumerate(lines) if _VISIBLE.search(line)]
    if not visible:
        return ""
    text = "\n".join(lines[visible[0] : visible[-1] + 1]).lstrip()
    return _ANY_MARK.sub("", text).rstrip() if len(visible) == 1 else text


def block(value: object, margin: str, site: str = "") -> Block:
    """A value alone on its line: its lines, moved together until the leftmost is at `margin`. The
    mark `site`, of that line, is for `block_with_site`.
    """
    text = _text(value)
    common = _common_margin(text)
    if common == len(margin) and "\t" not in text and "\t" not in margin:
        return Block(text)
    return Block(_margin_of(common).sub("\n" + margin, "\n" + text)[1:])


def block_with_site(value: object, margin: str, site: str) -> Block:
    """The same with the mark behind each line, so that `take_calls` finds who called what."""
    return Block(block(value, margin).replace("\n", f"{site}\n"))


def _common_margin(text: str) -> int:
    """Width of the white space in front of the leftmost line: most often the first one."""
    first = _MARGIN.search(text)
    if first is None:
        return 0
    width = len(first[1])
    if width and _narrower(width).search(text, first.end()):
        width = min(map(len, _MARGIN.findall(text)))
    return width


@lru_cache(maxsize=256)
def _margin_of(width: int) -> re.Pattern[str]:
    return re.compile(rf"\n[ \t]{{{width}}}(?=[ \t]*[^\s{_MARKS}])")


@lru_cache(maxsize=256)
def _narrower(width: int) -> re.Pattern[str]:
    """A line with less than `width` in front."""
    return re.compile(rf"\n[ \t]{{0,{width - 1}}}+[^\s{_MARKS}]")


def _text(value: object) -> str:
    if type(value) is str:
        return value
    if isinstance(value, Macro):
        raise TypeError(f"macro {value.name} stands here without its (arguments)")
    if isinstance(value, (str, int, float, Undefined)) or hasattr(value, "__index__"):
        return str(value)  # an Undefined raises here, with the name that is not defined
    raise TypeError(f"{value!r} of type {type(value).__name__} has no meaning in PTX text")


# -- After rendering -------------------------------------------------------------------------------


def take_marks(marked: str) -> tuple[list[str], list[SourceLine | None]]:
    """The lines of a rendered template that are not empty, without marks, and their origins."""
    text: list[str] = []
    origins: list[SourceLine | None] = []
    waiting = (
        0  # lines of a value that brought no marks: they belong to the line that the value is in
    )
    known = _origins.get
    for line in marked.split("\n"):
        # Most lines have one mark, at their end.
        bare, owner = line[:-1].rstrip(), known(line[-1:])
        if owner is None or not bare.isascii():
            bare, owner = _ANY_MARK.sub("", line).rstrip(), _owner(line)
        if waiting and owner is not None:
            origins[-waiting:] = [owner] * waiting
            waiting = 0
        if bare:
            text.append(bare)
            origins.append(owner)
            if owner is None:
                waiting += 1
    return text, origins


def take_calls(marked: str) -> list[tuple[SourceLine, ...]]:
    """For each line that `take_marks` finds, the line that it was written in, and those that called
    the macros that it came through, the innermost first.
    """
    return [
        tuple(dict.fromkeys(_origins[mark] for mark in _ANY_MARK.findall(_tail(line))))
        for line in marked.split("\n")
        if _VISIBLE.search(line)
    ]


def _tail(line: str) -> str:
    """What stands behind the last visible character."""
    return line[max((each.end() for each in _VISIBLE.finditer(line)), default=0) :]


def _owner(line: str) -> SourceLine | None:
    """The line that wrote the last visible character: the first mark behind this one."""
    first, begin = None, len(line)
    for mark in reversed(list(_ANY_MARK.finditer(line))):
        if first is not None and line[mark.end() : begin].strip():
            break
        first, begin = mark, mark.start()
    return None if first is None else _origins[first.group()]
