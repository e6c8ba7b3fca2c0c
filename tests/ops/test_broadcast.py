"""Biases with extent 1 along B or N: `cuevo.attention`, its gradients, and how these are summed."""

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import attention_cases, device_calls
from helpers import backward_cases as cases
from helpers.attention_cases import SINGLE
from helpers.backward_calls import arguments, named
from helpers.backward_cases import ARGUMENTS, BackwardCase, store
from helpers.covering import covering
from helpers.guarded import assert_same_bytes

import cuevo
from cuevo.arrays import DeviceArray, view
from cuevo.executors.driver import DriverExecutor
from cuevo.ops.backward_plan import OPERANDS, make_plan

kernel = pytest.mark.kernel

FIELDS: dict[str, tuple[Any, ...]] = dict(
    types=(("bf16", "bf16", "f32"), ("f16", "f32", "f16"), ("bf16", "bool", "bf16")),
    lengths=((19, 31), (33, 40), (1, 3)),
    batch=(1, 2, 3),
    rows=(1, 2, 5),
    heads=(1, 2),
    mask_layout=("packed", *SINGLE),
    pair_layout=("packed", "one B"),
    bias_grad_dtype=(None, "float32"),
)


@cache
def broadcasts() -> tuple[BackwardCase, ...]:
    """Whatever two of these can meet."""
    drawn = []
    for types, lengths, *rest in product(*FIELDS.values()):
        fields = dict(zip(list(FIELDS)[2:], rest, strict=True))
        case = BackwardCase(types[0], 8, *lengths, mask=types[1], pair=types[2], **fields)
        wide = {axis for axis, extent in enumerate((case.batch, case.rows)) if extent > 1}
        if wide.issuperset({*SINGLE.get(case.mask_layout, ()), *SINGLE.get(case.pair_layout, ())}):
            drawn.append(case)
    chosen = covering(drawn, cost=lambda case: case.batch * case.rows * case.heads * case.queries)
    return tuple(replace(case, seed=seed) for seed, case in enumerate(chosen))


def name(case: BackwardCase) -> str:
    return (
        f"{case.seed}-{case.dtype}-B{case.batch}-N{case.rows}-H{case.heads}-"
        f"mask_{case.mask}_{case.mask_layout}-pair_{case.pair}_{case.pair_layout}"
    ).replace(" ", "_")


def run(case: BackwardCase, call: dict[str, Any], **where: Any) -> dict[str, Any]:
    """out, lse and the gradients, by their names, in host memory."""
    operands = {key: call[key] for key in ARGUMENTS.values() if key in call}
    out, lse = cuevo.attention(**operands, scale=case.scale, return_lse=True, **where)
    grads = named(cuevo.attention_backward(**call | {"out": out, "lse": lse}, **where))
    found = {"out": out, "lse": lse} | grads
    return {key: x.to_numpy() if isinstance(x, DeviceArray) else x for key, x in found.items()}


def check(case: BackwardCase, found: dict[str, Any], inputs: dict[str, Any]) -> None:
    operands = {key: x for key, x in inputs.items() if key in ARGUMENTS.values()}
    attention_cases.check(case, found["out"], found["lse"], operands)
    for key in ("out", "lse"):
        store(inputs[key].array, found[key])
    cases.check(case, {key: found[key] for key in ARGUMENTS}, inputs)


def assert_the_same(case: BackwardCase, found: dict[str, Any], again: dict[str, Any]) -> None:
    for key, x in found.items():
        if x is not None:
            assert_same_bytes(case, key, again[key], x)


@pytest.mark.unit
def test_every_way_to_broadcast_is_among_the_cases() -> None:
    both = {(case.mask_layout, case.pair_layout) for case in broadcasts()}
    assert both == {*product(("packed", *SINGLE), ("packed", "one B"))}
    assert len(broadcasts()) < 40


@kernel
@pytest.mark.parametrize("case", broadcasts(), ids=name)
def test_results_and_gradients(case: BackwardCase) -> None:
    inputs, call = arguments(case)
    found = run(case, call, device="sim")
    check(case, found, inputs)
    assert_the_same(case, found, run(case, call, device="sim"))


@pytest.mark.gpu
@pytest.mark.parametrize("case", broadcasts(), ids=name)
def test_results_and_gradients_on_a_device(executor: DriverExecutor, case: BackwardCase) -> None:
    inputs, call = arguments(case)
    copies = device_calls.moved(call, executor)
    found = run(case, copies)
    check(case, found, inputs)
    assert_the_same(case, found, run(case, copies))


# -- Beside expanded biases ------------------------------------------------------------------------

ONE = BackwardCase(
    "f16", 8, 21, 30, 2, 3, 2, mask="f32", pair="f16", mask_layout="one B, N", pair_layout="one B"
)


@kernel
def test_an_expanded_bias_keeps_the_gradient_of_each_row() -> None:
    """The same numbers by strides of 0: the same bits, but for the gradients of the biases."""
    _, call = arguments(ONE)
    full = {"mask_bias": (2, 3, 1, 1, 30), "pair_bias": (2, 1, 2, 21, 30)}
    expanded = {key: np.broadcast_to(call[key], shape) for key, shape in full.items()}
    single, every = (run(ONE, x, device="sim") for x in (call, call | expanded))
    for key in ("out", "lse", "dq", "dk", "dv"):
        assert_same_bytes(ONE, key, every[key], single[key])
    for key, shape in full.items():
        gradient = every["d" + key]
        assert gradient.shape == shape
        axes = tuple(axis for axis, extent in enumerate(call[key].shape) if extent == 1)
        whole = gradient.astype(np.float64).sum(axis=axes, keepdims=True)
        np.testing.assert_allclose(single["d" + key], whole, rtol=2e-3, atol=2e-3)


@pytest.mark.unit
@pytest.mark.parametrize("empty", ["batch", "rows", "queries", "keys", "heads"])
def test_gradients_of_nothing_are_zeros(empty: str) -> None:
    shape = {"batch": 2, "rows": 3, "queries": 4, "keys": 5, "heads": 2} | {empty: 0}
    batch, rows, queries, keys, heads = shape.values()
    q = np.ones((batch, rows, queries, heads, 8), np.float16)
    k = np.ones((batch, rows, keys, heads, 8), np.float16)
    call = dict(
        q=q,
        k=k,
        v=k,
        mask_bias=np.ones((1, 1, 1, 1, keys), np.float32),
        pair_bias=np.ones((1, 1, heads, queries, keys), np.float32),
        device="sim",
    )
    out, lse = cuevo.attention(**call, return_lse=True)
    grads = named(cuevo.attention_backward(q, out=out, lse=lse, **call))
    for key in ("mask_bias", "pair_bias"):
        assert grads["d" + key].shape == call[key].shape
        assert (grads["d" + key] == 0).all()


# -- Sums of many terms ----------------------------------------------------------------------------

MANY = BackwardCase(
    "f16", 8, 1, 40, 2, 520, 1, mask="f32", mask_layout="one B, N", grads=("mask_bias",)
)
"""1040 terms of a sum: 32 groups of up to 33."""


def check_many(device: str) -> None:
    """Beside its own terms, which are the gradient of the mask if that is not broadcast: there is
    one head.
    """
    _, call = arguments(MANY)
    single = call["mask_bias"]
    found, terms = (
        named(cuevo.attention_backward(**call | {"mask_bias": mask}, device=device))["dmask_bias"]
        for mask in (single, np.ascontiguousarray(np.broadcast_to(single, (2, 520, 1, 1, 40))))
    )
    exact = terms.astype(np.float64).sum(axis=(0, 1))[0, 0]
    size = np.abs(terms).astype(np.float64).sum(axis=(0, 1))[0, 0]
    error = np.abs(found[0, 0, 0, 0] - exact)
    assert (error <= (33 + 32) * 2.0**-24 * size).all()
    in_pairs = terms.reshape(-1, 40)
    while len(in_pairs) > 1:
        odd = np.zeros((len(in_pairs) % 2, 40), np.float32)
        in_pairs = in_pairs[::2] + np.concatenate([in_pairs[1::2], odd])
    # Errors grow with the root of the number of additions in a row: 10 in pairs, 65 here, which is
    # 2.5 times as much; 1040 one after the other would be 10 times as much.
    assert np.linalg.norm(error) < 5 * np.linalg.norm(in_pairs[0] - exact)


@kernel
def test_many_terms() -> None:
    check_many("sim")


@pytest.mark.gpu
def test_many_terms_on_a_device(executor: DriverExecutor) -> None:
    check_many(executor.name)


@kernel
def test_a_pair_bias_of_many_batches() -> None:
    """70 terms, whose groups have rows of queries and heads."""
    case = BackwardCase("f16", 8, 5, 6, batch=70, heads=2, pair="f32", pair_layout="one B")
    inputs, call = arguments(case)
    found = named(cuevo.attention_backward(**call, device="sim"))
    cases.check(case, found, inputs)


@kernel
@pytest.mark.parametrize(
    ("changes", "groups"),
    [
        (dict(), [32, 1]),
        (dict(mask_layout="one N"), [23, 1]),
        (dict(mask_layout="one B"), [1, 1]),
        (dict(mask_layout="packed"), [1]),
        (dict(rows=32), [1]),
        (dict(batch=1, rows=13, heads=5), [8, 1]),
        (dict(batch=70, rows=64), [70, 8, 1]),
    ],
    ids=repr,
)
def test_the_groups_of_each_launch(changes: dict[str, Any], groups: list[int]) -> None:
    """Up to 64 terms in one launch."""
    _, call = arguments(replace(MANY, **changes))
    views = {key: view(x) for key, x in call.items() if key in OPERANDS}
    plan = make_plan(views, None, MANY.grads, None, None, device="sim", config=None)
    grids = [x.shape[0] for x in plan.launches]
    assert [grid[1] for grid in grids[-len(groups) :]] == groups
    assert all(grid[1] == 1 for grid in grids[: -len(groups)])
