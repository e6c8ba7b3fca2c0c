"""Clusters of blocks: whose shared memory an address is of, and their barrier."""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault
from cuevo.sim.instructions.table import Modifiers
from cuevo.sim.machine.binder import Binder
from cuevo.sim.memory.shared_memory import RANK
from cuevo.sim.memory.spaces import WINDOWS
from cuevo.sim.text.syntax import SymbolOperand
from cuevo.sim.text.types import TYPES


def _offset(b: Binder, m: Modifiers) -> Callable[[Mask], tuple[AnyArray, AnyArray]]:
    """An address without its window, and the window's begin."""
    scalar = TYPES[m["type"]]
    operand = b.operand(1)
    if isinstance(operand, SymbolOperand) and operand.variable.space != ".shared":
        raise b.refusal(f"{operand.variable.name} is in {operand.variable.space}, not .shared")
    address = b.whole(operand, scalar)
    window = scalar.dtype.type(0 if "space" in m else WINDOWS["shared"])

    def split(mask: Mask) -> tuple[AnyArray, AnyArray]:
        within = address - window
        wrong = within >= scalar.dtype.type(2**32 - 1)
        if (outside := wrong if mask is None else wrong & mask).any():
            raise Fault("a generic address that is not in .shared", outside)
        return within, window

    return split


def map_address(b: Binder, m: Modifiers) -> Step:
    """mapa: the same address in the shared memory of the block of that rank."""
    scalar, split, machine = TYPES[m["type"]], _offset(b, m), b.machine
    rank = b.whole(b.operand(2), TYPES["u32"])
    d = b.destination(b.operand(0), scalar)
    shift, size = scalar.dtype.type(RANK), machine.geometry.cluster_blocks

    def step(mask: Mask) -> None:
        beyond = rank >= size
        if (wrong := beyond if mask is None else beyond & mask).any():
            raise Fault(f"a rank in a cluster of {size} blocks", wrong)
        within, window = split(mask)
        own = within & ((scalar.dtype.type(1) << shift) - scalar.dtype.type(1))
        mapped = own | (rank.astype(scalar.dtype) << shift)
        np.copyto(d, mapped + window, where=True if mask is None else mask)

    return step


def rank_of(b: Binder, m: Modifiers) -> Step:
    """getctarank: the rank of the block whose shared memory an address is of."""
    scalar, split = TYPES[m["type"]], _offset(b, m)
    d = b.destination(b.operand(0), TYPES["u32"])

    def step(mask: Mask) -> None:
        rank = (split(mask)[0] >> scalar.dtype.type(RANK)).astype(np.uint32)
        np.copyto(d, rank, where=True if mask is None else mask)

    return step


def arrive(b: Binder, m: Modifiers) -> Step:
    machine, releases = b.machine, m["order"] != "relaxed"
    return lambda mask: machine.cluster_barrier.arrive(mask, releases=releases)


def wait(b: Binder, m: Modifiers) -> Step:
    machine, line = b.machine, b.instruction.line
    return lambda mask: machine.cluster_barrier.wait(mask, line)
