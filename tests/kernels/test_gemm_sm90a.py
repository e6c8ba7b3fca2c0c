"""ptx/gemm_sm90a.ptx: every bit, resources, constraints, tensor maps, and when it is chosen."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import gemm_cases as cases
from helpers.attention_sweep import WHOLE as WHOLE_SWEEPS
from helpers.attention_sweep import Deck
from helpers.executors import shared
from helpers.gemm_cases import Arrays, GemmCase
from helpers.gemm_sweep import CASES as ALL
from helpers.gemm_sweep import name
from helpers.guarded import OnDevice, host_views
from helpers.ledgers import opcodes

import cuevo
from cuevo.architectures import architecture
from cuevo.arrays import ArrayView, view
from cuevo.cuda.tensor_map import TensorMap
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of
from cuevo.kernels import gemm_sm80, gemm_sm90a
from cuevo.kernels.gemm_mma import Problem
from cuevo.kernels.gemm_sm90a import Config
from cuevo.ops.dispatch import ENVIRONMENT, dispatch
from cuevo.ops.gemm_problem import check_operands
from cuevo.ops.product import VARIANTS
from cuevo.sim import SimExecutor
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

kernel = pytest.mark.kernel
unit = pytest.mark.unit

SM_90A = architecture("sm_90a")
LAUNCHED = load_header().kernels[gemm_sm90a.NAME]

# -- Cases -----------------------------------------------------------------------------------------

SHAPES = tuple(
    dict(block_m=m, block_n=n, stages=stages)
    for m, n, stages in (
        (128, 256, 4),
        (128, 192, 5),
        (128, 128, 6),
        (128, 64, 3),
        (256, 64, 2),
        (128, 64, 4),
        (256, 128, 3),
        (128, 192, 3),
    )
)
DETAILS: tuple[dict[str, Any], ...] = (
    dict(),
    dict(blocks=1),
    dict(blocks=2, raster=1),
    dict(blocks=3, raster=2),
    dict(d_access=4, c_access=4),
    dict(d_access=8),
)


def aligned(case: GemmCase) -> GemmCase:
    """The case with rows of a and b that a tensor map describes."""

    def along(order: str, rows: int, columns: int) -> int:
        return columns if order == "rows" else rows

    def layout(which: str, order: str, rows: int, columns: int) -> str:
        kept = which in ("shared", "broadcast B", "batch inside")
        fits = along(order, rows, columns) % 8 == 0
        return which if kept and fits else "aligned 16"

    return replace(
        case,
        a_layout=layout(case.a_layout, case.a_order, case.m, case.k),
        b_layout=layout(case.b_layout, case.b_order, case.k, case.n),
        settings=(),
    )


def configuration(problem: Problem, case: GemmCase) -> Config:
    """The choice with the settings of the case."""
    chosen = gemm_sm90a.choose(problem, SM_90A)
    return gemm_sm90a.adapt(replace(chosen, **dict(case.settings)), problem)  # type: ignore[arg-type]


def serving(problem: Problem) -> Iterator[Config]:
    """The candidates that can run."""
    offered = (config for config, _ in gemm_sm90a.candidates(problem))
    return (x for x in offered if not gemm_sm90a.violations(x, SM_90A, problem))


def sweep() -> Iterator[GemmCase]:
    """A quarter of the sweep of gemm_sm80, or the whole, each case with the next settings that it
    can have.
    """
    rng = np.random.default_rng(90)
    shapes, details = Deck(SHAPES, rng), Deck(DETAILS, rng)
    for plain in map(aligned, ALL if WHOLE_SWEEPS else ALL[2::4]):
        views = host_views(cases.make(plain).call(plain), readonly=False)
        problem = cases.problem_of(plain, views)
        if not any(True for _ in serving(problem)):
            continue  # a vector, whose only row or column steps by single elements
        while True:
            settings = shapes.deal() | details.deal()
            case = replace(plain, settings=tuple(settings.items()))
            config = configuration(problem, case)
            if gemm_sm90a.violations(config, SM_90A, problem):
                continue
            if all(getattr(config, key) == value for key, value in settings.items()):
                yield case
                break


CASES = tuple(sweep())

# -- Every bit -------------------------------------------------------------------------------------


def sim() -> SimExecutor:
    return shared("sm_90a")


def launch(case: GemmCase, place: SimExecutor | DriverExecutor) -> tuple[Arrays, Config]:
    """Run the case; what lies around its arrays must stay as it was."""
    arrays = cases.make(case)
    was = cases.memory_of(arrays)
    call = arrays.call(case)
    views = host_views(call, readonly=True) | host_views({"out": call["out"]}, readonly=False)
    on_device = OnDevice(call, place) if isinstance(place, DriverExecutor) else None
    if on_device is not None:
        views = dict(on_device.views)
    if case.c == "out":
        views["c"] = views["out"]
    problem = cases.problem_of(case, views)
    options = cases.options(case)
    alpha = options.pop("alpha")
    x = check_operands(**views, **options)
    config = configuration(problem, case)
    values = gemm_sm90a.parameters(
        config, problem, a=x.a, b=x.b, c=x.c, bias=x.bias, scatter=x.scatter, d=x.out,
        alpha=alpha, beta=options["beta"],
    )  # fmt: skip
    context = place.context if isinstance(place, DriverExecutor) else None
    front = gemm_sm90a.addresses(config, x.a, x.b, context=context)
    packed = front.pack(*x.addresses, x.out.pointer) + LAUNCHED.pack(values)[front.size :]
    place.load(render(gemm_sm90a.NAME, gemm_sm90a.values(config))).launch(
        config.grid(problem),
        (config.threads, 1, 1),
        config.shared_bytes,
        packed,
        buffers=[each for each in (*x.inputs, x.out) if each is not None],
    )
    if on_device is not None:
        on_device.fetch(call)
    cases.check_surroundings(case, arrays, was)
    return arrays, config


def with_out(case: GemmCase) -> GemmCase:
    return replace(case, out_layout="packed") if case.out_layout == "new" else case


def check(case: GemmCase, place: SimExecutor | DriverExecutor) -> None:
    case = with_out(case)
    arrays, config = launch(case, place)
    assert arrays.out is not None
    cases.check(case, arrays.out.array, arrays, config, "sm_90a")  # type: ignore[arg-type]


@kernel
@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_bit(case: GemmCase) -> None:
    check(case, sim())


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_bit_on_a_device(executor: DriverExecutor, case: GemmCase) -> None:
    if executor.arch != "sm_90":
        pytest.skip(f"the kernel is for sm_90a; this is {executor.arch}")
    check(case, executor)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES[::3], ids=name)
def test_near_float64_on_a_device(executor: DriverExecutor, case: GemmCase) -> None:
    if executor.arch != "sm_90":
        pytest.skip(f"the kernel is for sm_90a; this is {executor.arch}")
    case = replace(with_out(case), values="normal", alpha=1.0, c="none", scatter="none")
    arrays, _ = launch(case, executor)
    assert arrays.out is not None
    cases.check_near(case, arrays.out.array, arrays)


@kernel
@pytest.mark.parametrize("case", CASES[1::20], ids=name)
def test_results_are_near_float64(case: GemmCase) -> None:
    case = replace(with_out(case), values="normal", alpha=1.0, c="none", scatter="none")
    arrays, _ = launch(case, sim())
    assert arrays.out is not None
    cases.check_near(case, arrays.out.array, arrays)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ["rows", "columns"])
@pytest.mark.parametrize("size", [(4096, 4096, 512), (1000, 3000, 1000)], ids=str)
def test_a_call_takes_it(executor: DriverExecutor, size: tuple[int, int, int], rows: str) -> None:
    if executor.arch != "sm_90":
        pytest.skip(f"the kernel is for sm_90a; this is {executor.arch}")
    m, n, k = size
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(x).astype(np.float16) for x in ((m, k), (k, n)))
    if rows == "columns":
        a, b = (np.ascontiguousarray(x.T).T for x in (a, b))
    problem = Problem(1, m, n, k, "f16", "f32", rows == "columns", rows == "columns")
    assert dispatch(VARIANTS, problem, architecture_of(executor)) is gemm_sm90a
    found = cuevo.gemm(a, b, out_dtype="float32", device=executor)
    right = a.astype(np.float32) @ b.astype(np.float32)
    assert np.linalg.norm(found - right) < 1e-5 * np.linalg.norm(right)


@unit
def test_the_sweep_has_everything() -> None:
    settings = {setting for case in CASES for setting in case.settings}
    assert {setting for detail in (*DETAILS, *SHAPES) for setting in detail.items()} <= settings
    assert {(x.a_order, x.b_order) for x in CASES} == set(product(("rows", "columns"), repeat=2))
    assert {x.scatter for x in CASES} == set(cases.SCATTERS)
    assert {x.c for x in CASES} == {"none", "f16", "bf16", "f32", "out"}
    assert {x.a_layout for x in CASES} >= {"aligned 16", "shared", "broadcast B", "batch inside"}


# -- Machine code ----------------------------------------------------------------------------------


@unit
def test_the_machine_code_has_what_the_head_says(tmp_path: Path) -> None:
    config = Config(128, 128, 4, exact=True)
    rendered = render(gemm_sm90a.NAME, gemm_sm90a.values(config))
    wgmma, boxes = (
        eval(re.search(pattern, rendered.text)[1])  # type: ignore[index]
        for pattern in (r"//   wgmma (\d+ \* \d+) of", r"//   boxes (\d+),")
    )
    found = opcodes(assemble(rendered, "sm_90a", cache=None).code, tmp_path)
    instructions = sum(count for code, count in found.items() if code.startswith("HGMMA"))
    assert instructions * config.consumers == wgmma
    assert sum(count for code, count in found.items() if code.startswith("UTMALDG")) == boxes
    assert not any(code.startswith(("LDL", "STL")) for code in found)


# -- The host half ---------------------------------------------------------------------------------

BASE = Config(128, 128, 4)
PROBLEM = Problem(1, 500, 500, 500, "bf16", "bf16")


@unit
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(dtype="f32"), "types are f16, bf16 or f32 (f32: c and d only)"),
        (dict(block_n=96), "block_n must be 64, 128, 192 or 256, not 96"),
        (dict(block_m=64), "for each of 2 warpgroups, 256 at most; got 64"),
        (dict(block_m=192), "for each of 2 warpgroups, 256 at most; got 192"),
        (dict(block_m=256, block_n=256, stages=2), "take 256 accumulators of a lane; 128 are the"),
        (dict(d_access=32), "d_access must be 16, 8, 4 or 2, and at least an element; got 32"),
        (dict(stages=1), "stages must be 2 to 16, not 1"),
        (dict(stages=8), "bytes of shared memory; a block of sm_90a has 232448"),
        (dict(raster=0), "raster must be positive, not 0"),
        (dict(blocks=0), "blocks must be positive, not 0"),
        (dict(a_columns=True), "is an instance for another a_columns: True"),
        (dict(bias_of_inputs=True), "bias_of_inputs is for a bias beside a d of f32"),
        (dict(index_bytes=4), "index_bytes must be 8, or 4 with scatter; got 4"),
        (dict(d_access=16), None),
    ],
)
def test_each_constraint(changes: dict[str, Any], reason: str | None) -> None:
    found = gemm_sm90a.violations(replace(BASE, **changes), SM_90A, PROBLEM)
    assert (reason is None) == (not found)
    assert reason is None or reason in found[0]


@unit
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(a_alignment=8), "needs rows aligned to 16 bytes; those of a are to 8"),
        (dict(b_alignment=2), "needs rows aligned to 16 bytes; those of b are to 2"),
        (dict(mapped=False), "a tensor map steps forward from row to row"),
        (dict(k=0), "a tensor map has at least one element along k"),
        (dict(d_alignment=8), "accesses d by more than the 8 bytes"),
        (dict(batch=2**28), f"{2**28 * 16} tiles are not fewer than 2^31"),
        (dict(), None),
    ],
)
def test_each_problem_that_is_refused(changes: dict[str, Any], reason: str | None) -> None:
    found = gemm_sm90a.violations(BASE, SM_90A, replace(PROBLEM, **changes))
    assert (reason is None) == (not found)
    assert reason is None or reason in found[0]


@unit
def test_it_is_for_one_architecture() -> None:
    for arch in ("sm_80", "sm_90", "sm_100a"):
        (found,) = gemm_sm90a.violations(BASE, architecture(arch))
        assert found == f"wgmma needs sm_90a; this is {arch}"


@unit
def test_large_aligned_problems_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    large = Problem(1, 4096, 4096, 4096, "bf16", "bf16")
    assert dispatch(VARIANTS, large, SM_90A) is gemm_sm90a
    assert gemm_sm90a.choose(large, SM_90A).block_n == 256
    assert gemm_sm90a.choose(replace(large, c="bf16"), SM_90A).block_n < 256
    for other in (
        replace(large, a_alignment=8),
        replace(large, mapped=False),
        Problem(1, 64, 64, 8192, "bf16", "bf16"),
        Problem(1, 64, 64, 64, "bf16", "bf16"),
    ):
        assert dispatch(VARIANTS, other, SM_90A) is gemm_sm80
    assert dispatch(VARIANTS, large, architecture("sm_90")) is gemm_sm80
    assert dispatch(VARIANTS, large, SM_90A, {"splits": 2}) is gemm_sm80
    assert dispatch(VARIANTS, replace(large, m=64), SM_90A, {"blocks": 7}) is gemm_sm90a
    assert dispatch(VARIANTS, large, SM_90A, {"nonsense": 2}) is gemm_sm90a
    monkeypatch.setenv(ENVIRONMENT, "sm_90")
    assert dispatch(VARIANTS, replace(large, m=64), SM_90A) is gemm_sm90a


@unit
def test_threadblocks_are_one_for_each_multiprocessor() -> None:
    few = replace(SM_90A, multiprocessors=20)
    chosen = gemm_sm90a.choose(Problem(1, 4096, 4096, 4096, "bf16", "bf16"), few)
    assert chosen.grid(Problem(1, 4096, 4096, 4096, "bf16", "bf16")) == (20, 1, 1)
    assert chosen.grid(Problem(1, 100, 300, 64, "bf16", "bf16")) == (2, 1, 1)


@unit
def test_fewer_accumulators_are_offered_where_it_spills() -> None:
    large = gemm_sm90a.choose(Problem(1, 4096, 4096, 4096, "bf16", "bf16"), SM_90A)
    found = list(gemm_sm90a.spill_fallbacks(large))
    assert [x.block_n for x in found] == [256, 192, 128]
    assert not any(gemm_sm90a.violations(x, SM_90A) for x in found)


def _array(shape: tuple[int, ...], strides: tuple[int, ...]) -> ArrayView:
    return replace(view(np.zeros(1, np.float16)), pointer=4096, shape=shape, strides=strides)


@unit
def test_tensor_maps() -> None:
    rows = Config(128, 256, dtype="f16")
    a, b = _array((3, 500, 72), (80000, 160, 2)), _array((3, 72, 504), (0, 1008, 2))
    expected = TensorMap("f16", 4096, (72, 500, 3), (160, 80000), (64, 128, 1), 128, 256)
    assert rows.a_map(a) == expected
    assert rows.b_map(b) == replace(
        expected, extents=(504, 72, 1), strides=(1008, 1008 * 72), box=(64, 64, 1)
    )
    columns = replace(rows, a_columns=True, b_columns=True)
    a, b = _array((1, 1, 72), (0, 2, 16)), _array((1, 72, 504), (0, 2, 144))
    assert columns.a_map(a) == replace(
        expected, extents=(1, 72, 1), strides=(16, 16 * 72), box=(64, 64, 1)
    )
    assert columns.b_map(b) == replace(
        expected, extents=(72, 504, 1), strides=(144, 144 * 504), box=(64, 256, 1)
    )


@unit
def test_the_map_of_an_address_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    encode = TensorMap.encode_for_executor
    monkeypatch.setattr(
        TensorMap,
        "encode_for_executor",
        lambda self: made.append(self.pointer) or encode(self),  # type: ignore[func-returns-value]
    )
    x = _array((1, 128, 128), (0, 256, 2))
    front = gemm_sm90a.addresses(BASE, x, x, context=None)
    first = front.pack(4096, 8192, 1, 2, 3, 4)
    assert front.pack(4096, 8192, 1, 2, 3, 4) == first and len(first) == front.size
    assert made == [4096, 8192]
    assert TensorMap.decode(first[128:256]).pointer == 8192
    front.pack(4096, 4096, 1, 2, 3, 4)
    assert made == [4096, 8192, 4096]  # that of b: a has been there before
    assert front.size == LAUNCHED.c_stride_batch
