"""Lines of source files that a compiler states in its text: ``.file`` and ``.loc``."""

import re
from dataclasses import dataclass
from functools import cached_property

_STATED = re.compile(
    r"""[ \t]* (?: \.loc[ \t]+(?P<index>\d+)[ \t]+(?P<line>\d+)
                 | \.file[ \t]+(?P<number>\d+)[ \t]+"(?P<path>[^"\n]*)"
                 | (?P<end>\}[ \t]*$) )""",
    re.X,
)


@dataclass(frozen=True)
class Location:
    """A line of a source file."""

    file: str
    line: int


class Locations:
    """Where each line of a text comes from, as far as it says so."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, line: int) -> Location | None:
        """The location of a line of the text, counted from 1; None if there is none."""
        return self._found.get(line)

    @cached_property
    def _found(self) -> dict[int, Location]:
        if ".loc" not in self._text:
            return {}
        files: dict[str, str] = {}
        stated: dict[int, tuple[str, int]] = {}
        now: tuple[str, int] | None = None
        for number, line in enumerate(self._text.split("\n"), 1):
            match = _STATED.match(line)
            if match is None:
                if now is not None:
                    stated[number] = now
            elif match["path"] is not None:
                files[match["number"]] = match["path"]
            elif match["end"] is None:
                # Line 0 is what the compiler has made itself.
                now = (match["index"], int(match["line"])) if int(match["line"]) else now
            elif line.startswith("}"):
                now = None
        return {
            number: Location(files[index], line)
            for number, (index, line) in stated.items()
            if index in files
        }
