"""Single lines of shipped kernels, changed: the table `mutations.txt`, and how a text is mutated.

A line of a template is named by its file and a piece of its text, with ``[n]`` the nth line that
has the piece; what it was rendered to is changed wherever the kernel has it. In the table:

    == ORIGINAL: KERNEL              a case of `originals`; an entry, with `:keys` or `:queries`
    FILE: PIECE                      the line
      OLD => NEW                     within it; `without OLD`; `gone`: the whole line
      fault, WORDS [@ FILE: PIECE]   the fault's message, `...` for anything, and the line that it
                                     names: the mutated one unless another is given
      result                         the results differ from float64, or bytes around were written
      harmless, REASON               another instruction does the same
      uncaught, REASON               a GPU could be hurt by it
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cuevo.paths import ptx_directory
from cuevo.template import RenderedKernel


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
    catch: str
    """ "fault", "result", "harmless" or "uncaught"."""
    says: str
    """Of a fault, a pattern; else the reason."""
    at: Place

    @property
    def name(self) -> str:
        change = f"{self.old} => {self.new}" if self.old else "gone"
        return f"{self.original}: {self.place.file}:{self.place.line} {change}"

    def apply(self, kernel: RenderedKernel) -> str:
        """The kernel's text with the change."""
        lines = kernel.text.split("\n")
        wanted, changed = (f"ptx/{self.place.file}", self.place.line), False
        for i, origin in enumerate(kernel.lines):
            is_code = not lines[i].lstrip().startswith((".loc ", "//"))
            if origin is not None and is_code and (origin.file, origin.line) == wanted:
                line = lines[i].replace(self.old, self.new) if self.old else ""
                changed = changed or line != lines[i]
                lines[i] = line
        assert changed, f"{self.name}: the line is not in {kernel.describe()}"
        return "\n".join(lines)


def _pattern(words: str) -> str:
    return ".*".join(re.escape(part.strip()) for part in words.split("..."))


def _read() -> tuple[Mutation, ...]:
    found = []
    original = kernel = ""
    rows = iter((Path(__file__).parent / "mutations.txt").read_text().splitlines())
    for row in rows:
        if row.startswith("== "):
            original, kernel = row[3:].split(": ")
        elif row and not row.startswith("#"):
            place = Place.parse(row)
            old, _, new = next(rows).strip().partition(" => ")
            old = "" if old == "gone" else old.removeprefix("without ")
            catch, _, words = next(rows).strip().partition(", ")
            says, _, at = words.partition(" @ ")
            says = _pattern(says) if catch == "fault" else says
            where = Place.parse(at) if at else place
            found.append(Mutation(original, kernel, place, old, new, catch, says, where))
    return tuple(found)


MUTATIONS = _read()
