"""A GPU of sm_90 and the CPU executor that stands for it: the same bits of attention, forward and
backward, by the variant that is chosen there and by the lower ones. (Products are compared in
`test_gemm_on_device`.)

What is approximate on the way, ex2, the reciprocal and the logarithm, is modelled.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from helpers import attention_cases
from helpers.attention_cases import Case
from helpers.attention_sweep import CASES, in_half_precision, name
from helpers.backward_calls import arguments, named
from helpers.backward_cases import BackwardCase
from helpers.backward_sweep import CASES as BACKWARD
from helpers.backward_sweep import name as backward_name
from helpers.guarded import assert_same_bytes

import cuevo
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of
from cuevo.ops import backward, forward
from cuevo.ops.dispatch import ENVIRONMENT
from cuevo.sim import SimExecutor

pytestmark = pytest.mark.gpu


@pytest.fixture
def twin(executor: DriverExecutor) -> SimExecutor:
    """The CPU executor of the device's architecture."""
    arch = architecture_of(executor)
    if arch.number != 90:
        pytest.skip(f"the models of approximate functions are of sm_90; this is {arch.name}")
    return SimExecutor(arch.name)


def check_forward(twin: SimExecutor, case: Case) -> None:
    arrays = {key: x.array for key, x in attention_cases.make(case).items()}
    call: Mapping[str, Any] = dict(**arrays, scale=case.scale, return_lse=True)
    out, lse = cuevo.attention(**call, device="cuda:0")
    expected, expected_lse = cuevo.attention(**call, device=twin)
    assert_same_bytes(case, "out", out, expected)
    assert_same_bytes(case, "lse", lse, expected_lse)


def check_backward(twin: SimExecutor, case: BackwardCase) -> None:
    _, call = arguments(case)
    call["grads"] = tuple(call["grads"])
    found = named(cuevo.attention_backward(**call | {"device": "cuda:0"}))
    expected = named(cuevo.attention_backward(**call | {"device": twin}))
    for key, x in expected.items():
        assert (x is None) == (found[key] is None)
        if x is not None:
            assert_same_bytes(case, key, found[key], x)


@pytest.mark.parametrize("case", CASES[::6], ids=name)
def test_forward(twin: SimExecutor, case: Case) -> None:
    check_forward(twin, case)


@pytest.mark.parametrize("case", BACKWARD[::8], ids=backward_name)
def test_backward(twin: SimExecutor, case: BackwardCase) -> None:
    check_backward(twin, case)


@pytest.fixture(params=["sm_75", "sm_70"])
def lower_variant(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The kernels below sm_80; plans that were made before, or here, would keep theirs."""
    monkeypatch.setenv(ENVIRONMENT, request.param)
    for module in (forward, backward):
        module.OPERATION.plans.clear()
    yield
    for module in (forward, backward):
        module.OPERATION.plans.clear()


@pytest.mark.usefixtures("lower_variant")
@pytest.mark.parametrize("case", CASES[3::12], ids=name)
def test_forward_of_lower_variants(twin: SimExecutor, case: Case) -> None:
    check_forward(twin, in_half_precision(case))


@pytest.mark.usefixtures("lower_variant")
@pytest.mark.parametrize("case", BACKWARD[3::20], ids=backward_name)
def test_backward_of_lower_variants(twin: SimExecutor, case: BackwardCase) -> None:
    check_backward(twin, in_half_precision(case))
