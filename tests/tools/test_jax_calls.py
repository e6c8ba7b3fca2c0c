import os
from typing import Any

import pytest

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
