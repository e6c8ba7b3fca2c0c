"""Lines of source files that a compiler states in its text: ``.file`` and ``.loc``."""

import re
from dataclasses import dataclass
from functools import cached_property

# Numbers of ten digits and more are no compiler's, and int() does not take all of them.
_STATED = re.compile(
    r"""[ \t]* (?: \.loc[ \t]+(?P<index>\d{1,9})[ \t]+(?P<line>\d{1,9})\b
                   (?:[ \t]+(?P<column>\d{1,9})\b)?
                   (?:.*\binlined_at[ \t]+(?P<by>\d{1,9})[ \t]+(?P<at>\d{1,9})[ \t]+
                      (?P<place>\d{1,9})\b)?
                 | \.file[ \t]+(?P<number>\d{1,9})[ \t]+"(?P<path>[^"\n]*)"
                 | (?P<end>\}[ \t]*$) )""",
    re.X,
)
_Stated = tuple[str, int, int]
"""Number of a file, line, column."""
_Calls = tuple[_Stated, ...]
_MOST_CALLS = 64


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
        calls = self.calls(line)
        return calls[0] if calls else None

    def calls(self, line: int) -> list[Location]:
        """The location of a line, and those that call the functions which are inlined there."""
        files, stated = self._found
        places = [(files.get(index), at) for index, at, _ in stated.get(line, ())]
        return [Location(file, at) for file, at in places if file is not None]

    @cached_property
    def _found(self) -> tuple[dict[str, str], dict[int, _Calls]]:
        """Files by number, and what is stated for each line."""
        files: dict[str, str] = {}
        stated: dict[int, _Calls] = {}
        latest: dict[_Stated, _Calls] = {}
        now: _Calls = ()
        for number, line in enumerate(self._text.split("\n") if ".loc" in self._text else [], 1):
            match = _STATED.match(line)
            if match is None:
                if now:
                    stated[number] = now
            elif match["path"] is not None:
                files[match["number"]] = match["path"]
            elif match["end"] is None:
                # Line 0 is what the compiler has made itself.
                if int(match["line"]):
                    here = match["index"], int(match["line"]), int(match["column"] or 0)
                    now = (here,)
                    if match["by"] is not None:
                        by = match["by"], int(match["at"]), int(match["place"])
                        now = (here, *latest.get(by, (by,))[:_MOST_CALLS])
                    latest[here] = now
            elif line.startswith("}"):
                now = ()
        return files, stated
