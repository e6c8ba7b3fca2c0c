"""cuevo.kernels.evoformer_backward_sm80: what may be configured, what is chosen, the parameters."""

from dataclasses import fields, replace
from math import ceil, log2
from typing import Any

import numpy as np
import pytest
from helpers import backward_cases as cases
from helpers.backward_calls import sides
from helpers.backward_cases import BackwardCase
from helpers.guarded import host_views, lay_out

from cuevo.architectures import architecture
from cuevo.kernels import evoformer_backward_sm80 as backward
from cuevo.kernels.backward import Problem, padded
from cuevo.kernels.backward_multistage import groups_of_chunks
from cuevo.kernels.evoformer_backward_sm80 import Config
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

pytestmark = pytest.mark.unit

SM_80, SM_90 = architecture("sm_80"), architecture("sm_90")
ARCHS = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_120")
WANTED = (
    *(dict(side="queries", first=first, sums=sums) for first, sums in ((1, 0), (0, 1), (1, 1))),
    *(
        dict(side="keys", first=first, second=second, sums=sums)
        for first in (0, 1)
        for second in (0, 1)
        for sums in (0, 1)
        if first or second or sums
    ),
)
"""Sets of gradients of either side."""
SIZES = (
    (1, 1, 1, 1, 1),
    (1, 128, 8, 256, 256),
    (2, 5, 3, 77, 131),
    (1, 768, 4, 768, 768),
    (1, 70000, 1, 8, 8),
    (1, 16, 8, 2048, 2048),
    (3, 1, 2, 300, 20),
)
"""B, N, H, Lq, Lk."""


def problems() -> list[Problem]:
    """Every head dim, side, set of gradients and type of the biases, of several sizes."""
    found = []
    for head_dim in range(8, 129, 8):
        for index, wanted in enumerate(WANTED):
            sums = bool(wanted["sums"])
            turn = head_dim // 8 + index
            dtype = ("bf16", "f16")[turn % 2]
            mask = (dtype, "f32")[turn // 2 % 2] if sums else ("none", "bool", dtype)[turn % 3]
            if sums and wanted["side"] == "queries":
                pair = (dtype, "f32")[turn // 2 % 2]
            else:
                pair = ("none", dtype, "f32")[turn // 3 % 3]
            batch, rows, heads, queries, keys = SIZES[turn % len(SIZES)]
            flags = {key: bool(value) for key, value in wanted.items() if key != "side"}
            found.append(
                Problem(
                    batch, rows, heads, queries, keys, head_dim, dtype, mask, pair,
                    (16, 8, 4)[turn % 3] if pair == "f32" else (2, 16, 4, 8)[turn % 4],
                    side=str(wanted["side"]),
                    **flags,
                )
            )  # fmt: skip
    return found


PROBLEMS = problems()
PROBLEM = Problem(1, 4, 2, 100, 128, 32, "bf16", "bf16", "bf16", 16, second=True, sums=True)
BASE = Config(head_dim=32, pair="bf16", mask=True, second=True, sums=True)
QUERIES = replace(BASE, side="queries", second=False)
SUMMED = replace(PROBLEM, side="queries", second=False)


# -- The choice ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_chosen_is_legal(arch: str) -> None:
    limits = architecture(arch)
    for problem in PROBLEMS:
        config = backward.choose(problem, limits)
        assert backward.violations(config, limits, problem) == ()
        groups = config.groups(problem, limits)
        blocks, *others = config.grid(problem, groups)
        assert others == [1, 1]
        assert blocks * groups * config.block_rows * config.block_stationary >= (
            problem.batch * problem.rows * problem.heads * problem.stationary
        )


@pytest.mark.parametrize("arch", ARCHS)
def test_what_gives_a_thread_more_registers_is_legal(arch: str) -> None:
    limits = architecture(arch)
    for problem in PROBLEMS:
        chosen = backward.choose(problem, limits)
        first, *rest = backward.spill_fallbacks(chosen)
        assert first == chosen
        for config in rest:
            assert backward.violations(config, limits, problem) == (), config


def test_every_candidate_renders_and_serves_its_problem() -> None:
    for problem in PROBLEMS[:: len(WANTED) + 1]:
        for config, speed in backward.candidates(problem):
            assert speed > 0
            assert all(
                getattr(config, key) == getattr(problem, key)
                for key in ("head_dim", "dtype", "side", "pair", "first", "second", "sums")
            )
            if not backward.violations(config, SM_90, problem):
                assert (
                    f".maxntid {config.threads}" in render(backward.NAME, {"config": config}).text
                )


def test_large_problems_get_no_smaller_tiles_than_small_ones() -> None:
    for side in ("keys", "queries"):
        stated = replace(PROBLEM, side=side, second=side == "keys")
        small = backward.choose(replace(stated, rows=1, queries=16, keys=16), SM_80)
        large = backward.choose(replace(stated, rows=512, queries=512, keys=512), SM_80)
        assert (
            small.block_rows * small.block_stationary <= large.block_rows * large.block_stationary
        )


@pytest.mark.parametrize("pair", ["bf16", "f32"])
@pytest.mark.parametrize("length", [705, 768, 769])
def test_two_threadblocks_share_a_multiprocessor(length: int, pair: str) -> None:
    """Of the queries' side, at any length, whatever the type of the pair bias."""
    sizes = (1, 384, 4, length, length, 32, "bf16", "f32", pair)
    problem = Problem(*sizes, side="queries", sums=True)
    config = backward.choose(problem, SM_90)
    assert (config.block_rows, config.resident(SM_90)) == (4, 2)


@pytest.mark.parametrize("length", [705, 768])
@pytest.mark.parametrize("head_dim", range(8, 72, 8))
def test_an_fp32_pair_bias_costs_no_positions_of_a_warp(head_dim: int, length: int) -> None:
    """On the keys' side, where more threads have to copy it than a 16-bit one."""
    sizes = (1, 384, 4, length, length, head_dim, "bf16", "f32")
    problems = [Problem(*sizes, pair, second=True, sums=True) for pair in ("bf16", "f32")]
    narrow, wide = (backward.choose(problem, SM_90) for problem in problems)
    assert wide.m_tiles == narrow.m_tiles == 2


def test_where_nothing_is_legal_every_objection_is_named() -> None:
    with pytest.raises(ValueError, match=r"has no configuration for Problem\(") as caught:
        backward.choose(PROBLEM, architecture("sm_75"))
    objections = str(caught.value).split("\n")[1:]
    assert len(objections) == len({config for config, _ in backward.candidates(PROBLEM)})
    assert all("need sm_80; this is sm_75" in line for line in objections)


# -- Rows N in groups and chunks -------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_chunks_hold_every_row_and_their_sums_are_no_larger_than_q(arch: str) -> None:
    limits = architecture(arch)
    for problem in PROBLEMS:
        config = backward.choose(problem, limits)
        groups = config.groups(problem, limits)
        chunks = config.chunks_of(problem, groups)
        row_groups = config.row_groups(problem)
        assert row_groups == ceil(problem.rows / config.block_rows)
        assert (chunks - 1) * groups < row_groups <= chunks * groups
        if not config.sums_rows:
            assert groups == 1
            continue
        sums = 4 * problem.heads * padded(problem.queries, 128) * padded(problem.keys, 128)
        q = 2 * problem.rows * problem.queries * problem.heads * problem.head_dim
        assert chunks <= 2 or chunks * sums <= q


def test_every_size_of_chunks_is_offered_once() -> None:
    for row_groups in (*range(1, 200), 1009, 4096):
        for most in {1, min(2, row_groups), ceil(row_groups / 3), row_groups}:
            sizes = [ceil(row_groups / chunks) for chunks in range(1, most + 1)]
            assert [*groups_of_chunks(row_groups, most)] == [*dict.fromkeys(sizes)]
    assert len([*groups_of_chunks(2**24, 2**24)]) < 2**13


@pytest.mark.parametrize(
    ("side", "stationary", "streamed"), [("keys", 128, 100), ("queries", 100, 128)], ids=str
)
def test_either_side(side: str, stationary: int, streamed: int) -> None:
    problem = replace(PROBLEM, side=side)
    assert (problem.stationary, problem.streamed) == (stationary, streamed)
    config = replace(BASE, side=side, block_stationary=32, block_streamed=64)
    assert config.pair_tile and config.pair_tile.chunks == (4 if side == "keys" else 8)
    assert config.grid(problem, groups=2) == (4 * 2 * 2, 1, 1)


# -- A short last tile -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "positions", "short", "extents"),
    [
        *[
            ("keys", 64, (0, 0), (1, 5)),
            ("keys", 65, (0, 0), (2, 5)),
            ("keys", 65, (2, 16), (3, 3)),
        ],
        *[("keys", 150, (2, 32), (5, 3)), ("queries", 150, (4, 32), (3, 2))],
    ],
)
def test_where_the_threadblocks_of_a_short_last_tile_are(
    side: str, positions: int, short: tuple[int, int], extents: tuple[int, int]
) -> None:
    """Of five rows: two chunks of one row are numbered together, their tiles and the short one;
    sums over four rows are those of four rows in the short one, too.
    """
    base = BASE if side == "keys" else replace(QUERIES, block_rows=4, warp_rows=2)
    config = replace(base, short_rows=short[0], short_stationary=short[1])
    problem = replace(PROBLEM, rows=5, side=side, keys=positions, queries=positions)
    assert config.extents(problem, 1) == extents
    assert config.grid(problem, 1) == (extents[0] * 2 * extents[1], 1, 1)
    assert config.bodies[-1].threads == config.threads


@pytest.mark.parametrize(
    ("side", "rows", "length", "short"),
    [
        *[("keys", 384, 705, (2, 16)), ("keys", 384, 721, (2, 32)), ("keys", 384, 737, (0, 0))],
        *[("queries", 384, 705, (4, 16)), ("queries", 384, 736, (4, 32)), ("keys", 1, 705, (0, 0))],
        *[("queries", 384, 737, (0, 0)), ("queries", 384, 768, (0, 0)), ("keys", 384, 33, (0, 0))],
    ],
)
def test_the_choice_of_a_short_last_tile(
    side: str, rows: int, length: int, short: tuple[int, int]
) -> None:
    """Where the last tile has at most half of the positions, and there is more than a wave."""
    problem = Problem(
        1, rows, 4, length, length, 32, "bf16", "bf16", "bf16", side=side, sums=True,
        second=side == "keys",
    )  # fmt: skip
    config = backward.choose(problem, SM_90)
    assert (config.short_rows, config.short_stationary) == short
    first, second, *_, last = backward.spill_fallbacks(config)
    assert first == config
    assert (second.short_stationary, last.short_stationary, last.min_blocks) == (0, 0, 1)


# -- The constraints -------------------------------------------------------------------------------


def test_the_bases_are_legal() -> None:
    assert backward.violations(BASE, SM_80, PROBLEM) == ()
    assert backward.violations(QUERIES, SM_80, SUMMED) == ()


@pytest.mark.parametrize(
    ("base", "changes", "arch", "reason"),
    [
        (BASE, dict(stages=2), "sm_75", "need sm_80; this is sm_75"),
        (BASE, dict(head_dim=36), "sm_80", "multiple of 8 from 8 to 128, not 36"),
        (BASE, dict(head_dim=0), "sm_80", "head_dim must be"),
        (BASE, dict(head_dim=136), "sm_80", "head_dim must be"),
        (BASE, dict(dtype="f32"), "sm_80", "dtype must be f16 or bf16, not 'f32'"),
        (BASE, dict(side="rows"), "sm_80", "side must be keys or queries, not 'rows'"),
        (BASE, dict(pair="bool"), "sm_80", "pair must be none, f16, bf16 or f32, not 'bool'"),
        (QUERIES, dict(second=True), "sm_80", "a side gives first or sums, the keys second too"),
        (BASE, dict(first=False, second=False, sums=False), "sm_80", "at least one of them"),
        (
            BASE,
            dict(m_tiles=3),
            "sm_80",
            "a warp has 16 or 32 stationary positions (m_tiles 1 or 2)",
        ),
        (BASE, dict(m_tiles=0), "sm_80", "m_tiles 1 or 2"),
        (BASE, dict(block_stationary=96), "sm_80", "16, 32, 64 or 128; got 32, 96"),
        (BASE, dict(block_streamed=48), "sm_80", "block_streamed must be 32, 64 or 128, not 48"),
        (BASE, dict(chunk_streamed=64), "sm_80", "multiple of 16 that divides block_streamed"),
        (BASE, dict(chunk_streamed=0), "sm_80", "multiple of 16 that divides block_streamed"),
        (BASE, dict(head_dim=24, chunk_streamed=16), "sm_80", "multiple of 32 that divides"),
        (BASE, dict(block_rows=0), "sm_80", "block_rows = 0 is no multiple of warp_rows = 1"),
        (QUERIES, dict(warp_rows=0), "sm_80", "is no multiple of warp_rows = 0"),
        (QUERIES, dict(block_rows=3, warp_rows=2), "sm_80", "block_rows = 3 is no multiple"),
        (BASE, dict(block_rows=2, warp_rows=2), "sm_80", "warp_rows > 1 is for queries"),
        (QUERIES, dict(block_rows=3), "sm_90", "shared by 1, 2 or 4 groups of warps"),
        (
            QUERIES,
            dict(block_rows=2, block_streamed=64, chunk_streamed=64),
            "sm_90",
            "shared by 1, 2 or 4 groups of warps",
        ),
        (BASE, dict(block_rows=17), "sm_90", "1088 threads; a threadblock has 32 to 1024"),
        (BASE, dict(meeting_buffers=3), "sm_80", "meeting_buffers must be 1 or 2, not 3"),
        (BASE, dict(stages=1), "sm_80", "stages must be 2 to 6, not 1"),
        (BASE, dict(stages=7), "sm_90", "stages must be 2 to 6, not 7"),
        (
            BASE,
            dict(head_dim=40, block_stationary=32, pair="none"),
            "sm_80",
            "32 threads copy fewer than the 8 rows of 5 chunks",
        ),
        (BASE, dict(block_stationary=16), "sm_80", "16, 32, 64 or 128; got 32, 16"),
        (BASE, dict(late_copies=True), "sm_80", "late_copies needs two steps, or two rows"),
        (BASE, dict(pair_copy_bytes=3), "sm_80", "pair_copy_bytes must be 16, 8, 4 or 2"),
        (BASE, dict(pair="f32", pair_copy_bytes=2), "sm_80", "at least one element; got 2"),
        (
            BASE,
            dict(pair="f32"),
            "sm_80",
            "64 threads copy fewer than the 8 rows of pair bias that keep",
        ),
        (BASE, dict(short_stationary=32), "sm_80", "a multiple of block_rows = 1 that divides"),
        (BASE, dict(short_stationary=32, short_rows=3), "sm_80", "the 2 warps, not 3"),
        (
            BASE,
            dict(short_stationary=16, short_rows=1),
            "sm_80",
            "a multiple of 32 (2 warps to a row) below block_stationary = 64, not 16",
        ),
        (BASE, dict(short_stationary=64, short_rows=2), "sm_80", "block_stationary = 64, not 64"),
        (
            replace(QUERIES, block_rows=2),
            dict(short_stationary=32, short_rows=4),
            "sm_80",
            "sums are of block_rows = 2 rows in the short last tile, too",
        ),
        (
            BASE,
            dict(head_dim=40, short_stationary=32, short_rows=2),
            "sm_80",
            "short last tile: 32 threads copy fewer than the 8 rows of 5 chunks",
        ),
        (
            BASE,
            dict(block_streamed=64, stages=4, min_blocks=2, short_stationary=32, short_rows=2),
            "sm_80",
            "so that fewer than 2 threadblocks fit",
        ),
        (BASE, dict(min_blocks=0), "sm_80", "0 blocks of 64 threads do not fit"),
        (BASE, dict(min_blocks=33), "sm_80", "33 blocks of 64 threads do not fit"),
        (
            BASE,
            dict(head_dim=64, block_streamed=128, stages=6),
            "sm_80",
            "bytes of shared memory; a block of sm_80 has 166912",
        ),
    ],
)
def test_each_constraint(base: Config, changes: dict[str, Any], arch: str, reason: str) -> None:
    found = backward.violations(replace(base, **changes), architecture(arch))
    others = [each for each in found if reason not in each]
    assert len(found) == len(others) + 1
    # Larger tiles may want more threads or shared memory than there are, besides.
    assert all("threads" in each or "shared memory" in each for each in others), found


@pytest.mark.parametrize(
    ("config", "problem", "reason"),
    [
        *(
            (dict(), {field: value}, f"is an instance for another {field}: {getattr(BASE, field)}")
            for field, value in (
                ("head_dim", 40),
                ("dtype", "f16"),
                ("pair", "f32"),
                ("first", False),
                ("second", False),
                ("sums", False),
            )
        ),
        (dict(mask=False), dict(), "needs mask: there is one"),
        (
            dict(side="queries", second=False, mask=False),
            dict(side="queries", second=False, mask="none", keys=100),
            "or keys end within a streamed tile",
        ),
        (dict(), dict(pair_alignment=4), "copies pair_bias by 16 bytes; its rows are aligned to 4"),
    ],
)
def test_each_constraint_of_a_problem(
    config: dict[str, Any], problem: dict[str, Any], reason: str
) -> None:
    (found,) = backward.violations(replace(BASE, **config), SM_80, replace(PROBLEM, **problem))
    assert reason in found


def test_an_instance_for_the_other_side() -> None:
    config, problem = replace(QUERIES), replace(PROBLEM, second=False)
    assert backward.violations(config, SM_80, problem) == (
        "is an instance for another side: queries",
    )


@pytest.mark.parametrize("field", [field.name for field in fields(Config)])
def test_the_type_of_a_field(field: str) -> None:
    with pytest.raises(TypeError, match=f"^{field}: expected "):
        replace(BASE, **{field: 1.5})


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (dict(), dict()),
        (dict(head_dim=64, dtype="f16", mask="bool"), dict(head_dim=64, dtype="f16")),
        (dict(mask="none"), dict(mask=False)),
        (dict(mask="none", keys=100), dict(mask=False)),
        (
            dict(side="queries", second=False, mask="none", keys=100),
            dict(side="queries", second=False, mask=True),
        ),
        (dict(sums=False, first=False), dict(sums=False, first=False)),
        (dict(pair="bf16", pair_alignment=8), dict(pair_copy_bytes=8)),
        (dict(pair="none", pair_alignment=2), dict(pair="none", pair_copy_bytes=16)),
    ],
)
def test_a_configuration_is_adapted_to_a_problem(
    problem: dict[str, Any], expected: dict[str, Any]
) -> None:
    stated = replace(PROBLEM, **problem)
    adapted = backward.adapt(BASE, stated)
    assert adapted == replace(BASE, **expected)
    assert backward.violations(adapted, SM_80, stated) == ()


def test_narrower_copies_than_the_alignment_allows_are_kept() -> None:
    assert backward.adapt(replace(BASE, pair_copy_bytes=4), PROBLEM).pair_copy_bytes == 4


# -- The parameter block ---------------------------------------------------------------------------

CASE = BackwardCase("bf16", 32, 70, 133, 2, 3, 2, mask="f32", pair="bf16", scale=-0.5)


@pytest.mark.parametrize("side", ["keys", "queries"])
def test_the_parameter_block_is_that_of_the_header(side: str) -> None:
    case = replace(CASE, layout="heads first", dout_layout="padded", grad_layout="stepped")
    inputs = cases.make(case)
    problem = sides(case, inputs)[side]
    config = backward.adapt(replace(BASE, block_stationary=32, block_rows=2), problem)
    results = cases.make_results(case)
    single = np.dtype(np.float32)
    workspace = {
        "stats": lay_out((2, 3, 2, 8, 48), single),
        "key_bias": lay_out((2, 3, 256), single),
        "mask_sums": lay_out((2, 3, 2, 256), single),
        "pair_sums": lay_out((2, 2, 2, 128, 256), single),
    }
    kept = {key: x for key, x in inputs.items() if key not in ("mask_bias", "out", "lse")}
    grads = ("dk", "dv") if side == "keys" else ("dq",)
    names = ("first_grad", "second_grad")
    written = {name: results[grad] for name, grad in zip(names, grads, strict=False)}
    views = host_views(kept | workspace | written, readonly=False)
    found = backward.parameters(config, problem, 1, scale=-0.5, **views)
    struct = load_header().kernels[backward.NAME]
    assert set(found) == {field.name for field in struct.fields}
    for name in ("q", "k", "v", "dout", "pair_bias", *workspace, *written):
        assert found[name] == views[name].pointer
    for array, axis in (
        *(("q", "query"), ("k", "key"), ("v", "key"), ("dout", "query")),
        *((name, "position") for name in written),
    ):
        named = [found[f"{array}_stride_{x}"] for x in ("batch", "row", axis, "head")]
        assert named == list(views[array].strides[:4])
    if side == "queries":
        assert [value for name, value in found.items() if name.startswith("second_grad")] == [0] * 5
    streamed = ("q", "dout") if side == "keys" else ("k", "v")
    for name, array in zip(("first", "second"), streamed, strict=True):
        step = views[array].strides[2]
        assert found[f"{name}_step_pass"] == config.pass_rows * step
        assert found[f"{name}_step_tile"] == config.block_streamed * step
    assert found["pair_stride_query"] == 133 * 2
    assert found["pair_step_tile"] == config.block_streamed * 133 * 2
    assert found["pair_step_pass"] == config.pair_pass_rows * 133 * 2
    extents = ("batches", "rows", "heads", "queries", "keys", "query_positions", "key_positions")
    assert [found[name] for name in extents] == [2, 3, 2, 70, 133, 128, 256]
    assert found["pair_keys"] == 133
    padded_rows = replace(problem, pair_padded=True)
    assert backward.parameters(config, padded_rows, 1, scale=1, **views)["pair_keys"] == 136
    tiles, whole = (5, 2) if side == "keys" else (3, 4)
    names = ("stationary_tiles", "groups", "longer_chunks", "chunks", "whole_tiles")
    assert [found[x] for x in names] == [tiles, 1, 0, 2, whole]
    assert found["score_scale"] == pytest.approx(0.5 * log2(np.e))
    assert (found["bias_scale"], found["gradient_scale"]) == (2.0, -0.5)
    assert found["q_multiplier"] == 0xBF80BF80


@pytest.mark.parametrize(
    ("rows", "groups", "expected"), [(7, 1, (1, 0, 7)), (7, 3, (2, 1, 3)), (8, 3, (2, 2, 3))]
)
def test_chunks_differ_by_one_group_at_most(
    rows: int, groups: int, expected: tuple[int, int, int]
) -> None:
    case = replace(CASE, rows=rows)
    inputs = cases.make(case)
    problem = sides(case, inputs)["queries"]
    views = host_views({key: inputs[key] for key in ("q", "k", "v", "dout")}, readonly=True)
    found = backward.parameters(backward.adapt(QUERIES, problem), problem, groups, scale=1, **views)
    each, longer, chunks = (found[x] for x in ("groups", "longer_chunks", "chunks"))
    assert (each, longer, chunks) == expected
    assert each * chunks + longer == rows


def test_what_is_absent_is_null() -> None:
    case = replace(CASE, mask="none", pair="none", grads=("v",), scale=0.0)
    inputs = cases.make(case)
    problem = sides(case, inputs)["keys"]
    config = backward.adapt(BASE, problem)
    views = host_views({key: inputs[key] for key in ("q", "k", "v", "dout")}, readonly=True)
    found = backward.parameters(config, problem, 1, scale=0.0, **views)
    absent = ("pair_bias", "stats", "key_bias", "first_grad", "mask_sums", "pair_sums")
    assert [found[name] for name in absent] == [0] * len(absent)
    assert [value for name, value in found.items() if name.startswith("pair_st")] == [0] * 5
    assert (found["q_multiplier"], found["gradient_scale"], found["bias_scale"]) == (0, 0.0, 1.0)
