"""SimExecutor(checks=False): the same results, addresses still checked, nothing else."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from sim.conftest import launch

from cuevo import attention
from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor

pytestmark = pytest.mark.unit

START = """
.extern .shared .align 16 .b8 smem[]; .reg .b64 p, q; .reg .b32 t, x, y, at; .reg .pred odd;
mov.u32 t, %tid.x; mov.u32 at, smem; mad.lo.u32 at, t, 4, at; ld.param.u64 p, [p0];
mad.wide.u32 q, t, 4, p; setp.gt.u32 odd, t, 40;
"""


def run(body: str, *, checks: bool) -> Any:
    out = np.zeros(64, np.uint32)
    launch(SimExecutor("sm_80", checks=checks), f"{START}{body} ret;", (out,), 1, 64, 256)
    return out


@pytest.mark.parametrize(
    "body",
    [
        "st.shared.b32 [at], t; xor.b32 x, at, 128; ld.shared.b32 y, [x]; st.global.b32 [q], y;",
        "ld.shared.b32 y, [at]; st.global.b32 [q], y;",
        "@odd mov.b32 x, 3; st.global.b32 [q], x;",
        "cp.async.ca.shared.global [at], [q], 4; ld.shared.b32 y, [at]; st.global.b32 [q], y;",
    ],
    ids=["a race", "memory never written", "a register never written", "a copy in flight"],
)
def test_what_is_not_looked_for(body: str) -> None:
    run(body, checks=False)
    with pytest.raises(SimulatorError):
        run(body, checks=True)


@pytest.mark.parametrize("body", ["st.global.b32 [q+8], t;", "ld.shared.b32 x, [at+4];"])
def test_addresses_are_checked_always(body: str) -> None:
    for checks in (True, False):
        with pytest.raises(SimulatorError, match="outside of"):
            run(body, checks=checks)


def test_the_same_results() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 2, 70, 2, 32)).astype(ml_dtypes.bfloat16) for _ in "qkv")
    pair = rng.normal(size=(1, 1, 2, 70, 70)).astype(ml_dtypes.bfloat16)
    first, second = (
        attention(q, k, v, pair_bias=pair, device=SimExecutor("sm_80", checks=checks))
        for checks in (True, False)
    )
    assert np.array_equal(np.asarray(first).view(np.uint16), np.asarray(second).view(np.uint16))
