"""cuevo.attention on the CPU executor: configurations, plans, results, empty problems."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import attention_cases as cases
from helpers.attention_cases import Case
from helpers.attention_sweep import CASES, name
from helpers.executors import Recorder

import cuevo
from cuevo import reference
from cuevo.arrays import array_from_pointer, view
from cuevo.executors import placement
from cuevo.kernels import evoformer_forward_sm80 as forward
from cuevo.sim import LoadedKernel

kernel = pytest.mark.kernel


def arguments(case: Case) -> tuple[dict[str, cases.Strided], dict[str, Any]]:
    """The inputs of a case, and how `cuevo.attention` is called with them."""
    inputs = cases.make(case)
    return inputs, {key: x.array for key, x in inputs.items()} | {"scale": case.scale}


# -- Results ---------------------------------------------------------------------------------------


@kernel
@pytest.mark.parametrize("case", CASES[::11], ids=name)
def test_numpy_arrays_of_any_strides(case: Case) -> None:
    inputs, call = arguments(case)
    results = cases.make_results(case)
    out = results["out"].array
    given, lse = cuevo.attention(**call, out=out, return_lse=True, device=f"sim:{case.arch}")
    assert given is out
    assert (lse.shape, lse.dtype) == (results["lse"].array.shape, np.float32)
    cases.check(case, out, lse, inputs)
    cases.check_guards(case, {"out": results["out"]})


SMALL = Case("bf16", 16, 20, 33, rows=2, heads=2, mask="bool", pair="f32", seed=3)


@kernel
def test_the_result_is_a_new_array_like_q() -> None:
    inputs, call = arguments(replace(SMALL, layout="heads first"))
    out = cuevo.attention(**call, device="sim")
    assert isinstance(out, np.ndarray)
    assert (out.shape, out.dtype) == (call["q"].shape, ml_dtypes.bfloat16)
    assert out.flags.c_contiguous and out.flags.writeable
    cases.check(SMALL, out, None, inputs)


@kernel
def test_the_default_scale() -> None:
    _, call = arguments(SMALL)
    by_default = cuevo.attention(**call | {"scale": None}, device="sim")
    said = cuevo.attention(**call | {"scale": np.float32(0.25)}, device="sim")
    cases.assert_same_bytes(SMALL, "out", by_default, said)


@kernel
def test_addresses_are_enough() -> None:
    inputs, call = arguments(SMALL)
    views = {
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
    expected = cuevo.attention(**call, device="sim")
    cases.assert_same_bytes(SMALL, "out", cuevo.attention(**views, device="sim"), expected)


@kernel
def test_inputs_are_left_as_they_were() -> None:
    inputs, call = arguments(SMALL)
    before = {key: x.memory.copy() for key, x in inputs.items()}
    cuevo.attention(**call, device="sim")
    for key, x in inputs.items():
        np.testing.assert_array_equal(x.memory, before[key], err_msg=key)


@kernel
def test_readonly_inputs_are_taken() -> None:
    inputs, call = arguments(SMALL)
    for x in call.values():
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    cases.check(SMALL, cuevo.attention(**call, device="sim"), None, inputs)


# -- Configurations --------------------------------------------------------------------------------

# Several query tiles, more rows than a threadblock holds, several key tiles with a ragged end.
WIDE = Case("bf16", 32, 150, 133, rows=4, mask="f32", pair="bf16", pair_layout="aligned 16", seed=5)
SHAPED = [
    (case, shape)
    for case in (
        replace(WIDE, head_dim=16, mask="bf16", pair_layout="aligned 8"),
        WIDE,
        replace(WIDE, head_dim=80, dtype="f16", pair="f32", mask="bool", queries=80, rows=3),
    )
    for shape in forward.shapes(case.head_dim)
]
TILING = (
    "block_rows",
    "block_queries",
    "block_keys",
    "chunk_keys",
    "m_tiles",
    "stages",
    "min_blocks",
    "q_in_registers",
)


@kernel
@pytest.mark.parametrize(("case", "shape"), SHAPED, ids=lambda x: repr(x)[:60])
def test_every_shape(case: Case, shape: forward.Shape) -> None:
    place = Recorder("sm_90")
    inputs, call = arguments(case)
    tiling = {field: getattr(shape, field) for field in TILING}
    config = forward.Config(head_dim=case.head_dim, **tiling)
    out, lse = cuevo.attention(**call, return_lse=True, device=place, config=config)
    cases.check(case, out, lse, inputs)
    (used,) = place.configs
    assert {field: getattr(used, field) for field in TILING} == tiling
    assert (used.dtype, used.mask, used.pair) == (case.dtype, case.mask, case.pair)


SETTINGS = (
    *(dict(stages=stages) for stages in (2, 3, 4, 5, 6)),
    *(dict(stages=stages, block_keys=32, chunk_keys=32) for stages in (2, 5)),
    dict(m_tiles=1),
    dict(m_tiles=2),
    dict(m_tiles=1, block_queries=16, block_rows=4),
    dict(chunk_keys=32),
    dict(chunk_keys=64),
    dict(chunk_keys=64, m_tiles=1, stages=2),
    dict(block_keys=128, chunk_keys=64, stages=2, block_rows=1, block_queries=128),
    dict(block_keys=128, chunk_keys=128, stages=2, block_rows=1, m_tiles=1),
    dict(block_rows=5, block_queries=32),
    dict(block_rows=7, block_queries=32, stages=2),
    *(dict(pair_copy_bytes=width) for width in (16, 8, 4, 2)),
    *(dict(pair_copy_bytes=width, block_queries=32, block_keys=32) for width in (8, 2)),
    dict(block_queries=256, stages=2),
    dict(min_blocks=2),
)
MEDIUM = dict(
    block_rows=2, block_queries=64, block_keys=64, chunk_keys=32, m_tiles=2, stages=3, min_blocks=1
)


@kernel
@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
def test_settings_change_what_is_chosen(settings: dict[str, Any]) -> None:
    place = Recorder("sm_90")
    inputs, call = arguments(WIDE)
    wanted = MEDIUM | settings
    out, lse = cuevo.attention(**call, return_lse=True, device=place, config=wanted)
    cases.check(WIDE, out, lse, inputs)
    (used,) = place.configs
    assert {key: getattr(used, key) for key in wanted} == wanted


@kernel
def test_a_kernel_that_spills_gets_more_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    def spills(loaded: LoadedKernel) -> bool:
        values: Any = loaded.kernel.values
        return values["config"].min_blocks > 2

    monkeypatch.setattr(LoadedKernel, "spills", property(spills))
    inputs, call = arguments(WIDE)
    place = Recorder("sm_90")
    cases.check(WIDE, cuevo.attention(**call, device=place), None, inputs)
    tried = [config.min_blocks for config in place.configs]
    assert tried == list(range(tried[0], 1, -1))
    assert len(tried) > 1
    place = Recorder("sm_90")
    cuevo.attention(**call, device=place, config={"min_blocks": 3})
    assert [config.min_blocks for config in place.configs] == [3]


@kernel
@pytest.mark.parametrize(
    "pair_layout", ["aligned 16", "aligned 8", "aligned 4", "aligned 2", "packed"]
)
@pytest.mark.parametrize("pair", ["f16", "f32"])
def test_pair_bias_of_every_alignment(pair: str, pair_layout: str) -> None:
    """133 keys: packed rows are as aligned as an element is."""
    case = replace(WIDE, dtype="f16", pair=pair, pair_layout=pair_layout, rows=1, queries=40)
    place = Recorder()
    inputs, call = arguments(case)
    cases.check(case, cuevo.attention(**call, device=place), None, inputs)
    (used,) = place.configs
    size = 4 if pair == "f32" else 2
    stated = size if pair_layout == "packed" else int(pair_layout.split()[1])
    assert used.pair_copy_bytes == max(stated, size)


@kernel
def test_what_is_not_given_follows_from_the_problem() -> None:
    place = Recorder()
    case = replace(SMALL, dtype="f16", mask="none", pair="none")
    inputs, call = arguments(case)
    config = forward.Config(head_dim=128, dtype="bf16", mask="f32", pair="f32", block_queries=64)
    cases.check(case, cuevo.attention(**call, device=place, config=config), None, inputs)
    (used,) = place.configs
    fields = ("head_dim", "dtype", "mask", "pair", "block_queries")
    found = {key: getattr(used, key) for key in fields}
    assert found == dict(head_dim=16, dtype="f16", mask="bounds", pair="none", block_queries=64)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        (
            dict(stages=9),
            ValueError,
            r"config: Config\(.*\) cannot run: stages must be 2 to 6, not 9",
        ),
        (dict(block_keys=96), ValueError, "config: .*block_keys must be 32, 64, 128 or 256"),
        (dict(tiles=9), ValueError, "config: .*tiles"),
        (
            "fast",
            TypeError,
            "config: expected evoformer_forward_sm80.Config or a mapping .*; got str",
        ),
    ],
)
def test_a_configuration_that_cannot_be(config: Any, error: type[Exception], words: str) -> None:
    _, call = arguments(SMALL)
    place = Recorder()
    with pytest.raises(error, match=words):
        cuevo.attention(**call, device=place, config=config)
    assert place.loaded == []


# -- Plans: what is kept from call to call ---------------------------------------------------------


@kernel
def test_a_second_call_finds_the_plan_and_reads_its_own_arrays() -> None:
    place = Recorder()
    for seed in (1, 2, 3):
        case = replace(SMALL, seed=seed)
        inputs, call = arguments(case)
        cases.check(case, cuevo.attention(**call, device=place), None, inputs)
    assert len(place.loaded) == 1


CHANGES = (
    dict(scale=0.7),
    dict(layout="heads first"),
    dict(layout="broadcast N"),
    dict(mask="f32"),
    dict(mask="none"),
    dict(mask_layout="keys first"),
    dict(pair="bf16"),
    dict(pair_layout="aligned 16"),
    dict(pair_layout="broadcast H"),
    dict(dtype="f16"),
    dict(keys=34),
    dict(queries=21),
    dict(rows=3),
)


@kernel
@pytest.mark.parametrize("change", CHANGES, ids=repr)
def test_another_problem_gets_another_plan(change: dict[str, Any]) -> None:
    place = Recorder()
    for case in (SMALL, replace(SMALL, **change), SMALL):
        inputs, call = arguments(case)
        cases.check(case, cuevo.attention(**call, device=place), None, inputs)


@kernel
def test_an_address_that_is_less_aligned_gets_another_plan() -> None:
    case = replace(SMALL, pair="bf16", keys=32)
    inputs, call = arguments(case)
    place = Recorder()
    cases.check(case, cuevo.attention(**call, device=place), None, inputs)
    memory = cases.bytes_around(call["pair_bias"].nbytes + 8)
    moved = np.ndarray(call["pair_bias"].shape, ml_dtypes.bfloat16, memory, cases.GUARD + 4)
    moved[...] = call["pair_bias"]
    out = cuevo.attention(**call | {"pair_bias": moved}, device=place)
    cases.check(case, out, None, inputs)
    assert [config.pair_copy_bytes for config in place.configs] == [16, 4]


@kernel
def test_out_of_other_strides_gets_another_plan() -> None:
    place = Recorder()
    _inputs, call = arguments(SMALL)
    expected = cuevo.attention(**call, device=place)
    for layout in ("packed", "heads first", "reversed"):
        results = cases.make_results(replace(SMALL, layout=layout))
        cuevo.attention(**call, device=place, out=results["out"].array)
        cases.assert_same_bytes(SMALL, "out", results["out"].array, expected)
        cases.check_guards(SMALL, {"out": results["out"]})


@kernel
def test_the_architecture_of_the_executor_counts() -> None:
    """The tensor cores of sm_90 sum in longer blocks."""
    case = Case("f16", 64, 64, 64, values="large scores")
    inputs, call = arguments(case)
    found = [cuevo.attention(**call, device=f"sim:{arch}") for arch in ("sm_80", "sm_90")]
    for out in found:
        cases.check(case, out, None, inputs)
    assert (found[0] != found[1]).any()


@kernel
def test_host_arrays_without_a_gpu_run_on_the_cpu_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "devices", lambda: ())
    case = replace(SMALL, queries=19)
    inputs, call = arguments(case)
    cases.check(case, cuevo.attention(**call), None, inputs)


# -- Empty problems --------------------------------------------------------------------------------

SHAPE = {"batch": 2, "rows": 3, "queries": 4, "keys": 5, "heads": 2}


@pytest.mark.unit
@pytest.mark.parametrize("with_out", [False, True], ids=["new", "out"])
@pytest.mark.parametrize("empty", [*SHAPE, "all"])
def test_a_zero_extent_launches_nothing(empty: str, with_out: bool) -> None:
    zeros = SHAPE if empty == "all" else [empty]
    batch, rows, queries, keys, heads = (
        0 if axis in zeros else extent for axis, extent in SHAPE.items()
    )
    q = np.ones((batch, rows, queries, heads, 8), np.float16)
    k = np.ones((batch, rows, keys, heads, 8), np.float16)
    out = np.full(q.shape, np.nan, np.float16) if with_out else None
    place = Recorder()
    found, lse = cuevo.attention(
        q,
        k,
        k,
        mask_bias=np.ones((batch, rows, 1, 1, keys), np.bool_),
        pair_bias=np.ones((batch, 1, heads, queries, keys), np.float32),
        return_lse=True,
        device=place,
        out=out,
    )
    assert place.loaded == []
    assert out is None or found is out
    assert (found.shape, found.dtype) == (q.shape, np.float16)
    assert (lse.shape, lse.dtype) == ((batch, rows, heads, queries), np.float32)
    np.testing.assert_array_equal(found, 0.0)
    np.testing.assert_array_equal(lse, -np.inf)
    exact, exact_lse = reference.attention(q, k, k)
    np.testing.assert_array_equal(found, exact)
    np.testing.assert_array_equal(lse, exact_lse)


@kernel
def test_views_are_taken_for_arrays() -> None:
    inputs, call = arguments(SMALL)
    views = {key: view(x.array) for key, x in inputs.items()}
    out = cuevo.attention(**call | views, device="sim")
    cases.check(SMALL, out, None, inputs)
