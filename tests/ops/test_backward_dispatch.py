"""Which backward kernel a call gets: the highest variant that the device has, or the one named."""

from dataclasses import replace
from typing import Any

import pytest
from helpers import backward_cases as cases
from helpers.backward_calls import arguments, named
from helpers.backward_cases import BackwardCase
from helpers.executors import Recorder

import cuevo
from cuevo.architectures import architecture
from cuevo.kernels import evoformer_backward_sm70 as sm70
from cuevo.kernels import evoformer_backward_sm75 as sm75
from cuevo.kernels import evoformer_backward_sm80 as sm80
from cuevo.kernels import evoformer_backward_sm90a as sm90a
from cuevo.kernels.backward import Problem
from cuevo.ops.backward_plan import VARIANTS
from cuevo.ops.dispatch import ENVIRONMENT, dispatch

HALF = Problem(1, 2, 2, 100, 128, 16, "f16", "f16", "f16", side="queries", sums=True)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("arch", "expected"),
    [("sm_70", sm70), ("sm_72", sm70), ("sm_75", sm75), ("sm_80", sm80), ("sm_90", sm80)],
)
def test_the_highest_variant_that_the_device_has_wins(arch: str, expected: object) -> None:
    assert dispatch(VARIANTS, HALF, architecture(arch)) is expected
    for dtype in ("bf16", "f16"):
        problem = replace(HALF, dtype=dtype, pair=dtype, mask="none", side="keys", sums=False)
        if dtype == "f16" or expected is sm80:
            assert dispatch(VARIANTS, problem, architecture(arch)) is expected
            continue
        with pytest.raises(ValueError, match=r"no kernel serves Problem\(") as caught:
            dispatch(VARIANTS, problem, architecture(arch))
        for line in str(caught.value).split("\n")[3:]:
            assert "bf16 needs the tensor cores of sm_80 or later" in line
            assert "takes q, k, v, dout and 16-bit biases in float16" in line


@pytest.mark.kernel
@pytest.mark.parametrize("each", VARIANTS, ids=lambda each: each.NAME[-4:])
def test_calls_on_every_architecture_and_with_the_environment(
    each: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = BackwardCase("f16", 16, 20, 33, rows=2, mask="f32", pair="f32")
    inputs, call = arguments(case)
    own = f"sm_{each.MINIMUM_ARCH}"
    alone, forced = Recorder(getattr(each, "ARCH", own)), Recorder("sm_90a")
    cases.check(case, named(cuevo.attention_backward(**call, device=alone)), inputs)
    monkeypatch.setenv(ENVIRONMENT, own)
    cases.check(case, named(cuevo.attention_backward(**call, device=forced)), inputs)
    for place in (alone, forced):
        found = [key for key in place.names if key.startswith("evoformer_backward")]
        # Of so short a call, the kernel on wgmma only where it is named.
        shorter = each is sm90a and place is alone
        assert found == [sm80.NAME if shorter else each.NAME] * 2


@pytest.mark.unit
def test_a_variant_for_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackwardCase("f16", 16, 20, 33)
    _, call = arguments(case)
    place = Recorder("sm_90")
    config = {"keys": sm70.Config(head_dim=16), "queries": sm75.Config(head_dim=16)}
    cuevo.attention_backward(**call, device=place, config=config)
    assert [key for key in place.names if "backward" in key] == [sm75.NAME, sm70.NAME]
