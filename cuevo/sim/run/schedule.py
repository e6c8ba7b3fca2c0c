"""Runs a chunk of threadblocks to its end."""

from collections import Counter

import numpy as np

from cuevo.errors import SimulatorError
from cuevo.sim.aliases import Mask, Step
from cuevo.sim.faults import Fault, KernelText, error_at, place
from cuevo.sim.machine.state import Machine
from cuevo.sim.run.profile import Counters
from cuevo.sim.run.program import Program

MOST_RUNS = 20_000_000
"""Straight runs of code that a chunk may take. Kernels take some thousands; this is minutes."""


class Schedule:
    """The steps of a program on one machine, bound as they are first reached."""

    def __init__(
        self,
        program: Program,
        machine: Machine,
        kernel: KernelText,
        counters: Counters | None = None,
    ) -> None:
        self._program = program
        self.machine = machine
        self._kernel = kernel
        self._counters = counters
        self._runs: dict[int, tuple[tuple[Step, ...], int, bool]] = {}

    def run(self) -> None:
        """Run until every lane has exited. Raises SimulatorError for the first fault."""
        flow, runs = self.machine.flow, self._runs
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
            taken += 1
            if taken > MOST_RUNS:
                raise self._error(Fault("the kernel does not end", mask), start)
            if start >= end_of_text:
                try:
                    flow.exit(mask)
                except Fault as fault:
                    raise self._error(fault, end_of_text - 1) from None
                continue
            found = runs.get(start)
            if found is None:
                found = runs[start] = self._bind(start)
            steps, end, is_control = found
            if is_control:
                flow.arrive(end, mask)
            done = 0
            try:
                for step in steps:
                    step(mask)
                    done += 1
            except Fault as fault:
                raise self._error(fault, start + done) from None
            if not is_control:
                flow.arrive(end, mask)
            flow.leave()
        if flow.alive.any():
            raise self._deadlock()
        try:
            self.machine.finish()
        except Fault as fault:
            raise self._error(fault, end_of_text - 1) from None

    def _pick(self) -> tuple[int, Mask] | None:
        """The next counter and its lanes; None if there are none, and nothing will change that."""
        while True:
            picked = self.machine.flow.pick()
            if picked is not None or not self.machine.flow.alive.any():
                return picked
            if not self.machine.go_on():
                return None

    def _bind(self, start: int) -> tuple[tuple[Step, ...], int, bool]:
        program = self._program
        end = program.end_of_run(start)
        counters = self._counters
        steps = tuple(
            program.bind(index, self.machine, counters.holding(index) if counters else None)
            for index in range(start, end)
        )
        if counters is not None:
            steps = counters.counting(start, steps, self.machine)
        return steps, end, program.operations[start].form.control

    def _error(self, fault: Fault, index: int) -> SimulatorError:
        instruction = self._program.operations[index].instruction
        message = fault.message
        error = error_at(self._kernel, instruction.line, message)
        if fault.lanes is None:
            return error
        return SimulatorError(f"{error}\n  {self.machine.thread_name(fault.lanes)}")

    def _deadlock(self) -> SimulatorError:
        flow = self.machine.flow
        stuck = np.flatnonzero(flow.waiting & flow.alive.any(axis=0))
        waits = sorted(Counter(flow.wait_of(int(warp)) for warp in stuck).items())
        found = [
            (line, f"{count} at {{}}: barrier {number} has {there} of {of} threads")
            for (line, number, there, of), count in waits
        ]
        if self.machine.asynchronous:
            found += [(line, f"at {{}}: {what}") for line, what in self.machine.mbarriers.waits()]
            stuck_lines = self.machine.cluster_barrier.stuck()
            found += [(line, "at {}: the barrier of a cluster") for line in stuck_lines]
        where = ", ".join(text.format(place(self._kernel, line)) for line, text in found)
        error = error_at(
            self._kernel,
            found[0][0],
            f"deadlock: warps wait at barriers that are never complete ({where})",
        )
        return SimulatorError(f"{error}\n  first: {self.machine.thread_name(flow.alive)}")
