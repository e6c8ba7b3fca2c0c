"""The table of instruction forms: an opcode as written -> the function that binds it.

A form is stated in the notation of the PTX ISA's syntax lines, by parts that are joined without
blanks:

    add                     literal text
    {.ftz}                  may be missing; the match has it as ``ftz``
    {round:.rn|.rz}         one of several, may be missing
    <type:.f32|.f64>        one of several

What no form matches is refused when a kernel is loaded.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cuevo.sim.aliases import Step
from cuevo.sim.binder import Binder
from cuevo.sim.faults import PtxError
from cuevo.sim.syntax import Instruction

Modifiers = Mapping[str, str]
"""Choices of a form by name, without the leading dot; "" for what is missing."""
Bind = Callable[[Binder, Modifiers], Step]

_PART = re.compile(r"\{(?:(\w+):)?([^}]*)\}|<(\w+):([^>]*)>")


@dataclass(frozen=True)
class Form:
    pattern: str
    expression: re.Pattern[str]
    since: int
    """The first compute capability that has it."""
    bind: Bind
    control: bool
    """Ends a straight run of code: branches, barriers, exits."""


_FORMS: dict[str, list[Form]] = {}


def form(*patterns: str, since: int = 0, control: bool = False) -> Callable[[Bind], Bind]:
    """Enter the decorated binder under each of the patterns."""

    def enter(bind: Bind) -> Bind:
        for pattern in patterns:
            compiled = Form(pattern, _expression(pattern), since, bind, control)
            for word in _first_words(pattern):
                _FORMS.setdefault(word, []).append(compiled)
        return bind

    return enter


def find(instruction: Instruction, arch: int) -> tuple[Form, Modifiers]:
    """The form of an instruction; raises `PtxError` if there is none on this architecture."""
    since: list[int] = []
    for candidate in _FORMS.get(_first_word(instruction.opcode), ()):
        match = candidate.expression.fullmatch(instruction.opcode)
        if match is not None and candidate.since <= arch:
            return candidate, {
                name: (text or "").lstrip(".:") for name, text in match.groupdict().items()
            }
        if match is not None:
            since.append(candidate.since)
    if since:
        raise PtxError(
            instruction.line,
            f"{instruction.opcode} needs sm_{min(since)} or later; this is sm_{arch}",
        )
    raise PtxError(
        instruction.line, f"the CPU executor does not know the instruction {instruction.opcode}"
    )


def patterns() -> tuple[str, ...]:
    """All forms, as stated."""
    return tuple(dict.fromkeys(form.pattern for forms in _FORMS.values() for form in forms))


def _first_word(opcode: str) -> str:
    match = re.match(r"\w+", opcode)
    return match.group() if match else ""


def _first_words(pattern: str) -> set[str]:
    """The words that opcodes of a pattern can begin with."""
    choices = re.match(r"<\w+:([^>]*)>", pattern)
    return {_first_word(each) for each in (choices.group(1).split("|") if choices else [pattern])}


def _expression(pattern: str) -> re.Pattern[str]:
    pieces, position = [], 0
    for part in _PART.finditer(pattern):
        pieces.append(re.escape(pattern[position : part.start()]))
        position = part.end()
        optional_name, optional, name, choices = part.groups()
        text = choices if name else optional
        label = name or optional_name or re.sub(r"\W", "_", text.lstrip("."))
        alternatives = "|".join(re.escape(choice) for choice in text.split("|"))
        pieces.append(f"(?P<{label}>{alternatives}){'' if name else '?'}")
    pieces.append(re.escape(pattern[position:]))
    return re.compile("".join(pieces))
