"""A place for the tuner without a GPU: time is what a rule says of the kernels of a call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

from cuevo.ops.plan import Launch, Plan
from cuevo.ops.tuning.calls import Call
from cuevo.ops.tuning.measure import Entrant
from cuevo.sim import SimExecutor

Rule = Callable[[Launch], float]
"""Milliseconds of a launch."""


class RuledClock:
    """A stream whose time passes as the bench says."""

    now = 0.0

    def record(self) -> float:
        return self.now

    def elapsed(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None:
        """It never lags."""

    def hold(self) -> None:
        """It is never idle."""


class Unloaded(SimExecutor):
    """The CPU executor without kernels."""

    def load(self, kernel: Any) -> Any:
        return SimpleNamespace(kernel=kernel, spills=False)


class HostBench:
    """A place whose kernels are neither rendered nor run; `refused` tells which spill."""

    def __init__(
        self, arch: str, rule: Rule, refused: Callable[[Any], str] = lambda config: ""
    ) -> None:
        self.place, self.clock = Unloaded(arch), RuledClock()
        self.rule, self.refused = rule, refused

    def assemble(self, call: Call, configs: Sequence[Any]) -> list[str]:
        return [self.refused(config) for config in configs]

    def prepare(self, call: Call) -> "HostCall":
        return HostCall(self, call)


@dataclass
class HostCall:
    bench: HostBench
    call: Call

    def plan(self, config: Any) -> Plan:
        operation, options = self.call.operation, self.call.options
        return operation.plan_on_device(self.call.arrays, options, self.bench.place, config)

    def entrant(self, plan: Plan) -> Entrant:
        milliseconds = sum(map(self.bench.rule, plan.every_launch))

        def call() -> None:
            self.bench.clock.now += milliseconds

        return Entrant([call])


def rendered(name: str, values: Mapping[str, Any]) -> SimpleNamespace:
    """What stands for a rendered kernel where none is rendered: its digest tells values apart."""
    return SimpleNamespace(name=name, code_digest=sha256(repr((name, values)).encode()).hexdigest())
