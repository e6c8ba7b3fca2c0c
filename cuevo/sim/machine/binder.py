"""Operands of an instruction to arrays of a machine.

Binding happens twice: when a kernel is loaded, to a machine of one warp, so that whatever the CPU
executor does not support is refused then, and the registers that each instruction reads and writes
become known (once for all instructions of a pattern); and when an instruction is first run on a
machine.
"""

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from cuevo.sim.aliases import AnyArray, AnyDType, Mask, Step, Write
from cuevo.sim.faults import PtxError
from cuevo.sim.machine.state import Machine
from cuevo.sim.text.syntax import (
    AddressOperand,
    FloatOperand,
    Instruction,
    IntegerOperand,
    Operand,
    PairOperand,
    Register,
    RegisterOperand,
    SinkOperand,
    SpecialOperand,
    SymbolOperand,
    VectorOperand,
)
from cuevo.sim.text.types import TYPES, ScalarType

_OF_SPECIAL_REGISTERS = re.compile(r"mov\..*|cvt(\.sat)?\.[us]\d+\.[us]\d+")
_OF_ADDRESSES = re.compile(r"mov\.|cvta\.(?!to\.)|mapa\.|getctarank\.|call\b")
"""Instructions that take the address of a variable as a number, or a special register."""
_WITH_SINKS = (
    *("atom.", "setp.", "lop3.", "ld.", "mov.", "mma.", "match.all.", "shfl.", "elect."),
    *("mbarrier.arrive.", "mbarrier.arrive_drop."),
)
"""Instructions with results that may be thrown away."""


_SPECIAL_PREDICATE = SpecialOperand("%is_explicit_cluster")
_ONCE_NARROWER = ("%tid", "%ntid", "%ctaid", "%nctaid", "%gridid")
"""Special registers that had fewer bits in early versions of PTX, so that mov still takes some."""


class Binder:
    def __init__(self, machine: Machine, instruction: Instruction, arch: int) -> None:
        self.machine = machine
        self.instruction = instruction
        self.arch = arch
        """Compute capability, 80 for sm_80."""
        self.reads: set[int] = set()
        self.writes: set[int] = set()
        self.conditional: set[int] = set()
        """Subset of `reads` that not every execution reads. The step itself looks whether they were
        written.
        """
        self.keeps: set[int] = set()
        """Registers that a wgmma goes on using after its step."""
        self.suspects: frozenset[int] = frozenset()
        """Registers that may not have been written when the instruction reads them."""
        self._timed = False

    # -- Operands by position ---------------------------------------------------------------------

    @property
    def operands(self) -> int:
        """Number of operands; the table of forms has checked it."""
        return len(self.instruction.operands)

    def operand(self, index: int) -> Operand:
        return self.instruction.operands[index]

    def refusal(self, message: str) -> PtxError:
        return PtxError(self.instruction.line, message)

    # -- Sources ----------------------------------------------------------------------------------

    def source(self, operand: Operand, scalar: ScalarType, *, wider: bool = False) -> AnyArray:
        """A source operand seen as `scalar`: shape (32, warps), or (1, 1) for a constant.

        `wider` admits a register wider than the type, as the operands of ld, st and cvt may be.
        """
        if isinstance(operand, RegisterOperand):
            register = operand.register
            if register.type is not scalar:
                self._check_type(register.type, scalar, register.name, wider)
            self.reads.add(register.slot)
            if operand.negated:
                raise self.refusal(f"!{register.name} cannot stand here")
            return _low_part(self.machine.register(register), scalar.dtype)
        word = self.instruction.opcode.partition(".")[0]
        match operand:
            case SpecialOperand(name):
                if not _OF_SPECIAL_REGISTERS.fullmatch(self.instruction.opcode):
                    raise self.refusal(f"{word} does not take {name}; a mov does")
                if operand == _SPECIAL_PREDICATE:
                    raise self.refusal(f"{name} is a predicate")
                return self._special(name, scalar)
            case IntegerOperand(value):
                if scalar.kind in "fh":
                    takes = "0f... or 1.0" if scalar.bits >= 32 and scalar.kind == "f" else "none"
                    raise self.refusal(f"{value} is an integer; {scalar.name} takes {takes}")
                return _integer(value, scalar)
            case FloatOperand():
                return self._float(operand, scalar)
            case SymbolOperand(variable, 0) if not _OF_ADDRESSES.match(self.instruction.opcode):
                raise self.refusal(f"{word} does not take {variable.name}'s address; a mov does")
            case SymbolOperand() if scalar.bits <= 64 and scalar.kind in "bus":
                return self._address_of(operand, scalar)
        raise self.refusal(
            f"an operand of {self.instruction.opcode} is of a kind that it does not take"
        )

    def _address_of(self, symbol: SymbolOperand, scalar: ScalarType) -> AnyArray:
        variable, offset = symbol.variable, symbol.offset
        framed = self.machine.local.place(variable)
        if framed is not None:
            if offset or scalar.bits != 64:
                raise self.refusal(
                    f"{variable.name} is of a function that calls itself: its address "
                    "comes as 64 bits, without an offset"
                )
            return framed.view(scalar.dtype)
        address = self.machine.address_of(variable) + offset
        if variable.space == ".shared" and self.machine.shared.cluster > 1:
            whole = np.broadcast_to(self.machine.shared.window + address, self.machine.shape)
            return whole.astype(f"u{scalar.bits // 8}").view(scalar.dtype)
        return _integer(address, scalar)

    def _special(self, name: str, scalar: ScalarType) -> AnyArray:
        values = self.machine.special[name]
        bits = 8 * values.dtype.itemsize
        cut = scalar.bits < bits and self.instruction.opcode.startswith("mov")
        cut = cut and name.partition(".")[0] not in _ONCE_NARROWER
        if scalar.bits > bits or cut or scalar.kind == "f":
            raise self.refusal(f"{name} is a {bits}-bit integer")
        self._timed |= name.startswith(("%clock", "%globaltimer"))
        return _low_part(values, scalar.dtype)

    def whole(self, operand: Operand, scalar: ScalarType) -> AnyArray:
        """A `source` with constants spread over all lanes."""
        array = self.source(operand, scalar)
        shape = self.machine.shape
        return array if array.shape == shape else np.broadcast_to(array, shape)

    def reader(self, operand: Operand, scalar: ScalarType) -> Callable[[], AnyArray]:
        """A `source` when called."""
        array = self.source(operand, scalar)
        return lambda: array

    def predicate(self, operand: Operand) -> Callable[[], AnyArray]:
        """A predicate source, which may be negated."""
        if isinstance(operand, IntegerOperand):
            always = _integer(operand.value, TYPES["pred"])
            return lambda: always
        if operand == _SPECIAL_PREDICATE and self.instruction.opcode == "mov.pred":
            explicit = self.machine.special[_SPECIAL_PREDICATE.name]
            return lambda: explicit
        if not isinstance(operand, RegisterOperand):
            raise self.refusal(f"{self.instruction.opcode} needs a predicate here")
        self._check_type(operand.register.type, TYPES["pred"], operand.register.name, False)
        self.reads.add(operand.register.slot)
        array = self.machine.register(operand.register)
        return (lambda: ~array) if operand.negated else (lambda: array)

    def constant(self, operand: Operand) -> int:
        if not isinstance(operand, IntegerOperand):
            raise self.refusal(f"{self.instruction.opcode} needs a constant here")
        return operand.value

    def within(self, index: int, allowed: range) -> None:
        """Refuse a constant operand that is none of these numbers."""
        operand = self.operand(index)
        if isinstance(operand, IntegerOperand) and operand.value not in allowed:
            step = f"multiples of {allowed.step} " if allowed.step > 1 else "numbers "
            raise self.refusal(
                f"{self.instruction.opcode} takes {step}from {allowed[0]} to {allowed[-1]}, not "
                f"{operand.value}"
            )

    def vector(self, operand: Operand, count: int) -> tuple[Operand, ...]:
        """The elements of ``{a, b, ...}``; a lone operand is a vector of one."""
        elements = operand.elements if isinstance(operand, VectorOperand) else (operand,)
        if len(elements) != count:
            raise self.refusal(
                f"{self.instruction.opcode} needs {count} registers here, not {len(elements)}"
            )
        return elements

    def address(self, operand: Operand, space: str = "") -> Callable[[], AnyArray]:
        """The addresses of ``[base + offset]`` when called: uint32 or uint64. With `space`, such as
        ``.shared``, a variable must be of that.
        """
        if not isinstance(operand, AddressOperand):
            raise self.refusal(f"{self.instruction.opcode} needs an address in brackets here")
        if operand.coordinates and ".tensor." not in self.instruction.opcode:
            raise self.refusal(f"{self.instruction.opcode} takes no coordinates")
        base, offset = operand.base, operand.offset
        if base is None and space != ".local":
            raise self.refusal(f"a number is an address in .local only, not {offset:#x} here")
        if space and isinstance(base, SymbolOperand) and base.variable.space != space:
            raise self.refusal(f"{base.variable.name} is in {base.variable.space}, not {space}")
        shape = self.machine.shape
        if not isinstance(base, RegisterOperand):
            framed = (
                self.machine.local.place(base.variable) if isinstance(base, SymbolOperand) else None
            )
            if framed is not None:
                distance = np.uint64(offset & (2**64 - 1))
                return lambda: framed + distance
            start = np.zeros((1, 1), np.uint64)
            if isinstance(base, SymbolOperand):
                start = self._address_of(base, TYPES["u64"])
            added = np.uint64(offset & (2**64 - 1))
            fixed = np.array(np.broadcast_to(start + added, shape))
            return lambda: fixed
        declared = base.register.type
        bits = declared.bits
        if bits not in (32, 64) or declared.kind == "f":
            raise self.refusal(f"{base.register.name} is no address: it is .{declared.name}")
        array = self.source(base, TYPES[f"b{bits}"])
        if offset == 0:
            return lambda: array
        more = array.dtype.type(offset & (2**bits - 1))
        return lambda: array + more

    def carry_in(self) -> AnyArray:
        """The carry flag of each thread, which instructions with ``.cc`` write."""
        carry = self._carry()
        self.reads.add(carry.slot)
        return self.machine.register(carry)

    # -- Destinations -----------------------------------------------------------------------------

    def destination(self, operand: Operand, scalar: ScalarType, *, wider: bool = False) -> AnyArray:
        """The register to write, seen as `scalar`; an array that is never read for ``_``."""
        if isinstance(operand, SinkOperand):
            if not self.instruction.opcode.startswith(_WITH_SINKS):
                raise self.refusal(f"{self.instruction.opcode} takes no _ for a result")
            return self.machine.scratch("sink", scalar.dtype)
        if not isinstance(operand, RegisterOperand) or operand.negated:
            raise self.refusal(f"the destination of {self.instruction.opcode} must be a register")
        register = operand.register
        if register.type is not scalar:
            self._check_type(register.type, scalar, register.name, wider)
        self.writes.add(register.slot)
        raw = self.machine.register(register)
        if wider and register.type.bits > scalar.bits:
            return raw
        return raw if raw.dtype is scalar.dtype else raw.view(scalar.dtype)

    def writer(self, operand: Operand, scalar: ScalarType) -> Write:
        """Writes the register for lanes, and marks it as written by them, whether they are those of
        the step or not. Does nothing for ``_``.
        """
        destination, written = self.destination(operand, scalar), self.machine.written
        if not isinstance(operand, RegisterOperand):
            return lambda result, mask: None
        slot = operand.register.slot

        def write(result: AnyArray, mask: Mask) -> None:
            lanes = True if mask is None else mask
            np.copyto(destination, result, where=lanes, casting="unsafe")
            if slot in written:
                written[slot] |= lanes

        return write

    def carry_out(self) -> AnyArray:
        carry = self._carry()
        self.writes.add(carry.slot)
        return self.machine.register(carry)

    def _carry(self) -> Register:
        carry = self.machine.function.carry
        assert carry is not None
        return carry

    def pair(self, operand: Operand) -> tuple[Operand, Operand]:
        """The two destinations of ``p|q``; the second one is a sink if it is missing."""
        if isinstance(operand, PairOperand):
            return operand.first, operand.second
        return operand, SinkOperand()

    def scratch(self, name: str, dtype: AnyDType) -> AnyArray:
        return self.machine.scratch(name, dtype)

    def alu(self, destination: AnyArray, compute: Callable[[AnyArray], object]) -> Step:
        """A step that computes a result for all lanes, and keeps it where the mask says so.

        `compute` writes its result into the array that it gets, which may be one of its sources: it
        must have read them by then.
        """
        held = self.scratch("held", destination.dtype)
        if self._timed:
            untimed = compute

            def compute(out: AnyArray) -> object:
                self.machine.tick()
                return untimed(out)

        def step(mask: AnyArray | None) -> None:
            if mask is None:
                compute(destination)
            else:
                compute(held)
                np.copyto(destination, held, where=mask)

        return step

    # -- Checks -----------------------------------------------------------------------------------

    def _check_type(self, declared: ScalarType, wanted: ScalarType, name: str, wider: bool) -> None:
        if wanted.agrees_with(declared):
            return
        # ptxas extends to 128 bits, too; the ISA does not say with what.
        if wider and declared.bits <= 64 and wanted.widens_to(declared):
            return
        raise self.refusal(
            f"{name} is declared .{declared.name}; {self.instruction.opcode} needs "
            f".{wanted.name} here"
        )

    def _float(self, operand: FloatOperand, scalar: ScalarType) -> AnyArray:
        """A literal as a number of f32 or f64, rounded where it has more bits; as the pattern that
        it is among untyped bits.
        """
        if scalar.kind == "f" and scalar.bits >= 32:
            if operand.bits == scalar.bits:
                return np.array([[operand.pattern]], f"u{scalar.bits // 8}").view(scalar.dtype)
            with np.errstate(over="ignore"):
                return np.array([[operand.value]]).astype(scalar.dtype)
        if scalar.kind == "b" and scalar.bits == (operand.bits or 64):
            return np.array([[operand.pattern]], f"u{scalar.bits // 8}").view(scalar.dtype)
        stated = operand.value if operand.bits is None else f"a literal of {operand.bits} bits"
        raise self.refusal(f"{stated} is no operand of type .{scalar.name}")


def _low_part(raw: AnyArray, dtype: AnyDType) -> AnyArray:
    """The low bits of each element, in place (a strided view where the register is wider)."""
    if raw.dtype is dtype:
        return raw
    if dtype == np.bool_ or raw.dtype.itemsize == dtype.itemsize:
        return raw.view(dtype)
    parts = raw.dtype.itemsize // dtype.itemsize
    return raw.view(dtype).reshape(*raw.shape, parts)[..., 0]


def is_constant(source: AnyArray) -> bool:
    return source.size == 1


@lru_cache(4096)
def _integer(value: int, scalar: ScalarType) -> AnyArray:
    """Shared by all that ask, and read only."""
    if scalar.kind == "p":
        return np.frombuffer(bytes([bool(value)]), np.bool_).reshape(1, 1)
    pattern = (value & (2**scalar.bits - 1)).to_bytes(scalar.bits // 8, "little")
    return np.frombuffer(pattern, scalar.dtype).reshape(1, 1)
