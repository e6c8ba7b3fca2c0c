"""Every arithmetic instruction of the executor's table, as something to be run on registers.

A row that the table gains is here by itself; only what is no arithmetic is left out, by name.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from sim.instructions.statements import places

from cuevo.sim.instructions.table import Form, forms

LEFT_OUT = {
    "address": "addresses are those of one launch",
    "load": "moves memory",
    "store": "moves memory",
    "store_async": "moves memory",
    "cache": "hints to caches",
    "atomic": "the order of threads decides",
    "copy_async": "moves memory",
    "copy_bulk": "moves memory",
    "copy_tensor": "moves memory",
    "tensor_map": "changes memory",
    "cluster": "addresses are those of one launch",
    "mbarrier": "the order of threads",
    "control": "the flow of control",
    "calls": "the flow of control",
    "barrier": "the order of warps",
    "matrix.load": "moves shared memory",
    "matrix.store": "moves shared memory",
    "warp.active_mask": "depends on what the hardware has together",
    "warp.elect": "any lane may be the one",
    "warp.barrier": "the order of lanes",
    "warp.fence": "the order of accesses",
    "warp.fence_proxy": "the order of accesses",
    "warp.fence_init": "the order of accesses",
    "select.move_vector": "copies registers, each as mov does",
    "warp.registers": "has no result",
    "warp.nothing": "has no result",
    "wmma": "which lane has which element differs among architectures: passages.py has products",
    "wgmma": "its operands are in shared memory: products.py has kernels of its own",
}
"""Modules and binders left out, with the reason."""
_TOO_WIDE = ".b128"
"""Results are kept as integers of 64 bits."""

_COUNTS = {
    "logic.shift": "b",
    "logic.funnel_shift": "c",
    "bits.extract_field": "bc",
    "bits.insert_field": "ce",
    "bits.mask": "ab",
    "bits.extend_sign": "b",
    "bits.find_nth": "bc",
    "warp.shuffle": "bc",
}
"""Operands that count bits or lanes."""
_LOGIC = range(0, 256, 17)
"""Functions of three bits for lop3."""


@dataclass(frozen=True)
class Source:
    """An operand that is read: that many registers of one type."""

    scalar: str
    registers: int = 1
    role: str = ""
    """Meaning of its values, where the type does not say it."""
    vector: bool = False

    def __str__(self) -> str:
        return self.scalar + f"x{self.registers}" * self.vector + f":{self.role}" * bool(self.role)


@dataclass(frozen=True)
class Probe:
    """One instruction between registers."""

    opcode: str
    constant: int | None
    """The operand that is a constant."""
    results: tuple[Source, ...]
    sources: tuple[Source, ...]
    binder: str
    target: tuple[int, str]
    """The architecture that has it: (80, ""), (90, "a")."""

    @property
    def name(self) -> str:
        more = "" if self.constant is None else f" {self.constant:#04x}"
        octave = self.sources[0].role if self.sources[0].role.startswith("octave") else ""
        return f"{self.opcode}{more} {octave}".rstrip()

    @property
    def signature(self) -> str:
        return ", ".join(map(str, self.sources))

    @property
    def carries(self) -> tuple[bool, bool]:
        """Whether it reads the carry flag, and writes it."""
        head = self.opcode.split(".")[0]
        return head in ("addc", "subc", "madc"), ".cc" in self.opcode

    def text(self, results: list[str], sources: list[list[str]]) -> str:
        """The statement, with one register of `results` for each of theirs."""
        left = iter(results)
        listed = []
        for each in self.results:
            names = list(itertools.islice(left, each.registers))
            # A second destination follows the first one: d|p.
            if each.role == "second":
                listed[-1] += "|" + names[0]
            else:
                listed.append(_joined(names, each))
        listed += [_joined(names, each) for names, each in zip(sources, self.sources, strict=True)]
        if self.constant is not None:
            # lop3 with a predicate has one more operand behind the constant.
            behind = len(listed) - 1 if self.sources[-1].scalar == "pred" else len(listed)
            listed.insert(behind, str(self.constant))
        if self.binder.startswith("warp."):
            listed.append("0xffffffff")  # all lanes take part
        return f"{self.opcode} {', '.join(listed)};"


def _joined(names: list[str], source: Source) -> str:
    return "{" + ", ".join(names) + "}" if source.vector else names[0]


@cache
def probes(number: int = 90) -> tuple[Probe, ...]:
    """Probes of all arithmetic that architecture `number` has."""
    found: dict[str, Probe] = {}
    for form in forms():
        if form.binder in LEFT_OUT or form.binder.split(".")[0] in LEFT_OUT:
            continue
        for opcode in _opcodes(form):
            if opcode.endswith(_TOO_WIDE):
                continue
            for probe in _probes(form, opcode):
                first, special = probe.target
                if first == number or (first < number and not special):
                    found.setdefault(probe.name, probe)
    return tuple(found.values())


def _opcodes(form: Form) -> Iterator[str]:
    choices = [("",) * group.optional + tuple(c for c, _ in group.choices) for group in form.groups]
    return map("".join, itertools.product(*choices))


def _probes(form: Form, opcode: str) -> Iterator[Probe]:
    match = form.expression.fullmatch(opcode)
    assert match is not None
    m = {name: (text or "").lstrip(".:") for name, text in match.groupdict().items()}
    level = form.level_of(m)
    counts = _COUNTS.get(form.binder, "")
    results: list[Source] = []
    sources: list[Source] = []
    constant = None
    for i, place in enumerate(places(form, opcode)):
        each = place.parameter
        if each.constant is not None:
            constant = each.constant
        elif each.name == "m" and form.binder.startswith("warp."):
            continue  # all lanes
        elif i == 0:
            results.append(Source(place.scalar, place.registers, "", place.vector))
            if each.paired:
                results.append(Source("pred", 1, "second"))
        else:
            role = "count" if each.name in counts else ""
            if form.binder in ("floating.approximate", "floating.tanh"):
                role = "argument"
            if form.binder == "integer.divide" and each.name == "b":
                role = "divisor"
            if form.binder.startswith("matrix.multiply"):
                # The elements that a register of the operand holds; m8n8k4 has .row and .col there.
                kind = m.get(each.name, "")
                kind = "f16" if kind in ("row", "col") else kind or place.scalar
                role = f"product {each.name} {kind}"
            sources.append(Source(place.scalar, place.registers, role, place.vector))
    for value in (None,) if constant is None else _LOGIC:
        yield Probe(
            opcode,
            value,
            tuple(results),
            tuple(sources),
            form.binder,
            (level.number, level.special),
        )
