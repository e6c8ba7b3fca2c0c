"""The table of forms against the assembler: what it accepts, from which version and target on.

The assembler names for each statement the version and the target that it lacks, so that a text of
the lowest ones shows whether the table asks for neither less nor more.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest
from sim.instructions.statements import asked_for, chosen, complaints, log, statement

from cuevo.sim.instructions.levels import FIRST_VERSIONS, Level
from cuevo.sim.instructions.table import Form, forms

pytestmark = pytest.mark.unit

HIGHEST = "9.0", "sm_90a", "sm_90a"
VERSIONS = ((6, 0), (6, 1), (6, 2), (6, 3), (6, 4), (6, 5), *((7, i) for i in range(9)),
            *((8, i) for i in range(9)), (9, 0), (9, 1))  # fmt: skip
AT_ONCE = 4000
# The manual has .shared::cta from 7.8 on; the assembler, of this instruction, does not look.
LAX = "cp.async", ".shared::cta"


def sample(form: Form, most: int = 120) -> Iterator[str]:
    """Opcodes of a form: all if they are few, else some, with each choice among them."""
    choices = [("",) * group.optional + tuple(c for c, _ in group.choices) for group in form.groups]
    total = 1
    for each in choices:
        total *= len(each)
    if total <= most:
        yield from map("".join, itertools.product(*choices))
        return
    rng = random.Random(form.row)
    found = {tuple(rng.choice(each) for each in choices) for _ in range(most)}
    for i, each in enumerate(choices):
        for choice in each:
            parts = [rng.choice(each) for each in choices]
            found.add((*parts[:i], choice, *parts[i + 1 :]))
    yield from sorted(map("".join, found))


@cache
def sampled() -> list[tuple[str, str, Level]]:
    """Each sampled opcode, a statement with it, and the level that the table has for it."""
    return [
        (opcode, statement(form, opcode), form.level_of(chosen(form, opcode)))
        for form in forms()
        for opcode in sample(form)
        if not all(part in opcode for part in LAX)
    ]


def first_version(level: Level) -> tuple[int, int]:
    return max(level.version, FIRST_VERSIONS[level.target])


def test_the_table_asks_for_what_the_assembler_asks_for() -> None:
    wrong = []
    # After a result that nobody wants the assembler sees nothing wrong with later statements.
    alone = [[each] for each in sampled() if " _," in each[1]]
    rest = [each for each in sampled() if " _," not in each[1]]
    parts = [rest[start : start + AT_ONCE] for start in range(0, len(rest), AT_ONCE)]
    for part in parts + alone:
        listed = [each for _, each, _ in part]
        lowest = complaints(listed, "6.0", "sm_70", "sm_75")
        highest = complaints(listed, *HIGHEST)
        for (opcode, text, level), low, high in zip(part, lowest, highest, strict=True):
            version, target, _ = asked_for(low)
            if (version, target) != (level.version, (level.number, level.special)):
                wrong.append(f"{opcode}: {low}, the table has {level}")
            elif level.number <= 90 and level.version <= (9, 0) and high:
                wrong.append(f"{text} {high}")
    assert not wrong, "\n".join(wrong[:20])


def test_what_one_architecture_has_alone() -> None:
    listed = [text for _, text, level in sampled() if level.special]
    assert len(listed) > 100
    for text, found in zip(listed, complaints(listed, "9.0", "sm_90", "sm_90"), strict=True):
        assert any("not supported on .target 'sm_90'" in each for each in found), (text, found)


def test_each_form_assembles_at_its_version_and_target() -> None:
    by_level: dict[Level, list[str]] = defaultdict(list)
    for opcode, text, level in sampled()[::5]:
        # A result of a call is read after a call only.
        if "param::func" not in opcode:
            by_level[level].append(text)
    for level, listed in by_level.items():
        major, minor = first_version(level)
        arch = level.target if level.number >= 75 else "sm_75"
        assert not log(listed, f"{major}.{minor}", level.target, arch), level


def test_a_version_below_is_refused() -> None:
    seen = set()
    for opcode, text, level in sampled():
        # Where the target itself needs the version there is nothing to see.
        if level in seen or level.version <= FIRST_VERSIONS[level.target]:
            continue
        seen.add(level)
        major, minor = VERSIONS[VERSIONS.index(level.version) - 1]
        arch = level.target if level.number >= 75 else "sm_75"
        found = log([text], f"{major}.{minor}", level.target, arch)
        assert f"requires PTX ISA .version {level.version_name}" in found, (opcode, found)
    assert len(seen) > 10
