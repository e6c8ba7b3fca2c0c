"""Line information in PTX text: ``.loc`` and ``.file`` directives that point into the templates.

With them a profiler, a disassembly and a debugger name the file that the author edits.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SourceLine:
    """A line of a file under ``ptx/``: ``SourceLine("ptx/lib/softmax.ptx", 41)``."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class LocatedText:
    """PTX text with line information, and the origin of each of its lines."""

    text: str
    lines: tuple[SourceLine | None, ...]
    numbers: Sequence[int]
    """For each line the number of the line that it was before, counted from 1: for a ``.loc`` that
    of the instruction, for a ``.file`` 0.
    """

    def origin(self, line: int) -> SourceLine | None:
        """Origin of line `line` of the text, counted from 1; None where there is none."""
        return self.lines[line - 1] if 1 <= line <= len(self.lines) else None

    def number(self, line: int | None) -> int:
        """Number that line `line` had before; 0 where it is none of those that there were."""
        return self.numbers[line - 1] if line and line <= len(self.numbers) else 0


def add_line_information(text: Sequence[str], origins: Sequence[SourceLine | None]) -> LocatedText:
    """Put ``.loc`` and ``.file`` directives into PTX lines, `origins` being one entry a line.

    A ``.loc`` stands before each instruction of a function body whose origin is not the one of the
    instruction before it; the ``.file`` lines end the module.
    """
    files: dict[str, int] = {}
    lines: list[str] = []
    kept: list[SourceLine | None] = []
    numbers: list[int] = []
    last: SourceLine | None = None
    each = zip(text, origins, _instruction_lines(text), strict=True)
    for before, (line, origin, in_body) in enumerate(each, 1):
        if in_body and origin is not None and origin != last:
            number = files.setdefault(origin.file, len(files) + 1)
            margin = line[: len(line) - len(line.lstrip())]
            lines.append(f"{margin}.loc {number} {origin.line} 1")
            kept.append(origin)
            numbers.append(before)
            last = origin
        lines.append(line)
        kept.append(origin)
        numbers.append(before)
    for file, number in files.items():
        lines.append(f'.file {number} "{file}"')
        kept.append(None)
        numbers.append(0)
    return LocatedText("\n".join(lines) + "\n", tuple(kept), numbers)


_TOKEN = re.compile(
    r"""(?P<blank> \s+ | //.* )
      | (?P<comment> /\* )
      | (?P<string> "[^"]*" )
      | (?P<label> [A-Za-z_$%][\w$]* \s* :(?!:) )
      | (?P<mark> [{};] )
      | (?P<word> [.@\w$%]+ | . )""",
    re.X,
)

_STATEMENT = re.compile(r"[ \t]*([.@\w$%])(?:[^;:\"/]|::)*;[ \t]*(?://.*)?")
"""A line that is one statement, and has no label."""


def _instruction_lines(text: Sequence[str]) -> Iterator[bool]:
    """For each line: whether the first statement that begins on it is an instruction of a function
    body.

    False for a line that goes on with a statement of an earlier line.
    """
    in_comment = False
    depth = 0  # open blocks; 0 outside of functions
    statement: list[str] | None = None  # words of the statement that is under way
    for line in text:
        if depth > 0 and statement is None and not in_comment:
            whole = _STATEMENT.fullmatch(line)
            if whole is not None:
                yield whole[1] != "."
                continue
        instruction: bool | None = False if statement else None
        position = 0
        while position < len(line):
            if in_comment:
                end = line.find("*/", position)
                in_comment = end < 0
                position = len(line) if end < 0 else end + 2
                continue
            token = _TOKEN.match(line, position)
            assert token is not None
            position = token.end()
            kind, word = token.lastgroup, token.group()
            if kind == "blank":
                continue
            if kind == "comment":
                in_comment = True
            elif word == ";":
                statement = None
            elif word == "{" and (
                (statement is None and depth > 0)
                or (statement is not None and depth == 0 and {".entry", ".func"} & set(statement))
            ):
                statement = None
                depth += 1
            elif word == "}" and statement is None:
                depth -= 1
            elif statement is None:
                if kind == "label" and depth > 0:
                    continue
                if instruction is None:
                    instruction = depth > 0 and not word.startswith(".")
                # Directives without a semicolon end with their line.
                statement = [word]
            else:
                statement.append(word)
        if statement and statement[0] in (".version", ".target", ".address_size", ".loc", ".file"):
            statement = None
        yield bool(instruction)
