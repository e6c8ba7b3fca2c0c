"""What the parser makes of PTX text."""

from dataclasses import dataclass, field

from cuevo.sim.text.types import ScalarType


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
class TargetsOperand:
    """The labels of a ``.branchtargets`` list."""

    labels: tuple[str, ...]


@dataclass(frozen=True)
class CallOperand:
    """``(results), function, (arguments)``"""

    function: str
    results: tuple["Operand", ...]
    arguments: tuple["Operand", ...]


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
    coordinates: tuple["ScalarOperand", ...] = ()
    """Those of ``[base, {x, y}]``, in a tensor map."""


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
    are of the space ``.local``, as each thread has its own.
    """

    name: str
    space: str
    size: int | None
    alignment: int
    line: int
    content: bytes = b""
    """What it is initialised with."""


@dataclass(frozen=True)
class Subroutine:
    """A ``.func``, its body among the instructions of the entry that calls it."""

    name: str
    begin: int
    """Index of its first instruction."""
    results: tuple[Register | Variable, ...]
    parameters: tuple[Register | Variable, ...]


@dataclass(frozen=True)
class Instruction:
    opcode: str
    """As written, modifiers included: ``ld.global.v4.b32``."""
    operands: tuple[Operand, ...]
    guard: RegisterOperand | None
    line: int
    """Line of the text where it begins, counted from 1."""
    subroutine: str = ""
    """The ``.func`` that it is in; "" in the entry's own body."""


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
    """Those of device functions come before those that call them, the entry's own last."""
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
