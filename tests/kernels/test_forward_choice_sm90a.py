"""What is chosen of ptx/evoformer_forward_sm90a.ptx for a problem, what cannot be, and how works
are shared out.
"""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cuevo
from cuevo.architectures import architecture
from cuevo.kernels import evoformer_forward_sm90a as kernel_90a
from cuevo.kernels.evoformer_forward_sm90a import Config
from cuevo.kernels.forward import Problem
from cuevo.ops.attention_problem import state_problem
from cuevo.ops.dispatch import dispatch
from cuevo.ops.forward import VARIANTS

pytestmark = pytest.mark.unit

SM_90A = architecture("sm_90a")
PROBLEM = Problem(1, 4, 2, 100, 77, 32, "bf16", "f32", "bf16")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (dict(mapped=False), "a tensor map steps forward"),
        (dict(scaled=False), "taken as 0"),
        (dict(head_dim=72), "head_dim must be"),
    ],
    ids=str,
)
def test_what_it_does_not_serve(changes: dict[str, Any], why: str) -> None:
    problem = replace(PROBLEM, **changes)
    config = replace(next(kernel_90a.candidates(problem))[0], head_dim=problem.head_dim)
    assert any(why in each for each in kernel_90a.violations(config, SM_90A, problem))
    with pytest.raises(ValueError, match=why):
        kernel_90a.choose(problem, SM_90A)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (dict(producer="nobody"), "producer must be warp or consumer, not 'nobody'"),
        (dict(pair="none", mask="bounds"), "there is a pair bias"),
        (dict(mask="bounds"), "there is a pair bias"),
        (dict(cluster=2), "cluster is 1"),
        (dict(continues=False), "continues True"),
        (dict(stages=2), "stages are 3 or more"),
        (dict(stages=3, block_rows=4), "no fewer than warpgroups"),
        (dict(stages=4, block_rows=4, late_pair=True), "no fewer than warpgroups"),
        (dict(stages=3, late_pair=True), "4 stages or more"),
    ],
    ids=str,
)
def test_what_consumers_that_ask_for_boxes_need(changes: dict[str, Any], why: str) -> None:
    config = Config(32, block_rows=2, mask="bf16", producer="consumer", continues=True)
    assert not kernel_90a.violations(config, SM_90A)
    (found,) = kernel_90a.violations(replace(config, **changes), SM_90A)
    assert why in found


def test_consumers_that_ask_are_chosen_by_rows_and_keys() -> None:
    problem = Problem(1, 16, 8, 2048, 2048, 32, "bf16", "bf16", "bf16")
    for rows, keys, head_dim, asking in (
        (16, 2048, 32, True),
        (768, 768, 16, True),
        (768, 768, 32, True),
        (33, 512, 32, False),  # eleven groups of three
        (2048, 2048, 32, True),  # in the place of clusters
        (256, 256, 32, True),
        (256, 192, 32, False),  # works of six stages
        (16, 2048, 24, True),
        (48, 768, 40, True),
        (48, 768, 48, True),
        (300, 768, 48, True),  # with tiles
        (16, 2048, 56, True),
        (16, 2048, 64, True),
        (512, 512, 64, False),
        (384, 769, 32, True),  # with a last tile of 64 queries
        (300, 301, 16, True),
    ):
        case = replace(problem, rows=rows, queries=keys, keys=keys, head_dim=head_dim)
        for dtype in ("bf16", "f16"):
            kinds = dict(dtype=dtype, mask=dtype, pair=dtype)
            in_f16 = dtype == "f16" and (0 < keys % 128 <= 64 or head_dim > 48)
            chosen = kernel_90a.choose(replace(case, **kinds), SM_90A)
            assert chosen.consumers_ask is (asking and not in_f16)
    few = replace(problem, keys=90)
    asking = next(config for config, _ in kernel_90a.candidates(few) if config.consumers_ask)
    (why,) = kernel_90a.violations(asking, SM_90A, few)
    assert "90 keys are fewer than 4 tiles of 32" in why
    few = replace(problem, keys=190, queries=150)
    (why,) = kernel_90a.violations(asking, SM_90A, replace(few, keys=150))
    assert "150 keys are fewer than 6 tiles of 32" in why  # for a last tile of 22 queries
    assert not kernel_90a.violations(asking, SM_90A, few)


def test_a_last_tile_of_few_keys_has_a_producer_at_head_dim_40() -> None:
    problem = Problem(1, 300, 4, 301, 301, 40, "bf16", "bf16", "bf16", pair_mapped=False)
    for changes, asking in (
        (dict(), False),
        (dict(queries=384, keys=384), True),
        (dict(queries=769, keys=769), True),
        (dict(head_dim=48), True),
    ):
        chosen = kernel_90a.choose(replace(problem, **changes), SM_90A)  # type: ignore[arg-type]
        assert chosen.consumers_ask is asking, changes


def test_warpgroups_share_a_row_above_head_dim_48() -> None:
    problem = Problem(1, 8, 16, 768, 768, 64, "bf16", "bf16", "bf16", power_of_two=True)
    for changes, shared in (
        (dict(), True),
        (dict(rows=512, heads=4), True),
        (dict(rows=512, heads=4, power_of_two=False), False),  # level, with tiles
        (dict(power_of_two=False), True),
        (dict(head_dim=56), True),
        (dict(head_dim=48), False),
        (dict(dtype="f16", pair="f16"), False),
        (dict(pair="f32"), False),
        (dict(pair_mapped=False), False),
        (dict(keys=128), False),
        (dict(rows=1), False),
        (dict(rows=2, keys=512, queries=512), False),  # a second launch, for the mask
        (dict(rows=2, keys=512, queries=512, mask="none"), True),
    ):
        chosen = kernel_90a.choose(replace(problem, **changes), SM_90A)  # type: ignore[arg-type]
        shares = chosen.row_warpgroups == 2 and not chosen.shares_pair
        assert shares is shared, changes
        scaled = chosen.converts and changes.get("power_of_two", True) and chosen.dtype == "bf16"
        assert chosen.scales_q is scaled, changes


def test_warpgroups_have_two_rows_where_these_share_a_pair_bias() -> None:
    """Where it is converted, and of tiles with a mask and many keys at D 32."""
    problem = Problem(1, 16, 8, 2048, 2048, 32, "bf16", "bf16", "bf16")
    for changes, shares in (
        (dict(), True),
        (dict(mask="none"), True),
        (dict(head_dim=16), True),
        (dict(head_dim=24), True),
        (dict(rows=48, heads=16, queries=768, keys=768, head_dim=24), True),
        (dict(rows=48, heads=16, queries=768, keys=768, head_dim=48), True),
        (dict(rows=48, heads=16, queries=768, keys=768, head_dim=40, mask="none"), True),
        (dict(rows=48, heads=16, queries=1024, keys=1024, head_dim=48), False),
        (dict(rows=768, heads=4, queries=768, keys=768, head_dim=48), False),  # with tiles
        (dict(power_of_two=True), True),
        (dict(dtype="f16", pair="f16", head_dim=24), False),
        (dict(pair="f32"), True),
        (dict(pair="f32", mask="none"), False),
        (dict(head_dim=40), False),
        (dict(rows=256), True),
        (dict(rows=256, head_dim=24), False),
        (dict(rows=256, keys=384, queries=384), True),
        (dict(rows=256, keys=384, queries=384, mask="none"), False),
        (dict(rows=256, keys=256, queries=256), False),
        (dict(rows=768, heads=4, queries=769, keys=769, pair_mapped=False), True),
        (dict(keys=150, queries=150), False),  # too few for consumers that ask
    ):
        chosen = kernel_90a.choose(replace(problem, **changes), SM_90A)  # type: ignore[arg-type]
        assert chosen.shares_pair is shares, changes


def test_a_pair_bias_is_packed_where_converting_it_is_worth_the_copy() -> None:
    scores = dict(rows=256, heads=4, queries=381, keys=381)
    problem = Problem(1, head_dim=64, dtype="bf16", mask="bf16", pair="bf16", **scores)  # type: ignore[arg-type]
    problem = replace(problem, power_of_two=True, pair_mapped=False)
    for changes, packed in (
        (dict(), True),
        (dict(mask="bool", pair="f16"), True),
        (dict(mask="none"), False),
        (dict(pair_mapped=True), False),  # as it is
        (dict(power_of_two=False), False),  # level, with tiles
        (dict(head_dim=56), False),
        (dict(head_dim=32), False),
        (dict(pair="f32"), False),
        (dict(pair="none"), False),
        (dict(dtype="f16", pair="f16"), False),
        (dict(rows=128), False),  # short
    ):
        assert kernel_90a.prefers_packed(replace(problem, **changes)) is packed, changes  # type: ignore[arg-type]


def test_a_late_pair_bias_is_for_works_that_are_not_long() -> None:
    problem = Problem(1, 256, 4, 256, 256, 32, "bf16", "bf16", "bf16")
    for head_dim, keys, mask, late in (
        (32, 224, "bf16", True),
        (32, 256, "bf16", True),
        (32, 384, "bf16", False),  # for two rows a warpgroup
        (32, 384, "none", True),
        (32, 768, "none", False),
        (24, 256, "bf16", True),
        (24, 384, "bf16", False),
        (16, 256, "bf16", False),
    ):
        case = replace(problem, head_dim=head_dim, queries=keys, keys=keys, mask=mask)
        assert kernel_90a.choose(case, SM_90A).late_pair is late
    # At 24 wherever four rows that ask are chosen, and tiles.
    case = replace(problem, rows=64, heads=16, queries=768, keys=768, head_dim=24, pair="f32")
    for each in (case, replace(case, rows=768, heads=4, dtype="f16", pair="f16")):
        assert kernel_90a.choose(each, SM_90A).late_pair


def test_three_rows_share_a_producer_at_head_dim_24() -> None:
    """Alone where they leave fewer multiprocessors idle, else in clusters of two."""
    problem = Problem(1, 768, 4, 768, 768, 24, "bf16", "bf16", "bf16")
    for changes, cluster in (
        (dict(), 2),
        (dict(rows=96, heads=16, pair="f32"), 1),
        (dict(rows=300, queries=301, keys=301, pair_mapped=False), 1),
    ):
        chosen = kernel_90a.choose(replace(problem, **changes), SM_90A)  # type: ignore[arg-type]
        assert (chosen.block_rows, chosen.cluster, chosen.producer) == (3, cluster, "warp")


@pytest.mark.parametrize(
    ("changes", "converts"),
    [
        (dict(), True),
        (dict(rows=1), True),
        (dict(rows=24, keys=1024, queries=1024), True),
        (dict(rows=24, keys=1024, queries=1024, mask="none"), True),
        (dict(rows=12, keys=512, queries=512), True),  # by three rows with a producer
        (dict(rows=60), False),  # tiles cost less than they spare
        (dict(rows=48, head_dim=48, keys=768), True),
        (dict(rows=100, head_dim=48), True),  # by three rows, which share it
        (dict(rows=300, head_dim=48), False),
        (dict(rows=300, head_dim=48, mask="none"), False),
        (dict(rows=48, head_dim=48, keys=768, mask="none"), True),
        (dict(rows=300, head_dim=48, pair_mapped=False), False),
        (dict(rows=300, head_dim=24), False),
        (dict(pair="f32"), False),
        (dict(pair="none"), False),
        (dict(pair_mapped=False), False),
        (dict(head_dim=48, dtype="f16", mask="f16", pair="f16"), True),
        (dict(rows=8, dtype="f16", mask="f16", pair="f16"), False),  # it would spill
        (dict(mask="none", keys=2056), False),  # nothing says where keys end, and consumers ask
        (dict(mask="none", keys=2056, head_dim=64), True),
        (dict(keys=2056), True),
    ],
    ids=str,
)
def test_the_pair_bias_is_converted_where_rows_are_few(
    changes: dict[str, Any], converts: bool
) -> None:
    problem = Problem(1, 16, 8, 2048, 2048, 32, "bf16", "bf16", "bf16")
    chosen = kernel_90a.choose(replace(problem, **changes), SM_90A)
    assert chosen.converts is converts
    assert chosen.cluster == 1 or not converts


@pytest.mark.parametrize("head_dim", range(8, 72, 8))
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_what_is_tried_where_a_kernel_spills_is_legal(head_dim: int, dtype: str) -> None:
    for mask, pair, keys in itertools.product(
        ("none", dtype, "f32"), ("none", dtype, "f32"), (1024, 1025)
    ):
        problem = Problem(1, 48, 4, keys, keys, head_dim, dtype, mask, pair)
        for config, _ in kernel_90a.candidates(problem):
            if kernel_90a.violations(config, SM_90A, problem):
                continue
            for sums in (config.sums, "added"):  # of a log-sum-exp, the latter
                first = kernel_90a.adapt(replace(config, sums=sums), problem)
                for each in kernel_90a.spill_fallbacks(first):
                    assert not kernel_90a.violations(each, SM_90A, problem)


@pytest.mark.parametrize(
    ("changes", "rows", "tiles", "blocks"),
    [
        (dict(), 1, 2, 2),
        (dict(queries=1024, keys=1024), 1, 1, 2),  # two tiles would leave half without a work
        (dict(queries=1024, keys=1024, head_dim=32), 1, 1, 2),
        (dict(queries=300, keys=1000, heads=8), 1, 1, 2),
        (dict(rows=6), 2, 2, 1),  # of 192 queries
        (dict(rows=16, head_dim=32), 4, 2, 1),
        (dict(pair="f32"), 2, 2, 1),
        (dict(pair_mapped=False), 2, 2, 1),
    ],
    ids=str,
)
def test_one_row_has_small_threadblocks(
    changes: dict[str, Any], rows: int, tiles: int, blocks: int
) -> None:
    problem = replace(Problem(1, 1, 16, 2048, 2048, 48, "bf16", "bf16", "bf16"), **changes)
    chosen = kernel_90a.choose(problem, SM_90A)
    assert (chosen.block_rows, chosen.m_tiles, chosen.min_blocks) == (rows, tiles, blocks)


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        (dict(), True),
        (dict(queries=256, keys=256), True),
        (dict(queries=255, keys=256), False),
        (dict(queries=1024, keys=248), False),
        (dict(pair="f32"), False),
        (dict(pair_mapped=False), False),
        (dict(pair="none"), False),
        (dict(rows=7), True),
        (dict(dtype="f16", mask="f16", pair="f16"), False),  # it would spill
        (dict(head_dim=16, dtype="f16", mask="f16", pair="f16"), True),
        (dict(rows=9, queries=256), False),
        (dict(rows=9, queries=256, head_dim=48), True),
        (dict(rows=9, queries=224, head_dim=48), False),
    ],
    ids=str,
)
def test_a_short_call_of_few_rows_runs_unasked_where_no_tiles_are_made(
    changes: dict[str, Any], runs: bool
) -> None:
    problem = replace(Problem(1, 1, 16, 512, 512, 32, "bf16", "bf16", "bf16"), **changes)
    assert kernel_90a.prefers_lower_variant(problem, SM_90A) is not runs


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        (dict(), True),
        (dict(head_dim=64, dtype="f16"), True),
        (dict(head_dim=8), True),
        (dict(head_dim=72), False),
        (dict(queries=200), True),
        (dict(queries=130), False),
        (dict(pair="none"), True),
        (dict(pair="none", queries=321), True),
        (dict(pair="none", queries=257), False),
        (dict(pair="none", mask="none"), True),
        (dict(pair="none", rows=1, queries=8192), False),
        (dict(rows=1, queries=8192), True),
        (dict(rows=32), False),
        (dict(rows=32, pair_mapped=False), True),
        (dict(rows=28, pair_mapped=False), False),
        (dict(rows=32, pair="f32", pair_mapped=False), False),
        (dict(mapped=False), False),
    ],
    ids=str,
)
def test_it_runs_unasked_where_it_is_measured_to_be_faster(
    changes: dict[str, Any], runs: bool
) -> None:
    large = Problem(1, 384, 4, 384, 384, 32, "bf16", "bf16", "bf16")
    for arch, can in (("sm_90a", True), ("sm_100", False)):
        chosen = dispatch(VARIANTS, replace(large, **changes), architecture(arch))
        assert (chosen is kernel_90a) is (runs and can)


@pytest.mark.parametrize(
    ("queries", "expected"),
    [
        (64, [(2, 0, 64)]),
        (256, [(2, 0, 256)]),
        (257, [(2, 0, 256), (1, 256, 1)]),
        (321, [(2, 0, 321)]),
    ],
)
def test_a_short_last_tile_has_a_launch_of_its_own(
    queries: int, expected: list[tuple[int, int, int]]
) -> None:
    parts = list(kernel_90a.parts(Config(32), replace(PROBLEM, queries=queries)))
    assert [(x.config.m_tiles, x.first_query, x.problem.queries) for x in parts] == expected
    assert all(kernel_90a.violations(x.config, SM_90A) == () for x in parts)


@pytest.mark.parametrize(
    ("rows", "length", "head_dim", "expected"),
    [
        (384, 769, 32, [120, 12]),  # 13 are as good by count
        (769, 769, 32, [120, 12]),
        (1024, 1025, 32, [123, 9]),
        (300, 301, 32, [100, 32]),
        (512, 520, 64, [111, 21]),
        (66, 400, 32, [132, 132]),  # two whole rounds and one are as short
        (256, 520, 24, [132, 132]),  # rows of k and v are no whole sectors
        (256, 384, 32, [132]),
    ],
)
def test_a_last_tile_has_some_of_the_multiprocessors(
    rows: int, length: int, head_dim: int, expected: list[int]
) -> None:
    problem = Problem(1, rows, 4, length, length, head_dim, "bf16", "bf16", "bf16")
    config = kernel_90a.choose(problem, SM_90A)
    parts = list(kernel_90a.parts(config, problem, together=True))
    assert [x.blocks for x in parts] == expected
    assert all(x.config.grid(x.problem, x.blocks)[0] <= x.blocks for x in parts)
    assert all(x.blocks % x.config.cluster == 0 for x in parts)
    one_by_one = list(kernel_90a.parts(config, problem))
    assert {x.blocks for x in one_by_one} == {132}
    # A plan's choice is one that a call can be given.
    assert [x.config for x in one_by_one] == [x.config for x in parts]


@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("blocks", [2, 3, 4, 5, 7, 132])
def test_no_launch_of_two_is_without_multiprocessors(blocks: int, cluster: int) -> None:
    config = Config(32, blocks=blocks, cluster=cluster)
    for queries, rows in itertools.product((129, 192, 300, 1100), (1, 4, 50)):
        problem = replace(PROBLEM, queries=queries, rows=rows)
        found = [x.blocks for x in kernel_90a.parts(config, problem, together=True)]
        assert min(found) >= cluster and (sum(found) == blocks or set(found) == {blocks})


@pytest.mark.parametrize(
    ("rows", "length", "block_rows", "blocks", "expected"),
    [
        (256, 256, 3, 132, (28, 28, 3, 1)),  # each work by itself
        (256, 256, 3, 66, (32, 8, 5, 2)),
        (9, 256, 3, 132, (24, 24, 3, 1)),
        (384, 384, 4, 132, (96, 12, 11, 3)),  # eight groups, of 32 rows
        (512, 512, 4, 132, (80, 16, 7, 3)),
        (128, 256, 3, 132, (80, 8, 15, 2)),  # ten groups, of 29 rows
        (1024, 1024, 4, 132, (8, 8, 4, 1)),
        (768, 768, 4, 132, None),  # 120, which fill the device
        (4, 4096, 4, 136, None),  # the same
        (33, 256, 1, 132, None),
        (66, 256, 4, 136, None),  # none are left
        (1, 256, 4, 132, None),
    ],
)
def test_the_last_works_are_cut_anew_by_rows(
    rows: int, length: int, block_rows: int, blocks: int, expected: tuple[int, ...] | None
) -> None:
    """Where they leave some of the device idle, and in no cluster."""
    problem = Problem(1, rows, 4, length, length, 32, "bf16", "none", "bf16")
    config = Config(32, block_rows=block_rows, blocks=blocks)
    works = config.works(problem)
    slices = config.slices(problem, blocks)
    assert slices == (expected or (0, 1, 0, block_rows))
    assert replace(config, cluster=2).slices(problem, blocks).number == 0
    found = config.numbering(problem)
    assert (found["groups"], found["slice_rows"]) == (-(-rows // block_rows), slices.rows)
    assert (found["first_sliced"], found["works"]) == (works - slices.replaced, works + slices.more)
    assert config.grid(problem)[0] == min(blocks, works + slices.more)
    assert (config.rounds(problem, blocks) < -(-works // blocks)) is (expected is not None)
    if expected:
        assert works + slices.more <= -(-works // blocks) * blocks


def test_each_row_is_of_one_work() -> None:
    """As lib/works.ptx finds them."""
    sizes = (1, 2), (1, 2, 5, 9, 23, 40), (1, 3, 4), (100, 300), (1, 2, 3, 4), (5, 13, 31, 132)
    sliced = 0
    for batch, rows, heads, queries, block_rows, blocks in itertools.product(*sizes):
        problem = Problem(batch, rows, heads, queries, 128, 32, "bf16", "none", "bf16")
        config = Config(32, block_rows=block_rows, blocks=blocks)
        found = config.numbering(problem)
        sliced += found["works"] > found["first_sliced"]
        seen: list[tuple[int, ...]] = []
        for work in range(found["works"]):
            behind = max(work - found["first_sliced"], 0)
            number, rows_of_work = min(work, found["first_sliced"]), block_rows
            if work >= found["first_sliced"]:
                rows_of_work = found["slice_rows"]
            part, place = divmod(behind, found["slice_works"])
            outer, tile = divmod(number + place, found["query_tiles"])
            outer, head = divmod(outer, found["set_heads"])
            outer, group = divmod(outer, found["groups"])
            assert found["head_sets"] == 1
            first = group * block_rows + part * found["slice_rows"]
            seen += [
                (outer, row, head, tile) for row in range(first, first + rows_of_work) if row < rows
            ]
        wanted = itertools.product(*map(range, (batch, rows, heads, found["query_tiles"])))
        assert sorted(seen) == [*wanted]
    assert sliced > 100


@pytest.mark.parametrize("head_dim", range(8, 65, 8))
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_producer_fills_as_many_stages_as_pay(head_dim: int, dtype: str) -> None:
    """Five, of 64 queries six, of what is converted seven; fewer only where there is no room."""
    problem = Problem(1, 48, 4, 100, 128, head_dim, dtype, dtype, dtype)
    full = 0
    for biases in (dict(), dict(mask="none"), dict(pair="none"), dict(mask="bool", pair="none")):
        for config, _ in kernel_90a.candidates(replace(problem, **biases)):
            low = [part.config for part in kernel_90a.parts(config, replace(problem, queries=190))]
            for each in (config, low[-1]):
                if each.consumers_ask:
                    continue
                most = 7 if each.converts else (6, 5)[each.m_tiles > 1]
                deeper = replace(each, stages=each.stages + 1)
                assert each.stages == most or kernel_90a.violations(deeper, SM_90A)
                full += each.stages == most
    assert full


def test_threadblocks_of_one_row_share_a_multiprocessor() -> None:
    single = Config(48, block_rows=1, min_blocks=2, stages=4, sums="added", converts=True)
    assert not kernel_90a.violations(single, SM_90A) and single.registers == 168
    problem = Problem(1, 1, 16, 2048, 2048, 48, "bf16", "none", "bf16")
    assert single.grid(problem) == (256, 1, 1) and single.rounds(problem, 132) == 1
    assert replace(single, min_blocks=1).rounds(problem, 132) == 2
    assert single.grid(replace(problem, rows=2)) == (264, 1, 1)
    (why,) = kernel_90a.violations(replace(single, stages=6), SM_90A)
    assert "bytes of shared memory do not fit 2 times" in why


def test_a_device_has_clusters_that_fit_on_it() -> None:
    problem = Problem(1, 64, 4, 512, 512, 32, "bf16", "none", "bf16")
    for count in (1, 2, 3):
        device = replace(SM_90A, multiprocessors=count)
        found = kernel_90a.choose(problem, device)
        assert found.cluster <= found.grid(problem)[0] <= count
        alone = replace(found, row_warpgroups=1, warpgroup_rows=1, converts=False)
        clusters = replace(alone, block_rows=3, stages=5, producer="warp", cluster=4)
        reasons = kernel_90a.violations(clusters, device, problem)
        assert reasons == (f"a cluster of 4 does not fit on {count} multiprocessors",)


@pytest.mark.parametrize(
    ("rows", "heads", "length", "head_dim", "expected", "l2_promotion"),
    [
        (1024, 4, 1024, 32, 4, 128),  # L2 keeps the tiles of all heads
        (1536, 4, 1536, 32, 2, 128),
        (2048, 4, 2048, 32, 1, 64),  # not those of two
        (12, 4, 2048, 32, 2, 128),  # the call is short
        (2048, 4, 2048, 16, 1, 0),
        (48, 16, 768, 48, 4, 128),
        (48, 16, 768, 24, 8, 128),
        (64, 8, 1024, 64, 1, 128),
        (2048, 3, 2048, 32, 1, 64),  # no lines are whole, and the call is long
        (1536, 4, 1536, 24, 1, 64),
        (6, 3, 2048, 32, 3, 128),
    ],
)
def test_sets_of_heads_fill_lines_where_the_pair_bias_is_large(
    rows: int, heads: int, length: int, head_dim: int, expected: int, l2_promotion: int
) -> None:
    problem = Problem(1, rows, heads, length, length, head_dim, "bf16", "none", "bf16")
    for pair, set_heads, fetched in (("bf16", expected, l2_promotion), ("none", heads, 128)):
        config = kernel_90a.adapt(Config(head_dim), replace(problem, pair=pair))
        found = config.numbering(replace(problem, pair=pair))
        assert (found["set_heads"], found["head_sets"]) == (set_heads, heads // set_heads)
        assert config.l2_promotion(replace(problem, pair=pair)) == fetched


def test_half_of_a_line_is_fetched_where_heads_come_one_at_a_time() -> None:
    config, q = Config(32), cuevo.arrays.view(np.zeros((1, 3, 128, 2, 32), np.float16))
    for l2_promotion in (128, 64):
        loaded = config.q_map(q, l2_promotion), config.k_map(q, l2_promotion)
        assert {each.l2_promotion for each in loaded} == {l2_promotion}
    assert config.out_map(q).l2_promotion == 128


def test_zero_and_negative_strides_are_for_other_variants() -> None:
    whole, out = np.zeros((2, 1, 2, 8, 1, 16), np.float16)
    stretched = np.broadcast_to(whole[:, :1], whole.shape)
    arrays = dict(q=whole, k=whole, v=whole, out=out)
    for changes, mapped in (
        (dict(), True),
        (dict(k=stretched), False),
        (dict(out=out[:, :, ::-1]), False),
    ):
        views = {key: cuevo.arrays.view(x) for key, x in {**arrays, **changes}.items()}
        assert state_problem(**views).mapped is mapped


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (dict(parts=4), "are not multiples of 16 keys"),
        (dict(stages=9), "bytes of shared memory"),
        (dict(again_words=3), "again_words must be a power of two"),
        (dict(dtype="f32"), "dtype must be"),
        (dict(block_keys=48), "block_keys must be"),
        (dict(m_tiles=3), "m_tiles 1, 2 or 4"),
        (dict(sums="none"), "sums must be"),
        (dict(continues=True, q_in_registers=False), "continues needs q_in_registers"),
        (dict(converts=True, pair="f32"), "a pair bias of f16 or bf16, not f32"),
        (dict(converts=True, cluster=2), "where the pair bias is tiled"),
    ],
    ids=str,
)
def test_limits(changes: dict[str, Any], why: str) -> None:
    assert kernel_90a.violations(Config(32), SM_90A) == ()
    config = replace(Config(32), **changes)
    assert any(why in each for each in kernel_90a.violations(config, SM_90A))
