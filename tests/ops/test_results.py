"""Arrays of the caller for results: `lse` of cuevo.attention, `results` of
cuevo.attention_backward.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import cuevo
from cuevo.arrays import array_from_pointer, view
from cuevo.ops.backward import GRADS
from cuevo.ops.given_memory import check_result

PLACES = [
    pytest.param("sim", marks=pytest.mark.kernel),
    pytest.param("cuda:0", marks=pytest.mark.gpu),
]
MASK_BIAS = np.zeros((1, 2, 1, 1, 24), np.float32)
PAIR_BIAS = np.zeros((1, 1, 2, 16, 24), np.float16)


def make() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, n, 2, 8)).astype(np.float16) for n in (16, 24, 24))
    return {"q": q, "k": k, "v": v, "mask_bias": MASK_BIAS, "pair_bias": PAIR_BIAS}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("return_lse", [False, True])
def test_log_sum_exps_go_to_the_callers_array(place: str, return_lse: bool) -> None:
    call = make()
    expected, expected_lse = cuevo.attention(**call, return_lse=True, device=place)
    lse = np.full((1, 2, 2, 16), 7, np.float32)
    found = cuevo.attention(**call, lse=lse, return_lse=return_lse, device=place)
    if return_lse:
        found, returned = found
        assert returned is lse
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(lse, expected_lse)


@pytest.mark.parametrize("place", PLACES)
def test_log_sum_exps_of_an_empty_problem(place: str) -> None:
    call = {name: x for name, x in make().items() if not name.endswith("bias")}
    call |= {name: call[name][:, :, :0] for name in ("k", "v")}
    lse = np.zeros((1, 2, 2, 16), np.float32)
    out = np.ones_like(call["q"])
    assert cuevo.attention(**call, out=out, lse=lse, device=place) is out
    assert np.isneginf(lse).all() and (out == 0).all()


@pytest.mark.unit
@pytest.mark.parametrize(
    ("lse", "error", "message"),
    [
        (np.zeros((1, 2, 2, 15), np.float32), ValueError, r"lse: expected .*\(1, 2, 2, 16\)"),
        (np.zeros((1, 2, 2, 16)), TypeError, "lse: expected float32; got float64"),
        (np.zeros((1, 2, 2, 32), np.float32)[..., ::2], ValueError, "lse: has to be contiguous"),
        (
            np.broadcast_to(np.float32(0), (1, 2, 2, 16)).copy().view(),
            ValueError,
            "lse: has to be writable",
        ),
    ],
    ids=["shape", "type", "strides", "read-only"],
)
def test_arrays_that_cannot_take_log_sum_exps(
    lse: np.ndarray, error: type[Exception], message: str
) -> None:
    lse.flags.writeable = "writable" not in message
    with pytest.raises(error, match=message):
        cuevo.attention(**make(), lse=lse, device="sim")


def backward(results: Sequence[Any] | None, place: str, **options: Any) -> tuple[Any, ...]:
    call = make()
    out, lse = cuevo.attention(**call, return_lse=True, device=place)
    dout = np.cos(np.arange(out.size)).astype(np.float16).reshape(out.shape)
    return cuevo.attention_backward(
        dout, out=out, lse=lse, **call, **options, results=results, device=place
    )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("given", [(0, 1, 2, 3, 4), (1, 4), ()], ids=str)
def test_gradients_go_to_the_callers_arrays(place: str, given: tuple[int, ...]) -> None:
    expected = backward(None, place)
    results = [np.full_like(x, 7) if i in given else None for i, x in enumerate(expected)]
    found = backward(results, place)
    for i, (x, right) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(x, right)
        assert (x is results[i]) == (i in given)


@pytest.mark.parametrize("place", PLACES)
def test_gradients_of_an_empty_problem(place: str) -> None:
    q, k = np.ones((1, 2, 16, 2, 8), np.float16), np.ones((1, 2, 0, 2, 8), np.float16)
    out, lse = cuevo.attention(q, k, k, return_lse=True, device=place)
    dq = np.ones_like(q)
    results = [dq, None, None, None, None]
    found = cuevo.attention_backward(q, q, k, k, out, lse, results=results, device=place)
    assert found[0] is dq and (dq == 0).all()
    assert found[1].shape == k.shape


def read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


DQ = (1, 2, 16, 2, 8)
DPAIR_BIAS = (1, 1, 2, 16, 24)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "x", "error", "message"),
    [
        ("q", np.zeros(DQ[1:], np.float16), ValueError, r"dq: expected shape \(1, 2, 16, 2, 8\); "),
        ("q", np.zeros(DQ, np.float32), TypeError, "dq: expected float16; got float32"),
        (
            "q",
            np.zeros(DQ[::-1], np.float16).T,
            ValueError,
            "dq: has to be contiguous; its strides",
        ),
        ("q", read_only(np.zeros(DQ, np.float16)), ValueError, "dq: has to be writable"),
        ("q", 1.0, TypeError, "dq: expected a NumPy, torch, CuPy or JAX array"),
        (
            "pair_bias",
            np.zeros(math.prod(DPAIR_BIAS) + 8, np.float16)[1:-7].reshape(DPAIR_BIAS),
            ValueError,
            "dpair_bias: has to start at a multiple of 16 bytes",
        ),
        ("v", np.zeros(DQ, np.float16), ValueError, "dv: expected None, there is no such gradient"),
    ],
)
def test_arrays_that_cannot_take_a_gradient(
    name: str, x: Any, error: type[Exception], message: str
) -> None:
    results = [x if name == each else None for each in GRADS]
    with pytest.raises(error, match=f"^results: {message}"):
        backward(results, "sim", grads=("q", "k", "mask_bias", "pair_bias"))


@pytest.mark.unit
def test_a_device_and_a_number_of_results() -> None:
    elsewhere = array_from_pointer(4096, DQ, np.float16)
    with pytest.raises(ValueError, match="dq: expected an array on cpu; this is on cuda:0"):
        backward([elsewhere, None, None, None, None], "sim")
    on_host = view(np.zeros(DQ, np.float16))
    with pytest.raises(ValueError, match="dq: expected an array on cuda:0; this is on cpu"):
        check_result("dq", on_host, on_host.shape, on_host.dtype, "cuda:0")
    with pytest.raises(ValueError, match="results: expected an array or None for each of q, k, v"):
        backward([None] * 3, "sim")


@pytest.mark.kernel
def test_what_is_said_of_results_is_said_of_those_of_each_call() -> None:
    expected = backward(None, "sim")
    given = [np.zeros_like(x) for x in expected]
    found = backward(given, "sim")
    assert all(x is y for x, y in zip(found, given, strict=True))
    with pytest.raises(ValueError, match=r"^results: dq: has to be writable"):
        backward([read_only(given[0]), *given[1:]], "sim")
    others = [np.ones_like(x) for x in expected]
    for x, right in zip(backward(others, "sim"), expected, strict=True):
        np.testing.assert_array_equal(x, right)
