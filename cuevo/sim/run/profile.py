"""Counts of launches: how often instructions ran, and how they used banks and sectors."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import KernelText, place
from cuevo.sim.machine.state import Machine
from cuevo.sim.memory.banks import BankUse, wavefronts
from cuevo.sim.memory.sectors import SectorUse, sectors
from cuevo.sim.text.syntax import Function, LabelOperand


@dataclass(frozen=True)
class InstructionUse:
    """Executions of an instruction of the text."""

    line: int
    """Line of the rendered text."""
    origin: str
    """``ptx/<file>:<line>``, as errors have it."""
    opcode: str
    executions: int
    """Warps that came to it, whatever its guard; one whose lanes have parted comes in parts."""
    held: int | None = None
    """Executions whose guard held in a lane; None without a guard."""


@dataclass(frozen=True)
class Loop:
    """The ledger of a loop: what a warp runs in an iteration."""

    begin: str
    """``ptx/<file>:<line>`` of its first instruction."""
    end: str
    """Origin of the branch that leads back."""
    iterations: int
    """Sum over all warps."""
    instructions: Mapping[str, float]
    """Executions an iteration, by opcode as written, the most frequent first."""


@dataclass(frozen=True)
class Profile:
    """Counts of one launch of a kernel, or of several.

    What to look at in shared memory: ``[use for use in kernel.profile.banks if use.conflicts]``.
    """

    instructions: tuple[InstructionUse, ...]
    """All instructions of the text, in its order."""
    banks: tuple[BankUse, ...]
    """The instructions that touched shared memory, in the order of the text."""
    sectors: tuple[SectorUse, ...] = ()
    """The instructions that touched global memory, in the order of the text."""
    main_loop: Loop | None = None
    """The innermost loop that most instructions were run in; None if there is no loop."""

    @property
    def never_ran(self) -> tuple[InstructionUse, ...]:
        """The instructions that no warp came to."""
        return tuple(use for use in self.instructions if not use.executions)

    def by_line(self) -> dict[str, int]:
        """Executions by origin: those of a macro's line are added up over its uses."""
        return self._added((use.origin, use.executions) for use in self.instructions)

    def by_opcode(self) -> dict[str, int]:
        """Executions by opcode as written, modifiers included."""
        return self._added((use.opcode, use.executions) for use in self.instructions)

    @staticmethod
    def _added(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
        total: dict[str, int] = {}
        for name, count in counts:
            total[name] = total.get(name, 0) + count
        return total


class Counters:
    """The counts of a kernel, while its steps add to them."""

    def __init__(self, function: Function) -> None:
        self._instructions = instructions = function.instructions
        self._loops = _innermost_loops(function)
        self._executions = np.zeros(len(instructions), np.int64)
        # Executions with at least one lane, wavefronts, ideal.
        self._banks = np.zeros((len(instructions), 3), np.int64)
        # Executions with at least one lane, sectors, ideal.
        self._sectors = np.zeros((len(instructions), 3), np.int64)
        self._held = np.zeros(len(instructions), np.int64)

    def reset(self) -> None:
        self._executions.fill(0)
        self._banks.fill(0)
        self._sectors.fill(0)
        self._held.fill(0)

    def counting(self, start: int, steps: Sequence[Step], machine: Machine) -> tuple[Step, ...]:
        """The steps of the straight run that begins at `start`, made to count."""
        counted = []
        for index, step in enumerate(steps, start):
            opcode = self._instructions[index].opcode
            if opcode.startswith(_OF_ASYNC_UNITS):
                step = _unwatched(step, machine)
            elif _touches_memory(opcode):
                step = self._watched(index, step, machine)
            counted.append(step)
        counted[0] = self._entered(slice(start, start + len(steps)), counted[0], machine)
        return tuple(counted)

    def take_back(self, run: slice, mask: Mask, waiting: AnyArray) -> None:
        """The lanes in `mask` have entered a `run` that they do not begin yet: some wait at its
        first instruction, which counts.
        """
        here = np.ones_like(waiting) if mask is None else mask
        self._executions[run.start] -= np.count_nonzero((here & ~waiting).any(axis=0))
        self._executions[run.start + 1 : run.stop] -= np.count_nonzero(here.any(axis=0))

    def profile(self, kernel: KernelText) -> Profile:
        """The counts as they are now."""
        named = [(each.line, place(kernel, each.line), each.opcode) for each in self._instructions]
        return Profile(
            tuple(
                InstructionUse(*name, int(count), int(held) if each.guard else None)
                for name, count, held, each in zip(
                    named, self._executions, self._held, self._instructions, strict=True
                )
            ),
            tuple(
                BankUse(*name, *map(int, counts))
                for name, counts in zip(named, self._banks, strict=True)
                if counts[0]
            ),
            tuple(
                SectorUse(*name, *map(int, counts))
                for name, counts in zip(named, self._sectors, strict=True)
                if counts[0]
            ),
            self._main_loop([origin for _, origin, _ in named]),
        )

    def _main_loop(self, origins: Sequence[str]) -> Loop | None:
        counts = self._executions
        ran = [loop for loop in self._loops if counts[loop.start]]
        if not ran:
            return None
        body = max(ran, key=lambda loop: int(counts[loop.start : loop.stop].sum()))
        iterations = int(counts[body.start])
        total: Counter[str] = Counter()
        for index in body:
            total[self._instructions[index].opcode] += int(counts[index])
        listed = {opcode: count / iterations for opcode, count in total.most_common()}
        return Loop(
            origins[body.start], origins[body.stop - 1], iterations, MappingProxyType(listed)
        )

    def holding(self, index: int) -> Callable[[AnyArray], None]:
        """Counts the warps that have a lane among those for which the guard of an instruction
        holds.
        """
        held = self._held

        def hold(lanes: AnyArray) -> None:
            held[index] += np.count_nonzero(lanes.any(axis=0))

        return hold

    def _entered(self, run: slice, step: Step, machine: Machine) -> Step:
        executions = self._executions[run]

        def entered(mask: Mask) -> None:
            warps = machine.warps if mask is None else np.count_nonzero(mask.any(axis=0))
            np.add(executions, warps, out=executions)
            step(mask)

        return entered

    def _watched(self, index: int, step: Step, machine: Machine) -> Step:
        counts, of_sectors = self._banks[index], self._sectors[index]
        atomic = self._instructions[index].opcode.startswith(("atom", "red"))

        def watch(addresses: AnyArray, size: int, mask: Mask) -> None:
            np.add(counts, wavefronts(addresses, size, mask, atomic=atomic), out=counts)

        def watch_global(addresses: AnyArray, size: int, mask: Mask) -> None:
            placed = machine.global_memory.placed(addresses)
            np.add(of_sectors, sectors(placed, size, mask), out=of_sectors)

        def watched(mask: Mask) -> None:
            machine.shared.watch = watch
            machine.global_memory.watch = watch_global
            step(mask)

        return watched


def _innermost_loops(function: Function) -> list[range]:
    """Instructions from a label to a branch back to it, with no such branch between."""
    loops = []
    for index, instruction in enumerate(function.instructions):
        if instruction.opcode.startswith("bra"):
            (target,) = instruction.operands
            assert isinstance(target, LabelOperand)
            begin = function.labels[target.name]
            if begin <= index:
                loops.append(range(begin, index + 1))

    def within(inner: range, outer: range) -> bool:
        return inner != outer and outer.start <= inner.start and inner.stop <= outer.stop

    return [loop for loop in loops if not any(within(other, loop) for other in loops)]


_OF_ASYNC_UNITS = (
    "wgmma.mma_async", "cp.async.bulk", "cp.reduce.async.bulk", "st.async", "red.async",
)  # fmt: skip


def _unwatched(step: Step, machine: Machine) -> Step:
    """Leave out accesses of asynchronous units: no wavefronts and requests of lanes."""

    def unwatched(mask: Mask) -> None:
        machine.shared.watch = machine.global_memory.watch = None
        step(mask)

    return unwatched


def _touches_memory(opcode: str) -> bool:
    """Whether an instruction names shared or global memory, or takes generic addresses."""
    words = opcode.replace("::", ".").split(".")
    if {"shared", "global"} & set(words):
        return True
    return words[0] in ("ld", "st", "atom", "red") and not {"local", "const", "param"} & set(words)
