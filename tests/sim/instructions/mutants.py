"""Statements with an operand that may be wrong, and what the assembler and the executor say."""

import random
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sim.instructions.statements import FIRST_LINE, module, statement
from sim.instructions.test_table_assembled import sample

from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor
from cuevo.sim.instructions.table import Form, forms

LEVEL = "9.0", "sm_90a"
LAX = (
    # Registers of 16 bits as addresses, or of 32 where the target has 64.
    r"\[h\w\W",
    r"\[r\w\W",
    # Elements of vectors, of which it looks at few, and all operands of mma.
    r"^(@\S+ )?(wg|w)?mma\.",
    r"^(@\S+ )?(atom|red|st|ld|mov|movmatrix|[ls][dt]matrix)\..*(\{|movmatrix)",
    # A second result of what has none; an mbarrier that is missing, or a number.
    r"r1\|_",
    r"(red|st)\.async\S* [^,]+, \w+;|cp\.async\.bulk.*, 1;",
    # Predicates are numbers of one bit, but not beside every type of halves.
    r"^(@\S+ )?setp?\..*b?f16(x2)?\b.*, [^,]+;",
    # The address of a parameter of a call: of .param in some places, of .local in others.
    r"given|mine",
    # Operands of any kind, decimal numbers where only patterns are taken, and the reverse.
    r"cvt\.pack|^(@\S+ )?(fns|isspacep|mapa|movmatrix|cvt\S*\.tf32)\.",
    # Vectors where a register stands; a fence of any address.
    r"(bf16|mbarrier)\S* .*\{|fence\.proxy\.tensormap::generic",
    # Two halves in a register of 64 bits, whose upper word is anything then; an operand too many.
    r"cvt\S*\.f16x2\.f32 d",
    r"atom\.(?!cas|.*(\.cas|hint))\S* [^\]]*\](, \w+){2};",
    # What it links for division takes no expression; one number for the elements of a vector; and
    # of a float out of a wider register it stores the number, the ISA the bits.
    r"(div|rem)\.[us]64 .*own\+|st\.async\S*\.v[24]\S* [^{]*;|st\.\S*f32 .*\W(d\d)\b",
    # More arrivals than an mbarrier counts.
    r"mbarrier\S*arrive.*, (1048576|4294967295)",
    # Constants that are expressions, of video instructions; addresses in 16 bytes.
    r"^(@\S+ )?v\w+[24]\.|b128.* own\+4",
    # Numbers of more than 32 bits where a number of a barrier, of bits or of bytes stands.
    r"(bar|barrier|bulk)\S* .*\b(4294967296|18446744073709551615|-2147483649)",
)
"""Where ptxas 13.0 is no measure; each has its reason."""
UNKNOWN = "?"
"""The assembler has no verdict: it crashes."""
_AT_ONCE = 40
_MORE = ".reg .u16 hu; .reg .s16 hs; .reg .f16 hf; .reg .u32 ru; .reg .s32 rs; .reg .u64 du;"
_MORE += " .reg .s64 ds; .shared .align 16 .b8 own[64]; .local .align 16 .b8 mine[64];"
_REGISTERS = ("p1", "h1", "hu", "hs", "hf", "r1", "ru", "rs", "d1", "du", "ds", "f1", "g1", "x1")
_SCALARS = (
    *_REGISTERS,
    *("_", "!p1", "-r1", "p1|p2", "r1|p2", "_|p2", "r1|_"),
    *("%tid.x", "%laneid", "%clock64", "%lanemask_lt", "%dynamic_smem_size", "WARP_SZ"),
    *("0", "1", "-1", "16", "17", "100", "255", "256", "65536", "4294967295", "4294967296", "5U"),
    *("18446744073709551615", "-2147483649", "1.0", "-1.5", "1e9"),
    *("0f3F800000", "0d3FF0000000000000"),
    *("(1+2)*3", "~0", "!0", "1<2", "1 ? 2 : 3", "own", "own+4", "mine", "DONE", "given"),
)  # fmt: skip
_ADDRESSES = (
    *("d1", "d1+8", "d1-8", "d1+-16", "r1", "r1+4", "du", "rs", "h1", "f1", "g1", "p1", "x1", "_"),
    *("0", "16", "-8", "own", "own+8", "own+-8", "mine", "given", "given+8", "%tid.x", "1.0"),
    *("d1+r1", "d1+4294967296", "d1+1.0", "DONE", "d1, {r1, r2}", "d1, r1"),
)


@dataclass(frozen=True)
class Mutant:
    """A statement, and how it came about."""

    form: Form
    opcode: str
    text: str

    @property
    def is_lax(self) -> bool:
        """Whether the assembler is known to take, or to refuse, more than it means to."""
        return any(re.search(each, self.text) for each in LAX)

    @property
    def alone(self) -> str:
        """The statement with declarations of what it may name beyond other statements."""
        return f"{{ {_MORE} {self.text} }}"


def operands(text: str) -> tuple[str, list[str]]:
    """The opcode of a statement, and its operands."""
    opcode, _, rest = text.removesuffix(";").partition(" ")
    parts = re.findall(r"(?:\{[^}]*\}|\[[^]]*\]|[^,\s])+", rest)
    return opcode, parts


def mutated(rng: random.Random, text: str) -> str:
    """The statement with one operand changed, left out or there twice."""
    opcode, parts = operands(text)
    if not parts:
        return f"{opcode} {rng.choice(_SCALARS)};"
    at = rng.randrange(len(parts))
    old = parts[at]
    kind = rng.randrange(20)
    if kind == 0:
        del parts[at]
    elif kind == 1:
        parts.insert(at, rng.choice((old, rng.choice(_SCALARS))))
    elif kind == 2:
        parts[at] = rng.choice(("{r1, r2}", "{r1}", "{f1, f2, f3, f4}", "[d1]", "{d1, d2}", "1"))
    elif old.startswith("["):
        parts[at] = f"[{rng.choice(_ADDRESSES)}]"
    elif old.startswith("{"):
        elements = old.strip("{}").split(", ")
        elements[rng.randrange(len(elements))] = rng.choice(_SCALARS)
        parts[at] = "{" + ", ".join(elements) + "}"
    else:
        parts[at] = rng.choice(_SCALARS)
    return f"{opcode} {', '.join(parts)};"


@cache
def _opcodes(form: Form) -> list[str]:
    return list(sample(form, 24))


def mutants(seed: int, count: int) -> Iterator[Mutant]:
    """As many, their forms drawn evenly; the same for a seed."""
    rng = random.Random(seed)
    for _ in range(count):
        form = rng.choice(forms())
        opcode = rng.choice(_opcodes(form))
        guard = rng.choice(("@p1 ", "@!p1 ", "@r1 ", "@f1 ")) if rng.random() < 0.03 else ""
        yield Mutant(form, opcode, guard + mutated(rng, statement(form, opcode)))


def of_assembler(statements: Sequence[str]) -> list[str]:
    """The complaint of ``ptxas`` about each statement, "" where it has none."""
    with tempfile.TemporaryDirectory() as folder:
        found: list[str] = []
        for start in range(0, len(statements), _AT_ONCE):
            found += _of_assembler(statements[start : start + _AT_ONCE], Path(folder) / "k.ptx")
        return found


def _of_assembler(statements: Sequence[str], path: Path) -> list[str]:
    found = dict.fromkeys(range(len(statements)), "")
    while left := [index for index, complaint in found.items() if not complaint]:
        path.write_text(module([statements[index] for index in left], *LEVEL), "utf-8")
        command = ["ptxas", f"-arch={LEVEL[1]}", "-o", str(path.with_suffix(".cubin")), str(path)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode == 0:
            break
        stated = re.findall(r"line (\d+); (?:error|fatal)\s*: *(.*)", run.stderr)
        named = [(int(line) - FIRST_LINE, message) for line, message in stated]
        named = [each for each in named if 0 <= each[0] < len(left)]
        for at, message in named:
            found[left[at]] = message
        if not named and len(left) == 1:
            # It has crashed, or says not where.
            found[left[0]] = run.stderr or UNKNOWN
        elif not named:
            for index in left:
                found[index] = _of_assembler([statements[index]], path)[0]
            break
    return list(found.values())


def of_executor(statement: str) -> str:
    """The executor's complaint, "" where it has none."""
    try:
        SimExecutor(LEVEL[1]).load_text("k", module([statement], *LEVEL))
    except SimulatorError as error:
        return str(error).splitlines()[0]
    return ""


def disagreements(found: Sequence[Mutant]) -> Iterator[tuple[Mutant, str, str]]:
    """Statements that one of the two refuses, and what each says."""
    listed = [mutant.alone for mutant in found]
    for mutant, theirs in zip(found, of_assembler(listed), strict=True):
        ours = of_executor(mutant.alone)
        if bool(theirs) == bool(ours) or mutant.is_lax:
            continue
        # Beside others it says of some statements what is true of their neighbours.
        (theirs,) = of_assembler([mutant.alone])
        if bool(theirs) != bool(ours) and theirs != UNKNOWN:
            yield mutant, theirs, ours
