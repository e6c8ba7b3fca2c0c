import os
from typing import Any

import numpy as np
import pytest

import cuevo

jax: Any = pytest.importorskip("jax")

import jax_calls  # noqa: E402
from cuevo.jax import ENVIRONMENT, callbacks  # noqa: E402
from workloads import Workload  # noqa: E402


@pytest.mark.kernel
def test_every_launcher_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_calls, "CALLS", 2)
    monkeypatch.setattr(jax_calls, "ROUNDS", 1)
    monkeypatch.setattr(jax_calls, "RUNS", 1)
    monkeypatch.setenv(ENVIRONMENT, "xla")
    asked, lengths = [], []
    of_callbacks = callbacks.attention
    compiled = jax_calls.compiled

    def attention(**arguments: Any) -> Any:
        lengths.append(arguments["q"].shape)
        return of_callbacks(**arguments)

    def recorded(function: Any, launcher: str, *arguments: Any) -> Any:
        run = compiled(function, launcher, *arguments)
        asked.append((function.__name__, launcher))
        lengths.clear()
        jax.block_until_ready(run())
        jax.effects_barrier()
        assert len(lengths) == {"nothing": 0}.get(function.__name__, 2)
        return run

    monkeypatch.setattr(callbacks, "attention", attention)
    monkeypatch.setattr(jax_calls, "compiled", recorded)
    times = dict(jax_calls.measured(Workload(1, 1, 8, 8), "bf16", "forward"))
    assert asked == [("nothing", "xla"), ("forward", "xla"), ("forward", "python")]
    assert [*times] == ["empty", "xla", "python"]
    assert os.environ[ENVIRONMENT] == "xla"


class Clock:
    """A host that takes 80 us to queue a program, and a device that takes 35 us to run it."""

    def __init__(self) -> None:
        self.now, self.done, self.share = 0.0, 0.0, 1.0

    def queue(self, seconds: float) -> None:
        self.now += 80e-6
        self.done = max(self.done, self.now) + seconds

    def wait(self, end: Any) -> None:
        self.now = max(self.now, float(end.view(np.uint64)[0]) * 1e-9)

    def run(self) -> Any:
        self.queue(35e-6)
        return self.ended()

    def pause(self, milliseconds: float) -> Any:
        self.queue(self.share * milliseconds * 1e-3)
        return self.ended()

    def ended(self) -> Any:
        return np.array([round(self.done * 1e9)], np.uint64).view(np.uint32)


@pytest.mark.unit
def test_runs_behind_a_pause_take_what_the_device_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(jax_calls.time, "perf_counter", lambda: clock.now)
    monkeypatch.setattr(jax, "block_until_ready", clock.wait)
    assert jax_calls.behind(clock.pause, clock.run) == pytest.approx(35)
    assert jax_calls.microseconds(clock.run) == pytest.approx(80, rel=0.1)
    clock.share = 1e-2  # of the time that is asked for
    with pytest.raises(RuntimeError, match="the device has waited for it"):
        jax_calls.behind(clock.pause, clock.run)


@pytest.mark.kernel
def test_a_pause_ends_when_its_time_has_passed() -> None:
    ends = []
    for milliseconds in (0.0, 0.01):
        launch = jax_calls.pause_launch(milliseconds)
        ended = np.zeros(1, np.uint64)
        kernel = cuevo.load(launch.kernel.code, launch.kernel.name)
        kernel[launch.grid, launch.block](np.zeros(1), ended)
        ends.append(int(ended[0]))
    assert ends[0] < 10_000 <= ends[1] < 1_000_000  # the executor's clock begins with a launch
