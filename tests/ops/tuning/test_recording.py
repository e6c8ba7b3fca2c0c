"""CUEVO_RECORD_PROBLEMS: the calls that are made, one line each."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.tuning_bench import Unloaded, rendered

from cuevo.errors import CuevoError
from cuevo.ops import backward, backward_plan, dispatch, forward, packing, product
from cuevo.ops.plan import Plan
from cuevo.ops.tuning import recording
from cuevo.ops.tuning.calls import Call, read_recorded

PLACE = Unloaded("sm_80")
Q = np.ones((1, 2, 24, 2, 16), np.float16)
PAIR = np.zeros((1, 24, 24, 2), np.float32).transpose(0, 3, 1, 2)[:, None]
OPTIONS = (1.0, 0.0, False, False, None)
LSE = np.zeros((1, 2, 2, 24), np.float32)


@pytest.fixture(autouse=True)
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (dispatch, backward_plan, packing):
        monkeypatch.setattr(module, "render", rendered)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "calls.jsonl"
    monkeypatch.setenv(recording.ENVIRONMENT, str(path))
    for operation in (forward.OPERATION, backward.OPERATION, product.OPERATION):
        operation.plans.clear()
    return path


def plans() -> list[Plan]:
    """Those of three calls, of which the first is made twice."""
    attention = (Q, Q, Q, None, PAIR, None, None), (None, True, None)
    gradients = (Q, Q, Q, Q, Q, LSE, None, PAIR, *[None] * 5), (0.5, ("q", "pair_bias"), None, None)
    x = np.ones((30, 40), np.float16)[:, 3:19]
    products = (x, x.T, None, None, None, None), (1.0, 0.0, False, False, np.dtype(np.float32))
    return [
        operation.plan_on_device(*call, PLACE, None)
        for operation, call in (
            (forward.OPERATION, attention),
            (forward.OPERATION, attention),
            (backward.OPERATION, gradients),
            (product.OPERATION, products),
        )
    ]


@pytest.mark.unit
def test_what_is_recorded_makes_the_plans_that_were_made(file: Path) -> None:
    made = plans()
    calls = list(read_recorded(file))
    assert [call.operation.name for call in calls] == ["attention", "attention_backward", "gemm"]
    again = [x.operation.plan_on_device(x.arrays, x.options, PLACE, None) for x in calls]
    for plan, other in zip(made[1:], again, strict=True):
        assert plan.problems == other.problems
        launches, others = (x.every_launch for x in (plan, other))
        assert [x.shape for x in launches] == [x.shape for x in others]
        assert [x.config for x in launches] == [x.config for x in others]


@pytest.mark.unit
def test_a_kind_of_call_is_written_once_by_all_processes(file: Path) -> None:
    plans()
    before = file.read_text(encoding="utf-8")
    assert len(before.splitlines()) == 3
    recording._noted.clear()  # as another process
    product.OPERATION.plans.clear()
    plans()
    assert file.read_text(encoding="utf-8") == before


@pytest.mark.unit
def test_configured_and_unrecorded_calls_are_not_written(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.ones((16, 16), np.float16)
    arrays = (x, x, None, None, None, None)
    product.OPERATION.plan_on_device(arrays, OPTIONS, PLACE, {"stages": 2})
    monkeypatch.delenv(recording.ENVIRONMENT)
    product.OPERATION.plan_on_device(arrays, OPTIONS, PLACE, None)
    assert not file.exists()


@pytest.mark.unit
def test_a_file_that_cannot_be_written_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(recording.ENVIRONMENT, str(tmp_path / "no" / "folder"))
    product.OPERATION.plans.clear()
    x = np.ones((16, 16), np.float16)
    with pytest.warns(RuntimeWarning, match="calls are not recorded"):
        product.OPERATION.plan_on_device((x, x, *(None,) * 4), OPTIONS, PLACE, None)
    product.OPERATION.plan_on_device((x, x.T, *(None,) * 4), OPTIONS, PLACE, None)


@pytest.mark.unit
def test_a_line_that_is_no_call_is_named(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    good = Call(product.OPERATION, (None,) * 6, ()).record()
    file.write_text(f"{json.dumps(good)}\n{{}}\n", encoding="utf-8")
    with pytest.raises(CuevoError, match=r"calls.jsonl:2: not a recorded call: KeyError"):
        list(read_recorded(file))
