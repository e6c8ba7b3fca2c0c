"""Modules, functions, instructions and operands, as the parser makes them of PTX text."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from cuevo.sim.text.types import ScalarType

VECTOR_REGISTERS = tuple(
    f"%{name}"
    for name in (
        *("tid", "ntid", "ctaid", "nctaid"),
        *("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid"),
    )
)
"""Special registers of four elements, the last of which is 0."""
ZERO_REGISTERS: Mapping[str, int] = {
    **{f"{name}.w": 32 for name in VECTOR_REGISTERS},
    **{f"%envreg{number}": 32 for number in range(32)},
    **{f"%pm{number}": 32 for number in range(8)},
    **{f"%pm{number}_64": 64 for number in range(8)},
    "%current_graph_exec": 64,
}
"""Bits of special registers that are 0 here: there is no graph, and nothing is counted."""
SPECIAL_REGISTERS = frozenset(ZERO_REGISTERS).union(
    [f"{name}.{axis}" for name in VECTOR_REGISTERS for axis in "xyz"],
    ["%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%gridid"],
    [f"%lanemask_{relation}" for relation in ("eq", "le", "lt", "ge", "gt")],
    ["%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"],
    ["%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size"],
    ["%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster"],
    [f"%reserved_smem_offset_{name}" for name in ("begin", "end", "cap", "0", "1")],
)

SYSTEM_FUNCTIONS = frozenset({"vprintf", "__assertfail", "malloc", "free"})
"""Functions of the system, which kernels declare and nobody defines."""


class Register(NamedTuple):
    """A declared register; `slot` numbers the registers of a function, whatever scope they are
    declared in.
    """

    name: str
    type: ScalarType
    slot: int


class RegisterOperand(NamedTuple):
    register: Register
    negated: bool = False
    """``!p``: the complement of a predicate."""


@dataclass(frozen=True)
class SpecialOperand:
    """A special register such as ``%tid.x``."""

    name: str


@dataclass(frozen=True)
class IntegerOperand:
    value: int


@dataclass(frozen=True)
class FloatOperand:
    """A floating-point literal; `bits` is 32 or 64 for 0f... and 0d..., None for a decimal one."""

    value: float
    pattern: int
    bits: int | None


@dataclass(frozen=True)
class SymbolOperand:
    """The address of a variable plus an offset in bytes."""

    variable: "Variable"
    offset: int = 0


@dataclass(frozen=True)
class LabelOperand:
    name: str


@dataclass(frozen=True)
class TargetsOperand:
    """The labels of a ``.branchtargets`` list."""

    labels: tuple[str, ...]


@dataclass(frozen=True)
class CallOperand:
    """``(results), function, (arguments)``"""

    function: str
    results: tuple["Operand", ...]
    arguments: tuple["Operand", ...]
    pointer: RegisterOperand | None = None
    """What holds the function's address, where it is not called by its name."""


@dataclass(frozen=True)
class SinkOperand:
    """``_``: a result that is thrown away."""


@dataclass(frozen=True)
class PairOperand:
    """``p|q``: two destinations."""

    first: "RegisterOperand | SinkOperand"
    second: "RegisterOperand | SinkOperand"


class VectorOperand(NamedTuple):
    """``{a, b}``"""

    elements: tuple["ScalarOperand", ...]


class AddressOperand(NamedTuple):
    """``[base + offset]``; without a base the offset is the address."""

    base: "RegisterOperand | SymbolOperand | None"
    offset: int = 0
    coordinates: tuple["ScalarOperand", ...] = ()
    """Coordinates of ``[base, {x, y}]``, in a tensor map."""


ScalarOperand = (
    RegisterOperand | SpecialOperand | IntegerOperand | FloatOperand | SymbolOperand | SinkOperand
)
Operand = (
    ScalarOperand
    | LabelOperand
    | TargetsOperand
    | CallOperand
    | PairOperand
    | VectorOperand
    | AddressOperand
)


@dataclass(frozen=True)
class Variable:
    """`size` is None for ``.extern .shared`` memory, sized by the launch. The parameters of calls
    are of the space ``.local``, as each thread has its own; a function that has an address is a
    variable of the space ``.func``.
    """

    name: str
    space: str
    size: int | None
    alignment: int
    line: int = field(compare=False)
    content: bytes = b""
    """Initial content."""
    addresses: tuple["Address", ...] = ()
    """Those in it, of which `content` has zeros."""

    def content_with(self, address_of: Callable[["Address"], int]) -> bytes:
        """The initial content, its addresses given."""
        found = bytearray(self.content)
        for each in self.addresses:
            shift = (each.mask & -each.mask).bit_length() - 1
            value = (address_of(each) & each.mask) >> shift & ((1 << 8 * each.size) - 1)
            found[each.at : each.at + each.size] = value.to_bytes(each.size, "little")
        return bytes(found)


@dataclass(frozen=True)
class Address:
    """An address that memory is initialised with."""

    at: int
    """Where it is in the content."""
    size: int
    """Its bytes there."""
    variable: Variable
    offset: int
    generic: bool
    """A generic address, not one in the variable's own state space."""
    mask: int
    """Bits that are kept, moved down to the lowest one."""


@dataclass(frozen=True)
class Subroutine:
    """A ``.func``, its body among the instructions of the entry that calls it."""

    name: str
    begin: int
    """Index of its first instruction."""
    results: tuple[Register | Variable, ...]
    parameters: tuple[Register | Variable, ...]
    registers: tuple[Register, ...] = ()
    """All of its own."""
    local: tuple[Variable, ...] = ()
    """Its ``.local`` variables and those that are parameters."""
    recursive: bool = False
    """Whether it may call itself, by way of others or not."""


class Instruction(NamedTuple):
    opcode: str
    """Opcode as written, modifiers included: ``ld.global.v4.b32``."""
    operands: tuple[Operand, ...]
    guard: RegisterOperand | None
    line: int
    """Line of the text where it begins, counted from 1."""
    subroutine: str = ""
    """The ``.func`` that it is in; "" in the entry's own body."""
    pattern: "Pattern | None" = None
    """Shared by all instructions that differ from this one in nothing but registers; only those on
    registers, constants and the kernel's parameters have one.
    """
    registers: "Registers" = ()
    """Registers of its pattern, by place."""

    @property
    def goes_on(self) -> bool:
        """Whether the instruction behind it may be the next one."""
        return self.guard is not None or self.opcode.split(".")[0] not in _LEAVING


_LEAVING = ("bra", "brx", "ret", "exit", "trap")

Registers = Sequence[RegisterOperand]
_new = tuple.__new__


class Pattern:
    """An instruction on registers, constants and parameters, for any registers of its types.

    The registers of `instruction` have their place as their slot.
    """

    def __init__(self, instruction: Instruction) -> None:
        self.notes: dict[Hashable, Any] = {}
        """Memo of facts about the pattern, each under a key of its finder's own."""
        self._opcode = instruction.opcode
        self._operands = [_filler(operand) for operand in instruction.operands]
        self._guard = _filler(instruction.guard) if instruction.guard is not None else None

    def on(self, registers: Registers, line: int, subroutine: str) -> Instruction:
        """The instruction on these registers."""
        operands = tuple([fill(registers) for fill in self._operands])
        guard = self._guard(registers) if self._guard is not None else None
        facts = self._opcode, operands, guard, line, subroutine, self, registers
        return _new(Instruction, facts)  # half the time of Instruction(...)


def _filler(operand: Operand) -> Callable[[Registers], Any]:
    """A function of registers that has them at the places that are the slots in `operand`."""
    match operand:
        case RegisterOperand(register, negated):
            place = register.slot
            if negated:
                return lambda registers: RegisterOperand(registers[place].register, True)
            return itemgetter(place)
        case VectorOperand(elements):
            fillers = [_filler(each) for each in elements]
            return lambda registers: VectorOperand(tuple([fill(registers) for fill in fillers]))
        case PairOperand(first, second):
            one, other = _filler(first), _filler(second)
            return lambda registers: PairOperand(one(registers), other(registers))
        case AddressOperand(RegisterOperand() as base, offset, ()):
            start = base.register.slot
            return lambda registers: AddressOperand(registers[start], offset)
        case AddressOperand(base, offset, coordinates):
            origin = _filler(base) if base is not None else lambda registers: None
            rest = [_filler(each) for each in coordinates]
            return lambda registers: AddressOperand(
                origin(registers), offset, tuple([fill(registers) for fill in rest])
            )
    return lambda registers: operand


@dataclass
class Function:
    """An entry point."""

    name: str
    line: int
    parameters: dict[str, Variable] = field(default_factory=dict)
    registers: list[Register] = field(default_factory=list)
    shared: list[Variable] = field(default_factory=list)
    local: list[Variable] = field(default_factory=list)
    """Per thread: ``.local`` variables and the parameters of calls."""
    constant: list[Variable] = field(default_factory=list)
    module_memory: list[Variable] = field(default_factory=list)
    """``.global`` variables of the module."""
    subroutines: dict[str, Subroutine] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    """Bodies of device functions come before those that call them, the entry's own last."""
    start: int = 0
    """Index of the entry's first instruction."""
    labels: dict[str, int] = field(default_factory=dict)
    """Index of the instruction that a label stands in front of; may be one past the last."""
    carry: Register | None = None
    """The carry flag, if an instruction uses it."""
    required_threads: tuple[int, int, int] | None = None
    maximum_threads: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] = (1, 1, 1)
    """Blocks of a cluster along each axis."""


@dataclass
class Module:
    version: str
    target: str
    address_size: int
    functions: dict[str, Function]
    entries: tuple[str, ...] = ()
    """Names of all entries, of which `functions` may have one."""
