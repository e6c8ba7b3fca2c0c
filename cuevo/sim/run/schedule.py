"""Runs a chunk of threadblocks to its end."""

from collections import Counter
from time import monotonic
from typing import Protocol

import numpy as np

from cuevo.errors import SimulatorError
from cuevo.sim.aliases import Mask, Step
from cuevo.sim.faults import Fault, KernelText, error_at, place
from cuevo.sim.machine.state import Machine
from cuevo.sim.run.budget import Budget
from cuevo.sim.run.profile import Counters
from cuevo.sim.run.program import Program
from cuevo.sim.run.second_look import Found
from cuevo.sim.sync.meetings import Apart, InVain, Unmet


class Observer(Protocol):
    """Looks at instructions while they run."""

    def observed(self, index: int, step: Step, machine: Machine) -> Step: ...


class Schedule:
    """The steps of a program on one machine, bound as they are first reached."""

    def __init__(
        self,
        program: Program,
        machine: Machine,
        kernel: KernelText,
        counters: Counters | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._program = program
        self.machine = machine
        self._kernel = kernel
        self._counters = counters
        self._observer = observer
        self._runs: dict[int, tuple[tuple[Step, ...], int, bool]] = {}
        self.fault: Fault | None = None
        """What the last run has ended with, at the instruction `at`."""
        self.at = 0
        self._splits: set[int] = set()
        """Where lanes were left within a straight run, for their warp's others to catch up."""
        machine.flow.turns.joint = program.is_joint

    def earlier(self, found: Found) -> str:
        """A sentence on an access before the fault."""
        instruction = self._program.operations[found.index].instruction
        calls = "".join(
            f", called at {each.file}:{each.line}"
            for each in self._kernel.callers(instruction.line)
        )
        who = self.machine.thread_name(found.lanes)
        by = f"an asynchronous unit, for {who}" if found.by_unit else who
        element = "" if found.source is None else self.machine.global_memory.element(found.source)
        source = f", from {element}" if element else ""
        return f"  earlier at {self._place(found.index)}{calls}, by {by}{source}"

    def run(self, budget: Budget, begun: float) -> None:
        """Run until every lane has exited, within the budget of a launch that has `begun` at that
        time of `monotonic`. Raises SimulatorError for the first fault.
        """
        flow, runs = self.machine.flow, self._runs
        self.fault = None
        most, end_of_time = budget.instructions, begun + budget.seconds
        end_of_text = len(self._program.operations)
        taken = 0
        while True:
            try:
                picked = self._pick()
            except Fault as fault:
                raise self._error(fault, end_of_text - 1) from None
            if picked is None:
                break
            start, mask = picked
            if taken > most:
                raise self._endless(f"{most:,} instructions", start, mask)
            if monotonic() > end_of_time:
                raise self._endless(f"{budget.seconds:g} seconds", start, mask)
            if start >= end_of_text:
                try:
                    flow.exit(mask)
                except Fault as fault:
                    raise self._error(fault, end_of_text - 1) from None
                continue
            if flow.turns.apart:
                self._split(start)
            found = runs.get(start)
            if found is None:
                found = runs[start] = self._bind(start)
            steps, end, is_control = found
            taken += len(steps)
            if is_control:
                flow.arrive(end, mask)
            done = 0
            try:
                for step in steps:
                    step(mask)
                    done += 1
            except Apart as apart:
                if self._counters is not None:
                    self._counters.take_back(slice(start + done, end), mask, apart.lanes)
                self._split_at(start + done)
                flow.stay(start + done, mask, apart)
                continue
            except Fault as fault:
                raise self._error(fault, start + done) from None
            if not is_control:
                flow.arrive(end, mask)
            flow.leave()
        if (unmet := flow.meetings.first()) is not None:
            raise self._error(InVain(unmet), unmet.index)
        if flow.alive.any():
            raise self._deadlock()
        try:
            self.machine.finish()
        except Fault as fault:
            raise self._error(fault, end_of_text - 1) from None

    def _pick(self) -> tuple[int, Mask] | None:
        """The next counter and its lanes; None if there are none, and nothing will change that."""
        flow = self.machine.flow
        while True:
            if flow.turns.ask_in_vain():
                self.machine.go_on()
            picked = flow.pick()
            if picked is not None or not flow.alive.any():
                return picked
            if not self.machine.go_on():
                return None

    def _bind(self, start: int) -> tuple[tuple[Step, ...], int, bool]:
        program = self._program
        end = min([program.end_of_run(start), *(each for each in self._splits if each > start)])
        counters = self._counters
        steps = tuple(
            program.bind(index, self.machine, counters.holding(index) if counters else None)
            for index in range(start, end)
        )
        if self._observer is not None:
            steps = tuple(
                self._observer.observed(index, step, self.machine)
                for index, step in enumerate(steps, start)
            )
        if counters is not None:
            steps = counters.counting(start, steps, self.machine)
        return steps, end, program.operations[start].form.control

    def _split(self, start: int) -> None:
        """Lanes that are apart run from `start` on, and stop before what takes the whole warp."""
        end = self._program.end_of_run(start)
        at = next((index for index in range(start, end) if self._program.is_joint(index)), end)
        if at < end:
            self._split_at(at)

    def _split_at(self, at: int) -> None:
        if at not in self._splits:
            self._splits.add(at)
            for begin, (_, stop, _) in list(self._runs.items()):
                if begin < at < stop:
                    del self._runs[begin]

    def _error(self, fault: Fault, index: int) -> SimulatorError:
        message, note = fault.message, ""
        self.fault, self.at = fault, index
        if isinstance(fault, InVain):
            index = fault.unmet.index
            message += f"; {self._whereabouts(fault.unmet)}"
        elif (unmet := self.machine.flow.meetings.first(fault.lanes)) is not None:
            note = f"\n  while others of the warp wait at {self._place(unmet.index)}"
        error = error_at(self._kernel, self._program.operations[index].instruction.line, message)
        if fault.lanes is None:
            return error
        return SimulatorError(f"{error}\n  {self.machine.thread_name(fault.lanes)}{note}")

    def _place(self, index: int) -> str:
        instruction = self._program.operations[index].instruction
        return f"{instruction.opcode}, {place(self._kernel, instruction.line)}"

    def _whereabouts(self, unmet: Unmet) -> str:
        """Where the first of the lanes is that have not come."""
        flow = self.machine.flow
        missing = unmet.missing & self.machine.alive
        warp = int(missing.any(axis=0).argmax())
        lane = int(missing[:, warp].argmax())
        counter = flow.counter_of(lane, warp)
        if counter >= len(self._program.operations):
            return f"lane {lane} is at the end"
        does = "is"
        if flow.meetings.lanes[lane, warp]:
            does = f"waits with the mask {int(flow.meetings.said[lane, warp]):#010x}"
        return f"lane {lane} {does} at {self._place(counter)}"

    def _endless(self, budget: str, index: int, mask: Mask) -> SimulatorError:
        last = len(self._program.operations) - 1
        found = [
            (self._program.operations[min(counter, last)].instruction.line, f"{count} run at {{}}")
            for counter, count in self.machine.flow.running()
        ]
        waits = self._places([*found, *self._waits()])
        message = f"the kernel does not end in {budget} (of the warps {waits})"
        return self._error(Fault(message, mask), min(index, last))

    def _deadlock(self) -> SimulatorError:
        found = self._waits()
        error = error_at(
            self._kernel,
            found[0][0],
            f"deadlock: warps wait at barriers that are never complete ({self._places(found)})",
        )
        return SimulatorError(f"{error}\n  first: {self.machine.thread_name(self.machine.alive)}")

    def _waits(self) -> list[tuple[int, str]]:
        """Lines at which warps wait, and what for; {} stands for the place."""
        flow = self.machine.flow
        stuck = np.flatnonzero(flow.waiting & flow.alive.any(axis=0))
        waits = sorted(Counter(flow.wait_of(int(warp)) for warp in stuck).items())
        found = [
            (line, f"{count} at {{}}: barrier {number} has {there} of {of} threads")
            for (line, number, there, of), count in waits
        ]
        found += [
            (
                self._program.operations[index].instruction.line,
                f"{count} at {{}}: for lanes of their own",
            )
            for index, count in flow.meetings.stuck()
        ]
        if self.machine.asynchronous:
            found += [(line, f"at {{}}: {what}") for line, what in self.machine.mbarriers.waits()]
            stuck_lines = self.machine.cluster_barrier.stuck()
            found += [(line, "at {}: the barrier of a cluster") for line in stuck_lines]
        return found

    def _places(self, found: list[tuple[int, str]]) -> str:
        return ", ".join(text.format(place(self._kernel, line)) for line, text in found)
