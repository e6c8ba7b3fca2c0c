"""The table of instruction forms: what the executor knows, and since when PTX has it.

``forms.txt`` is the table, with two more ``forms_*.txt``, in the notation of the PTX ISA's syntax
lines. A row states a form:

    fma.rn{.ftz}{.relu@7.0:80}<type:.f16|.f16x2>    d, a, b, c    4.2:53

The opcode is made of parts that are joined without blanks:

    add                     literal text
    {.ftz}                  may be missing; the match has it as ``ftz``
    {round:.rn|.rz}         one of several, may be missing
    <type:.f32|.f64>        one of several
    <n:8..256/8>            one of the numbers 8, 16, 24 and so on to 256

A choice may raise what the form asks for: ``@7.0:80`` is PTX ISA 7.0 and sm_80. Operands are named
as in the manual:

    d                       of the form's type: the choice ``type``, or what the opcode ends with
    a:u32, d:to, d:wide     of type .u32; of the choice ``to``; of twice the form's type
    d|p:pred                a second destination that may be missing
    a*4:b32, d*vector       a vector of 4 registers; of as many as the choice says
    d*n/2                   of half as many as the choice says
    [a]                     an address
    n=16                    a constant, with one that is legal
    target:label            a label
    c:b64?hint              there if the form has the choice ``hint``, and only then
    {, c}                   may be missing

Of forms with one opcode and as many operands, that one is meant whose vectors stand where those of
the instruction do.

The last column is the first PTX ISA version and the first architecture. A line ``[module.name]``
names the function that binds the rows below it; ``[module.name!]`` one that ends a straight run of
code. ``INT = .s32|.u32`` names a list of choices. What begins with blanks continues its row.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from cuevo.sim.aliases import Step
from cuevo.sim.faults import PtxError
from cuevo.sim.instructions.levels import (
    ANY,
    FLOOR,
    Level,
    below_floor,
    level,
    of_special_register,
)
from cuevo.sim.instructions.order import arranged
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.syntax import Instruction, SpecialOperand, VectorOperand

Modifiers = Mapping[str, str]
"""Choices of a form by name, without the leading dot; "" for what is missing."""
Bind = Callable[[Binder, Modifiers], Step]

_PART = re.compile(r"\{(?:(\w+):(?!:))?([^}]*)\}|<(\w+):([^>]*)>")
_OPERAND = re.compile(
    r"(\[?)(\w+)(?:\|\w+)?(?:=(\d+))?\]?(?:\*(\w+)(?:/(\d+))?)?(?::(\w+))?(?:\?(\w+))?"
)
_NUMBERS = re.compile(r"(\d+)\.\.(\d+)/(\d+)")

FILES = ("forms.txt", "forms_asynchronous.txt", "forms_wmma.txt")
"""The table; names of the first are those of both."""


@dataclass(frozen=True)
class Group:
    """A part of an opcode: one of the choices, or none if it is `optional`. Literal text is a
    group without a name.
    """

    name: str
    choices: tuple[tuple[str, Level], ...]
    optional: bool

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(text for text, _ in self.choices)

    @property
    def pattern(self) -> str:
        listed = "|".join(re.escape(text) for text, _ in self.choices)
        return f"(?P<{self.name}>{listed}){'?' * self.optional}" if self.name else listed


@dataclass(frozen=True)
class Parameter:
    """An operand as the table states it."""

    name: str
    address: bool
    paired: bool
    """Whether a second destination may follow, ``d|p``."""
    constant: int | None
    count: str
    """Registers of a vector: a number, or the choice that says it; "" for one alone."""
    divisor: int
    """Divisor of the choice's number."""
    type: str
    when: str
    """The choice that it comes with."""

    @property
    def several(self) -> bool | None:
        """Whether it is a vector of several registers; None where that is a matter of choice."""
        return int(self.count or 1) > 1 if self.count.isdigit() or not self.count else None


@dataclass(frozen=True)
class Form:
    row: str
    """The opcode as stated."""
    groups: tuple[Group, ...]
    operands: tuple[Parameter, ...]
    optional: int
    """Number of last operands that may be missing."""
    level: Level
    """Level of the form, whatever the choices."""
    binder: str
    """``module.function``, below `cuevo.sim.instructions`."""
    control: bool
    """Ends a straight run of code: branches, barriers, exits."""

    @cached_property
    def expression(self) -> re.Pattern[str]:
        return re.compile("".join(group.pattern for group in self.groups))

    def may_be(self, opcode: str) -> bool:
        """Whether what every opcode of the form has is somewhere in this one, which takes no time
        beside making the expression.
        """
        return all(
            group.optional or any(text in opcode for text in group.texts) for group in self.groups
        )

    @cached_property
    def bind(self) -> Bind:
        module, name = self.binder.split(".")
        bind: Bind = getattr(importlib.import_module(f"cuevo.sim.instructions.{module}"), name)
        return bind

    def counts(self, modifiers: Modifiers) -> range:
        """Numbers of operands that an opcode of the form may have."""
        most = sum(not each.when or bool(modifiers[each.when]) for each in self.operands)
        return range(most - self.optional, most + 1)

    def fits(self, instruction: Instruction, modifiers: Modifiers) -> bool:
        """Whether vectors of several registers stand where the form has them."""
        stated = [each for each in self.operands if not each.when or modifiers[each.when]]
        return all(
            each.several in (isinstance(operand, VectorOperand), None)
            for each, operand in zip(stated, instruction.operands, strict=False)
        )

    def level_of(self, modifiers: Modifiers) -> Level:
        """Level that an opcode of the form asks for, by its choices."""
        asked = [self.level]
        for group in self.groups:
            for text, raised in group.choices:
                if group.name and modifiers[group.name] == text.lstrip(".:"):
                    asked.append(raised)
        return Level.highest(asked)


def find(instruction: Instruction, kernel: Level) -> tuple[Form, Modifiers]:
    """The form of an instruction; raises `PtxError` if there is none, or if the version and the
    target of the kernel do not have it.
    """
    opcode, count = instruction.opcode, len(instruction.operands)
    matches = _matches(opcode)
    if not matches:
        raise PtxError(
            instruction.line, f"the CPU executor does not support the instruction {opcode}"
        )
    fitting = [each for each in matches if count in each[0].counts(each[1])]
    if not fitting:
        counts = [count for form, chosen, _ in matches for count in form.counts(chosen)]
        low, high = min(counts), max(counts)
        expected = str(low) if low == high else f"{low} to {high}"
        raise PtxError(instruction.line, f"{opcode} takes {expected} operands, not {count}")
    if len(fitting) > 1:
        fitting = [each for each in fitting if each[0].fits(instruction, each[1])] or fitting
    form, modifiers, needed = min(fitting, key=lambda each: each[2])
    is_low = kernel.number < FLOOR.number or kernel.version < FLOOR.version
    message = below_floor(opcode, needed, kernel) if is_low else needed.refusal(kernel)
    if message:
        raise PtxError(instruction.line, f"{opcode} needs {message}")
    for operand in instruction.operands:
        for each in operand.elements if isinstance(operand, VectorOperand) else (operand,):
            if not isinstance(each, SpecialOperand):
                continue
            if message := of_special_register(each.name).refusal(kernel):
                raise PtxError(instruction.line, f"{each.name} needs {message}")
    return form, modifiers


@lru_cache(maxsize=4096)
def ordered(opcode: str) -> str:
    """The opcode with its modifiers in the order of a form; as it is if there is no such form."""
    if not _matches(opcode):
        for form in _by_first_word().get(_first_word(opcode), ()):
            for found in arranged(opcode, form.groups):
                return found
    return opcode


@lru_cache(maxsize=4096)
def _matches(opcode: str) -> list[tuple[Form, Modifiers, Level]]:
    found: list[tuple[Form, Modifiers, Level]] = []
    for candidate in _by_first_word().get(_first_word(opcode), ()):
        match = candidate.may_be(opcode) and candidate.expression.fullmatch(opcode)
        if match:
            chosen = {name: (text or "").lstrip(".:") for name, text in match.groupdict().items()}
            found.append((candidate, chosen, candidate.level_of(chosen)))
    return found


@lru_cache(maxsize=1)
def forms() -> tuple[Form, ...]:
    """The whole table."""
    texts = (Path(__file__).with_name(name).read_text("utf-8") for name in FILES)
    return tuple(read("\n".join(texts)))


@lru_cache(maxsize=1)
def _by_first_word() -> dict[str, list[Form]]:
    found: dict[str, list[Form]] = {}
    for form in forms():
        for word in dict.fromkeys(_first_word(text) for text, _ in form.groups[0].choices):
            found.setdefault(word, []).append(form)
    return found


def _first_word(opcode: str) -> str:
    match = re.match(r"\w+", opcode)
    return match.group() if match else ""


# -- Reading the table ----------------------------------------------------------------------------


def read(text: str) -> Iterator[Form]:
    """The forms of a table; raises ValueError for a row that has no sense."""
    lists: dict[str, str] = {}
    binder, control = "", False
    text = re.sub(r"#.*", "", text)
    text = re.sub(r"\n[ \t]+(?=[{<.|])", "", text)
    for row in re.sub(r"\n[ \t]+(?=\S)", "  ", text).splitlines():
        if not row.strip():
            continue
        if heading := re.fullmatch(r"\[(\w+\.\w+)(!?)\]\s*", row):
            binder, control = heading[1], bool(heading[2])
        elif definition := re.fullmatch(r"([A-Z]\w*) = (\S.*)", row):
            lists[definition[1]] = _with_lists(definition[2].replace(" ", ""), lists)
        else:
            yield _form(row, lists, binder, control)


def _with_lists(text: str, lists: Mapping[str, str]) -> str:
    return re.sub(r"\b[A-Z][A-Z0-9_]+\b(?!:)", lambda m: lists.get(m[0], m[0]), text)


def _form(row: str, lists: Mapping[str, str], binder: str, control: bool) -> Form:
    columns = re.fullmatch(r"(\S.*?)(?:\s{2,}(\S.*?))?\s{2,}(\d+\.\d+:\d+\w?)\s*", row)
    if columns is None or not binder:
        raise ValueError(f"cannot read the row {row!r}")
    opcode = _with_lists(columns[1].replace(" ", ""), lists)
    operands = columns[2] or ""
    head, _, rest = operands.partition("{")
    listed = [_parameter(each) for each in head.split(",") if each.strip()]
    optional = len(rest.split(",")) - 1
    listed += [_parameter(each) for each in re.sub(r"[{}]", "", rest).split(",") if each.strip()]
    stated = re.sub(r"@[\d.:a]+", "", opcode)
    return Form(
        stated, tuple(_groups(opcode)), tuple(listed), optional, level(columns[3]), binder, control
    )


def _parameter(text: str) -> Parameter:
    match = _OPERAND.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"cannot read the operand {text!r}")
    bracket, name, constant, count, divisor, scalar, when = match.groups()
    return Parameter(
        name,
        bool(bracket),
        "|" in text,
        None if constant is None else int(constant),
        count or "",
        int(divisor or 1),
        scalar or "",
        when or "",
    )


def _groups(opcode: str) -> Iterator[Group]:
    position = 0
    for part in _PART.finditer(opcode):
        if literal := opcode[position : part.start()]:
            yield Group("", ((literal, ANY),), False)
        position = part.end()
        optional_name, optional, name, listed = part.groups()
        texts = _numbers(listed if name else optional).split("|")
        choices = [_choice(each) for each in texts]
        label = name or optional_name or re.sub(r"\W", "_", choices[0][0].lstrip(".:"))
        yield Group(label, tuple(choices), not name)
    if literal := opcode[position:]:
        yield Group("", ((literal, ANY),), False)


def _numbers(text: str) -> str:
    """``8..24/8`` as 8|16|24."""

    def listed(match: re.Match[str]) -> str:
        first, last, step = map(int, match.groups())
        return "|".join(map(str, range(first, last + 1, step)))

    return _NUMBERS.sub(listed, text)


def _choice(text: str) -> tuple[str, Level]:
    plain, _, raised = text.partition("@")
    return plain, level(raised) if raised else ANY
