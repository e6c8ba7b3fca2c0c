"""cp.async and its groups."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions import access
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.memory.global_memory import unit_dtype
from cuevo.sim.text.syntax import IntegerOperand, RegisterOperand
from cuevo.sim.text.types import TYPES


def copy(b: Binder, m: Modifiers) -> Step:
    """``[shared], [global], size{, source size}{, policy}``: what the source does not fill becomes
    zero; a predicate in place of the source's size says that it is ignored as a whole.
    """
    operands = b.operands - bool(m["hint"])
    check_policy = access.policy(b, m, operands)
    size = b.constant(b.operand(2))
    if size not in ((16,) if m["cache"] == "cg" else (4, 8, 16)):
        raise b.refusal(f"cp.async.{m['cache']} does not copy {size} bytes")
    to, origin = b.address(b.operand(0), ".shared"), b.address(b.operand(1), ".global")
    machine = b.machine
    count: AnyArray | int = size
    ignored: Callable[[], AnyArray] | None = None
    if operands == 4:
        last = b.operand(3)
        if isinstance(last, RegisterOperand) and last.register.type.kind == "p":
            ignored = b.predicate(last)
        elif isinstance(last, IntegerOperand):
            count = last.value
            if not 0 <= count <= size:
                raise b.refusal(f"a source of {count} bytes for a copy of {size}")
        else:
            count = b.source(last, TYPES["u32"])

    def fetch(mask: Mask) -> AnyArray:
        addresses = origin()
        if ignored is not None:
            lengths = np.where(ignored(), 0, size).astype(np.uint32)
        elif isinstance(count, int):
            if count == size:
                return machine.global_memory.load(addresses, size, mask)
            lengths = np.full(machine.shape, count, np.uint32)
        else:
            lengths = count
        full = lengths == size
        complete = np.count_nonzero(full) == full.size
        if complete:
            return machine.global_memory.load(addresses, size, mask)
        active = full if mask is None else full & mask
        values = np.zeros(machine.shape, unit_dtype(size))
        if active.any():
            loaded = machine.global_memory.load(addresses, size, active)
            np.copyto(values, loaded, where=active)
        partial = ~full & (lengths != 0)
        partial = partial if mask is None else partial & mask
        if partial.any():
            _fetch_partial(addresses, lengths, partial, values)
        return values

    def _fetch_partial(
        addresses: AnyArray, lengths: AnyArray, partial: AnyArray, values: AnyArray
    ) -> None:
        long = partial & (lengths > size)
        if long.any():
            raise Fault(f"a source of {int(lengths[long][0])} bytes for a copy of {size}", long)
        misaligned = partial & ((addresses & np.uint64(size - 1)) != 0)
        if misaligned.any():
            raise Fault(f"the source of cp.async is no multiple of {size}", misaligned)
        pieces = values.view(np.uint8).reshape(*values.shape, size)
        for i in range(size):
            lanes = partial & (lengths > i)
            if lanes.any():
                byte = machine.global_memory.load(addresses + np.uint64(i), 1, lanes)
                np.copyto(pieces[..., i], byte, where=lanes)

    def step(mask: Mask) -> None:
        check_policy(mask)
        indices = machine.shared.indices(to(), size, mask)
        machine.copies.issue(machine.shared, indices, size, fetch(mask), mask)

    return step


def commit_group(b: Binder, m: Modifiers) -> Step:
    machine = b.machine
    return lambda mask: machine.copies.commit(mask)


def wait_group(b: Binder, m: Modifiers) -> Step:
    pending, machine = b.constant(b.operand(0)), b.machine
    return lambda mask: machine.copies.wait(machine.shared, pending, mask)


def wait_all(b: Binder, m: Modifiers) -> Step:
    machine = b.machine
    return lambda mask: machine.copies.wait(machine.shared, None, mask)
