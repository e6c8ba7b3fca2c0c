"""Statements that use a form of the table, with operands of the right kinds; and the assembler."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cuda.bindings import nvjitlink

from cuevo.sim.instructions.table import Form, Parameter

DECLARATIONS = """
.reg .pred p<10>; .reg .b16 h<20>; .reg .b32 r<80>; .reg .b64 d<20>; .reg .f32 f<130>;
.reg .f64 g<20>; .param .align 16 .b8 given[64];
"""
WIDE = ".reg .b128 x<20>;"
"""Since PTX ISA 8.3 only."""
ONE_ARCHITECTURE = (90, "a")
BANKS = {
    "pred": "p",
    **dict.fromkeys(("b8", "u8", "s8", "b16", "u16", "s16", "f16", "bf16"), "h"),
    **dict.fromkeys(("b32", "u32", "s32", "f16x2", "bf16x2", "u16x2", "s16x2", "tf32"), "r"),
    **dict.fromkeys(("b64", "u64", "s64"), "d"),
    "f32": "f",
    "f64": "g",
    "b128": "x",
}
_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
_FIXED = {"label": "DONE", "function": "subroutine", "targets": "TARGETS", "sink": "_"}


def chosen(form: Form, opcode: str) -> Mapping[str, str]:
    match = form.expression.fullmatch(opcode)
    assert match is not None
    return {name: (text or "").lstrip(".:") for name, text in match.groupdict().items()}


@dataclass(frozen=True)
class Place:
    """An operand at one place of a statement."""

    parameter: Parameter
    scalar: str
    """Type of a register; "" for an address, a constant, a label."""
    registers: int
    vector: bool
    """Whether they stand in braces, be it only one."""


def places(form: Form, opcode: str) -> list[Place]:
    """The operands of the opcode; those that may be missing are there."""
    m = chosen(form, opcode)
    default = m.get("type") or next((x for x in opcode.split(".")[::-1] if x in BANKS), "b32")
    found = []
    for each in form.operands:
        if each.when and not m[each.when]:
            continue
        if each.constant is not None or each.address or each.type in _FIXED:
            found.append(Place(each, "", 0, False))
            continue
        scalar = each.type or ("pred" if each.name in "pq" else default)
        scalar = _WIDE[default] if scalar == "wide" else m.get(scalar, scalar)
        count = re.match(r"[vx]?(\d+)", m.get(each.count, each.count))
        registers = int(count[1]) // each.divisor if count else 1
        vector = registers > 1 or each.count.isdigit() or each.count in ("count", "n")
        found.append(Place(each, scalar, registers, vector))
    return found


def statement(form: Form, opcode: str) -> str:
    """The opcode with operands; those that may be missing are there."""
    used: Counter[str] = Counter()
    operands = []
    for place in places(form, opcode):
        each = place.parameter
        if not place.scalar:
            # Parameters of calls are known by name only.
            of_call = opcode.startswith("st.param") or "param::func" in opcode
            address = "[given]" if of_call else "[d19]"
            if each.address and each.count:
                axes = int(chosen(form, opcode)[each.count][0])
                address = "[d19, {" + ", ".join(f"r{10 + i}" for i in range(axes)) + "}]"
            fixed = address if each.address else _FIXED.get(each.type) or str(each.constant)
            operands.append(fixed)
            continue
        names, bank = [], BANKS[place.scalar]
        for _ in range(place.registers):
            # Those with vectors of many registers have many of them.
            names.append(f"{bank}{used[bank] if bank in 'rf' else used[bank] % 9}")
            used[bank] += 1
        if place.vector:
            operands.append("{" + ", ".join(names) + "}")
        else:
            operands.append(names[0] + ("|p8" if each.paired else ""))
    return f"{opcode} {', '.join(operands)};"


def module(statements: Sequence[str], version: str, target: str) -> str:
    """An entry with the statements, the first of them in line `FIRST_LINE`."""
    head = f".version {version}\n.target {target}\n.address_size 64\n"
    head += ".func subroutine() { ret; }\n.visible .entry k()\n{"
    wide = WIDE * any(".b128" in each for each in statements)
    head += DECLARATIONS + wide + "TARGETS: .branchtargets DONE;\n"
    assert head.count("\n") + 1 == FIRST_LINE
    return head + "\n".join(statements) + "\nDONE: ret;\n}\n"


FIRST_LINE = 10


def complaints(statements: Sequence[str], version: str, target: str, arch: str) -> list[list[str]]:
    """The assembler's messages, one for each statement."""
    text = log(statements, version, target, arch)
    found: list[list[str]] = [[] for _ in statements]
    for line, message in re.findall(r"line (\d+); error\s*: *(.*)", text):
        if 0 <= int(line) - FIRST_LINE < len(found):
            found[int(line) - FIRST_LINE].append(message)
    return found


def log(statements: Sequence[str], version: str, target: str, arch: str) -> str:
    """The assembler's message for an entry with the statements; "" if all went well."""
    handle = nvjitlink.create(2, [f"-arch={arch}", "-no-cache"])
    data = module(statements, version, target).encode() + b"\0"
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "k")
        nvjitlink.complete(handle)
    except nvjitlink.nvJitLinkError:
        text = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, text)
        return text.decode(errors="replace").replace("\0", "")
    finally:
        nvjitlink.destroy(handle)
    return ""


def asked_for(complaints: Iterable[str]) -> tuple[tuple[int, int], tuple[int, str], list[str]]:
    """The version and the architecture that complaints ask for, and what else they say."""
    version, target, rest = (6, 0), (70, ""), []
    for each in complaints:
        if match := re.search(r"requires PTX ISA \.version (\d+)\.(\d+)", each):
            version = max(version, (int(match[1]), int(match[2])))
        elif "not supported on .target" in each:
            # It does not say which have it: one architecture alone, or all from sm_90 on.
            of_all = "cp_fenceproxy" in each or "unidirection proxy fence" in each
            target = max(target, (90, "") if of_all else ONE_ARCHITECTURE)
        elif match := re.search(r"requires \.target sm_(\d+)(a?)", each):
            target = max(target, (int(match[1]), match[2]))
        else:
            rest.append(each)
    return version, target, rest
