"""Modifiers in another order than the table's: the assembler takes nearly any."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Protocol

_IN_TURN = tuple(
    re.compile(rf"\.({each})")
    for each in (
        r"[busf]\d+(x[24])?|bf16(x2)?|tf32|e\dm\d(x2)?|pred",
        "row|col",
        r"(shared|global|local|const|param)(::\w+)?",
        r"L\d::evict_\w+",
    )
)
"""Modifiers that say something by their order: types, layouts, where from and to, policies."""

_NAMES = {
    **dict.fromkeys(("mul", "mad", "madc", "mul24", "mad24", "dp2a"), "lo hi wide"),
    **dict.fromkeys(("bar", "barrier"), "cta cluster warp sync arrive red wait"),
    **dict.fromkeys(("st", "red"), "async"),
    "brx": "idx",
    "cp": "async bulk tensor prefetch reduce mbarrier arrive commit_group wait_group wait_all",
    "createpolicy": "range fractional cvt",
    "cvt": "pack",
    "cvta": "to",
    "div": "full",
    "fence": "proxy alias",
    "mbarrier": "init inval arrive arrive_drop expect_tx complete_tx test_wait try_wait parity",
    "setmaxnreg": "inc dec",
    "shf": "l r",
    "wgmma": "mma_async fence commit_group wait_group",
}
"""Modifiers that are part of an instruction's name: they stay where they are, and what is before
them.
"""


class Choices(Protocol):
    """A part of an opcode of which one of several is there."""

    @property
    def texts(self) -> tuple[str, ...]: ...
    @property
    def optional(self) -> bool: ...


@lru_cache(maxsize=1024)
def parts(opcode: str) -> tuple[str, ...]:
    """``ld``, ``.global``, ``.b32`` of ``ld.global.b32``."""
    return tuple(re.findall(r"^[^.]+|\.[^.]+", opcode))


def arranged(opcode: str, groups: Iterable[Choices]) -> Iterator[str]:
    """Opcodes made of `groups`, one after the other, of the very modifiers of `opcode`."""
    given = parts(opcode)
    meant = _in_turn(given)
    listed = list(groups)

    def further(index: int, text: str, left: tuple[str, ...]) -> Iterator[str]:
        if index == len(listed):
            made = parts(text)
            if not left and _in_turn(made) == meant and _names(made) == given[: len(_names(made))]:
                yield text
            return
        if listed[index].optional:
            yield from further(index + 1, text, left)
        for choice in listed[index].texts:
            # The part of an opcode that a form splits, as m64n8k16, is none that moves.
            rest = _without(left, parts(choice))
            if rest is not None:
                yield from further(index + 1, text + choice, rest)

    yield from further(0, "", given)


def _names(given: tuple[str, ...]) -> tuple[str, ...]:
    """The parts of an opcode up to the last one that is of the instruction's name."""
    names = _NAMES.get(given[0], "").split()
    last = max((i for i, each in enumerate(given) if each[1:] in names), default=0)
    return given[: last + 1]


def _in_turn(given: tuple[str, ...]) -> list[list[str]]:
    return [[each for each in given if kind.fullmatch(each)] for kind in _IN_TURN]


def _without(given: tuple[str, ...], taken: tuple[str, ...]) -> tuple[str, ...] | None:
    """What is left of parts; None if some are not there."""
    rest = list(given)
    for each in taken:
        if each not in rest:
            return None
        rest.remove(each)
    return tuple(rest)
