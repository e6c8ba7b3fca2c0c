"""cuevo.gemm on the CPU executor: every bit, results, empty problems."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import gemm_cases as cases
from helpers.executors import Recorder, shared
from helpers.gemm_cases import SMALL, Arrays, GemmCase
from helpers.gemm_sweep import CASES, name
from helpers.guarded import assert_same_bytes, host_views
from helpers.sweep_sample import PRODUCTS_ON_CPU

import cuevo
from cuevo import reference
from cuevo.architectures import architecture
from cuevo.arrays import array_from_pointer, view
from cuevo.kernels.gemm_mma import Config

kernel = pytest.mark.kernel
unit = pytest.mark.unit


def run(case: GemmCase, arch: str) -> tuple[Arrays, np.ndarray, Config]:
    """Call `cuevo.gemm`, and look at what lies around the arrays."""
    arrays, call = cases.arguments(case)
    views = host_views(arrays.call(case), readonly=False)
    config = cases.configuration(case, views, architecture(arch))
    was = cases.memory_of(arrays)
    found = cuevo.gemm(**call, device=shared(arch), config=config)
    assert arrays.out is None or found is arrays.out.array
    cases.check_surroundings(case, arrays, was)
    return arrays, found, config


# -- Every bit -------------------------------------------------------------------------------------


@kernel
@pytest.mark.parametrize("case", PRODUCTS_ON_CPU, ids=name)
def test_the_sweep(case: GemmCase) -> None:
    arrays, found, config = run(case, "sm_90")
    assert all(getattr(config, key) == value for key, value in case.settings)
    cases.check(case, found, arrays, config, "sm_90")


@kernel
@pytest.mark.parametrize("arch", ["sm_80", "sm_86"])
@pytest.mark.parametrize("case", CASES[::19], ids=name)
def test_the_sweep_on_other_architectures(case: GemmCase, arch: str) -> None:
    arrays, found, config = run(case, arch)
    cases.check(case, found, arrays, config, arch)


@unit
def test_the_sweep_has_everything() -> None:
    assert len(CASES) >= 400
    assert len({repr(case) for case in CASES}) == len({case.seed for case in CASES}) == len(CASES)

    def seen(*fields: str) -> set[Any]:
        return {tuple(getattr(case, field) for field in fields) for case in CASES}

    def singly(field: str) -> set[Any]:
        return {getattr(case, field) for case in CASES}

    types = ("f16", "bf16", "f32")
    assert seen("dtype", "out_dtype") == {(x, y) for x in types[:2] for y in types}
    assert len(seen("a_order", "b_order", "trans_a", "trans_b")) == 16
    assert singly("a_layout") == singly("b_layout") == set(cases.LAYOUTS)
    assert singly("c_layout") == set(cases.C_LAYOUTS)
    assert singly("out_layout") == set(cases.OUT_LAYOUTS)
    assert seen("c", "bias") == {
        (c, bias) for c in ("none", *types, "out") for bias in (True, False)
    }
    assert seen("bias_of_inputs", "dtype") == {(x, y) for x in (True, False) for y in types[:2]}
    assert singly("scatter") == set(cases.SCATTERS)
    assert {x.index_bytes for x in CASES if x.scatter == "dropped"} == {4, 8}
    assert singly("values") == set(cases.VALUES)
    plain = [x for x in CASES if (x.c, x.bias, x.scatter) == ("none", False, "none")]
    assert len(plain) > 40
    assert {1, 2, 3, 200} <= singly("m") & singly("n") & singly("k")
    assert {0, 1, 2, 3} == singly("batch")
    settings = {setting for case in CASES for setting in case.settings}
    for setting in (
        *(("splits", n) for n in (1, 2, 3, 4, 5)),
        *(("stages", n) for n in (2, 3, 4, 5, 6)),
        *(("clear", x) for x in ("none", "last_stage")),
        ("instruction", "m16n8k8"),
        ("accumulate", "f16"),
        ("layout", "padded"),
        ("cache_b", "ca"),
        ("a_access", 2),
        ("d_access", 2),
        ("prefetch", "none"),
        ("raster", 1),
    ):
        assert setting in settings
    assert sum(dict(case.settings).get("splits", 1) != 1 for case in CASES) > 50


# -- Results ---------------------------------------------------------------------------------------

NEAR = (
    SMALL,
    GemmCase(70, 90, 200, "f16", "f32", a_order="columns", seed=4),
    GemmCase(33, 140, 70, "bf16", "f16", 2, b_order="columns", c="out", beta=1.0, seed=5),
    GemmCase(129, 65, 150, "f16", "f16", 3, b_layout="shared", scatter="permuted", seed=6),
    GemmCase(60, 60, 300, "bf16", "f32", c="bf16", beta=0.5, settings=(("splits", 3),), seed=7),
)


@kernel
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
@pytest.mark.parametrize("case", NEAR, ids=name)
def test_near_float64(case: GemmCase, arch: str) -> None:
    arrays, found, _ = run(case, arch)
    cases.check_near(case, found, arrays)


@kernel
def test_sums_of_integers_are_exact() -> None:
    """Of every configuration: each element is that of its own row and column."""
    case = GemmCase(100, 130, 150, out_dtype="f32", values="integers", seed=8)
    for settings in (dict(splits=1), dict(splits=2), dict(instruction="m16n8k8"), dict(stages=2)):
        arrays, found, _ = run(replace(case, settings=tuple(settings.items())), "sm_80")
        exact = reference.gemm(*(arrays.inputs[x].array for x in "ab"))
        assert_same_bytes((case, settings), "out", found, exact.astype(np.float32))


@kernel
@pytest.mark.parametrize("out_dtype", [None, "float32", np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("batch", [0, 3])
def test_the_result_is_a_new_array(batch: int, out_dtype: Any) -> None:
    _, call = cases.arguments(replace(SMALL, batch=batch, bias=False))
    found = cuevo.gemm(**call | {"out_dtype": out_dtype}, device="sim")
    assert isinstance(found, np.ndarray)
    assert found.shape == ((batch, 20, 33) if batch else (20, 33))
    assert found.dtype == np.dtype(ml_dtypes.bfloat16 if out_dtype is None else out_dtype)
    assert found.flags.c_contiguous and found.flags.writeable


@kernel
def test_transposed_views_are_read_in_place() -> None:
    """Four ways to say the same product."""
    _, call = cases.arguments(SMALL)
    expected = cuevo.gemm(**call, device="sim")
    for trans_a in (False, True):
        for trans_b in (False, True):
            said = call | {"trans_a": trans_a, "trans_b": trans_b}
            said["a"] = call["a"].T if trans_a else call["a"]
            said["b"] = call["b"].T if trans_b else call["b"]
            assert_same_bytes((trans_a, trans_b), "out", cuevo.gemm(**said, device="sim"), expected)


@kernel
def test_views_and_addresses_are_taken_for_arrays() -> None:
    _, call = cases.arguments(SMALL)
    expected = cuevo.gemm(**call, device="sim")
    arrays = {key: x for key, x in call.items() if isinstance(x, np.ndarray)}
    views = {key: view(x) for key, x in arrays.items()}
    addresses = {
        key: array_from_pointer(
            x.ctypes.data, x.shape, x.dtype, strides=x.strides, device="cpu", owner=x
        )
        for key, x in arrays.items()
    }
    for given in (views, addresses):
        assert_same_bytes(SMALL, "out", cuevo.gemm(**call | given, device="sim"), expected)


@kernel
def test_readonly_inputs_are_taken() -> None:
    arrays, call = cases.arguments(SMALL)
    for x in call.values():
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    cases.check_near(SMALL, cuevo.gemm(**call, device="sim"), arrays)


@kernel
def test_defaults() -> None:
    """alpha 1, beta 0: c is not read."""
    arrays, call = cases.arguments(replace(SMALL, alpha=1.0, beta=0.0, c="none", bias=False))
    a, b = call["a"], call["b"]
    expected = cuevo.gemm(**call, device="sim")
    assert_same_bytes(SMALL, "out", cuevo.gemm(a, b, device="sim"), expected)
    unread = np.full((20, 33), np.nan, np.float32)
    assert_same_bytes(SMALL, "out", cuevo.gemm(a, b, unread, device="sim"), expected)
    tiny = cuevo.gemm(a, b, unread, beta=1e-60, device="sim")
    assert_same_bytes(SMALL, "out", tiny, expected)
    assert len(arrays.inputs) == 2


@kernel
def test_a_factor_of_zero_is_a_factor() -> None:
    a, b = np.full((2, 3), np.inf, np.float16), np.ones((3, 2), np.float16)
    assert np.isnan(cuevo.gemm(a, b, alpha=0.0, device="sim")).all()
    assert (cuevo.gemm(b.T, b, alpha=-0.0, device="sim").view(np.uint16) == 0).all()


@kernel
def test_c_may_be_the_result() -> None:
    case = replace(SMALL, c="out", out_layout="aligned 8", out_dtype="f32", bias=False)
    arrays, call = cases.arguments(case)
    first, config = call["out"].copy(), {"splits": 1}
    for _ in range(3):
        first = cuevo.gemm(
            call["a"], call["b"], first, alpha=0.7, beta=-1.5, out_dtype="float32", device="sim",
            config=config,
        )  # fmt: skip
        assert cuevo.gemm(**call, device="sim", config=config) is call["out"]
        assert_same_bytes(case, "out", call["out"], first)
    cases.check_surroundings(case, arrays, cases.memory_of(arrays))


@kernel
def test_an_index_that_comes_twice_stores_one_of_the_rows() -> None:
    a, b = np.eye(4, 8, dtype=np.float16), np.ones((8, 5), np.float16)
    a *= np.arange(1, 5)[:, None].astype(np.float16)
    out = np.zeros((3, 5), np.float16)
    cuevo.gemm(a, b, scatter=np.array([1, 1, 1, 2]), out=out, device="sim")
    assert out[1, 0] in (1, 2, 3) and (out[1] == out[1, 0]).all()
    assert (out[0] == 0).all() and (out[2] == 4).all()


@kernel
@pytest.mark.parametrize("arch", ["sm_75", "sm_70"])
def test_lower_variants(arch: str) -> None:
    rng = np.random.default_rng(12)
    a, b = rng.standard_normal((40, 50)), rng.standard_normal((50, 30))
    half = [x.astype(np.float16) for x in (a, b)]
    found = cuevo.gemm(*half, out_dtype="float32", device=f"sim:{arch}")
    np.testing.assert_allclose(found, reference.gemm(*half), atol=1e-4)
    with pytest.raises(ValueError, match=rf"no kernel serves .* on {arch}:\n(.*\n)*.*bf16 needs"):
        cuevo.gemm(*(x.astype(ml_dtypes.bfloat16) for x in (a, b)), device=f"sim:{arch}")


# -- Empty problems --------------------------------------------------------------------------------


@unit
@pytest.mark.parametrize("with_out", [False, True], ids=["new", "out"])
@pytest.mark.parametrize("empty", ["B", "M", "N", "BMNK"])
def test_a_result_without_elements_launches_nothing(empty: str, with_out: bool) -> None:
    batch, m, n, k = (0 if axis in empty else 3 for axis in "BMNK")
    a, b = np.ones((batch, m, k), np.float16), np.ones((batch, k, n), np.float16)
    c, bias = np.ones((batch, m, n), np.float32), np.ones(n, np.float16)
    out = np.ones((batch, m, n), np.float16) if with_out else None
    place = Recorder()
    found = cuevo.gemm(a, b, c, beta=1.0, bias=bias, out=out, device=place)
    assert place.loaded == []
    assert out is None or found is out
    assert (found.shape, found.dtype) == ((batch, m, n), np.float16)


@unit
def test_no_rows_scatter_nowhere() -> None:
    out = np.ones((4, 3), np.float16)
    a, b = np.ones((0, 5), np.float16), np.ones((5, 3), np.float16)
    assert cuevo.gemm(a, b, scatter=np.zeros(0, np.int64), out=out, device=Recorder()) is out
    assert (out == 1).all()


@unit
@pytest.mark.parametrize("with_out", [False, True], ids=["new", "out"])
def test_a_sum_of_nothing_is_zero_and_launches_nothing(with_out: bool) -> None:
    memory = np.full((2, 3, 8), 7, np.float32)
    place = Recorder()
    found = cuevo.gemm(
        np.ones((2, 3, 0), np.float16),
        np.ones((2, 0, 5), np.float16),
        alpha=-1.0,
        out=memory[..., :5] if with_out else None,
        out_dtype="float32",
        device=place,
    )
    assert place.loaded == []
    assert (found.shape, found.dtype) == ((2, 3, 5), np.float32)
    assert (found == 0).all() and not np.signbit(found).any()
    assert (memory[..., 5:] == 7).all()


@kernel
@pytest.mark.parametrize(
    "case",
    [
        GemmCase(20, 33, 0, c="f32", beta=-0.5, out_layout="new", seed=12),
        GemmCase(20, 33, 0, bias=True, batch=2, seed=13),
        GemmCase(20, 33, 0, "f16", "f32", c="out", beta=2.0, bias=True, seed=14),
        GemmCase(20, 33, 0, "f16", "f16", c="f16", beta=2.0, scatter="dropped", seed=15),
        GemmCase(20, 33, 0, "f16", "f16", scatter="spread", alpha=-1.0, seed=16),
    ],
    ids=name,
)
def test_a_sum_of_nothing_beside_c_and_bias(case: GemmCase) -> None:
    arrays, found, config = run(case, "sm_90")
    cases.check(case, found, arrays, config, "sm_90")
