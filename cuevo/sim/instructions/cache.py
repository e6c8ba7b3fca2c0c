"""Hints to the caches: prefetches and policies. They change no result."""

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions import access
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.text.syntax import (
    AddressOperand,
    FloatOperand,
    IntegerOperand,
    Operand,
    RegisterOperand,
    SymbolOperand,
)
from cuevo.sim.text.types import TYPES


def create_policy(b: Binder, m: Modifiers) -> Step:
    """Make a hint for L2 to keep a fraction of the lines; it is above 0 and at most 1."""
    policy, machine = b.destination(b.operand(0), TYPES["u64"]), b.machine
    fixed = b.operand(1) if b.operands == 2 else None
    if isinstance(fixed, FloatOperand) and not 0 < fixed.value <= 1:
        raise b.refusal(f"a fraction of cache lines is above 0 and at most 1, not {fixed.value}")
    fraction = b.whole(b.operand(1), TYPES["f32"]) if b.operands == 2 else np.ones(machine.shape)

    def compute(out: AnyArray) -> None:
        out[...] = access.POLICY | fraction.astype(np.float32).view(np.uint32)

    create = b.alu(policy, compute)

    def step(mask: Mask) -> None:
        outside = ~((fraction > 0) & (fraction <= 1))
        if (wrong := outside if mask is None else outside & mask).any():
            raise Fault("a fraction of cache lines that is not above 0 and at most 1", wrong)
        create(mask)

    return step


def create_range(b: Binder, m: Modifiers) -> Step:
    """A policy for a range of addresses: ``[begin], primary bytes, all bytes``."""
    policy = b.destination(b.operand(0), TYPES["u64"])
    access.wide_address(b, 1, ".global" if ".global" in b.instruction.opcode else "")
    for operand in (b.operand(2), b.operand(3)):
        _no_sum(b, operand)
    first, whole = (b.whole(b.operand(i), TYPES["u32"]) for i in (2, 3))
    match b.operand(2), b.operand(3):
        case IntegerOperand(), IntegerOperand() if first[0, 0] > whole[0, 0]:
            raise b.refusal("the primary range of a cache policy is no larger than the whole one")

    def compute(out: AnyArray) -> None:
        out[...] = access.POLICY | first

    create = b.alu(policy, compute)

    def step(mask: Mask) -> None:
        outside = first > whole
        if (wrong := outside if mask is None else outside & mask).any():
            raise Fault("the primary range of a cache policy is larger than the whole one", wrong)
        create(mask)

    return step


def convert_property(b: Binder, m: Modifiers) -> Step:
    """A policy out of an access property that the host made."""
    _no_sum(b, b.operand(1))
    x, policy = b.source(b.operand(1), TYPES["u64"]), b.destination(b.operand(0), TYPES["u64"])
    low = np.uint64(0xFFFFFFFF)
    return b.alu(policy, lambda out: np.bitwise_or(x & low, access.POLICY, out))


def _no_sum(b: Binder, operand: Operand) -> None:
    if isinstance(operand, SymbolOperand) and operand.offset:
        raise b.refusal(f"{b.instruction.opcode} does not take {operand.variable.name} + a number")


def prefetch(b: Binder, m: Modifiers) -> Step:
    """A hint: it may name any address, a variable's in its own state space."""
    space = f".{m['space']}" if m.get("space") else ""
    b.address(b.operand(0), space)
    operand = b.operand(0)
    assert isinstance(operand, AddressOperand)
    match operand.base:
        case SymbolOperand(variable) if variable.space == ".param" or not m.get("level"):
            raise b.refusal(f"{b.instruction.opcode} does not take {variable.name}")
        case RegisterOperand(register) if register.type.bits != 64 and space == ".global":
            raise b.refusal(f"{register.name} is no 64-bit address")
    return lambda mask: None


def hint_of_line(b: Binder, m: Modifiers) -> Step:
    """discard and applypriority of whole lines. Reads of discarded content are undefined, which is
    not checked.
    """
    size, machine = b.constant(b.operand(1)), b.machine
    address = access.wide_address(b, 0, ".global" if ".global" in b.instruction.opcode else "")
    if size != 128:
        raise b.refusal(f"a line has 128 bytes, not {size}")

    def step(mask: Mask) -> None:
        wrong = address() % np.uint64(128) != 0
        if (lanes := wrong if mask is None else wrong & mask).any():
            raise Fault("an address that is no multiple of 128, as lines are", lanes)
        machine.global_memory.load(address(), 1, mask)

    return step
