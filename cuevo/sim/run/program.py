"""A function made ready to run: forms found, straight runs of code, registers that may be read
unwritten.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.faults import Fault, PtxError
from cuevo.sim.instructions.levels import Level
from cuevo.sim.instructions.table import Form, Modifiers, find, ordered
from cuevo.sim.machine.binder import Binder
from cuevo.sim.machine.state import Geometry, Machine
from cuevo.sim.memory.thread_memory import STACK_NAMES, STALE
from cuevo.sim.text.contraction import contractions
from cuevo.sim.text.syntax import (
    CallOperand,
    Function,
    Instruction,
    LabelOperand,
    Subroutine,
    TargetsOperand,
)


class Effects(NamedTuple):
    """Facts about an instruction, or about all of a pattern; then registers are places in it, else
    slots.
    """

    form: Form
    modifiers: Modifiers
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    conditional: tuple[int, ...]
    keeps: tuple[int, ...]
    opcode: str
    """With its modifiers in the order of the form."""

    def at_places(self, slots: list[int]) -> "Effects":
        """The same of a pattern, the registers of which are in `slots`."""

        def places(found: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(map(slots.index, found))

        return self._replace(
            reads=places(self.reads),
            writes=places(self.writes),
            conditional=places(self.conditional),
            keeps=places(self.keeps),
        )


class Operation:
    """An instruction, its form, and the registers that it reads and writes. Sets of registers are
    integers with a bit for each slot.
    """

    __slots__ = ("effects", "instruction", "slots", "suspects")

    def __init__(
        self, instruction: Instruction, effects: Effects, slots: Sequence[int] | None
    ) -> None:
        self.instruction = instruction
        self.effects = effects
        self.slots = slots
        """Those at the places of its pattern; None if it has none."""
        self.suspects = 0
        """Registers that it reads and that may not have been written."""

    @property
    def opcode(self) -> str:
        return self.instruction.opcode

    @property
    def guarded(self) -> bool:
        return self.instruction.guard is not None

    @property
    def form(self) -> Form:
        return self.effects.form

    @property
    def modifiers(self) -> Modifiers:
        return self.effects.modifiers

    @property
    def reads(self) -> int:
        return self._set_of(self.effects.reads)

    @property
    def writes(self) -> int:
        return self._set_of(self.effects.writes)

    @property
    def conditional(self) -> int:
        """Subset of `reads` that it looks after itself."""
        return self._set_of(self.effects.conditional)

    @property
    def keeps(self) -> int:
        """Registers that a wgmma goes on using."""
        return self._set_of(self.effects.keeps)

    @property
    def read(self) -> Sequence[int]:
        """The slots of `reads`."""
        slots, places = self.slots, self.effects.reads
        return places if slots is None else [slots[each] for each in places]

    @property
    def written(self) -> Sequence[int]:
        """The slots of `writes`."""
        slots, places = self.slots, self.effects.writes
        return places if slots is None else [slots[each] for each in places]

    def _set_of(self, places: tuple[int, ...]) -> int:
        slots = self.slots
        return set_of(places if slots is None else [slots[each] for each in places])


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
        self.operations = self._operations()
        if not self.operations:
            raise PtxError(function.line, f"{function.name} has no instructions")
        self.starts = self._find_starts()
        self._returns = self._find_returns()
        self._open = self._find_open()
        self.tracked = self._find_suspects() if checks else 0
        self._marked = frozenset(_slots(self.tracked))
        self._kept = 0
        for each in self.operations:
            if each.effects.keeps:
                self._kept |= each.keeps

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

    def is_joint(self, index: int) -> bool:
        """Whether the instruction takes a warp as a whole, or waits for members of it."""
        if index >= len(self.operations):
            return False
        opcode = self.operations[index].opcode
        return ".sync" in opcode or opcode.startswith("bar")

    def bind(
        self, index: int, machine: Machine, held: Callable[[AnyArray], None] | None = None
    ) -> Step:
        """The instruction as a step on the registers of `machine`; `held` is called with the lanes
        for which its guard holds.
        """
        operation = self.operations[index]
        effects, suspects = operation.effects, operation.suspects
        if self._open:
            for slot in _slots(operation.reads & self._open):
                machine.register(self.function.registers[slot]).view(np.uint8).fill(STALE)
        binder = Binder(machine, operation.instruction, self.arch)
        if suspects:
            binder.suspects = frozenset(_slots(suspects))
        step = effects.form.bind(binder, effects.modifiers)
        if marked := self._marked.intersection(operation.written):
            step = _marking(step, [machine.track(slot) for slot in sorted(marked)])
        if self._kept and not effects.keeps:
            touched = (operation.reads | operation.writes) & self._kept
            if touched:
                step = machine.warpgroups.guarding(step, _slots(touched))
        guard = operation.instruction.guard
        of_guard = 1 << guard.register.slot if suspects and guard is not None else 0
        if looked_at := suspects and suspects & ~(operation.conditional | of_guard):
            step = _checking(step, self._named(looked_at, machine), machine)
        if guard is None:
            return step
        step = _guarded(step, machine.register(guard.register), guard.negated, held)
        if suspects & of_guard:
            step = _checking(step, self._named(suspects & of_guard, machine), machine)
        return step

    def _named(self, registers: int, machine: Machine) -> list[tuple[str, AnyArray]]:
        """Names of registers, and flags of the lanes that have written them."""
        return [
            (self.function.registers[slot].name, machine.track(slot)) for slot in _slots(registers)
        ]

    # -- Inner ------------------------------------------------------------------------------------

    @cached_property
    def probe(self) -> Machine:
        """A machine of one warp, to bind instructions to before there is a launch."""
        return Machine(self.function, Geometry((1, 1, 1), (32, 1, 1), 0), 1)

    def _operations(self) -> list[Operation]:
        found = []
        key = self.arch, self.level
        for instruction in self.function.instructions:
            slots = None
            pattern = instruction.pattern
            if pattern is None:
                effects = self._effects(instruction)
            else:
                slots = [each.register.slot for each in instruction.registers]
                known: Effects | None = pattern.notes.get(key)
                if known is None:
                    known = self._effects(instruction)
                    known = pattern.notes[key] = known.at_places(slots)
                effects = known
            if effects.opcode != instruction.opcode:
                instruction = instruction._replace(opcode=effects.opcode)
            found.append(Operation(instruction, effects, slots))
        return found

    def _effects(self, instruction: Instruction) -> Effects:
        """Bind it to a machine that nothing will run on; registers are slots."""
        opcode = ordered(instruction.opcode)
        instruction = instruction._replace(opcode=opcode)
        form, modifiers = find(instruction, self.level)
        b = Binder(self.probe, instruction, self.arch)
        form.bind(b, modifiers)
        if instruction.guard is not None:
            b.reads.add(instruction.guard.register.slot)
        reads, writes = tuple(b.reads), tuple(b.writes)
        return Effects(form, modifiers, reads, writes, tuple(b.conditional), tuple(b.keeps), opcode)

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
        always = operation.instruction.guard is None
        following: list[int] = []
        for operand in operation.instruction.operands:
            match operand:
                case LabelOperand(name):
                    following.append(self.function.labels[name])
                case TargetsOperand(names):
                    following += [self.function.labels[name] for name in names]
                case CallOperand():
                    following += [each.begin for each in self._callees(operand)]
        if opcode == "ret":
            following += self._returns.get(operation.instruction.subroutine, [])
        # Behind a call comes what is called, unless that is the system's.
        into = opcode == "call" and always and bool(following)
        if operation.instruction.goes_on and not into:
            following.append(index + 1)
        return [each for each in following if each < len(self.operations)]

    def _find_returns(self) -> dict[str, list[int]]:
        """Indices that each device function may return to."""
        found: dict[str, list[int]] = {}
        if not self.function.subroutines:
            return found
        for index, instruction in enumerate(self.function.instructions):
            for operand in instruction.operands:
                if isinstance(operand, CallOperand):
                    for each in self._callees(operand):
                        found.setdefault(each.name, []).append(index + 1)
        return found

    def _callees(self, call: CallOperand) -> list[Subroutine]:
        """The functions of the text that a call may be of."""
        functions = self.function.subroutines
        if call.pointer is not None:
            return list(functions.values())
        return [functions[call.function]] if call.function in functions else []

    def _find_open(self) -> int:
        """Registers that no instruction writes, beside a stack that a compiler has made: it copies
        what its source leaves open, such as a struct of nothing.
        """
        if not any(each.name.startswith(STACK_NAMES) for each in self.function.local):
            return 0
        read = written = 0
        for operation in self.operations:
            read, written = read | operation.reads, written | operation.writes
        registers, carry = self.function.registers, self.function.carry
        numbers = (each for each in _slots(read & ~written) if registers[each].type.kind != "p")
        return sum(1 << slot for slot in numbers if carry is None or slot != carry.slot)

    def _find_suspects(self) -> int:
        """Forward data flow over straight runs: which registers are surely written when each run
        begins; returns those that need a look.

        A write under a guard does not count as sure.
        """
        runs = {start: slice(start, self.end_of_run(start)) for start in self.starts}
        # Past the last instruction nothing is written, and nothing follows.
        read_by: dict[int, int] = {}
        written_by: dict[int, int] = {}
        for start, run in runs.items():
            read_by[start], written_by[start] = self._exchanged(run)
        everything = (1 << len(self.function.registers)) - 1
        entry = dict.fromkeys(self.starts, everything)
        entry[self.function.start] = self._open
        work = [self.function.start]
        seen: set[int] = set()
        while work:
            start = work.pop()
            seen.add(start)
            written = entry[start] | written_by[start]
            for following in self._successors(runs[start].stop - 1):
                merged = entry[following] & written
                if merged != entry[following] or following not in seen:
                    entry[following] = merged
                    if following not in work:
                        work.append(following)
        tracked = 0
        for start in seen:
            unsure = read_by[start] & ~entry[start]
            tracked |= unsure
            missing = set(_slots(unsure))
            for operation in self.operations[runs[start]]:
                if not missing:
                    break
                if found := missing.intersection(operation.read):
                    operation.suspects = set_of(found)
                if not operation.guarded:
                    missing.difference_update(operation.written)
        return tracked

    def _exchanged(self, run: slice) -> tuple[int, int]:
        """The registers that a straight run reads before it has surely written them, and those that
        it surely writes.
        """
        read: set[int] = set()
        written: set[int] = set()
        for operation in self.operations[run]:
            read.update([each for each in operation.read if each not in written])
            if operation.instruction.guard is None:
                written.update(operation.written)
        return set_of(read), set_of(written)


def set_of(slots: Iterable[int]) -> int:
    """The set that has these members."""
    found = 0
    for slot in slots:
        found |= 1 << slot
    return found


def _slots(registers: int) -> list[int]:
    """The members of a set, in ascending order."""
    found = []
    while registers:
        lowest = registers & -registers
        found.append(lowest.bit_length() - 1)
        registers ^= lowest
    return found


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
