"""cuevo.gemm: the configuration that a call gets, and the plan that is kept for the next one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import gemm_cases as cases
from helpers.executors import Recorder
from helpers.gemm_cases import SMALL, GemmCase
from helpers.guarded import GUARD, assert_same_bytes, bytes_around, host_views

import cuevo
from cuevo import reference
from cuevo.architectures import Architecture
from cuevo.executors import placement
from cuevo.kernels import gemm_sm80
from cuevo.kernels.gemm_mma import Config, Problem
from cuevo.sim import LoadedKernel

pytestmark = pytest.mark.kernel

# -- Configurations --------------------------------------------------------------------------------


def test_a_configuration_of_ones_own() -> None:
    place = Recorder()
    case = GemmCase(50, 40, 70, "f16", "f32", c="bf16", beta=1.0, a_order="columns", seed=9)
    arrays, call = cases.arguments(case)
    config = Config(
        64,
        64,
        2,
        block_k=32,
        warp_m=32,
        warp_n=32,
        dtype="bf16",
        out_dtype="f16",
        bias=True,
        scatter=True,
    )
    found = cuevo.gemm(**call, device=place, config=config)
    (loaded,) = place.configs
    follows = ("dtype", "out_dtype", "a_columns", "b_columns", "c", "bias", "scatter")
    found_fields = [getattr(loaded, field) for field in follows]
    assert found_fields == ["f16", "f32", True, False, "bf16", False, False]
    assert (loaded.block_m, loaded.block_k, loaded.stages) == (64, 32, 2)
    cases.check(case, found, arrays, loaded, "sm_80")


def test_settings_change_what_is_chosen() -> None:
    arrays, call = cases.arguments(SMALL)
    place = Recorder()
    found = cuevo.gemm(**call, device=place, config={"stages": 5, "raster": 3})
    (loaded,) = place.configs
    assert (loaded.stages, loaded.raster) == (5, 3)
    cases.check(SMALL, found, arrays, loaded, "sm_80")


@pytest.mark.parametrize(
    ("layout", "access"),
    [("aligned 16", 16), ("aligned 8", 8), ("aligned 4", 4), ("aligned 2", 2)],
)
def test_alignments_reach_the_kernel(layout: str, access: int) -> None:
    case = replace(SMALL, a_layout=layout, b_layout=layout, c_layout=layout, out_layout=layout)
    place = Recorder()
    arrays, call = cases.arguments(case)
    found = cuevo.gemm(**call, device=place)
    (loaded,) = place.configs
    widths = [loaded.a_access, loaded.b_access, loaded.c_access, loaded.d_access]
    assert widths == [access, access, max(access, 4), access]
    cases.check(case, found, arrays, loaded, "sm_80")


def test_a_kernel_that_spills_gets_more_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    def spills(loaded: LoadedKernel) -> bool:
        values: Any = loaded.kernel.values
        return values["config"].min_blocks > 2

    def choose(problem: Problem, arch: Architecture) -> Config:
        return replace(chosen(problem, arch), min_blocks=4)

    chosen = gemm_sm80.choose
    monkeypatch.setattr(gemm_sm80, "choose", choose)
    monkeypatch.setattr(LoadedKernel, "spills", property(spills))
    arrays, call = cases.arguments(SMALL)
    place = Recorder("sm_90")
    found = cuevo.gemm(**call, device=place)
    cases.check(SMALL, found, arrays, place.configs[-1], "sm_90")
    assert [config.min_blocks for config in place.configs] == [4, 3, 2]
    place = Recorder("sm_90")
    cuevo.gemm(**call, device=place, config={"min_blocks": 3})
    assert [config.min_blocks for config in place.configs] == [3]


# -- Plans: what is kept from call to call ---------------------------------------------------------


def test_a_second_call_finds_the_plan_and_reads_its_own_arrays() -> None:
    place = Recorder()
    for seed in (1, 2, 3):
        arrays, call = cases.arguments(replace(SMALL, seed=seed))
        found = cuevo.gemm(**call, device=place)
        cases.check(SMALL, found, arrays, place.configs[0], "sm_80")
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


@pytest.mark.parametrize("change", CHANGES, ids=repr)
def test_another_problem_gets_another_plan(change: dict[str, Any]) -> None:
    place = Recorder()
    for case in (SMALL, replace(SMALL, **change), SMALL):
        arrays, call = cases.arguments(case)
        found = cuevo.gemm(**call, device=place, config={"splits": 1, "block_k": 64})
        views = host_views(arrays.call(case), readonly=False)
        settings = (("splits", 1), ("block_k", 64))
        config = cases.configuration(replace(case, settings=settings), views, place.limits)
        cases.check(case, found, arrays, config, "sm_80")


def test_square_operands_are_exchanged_by_their_flag_alone() -> None:
    """Nothing else tells the calls apart."""
    rng = np.random.default_rng(10)
    a, b = (rng.integers(-9, 10, (24, 24)).astype(np.float16) for _ in range(2))
    for trans_a in (False, True, False):
        for trans_b in (False, True):
            found = cuevo.gemm(a, b, trans_a=trans_a, trans_b=trans_b, device="sim")
            exact = reference.gemm(a, b, trans_a=trans_a, trans_b=trans_b)
            np.testing.assert_array_equal(found.astype(np.float64), exact)


@pytest.mark.parametrize("matrix", ["a", "b", "c", "out"])
def test_an_address_that_is_less_aligned_gets_another_plan(matrix: str) -> None:
    case = replace(SMALL, m=16, n=32, k=32, out_layout="packed")
    place = Recorder()
    arrays, call = cases.arguments(case)
    cuevo.gemm(**call, device=place)
    x = call[matrix]
    memory = bytes_around(x.nbytes + 8)
    moved = np.ndarray(x.shape, x.dtype, memory, GUARD + 4)
    moved[...] = x
    found = cuevo.gemm(**call | {matrix: moved}, device=place)
    cases.check(case, found, arrays, place.configs[-1], "sm_80")
    field = f"{'d' if matrix == 'out' else matrix}_access"
    assert [getattr(config, field) for config in place.configs] == [16, 4]


def test_the_architecture_of_the_executor_counts() -> None:
    """The tensor cores of sm_90 sum in longer blocks."""
    case = GemmCase(30, 40, 100, "f16", "f32", seed=11)
    found = {}
    for arch in ("sm_80", "sm_86", "sm_90"):
        arrays, call = cases.arguments(case)
        config = {"splits": 1, "block_k": 64}
        found[arch] = cuevo.gemm(**call, device=f"sim:{arch}", config=config)
        cases.check_near(case, found[arch], arrays)
    assert_same_bytes(case, "out", found["sm_86"], found["sm_80"])
    assert (found["sm_90"] != found["sm_80"]).any()


def test_host_arrays_without_a_gpu_run_on_the_cpu_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement, "devices", lambda: ())
    arrays, call = cases.arguments(replace(SMALL, m=19))
    cases.check_near(SMALL, cuevo.gemm(**call), arrays)
