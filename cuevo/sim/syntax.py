"""What the parser makes of PTX text."""

from dataclasses import dataclass, field

from cuevo.sim.types import ScalarType


@dataclass(frozen=True)
class Register:
    """A declared register; `slot` numbers the registers of a function, whatever scope they are
    declared in.
    """

    name: str
    type: ScalarType
    slot: int


@dataclass(frozen=True)
class RegisterOperand:
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
class SinkOperand:
    """``_``: a result that nobody wants."""


@dataclass(frozen=True)
class PairOperand:
    """``p|q``: two destinations."""

    first: "RegisterOperand | SinkOperand"
    second: "RegisterOperand | SinkOperand"


@dataclass(frozen=True)
class VectorOperand:
    """``{a, b}``"""

    elements: tuple["ScalarOperand", ...]


@dataclass(frozen=True)
class AddressOperand:
    """``[base + offset]``; without a base the offset is the address."""

    base: "RegisterOperand | SymbolOperand | None"
    offset: int = 0


ScalarOperand = (
    RegisterOperand | SpecialOperand | IntegerOperand | FloatOperand | SymbolOperand | SinkOperand
)
Operand = ScalarOperand | LabelOperand | PairOperand | VectorOperand | AddressOperand


@dataclass(frozen=True)
class Variable:
    """A ``.param`` or ``.shared`` variable; `size` is None for ``.extern .shared`` memory, sized
    by the launch.
    """

    name: str
    space: str
    size: int | None
    alignment: int
    line: int


@dataclass(frozen=True)
class Instruction:
    opcode: str
    """As written, modifiers included: ``ld.global.v4.b32``."""
    operands: tuple[Operand, ...]
    guard: RegisterOperand | None
    line: int
    """Line of the text where it begins, counted from 1."""


@dataclass
class Function:
    """An entry point."""

    name: str
    line: int
    parameters: dict[str, Variable] = field(default_factory=dict)
    registers: list[Register] = field(default_factory=list)
    shared: list[Variable] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    """Index of the instruction that a label stands in front of; may be one past the last."""
    required_threads: tuple[int, int, int] | None = None
    maximum_threads: tuple[int, int, int] | None = None


@dataclass
class Module:
    version: str
    target: str
    address_size: int
    functions: dict[str, Function]
