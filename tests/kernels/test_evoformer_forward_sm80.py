"""ptx/evoformer_forward_sm80.ptx against float64, on the CPU executor and a GPU; its host half."""

from dataclasses import replace
from math import log2
from typing import Any

import numpy as np
import pytest
from helpers import attention_cases as cases
from helpers.attention_cases import Case, OnDevice, Strided
from helpers.attention_sweep import CASES, name
from helpers.executors import shared
from helpers.sweep_sample import FORWARD_ON_CPU

from cuevo.architectures import architecture
from cuevo.arrays import ArrayView
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of
from cuevo.executors.protocol import Executor
from cuevo.kernels import evoformer_forward_sm80 as forward
from cuevo.kernels.evoformer_forward_sm80 import Config, Problem
from cuevo.ops.attention_problem import broadcast_biases, check_scale, state_problem
from cuevo.sim import SimExecutor
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render


def launch(
    case: Case,
    place: Executor,
    views: dict[str, ArrayView],
    config: Config | None = None,
    *,
    with_lse: bool = True,
) -> None:
    """Run the kernel on the arrays, out and lse among them."""
    operands = {key: x for key, x in views.items() if key != "lse"}
    problem = state_problem(**operands)
    config = config or cases.configuration(case, problem, place)
    kernel = place.load(render(forward.NAME, forward.values(config)))
    parameters = forward.parameters(
        config,
        scale=check_scale(case.scale, case.head_dim),
        lse=views["lse"] if with_lse else None,
        **broadcast_biases(operands, problem),
    )
    kernel.launch(
        config.grid(problem),
        (config.threads, 1, 1),
        config.shared_bytes,
        load_header().kernels[forward.NAME].pack(parameters),
        buffers=list(views.values()),
    )


def run_on_cpu(case: Case, inputs: dict[str, Strided], **options: Any) -> dict[str, Strided]:
    results = cases.make_results(case)
    views = cases.host_views(inputs, readonly=True) | cases.host_views(results, readonly=False)
    launch(case, shared(case.arch), views, **options)
    return results


def run_on_gpu(
    case: Case, inputs: dict[str, Strided], place: DriverExecutor, config: Config | None = None
) -> dict[str, Strided]:
    results = cases.make_results(case)
    on_device = OnDevice(inputs | results, place)
    launch(case, place, on_device.views, config)
    on_device.fetch(results)
    return results


# -- The sweep -------------------------------------------------------------------------------------

WIDE_WARPS = (
    Case("bf16", 32, 97, 65, 1, 3, 1, mask="f32", pair="f32", shape=0, arch="sm_80", seed=240),
    Case("f16", 32, 200, 33, 1, 2, 2, mask="none", pair="f32", shape=0, arch="sm_90", seed=241),
    Case("bf16", 32, 96, 64, 1, 2, 1, mask="bool", pair="f32", shape=0, arch="sm_90", seed=242),
)
"""48 queries a warp: one too many, 8 of the last tile, none missing."""


@pytest.mark.kernel
@pytest.mark.parametrize("case", (*FORWARD_ON_CPU, *WIDE_WARPS), ids=name)
def test_the_sweep(case: Case) -> None:
    inputs = cases.make(case)
    results = run_on_cpu(case, inputs)
    cases.check(case, results["out"].array, results["lse"].array, inputs)
    cases.check_guards(case, results)


@pytest.mark.gpu
@pytest.mark.parametrize("case", (*CASES, *WIDE_WARPS), ids=name)
def test_the_sweep_on_a_gpu(executor: DriverExecutor, case: Case) -> None:
    inputs = cases.make(case)
    results = run_on_gpu(case, inputs, executor)
    cases.check(case, results["out"].array, results["lse"].array, inputs)
    cases.check_guards(case, results)
    again = run_on_gpu(case, inputs, executor)
    for key, first in results.items():
        cases.assert_same_bytes(case, key, again[key].array, first.array)


@pytest.mark.unit
def test_the_sweep_has_everything() -> None:
    assert len(CASES) >= 200
    assert len({repr(case) for case in CASES}) == len(CASES)

    def seen(*fields: str) -> set[Any]:
        found = {tuple(getattr(case, field) for field in fields) for case in CASES}
        return {values[0] for values in found} if len(fields) == 1 else found

    types = {(dtype, head_dim) for dtype in ("bf16", "f16") for head_dim in range(8, 129, 8)}
    assert seen("dtype", "head_dim") == types
    assert seen("values") == set(cases.VALUES)
    assert seen("layout") == set(cases.LAYOUTS)
    assert seen("mask") == {"none", "f16", "bf16", "f32", "bool"}
    assert seen("pair") == {"none", "f16", "bf16", "f32"}
    both = {(case.mask != "none", case.pair != "none") for case in CASES}
    assert both == {(True, True), (True, False), (False, True), (False, False)}
    with_mask = {case.mask_layout for case in CASES if case.mask != "none"}
    with_pair = {case.pair_layout for case in CASES if case.pair != "none"}
    assert with_mask == {*cases.MASK_LAYOUTS, *cases.SINGLE}
    assert with_pair == {*cases.PAIR_LAYOUTS, "one B"}
    assert seen("arch") == {"sm_80", "sm_86", "sm_90"}
    assert seen("shape") >= {None, *range(max(len(shapes) for _, shapes in forward.SHAPES))}
    assert {None, 0.0, 1.0} < seen("scale")
    assert min(seen("scale") - {None}) < 0
    assert any(case.queries != case.keys for case in CASES)
    lengths = seen("queries") | seen("keys")
    assert {1, 2, 3, 197, 199, 200} <= lengths
    assert {case.pair_copy_bytes for case in map(chosen, CASES) if case.pair != "none"} == {
        2,
        4,
        8,
        16,
    }
    assert len({case.batch * case.rows * case.heads for case in CASES}) > 4


@pytest.mark.unit
def test_the_wide_warps_are_wide() -> None:
    assert {chosen(case).m_tiles for case in WIDE_WARPS} == {3}
    assert {chosen(case).full_tiles for case in WIDE_WARPS} == {False, True}


def chosen(case: Case) -> Config:
    views = cases.host_views(cases.make(case), readonly=True)
    return cases.configuration(case, state_problem(**views), shared(case.arch))


# -- Bits ------------------------------------------------------------------------------------------

BOTH = Case(
    "bf16", 24, 70, 133, 2, 3, 2, mask="f32", pair="bf16", layout="heads first", shape=0, seed=1
)


@pytest.mark.kernel
@pytest.mark.parametrize("case", [BOTH, replace(BOTH, dtype="f16", pair="f16", arch="sm_90")])
def test_twice_the_same_bits(case: Case) -> None:
    inputs = cases.make(case)
    first, second = run_on_cpu(case, inputs), run_on_cpu(case, inputs)
    for key in first:
        cases.assert_same_bytes(case, key, second[key].array, first[key].array)


@pytest.mark.kernel
def test_without_lse_the_result_is_the_same() -> None:
    inputs = cases.make(BOTH)
    both, alone = run_on_cpu(BOTH, inputs), run_on_cpu(BOTH, inputs, with_lse=False)
    cases.assert_same_bytes(BOTH, "out", alone["out"].array, both["out"].array)
    assert (alone["lse"].memory == cases.POISON).all()


@pytest.mark.kernel
def test_how_arrays_lie_in_memory_changes_no_bit() -> None:
    """Only the tiling decides the order of the sums."""
    found = []
    for layout in ("packed", "heads first", "padded", "reversed", "stepped", "fused"):
        case = replace(BOTH, layout=layout, queries=70, keys=70, pair_layout="aligned 16")
        found.append(run_on_cpu(case, cases.make(case))["out"].array)
    for other in found[1:]:
        cases.assert_same_bytes(BOTH, "out", other, found[0])


# -- Biases far below every score ------------------------------------------------------------------

FARTHEST = float(np.finfo(np.float32).min)
FAR = (-1e9, -1e15, FARTHEST)
"""Numbers that models write instead of -inf."""


def far_case(
    dtype: str, head_dim: int, where: str, value: float
) -> tuple[Case, dict[str, Strided]]:
    """Row 0: the first 70 of 75 keys are far below, row 1: all are."""
    case = Case(dtype, head_dim, 20, 75, rows=2, **{where: "f32"}, seed=head_dim)
    inputs = cases.make(case)
    bias = inputs["mask_bias" if where == "mask" else "pair_bias"].array
    bias[...] = 0.0
    bias[..., :70] = value
    if where == "mask":
        bias[:, 1] = value
    return case, inputs


@pytest.mark.kernel
@pytest.mark.parametrize("value", FAR)
@pytest.mark.parametrize("where", ["mask", "pair"])
@pytest.mark.parametrize("head_dim", [24, 32])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_keys_far_below_the_others(dtype: str, head_dim: int, where: str, value: float) -> None:
    case, inputs = far_case(dtype, head_dim, where, value)
    results = run_on_cpu(case, inputs)
    first = {key: x.narrowed(np.s_[:, :1]) for key, x in inputs.items()}
    cases.check(case, results["out"].array[:, :1], results["lse"].array[:, :1], first)


@pytest.mark.kernel
@pytest.mark.parametrize("value", FAR)
@pytest.mark.parametrize("head_dim", [24, 32])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_row_of_keys_far_below_is_their_mean(dtype: str, head_dim: int, value: float) -> None:
    """Beside 1e9 a score of ordinary size is nothing in fp32: all keys weigh the same."""
    case, inputs = far_case(dtype, head_dim, "mask", value)
    results = run_on_cpu(case, inputs)
    found = results["out"].array[:, 1].astype(np.float64)
    mean = inputs["v"].array[:, 1].astype(np.float64).mean(axis=1, keepdims=True)
    error = np.linalg.norm(found - mean) / np.linalg.norm(np.broadcast_to(mean, found.shape))
    assert error < cases.TOLERANCE[dtype], (case, value)
    if value != FARTHEST:
        np.testing.assert_allclose(results["lse"].array[:, 1], value, rtol=cases.LSE_TOLERANCE)


@pytest.mark.kernel
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("offset", [1e4, -1e4])
@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_a_bias_of_1e4_on_every_key(head_dim: int, offset: float, arch: str) -> None:
    """A score M is the sum of several blocks, each cut to 24 bits: it is known to two units in its
    last place, 2^-22 M, and its exponential as well as that, relatively.
    """
    for dtype in ("f16", "bf16"):
        case = Case(dtype, head_dim, 50, 70, mask="f32", values="offset", offset=offset, arch=arch)
        inputs = cases.make(case)
        results = run_on_cpu(case, inputs)
        slack = 2.0**-22 * abs(offset)
        cases.check(case, results["out"].array, results["lse"].array, inputs, slack)


# -- Guessed references ----------------------------------------------------------------------------

GUESSES = {
    "serves": (False, dict()),
    "high": (True, dict(pair=90.0)),
    "higher as keys go on": (True, dict(pair=2.0, rising=3.0)),
    "low": (True, dict(pair=-40.0)),
    "low from a query on": (True, dict(pair=-40.0, from_query=31)),
    "large values": (True, dict(pair=20.0, values=1e36)),
    "a row n without keys": (False, dict(mask=-np.inf)),
    "one without, the others low": (True, dict(mask=-np.inf, pair=-40.0)),
}
"""Whether it is none for some row, and what is added to the mask of the first row n, to the scores
from a query on, to those of each key after the last one, and what v is multiplied by. In natural
units the guess serves highest scores from -17 to 44.
"""


def guess_case(parts: dict[str, Any], keys: int) -> tuple[Case, dict[str, Strided], Config]:
    case = Case("bf16", 32, 64, keys, rows=3, mask="f32", pair="f32", seed=keys)
    inputs = cases.make(case)
    mask, pair, v = (inputs[key].array for key in ("mask_bias", "pair_bias", "v"))
    mask[...] = 0.0
    mask[:, 0] += parts.get("mask", 0.0)
    pair[..., parts.get("from_query", 0) :, :] += parts.get("pair", 0.0)
    pair += parts.get("rising", 0.0) * np.arange(keys, dtype=np.float32)
    v *= v.dtype.type(parts.get("values", 1.0))
    config = Config(32, block_queries=32, block_keys=32, m_tiles=1, stages=2)
    config = forward.adapt(config, state_problem(**cases.host_views(inputs, readonly=True)))
    assert config.full_tiles == (keys == 96)
    return case, inputs, config


guesses = pytest.mark.parametrize(("again", "parts"), GUESSES.values(), ids=list(GUESSES))


@pytest.mark.kernel
@pytest.mark.parametrize("keys", [96, 83])
@guesses
def test_rows_that_the_guess_is_none_for(again: bool, parts: dict[str, Any], keys: int) -> None:
    """They are computed again, and no others are."""
    case, inputs, config = guess_case(parts, keys)
    results = cases.make_results(case)
    views = cases.host_views(inputs, readonly=True) | cases.host_views(results, readonly=False)
    place = SimExecutor("sm_90", profile=True)
    launch(case, place, views, config)
    cases.check(case, results["out"].array, results["lse"].array, inputs)
    profile = place.load(render(forward.NAME, forward.values(config))).profile
    assert profile is not None
    # Only references that follow maxima take any.
    assert (profile.by_opcode()["max.f32"] > 0) == again


@pytest.mark.gpu
@guesses
def test_guesses_on_a_gpu(executor: DriverExecutor, again: bool, parts: dict[str, Any]) -> None:
    case, inputs, config = guess_case(parts, 83)
    results = run_on_gpu(case, inputs, executor, config)
    cases.check(case, results["out"].array, results["lse"].array, inputs)
    arch = architecture_of(executor)
    if arch.number == 90:  # The CPU executor has the bits of approximate functions there.
        twin = replace(case, arch=arch.name)
        for key, x in run_on_cpu(twin, inputs, config=config).items():
            cases.assert_same_bytes(twin, key, results[key].array, x.array)


# -- The host half ---------------------------------------------------------------------------------

SM_80 = architecture("sm_80")
PROBLEM = Problem(1, 4, 2, 100, 128, 32, "bf16", "bf16", "bf16", 16)
ARCHS = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_120")


def problems() -> list[Problem]:
    """Every head dim, dtype and bias, of several sizes."""
    found = []
    for head_dim in range(8, 129, 8):
        for index, (mask, pair) in enumerate(
            (mask, pair)
            for mask in ("none", "own", "f32", "bool")
            for pair in ("none", "own", "f32")
        ):
            dtype = ("bf16", "f16")[(head_dim // 8 + index) % 2]
            batch, rows, heads, queries, keys = (
                (1, 1, 1, 1, 1),
                (1, 128, 8, 256, 256),
                (2, 5, 3, 77, 131),
                (1, 1024, 4, 1024, 1024),
                (1, 70000, 1, 8, 8),
            )[index % 5]
            found.append(
                Problem(
                    batch,
                    rows,
                    heads,
                    queries,
                    keys,
                    head_dim,
                    dtype,
                    dtype if mask == "own" else mask,
                    dtype if pair == "own" else pair,
                    (16, 8, 4)[index % 3] if pair == "f32" else (2, 16, 4, 8)[index % 4],
                )
            )
    return found


@pytest.mark.unit
@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_chosen_is_legal(arch: str) -> None:
    limits = architecture(arch)
    for problem in problems():
        config = forward.choose(problem, limits)
        assert forward.violations(config, limits, problem) == ()
        blocks = config.grid(problem)[0]
        assert blocks * config.block_rows * config.block_queries >= (
            problem.batch * problem.rows * problem.heads * problem.queries
        )


@pytest.mark.unit
def test_large_problems_get_larger_tiles_than_small_ones() -> None:
    small = forward.choose(replace(PROBLEM, rows=1, queries=16), SM_80)
    large = forward.choose(replace(PROBLEM, rows=512, queries=512, keys=512), SM_80)
    assert small.block_rows * small.block_queries < large.block_rows * large.block_queries


@pytest.mark.unit
def test_where_nothing_is_legal_every_objection_is_named() -> None:
    with pytest.raises(ValueError, match=r"has no configuration for Problem\(") as caught:
        forward.choose(PROBLEM, architecture("sm_75"))
    objections = str(caught.value).split("\n")[1:]
    assert len(objections) == len(list(forward.candidates(PROBLEM)))
    assert all("need sm_80; this is sm_75" in line for line in objections)


BASE = Config(head_dim=32)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("changes", "arch", "reason"),
    [
        (dict(stages=2), "sm_75", "need sm_80; this is sm_75"),
        (dict(head_dim=36), "sm_80", "head_dim must be a multiple of 8 from 8 to 128, not 36"),
        (dict(head_dim=0), "sm_80", "head_dim must be"),
        (dict(head_dim=136), "sm_80", "head_dim must be"),
        (dict(dtype="f32"), "sm_80", "dtype must be f16 or bf16, not 'f32'"),
        (
            dict(mask="int8"),
            "sm_80",
            "mask must be one of none, bounds, bool, f16, bf16, f32, not 'int8'",
        ),
        (dict(pair="bool"), "sm_80", "pair must be none, f16, bf16 or f32, not 'bool'"),
        (dict(m_tiles=3), "sm_80", "m_tiles 1 to 3"),
        (dict(m_tiles=4), "sm_80", "m_tiles 1 to 3"),
        (dict(block_queries=48), "sm_80", "block_queries = 48 is not a multiple"),
        (dict(block_queries=16), "sm_80", "block_queries = 16 is not a multiple"),
        (dict(block_rows=0), "sm_80", "a threadblock has 32 to 1024 threads"),
        (dict(block_rows=9), "sm_80", "9 rows of 128 threads"),
        (dict(block_keys=96), "sm_80", "block_keys must be 32, 64, 128 or 256"),
        (
            dict(chunk_keys=48),
            "sm_80",
            "chunk_keys must be a multiple of 32 that divides block_keys",
        ),
        (
            dict(chunk_keys=128),
            "sm_80",
            "chunk_keys must be a multiple of 32 that divides block_keys",
        ),
        (dict(stages=1), "sm_80", "stages must be 2 to 6, not 1"),
        (dict(stages=7), "sm_90", "stages must be 2 to 6, not 7"),
        (
            dict(head_dim=64, block_queries=32, pair="none"),
            "sm_80",
            "32 threads copy fewer than the 8 rows of 8 chunks",
        ),
        (dict(pair_copy_bytes=3), "sm_80", "pair_copy_bytes must be 16, 8, 4 or 2"),
        (dict(pair="f32", pair_copy_bytes=2), "sm_80", "at least one element; got 2"),
        (dict(block_queries=32), "sm_80", "32 threads copy fewer than the 8 rows of pair bias"),
        (dict(head_dim=72), "sm_80", "above head_dim 64, the output of 32 queries"),
        (dict(min_blocks=0), "sm_80", "0 blocks of 128 threads do not fit"),
        (dict(min_blocks=17), "sm_80", "17 blocks of 128 threads do not fit"),
        (
            dict(head_dim=64, stages=6),
            "sm_80",
            "bytes of shared memory; a block of sm_80 has 166912",
        ),
        (dict(stages=5), "sm_86", "bytes of shared memory; a block of sm_86 has 101376"),
        (dict(short_queries=32), "sm_80", "short_rows must be a multiple of block_rows = 1"),
        (dict(short_queries=32, short_rows=3), "sm_80", "that divides the 4 warps, not 3"),
        (
            dict(short_queries=16, short_rows=2),
            "sm_80",
            "short_queries must be a multiple of 32 (2 warps to a row) below block_queries = 128",
        ),
        (dict(short_queries=128, short_rows=2), "sm_80", "below block_queries = 128, not 128"),
        (
            dict(short_queries=96, short_rows=4),
            "sm_80",
            "would own 96 queries, more than the 32 that there are registers for",
        ),
        (
            dict(head_dim=48, short_queries=16, short_rows=4),
            "sm_80",
            "short last tile: 32 threads copy fewer than the 8 rows of 6 chunks",
        ),
        (
            dict(head_dim=48, stages=2, min_blocks=3, short_queries=64, short_rows=2),
            "sm_90",
            "needs 78848 bytes of shared memory, so that fewer than 3 threadblocks fit",
        ),
    ],
)
def test_each_constraint(changes: dict[str, Any], arch: str, reason: str) -> None:
    assert forward.violations(BASE, SM_80) == ()
    (found,) = forward.violations(replace(BASE, **changes), architecture(arch))
    assert reason in found


@pytest.mark.unit
@pytest.mark.parametrize(
    ("config", "problem", "reason"),
    [
        (dict(), dict(head_dim=40), "another head_dim, dtype or type of pair_bias"),
        (dict(dtype="f16"), dict(), "another head_dim, dtype or type of pair_bias"),
        (dict(), dict(pair="f32"), "another head_dim, dtype or type of pair_bias"),
        (dict(), dict(mask="bool"), "an instance for mask bf16, not bool"),
        (dict(mask="bounds"), dict(), "an instance for mask bounds, not bf16"),
        (
            dict(mask="none"),
            dict(mask="none", keys=100),
            '100 keys end within a tile of 64; mask must be "bounds"',
        ),
        (dict(), dict(pair_alignment=4), "copies pair_bias by 16 bytes; its rows are aligned to 4"),
    ],
)
def test_each_constraint_of_a_problem(
    config: dict[str, Any], problem: dict[str, Any], reason: str
) -> None:
    assert forward.violations(BASE, SM_80, PROBLEM) == ()
    (found,) = forward.violations(replace(BASE, **config), SM_80, replace(PROBLEM, **problem))
    assert reason in found


@pytest.mark.unit
@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (dict(), dict()),
        (dict(head_dim=64, dtype="f16", mask="bool"), dict(head_dim=64, dtype="f16", mask="bool")),
        (dict(mask="none"), dict(mask="none")),
        (dict(mask="none", keys=100), dict(mask="bounds")),
        (dict(pair="f32", pair_alignment=8), dict(pair="f32", pair_copy_bytes=8)),
        (dict(pair="none", pair_alignment=2), dict(pair="none", pair_copy_bytes=16)),
    ],
)
def test_a_configuration_is_adapted_to_a_problem(
    problem: dict[str, Any], expected: dict[str, Any]
) -> None:
    stated = replace(PROBLEM, **problem)
    adapted = forward.adapt(BASE, stated)
    assert adapted == replace(BASE, **expected)
    assert forward.violations(adapted, SM_80, stated) == ()


@pytest.mark.unit
def test_narrower_copies_than_the_alignment_allows_are_kept() -> None:
    assert forward.adapt(replace(BASE, pair_copy_bytes=4), PROBLEM).pair_copy_bytes == 4


@pytest.mark.unit
def test_rows_copied_at_a_time() -> None:
    config = replace(BASE, block_rows=2)
    assert forward.values(config) == {"config": config}
    assert config.pass_rows == 32
    assert config.pair_pass_rows == 32


@pytest.mark.unit
def test_the_parameter_block_is_that_of_the_header() -> None:
    case = replace(BOTH, scale=-0.5)
    views = cases.host_views(cases.make(case) | cases.make_results(case), readonly=False)
    found = forward.parameters(BASE, scale=-0.5, **views)
    struct = load_header().kernels[forward.NAME]
    assert set(found) == {field.name for field in struct.fields}
    assert found["q"] == views["q"].pointer
    assert found["lse"] == views["lse"].pointer
    for array, axes in (("q", "query"), ("k", "key"), ("v", "key"), ("out", "query")):
        named = [found[f"{array}_stride_{axis}"] for axis in ("batch", "row", axes, "head")]
        assert named == list(views[array].strides[:4])
    assert found["mask_stride_key"] == 4
    assert found["pair_stride_query"] == 133 * 2
    assert found["k_step_tile"] == 64 * views["k"].strides[2]
    assert found["mask_step_tile"] == 64 * 4
    assert (found["rows"], found["heads"], found["queries"], found["keys"]) == (3, 2, 70, 133)
    assert (found["query_tiles"], found["row_groups"]) == (1, 3)
    assert found["score_scale"] == pytest.approx(0.5 * log2(np.e))
    assert found["bias_scale"] == 2.0
    assert found["q_multiplier"] == 0xBF80BF80


@pytest.mark.unit
@pytest.mark.parametrize(
    ("rows", "queries", "keys", "full"),
    [(4, 128, 64, True), (3, 128, 64, False), (4, 127, 64, False), (4, 128, 96, False)],
)
def test_full_tiles(rows: int, queries: int, keys: int, full: bool) -> None:
    problem = Problem(1, rows, 1, queries, keys, 32, "bf16", "bf16", "bf16")
    config = forward.adapt(replace(BASE, block_rows=2), problem)
    assert config.full_tiles == full
    found = forward.violations(replace(config, full_tiles=True), architecture("sm_90"), problem)
    assert [reason for reason in found if "full_tiles" in reason] == list(found)
    assert bool(found) == (not full)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("dtype", "scale", "multiplier", "bias_scale"),
    [
        ("f16", 1.0, 0x3C003C00, 1.0),
        ("f16", -4.0, 0xBC00BC00, 0.25),
        ("bf16", 4.0, 0x3F803F80, 0.25),
        ("bf16", 0.0, 0, 1.0),
        ("bf16", -1e-30, 0, 1.0),
    ],
)
def test_the_sign_of_the_scale_goes_to_q(
    dtype: str, scale: float, multiplier: int, bias_scale: float
) -> None:
    case = Case(dtype, 32, 5, 5)
    views = cases.host_views(cases.make(case) | cases.make_results(case), readonly=False)
    found = forward.parameters(replace(BASE, dtype=dtype), scale=scale, **views)
    assert (found["q_multiplier"], found["bias_scale"]) == (multiplier, bias_scale)
    assert (found["mask_bias"], found["pair_bias"]) == (0, 0)
