"""PTX ISA versions and architectures: what a form asks for, and what a kernel declares."""

import re
from collections.abc import Iterable
from typing import NamedTuple


class Level(NamedTuple):
    """A PTX ISA version and an architecture."""

    version: tuple[int, int]
    number: int
    """80 for sm_80."""
    special: str = ""
    """"a" for what only this architecture has, and no later one; "" otherwise."""

    @property
    def version_name(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"

    @property
    def target(self) -> str:
        return f"sm_{self.number}{self.special}"

    @staticmethod
    def highest(levels: Iterable["Level"]) -> "Level":
        """The least level that has what each of the levels has."""
        listed = list(levels)
        number, special = max((each.number, each.special) for each in listed)
        return Level(max(each.version for each in listed), number, special)

    def refusal(self, kernel: "Level") -> str:
        """The requirement that `kernel` does not meet, in words; "" if it meets all."""
        if self.special:
            if (kernel.number, kernel.special) != (self.number, self.special):
                return f"{self.target}; the target is {kernel.target}"
        elif kernel.number < self.number:
            return f"{self.target} or later; the target is {kernel.target}"
        if kernel.version < self.version:
            return f"PTX ISA {self.version_name} or later; the .version is {kernel.version_name}"
        return ""


ANY = Level((1, 0), 10)
"""The level of every kernel."""


def level(text: str) -> Level:
    """``7.0:80`` or ``8.0:90a``; the version or the architecture may be missing."""
    match = re.fullmatch(r"(?:(\d+)\.(\d+))?(?::(\d+)(a?))?", text)
    if match is None or not text:
        raise ValueError(f"{text!r} is no version and architecture, such as 7.0:80")
    major, minor, number, special = match.groups()
    version = (int(major), int(minor)) if major else ANY.version
    return Level(version, int(number) if number else ANY.number, special or "")


_SPECIAL_REGISTERS = (
    (r"%(n?clusterid|cluster_|is_explicit)", Level((7, 8), 90)),
    (r"%aggr_smem_size", Level((8, 1), 90)),
    (r"%reserved_smem_offset", Level((7, 6), 80)),
    (r"%current_graph_exec", Level((8, 0), 50)),
)
"""What those ask for that have not been there from the floor on, by how they begin."""


def of_special_register(name: str) -> Level:
    """The level that a kernel needs to read it."""
    return next((each for begin, each in _SPECIAL_REGISTERS if re.match(begin, name)), ANY)


FLOOR = Level((6, 0), 70)
"""The lowest level that the table of forms tells apart: the assembler goes no lower."""

_BELOW_FLOOR = (
    (70, r"(atom|red|ld|st)\..*(relaxed|acquire|release|acq_rel|weak)|fence|match|nanosleep|w?mma"),
    (70, r"(atom|red)\..*\b(cas\.b16|b?f16)\b|atom.*b128|bmsk|szext|.*\bL[12]::"),
    (61, r"dp[24]a"),
    (60, r"(atom|red)\..*(f64|f16x2|\.cta|\.sys)"),
    (53, r"(add|sub|mul|fma|neg|abs|setp?|min|max|ex2|tanh)\.(.*\.)?b?f16"),
    (50, r"lop3"),
    (35, r"ld\..*\bnc\b"),
    (32, r"shf|atom.*64"),
    (30, r"(?!bar\.sync).*\.sync|barrier|activemask|fns|brx|call"),
)
"""First architectures of what the table has for its floor, by how an opcode begins; the others have
been there from sm_20 on (PTX ISA, target ISA notes).
"""
_SINCE_6_0 = re.compile(
    r"(?!bar\.sync).*\.sync|barrier|activemask|match|fence|.*\.(relaxed|acquire|release)"
)


def below_floor(opcode: str, needed: Level, kernel: Level) -> str:
    """The same as `Level.refusal` for a kernel below the floor, of which the table knows nothing
    but what is higher.
    """
    floor = Level(kernel.version, FLOOR.number)
    if needed.special or needed.number > FLOOR.number:
        return needed.refusal(kernel)
    if needed.version > FLOOR.version or _SINCE_6_0.match(opcode):
        floor = Level(needed.version, FLOOR.number)
    first = next((number for number, begin in _BELOW_FLOOR if re.match(begin, opcode)), 20)
    return Level(floor.version, first).refusal(kernel)


FIRST_VERSIONS = {
    "sm_20": (2, 0), "sm_21": (2, 0), "sm_30": (3, 0), "sm_32": (4, 0), "sm_35": (3, 1),
    "sm_37": (4, 1), "sm_50": (4, 0), "sm_52": (4, 1), "sm_53": (4, 2), "sm_60": (5, 0),
    "sm_61": (5, 0), "sm_62": (5, 0),
    "sm_70": (6, 0), "sm_72": (6, 1), "sm_75": (6, 3), "sm_80": (7, 0), "sm_86": (7, 1),
    "sm_87": (7, 4), "sm_88": (9, 0), "sm_89": (7, 8), "sm_90": (7, 8), "sm_90a": (8, 0),
    "sm_100": (8, 6), "sm_100a": (8, 6), "sm_100f": (8, 8), "sm_103": (8, 8), "sm_103a": (8, 8),
    "sm_103f": (8, 8), "sm_110": (9, 0), "sm_110a": (9, 0), "sm_110f": (9, 0), "sm_120": (8, 7),
    "sm_120a": (8, 7), "sm_120f": (8, 8), "sm_121": (8, 8), "sm_121a": (8, 8), "sm_121f": (8, 8),
}  # fmt: skip
"""First PTX ISA version of each ``.target``."""


def declared(version: str, target: str) -> Level:
    """The level of ``.version`` and ``.target``. Raises ValueError if one of them does not
    exist, or the version does not have the target.
    """
    parts = re.fullmatch(r"(\d+)\.(\d+)", version)
    if parts is None:
        raise ValueError(f"the text must begin with .version, such as 7.0; this has {version!r}")
    if target not in FIRST_VERSIONS:
        raise ValueError(f"the CPU executor does not support the .target {target!r}")
    match = re.fullmatch(r"sm_(\d+)([af]?)", target)
    assert match is not None
    found = Level((int(parts[1]), int(parts[2])), int(match[1]), match[2])
    first = FIRST_VERSIONS[target]
    if found.version < first:
        raise ValueError(
            f".target {target} needs .version {first[0]}.{first[1]}; this is {version}"
        )
    return found


def loadable(kernel: Level, arch: str) -> bool:
    """Whether a device of architecture `arch` takes a kernel whose target is that of `kernel`."""
    match = re.fullmatch(r"sm_(\d+)([af]?)", arch)
    if match is None:
        return False
    number, special = int(match[1]), match[2]
    if kernel.special == "a":
        return (number, special) == (kernel.number, "a")
    if kernel.special == "f":
        return number // 10 == kernel.number // 10 and number >= kernel.number
    return number >= kernel.number
