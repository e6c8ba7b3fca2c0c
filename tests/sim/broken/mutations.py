"""Single lines of shipped kernels, changed: the tables `mutations_*.txt`, how a text is mutated.

A line of a template is named by its file and a piece of its text, with ``[n]`` the nth line that
has the piece; what it was rendered to is changed wherever the kernel has it. In the table:

    == ORIGINAL: KERNEL              a case of `originals`; an entry, with `:keys` or `:queries`
    FILE: PIECE                      the line
      OLD => NEW                     within it; `without OLD`; `gone`: the whole line
      2: OLD => NEW                  only in the second of the lines that it was rendered to
      fault, WORDS                   what the fault says, `...` for anything
      at FILE: PIECE                 the line that it names; without this the mutated one
      result                         the results differ from float64, or bytes around were written
      harmless, REASON               another instruction does the same
      uncaught, REASON               a GPU could be hurt by it
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cuevo.toolchain.paths import ptx_directory
from cuevo.toolchain.template import RenderedKernel


@dataclass(frozen=True)
class Place:
    """A line of a template."""

    file: str
    piece: str
    nth: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Place":
        found = re.fullmatch(r"(\S+?\.ptx)(?:\[(\d+)\])?: (.+)", text)
        assert found, text
        return cls(found[1], found[3], int(found[2]) if found[2] else None)

    @property
    def line(self) -> int:
        found = [n for n, line in enumerate(_lines(self.file), 1) if self.piece in line]
        assert len(found) == 1 if self.nth is None else len(found) > 1, f"{self}: lines {found}"
        return found[(self.nth or 1) - 1]


@cache
def _lines(file: str) -> list[str]:
    return (ptx_directory() / file).read_text().splitlines()


@dataclass(frozen=True)
class Mutation:
    original: str
    kernel: str
    place: Place
    old: str
    """Empty: the whole line."""
    new: str
    only: int
    """Number of the line among those that it was rendered to, from 1; 0: all of them."""
    catch: str
    """ "fault", "result", "harmless" or "uncaught"."""
    says: str
    """Pattern of the fault's message; else the reason."""
    at: Place

    @property
    def name(self) -> str:
        change = f"{self.old} => {self.new}" if self.old else "gone"
        which = f" {self.only}:" if self.only else ""
        return f"{self.original}: {self.place.file}:{self.place.line}{which} {change}"

    def apply(self, kernel: RenderedKernel) -> str:
        """The kernel's text with the change."""
        lines = kernel.text.split("\n")
        wanted, changed = (f"ptx/{self.place.file}", self.place.line), False
        count = 0
        for i, origin in enumerate(kernel.lines):
            is_code = not lines[i].lstrip().startswith((".loc ", "//"))
            if origin is not None and is_code and (origin.file, origin.line) == wanted:
                count += 1
                if self.only not in (0, count):
                    continue
                line = lines[i].replace(self.old, self.new) if self.old else ""
                changed = changed or line != lines[i]
                lines[i] = line
        assert changed, f"{self.name}: the line is not in {kernel.describe()}"
        return "\n".join(lines)


def _pattern(words: str) -> str:
    return ".*".join(re.escape(part.strip()) for part in words.split("..."))


def _read() -> Iterator[Mutation]:
    original = kernel = ""
    entry: list[str] = []
    files = sorted(Path(__file__).parent.glob("mutations_*.txt"))
    for row in [*"\n\n".join(path.read_text() for path in files).splitlines(), ""]:
        if row.startswith("  "):
            entry.append(row.strip())
            continue
        if entry:
            yield _mutation(original, kernel, *entry)
        entry = []
        if row.startswith("== "):
            original, kernel = row[3:].split(": ")
        elif row:
            entry = [row]


def _mutation(
    original: str, kernel: str, line: str, change: str, catch: str, at: str = ""
) -> Mutation:
    place = Place.parse(line)
    found = re.fullmatch(r"(?:(\d+): )?(.+)", change)
    assert found, change
    only, (old, _, new) = int(found[1] or 0), found[2].partition(" => ")
    old = "" if old == "gone" else old.removeprefix("without ")
    how, _, words = catch.partition(", ")
    says = _pattern(words) if how == "fault" else words
    where = Place.parse(at.removeprefix("at ")) if at else place
    return Mutation(original, kernel, place, old, new, only, how, says, where)


MUTATIONS = tuple(_read())
