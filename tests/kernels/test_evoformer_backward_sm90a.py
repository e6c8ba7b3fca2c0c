"""ptx/evoformer_backward_sm90a.ptx, with its tiles of the pair bias and the terms that
attention_delta and key_bias make: results, what the kernel does not serve, and when it is chosen.
"""

import heapq
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from helpers import backward_cases as cases
from helpers.attention_sweep import WHOLE
from helpers.backward_calls import KEYS_GRADS, QUERIES_GRADS, arguments, named, sides
from helpers.backward_cases import ARGUMENTS, GRAD_LAYOUTS, BackwardCase
from helpers.backward_sweep import CASES as ALL
from helpers.backward_sweep import name
from helpers.executors import Recorder, shared
from helpers.guarded import Strided, assert_same_bytes, check_guards, host_views
from helpers.ledgers import opcodes

import cuevo
from cuevo.architectures import architecture
from cuevo.executors.assembling import assembling
from cuevo.executors.driver import DriverExecutor
from cuevo.kernels import choice, evoformer_backward_sm80
from cuevo.kernels import evoformer_backward_sm90a as kernel_90a
from cuevo.kernels.backward import Problem
from cuevo.kernels.evoformer_backward_sm90a import Config
from cuevo.ops import backward_plan
from cuevo.ops.attention_problem import is_mapped
from cuevo.ops.backward import OPERATION, VARIANTS
from cuevo.ops.dispatch import dispatch
from cuevo.ops.packing import ROW_ALIGNMENT, row_alignment
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.template import render

kernel = pytest.mark.kernel
unit = pytest.mark.unit
gpu = pytest.mark.gpu

SM_90A = architecture("sm_90a")
PROBLEM = Problem(1, 384, 4, 384, 384, 32, "bf16", "f32", "bf16", second=True, sums=True)
QUERIES = replace(PROBLEM, side="queries", second=False)

# Rows n that do not exist, lengths within tiles of either side, more stages than fit, several
# groups to a threadblock.
WIDE = BackwardCase("bf16", 32, 150, 85, 1, 7, 2, mask="f32", pair="bf16", seed=3)
WIDE = replace(WIDE, pair_layout="aligned 2", layout="heads first", grads=KEYS_GRADS)
NARROW = BackwardCase("f16", 8, 40, 33, 2, 2, 1, mask="bool", pair="f32", scale=-0.3, seed=4)
NARROW = replace(NARROW, pair_layout="one B", dout_layout="heads first", grads=KEYS_GRADS)
PLAIN = BackwardCase("bf16", 64, 70, 130, 1, 3, 1, mask="none", pair="none", seed=5)
PLAIN = replace(PLAIN, grads=KEYS_GRADS)
KEYS: tuple[tuple[BackwardCase, dict[str, Any], int], ...] = (
    (WIDE, dict(stages=2), 1),
    (WIDE, dict(stages=3), 2),
    (replace(WIDE, dtype="f16", pair="f32"), dict(block_streamed=64, stages=2), 3),
    (replace(WIDE, head_dim=24, mask="bf16"), dict(block_streamed=16, stages=6), 2),
    (replace(WIDE, head_dim=16), dict(block_rows=4, stages=4), 2),
    (replace(WIDE, head_dim=40, scale=-0.7), dict(block_rows=2, stages=3), 1),
    (replace(WIDE, head_dim=48, queries=20), dict(block_rows=1), 7),
    # Terms that end within a swizzle.
    (replace(WIDE, head_dim=64, queries=40), dict(block_rows=1, block_streamed=16, stages=3), 2),
    (NARROW, dict(stages=4), 1),
    (replace(NARROW, head_dim=56, dtype="bf16"), dict(block_rows=2), 1),
    (PLAIN, dict(block_rows=2), 2),
    (replace(PLAIN, head_dim=32, pair="bf16"), dict(), 1),
)
# The same of the other side; keys that end within a tile, with and without a mask.
LONG = replace(WIDE, queries=85, keys=150, grads=QUERIES_GRADS)
SHORT = replace(NARROW, queries=33, keys=40, grads=QUERIES_GRADS)
BARE = replace(PLAIN, queries=130, keys=70, grads=QUERIES_GRADS)
OF_QUERIES: tuple[tuple[BackwardCase, dict[str, Any], int], ...] = (
    (LONG, dict(stages=2), 1),
    (LONG, dict(stages=3), 2),
    (replace(LONG, dtype="f16", pair="f32"), dict(block_rows=3, warpgroup_rows=1), 3),
    (replace(LONG, head_dim=24, mask="bf16"), dict(block_streamed=16, stages=6), 2),
    (replace(LONG, head_dim=16), dict(block_rows=6, warpgroup_rows=2), 2),
    (replace(LONG, head_dim=16, rows=5, batch=2), dict(), 1),
    (replace(LONG, head_dim=40, scale=-0.7), dict(stages=3), 1),
    (replace(LONG, head_dim=48, keys=20), dict(block_rows=1), 7),
    (replace(LONG, head_dim=64, keys=40), dict(block_rows=4, block_streamed=16, stages=3), 2),
    (SHORT, dict(block_rows=2, warpgroup_rows=2), 1),
    (replace(SHORT, head_dim=56, dtype="bf16"), dict(), 1),
    (BARE, dict(), 2),
    (replace(BARE, head_dim=32, pair="bf16", grads=("pair_bias",)), dict(), 1),
    (replace(BARE, head_dim=32, mask="bool", grads=("q",)), dict(), 2),
)
OTHERS = (*KEYS, *OF_QUERIES)
VALUES = (
    *("large scores", "small", "large dout", "one key by mask", "one key by pair"),
    *("huge pair bias", "far mask, padded rows", "offset v", "nan dout", "rows of zero dout"),
)


def problems(case: BackwardCase) -> dict[str, Problem]:
    """What a case asks of the kernel, by side."""
    inputs = cases.make(case)
    dout = host_views({"dout": inputs["dout"]}, readonly=True)["dout"]
    readable = row_alignment(dout) == ROW_ALIGNMENT  # else it is packed
    return {
        side: replace(
            problem,
            mapped=problem.mapped and (is_mapped(dout) or not readable),
            scaled=case.scale is None or abs(case.scale) > 2**-64,
        )
        for side, problem in sides(case, inputs).items()
    }


def chosen(case: BackwardCase) -> dict[str, Config]:
    """The configurations of the sides of a case that the kernel serves."""
    offered = {side: next(kernel_90a.candidates(x))[0] for side, x in problems(case).items()}
    return {
        side: config
        for side, config in offered.items()
        if not kernel_90a.violations(config, SM_90A, problems(case)[side])
    }


def sweep() -> Iterator[tuple[BackwardCase, dict[str, Any], int]]:
    """Cases of the sweep that the kernel serves."""
    for index, case in enumerate(filter(chosen, ALL)):
        yield replace(case, grad_layout="packed"), {}, 1 + index % 3


def run(
    case: BackwardCase, place: Any, settings: dict[str, Any], groups: int
) -> dict[str, Strided]:
    """The gradients, by threadblocks of so many groups each, compared with float64."""
    inputs, call = arguments(case)
    results = cases.make_results(case)
    given = [results[key].array if key in results else None for key in ARGUMENTS]
    config = {side: replace(each, **settings) for side, each in chosen(case).items()}
    assert config
    with patch.object(Config, "groups", lambda self, *_: groups):
        found = cuevo.attention_backward(**call, results=given, device=place, config=config)
    del found  # the caller's arrays
    cases.check(case, {key: x.array for key, x in results.items()}, inputs)
    check_guards(case, results)
    return results


def label(x: Any) -> str:
    """A part of a test's name."""
    if isinstance(x, BackwardCase):
        return name(x)
    return "-".join(f"{key}{value}" for key, value in x.items()) if isinstance(x, dict) else str(x)


@kernel
@pytest.mark.parametrize(
    ("case", "settings", "groups"), [*OTHERS, *(sweep() if WHOLE else ())], ids=label
)
def test_results_are_those_of_float64(
    case: BackwardCase, settings: dict[str, Any], groups: int
) -> None:
    run(case, shared("sm_90a"), settings, groups)


@kernel
@pytest.mark.parametrize("case", [WIDE, LONG], ids=["keys", "queries"])
@pytest.mark.parametrize("values", VALUES)
def test_values_that_are_extreme(case: BackwardCase, values: str) -> None:
    case = replace(case, values=values, heads=1, rows=4, mask_layout="packed")
    case = replace(case, queries=min(case.queries, 70), keys=min(case.keys, 90))
    run(case, shared("sm_90a"), {}, 1)


@kernel
@pytest.mark.parametrize("layout", GRAD_LAYOUTS)
def test_gradients_of_any_strides(layout: str) -> None:
    """Calls have contiguous ones; the kernel does not ask for that."""
    case = replace(WIDE, grad_layout=layout, queries=20, heads=2, rows=2, grads=("q", "k", "v"))
    with patch.object(backward_plan, "check_result", lambda *arguments: None):
        run(case, shared("sm_90a"), {}, 1)


SUBSETS = [
    subset for size in range(1, len(KEYS_GRADS)) for subset in combinations(KEYS_GRADS, size)
]


@kernel
@pytest.mark.parametrize("subset", SUBSETS, ids="+".join)
def test_every_set_of_gradients(subset: tuple[str, ...]) -> None:
    case = replace(WIDE, grads=subset, queries=40, rows=3)
    assert set(run(case, shared("sm_90a"), {}, 1)) == {"d" + grad for grad in subset}


@kernel
@pytest.mark.parametrize("other", ["queries", "keys", ""])
def test_both_sides_in_one_call(other: str) -> None:
    """The other side may be a kernel's that reads rows of the pair bias: here they are packed."""
    case = replace(WIDE, queries=40, rows=3, grads=cases.GRADS)
    inputs, call = arguments(case)
    config = chosen(case) | ({other: {"stages": 2, "block_rows": 1}} if other else {})
    found = cuevo.attention_backward(**call, device=shared("sm_90a"), config=config)
    cases.check(case, named(found), inputs)


@kernel
@pytest.mark.parametrize("case", [WIDE, replace(LONG, grads=("q",))], ids=["keys", "queries"])
def test_groups_change_no_bit(case: BackwardCase) -> None:
    one, other = (run(case, shared("sm_90a"), {}, groups) for groups in (1, 3))
    for key, x in one.items():
        assert_same_bytes(case, key, other[key].array, x.array)


@gpu
@pytest.mark.parametrize("case", [case for case in ALL if case.head_dim <= 64], ids=name)
def test_the_sweep_on_a_gpu(executor: DriverExecutor, case: BackwardCase) -> None:
    if not chosen(case):
        pytest.skip("another variant's")
    case = replace(case, grad_layout="packed")
    first, again = (run(case, executor, {}, 1 + case.seed % 3) for _ in range(2))
    for key, result in first.items():
        assert_same_bytes(case, key, again[key].array, result.array)


@gpu
@pytest.mark.parametrize(("case", "settings", "groups"), OTHERS, ids=label)
def test_the_bits_of_the_cpu_executor(
    executor: DriverExecutor, case: BackwardCase, settings: dict[str, Any], groups: int
) -> None:
    on_gpu = run(case, executor, settings, groups)
    on_cpu = run(case, shared("sm_90a"), settings, groups)
    for key, result in on_gpu.items():
        assert_same_bytes(case, key, on_cpu[key].array, result.array)


# -- What is assembled -----------------------------------------------------------------------------


@unit
@pytest.mark.parametrize(
    "settings",
    [dict(second=True), dict(side="queries", block_rows=4, warpgroup_rows=2, stages=5)],
    ids=["keys", "queries"],
)
def test_the_machine_code_has_what_the_ledger_says(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    config = Config(32, sums=True, mask=True, pair="bf16", **settings)
    rendered = render(kernel_90a.NAME, kernel_90a.values(config))
    (exponentials,) = re.findall(r"//   ex2 +(\d+) \* 8 clocks", rendered.text)
    products = re.findall(r"//   wgmma +(\d+) of n 32 \+ (\d+) of n 32 =", rendered.text)
    found = opcodes(assemble(rendered, "sm_90a", cache=None).code, tmp_path)
    assert found["MUFU.EX2"] == int(exponentials)
    # Those of the first row N of queries begin before the loop.
    begun = 0 if config.by_keys else int(products[0][0]) // config.warpgroup_rows
    assert found["HGMMA.64"] == sum(map(int, products[0])) + begun


@kernel
@pytest.mark.parametrize("problem", [PROBLEM, QUERIES], ids=["keys", "queries"])
@pytest.mark.parametrize("head_dim", range(8, 65, 8))
def test_the_assembler_waits_for_no_product_by_itself(problem: Problem, head_dim: int) -> None:
    problem = replace(problem, head_dim=head_dim)
    config, _ = next(kernel_90a.candidates(problem))
    cubin = assemble(render(kernel_90a.NAME, kernel_90a.values(config)), "sm_90a")
    assert "wgmma.mma_async instructions are serialized" not in cubin.log
    assert cubin.resources.spill_stores == cubin.resources.spill_loads == 0


# -- What it serves, and when it is chosen ---------------------------------------------------------


@unit
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (dict(head_dim=72), "head_dim must be at most 64"),
        (dict(mapped=False), "a tensor map steps forward"),
        (dict(scaled=False), "so small that it is taken as 0"),
    ],
    ids=str,
)
def test_what_it_does_not_serve(changes: dict[str, Any], why: str) -> None:
    problem = replace(PROBLEM, **changes)
    config, _ = next(kernel_90a.candidates(problem))
    assert any(why in reason for reason in kernel_90a.violations(config, SM_90A, problem))
    assert dispatch(VARIANTS, problem, SM_90A) is evoformer_backward_sm80


@unit
@pytest.mark.parametrize(
    ("problem", "changes", "why"),
    [
        (PROBLEM, dict(block_rows=5), "block_rows must be 1 to 4 times warpgroup_rows = 1, not 5"),
        (
            PROBLEM,
            dict(block_rows=2, warpgroup_rows=2),
            "warpgroup_rows must be 1 on the side of keys, not 2",
        ),
        (PROBLEM, dict(block_streamed=48), "block_streamed must be one of (16, 32, 64), not 48"),
        (PROBLEM, dict(stages=1), "stages must be 2 to 16, not 1"),
        (PROBLEM, dict(stages=16), "needs 413968 bytes of shared memory"),
        (PROBLEM, dict(min_blocks=2), "min_blocks must be 1, not 2"),
        (PROBLEM, dict(dtype="f32"), "dtype must be f16 or bf16, not 'f32'"),
        (QUERIES, dict(block_rows=3), "block_rows must be 1 to 4 times warpgroup_rows = 2, not 3"),
        (QUERIES, dict(block_streamed=64), "block_streamed must be one of (16, 32), not 64"),
        (QUERIES, dict(warpgroup_rows=1, stages=2), "stages must be 3 to 16, not 2"),
    ],
    ids=str,
)
def test_each_constraint(problem: Problem, changes: dict[str, Any], why: str) -> None:
    config = kernel_90a.choose(problem, SM_90A)
    (found,) = kernel_90a.violations(replace(config, **changes), SM_90A)
    assert why in found


@unit
def test_its_architecture() -> None:
    config = kernel_90a.choose(PROBLEM, SM_90A)
    assert kernel_90a.violations(config, architecture("sm_90")) == (
        "wgmma needs sm_90a; this is sm_90",
    )


@unit
@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        (dict(), True),
        (dict(rows=128, queries=128, keys=128), False),
        (dict(rows=12, queries=2048, keys=2048), False),
        (dict(rows=12, queries=2048, keys=2048, pair="none"), True),
        (dict(keys=100), False),
        (dict(keys=130), False),
        (dict(keys=170), True),
        (dict(head_dim=8), False),
        (dict(head_dim=24), True),
        (dict(head_dim=64), True),
        (dict(side="queries", second=False), True),
        (dict(side="queries", second=False, queries=90), False),
        (dict(side="queries", second=False, head_dim=8), True),
        (dict(side="queries", second=False, head_dim=24, queries=330), True),
        (dict(side="queries", second=False, head_dim=24, queries=130), False),
    ],
    ids=str,
)
def test_it_runs_unasked_where_it_is_measured_to_be_faster(
    changes: dict[str, Any], chosen: bool
) -> None:
    found = dispatch(VARIANTS, replace(PROBLEM, **changes), SM_90A)
    assert found is (kernel_90a if chosen else evoformer_backward_sm80)
    assert dispatch(VARIANTS, PROBLEM, architecture("sm_90")) is evoformer_backward_sm80


@unit
@pytest.mark.parametrize("problem", [PROBLEM, QUERIES], ids=["keys", "queries"])
def test_groups_of_rows_fill_the_device(problem: Problem) -> None:
    """All begin together, and end together."""
    config = kernel_90a.choose(problem, SM_90A)
    groups = config.groups(problem, SM_90A)
    assert config.grid(problem, groups)[0] == 2 * SM_90A.multiprocessors


@unit
def test_threadblocks_begin_where_others_have_ended_first() -> None:
    assert choice.last_end([(3, 5.0), (4, 2.0)], 3) == 9.0
    assert choice.last_end([(4, 5.0), (3, 2.0)], 3) == 10.0
    assert choice.last_end([(2, 5.0), (0, 9.0)], 3) == 5.0
    rng = np.random.default_rng(0)
    for slots in rng.integers(1, 9, 30):
        blocks = [(int(count), (1 + time) / 2) for count, time in rng.integers(0, 40, (3, 2))]
        free = [0.0] * slots
        for count, time in blocks:
            for _ in range(count):
                heapq.heapreplace(free, free[0] + time)
        assert choice.last_end(blocks, slots) == max(free)


@unit
@pytest.mark.parametrize("length", [301, 384, 705, 768])
def test_threadblocks_of_both_sides_end_together(length: int) -> None:
    """Those of keys begin where those of queries end."""
    both = [replace(x, queries=length, keys=length, rows=384) for x in (QUERIES, PROBLEM)]
    first, second = (kernel_90a.choose(x, SM_90A) for x in both)
    ahead = first.threadblocks(both[0], first.groups(both[0], SM_90A))
    groups = second.groups(both[1], SM_90A, ahead)
    own = second.threadblocks(both[1], groups)
    every = [*ahead, *own]
    end = choice.last_end(every, SM_90A.multiprocessors)
    alone = second.threadblocks(both[1], second.groups(both[1], SM_90A))
    assert end <= choice.last_end([*ahead, *alone], SM_90A.multiprocessors)
    assert end < 1.04 * sum(count * time for count, time in every) / SM_90A.multiprocessors
    count = second.grid(both[1], groups)[0]
    assert count == sum(count for count, _ in own)
    assert second.groups_of(both[1], count) == groups


@unit
@pytest.mark.parametrize("pair", ["none", "bf16"])
@pytest.mark.parametrize("keys", [384, 390])
def test_tiles_of_the_pair_bias_mask_keys_that_do_not_exist(pair: str, keys: int) -> None:
    problem = replace(QUERIES, mask="none", pair=pair, keys=keys)
    config = kernel_90a.choose(problem, SM_90A)
    assert config.mask == (pair == "none" and keys == 390)
    assert not kernel_90a.violations(config, SM_90A, problem)


UNASKED = [(keys, pair) for keys in (65, 96, 97, 150) for pair in ("f32", "none")]


@kernel
@pytest.mark.parametrize(("keys", "pair"), UNASKED)
def test_calls_that_get_it_unasked(keys: int, pair: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Recorder("sm_90a")
    check_unasked(keys, pair, place, monkeypatch)
    sides = [x.values["config"].side for x in place.loaded if x.name.startswith("evoformer_backw")]
    assert sides == ["queries", "keys"]
    assert [x.name for x in place.loaded].count(kernel_90a.NAME) == 2


@gpu
@pytest.mark.parametrize(("keys", "pair"), UNASKED)
def test_calls_that_get_it_unasked_on_a_gpu(
    executor: DriverExecutor, keys: int, pair: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_unasked(keys, pair, executor, monkeypatch)


def check_unasked(keys: int, pair: str, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call for every gradient, compared with float64."""
    monkeypatch.setattr(kernel_90a, "prefers_lower_variant", lambda problem, arch: False)
    case = replace(WIDE, keys=keys, queries=70, rows=5, pair=pair, grads=cases.GRADS)
    case = replace(case, pair_layout="broadcast H" if keys == 96 else "packed")
    inputs, call = arguments(case)
    results = cases.make_results(case)
    given = [results[key].array if key in results else None for key in ARGUMENTS]
    cuevo.attention_backward(**call, results=given, device=place)
    cases.check(case, {key: x.array for key, x in results.items()}, inputs)
    check_guards(case, results)


@kernel
def test_a_place_that_knows_no_addresses_has_other_kernels() -> None:
    """Tensor maps are made of addresses."""
    x = np.zeros((1, 16, 1024, 4, 32), ml_dtypes.bfloat16)
    lse = np.zeros((1, 16, 4, 1024), np.float32)
    arrays = tuple(map(cuevo.arrays.view, (x, x, x, x, x, lse)))
    found = []
    for knows_addresses in (True, False):
        place = assembling("sm_90", knows_addresses=knows_addresses)
        options = (None, ("k", "v"), None, None)
        plan = OPERATION.plan_on_device((*arrays, *(None,) * 7), options, place, None)
        found.append([launch.name for launch in plan.every_launch])
    assert found[0] == ["attention_delta_sm70", "evoformer_backward_sm90a"]
    assert found[1] == ["attention_delta_sm70", "evoformer_backward_sm80"]


@kernel
def test_a_pair_bias_that_only_tiles_are_made_of_is_not_packed() -> None:
    place = Recorder("sm_90a")
    case = replace(WIDE, queries=40, rows=3, pair_layout="queries first")
    inputs, call = arguments(case)
    config = {"keys": kernel_90a.choose(PROBLEM, SM_90A)}
    found = cuevo.attention_backward(**call, device=place, config=config)
    cases.check(case, named(found), inputs)
    assert [x.name for x in place.loaded] == [
        *("attention_delta_sm70", "key_bias_sm70", "evoformer_backward_sm90a"),
        *("pair_tiles_sm90", "partial_sums_sm70"),
    ]
