"""The backward cases: what a sound kernel gives passes their check, what a wrong one gives does
not, and the sweep has everything.
"""

from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from helpers import attention_cases
from helpers import backward_cases as cases
from helpers.attention_cases import MASK_LAYOUTS, PAIR_LAYOUTS, SINGLE
from helpers.backward_cases import ARGUMENTS, GRADS, BackwardCase, Strided
from helpers.backward_sweep import CASES, HEAD_DIMS, LENGTHS, MOST_SCORES, SCALES
from helpers.guarded import check_guards

pytestmark = pytest.mark.unit

BOTH = BackwardCase("bf16", 24, 37, 53, 2, 3, 2, mask="f32", pair="bf16", seed=3)
DEAD = replace(BOTH, values="dead by mask")


@cache
def inputs_of(case: BackwardCase) -> dict[str, Strided]:
    return cases.make(case)


def kernel(case: BackwardCase) -> dict[str, Any]:
    """Results of a sound kernel: all sums in fp32."""
    return cases.rounded(case, inputs_of(case), np.float32)


def rejected(case: BackwardCase, found: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message) as caught:
        cases.check(case, found, inputs_of(case))
    assert str(caught.value).startswith("BackwardCase(")


# -- What passes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("values", cases.VALUES)
def test_sums_in_fp32_pass_and_do_not_overflow(values: str, dtype: str) -> None:
    """The smallest of the cases with these values; the sweeps themselves have the others."""
    case = min(
        (each for each in CASES if (each.values, each.dtype) == (values, dtype)),
        key=lambda each: each.rows * each.heads * each.queries * each.keys,
    )
    inputs = cases.make(case)
    cases.check(case, cases.rounded(case, inputs, np.float32), inputs)
    for name, exact in cases.expected(case, inputs).items():
        largest = np.nanmax(np.abs(exact), initial=0.0)
        assert largest < (6e4 if case.dtype_of(name) == np.float16 else 1e30), (case, name)


@pytest.mark.parametrize("values", [x for x in cases.VALUES if x.startswith("nan")])
def test_nan_reaches_some_rows_and_not_others(values: str) -> None:
    reached = []
    for case in CASES:
        if case.values == values:
            every = replace(case, grads=GRADS)
            for exact in cases.expected(every, cases.make(every)).values():
                reached.append(np.isnan(exact).any(axis=-1).mean())
    assert any(0.0 < part < 1.0 for part in reached)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("scale", [None, -0.3, 1.0])
def test_ordinary_values_are_held_to_the_tolerance_alone(dtype: str, scale: float | None) -> None:
    case = replace(BOTH, dtype=dtype, pair=dtype, scale=scale)
    inputs = inputs_of(case)
    model = cases.rounded(case, inputs)
    for name, exact in cases.expected(case, inputs).items():
        error = np.linalg.norm(model[name] - exact) / np.linalg.norm(exact)
        assert 2.0 * error < cases.TOLERANCE[dtype], name


def test_the_rest_of_a_nan_row_is_free() -> None:
    case = replace(BOTH, values="nan dout")
    found, exact = kernel(case), cases.expected(case, inputs_of(case))
    rows = np.isnan(exact["dv"]).any(axis=-1)
    assert not np.isnan(exact["dv"][rows]).all()
    found["dv"][rows] = np.nan
    cases.check(case, found, inputs_of(case))


# -- What does not ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_an_error_of_twice_the_tolerance(dtype: str, name: str) -> None:
    case = replace(BOTH, dtype=dtype, pair=dtype)
    found = kernel(case)
    cases.check(case, found, inputs_of(case))
    scaled = found[name] * (1.0 + 2.0 * cases.TOLERANCE[dtype])
    rejected(case, found | {name: scaled.astype(found[name].dtype)}, f"{name}: error .* relative")


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("case", [BOTH, DEAD], ids=["normal", "dead"])
def test_rows_and_heads_in_each_others_place(case: BackwardCase, name: str) -> None:
    found = kernel(case)
    # Axis 2 of dpair_bias is the heads.
    axis = 2 if name == "dpair_bias" else 1
    rejected(case, found | {name: np.roll(found[name], 1, axis)}, f"{name}: ")


def test_without_delta() -> None:
    inputs = dict(inputs_of(BOTH))
    inputs["out"] = cases.forward.make_results(BOTH)["out"]
    inputs["out"].array[...] = 0
    rejected(BOTH, cases.rounded(BOTH, inputs, np.float32), "dq: error")


@pytest.mark.parametrize("name", ["dq", "dk"])
def test_without_the_scale(name: str) -> None:
    found = kernel(BOTH)
    unscaled = (found[name] * np.sqrt(24.0)).astype(found[name].dtype)
    rejected(BOTH, found | {name: unscaled}, f"{name}: error")


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_was_not_written(name: str) -> None:
    found = kernel(BOTH)
    found[name][0, ..., -1] = np.nan
    rejected(BOTH, found, f"{name}: NaN in rows that none reaches")


@pytest.mark.parametrize("name", ["dq", "dk", "dv", "dmask_bias"])
def test_dead_rows_and_keys_that_are_not_zero(name: str) -> None:
    found = kernel(DEAD)
    found[name][0, 0, 0] = 1e-20
    rejected(DEAD, found, f"{name}: not 0 where every score is -inf")


@pytest.mark.parametrize("name", ARGUMENTS)
def test_nan_that_is_missing(name: str) -> None:
    case = replace(BOTH, values="nan q")
    found = kernel(case)
    found[name][np.isnan(found[name])] = 0
    rejected(case, found, f"{name}: no NaN where")


def test_infinity() -> None:
    found = kernel(BOTH)
    found["dk"][0, 1, 2, 1, 3] = np.inf
    rejected(BOTH, found, r"dk: not finite\n1 of .* first is \(0, 1, 2, 1, 3\)")


def test_a_gradient_of_zeros_is_zero() -> None:
    case = replace(BOTH, values="zero dout")
    found = kernel(case)
    found["dpair_bias"][1, 0, 0, 5, 3] = 2.0**-100
    rejected(case, found, "dpair_bias: error 7.89e-31, allowed 0")


def test_gradients_that_were_not_asked_for() -> None:
    case = replace(BOTH, grads=("q", "mask_bias"))
    found = kernel(BOTH)
    rejected(case, found, "dk: an array, where there should be none")
    rejected(BOTH, kernel(case), "dk: None, where there should be an array")
    cases.check(case, kernel(case), inputs_of(case))


def test_the_type_of_a_gradient() -> None:
    case = replace(BOTH, bias_grad_dtype="float32")
    rejected(case, kernel(BOTH), "dpair_bias: .*bfloat16")
    assert kernel(case)["dpair_bias"].dtype == np.float32


# -- Arrays ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", cases.DOUT_LAYOUTS)
def test_inputs(layout: str) -> None:
    case = replace(BOTH, layout="fused", dout_layout=layout, mask="none", values="dead by pair")
    made = cases.make(case)
    assert list(made) == ["q", "k", "v", "pair_bias", "dout", "out", "lse"]
    operands = {name: made[name].array for name in ("q", "k", "v", "pair_bias")}
    out, lse = cases.reference.attention(**operands)
    for name, exact in (("out", out), ("lse", lse)):
        assert made[name].array.shape == exact.shape
        np.testing.assert_array_equal(made[name].array, exact.astype(made[name].array.dtype))
    assert made["lse"].array.dtype == np.float32 and np.isneginf(made["lse"].array).any()
    dout = made["dout"].array
    assert (dout.shape, dout.dtype) == (out.shape, made["q"].array.dtype)
    assert (0 in dout.strides) == layout.startswith("broadcast")
    assert np.isfinite(dout.astype(np.float32)).all() and dout.strides[-1] == 2
    check_guards(case, {name: made[name] for name in ("dout", "out", "lse")})


@pytest.mark.parametrize("layout", cases.GRAD_LAYOUTS)
def test_results(layout: str) -> None:
    case = replace(BOTH, grad_layout=layout, mask="bool", bias_grad_dtype="float32")
    made, inputs = cases.make_results(case), inputs_of(case)
    assert list(made) == ["dq", "dk", "dv", "dpair_bias"]
    for name, x in made.items():
        assert x.array.shape == inputs[ARGUMENTS[name]].array.shape
        assert x.array.dtype == case.dtype_of(name)
        assert np.isnan(x.array.astype(np.float32)).all()
    check_guards(case, made)


# -- The sweep -------------------------------------------------------------------------------------


def seen(*names: str) -> set[Any]:
    found = {tuple(getattr(case, name) for name in names) for case in CASES}
    return {values[0] for values in found} if len(names) == 1 else found


def test_the_sweep_has_everything() -> None:
    assert len(CASES) >= 200
    assert len({repr(case) for case in CASES}) == len(CASES)
    types = {(dtype, head_dim) for dtype in ("bf16", "f16") for head_dim in range(8, 129, 8)}
    assert set(HEAD_DIMS) == set(range(8, 129, 8)) and seen("dtype", "head_dim") == types
    both = {(dtype, values) for dtype in ("bf16", "f16") for values in cases.VALUES}
    assert seen("dtype", "values") == both
    assert seen("layout") == set(attention_cases.LAYOUTS)
    assert seen("dout_layout") == set(cases.DOUT_LAYOUTS)
    assert seen("grad_layout") == set(cases.GRAD_LAYOUTS)
    assert seen("scale") == set(SCALES)
    assert set(LENGTHS) <= seen("queries") and {1, 2, 3, 150} <= seen("keys")
    assert seen("arch") == {"sm_80", "sm_86", "sm_90"}
    assert seen("batch") == seen("heads") == {1, 2, 3} and max(seen("rows")) == 33
    assert any(case.queries != case.keys for case in CASES)
    sizes = [case.batch * case.rows * case.heads * case.queries * case.keys for case in CASES]
    assert max(sizes) <= MOST_SCORES


def test_the_sweep_has_every_set_of_gradients() -> None:
    subsets = {subset for size in range(1, 6) for subset in combinations(GRADS, size)}
    assert seen("grads") == subsets
    assert all(case.gradients for case in CASES)
    assert len({case.gradients for case in CASES}) == len(subsets)


def test_the_sweep_has_every_bias() -> None:
    assert seen("mask") == {"none", "f16", "bf16", "f32", "bool"}
    assert seen("pair") == {"none", "f16", "bf16", "f32"}
    both = {(case.mask != "none", case.pair != "none") for case in CASES}
    assert both == {(True, True), (True, False), (False, True), (False, False)}
    for gradient, bias, layouts in (
        ("dmask_bias", "mask", (*MASK_LAYOUTS, *SINGLE)),
        ("dpair_bias", "pair", (*PAIR_LAYOUTS, "one B")),
    ):
        asked = [case for case in CASES if gradient in case.gradients]
        types = {(getattr(case, bias), case.bias_grad_dtype) for case in asked}
        assert types == {(x, y) for x in ("f16", "bf16", "f32") for y in (None, "float32")}
        assert {getattr(case, f"{bias}_layout") for case in asked} == set(layouts)
