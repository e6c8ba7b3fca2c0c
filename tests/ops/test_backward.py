"""cuevo.attention_backward on the CPU executor: what is asked for, plans, workspace, refusals.

The sweep: tests/kernels/test_evoformer_backward_sm80.py.
"""

from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import backward_cases as cases
from helpers.backward_calls import arguments, named
from helpers.backward_cases import ARGUMENTS, GRADS, BackwardCase, store
from helpers.executors import Recorder
from helpers.guarded import GUARD, POISON, assert_same_bytes, bytes_around

import cuevo
from cuevo.arrays import array_from_pointer, view
from cuevo.kernels import evoformer_backward_sm80 as backward
from cuevo.ops.backward import attention_backward_workspace
from cuevo.sim import LoadedKernel

kernel = pytest.mark.kernel
unit = pytest.mark.unit

SMALL = BackwardCase("bf16", 16, 20, 33, rows=2, heads=2, mask="f32", pair="f32", seed=3)
SIDES = {"queries": {"q", "pair_bias"}, "keys": {"k", "v", "mask_bias"}}


def backward_of(call: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The gradients by their names."""
    return named(cuevo.attention_backward(**{"device": "sim"} | call | more))


def assert_same_gradients(case: object, found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, x in expected.items():
        if x is None:
            assert found[name] is None, name
        else:
            assert_same_bytes(case, name, found[name], x)


# -- Results ---------------------------------------------------------------------------------------


@kernel
@pytest.mark.parametrize(
    "case",
    [
        SMALL,
        replace(SMALL, dtype="f16", mask="bool", pair="f16", values="dead by mask", keys=50),
        replace(SMALL, mask="bf16", pair="bf16", values="dead by pair", arch="sm_90"),
        replace(SMALL, mask="none", pair="none", head_dim=72, scale=-0.3),
        replace(SMALL, mask="f16", pair="f32", dtype="f16", values="nan q", layout="heads first"),
        replace(SMALL, values="leading keys masked", keys=130, head_dim=8),
    ],
    ids=lambda case: case.values,
)
def test_with_what_the_forward_pass_gives(case: BackwardCase) -> None:
    inputs, call = arguments(case)
    operands = {name: call[name] for name in ARGUMENTS.values() if name in call}
    place = f"sim:{case.arch}"
    out, lse = cuevo.attention(**operands, scale=case.scale, return_lse=True, device=place)
    store(inputs["out"].array, out)
    store(inputs["lse"].array, lse)
    found = backward_of(call, out=out, lse=lse, device=place)
    cases.check(case, found, inputs)


@kernel
def test_the_results_are_new_packed_arrays() -> None:
    inputs, call = arguments(replace(SMALL, layout="heads first", dout_layout="reversed"))
    found = backward_of(call)
    for name, argument in ARGUMENTS.items():
        x, original = found[name], inputs[argument].array
        assert isinstance(x, np.ndarray)
        assert (x.shape, x.dtype) == (original.shape, original.dtype)
        assert x.flags.c_contiguous and x.flags.writeable
    cases.check(SMALL, found, inputs)


SUBSETS = [subset for size in range(1, 6) for subset in combinations(GRADS, size)]


@kernel
@pytest.mark.parametrize("subset", SUBSETS, ids="+".join)
def test_nothing_is_computed_that_was_not_asked_for(subset: tuple[str, ...]) -> None:
    case = replace(SMALL, grads=subset, queries=9)
    place = Recorder()
    inputs, call = arguments(case)
    cases.check(case, backward_of(call, device=place), inputs)
    sides = [side for side, grads in SIDES.items() if grads & set(subset)]
    configs = [x.values["config"] for x in place.loaded if x.name == backward.NAME]
    assert [config.side for config in configs] == sides
    wanted = {
        grad
        for config in configs
        for grad, is_wanted in zip(
            ("q", "-", "pair_bias") if config.side == "queries" else ("k", "v", "mask_bias"),
            (config.first, config.second, config.sums),
            strict=True,
        )
        if is_wanted
    }
    assert wanted == set(subset)
    of_sides = [[backward.NAME, *["partial_sums_sm70"] * config.sums] for config in configs]
    assert place.names == ["attention_delta_sm70", "key_bias_sm70", *chain(*of_sides)]


@kernel
def test_no_gradient_at_all() -> None:
    place = Recorder()
    _, call = arguments(replace(SMALL, grads=()))
    assert cuevo.attention_backward(**call, device=place) == (None,) * 5
    assert place.loaded == []
    boolean = arguments(replace(SMALL, mask="bool", grads=("mask_bias",)))[1]
    assert cuevo.attention_backward(**boolean, device=place) == (None,) * 5
    assert place.loaded == []


@kernel
def test_without_biases_the_keys_need_none() -> None:
    case = replace(SMALL, mask="none", pair="none", keys=128)
    place = Recorder()
    inputs, call = arguments(case)
    found = backward_of(call, device=place)
    cases.check(case, found, inputs)
    assert found["dmask_bias"] is found["dpair_bias"] is None
    assert place.names == ["attention_delta_sm70", *[backward.NAME] * 2]


@kernel
def test_the_names_of_gradients_may_come_in_any_order_and_once() -> None:
    _, call = arguments(SMALL)
    expected = backward_of(call, grads=("q", "mask_bias"))
    for grads in (["mask_bias", "q"], {"q", "mask_bias"}, iter(("mask_bias", "q", "q"))):
        assert_same_gradients(SMALL, backward_of(call, grads=grads), expected)


@kernel
@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype(np.float32)], ids=repr)
def test_gradients_of_biases_in_fp32(dtype: Any) -> None:
    case = replace(SMALL, mask="bf16", pair="bf16")
    _, call = arguments(case)
    narrow, wide = backward_of(call), backward_of(call, bias_grad_dtype=dtype)
    for name, x in narrow.items():
        if name.endswith("bias"):
            assert (x.dtype, wide[name].dtype) == (ml_dtypes.bfloat16, np.float32)
            assert (wide[name] != x).any()
            assert_same_bytes(case, name, wide[name].astype(x.dtype), x)
        else:
            assert_same_bytes(case, name, wide[name], x)


@kernel
def test_the_default_scale() -> None:
    _, call = arguments(SMALL)
    expected = backward_of(call, scale=None)
    assert_same_gradients(SMALL, backward_of(call, scale=np.float32(0.25)), expected)


@kernel
def test_rows_that_attend_to_nothing_have_no_gradient() -> None:
    """By -inf, and by values so far below 0 that fp32 has lost what the keys differ by."""
    for value in (-np.inf, -1e9, -(2.0**23)):
        inputs, call = arguments(replace(SMALL, rows=3))
        call["mask_bias"][:, 1] = value
        operands = {name: call[name] for name in ARGUMENTS.values()}
        out, lse = cuevo.attention(**operands, return_lse=True, device="sim")
        found = backward_of(call, out=out, lse=lse)
        for name in ("dq", "dk", "dv", "dmask_bias"):
            assert (found[name][:, 1] == 0).all(), (name, value)
            assert (found[name][:, ::2] != 0).any(axis=-1).all(), (name, value)
        others = np.s_[:, ::2]
        part = {key: x if key == "pair_bias" else x.narrowed(others) for key, x in inputs.items()}
        few = {key: x if key == "dpair_bias" else x[others] for key, x in found.items()}
        cases.check(replace(SMALL, rows=2), few, part)


@kernel
@pytest.mark.parametrize("layout", ["broadcast N", "broadcast L", "broadcast all"])
def test_dout_may_be_expanded(layout: str) -> None:
    case = replace(SMALL, dout_layout=layout)
    inputs, call = arguments(case)
    found = backward_of(call)
    cases.check(case, found, inputs)
    packed = np.ascontiguousarray(call["dout"])
    assert_same_gradients(case, backward_of(call, dout=packed), found)


@kernel
def test_views_and_addresses_are_enough() -> None:
    inputs, call = arguments(SMALL)
    expected = backward_of(call)
    views = {key: view(x.array) for key, x in inputs.items()}
    assert_same_gradients(SMALL, backward_of(call | views), expected)
    addresses = {
        key: array_from_pointer(
            x.array.ctypes.data,
            x.array.shape,
            x.array.dtype,
            strides=x.array.strides,
            device="cpu",
            owner=x,
        )
        for key, x in inputs.items()
    }
    assert_same_gradients(SMALL, backward_of(call | addresses), expected)


@kernel
def test_readonly_inputs_are_taken() -> None:
    inputs, call = arguments(SMALL)
    for x in call.values():
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    cases.check(SMALL, backward_of(call), inputs)


# -- Plans: what is kept from call to call ---------------------------------------------------------


@kernel
def test_a_second_call_finds_the_plan_and_reads_its_own_arrays() -> None:
    place = Recorder()
    for seed in (1, 2, 3):
        case = replace(SMALL, seed=seed)
        inputs, call = arguments(case)
        cases.check(case, backward_of(call, device=place), inputs)
    assert place.names.count("attention_delta_sm70") == 1
    assert len(place.loaded) == 6


CHANGES = (
    dict(scale=0.7),
    dict(layout="heads first"),
    dict(dout_layout="broadcast all"),
    dict(mask="bool"),
    dict(mask_layout="keys first"),
    dict(pair="none"),
    dict(pair_layout="aligned 16"),
    dict(dtype="f16"),
    dict(keys=34),
    dict(queries=21),
    dict(rows=3),
    dict(grads=("v", "pair_bias")),
    dict(mask="bf16", bias_grad_dtype="float32"),
)


@kernel
@pytest.mark.parametrize("change", CHANGES, ids=repr)
def test_another_problem_gets_another_plan(change: dict[str, Any]) -> None:
    place = Recorder()
    for case in (SMALL, replace(SMALL, **change), SMALL):
        inputs, call = arguments(case)
        cases.check(case, backward_of(call, device=place), inputs)
    assert place.names.count("attention_delta_sm70") == 2


@kernel
def test_another_configuration_gets_another_plan() -> None:
    place = Recorder()
    inputs, call = arguments(SMALL)
    chosen = {}
    for stages in (2, 3):
        config = {"keys": {"stages": stages}, "queries": None}
        cases.check(SMALL, backward_of(call, device=place, config=config), inputs)
        *_, keys = (x.values["config"] for x in place.loaded if x.name == backward.NAME)
        chosen[stages] = keys
    assert {stages: config.stages for stages, config in chosen.items()} == {2: 2, 3: 3}
    before = len(place.loaded)
    cases.check(SMALL, backward_of(call, device=place, config=config), inputs)
    assert len(place.loaded) == before
    backward_of(call, device=place, config={"keys": chosen[2]})
    (again,) = (
        x.values["config"]
        for x in place.loaded[before:]
        if x.name == backward.NAME and x.values["config"].side == "keys"
    )
    assert again == chosen[2]


@kernel
def test_a_kernel_that_spills_gets_more_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    def spills(loaded: LoadedKernel) -> bool:
        values: Any = loaded.kernel.values
        return loaded.kernel.name == backward.NAME and values["config"].min_blocks > 1

    monkeypatch.setattr(LoadedKernel, "spills", property(spills))
    inputs, call = arguments(SMALL)
    place = Recorder()
    cases.check(SMALL, backward_of(call, device=place), inputs)
    for side in SIDES:
        tried = [
            x.values["config"].min_blocks
            for x in place.loaded
            if x.name == backward.NAME and x.values["config"].side == side
        ]
        assert tried == list(range(tried[0], 0, -1))


# -- Empty problems --------------------------------------------------------------------------------

SHAPE = {"batch": 2, "rows": 3, "queries": 4, "keys": 5, "heads": 2}


@unit
@pytest.mark.parametrize("empty", [*SHAPE, "all"])
def test_a_zero_extent_launches_nothing(empty: str) -> None:
    zeros = SHAPE if empty == "all" else [empty]
    batch, rows, queries, keys, heads = (
        0 if axis in zeros else extent for axis, extent in SHAPE.items()
    )
    q = np.ones((batch, rows, queries, heads, 8), np.float16)
    k = np.ones((batch, rows, keys, heads, 8), np.float16)
    lse = np.zeros((batch, rows, heads, queries), np.float32)
    mask = np.ones((batch, rows, 1, 1, keys), np.float16)
    pair = np.ones((batch, 1, heads, queries, keys), np.float32)
    place = Recorder()
    call = dict(dout=q, q=q, k=k, v=k, out=q, lse=lse, mask_bias=mask, pair_bias=pair, device=place)
    found = named(cuevo.attention_backward(**call))
    assert place.loaded == []
    for name, x in zip(found, (q, k, k, mask, pair), strict=True):
        assert (found[name].shape, found[name].dtype) == (x.shape, x.dtype)
        assert (found[name] == 0).all()
    assert attention_backward_workspace(**call) == 0


# -- The workspace ---------------------------------------------------------------------------------


def workspace_of(call: dict[str, Any]) -> int:
    return attention_backward_workspace(**{"device": "sim"} | call)


@kernel
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_workspace_changes_no_bit(dtype: Any) -> None:
    _, call = arguments(SMALL)
    expected = backward_of(call)
    nbytes = workspace_of(call)
    assert nbytes % 4 == 0
    memory = bytes_around(nbytes)
    room = memory[GUARD : GUARD + nbytes].view(dtype)
    for fill in (POISON, 0x00, 0x55):
        memory[...] = fill
        assert_same_gradients(SMALL, backward_of(call, workspace=room), expected)
        assert (memory[:GUARD] == fill).all() and (memory[GUARD + nbytes :] == fill).all()


@kernel
def test_less_is_asked_for_less() -> None:
    _, call = arguments(SMALL)
    found = [
        workspace_of(call | {"grads": grads})
        for grads in (GRADS, ("q", "k", "v", "mask_bias"), ("q", "k", "v"), ())
    ]
    assert found == sorted(found, reverse=True) and len(set(found)) == 4
    assert found[-1] == 0


@kernel
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("sizes", [(768, 4, 768, 32), (512, 8, 512, 8), (8192, 4, 8, 32)], ids=str)
def test_the_workspace_is_of_the_size_of_q(sizes: tuple[int, int, int, int], arch: str) -> None:
    rows, heads, length, head_dim = sizes
    half, single = np.dtype(np.float16), np.dtype(np.float32)

    def nothing(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Rows of zeros that take no memory."""
        return np.broadcast_to(np.zeros(shape[-1], dtype), shape)

    q = nothing((1, rows, length, heads, head_dim), half)
    nbytes = attention_backward_workspace(
        q, q, q, q, q,
        np.empty((1, rows, heads, length), np.float32),
        mask_bias=nothing((1, rows, 1, 1, length), half),
        pair_bias=nothing((1, 1, heads, length, length), half),
        device=f"sim:{arch}",
    )  # fmt: skip
    lse = delta = single.itemsize * rows * heads * length
    biases = single.itemsize * (rows * length + heads * length * length)
    assert lse + delta < nbytes < 3 * q.nbytes + lse + delta + biases


@kernel
@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda room: room[:-1], ValueError, r"expected [0-9,]+ bytes; got [0-9,]+$"),
        (lambda room: room[:0], ValueError, "bytes; got 0$"),
        (lambda room: np.r_[room, room][::2], ValueError, "has to be contiguous"),
        (lambda room: view(room, name="x").pointer, TypeError, "expected a NumPy, torch, .* got"),
        (lambda room: [0] * len(room), TypeError, "expected a NumPy, torch, "),
    ],
    ids=["small", "empty", "strided", "address", "list"],
)
def test_a_workspace_that_cannot_be(
    make: Any, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadedKernel, "launch", None)
    _, call = arguments(SMALL)
    nbytes = workspace_of(call)
    memory = bytes_around(nbytes)
    with pytest.raises(error, match=f"^workspace: .*{words}"):
        backward_of(call, workspace=make(memory[GUARD : GUARD + nbytes]))


@kernel
def test_a_workspace_that_is_not_aligned_or_not_writable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadedKernel, "launch", None)
    _, call = arguments(SMALL)
    nbytes = workspace_of(call)
    memory = bytes_around(nbytes)
    with pytest.raises(ValueError, match=r"^workspace: has to start at a multiple of 256 bytes; "):
        backward_of(call, workspace=memory[GUARD + 128 : GUARD + 128 + nbytes])
    room = memory[GUARD : GUARD + nbytes]
    room.flags.writeable = False
    with pytest.raises(
        ValueError, match=r"^workspace: has to be writable; this array is read-only"
    ):
        backward_of(call, workspace=room)
    elsewhere = array_from_pointer(2**30, (nbytes,), np.uint8, device="cuda:0")
    with pytest.raises(ValueError, match=r"^workspace: expected host memory; this is on cuda:0"):
        backward_of(call, workspace=elsewhere)
