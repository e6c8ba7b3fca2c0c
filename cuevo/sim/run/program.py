"""A function made ready to run: forms found, straight runs of code, registers that may be read
unwritten.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault, PtxError
from cuevo.sim.instructions.levels import Level
from cuevo.sim.instructions.table import Form, Modifiers, find
from cuevo.sim.machine.binder import Binder
from cuevo.sim.machine.state import Geometry, Machine
from cuevo.sim.text.contraction import contractions
from cuevo.sim.text.syntax import CallOperand, Function, Instruction, LabelOperand, TargetsOperand


@dataclass
class Operation:
    """An instruction, its form, and the slots that it reads and writes."""

    instruction: Instruction
    form: Form
    modifiers: Modifiers
    reads: frozenset[int]
    writes: frozenset[int]
    conditional: frozenset[int]
    """Of `reads`: those that it looks after itself."""
    keeps: frozenset[int]
    """Those of a wgmma."""
    suspects: tuple[int, ...] = ()
    """Registers that it reads and that may not have been written."""

    @property
    def opcode(self) -> str:
        return self.instruction.opcode

    @property
    def guarded(self) -> bool:
        return self.instruction.guard is not None


class Program:
    """Checks every instruction of `function`, declared for `level`, to run as `arch` does; raises
    `PtxError` for the first that it refuses. With `checks` registers that may not have been written
    are looked at when they are read.
    """

    def __init__(self, function: Function, arch: int, level: Level, *, checks: bool = True) -> None:
        self.function = function
        self.arch = arch
        self.level = level
        self.checks = checks
        probe = Machine(function, Geometry((1, 1, 1), (32, 1, 1), 0), 1)
        self._forms: dict[tuple[str, int], tuple[Form, Modifiers]] = {}
        self.operations = [
            self._operation(instruction, probe) for instruction in function.instructions
        ]
        if not self.operations:
            raise PtxError(function.line, f"{function.name} has no instructions")
        self.starts = self._find_starts()
        self._returns = self._find_returns()
        self.tracked = self._find_suspects() if checks else frozenset()
        self._kept = frozenset[int]().union(*(each.keeps for each in self.operations))

    def contractions(self) -> list[tuple[int, int]]:
        """Products, and the sums that an assembler may fuse them with."""
        following = [self._successors(index) for index in range(len(self.operations))]
        return sorted(contractions(self.operations, following))

    def end_of_run(self, start: int) -> int:
        """One past the last instruction of the straight run that begins at `start`."""
        end = start + 1
        while end < len(self.operations) and end not in self.starts:
            end += 1
        return end

    def bind(
        self, index: int, machine: Machine, held: Callable[[AnyArray], None] | None = None
    ) -> Step:
        """The instruction as a step on the registers of `machine`; `held` is called with the lanes
        for which its guard holds.
        """
        operation = self.operations[index]
        instruction = operation.instruction
        step = operation.form.bind(Binder(machine, instruction, self.arch), operation.modifiers)
        marked = [machine.track(slot) for slot in sorted(operation.writes & self.tracked)]
        if marked:
            step = _marking(step, marked)
        touched = (operation.reads | operation.writes) & self._kept
        if touched and not operation.keeps:
            step = machine.warpgroups.guarding(step, sorted(touched))
        guard = instruction.guard
        suspects = [
            (self.function.registers[slot].name, machine.track(slot))
            for slot in operation.suspects
            if slot not in operation.conditional and (guard is None or slot != guard.register.slot)
        ]
        if suspects:
            step = _checking(step, suspects, machine)
        if guard is None:
            return step
        predicate = machine.register(guard.register)
        step = _guarded(step, predicate, guard.negated, held)
        if guard.register.slot in operation.suspects:
            name = guard.register.name
            step = _checking(step, [(name, machine.track(guard.register.slot))], machine)
        return step

    # -- Inner ------------------------------------------------------------------------------------

    def _operation(self, instruction: Instruction, probe: Machine) -> Operation:
        key = instruction.opcode, len(instruction.operands)
        found = self._forms.get(key)
        if found is None:
            found = self._forms[key] = find(instruction, self.level)
        form, modifiers = found
        binder = Binder(probe, instruction, self.arch)
        form.bind(binder, modifiers)
        reads = binder.reads
        if instruction.guard is not None:
            reads = reads | {instruction.guard.register.slot}
        return Operation(
            instruction,
            form,
            modifiers,
            frozenset(reads),
            frozenset(binder.writes),
            frozenset(binder.conditional),
            frozenset(binder.keeps),
        )

    def _find_starts(self) -> frozenset[int]:
        starts = {self.function.start, *self.function.labels.values()}
        starts.update(each.begin for each in self.function.subroutines.values())
        for index, operation in enumerate(self.operations):
            if operation.form.control:
                starts.update((index, index + 1))
        return frozenset(starts)

    def _successors(self, index: int) -> list[int]:
        operation = self.operations[index]
        opcode = operation.instruction.opcode.split(".")[0]
        conditional = operation.instruction.guard is not None
        following: list[int] = []
        for operand in operation.instruction.operands:
            match operand:
                case LabelOperand(name):
                    following.append(self.function.labels[name])
                case TargetsOperand(names):
                    following += [self.function.labels[name] for name in names]
                case CallOperand(name):
                    following.append(self.function.subroutines[name].begin)
        if opcode == "ret":
            following += self._returns.get(operation.instruction.subroutine, [])
        if opcode not in ("bra", "brx", "call", "ret", "exit", "trap") or conditional:
            following.append(index + 1)
        return [each for each in following if each < len(self.operations)]

    def _find_returns(self) -> dict[str, list[int]]:
        """Where each device function may go back to."""
        found: dict[str, list[int]] = {}
        for index, instruction in enumerate(self.function.instructions):
            for operand in instruction.operands:
                if isinstance(operand, CallOperand):
                    found.setdefault(operand.function, []).append(index + 1)
        return found

    def _find_suspects(self) -> frozenset[int]:
        """Forward data flow over straight runs: which registers are surely written when each run
        begins.

        A write under a guard does not count as sure. Sets are integers with a bit for each slot.
        """
        everything = (1 << len(self.function.registers)) - 1
        entry = dict.fromkeys(self.starts, everything)
        entry[self.function.start] = 0
        work = [self.function.start]
        seen: set[int] = set()
        while work:
            start = work.pop()
            seen.add(start)
            written = entry[start]
            end = self.end_of_run(start)
            for operation in self.operations[start:end]:
                written |= _sure_writes(operation)
            for following in self._successors(end - 1):
                merged = entry[following] & written
                if merged != entry[following] or following not in seen:
                    entry[following] = merged
                    if following not in work:
                        work.append(following)
        tracked: set[int] = set()
        for start in seen:
            written = entry[start]
            for operation in self.operations[start : self.end_of_run(start)]:
                operation.suspects = tuple(
                    slot for slot in sorted(operation.reads) if not written >> slot & 1
                )
                tracked.update(operation.suspects)
                written |= _sure_writes(operation)
        return frozenset(tracked)


def _sure_writes(operation: Operation) -> int:
    if operation.instruction.guard is not None:
        return 0
    return sum(1 << slot for slot in operation.writes)


def _guarded(
    step: Step,
    predicate: AnyArray,
    negated: bool,
    held: Callable[[AnyArray], None] | None = None,
) -> Step:
    size = predicate.size

    def guarded(mask: Mask) -> None:
        lanes = ~predicate if negated else predicate
        if mask is not None:
            lanes = lanes & mask
        count = np.count_nonzero(lanes)
        if held is not None and count:
            held(lanes)
        if count == size:
            step(None)
        elif count:
            # A copy: the instruction may write the predicate that guards it.
            step(lanes if negated or mask is not None else lanes.copy())

    return guarded


def _marking(step: Step, flags: list[AnyArray]) -> Step:
    def marking(mask: Mask) -> None:
        step(mask)
        for each in flags:
            if mask is None:
                each.fill(True)
            else:
                np.logical_or(each, mask, out=each)

    return marking


def _checking(step: Step, suspects: list[tuple[str, AnyArray]], machine: Machine) -> Step:
    def checking(mask: Mask) -> None:
        for name, written in suspects:
            if np.count_nonzero(written) != written.size:
                unwritten = ~written if mask is None else mask & ~written
                if unwritten.any():
                    raise Fault(f"reads the register {name}, which was never written", unwritten)
        step(mask)

    return checking
