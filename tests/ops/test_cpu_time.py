"""The warning of a long call that falls to the CPU executor because there is no GPU."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cuevo
from cuevo.cuda import device_info
from cuevo.errors import CpuExecutorWarning
from cuevo.executors import placement
from cuevo.ops import cpu_time
from cuevo.ops.plan import Plan

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """There is no GPU, nobody was warned before, and plans are not run; those that would be."""
    ran: list[object] = []

    def run(plan: Plan, views: object, results: list[object], workspace: object) -> list[object]:
        ran.append(plan)
        return results

    monkeypatch.setattr(placement, "devices", lambda: ())
    monkeypatch.setattr(device_info, "_probe", lambda: "looked for a GPU, found none")
    monkeypatch.setattr(cpu_time, "_warned", False)
    monkeypatch.setattr(cpu_time, "find_spec", lambda name: object())
    monkeypatch.setattr(Plan, "run_on_cpu", run)
    yield ran


def rows(count: int) -> np.ndarray:
    """[1, count, 256, 4, 32]; the rows are one."""
    return np.broadcast_to(np.zeros((1, 1, 256, 4, 32), np.float16), (1, count, 256, 4, 32))


def attention(count: int, **options: Any) -> None:
    cuevo.attention(rows(count), rows(count), rows(count), **options)


def backward(count: int, **options: Any) -> None:
    x, lse = rows(count), np.zeros((1, count, 4, 256), np.float32)
    cuevo.attention_backward(x, x, x, x, x, lse, grads=["q"], **options)


def product(count: int, **options: Any) -> None:
    x = np.broadcast_to(np.zeros((1, 1024), np.float16), (32 * count, 1024))
    cuevo.gemm(x, x, trans_b=True, **options)


CALLS = pytest.mark.parametrize(
    ("call", "time"),
    [(attention, "28 seconds"), (backward, "102 seconds"), (product, "17 minutes")],
    ids=["attention", "attention_backward", "gemm"],
)


@CALLS
def test_a_long_call_warns_once_where_it_was_made(
    call: Callable[..., None], time: str, nothing_runs: list[object]
) -> None:
    with pytest.warns(CpuExecutorWarning) as caught:
        call(800)
        call(801)
    (warning,) = caught
    assert warning.filename == __file__
    assert time in str(warning.message)
    assert "looked for a GPU, found none" in str(warning.message)
    assert "device='sim'" in str(warning.message)
    assert len(nothing_runs) == 2


@CALLS
def test_who_is_not_warned(
    call: Callable[..., None], time: str, nothing_runs: list[object]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(2)
        for device in ("sim", "sim:sm_90"):
            call(800, device=device)
        with pytest.raises(CpuExecutorWarning):
            call(800)
        with pytest.raises(CpuExecutorWarning):  # an error is no warning that anyone has read
            call(800)
    assert len(nothing_runs) == 3


def test_an_estimate_grows_with_the_work() -> None:
    for operation in ("attention", "attention_backward", "gemm"):
        small = cpu_time.cpu_seconds(operation, 10**6, 32)
        assert cpu_time.cpu_seconds(operation, 2 * 10**6, 32) == pytest.approx(2 * small)
        assert small < cpu_time.cpu_seconds(operation, 10**6, 64) <= 2 * small


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (10, "10 seconds"),
        (119, "119 seconds"),
        (120, "2 minutes"),
        (7200, "2 hours"),
        (1e6, "12 days"),
    ],
)
def test_words(seconds: float, words: str) -> None:
    with pytest.warns(CpuExecutorWarning, match=f"which takes about {words}: "):
        cpu_time.warn_of_cpu(seconds)


def test_without_numba_it_takes_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_time, "find_spec", lambda name: None)
    with pytest.warns(CpuExecutorWarning, match="which takes about 24 seconds: "):
        cpu_time.warn_of_cpu(12)


def test_what_is_long_without_numba_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cpu_time.warn_of_cpu(6)
    monkeypatch.setattr(cpu_time, "find_spec", lambda name: None)
    with pytest.warns(CpuExecutorWarning, match="which takes about 12 seconds: "):
        cpu_time.warn_of_cpu(6)
