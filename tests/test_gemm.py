"""cuevo.gemm on the CPU executor: every bit, configurations, plans, empty problems, refusals."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import gemm_cases as cases
import ml_dtypes
import numpy as np
import pytest
from gemm_cases import Arrays, GemmCase
from gemm_sweep import CASES, name
from guarded import GUARD, assert_same_bytes, bytes_around, host_views

import cuevo
from cuevo import placement, reference
from cuevo.architectures import Architecture, architecture
from cuevo.arrays import array_from_pointer, view
from cuevo.kernels import gemm_sm80
from cuevo.kernels.gemm import Config, Problem
from cuevo.sim import LoadedKernel, SimExecutor
from cuevo.template import RenderedKernel

kernel = pytest.mark.kernel
unit = pytest.mark.unit


@cache
def sim(arch: str) -> SimExecutor:
    return SimExecutor(arch)


class Recorder(SimExecutor):
    """A CPU executor that remembers which configurations were asked for."""

    def __init__(self, arch: str = "sm_80") -> None:
        super().__init__(arch)
        self.loaded: list[Config] = []

    def load(self, kernel: RenderedKernel) -> Any:
        self.loaded.append(kernel.values["config"])  # type: ignore[arg-type]
        return super().load(kernel)


def arguments(case: GemmCase) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of a case, and how `cuevo.gemm` is called with them."""
    arrays = cases.make(case)
    given = {key: x.array for key, x in arrays.call(case).items()}
    return arrays, given | cases.options(case)


def run(case: GemmCase, arch: str) -> tuple[Arrays, np.ndarray, Config]:
    """Call `cuevo.gemm`, and look at what lies around the arrays."""
    arrays, call = arguments(case)
    views = host_views(arrays.call(case), readonly=False)
    config = cases.configuration(case, views, architecture(arch))
    was = cases.memory_of(arrays)
    found = cuevo.gemm(**call, device=sim(arch), config=config)
    assert arrays.out is None or found is arrays.out.array
    cases.check_surroundings(case, arrays, was)
    return arrays, found, config


# -- Every bit -------------------------------------------------------------------------------------


@kernel
@pytest.mark.parametrize("case", CASES, ids=name)
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
    assert singly("scatter") == set(cases.SCATTERS)
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

SMALL = GemmCase(20, 33, 40, c="f32", alpha=0.7, beta=-1.5, bias=True, out_layout="new", seed=3)
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
    _, call = arguments(replace(SMALL, batch=batch, bias=False))
    found = cuevo.gemm(**call | {"out_dtype": out_dtype}, device="sim")
    assert isinstance(found, np.ndarray)
    assert found.shape == ((batch, 20, 33) if batch else (20, 33))
    assert found.dtype == np.dtype(ml_dtypes.bfloat16 if out_dtype is None else out_dtype)
    assert found.flags.c_contiguous and found.flags.writeable


@kernel
def test_transposed_views_are_read_in_place() -> None:
    """Four ways to say the same product."""
    _, call = arguments(SMALL)
    expected = cuevo.gemm(**call, device="sim")
    for trans_a in (False, True):
        for trans_b in (False, True):
            said = call | {"trans_a": trans_a, "trans_b": trans_b}
            said["a"] = call["a"].T if trans_a else call["a"]
            said["b"] = call["b"].T if trans_b else call["b"]
            assert_same_bytes((trans_a, trans_b), "out", cuevo.gemm(**said, device="sim"), expected)


@kernel
def test_views_and_addresses_are_taken_for_arrays() -> None:
    _, call = arguments(SMALL)
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
    arrays, call = arguments(SMALL)
    for x in call.values():
        if isinstance(x, np.ndarray):
            x.flags.writeable = False
    cases.check_near(SMALL, cuevo.gemm(**call, device="sim"), arrays)


@kernel
def test_defaults() -> None:
    """alpha 1, beta 0: c is not read."""
    arrays, call = arguments(replace(SMALL, alpha=1.0, beta=0.0, c="none", bias=False))
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
    arrays, call = arguments(case)
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


# -- Configurations --------------------------------------------------------------------------------


@kernel
def test_a_configuration_of_ones_own() -> None:
    place = Recorder()
    case = GemmCase(50, 40, 70, "f16", "f32", c="bf16", beta=1.0, a_order="columns", seed=9)
    arrays, call = arguments(case)
    config = Config(64, 64, 32, 32, 32, 2, dtype="bf16", out_dtype="f16", bias=True, scatter=True)
    found = cuevo.gemm(**call, device=place, config=config)
    (loaded,) = place.loaded
    follows = ("dtype", "out_dtype", "a_columns", "b_columns", "c", "bias", "scatter")
    found_fields = [getattr(loaded, field) for field in follows]
    assert found_fields == ["f16", "f32", True, False, "bf16", False, False]
    assert (loaded.block_m, loaded.block_k, loaded.stages) == (64, 32, 2)
    cases.check(case, found, arrays, loaded, "sm_80")


@kernel
def test_settings_change_what_is_chosen() -> None:
    arrays, call = arguments(SMALL)
    place = Recorder()
    found = cuevo.gemm(**call, device=place, config={"stages": 5, "raster": 3})
    (loaded,) = place.loaded
    assert (loaded.stages, loaded.raster) == (5, 3)
    cases.check(SMALL, found, arrays, loaded, "sm_80")


@kernel
@pytest.mark.parametrize(
    ("layout", "access"),
    [("aligned 16", 16), ("aligned 8", 8), ("aligned 4", 4), ("aligned 2", 2)],
)
def test_alignments_reach_the_kernel(layout: str, access: int) -> None:
    case = replace(SMALL, a_layout=layout, b_layout=layout, c_layout=layout, out_layout=layout)
    place = Recorder()
    arrays, call = arguments(case)
    found = cuevo.gemm(**call, device=place)
    (loaded,) = place.loaded
    widths = [loaded.a_access, loaded.b_access, loaded.c_access, loaded.d_access]
    assert widths == [access, access, max(access, 4), access]
    cases.check(case, found, arrays, loaded, "sm_80")


@kernel
def test_a_kernel_that_spills_gets_more_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    def spills(loaded: LoadedKernel) -> bool:
        values: Any = loaded.kernel.values
        return values["config"].min_blocks > 2

    def choose(problem: Problem, arch: Architecture) -> Config:
        return replace(chosen(problem, arch), min_blocks=4)

    chosen = gemm_sm80.choose
    monkeypatch.setattr(gemm_sm80, "choose", choose)
    monkeypatch.setattr(LoadedKernel, "spills", property(spills))
    arrays, call = arguments(SMALL)
    place = Recorder("sm_90")
    found = cuevo.gemm(**call, device=place)
    cases.check(SMALL, found, arrays, place.loaded[-1], "sm_90")
    assert [config.min_blocks for config in place.loaded] == [4, 3, 2]
    place = Recorder("sm_90")
    cuevo.gemm(**call, device=place, config={"min_blocks": 3})
    assert [config.min_blocks for config in place.loaded] == [3]


# -- Plans: what is kept from call to call ---------------------------------------------------------


@kernel
def test_a_second_call_finds_the_plan_and_reads_its_own_arrays() -> None:
    place = Recorder()
    for seed in (1, 2, 3):
        arrays, call = arguments(replace(SMALL, seed=seed))
        found = cuevo.gemm(**call, device=place)
        cases.check(SMALL, found, arrays, place.loaded[0], "sm_80")
    assert len(place.loaded) == 1


CHANGES = (
    dict(alpha=0.5),
    dict(beta=0.5),
    dict(beta=0.0),
    dict(c="f16"),
    dict(c="none"),
    dict(c_layout="broadcast"),
    dict(bias=False),
    dict(dtype="f16"),
    dict(out_dtype="f32"),
    dict(out_layout="aligned 8"),
    dict(out_layout="reversed"),
    dict(a_order="columns"),
    dict(b_order="columns"),
    dict(trans_a=True),
    dict(trans_b=True),
    dict(a_layout="aligned 8"),
    dict(b_layout="reversed"),
    dict(batch=2),
    dict(batch=2, a_layout="shared"),
    dict(batch=2, b_layout="broadcast B"),
    dict(m=21),
    dict(n=34),
    dict(k=41),
    dict(scatter="spread", out_layout="packed"),
)


@kernel
@pytest.mark.parametrize("change", CHANGES, ids=repr)
def test_another_problem_gets_another_plan(change: dict[str, Any]) -> None:
    place = sim("sm_80")
    for case in (SMALL, replace(SMALL, **change), SMALL):
        arrays, call = arguments(case)
        found = cuevo.gemm(**call, device=place, config={"splits": 1, "block_k": 64})
        views = host_views(arrays.call(case), readonly=False)
        settings = (("splits", 1), ("block_k", 64))
        config = cases.configuration(replace(case, settings=settings), views, place.limits)
        cases.check(case, found, arrays, config, "sm_80")


@kernel
def test_square_operands_are_exchanged_by_their_flag_alone() -> None:
    """Nothing else tells the calls apart."""
    rng = np.random.default_rng(10)
    a, b = (rng.integers(-9, 10, (24, 24)).astype(np.float16) for _ in range(2))
    for trans_a in (False, True, False):
        for trans_b in (False, True):
            found = cuevo.gemm(a, b, trans_a=trans_a, trans_b=trans_b, device="sim")
            exact = reference.gemm(a, b, trans_a=trans_a, trans_b=trans_b)
            np.testing.assert_array_equal(found.astype(np.float64), exact)


@kernel
@pytest.mark.parametrize("matrix", ["a", "b", "c", "out"])
def test_an_address_that_is_less_aligned_gets_another_plan(matrix: str) -> None:
    case = replace(SMALL, m=16, n=32, k=32, out_layout="packed")
    place = Recorder()
    arrays, call = arguments(case)
    cuevo.gemm(**call, device=place)
    x = call[matrix]
    memory = bytes_around(x.nbytes + 8)
    moved = np.ndarray(x.shape, x.dtype, memory, GUARD + 4)
    moved[...] = x
    found = cuevo.gemm(**call | {matrix: moved}, device=place)
    cases.check(case, found, arrays, place.loaded[-1], "sm_80")
    field = f"{'d' if matrix == 'out' else matrix}_access"
    assert [getattr(config, field) for config in place.loaded] == [16, 4]


@kernel
def test_the_architecture_of_the_executor_counts() -> None:
    """The tensor cores of sm_90 sum in longer blocks."""
    case = GemmCase(30, 40, 100, "f16", "f32", seed=11)
    found = {}
    for arch in ("sm_80", "sm_86", "sm_90"):
        arrays, call = arguments(case)
        config = {"splits": 1, "block_k": 64}
        found[arch] = cuevo.gemm(**call, device=f"sim:{arch}", config=config)
        cases.check_near(case, found[arch], arrays)
    assert_same_bytes(case, "out", found["sm_86"], found["sm_80"])
    assert (found["sm_90"] != found["sm_80"]).any()


@kernel
def test_host_arrays_without_a_gpu_run_on_the_cpu_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "devices", lambda: ())
    arrays, call = arguments(replace(SMALL, m=19))
    cases.check_near(SMALL, cuevo.gemm(**call), arrays)


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


# -- Refusals: the words are tested in tests/test_gemm_problem.py ----------------------------------


class Idle(SimExecutor):
    """A CPU executor that nobody may use."""

    def load(self, kernel: RenderedKernel) -> Any:
        raise AssertionError(f"{kernel.describe()} was loaded")


def call(**changes: Any) -> dict[str, Any]:
    """Arguments that are right, but for the changes."""
    given = {
        "a": np.zeros((8, 16), np.float16),
        "b": np.zeros((16, 12), np.float16),
        "c": np.zeros((8, 12), np.float32),
        "bias": np.zeros(12, np.float16),
        "device": Idle(),
    }
    return given | changes


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "shape": (
        dict(b=np.zeros((15, 12), np.float16)),
        ValueError,
        r"^b: expected an array \[K, N\] .* its K is 15",
    ),
    "dtype": (
        dict(a=np.zeros((8, 16), np.float32)),
        TypeError,
        "^a: expected float16 or bfloat16; got float32",
    ),
    "no array": (dict(b=[[1.0]]), TypeError, "^b: expected a NumPy, torch, CuPy or JAX array"),
    "no array for c": (dict(c=1.0), TypeError, "^c: expected a NumPy, torch, CuPy or JAX array"),
    "complex": (dict(bias=np.zeros(12, np.complex64)), TypeError, "^bias: expected bool, an int"),
    "stride": (
        dict(a=np.zeros((8, 32), np.float16)[:, ::2]),
        ValueError,
        "^a: one of its last two axes must be contiguous",
    ),
    "scatter": (
        dict(scatter=np.arange(8, dtype=np.int32), out=np.zeros((9, 12), np.float16)),
        TypeError,
        "^scatter: expected int64; got int32; scatter.astype",
    ),
    "scatter without out": (dict(scatter=np.arange(8)), ValueError, "^out: has to be given"),
    "alpha": (dict(alpha=math.nan), ValueError, "^alpha: expected a finite .* got nan"),
    "alpha, text": (dict(alpha="1"), TypeError, "^alpha: expected a real number; got str"),
    "beta": (dict(beta=1e39), ValueError, r"^beta: expected a finite .* got 1e\+39"),
    "beta, an array": (dict(beta=np.ones(1)), TypeError, "^beta: expected a real .* got ndarray"),
    "trans_a": (dict(trans_a="T"), TypeError, "^trans_a: expected True or False; got 'T'"),
    "trans_b": (dict(trans_b=[1]), TypeError, r"^trans_b: expected True or False; got \[1\]"),
    "out_dtype": (dict(out_dtype=np.int8), TypeError, "^out_dtype: expected .* got int8"),
    "out_dtype, a list": (dict(out_dtype=["f"]), TypeError, "^out_dtype: expected float16"),
    "out, read-only": (
        dict(out=np.broadcast_to(np.zeros((8, 12), np.float16), (8, 12))),
        ValueError,
        "^out: has to be writable",
    ),
    "stream": (dict(stream="fast"), TypeError, "^stream: expected None, an integer handle"),
    "config": (dict(config={"stages": 9}), ValueError, "^config: .* stages must be 2 to 6, not 9"),
    "config, a list": (dict(config={"stages": [3]}), TypeError, "^config: stages: expected int"),
    "config, a field": (dict(config={"tile": 3}), TypeError, "^config: .*tile"),
    "config, a word": (
        dict(config="fast"),
        TypeError,
        "^config: expected gemm_sm80.Config or a mapping of its fields; got str",
    ),
    "device": (dict(device="gpu"), ValueError, "^device: expected 'sim', 'sim:sm_90', 'cuda'"),
    "device, a list": (dict(device=["sim"]), TypeError, "^device: expected None, a name"),
    "two devices": (
        dict(b=array_from_pointer(2**30, (16, 12), np.float16, device="cuda:0"), device=None),
        ValueError,
        "must be on one device; these are on cpu, cuda:0",
    ),
    "scatter on the host": (
        dict(
            a=array_from_pointer(2**30, (8, 16), np.float16, device="cuda:0"),
            b=array_from_pointer(2**30, (16, 12), np.float16, device="cuda:0"),
            c=None,
            bias=None,
            scatter=np.arange(8),
            out=array_from_pointer(2**30, (9, 12), np.float16, device="cuda:0"),
            device=None,
        ),
        ValueError,
        "must be on one device; these are on cpu, cuda:0",
    ),
}


@unit
@pytest.mark.parametrize("what", REFUSED)
def test_refused_before_anything_runs(what: str) -> None:
    changes, error, words = REFUSED[what]
    with pytest.raises(error, match=words):
        cuevo.gemm(**call(**changes))


@unit
@pytest.mark.parametrize("arch", ["sm_75", "sm_70"])
def test_lower_rungs(arch: str) -> None:
    rng = np.random.default_rng(12)
    a, b = rng.standard_normal((40, 50)), rng.standard_normal((50, 30))
    half = [x.astype(np.float16) for x in (a, b)]
    found = cuevo.gemm(*half, out_dtype="float32", device=f"sim:{arch}")
    np.testing.assert_allclose(found, reference.gemm(*half), atol=1e-4)
    with pytest.raises(ValueError, match=rf"no kernel serves .* on {arch}:\n(.*\n)*.*bf16 needs"):
        cuevo.gemm(*(x.astype(ml_dtypes.bfloat16) for x in (a, b)), device=f"sim:{arch}")


@unit
def test_more_threadblocks_than_a_launch_has() -> None:
    a = array_from_pointer(2**30, (2**28, 8), np.float16, strides=(0, 2), device="cpu")
    b = array_from_pointer(2**30, (2**14, 8, 2**18), np.float16, strides=(0, 0, 2), device="cpu")
    out = array_from_pointer(2**30, (2**14, 2**28, 2**18), np.float16, device="cpu")
    with pytest.raises(ValueError, match=r"too large: [0-9]+ threadblocks; a launch has fewer"):
        cuevo.gemm(a, b, out=out, device="sim")
