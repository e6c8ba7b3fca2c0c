"""What the instructions of a launch did: how often they ran, and how they used the banks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask, Step
from cuevo.sim.banks import BankUse, wavefronts
from cuevo.sim.faults import KernelText, place
from cuevo.sim.machine import Machine
from cuevo.sim.syntax import Instruction


@dataclass(frozen=True)
class InstructionUse:
    """How often an instruction of the text ran in one launch."""

    line: int
    """In the rendered text."""
    origin: str
    """``ptx/<file>:<line>``, as errors have it."""
    opcode: str
    executions: int
    """Warps that came to it, whatever its guard; one whose lanes have parted comes in parts."""


@dataclass(frozen=True)
class Profile:
    """Counts of one launch of a kernel.

    What to look at in shared memory: ``[use for use in kernel.profile.banks if use.conflicts]``.
    """

    instructions: tuple[InstructionUse, ...]
    """All instructions of the text, in its order."""
    banks: tuple[BankUse, ...]
    """The instructions that touched shared memory, in the order of the text."""

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
    """The counts of a kernel's last launch, while its steps add to them."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._instructions = instructions
        self._executions = np.zeros(len(instructions), np.int64)
        # Executions with at least one lane, wavefronts, ideal.
        self._banks = np.zeros((len(instructions), 3), np.int64)

    def reset(self) -> None:
        self._executions.fill(0)
        self._banks.fill(0)

    def counting(self, start: int, steps: Sequence[Step], machine: Machine) -> tuple[Step, ...]:
        """The steps of the straight run that begins at `start`, made to count."""
        counted = []
        for index, step in enumerate(steps, start):
            opcode = self._instructions[index].opcode
            if _may_touch_shared(opcode):
                step = self._watched(index, step, machine)
            elif opcode.startswith("wgmma.mma_async"):
                step = _unwatched(step, machine)
            counted.append(step)
        counted[0] = self._entered(slice(start, start + len(steps)), counted[0], machine)
        return tuple(counted)

    def profile(self, kernel: KernelText) -> Profile:
        """The counts as they are now."""
        named = [(each.line, place(kernel, each.line), each.opcode) for each in self._instructions]
        return Profile(
            tuple(
                InstructionUse(*name, int(count))
                for name, count in zip(named, self._executions, strict=True)
            ),
            tuple(
                BankUse(*name, *map(int, counts))
                for name, counts in zip(named, self._banks, strict=True)
                if counts[0]
            ),
        )

    def _entered(self, run: slice, step: Step, machine: Machine) -> Step:
        executions = self._executions[run]

        def entered(mask: Mask) -> None:
            warps = machine.warps if mask is None else np.count_nonzero(mask.any(axis=0))
            np.add(executions, warps, out=executions)
            step(mask)

        return entered

    def _watched(self, index: int, step: Step, machine: Machine) -> Step:
        counts = self._banks[index]
        atomic = self._instructions[index].opcode.startswith(("atom", "red"))

        def watch(addresses: AnyArray, size: int, mask: Mask) -> None:
            np.add(counts, wavefronts(addresses, size, mask, atomic=atomic), out=counts)

        def watched(mask: Mask) -> None:
            machine.shared.watch = watch
            step(mask)

        return watched


def _unwatched(step: Step, machine: Machine) -> Step:
    """wgmma does not read by wavefronts of lanes."""

    def unwatched(mask: Mask) -> None:
        machine.shared.watch = None
        step(mask)

    return unwatched


def _may_touch_shared(opcode: str) -> bool:
    """Whether an instruction names shared memory, or takes generic addresses."""
    words = opcode.replace("::", ".").split(".")
    spaces = {"global", "local", "const", "param"} & set(words)
    return "shared" in words or (words[0] in ("ld", "st", "atom", "red") and not spaces)
