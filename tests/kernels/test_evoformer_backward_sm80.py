"""ptx/evoformer_backward_sm80.ptx on the CPU executor, against float64.

The sweep goes through `cuevo.attention_backward`. What that decides by itself, or allocates, is
given here to launches of the kernel alone: rows N in groups and chunks, gradients of any strides.
Its host half: tests/kernels/test_evoformer_backward_host.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from math import log2
from typing import Any

import numpy as np
import pytest
from helpers import backward_cases as cases
from helpers.backward_calls import (
    KEYS_GRADS,
    QUERIES_GRADS,
    arguments,
    configurations,
    named,
    sides,
)
from helpers.backward_cases import GRAD_LAYOUTS, BackwardCase
from helpers.backward_sweep import name
from helpers.backward_variants import Profiler
from helpers.executors import Recorder
from helpers.guarded import Strided, assert_same_bytes, check_guards, host_views, lay_out
from helpers.query_statistics import blocked
from helpers.sweep_sample import BACKWARD_ON_CPU

import cuevo
from cuevo import reference
from cuevo.architectures import architecture
from cuevo.kernels import evoformer_backward_sm80 as backward
from cuevo.kernels.backward import padded, stats_shape
from cuevo.kernels.evoformer_backward_sm80 import Config
from cuevo.kernels.forward import scale_fields
from cuevo.ops.attention_problem import check_scale
from cuevo.sim import SimExecutor
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

pytestmark = pytest.mark.kernel

SM_90 = SimExecutor("sm_90")
"""The architecture with the most shared memory."""

# -- The sweep -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", BACKWARD_ON_CPU, ids=name)
def test_the_sweep(case: BackwardCase) -> None:
    inputs, call = arguments(case)
    before = {key: x.memory.copy() for key, x in inputs.items()}
    config = configurations(case, inputs, architecture(case.arch))
    found = cuevo.attention_backward(**call, device=f"sim:{case.arch}", config=config)
    cases.check(case, named(found), inputs)
    for key, x in inputs.items():
        assert np.array_equal(x.memory, before[key]), f"{case}\n{key} was written to"


# -- The kernel alone ------------------------------------------------------------------------------


def statistics(case: BackwardCase, inputs: Mapping[str, Strided]) -> dict[str, Strided]:
    """The statistics of every query and the bias of every key, as the kernel is given them."""
    dout, out, lse = (inputs[key].array.astype(np.float64) for key in ("dout", "out", "lse"))
    outer = (case.batch, case.rows)
    low = np.where(lse < -(2.0**22), -np.inf, -lse * log2(np.e))
    minus_delta = -np.einsum("bnqhd,bnqhd->bnhq", dout, out)
    padding = [(0, 0)] * 3 + [(0, padded(case.queries, 128) - case.queries)]
    shape = (*outer, case.heads, *stats_shape(padded(case.queries, 128)))
    stats = lay_out(shape, np.dtype(np.float32))
    stats.array[...] = blocked(
        np.pad(low, padding, constant_values=-np.inf), np.pad(minus_delta, padding)
    )
    bias = lay_out((*outer, padded(case.keys, 128)), np.dtype(np.float32))
    bias.array[...] = -np.inf
    mask = reference.additive(inputs["mask_bias"].array)[:, :, 0, 0] if "mask_bias" in inputs else 0
    scale = scale_fields(check_scale(case.scale, case.head_dim), case.dtype)
    bias.array[..., : case.keys] = mask * scale["bias_scale"]
    return {"stats": stats, "key_bias": bias}


def run(
    case: BackwardCase,
    side: str,
    settings: Mapping[str, Any],
    groups: int = 1,
    place: SimExecutor = SM_90,
) -> dict[str, np.ndarray]:
    """The gradients that one side gives, as the kernel leaves them; the sums are summed here."""
    grads = QUERIES_GRADS if side == "queries" else KEYS_GRADS
    case = replace(
        case,
        grads=tuple(grad for grad in case.grads if grad in grads),
        bias_grad_dtype="float32",
    )
    inputs = cases.make(case)
    problem = sides(case, inputs)[side]
    chosen = backward.choose(problem, place.limits)
    config = backward.adapt(replace(chosen, **settings), problem)
    assert backward.violations(config, place.limits, problem) == ()
    made = statistics(case, inputs)
    results = cases.make_results(case)
    sums = {}
    if problem.sums and side == "keys":
        shape = (case.batch, case.rows, case.heads, padded(case.keys, 128))
        sums["mask_sums"] = lay_out(shape, np.dtype(np.float32))
    elif problem.sums:
        shape = (case.batch, case.heads, padded(case.queries, 128), padded(case.keys, 128))
        chunks = config.chunks_of(problem, groups)
        sums["pair_sums"] = lay_out((chunks, *shape), np.dtype(np.float32))
    first, second = ("dq", "") if side == "queries" else ("dk", "dv")
    fields = {"first_grad": first, "second_grad": second}
    written = {key: results[x] for key, x in fields.items() if x in results} | sums
    read = {
        key: x
        for key, x in (inputs | made).items()
        if key not in ("mask_bias", "out", "lse") and (key != "key_bias" or config.mask)
    }
    views = host_views(read, readonly=True) | host_views(written, readonly=False)
    scale = check_scale(case.scale, case.head_dim)
    values = backward.parameters(config, problem, groups, scale=scale, **views)
    place.load(render(backward.NAME, backward.values(config))).launch(
        config.grid(problem, groups),
        (config.threads, 1, 1),
        config.shared_bytes,
        load_header().kernels[backward.NAME].pack(values),
        buffers=list(views.values()),
    )
    check_guards(case, written)
    found = {key: x.array for key, x in results.items() if not key.endswith("bias")}
    if "mask_sums" in sums:
        found["dmask_bias"] = sums["mask_sums"].array.sum(axis=2)[:, :, None, None, : case.keys]
    elif "pair_sums" in sums:
        every = sums["pair_sums"].array.sum(axis=0)
        found["dpair_bias"] = every[:, None, :, : case.queries, : case.keys]
    cases.check(case, found, inputs)
    return found


# Several tiles of either side with ragged ends, more rows than a threadblock holds.
WIDE = BackwardCase("bf16", 32, 70, 85, 1, 5, 1, mask="f32", pair="bf16", seed=5)
WIDE = replace(WIDE, pair_layout="aligned 16", layout="heads first")
MANY = BackwardCase("f16", 16, 40, 50, 2, 7, 2, mask="bool", pair="f32", grads=QUERIES_GRADS)
TILING: dict[str, Any] = dict(
    block_rows=1,
    warp_rows=1,
    block_stationary=64,
    block_streamed=32,
    chunk_streamed=32,
    m_tiles=2,
    stages=2,
    stationary_in_registers=False,
    min_blocks=1,
)


@pytest.mark.parametrize("layout", GRAD_LAYOUTS)
@pytest.mark.parametrize("side", ["keys", "queries"])
def test_gradients_of_any_strides(side: str, layout: str) -> None:
    case = BackwardCase("f16", 24, 37, 45, 2, 3, 2, mask="f16", pair="f32", grad_layout=layout)
    run(case, side, {})


@pytest.mark.parametrize("groups", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (8, 2)], ids=str)
def test_rows_in_groups_and_chunks(rows: tuple[int, int], groups: int) -> None:
    """7 rows: a last chunk of fewer groups, a last group of fewer rows."""
    block_rows, warp_rows = rows
    settings = TILING | dict(block_rows=block_rows, warp_rows=warp_rows)
    run(MANY, "queries", settings, groups)


@pytest.mark.parametrize("tiles", [1, 3], ids="{} tiles of what is streamed".format)
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("in_registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("side", ["keys", "queries"])
def test_a_group_is_copied_while_the_results_of_another_are_stored(
    side: str, in_registers: bool, stages: int, tiles: int
) -> None:
    """5 rows in chunks of 3 and 2; the results go through the one stage that no copy is for."""
    settings = TILING | dict(stages=stages, stationary_in_registers=in_registers)
    case = replace(WIDE, queries=32 * tiles - 5, keys=32 * tiles - 3)
    run(case, side, settings, groups=3)


@pytest.mark.parametrize("block_rows", [1, 2, 4])
def test_sums_shared_by_warps_over_several_tiles_of_keys(block_rows: int) -> None:
    """More stages and steps than the sums take turns in, and rows n summed over two iterations;
    sums that take turns, and such that wait."""
    case = replace(WIDE, keys=150, grads=("pair_bias",))
    tiling = TILING | dict(block_rows=block_rows, block_stationary=32)
    for steps in (dict(), dict(chunk_streamed=16), dict(block_streamed=64, m_tiles=1)):
        first, second = (
            run(case, "queries", tiling | steps | dict(meeting_buffers=buffers), groups=2)
            for buffers in (1, 2)
        )
        assert_same_bytes(case, "dpair_bias", first["dpair_bias"], second["dpair_bias"])


def test_groups_change_the_sums_only() -> None:
    one, both = (
        run(replace(MANY, grads=("q", "pair_bias")), "queries", TILING, groups) for groups in (1, 7)
    )
    assert_same_bytes(MANY, "dq", one["dq"], both["dq"])


SUBSETS = [
    (side, subset)
    for side, grads in (("keys", KEYS_GRADS), ("queries", QUERIES_GRADS))
    for size in range(1, len(grads) + 1)
    for subset in combinations(grads, size)
]


@pytest.mark.parametrize("head_dim", [32, 72])
@pytest.mark.parametrize(("side", "subset"), SUBSETS, ids=str)
def test_every_set_of_gradients(side: str, subset: tuple[str, ...], head_dim: int) -> None:
    case = replace(WIDE, head_dim=head_dim, queries=40, keys=37, rows=3, pair_layout="packed")
    alone = run(replace(case, grads=subset), side, {})
    assert set(alone) == {"d" + grad for grad in subset}


# -- Configurations --------------------------------------------------------------------------------

BOTH_SIDES: tuple[dict[str, Any], ...] = (
    *(dict(stages=stages) for stages in (2, 3, 4, 5, 6)),
    *(dict(pair_copy_bytes=width) for width in (16, 8, 4, 2)),
    *(
        dict(m_tiles=m_tiles, block_stationary=count)
        for m_tiles in (1, 2)
        for count in (32, 64, 128)
    ),
    dict(m_tiles=2, stationary_in_registers=True),
    dict(m_tiles=1, stationary_in_registers=True, stages=3),
    dict(block_streamed=64, late_copies=True),
    dict(block_streamed=64, chunk_streamed=64, stages=3),
    dict(block_streamed=128, chunk_streamed=64, m_tiles=1),
    dict(chunk_streamed=16),
    dict(block_rows=2),
    dict(block_rows=2, m_tiles=1, pair_copy_bytes=4),
    dict(block_rows=4, block_stationary=32),
    dict(min_blocks=2),
)
SETTINGS = [
    *(("keys", settings) for settings in (*BOTH_SIDES, dict(block_rows=3, block_stationary=128))),
    *(("queries", settings) for settings in BOTH_SIDES),
    *(
        ("queries", settings)
        for settings in (
            dict(block_rows=2, warp_rows=2),
            dict(block_rows=4, warp_rows=2, stages=3),
            dict(block_rows=4, warp_rows=2, meeting_buffers=1),
            dict(block_rows=4, warp_rows=2, m_tiles=1, block_streamed=64),
            dict(block_rows=8, warp_rows=2, m_tiles=1, block_stationary=32),
            dict(block_rows=2, stationary_in_registers=True, stages=4),
            dict(block_rows=4, stationary_in_registers=True, m_tiles=1, block_stationary=32),
        )
    ),
]


@pytest.mark.parametrize(("side", "settings"), SETTINGS, ids=str)
def test_settings_change_what_is_chosen(side: str, settings: dict[str, Any]) -> None:
    place = Recorder("sm_90")
    grads = QUERIES_GRADS if side == "queries" else KEYS_GRADS
    case = replace(WIDE, grads=grads)
    inputs, call = arguments(case)
    wanted = TILING | settings
    found = cuevo.attention_backward(**call, device=place, config={side: wanted})
    cases.check(case, named(found), inputs)
    (config,) = (x.values["config"] for x in place.loaded if x.name == backward.NAME)
    assert isinstance(config, Config)
    assert {field: getattr(config, field) for field in wanted} == wanted


@pytest.mark.parametrize("rows", [(3, 1), (6, 2), (5, 1)], ids=str)
def test_rows_that_nobody_sums(rows: tuple[int, int]) -> None:
    """Without sums over rows any number of warps may share a threadblock."""
    block_rows, warp_rows = rows
    settings = TILING | dict(block_rows=block_rows, warp_rows=warp_rows, block_stationary=32)
    run(replace(WIDE, grads=("q",)), "queries", settings)


@pytest.mark.parametrize(
    ("side", "m_tiles"), [("keys", 2), ("keys", 1), ("queries", 2)], ids=["keys", "16", "queries"]
)
def test_an_fp32_pair_bias_is_read_without_bank_conflicts(side: str, m_tiles: int) -> None:
    place = Profiler("sm_90")
    case = replace(WIDE, pair="f32", rows=2, keys=64, queries=40)
    run(case, side, TILING | dict(block_rows=2, m_tiles=m_tiles), place=place)
    (loaded,) = place.kernels
    read = [use for use in loaded.profile.banks if "lib/bias.ptx" in use.origin]
    assert len(read) >= 8
    assert not [use for use in read if use.conflicts]


# -- A short last tile -----------------------------------------------------------------------------

KEYS_TILING = TILING | dict(block_streamed=64, chunk_streamed=16, stationary_in_registers=True)
ROWS_TILING = TILING | dict(block_rows=4, warp_rows=2)
SHORT: tuple[tuple[str, dict[str, Any], dict[str, Any], int], ...] = (
    ("keys", dict(keys=65), KEYS_TILING | dict(short_rows=2, short_stationary=16), 1),
    (
        "keys",
        dict(keys=138, rows=3, heads=2, batch=2, pair="f32"),
        KEYS_TILING | dict(short_rows=2, short_stationary=16),
        1,
    ),
    (
        "keys",
        dict(keys=85, rows=7, grads=("k", "v")),
        KEYS_TILING | dict(block_rows=2, short_rows=4, short_stationary=32),
        1,
    ),
    ("queries", dict(queries=65), ROWS_TILING | dict(short_rows=4, short_stationary=16), 1),
    (
        "queries",
        dict(queries=150, rows=9, heads=2, pair="f32"),
        ROWS_TILING | dict(short_rows=4, short_stationary=32, meeting_buffers=1),
        2,
    ),
    (
        "queries",
        dict(queries=140, head_dim=64),
        ROWS_TILING | dict(warp_rows=1, short_rows=4, short_stationary=32),
        1,
    ),
    ("queries", dict(grads=("q",)), TILING | dict(short_rows=2, short_stationary=16), 1),
)


@pytest.mark.parametrize(("side", "changes", "settings", "groups"), SHORT, ids=str)
def test_a_short_last_tile(
    side: str, changes: dict[str, Any], settings: dict[str, Any], groups: int
) -> None:
    """Rows that its threadblocks lack, or those numbered beside them; one warp to a row, or two."""
    case = replace(WIDE, pair_layout="packed", **changes)
    run(case, side, settings, groups)


@pytest.mark.parametrize(
    "chunk", [dict(block_streamed=64, chunk_streamed=64), dict(chunk_streamed=32)]
)
def test_a_step_of_a_warp_that_sums_alone(chunk: dict[str, Any]) -> None:
    run(WIDE, "queries", TILING | chunk | dict(m_tiles=1), groups=3)


@pytest.mark.parametrize(
    "pair_layout", ["aligned 16", "aligned 8", "aligned 4", "aligned 2", "packed"]
)
@pytest.mark.parametrize("pair", ["f16", "f32"])
def test_pair_bias_of_every_alignment(pair: str, pair_layout: str) -> None:
    """85 keys: packed rows are as aligned as an element is."""
    case = replace(WIDE, dtype="f16", pair=pair, pair_layout=pair_layout, rows=1, queries=40)
    place = Recorder()
    inputs, call = arguments(case)
    cases.check(case, named(cuevo.attention_backward(**call, device=place)), inputs)
    size = 4 if pair == "f32" else 2
    stated = size if pair_layout == "packed" else int(pair_layout.split()[1])
    configs = [x.values["config"] for x in place.loaded if x.name == backward.NAME]
    assert {config.side for config in configs} == {"keys", "queries"}
    assert {config.pair_copy_bytes for config in configs} == {max(stated, size)}


# -- Bits ------------------------------------------------------------------------------------------

BOTH = BackwardCase("bf16", 24, 70, 85, 2, 3, 2, mask="f32", pair="bf16", shape=0, seed=1)


@pytest.mark.parametrize("case", [BOTH, replace(BOTH, dtype="f16", pair="f16", arch="sm_90")])
def test_twice_the_same_bits(case: BackwardCase) -> None:
    inputs, call = arguments(case)
    config = configurations(case, inputs, architecture(case.arch))
    first, second = (
        named(cuevo.attention_backward(**call, device=f"sim:{case.arch}", config=config))
        for _ in range(2)
    )
    for key, x in first.items():
        assert_same_bytes(case, key, second[key], x)


@pytest.mark.parametrize("settings", [dict(block_rows=4), dict(block_rows=8, warp_rows=2)])
def test_sums_in_chunks_twice_the_same_bits(settings: dict[str, Any]) -> None:
    first, second = (run(MANY, "queries", TILING | settings, groups=1) for _ in range(2))
    for key, x in first.items():
        assert_same_bytes(MANY, key, second[key], x)


def test_how_arrays_lie_in_memory_changes_no_bit() -> None:
    """Only the tiling decides the order of the sums."""
    found = []
    for layout in ("packed", "heads first", "padded", "reversed", "stepped", "fused"):
        case = replace(BOTH, layout=layout, queries=40, keys=40, pair_layout="aligned 16")
        case = replace(case, dout_layout="packed" if layout == "fused" else layout)
        _, call = arguments(case)
        found.append(named(cuevo.attention_backward(**call, device="sim")))
    for other in found[1:]:
        for key, x in found[0].items():
            assert_same_bytes(BOTH, key, other[key], x)
