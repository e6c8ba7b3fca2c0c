"""Operands of an instruction to arrays of a machine.

Binding happens twice: when a kernel is loaded, to a machine of one warp, so that everything that
the executor does not know is refused then, and the registers that each instruction reads and writes
become known; and when an instruction is first run on a machine.
"""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, AnyDType, Step
from cuevo.sim.faults import PtxError
from cuevo.sim.machine import Machine
from cuevo.sim.syntax import (
    AddressOperand,
    FloatOperand,
    Instruction,
    IntegerOperand,
    Operand,
    PairOperand,
    RegisterOperand,
    SinkOperand,
    SpecialOperand,
    SymbolOperand,
    VectorOperand,
)
from cuevo.sim.types import TYPES, ScalarType


class Binder:
    def __init__(self, machine: Machine, instruction: Instruction, arch: int) -> None:
        self.machine = machine
        self.instruction = instruction
        self.arch = arch
        """Compute capability, 80 for sm_80."""
        self.reads: set[int] = set()
        self.writes: set[int] = set()

    # -- Operands by position ---------------------------------------------------------------------

    def count(self, low: int, high: int | None = None) -> int:
        """Check the number of operands."""
        found = len(self.instruction.operands)
        if not low <= found <= (low if high is None else high):
            expected = str(low) if high is None or high == low else f"{low} to {high}"
            raise self.refusal(f"{self.instruction.opcode} takes {expected} operands, not {found}")
        return found

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
        match operand:
            case SpecialOperand(name):
                if scalar.bits != 32 or scalar.kind == "f":
                    raise self.refusal(f"{name} is a 32-bit integer")
                return self.machine.special[name].view(scalar.dtype)
            case IntegerOperand(value):
                if scalar.kind == "f":
                    raise self.refusal(f"{value} is an integer; {scalar.name} takes 0f... or 1.0")
                return _integer(value, scalar)
            case FloatOperand():
                return self._float(operand, scalar)
            case SymbolOperand(variable, offset):
                if variable.space == ".param":
                    return _integer(self.machine.parameter_offset(variable.name) + offset, scalar)
                return _integer(self.machine.shared_address[variable.name] + offset, scalar)
        raise self.refusal(
            f"an operand of {self.instruction.opcode} is of a kind that it does not take"
        )

    def whole(self, operand: Operand, scalar: ScalarType) -> AnyArray:
        """Like `source`, with constants spread over all lanes."""
        array = self.source(operand, scalar)
        shape = self.machine.shape
        return array if array.shape == shape else np.broadcast_to(array, shape)

    def predicate(self, operand: Operand) -> Callable[[], AnyArray]:
        """A predicate source, which may be negated."""
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

    def vector(self, operand: Operand, count: int) -> tuple[Operand, ...]:
        """The elements of ``{a, b, ...}``; a lone operand is a vector of one."""
        elements = operand.elements if isinstance(operand, VectorOperand) else (operand,)
        if len(elements) != count:
            raise self.refusal(
                f"{self.instruction.opcode} needs {count} registers here, not {len(elements)}"
            )
        return elements

    def address(self, operand: Operand) -> Callable[[], AnyArray]:
        """The addresses of ``[base + offset]`` when called: uint32 or uint64."""
        if not isinstance(operand, AddressOperand):
            raise self.refusal(f"{self.instruction.opcode} needs an address in brackets here")
        base, offset = operand.base, operand.offset
        shape = self.machine.shape
        if not isinstance(base, RegisterOperand):
            start = 0
            if isinstance(base, SymbolOperand):
                start = int(self.source(base, TYPES["u64"]).item())
            fixed = np.full(shape, (start + offset) & (2**64 - 1), np.uint64)
            return lambda: fixed
        bits = base.register.type.bits
        if bits not in (32, 64):
            raise self.refusal(f"{base.register.name} is no address: it has {bits} bits")
        array = self.source(base, TYPES[f"b{bits}"])
        if offset == 0:
            return lambda: array
        added = array.dtype.type(offset & (2**bits - 1))
        return lambda: array + added

    # -- Destinations -----------------------------------------------------------------------------

    def destination(self, operand: Operand, scalar: ScalarType, *, wider: bool = False) -> AnyArray:
        """The register to write, seen as `scalar`; an array that nobody reads for ``_``."""
        if isinstance(operand, SinkOperand):
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
        if wider and declared.bits > wanted.bits and declared.kind != "p" and wanted.kind != "p":
            return
        raise self.refusal(
            f"{name} is declared .{declared.name}; {self.instruction.opcode} needs "
            f".{wanted.name} here"
        )

    def _float(self, operand: FloatOperand, scalar: ScalarType) -> AnyArray:
        if operand.bits is None:
            if scalar.kind != "f":
                raise self.refusal(f"{operand.value} is no operand of type .{scalar.name}")
            return np.array([[operand.value]], scalar.dtype)
        if operand.bits != scalar.bits:
            raise self.refusal(
                f"a literal of {operand.bits} bits for an operand of type .{scalar.name}"
            )
        return np.array([[operand.pattern]], f"u{operand.bits // 8}").view(scalar.dtype)


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


def _integer(value: int, scalar: ScalarType) -> AnyArray:
    if scalar.kind == "p":
        return np.array([[bool(value)]])
    unsigned = np.array([[value & (2**scalar.bits - 1)]], f"u{scalar.bits // 8}")
    return unsigned.view(scalar.dtype)
