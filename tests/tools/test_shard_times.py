"""tools/shard_times.py, and what measures through it: every pass is timed, whole and in shards."""

from pathlib import Path
from typing import Any

import pytest

import shard_times
from shard_times import Times, print_times
from workloads import Workload

SIZE = Workload(2, 1, 8, 8)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("REPEATS", 1), ("WARM_UP", 0), ("CALLS", 1)):
        monkeypatch.setattr(shard_times, name, count)


def check(told: list[Any], library: str, devices: int) -> None:
    ((*found, times),) = told
    assert found == [library, devices, "cpu", SIZE]
    assert [x.name for x in times] == ["forward", "forward and backward"]
    assert all(x.whole > 0 and x.shards > 0 for x in times)


@pytest.mark.kernel
def test_arrays_of_jax() -> None:
    pytest.importorskip("jax")
    import jax_shards

    told: list[Any] = []
    jax_shards.run(2, "cpu", SIZE, lambda *x: told.append(x))
    check(told, "jax", 2)


@pytest.mark.kernel
def test_tensors_of_torch(tmp_path: Path) -> None:
    """As the only process of a group."""
    pytest.importorskip("torch")
    import torch_shards

    told: list[Any] = []
    torch_shards.measure(0, 1, "cpu", SIZE, tmp_path / "store", lambda *x: told.append(x))
    check(told, "torch", 1)


@pytest.mark.unit
def test_a_time_is_that_of_a_call_among_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are queued, 1 ms each for the device, and waited for together."""
    now, done, met = [0.0], [0.0], []

    def call() -> float:
        done[0] = max(done[0], now[0]) + 1e-3
        return done[0]

    def wait(end: float) -> None:
        now[0] = max(now[0], end)

    monkeypatch.setattr(shard_times, "CALLS", 8)
    monkeypatch.setattr(shard_times.time, "perf_counter", lambda: now[0])
    found = shard_times.milliseconds(call, wait, lambda: met.append(now[0]))
    assert found == pytest.approx(1)
    assert met == [pytest.approx(1e-3)]


@pytest.mark.unit
def test_efficiency(capsys: pytest.CaptureFixture[str]) -> None:
    print_times("jax", 4, "cuda", SIZE, [Times("forward", 2.0, 0.625)])
    assert capsys.readouterr().out.splitlines()[-1].split()[-2] == "0.800"
