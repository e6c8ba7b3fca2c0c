"""Forward kernels for sm_80 and later whose last tile of queries has threadblocks of its own
tiling.
"""

from dataclasses import replace

import pytest
from helpers import attention_cases as cases
from helpers.attention_cases import Case
from helpers.attention_sweep import name
from helpers.forward_variants import run_on_cpu, run_on_gpu

from cuevo.architectures import architecture
from cuevo.executors.driver import DriverExecutor
from cuevo.kernels import evoformer_forward_sm80 as forward
from cuevo.kernels.evoformer_forward_sm80 import Config, Problem

CASES = {
    Case("bf16", 32, 65, 65, 1, 5, 1, mask="f32", pair="bf16", shape=0, arch="sm_80"): (4, 16),
    Case("f16", 32, 150, 33, 2, 4, 2, mask="none", pair="f16", shape=0, arch="sm_90"): (4, 32),
    Case("bf16", 32, 144, 64, 1, 4, 1, mask="bool", pair="f32", shape=0, arch="sm_90"): (4, 48),
    Case("bf16", 16, 96, 130, 1, 3, 2, mask="bf16", pair="none", shape=1, arch="sm_80"): (2, 32),
    Case("bf16", 64, 140, 70, 1, 3, 1, mask="bf16", pair="bf16", shape=0, arch="sm_90"): (2, 32),
    Case("f16", 24, 150, 40, 1, 2, 1, mask="f32", pair="f16", shape=0, arch="sm_80"): (1, 64),
}
"""Rows N and queries of the short threadblocks, by case: rows that they lack; two batches; three
m_tiles; no pair bias; two warps to a row; as many rows as the others have.
"""


@pytest.mark.kernel
@pytest.mark.parametrize("case", CASES, ids=name)
def test_results(case: Case) -> None:
    rows, queries = CASES[case]
    inputs = cases.make(case)
    results = run_on_cpu(forward, case, inputs, short_rows=rows, short_queries=queries)
    cases.check(case, results["out"].array, results["lse"].array, inputs)
    cases.check_guards(case, results)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=name)
def test_results_on_a_gpu(executor: DriverExecutor, case: Case) -> None:
    rows, queries = CASES[case]
    inputs = cases.make(case)
    results = run_on_gpu(forward, case, inputs, executor, short_rows=rows, short_queries=queries)
    cases.check(case, results["out"].array, results["lse"].array, inputs)
    cases.check_guards(case, results)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("queries", "short", "extents"),
    [(64, 0, (3, 1)), (65, 0, (3, 2)), (65, 16, (2, 3)), (150, 32, (2, 5)), (128, 0, (3, 2))],
)
def test_the_grid(queries: int, short: int, extents: tuple[int, int]) -> None:
    """Of five rows, by groups of two: two groups are numbered together, their tiles and the short
    one, which is of all four rows.
    """
    config = Config(32, block_rows=2, block_queries=64, block_keys=32)
    config = replace(config, short_queries=short, short_rows=4 if short else 0)
    assert config.extents(5, queries) == extents
    problem = Problem(3, 5, 7, queries, 32, 32, "bf16", "bf16", "bf16")
    assert config.grid(problem) == (3 * 7 * extents[0] * extents[1], 1, 1)
    assert config.bodies[-1].threads == config.threads


@pytest.mark.unit
@pytest.mark.parametrize(
    ("rows", "queries", "short"),
    [
        *[(384, 705, (4, 16)), (384, 721, (2, 32)), (384, 737, (0, 0)), (384, 64, (0, 0))],
        *[(2, 705, (0, 0)), (2, 33, (0, 0))],
    ],
)
def test_the_choice(rows: int, queries: int, short: tuple[int, int]) -> None:
    """Where the last tile has at most half of the queries, and there is more than a wave."""
    problem = Problem(1, rows, 4, queries, 705, 32, "bf16", "bf16", "bf16")
    config = forward.choose(problem, architecture("sm_90"))
    assert (config.short_rows, config.short_queries) == short
    wrong = replace(config, short_rows=4, short_queries=16)
    found = forward.violations(wrong, architecture("sm_90"), problem)
    assert bool(found) == (short != (4, 16))


@pytest.mark.unit
def test_the_first_spill_fallback_has_none() -> None:
    config = Config(32, block_rows=2, block_queries=64, min_blocks=4, short_rows=4)
    short = replace(config, short_queries=16)
    first, second, *_, last = forward.spill_fallbacks(short)
    assert (first, second) == (short, replace(config, short_rows=0))
    assert (last.short_queries, last.m_tiles, last.min_blocks) == (0, 1, 1)
