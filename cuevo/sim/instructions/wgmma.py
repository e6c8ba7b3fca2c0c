"""Matrix instructions of warpgroups: wgmma."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cuevo.layouts import M16N8, M16N8_F16, MatrixOperand, mma_shape
from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.arithmetic.tensor_core import OPERAND_TYPES, block, multiply_accumulate
from cuevo.sim.faults import Fault
from cuevo.sim.instructions.matrix import whole_warps
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.machine.state import Machine
from cuevo.sim.machine.wgmma_operands import Read, read_matrix
from cuevo.sim.memory.fragments import matrix_of
from cuevo.sim.sync.warpgroups import Warpgroups
from cuevo.sim.text.syntax import IntegerOperand, Operand, RegisterOperand, VectorOperand
from cuevo.sim.text.types import TYPES

_ROWS = 64
_NUMBERS = len(Warpgroups.NUMBERS)
_COLUMNS_AT_ONCE = 2048
"""Columns of all warps together: more would leave the second cache."""


def fence(b: Binder, m: Modifiers) -> Step:
    machine = b.machine
    return _of_warpgroup(b, lambda mask: machine.warpgroups.fence(mask))


def commit_group(b: Binder, m: Modifiers) -> Step:
    machine = b.machine
    return _of_warpgroup(b, lambda mask: machine.warpgroups.commit(mask))


def wait_group(b: Binder, m: Modifiers) -> Step:
    pending, machine = b.constant(b.operand(0)), b.machine
    if pending < 0:
        raise b.refusal(f"there are no {pending} groups")
    return _of_warpgroup(b, lambda mask: machine.warpgroups.wait(pending, mask))


def _of_warpgroup(b: Binder, run: Step) -> Step:
    """`run`, of an instruction without operands that differ, which all warps come to."""
    machine = b.machine
    alike = np.zeros(_NUMBERS, np.uint64)
    alike[0] = id(b.instruction)

    def step(mask: Mask) -> None:
        some = whole_warps(machine, mask)
        warps = np.arange(machine.warps) if some is None else some
        machine.warpgroups.agree(warps, np.broadcast_to(alike, (warps.size, _NUMBERS)))
        run(mask)

    return step


@dataclass(frozen=True)
class _Operands:
    """``d, a, b, scale-d, imm-scale-a, imm-scale-b{, imm-trans-a}{, imm-trans-b}``"""

    d: tuple[RegisterOperand, ...]
    a: tuple[RegisterOperand, ...]
    """Empty where A is in shared memory."""
    negative: bool
    """Whether the product changes its sign."""
    mn_major_a: bool
    mn_major_b: bool


def _operands(b: Binder, m: Modifiers) -> _Operands:
    packed = m["d"] == "f16"
    floats = () if packed else ("f32",)
    d = _registers(b, b.vector(b.operand(0), int(m["n"]) // (4 if packed else 2)), *floats)
    first = b.operand(1)
    a = _registers(b, b.vector(first, 4)) if isinstance(first, VectorOperand) else ()
    slots = [operand.register.slot for operand in d]
    if len(set(slots)) != len(slots):
        raise b.refusal("a register is twice among the accumulators")
    if any(operand.register.slot in slots for operand in a):
        raise b.refusal("a register is an accumulator and holds elements of A")
    constants = [b.constant(b.operand(i)) for i in range(4, b.operands)]
    scales, transpositions = constants[:2], constants[2:]
    if any(scale not in (1, -1) for scale in scales):
        raise b.refusal(f"imm-scale is 1 or -1, not {scales}")
    if any(each not in (0, 1) for each in transpositions):
        raise b.refusal(f"imm-trans is 0 or 1, not {transpositions}")
    if transpositions and len(transpositions) != (1 if a else 2):
        raise b.refusal("imm-trans-a is there if A is in shared memory, and only then")
    mn_major_a = len(transpositions) == 2 and bool(transpositions[0])
    mn_major_b = bool(transpositions) and bool(transpositions[-1])
    return _Operands(d, a, scales[0] != scales[1], mn_major_a, mn_major_b)


def _registers(b: Binder, operands: Sequence[Operand], *types: str) -> tuple[RegisterOperand, ...]:
    """Registers of bits, or of one of `types`; mma is not that particular."""
    found = tuple(each for each in operands if isinstance(each, RegisterOperand))
    if len(found) != len(operands):
        raise b.refusal("the fragments of wgmma must be registers")
    for each in found:
        declared = each.register.type
        if declared.kind != "b" and declared.name not in types:
            wanted = " or ".join(f".{name}" for name in ("b32", *types))
            raise b.refusal(
                f"{each.register.name} is declared .{declared.name}; wgmma needs {wanted} here"
            )
    return found


def multiply(b: Binder, m: Modifiers) -> Step:
    """Each warp computes its 16 rows; `cuevo.sim.sync.warpgroups` says when they are there."""
    operands, machine = _operands(b, m), b.machine
    n, operand_type = int(m["n"]), m["ab"].split(".")[0]
    dtype = OPERAND_TYPES[operand_type]
    arithmetic, element = block(b.arch, dtype), dtype.itemsize
    packed = m["d"] == "f16"
    slots = [operand.register.slot for operand in operands.d]
    slots_of_a = [operand.register.slot for operand in operands.a]
    d = [
        b.destination(each, TYPES["f16x2" if packed else "f32"]).view(np.uint32)
        for each in operands.d
    ]
    b.keeps.update(slots, slots_of_a)
    scale = _scale(b, slots)
    read_a = _a_of_registers(b, operands.a, operand_type) if operands.a else None
    if read_a is None:
        bits_a = b.whole(b.operand(1), TYPES["b64"])
        left = MatrixOperand(_ROWS, element, operands.mn_major_a)
    bits_b = b.whole(b.operand(2), TYPES["b64"])
    right = MatrixOperand(n, element, operands.mn_major_b)
    sign = np.dtype(f"u{element}").type(1 << 8 * element - 1)
    number = id(b.instruction)
    shape = f"n{n}k{right.depth}"
    fragment = (M16N8_F16 if packed else M16N8).fragment(1, n // 8)
    result_type = np.dtype(np.float16 if packed else np.float32)
    names = [operand.register.name for operand in operands.d]

    def step(mask: Mask) -> None:
        some = whole_warps(machine, mask)
        warps = np.arange(machine.warps) if some is None else some
        groups = machine.warpgroups
        accumulators = groups.accumulators(shape, slots, d, fragment, result_type)
        adds = _uniform(machine, scale(), warps, "scale-d")
        rows = np.zeros((warps.size, _NUMBERS), np.uint64)
        rows[:, 0], rows[:, 3] = number, adds
        if read_a is None:
            rows[:, 1] = _uniform(machine, bits_a, warps, "descriptors of A")
        rows[:, 2] = _uniform(machine, bits_b, warps, "descriptors of B")
        groups.agree(warps, rows)
        _check_written(machine, slots, names, warps[adds & (accumulators.until[warps] == 0)])
        until = groups.use(accumulators, slots, slots_of_a, warps)
        found: list[Read] = []
        if read_a is None:
            found.append(read_matrix(machine, left, bits_a[0], mask, own_rows=True))
            a = found[0].matrix if some is None else found[0].matrix[..., warps]
        else:
            a = read_a(some)
        found.append(read_matrix(machine, right, bits_b[0], mask, own_rows=False))
        b_matrix = found[-1].matrix if some is None else found[-1].matrix[..., warps]
        for indices in (each for read in found for each in read.indices):
            groups.reads(indices, warps, until)
        if operands.negative:
            a = a ^ sign
        c = accumulators.values(warps, adds)
        result = np.empty_like(c)
        width = max(_COLUMNS_AT_ONCE // warps.size, 8)
        for first in range(0, n, width):
            part = slice(first, first + width)
            result[:, part] = multiply_accumulate(
                a, b_matrix[:, part], c[:, part], dtype, arithmetic
            )
        accumulators.put(warps, result, until)

    return step


def _scale(b: Binder, slots: list[int]) -> Callable[[], AnyArray]:
    """scale-d, and with it whether the accumulators are read."""
    operand = b.operand(3)
    if isinstance(operand, IntegerOperand):
        if operand.value not in (0, 1):
            raise b.refusal(f"scale-d is a predicate, or 0 or 1, not {operand.value}")
        fixed = np.full(b.machine.shape, bool(operand.value))
        if operand.value:
            b.reads.update(slots)
        return lambda: fixed
    b.reads.update(slots)
    b.conditional.update(slots)
    return b.predicate(operand)


def _a_of_registers(
    b: Binder, operands: tuple[RegisterOperand, ...], operand_type: str
) -> Callable[[AnyArray | None], AnyArray]:
    """A as patterns (16, depth, warps), of some warps or of all."""
    registers = [b.source(each, TYPES["b32"]) for each in operands]
    size = OPERAND_TYPES[operand_type].itemsize
    # A warp holds its 16 rows as mma has them, 32 bytes along k.
    fragment = mma_shape(f"m16n8k{32 // size}", operand_type).a["row"]
    pattern = np.dtype(f"u{size}")

    def read(warps: AnyArray | None) -> AnyArray:
        taken = registers if warps is None else [each[:, warps] for each in registers]
        return matrix_of(taken, fragment, pattern)

    return read


def _uniform(machine: Machine, values: AnyArray, warps: AnyArray, what: str) -> AnyArray:
    """The value of each of `warps`."""
    lanes = values[:, warps]
    differs = lanes != lanes[0]
    if differs.any():
        marked = np.zeros(machine.shape, np.bool_)
        marked[:, warps] = differs
        raise Fault(f"the lanes of a warp have different {what}", marked)
    first: AnyArray = lanes[0]
    return first


def _check_written(machine: Machine, slots: list[int], names: list[str], warps: AnyArray) -> None:
    """The accumulators that `warps` add to have been written."""
    if not warps.size:
        return
    for slot, name in zip(slots, names, strict=True):
        flags = machine.written.get(slot)
        if flags is not None and not flags[:, warps].all():
            unwritten = np.zeros(machine.shape, np.bool_)
            unwritten[:, warps] = ~flags[:, warps]
            raise Fault(f"reads the register {name}, which was never written", unwritten)
