"""ptx/evoformer_forward_sm90a.ptx, with its tiles of the pair bias: results, works done again, what
the kernel does not serve, and how it is asked for.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest
from helpers import attention_cases as cases
from helpers.attention_cases import Case
from helpers.attention_sweep import CASES as ALL
from helpers.attention_sweep import WHOLE, name
from helpers.executors import shared
from helpers.guarded import DTYPES, Strided
from helpers.ledgers import opcodes
from helpers.spills import objections

import cuevo
from cuevo import reference
from cuevo.architectures import architecture
from cuevo.executors.driver import DriverExecutor
from cuevo.kernels import evoformer_forward_sm80
from cuevo.kernels import evoformer_forward_sm90a as kernel_90a
from cuevo.kernels.evoformer_forward_sm90a import Config
from cuevo.kernels.forward import Problem
from cuevo.ops.attention_problem import state_problem
from cuevo.ops.dispatch import dispatch
from cuevo.ops.forward import VARIANTS
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.sass import disassemble
from cuevo.toolchain.template import render

kernel = pytest.mark.kernel
unit = pytest.mark.unit
gpu = pytest.mark.gpu

SM_90A = architecture("sm_90a")
PROBLEM = Problem(1, 4, 2, 100, 77, 32, "bf16", "f32", "bf16")
ROUNDED_LSE = {"bf16": 4.5e-3, "f16": 1e-3}
"""Tolerance of the log of sums of rounded probabilities: half a unit in the last place of the
16-bit type, where one of them is all there is.
"""
EMULATED_LSE = 7e-3
"""The same where some are emulated."""

# No key counts, so that works are done again, with finite masks that are added.
AGAIN = Case(
    "bf16",
    32,
    20,
    45,
    rows=2,
    mask="f32",
    pair="bf16",
    values="offset",
    offset=-300.0,
    scale=-0.3,
    seed=7,
)
PLAIN = Case("f16", 64, 40, 33, batch=2, mask="none", pair="f32", pair_layout="one B", seed=8)
ENDING = Case("bf16", 16, 150, 40, rows=5, mask="bool", pair="bf16", pair_layout="odd", seed=10)
BOUNDS = Case("bf16", 24, 7, 37, mask="bool", values="falling", seed=9)
# The mask beside k, and by a product of its own where the row sums lie beside v; rows n that do not
# exist.
BESIDE = Case("bf16", 24, 70, 45, rows=3, heads=2, mask="bf16", pair="f32", scale=-0.7, seed=11)
OWN = Case("f16", 8, 20, 45, batch=2, rows=1, mask="f32", mask_layout="odd", seed=12)
# Two groups of four rows n, the second with two of them, and a last tile of queries.
LONG = Case("bf16", 32, 140, 170, rows=6, heads=2, mask="bf16", pair="f32", seed=13)
ASKING: dict[str, Any] = dict(producer="consumer", continues=True)
"""Consumers ask for boxes."""
LATE: dict[str, Any] = dict(late_pair=True, continues=True)
"""The pair bias has a ring of its own."""
# The pair bias as it is: batches that share it, and keys that end within a tile.
RAW = Case("bf16", 32, 140, 168, rows=6, heads=2, mask="bf16", pair="bf16", seed=14)
SHARED = Case("bf16", 24, 70, 72, batch=2, rows=3, pair="bf16", pair_layout="one B", seed=15)
CONVERTING: dict[str, Any] = dict(converts=True)
SCALED: dict[str, Any] = dict(scales_q=True)
"""q is multiplied by a scale that is a power of two."""
SHARING: dict[str, Any] = dict(block_rows=2, row_warpgroups=2, m_tiles=1, **ASKING)
"""Two warpgroups share a row n."""
TILED_ROWS: dict[str, Any] = dict(row_warpgroups=2, warpgroup_rows=2, **ASKING)
"""A warpgroup has two rows n, under one pair bias."""
TWO_ROWS: dict[str, Any] = dict(TILED_ROWS, **CONVERTING)
"""And converts it."""
THREE_TILES: dict[str, Any] = dict(TWO_ROWS, row_warpgroups=3, block_rows=2)
"""And three of them share these, 64 queries each."""
OTHERS: tuple[tuple[Case, dict[str, Any]], ...] = (
    (AGAIN, dict(block_rows=1, stages=2, m_tiles=1, continues=True)),
    (AGAIN, dict(block_rows=1, stages=3, cluster=2, continues=True)),
    (PLAIN, dict(block_rows=1, stages=2, m_tiles=1, parts=1)),
    (PLAIN, dict(block_rows=1, stages=2, continues=True)),
    (ENDING, dict(stages=5, parts=2)),
    (ENDING, dict(stages=5, parts=2, continues=True)),
    (BESIDE, dict(block_rows=2, stages=3, continues=True)),
    (BESIDE, dict(block_rows=1, stages=2, q_in_registers=False, parts=1)),
    (OWN, dict(block_rows=2, stages=2)),
    (BOUNDS, dict(block_rows=2, stages=2, m_tiles=1, sums="added")),
    # The last works, or all of them, of one row N each; one of the rows does not exist.
    (ENDING, dict(block_rows=3, stages=3, blocks=3, continues=True)),
    (BESIDE, dict(block_rows=3, stages=2, blocks=6)),
    (AGAIN, dict(block_rows=2, stages=2, m_tiles=1, blocks=4, continues=True)),
    # All works cut anew: two groups of rows N into three slices of two rows, or two of three.
    (replace(LONG, seed=18), dict(block_rows=3, stages=3, blocks=6, continues=True)),
    (replace(LONG, seed=15), dict(block_rows=4, stages=5, blocks=5, **ASKING)),
    # Works of one row N each, some of which does not exist.
    (replace(LONG, rows=5), dict(block_rows=4, stages=5, blocks=32, **ASKING)),
    (AGAIN, dict(block_rows=2, stages=3, **ASKING)),
    (LONG, dict(block_rows=4, stages=5, **ASKING)),
    (LONG, dict(block_rows=4, stages=4, blocks=1, sums="added", **ASKING)),
    (replace(LONG, dtype="f16", mask="bool"), dict(block_rows=3, stages=5, **ASKING)),
    (replace(LONG, mask="none", head_dim=16), dict(block_rows=4, stages=4, **ASKING)),
    (replace(ENDING, keys=70), dict(block_rows=3, stages=3, blocks=3, m_tiles=1, **ASKING)),
    (
        replace(LONG, head_dim=24, values="offset", offset=-300.0, scale=-0.3),
        dict(block_rows=2, stages=3, sums="added", **ASKING),
    ),
    (RAW, dict(block_rows=4, stages=6, blocks=1, **ASKING, **CONVERTING)),
    (replace(RAW, head_dim=24), dict(block_rows=4, stages=7, **ASKING, **CONVERTING)),
    (replace(RAW, rows=4, head_dim=40), dict(block_rows=3, stages=5, **ASKING, **CONVERTING)),
    (replace(LONG, rows=4, head_dim=48), dict(block_rows=3, stages=4, **ASKING)),
    (
        replace(LONG, rows=3, head_dim=64),
        dict(block_rows=2, stages=3, sums="added", continues=True, blocks=1),
    ),
    # The pair bias a stage later: by consumers, of which some have two turns behind the last stage,
    # and some rows that do not exist; by a producer, and by those of a cluster.
    (LONG, dict(block_rows=4, stages=6, blocks=2, **LATE | ASKING)),
    (replace(LONG, head_dim=16), dict(block_rows=2, stages=7, blocks=2, **LATE | ASKING)),
    (replace(AGAIN, keys=70), dict(block_rows=2, stages=4, blocks=1, **LATE | ASKING)),
    (replace(LONG, dtype="f16", mask="bool"), dict(block_rows=3, stages=4, blocks=2, **LATE)),
    (replace(AGAIN, head_dim=64), dict(block_rows=2, stages=5, sums="added", **LATE, blocks=1)),
    (AGAIN, dict(block_rows=1, stages=4, cluster=2, **LATE)),
    (
        replace(RAW, keys=160, mask="none", head_dim=16),
        dict(block_rows=4, stages=4, sums="added", **ASKING, **CONVERTING),
    ),
    (
        replace(RAW, dtype="f16", pair="f16", mask="none", scale=-0.4),
        dict(stages=4, continues=True, **CONVERTING),
    ),
    (replace(AGAIN, keys=72, pair="bf16"), dict(block_rows=2, stages=3, **CONVERTING)),
    (SHARED, dict(block_rows=2, stages=3, continues=True, **CONVERTING)),
    (
        replace(SHARED, head_dim=64, mask="none"),
        dict(block_rows=2, stages=3, sums="added", blocks=3, **CONVERTING),
    ),
    (
        replace(SHARED, mask="bool", keys=136),
        dict(block_rows=1, m_tiles=1, block_keys=64, stages=2, **CONVERTING),
    ),
    (
        replace(RAW, rows=1, head_dim=48),
        dict(block_rows=1, min_blocks=2, blocks=1, stages=3, sums="added", **CONVERTING),
    ),
    # Rows n that two warpgroups share, one of which does not exist; tiles; a producer.
    (replace(RAW, rows=3, head_dim=64), dict(stages=5, **SHARING, **SCALED, **CONVERTING)),
    (
        replace(RAW, rows=3, head_dim=56, values="offset", offset=-300.0, scale=-0.25),
        dict(stages=4, sums="added", **SHARING, **SCALED, **CONVERTING),
    ),
    (replace(LONG, rows=4, head_dim=64), dict(stages=5, blocks=1, **SHARING)),
    (
        replace(PLAIN, queries=140),
        dict(block_rows=1, row_warpgroups=2, m_tiles=2, stages=2, continues=True),
    ),
    # Two rows n a warpgroup, of which the second may not exist; slices of two rows, of a group each
    # and of groups that are one; scales that q is multiplied by.
    (RAW, dict(block_rows=4, stages=6, blocks=1, **TWO_ROWS)),
    (replace(RAW, rows=7, mask="bool", head_dim=24), dict(block_rows=4, stages=7, **TWO_ROWS)),
    (
        replace(RAW, rows=5, head_dim=24, values="offset", offset=-300.0, scale=-0.3),
        dict(block_rows=4, stages=5, sums="added", blocks=3, **TWO_ROWS),
    ),
    (
        replace(RAW, rows=3, values="offset", offset=-300.0, scale=-0.3),
        dict(block_rows=2, stages=4, blocks=1, **TWO_ROWS),
    ),
    (replace(RAW, rows=6, seed=16), dict(block_rows=4, stages=5, blocks=5, **TWO_ROWS)),
    (replace(RAW, rows=5, head_dim=16), dict(block_rows=4, stages=5, blocks=32, **TWO_ROWS)),
    (replace(SHARED, keys=192, scale=0.5), dict(block_rows=2, stages=4, **TWO_ROWS, **SCALED)),
    (replace(RAW, rows=3, queries=330, head_dim=48), dict(stages=6, blocks=1, **THREE_TILES)),
    (
        replace(RAW, rows=5, queries=230, head_dim=40, values="offset", offset=-300.0, scale=-0.3),
        dict(stages=5, sums="added", blocks=3, **THREE_TILES),
    ),
    # Without a mask, so that exponents have the pair bias to add.
    (
        replace(RAW, keys=160, mask="none"),
        dict(block_rows=4, stages=6, blocks=1, **TWO_ROWS),
    ),
    (
        replace(RAW, rows=3, keys=160, mask="none", values="large pair bias", scale=-0.3),
        dict(block_rows=2, stages=4, blocks=2, **TWO_ROWS),
    ),
    (
        replace(RAW, rows=3, keys=160, head_dim=48, mask="none", values="dead by pair"),
        dict(stages=5, sums="added", blocks=1, **THREE_TILES),
    ),
    # With tiles, where each stage's are loaded once for both rows; a last tile of 64 queries.
    (LONG, dict(block_rows=4, stages=5, blocks=1, **TILED_ROWS)),
    (replace(LONG, rows=3, mask="bool"), dict(block_rows=2, stages=4, **TILED_ROWS)),
    (
        replace(LONG, rows=3, values="offset", offset=-300.0, scale=-0.3),
        dict(block_rows=4, stages=4, blocks=3, **TILED_ROWS),
    ),
    (replace(LONG, rows=5, mask="none", head_dim=16), dict(block_rows=4, stages=5, **TILED_ROWS)),
    # Scales that q is multiplied by: by each kind of kernel that has q in registers.
    (
        replace(RAW, head_dim=16, keys=160, mask="none", seed=19),
        dict(block_rows=4, stages=6, blocks=1, **ASKING, **SCALED, **CONVERTING),
    ),
    (replace(LONG, scale=-0.5), dict(block_rows=4, stages=5, **ASKING, **SCALED)),
    (replace(BESIDE, scale=2.0**-16), dict(block_rows=2, stages=3, continues=True, **SCALED)),
    (replace(ENDING, scale=1.0), dict(stages=5, continues=True, **SCALED)),
    (replace(SHARED, scale=-1.0), dict(block_rows=1, m_tiles=1, stages=3, **SCALED, **CONVERTING)),
)
SCALES = (2.0**-50, -(2.0**-20), 1.5, -(2.0**40))
EMULATING = [
    (case, settings | dict(emulates=True))
    for case, settings in (*OTHERS, *((replace(LONG, scale=scale), ASKING) for scale in SCALES))
    if case.dtype == "bf16" and settings.get("sums") != "added"
    if settings.get("q_in_registers", True)
]
"""The same with a quarter of the exponentials emulated, where they can be, and with scales for each
of which q is divided by something else.
"""
SETTINGS: tuple[dict[str, Any], ...] = (
    dict(stages=3, parts=2, continues=True),
    dict(block_rows=1, stages=4, q_in_registers=False),
    dict(block_rows=2, stages=2, m_tiles=1, block_keys=64),
    dict(block_rows=4, stages=2, m_tiles=1, parts=1, continues=True),
    dict(block_rows=1, stages=3, cluster=2, continues=True),
    dict(block_rows=2, stages=2),
    dict(block_rows=2, stages=2, sums="added"),
)


def problem_of(case: Case) -> Problem:
    """The problem of a case, as a call states it."""
    views = cases.host_views(cases.make(case), readonly=True)
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    return state_problem(**views).with_scale(scale)


def served(case: Case) -> bool:
    """Whether the kernel serves the problem of a case."""
    problem = problem_of(case)
    config, _ = next(kernel_90a.candidates(problem))
    return not kernel_90a.violations(config, SM_90A, problem)


def sweep() -> Iterator[tuple[Case, dict[str, Any]]]:
    """Cases of the sweep that the kernel serves, with one of `SETTINGS` after the other."""
    for index, case in enumerate(filter(served, ALL)):
        settings = SETTINGS[index % len(SETTINGS)]
        yield case, settings if case.head_dim <= 32 else settings | dict(block_rows=1, stages=3)


def converted() -> Iterator[tuple[Case, dict[str, Any]]]:
    """Cases of the sweep with a pair bias that can be converted, and a configuration that does; of
    every third one with two rows n a warpgroup, too, above D 32 in three of them.
    """
    for index, case in enumerate(ALL):
        layout = ("packed", "one B")[index % 2 if case.batch > 1 else 0]
        keys = -(-case.keys // 8) * 8
        case = replace(case, keys=keys, pair=case.dtype, pair_layout=layout)
        settings: dict[str, Any] = dict(block_rows=1 + index % 3, stages=3, **CONVERTING)
        settings |= dict(
            continues=True, sums=("column", "added")[index // 3 % 2], blocks=(132, 2)[index % 2]
        )
        settings |= ASKING if index % 5 < 2 else {}
        settings |= dict(row_warpgroups=2, m_tiles=1) if index % 7 < 3 else {}
        problem = problem_of(case)
        settings |= SCALED if problem.power_of_two and index % 4 else {}
        sharing = THREE_TILES if case.head_dim > 32 else dict(TWO_ROWS, block_rows=2)
        two_rows = settings | dict(m_tiles=2, **sharing)
        for each in (settings, *([two_rows] if index % 3 == 0 else [])):
            config = Config(case.head_dim, case.dtype, pair=case.dtype, again_words=64, **each)
            if not kernel_90a.violations(kernel_90a.adapt(config, problem), SM_90A, problem):
                yield case, each | dict(again_words=64)


def label(x: Any) -> str:
    """A part of a test's name."""
    if isinstance(x, Case):
        return name(x)
    return "-".join(f"{key}{value}" for key, value in x.items())


def run(case: Case, place: Any, settings: dict[str, Any]) -> dict[str, Strided]:
    """Run the kernel, on few threadblocks, with all heads in a set, one or two, and compare with
    float64.
    """
    inputs, results = cases.make(case), cases.make_results(case)
    arrays = {key: x.array for key, x in (inputs | results).items()}
    q, k, v = (arrays.pop(key) for key in "qkv")
    config = Config(case.head_dim, **dict(blocks=2) | settings)
    set_heads = (case.heads, 1, gcd(case.heads, 2))[case.seed % 3]
    with patch.object(Config, "heads_of_set", lambda self, problem: set_heads):
        cuevo.attention(q, k, v, **arrays, scale=case.scale, device=place, config=config)
    out, lse = results["out"].array, results["lse"].array
    rounded = EMULATED_LSE if config.emulates else ROUNDED_LSE[case.dtype]
    tolerance = cases.LSE_TOLERANCE if config.sums == "added" else rounded
    cases.check(case, out, lse, inputs, lse_tolerance=tolerance)
    cases.check_guards(case, results)
    return results


@kernel
@pytest.mark.parametrize(
    ("case", "settings"),
    [*OTHERS, *EMULATING, *(itertools.chain(sweep(), converted()) if WHOLE else ())],
    ids=label,
)
def test_results_are_those_of_float64(case: Case, settings: dict[str, Any]) -> None:
    run(case, shared("sm_90a"), settings)


def on_a_gpu(case: Case) -> dict[str, Any]:
    """Settings for a case of the sweep: the shape of what is chosen first, and of others by turns
    the sums, clusters and whether works continue.
    """
    config, _ = next(kernel_90a.candidates(problem_of(case)))
    shape = ("block_rows", "m_tiles", "stages", "q_in_registers")
    settings = {key: getattr(config, key) for key in shape} | dict(blocks=(132, 2)[case.seed % 2])
    settings |= dict(sums=("column", "added")[case.seed % 2], cluster=1 + case.seed // 2 % 2)
    return settings | dict(continues=settings["q_in_registers"] and case.seed // 4 % 2 == 1)


SERVED = [case for case in ALL if case.head_dim <= 64 and served(case)]


@unit
def test_the_sweep_on_a_gpu_is_legal() -> None:
    for case in SERVED:
        problem = problem_of(case)
        config = replace(Config(case.head_dim, case.dtype), **on_a_gpu(case))
        assert not kernel_90a.violations(kernel_90a.adapt(config, problem), SM_90A, problem)


@gpu
@pytest.mark.parametrize("case", SERVED, ids=name)
def test_the_sweep_on_a_gpu(executor: DriverExecutor, case: Case) -> None:
    first, again = (run(case, executor, on_a_gpu(case)) for _ in range(2))
    for key, result in first.items():
        cases.assert_same_bytes(case, key, again[key].array, result.array)


def asked_by_consumers() -> Iterator[tuple[Case, dict[str, Any]]]:
    """Cases of the sweep that such configurations serve, with one of them."""
    for case in ALL:
        shape = ((4, 5), (2, 3), (3, 4))[case.seed % 3]
        settings = dict(block_rows=shape[0], stages=shape[1], **ASKING)
        settings |= dict(sums=("column", "added")[case.seed % 2], blocks=(132, 2)[case.seed % 2])
        problem = problem_of(case)
        config = Config(case.head_dim, case.dtype, mask=problem.mask, pair=problem.pair, **settings)
        if case.head_dim <= 48 and not kernel_90a.violations(config, SM_90A, problem):
            yield case, settings


@gpu
@pytest.mark.parametrize("drawn", [asked_by_consumers, converted])
def test_the_sweep_in_other_ways(executor: DriverExecutor, drawn: Any) -> None:
    """Consumers that ask for boxes, or a pair bias that is converted."""
    count = 0
    for case, settings in drawn():
        first, again = (run(case, executor, settings) for _ in range(2))
        for key, result in first.items():
            cases.assert_same_bytes(case, key, again[key].array, result.array)
        count += 1
    assert count


@gpu
@pytest.mark.parametrize(("case", "settings"), [*OTHERS, *EMULATING], ids=label)
def test_the_bits_of_the_cpu_executor(
    executor: DriverExecutor, case: Case, settings: dict[str, Any]
) -> None:
    on_gpu, on_cpu = run(case, executor, settings), run(case, shared("sm_90a"), settings)
    for key, result in on_gpu.items():
        cases.assert_same_bytes(case, key, on_cpu[key].array, result.array)


@unit
@pytest.mark.parametrize("emulates", [False, True])
def test_the_machine_code_has_what_the_ledger_says(tmp_path: Path, emulates: bool) -> None:
    config = Config(32, emulates=emulates)
    rendered = render(kernel_90a.NAME, kernel_90a.values(config))
    (exponentials,) = re.findall(r"//   ex2 +(\d+) \* 8 clocks", rendered.text)
    products = re.findall(r"//   wgmma +(\d+) of n 32 \+ (\d+) of n 40", rendered.text)
    found = opcodes(assemble(rendered, "sm_90a", cache=None).code, tmp_path)
    # The slow path of each tile has those of the first part again, and one for each of two rows.
    emulated = sum(2 for pair in config.emulated if pair < config.block_keys // 4 // config.parts)
    again = config.m_tiles * (config.block_keys // 2 // config.parts - emulated + 2)
    assert found["MUFU.EX2"] == int(exponentials) + again
    # Before the loop, the scores of the first tile.
    assert found["HGMMA.64"] == sum(map(int, products[0])) + config.k_steps


@unit
def test_it_runs_where_it_is_asked_for() -> None:
    """Until it is chosen: by a Config, or by a field that no other variant has."""
    assert dispatch(VARIANTS, PROBLEM, SM_90A) is evoformer_forward_sm80
    assert dispatch(VARIANTS, PROBLEM, SM_90A, Config(32)) is kernel_90a
    assert dispatch(VARIANTS, PROBLEM, SM_90A, {"parts": 2}) is kernel_90a
    assert dispatch(VARIANTS, PROBLEM, SM_90A, {"stages": 2}) is evoformer_forward_sm80


PLACES = ("sim:sm_90a", pytest.param("cuda:0", marks=gpu))


@kernel
@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("lowered", [-300.0, -50.0, 40.0, 60.0, -np.inf], ids=str)
def test_rows_that_the_first_reference_is_far_from(device: str, lowered: float) -> None:
    """Some rows of scores, and where they are lowered by less than everything their lse."""
    rng = np.random.default_rng(3)
    q, k, v = rng.standard_normal((3, 1, 2, 40, 1, 32)).astype(ml_dtypes.bfloat16)
    pair_bias = rng.standard_normal((1, 1, 1, 40, 40)).astype(np.float32)
    pair_bias[..., 3:20, :] += lowered
    out, lse = cuevo.attention(
        q, k, v, pair_bias=pair_bias, return_lse=True, device=device, config={"blocks": 2}
    )
    exact, exact_lse = reference.attention(q, k, v, pair_bias=pair_bias)
    assert np.linalg.norm(out.astype(np.float64) - exact) < 4e-3 * np.linalg.norm(exact)
    np.testing.assert_allclose(lse, exact_lse, rtol=1e-6, atol=1e-5)


GUESSES = {
    "high": dict(pair=90.0),
    "higher as keys go on": dict(pair=2.0, rising=3.0),
    "low": dict(pair=-70.0),
    "large values": dict(pair=20.0, values=1e36),
    "a key of no weight dominates": dict(dead=115.0),
    "a key of no weight counts": dict(pair=-23.0, dead=41.0),
}
"""What is added to all scores, to those of each key after the last one, to those of a key whose
mask is -90, and what v is multiplied by.
"""


@kernel
@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("sums", ["column", "added"])
@pytest.mark.parametrize("parts", GUESSES.values(), ids=list(GUESSES))
def test_rows_that_the_guess_is_none_for(device: str, sums: str, parts: dict[str, float]) -> None:
    """Scores in natural units; the guess serves those from -55 to 69."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, n, 1, 16), np.float32) for n in (70, 83, 83))
    mask, pair = (rng.standard_normal((1, *shape), np.float32) for shape in MASK_AND_PAIR)
    pair += parts.get("pair", 0.0) + parts.get("rising", 0.0) * np.arange(83, dtype=np.float32)
    if "dead" in parts:
        mask[..., 10], pair[..., 10] = -90.0, parts["dead"]
    v *= parts.get("values", 1.0)
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in (q, k, v))
    settings = dict(block_rows=1, stages=3, parts=2, sums=sums)
    biases = dict(mask_bias=mask, pair_bias=pair)
    found = np.asarray(cuevo.attention(q, k, v, **biases, device=device, config=settings))
    exact, _ = reference.attention(q, k, v, **biases)
    error = np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact)
    assert error < cases.TOLERANCE["bf16"]


MASK_AND_PAIR = ((2, 1, 1, 83), (1, 1, 70, 83))


@kernel
@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize("value", [-1e9, 1e9, -1e15], ids=str)
@pytest.mark.parametrize("head_dim", [8, 24, 32, 64])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_row_of_keys_far_off_is_their_mean(
    dtype: str, head_dim: int, value: float, device: str
) -> None:
    """Beside 1e9 a score below 32, half a unit in its last place, is nothing in fp32."""
    rng = np.random.default_rng(head_dim)
    q, k, v = rng.standard_normal((3, 1, 2, 75, 1, head_dim), np.float32)
    q *= 20.0 / np.abs(np.einsum("bnqhd,bnkhd->bnqk", q, k) * head_dim**-0.5).max()
    q, k, v = (x.astype(DTYPES[dtype]) for x in (q, k, v))
    mask = np.full((1, 2, 1, 1, 75), value, np.float32)
    pair = rng.standard_normal((1, 1, 1, 75, 75), np.float32)
    found = np.asarray(
        cuevo.attention(q, k, v, mask_bias=mask, pair_bias=pair, device=device, config={"parts": 2})
    )
    mean = np.broadcast_to(v.astype(np.float64).mean(axis=2, keepdims=True), found.shape)
    error = np.linalg.norm(found.astype(np.float64) - mean) / np.linalg.norm(mean)
    assert error < cases.TOLERANCE[dtype]


@pytest.mark.parametrize("device", PLACES)
@pytest.mark.parametrize(
    ("head_dim", "settings"),
    [
        (24, dict(converts=True)),
        (24, dict(converts=True, sums="added")),
        (24, dict(converts=False, block_rows=2, stages=3)),
        (48, dict(converts=True, sums="added")),
        (48, dict(converts=False, stages=4, sums="added")),
        (24, dict(converts=False, block_rows=4, min_blocks=1, stages=5, **ASKING)),
        (24, dict(converts=True, block_rows=4, min_blocks=1, stages=5, sums="added", **ASKING)),
        (24, dict(converts=True, block_rows=2, m_tiles=1, block_keys=64, stages=3, **ASKING)),
    ],
    ids=str,
)
def test_what_the_next_head_has_does_not_matter(
    device: str, head_dim: int, settings: dict[str, Any]
) -> None:
    """Rows in shared memory are longer than D."""
    case = Case("bf16", head_dim, 70, 104, rows=3, heads=3, mask="bf16", pair="bf16", seed=16)
    given = {key: np.ascontiguousarray(x.array) for key, x in cases.make(case).items()}
    settings = dict(settings, cluster=1, blocks=2)
    expected = cuevo.attention(**given, device=device, config=settings)[:, :, :, ::2]
    for key in "kv":
        given[key][:, :, :, 1] = np.nan
        given[key][:, :, ::3, 1] = np.inf
    found = cuevo.attention(**given, device=device, config=settings)
    assert np.isnan(found[:, :, :, 1].astype(np.float32)).all()
    found = found[:, :, :, ::2]
    np.testing.assert_array_equal(found, expected)
    exact = cases.expected(case, cases.make(case))[0][:, :, :, ::2]
    error = found.astype(np.float64) - exact
    assert np.linalg.norm(error) < cases.TOLERANCE["bf16"] * np.linalg.norm(exact)


@kernel
def test_an_lse_that_is_asked_for_is_exact() -> None:
    case = replace(PLAIN, dtype="bf16", head_dim=16, batch=1)
    inputs = cases.make(case)
    arrays = {key: x.array for key, x in inputs.items()}
    settings = dict(block_rows=1, m_tiles=1, parts=1)
    _, lse = cuevo.attention(**arrays, return_lse=True, device="sim:sm_90a", config=settings)
    assert np.abs(lse - cases.expected(case, inputs)[1]).max() < 1e-5


@kernel
@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_the_assembler_waits_for_no_product_by_itself(dtype: str, continues: bool) -> None:
    problem = replace(PROBLEM, dtype=dtype, mask=dtype, pair=dtype, queries=257)
    config = replace(next(kernel_90a.candidates(problem))[0], continues=continues)
    found = [
        objections(kernel_90a, part.config, "sm_90a") for part in kernel_90a.parts(config, problem)
    ]
    assert found == [([], False)] * 2


@kernel
@pytest.mark.parametrize("mask", ["none", "bf16"])
@pytest.mark.parametrize("head_dim", [16, 24, 32, 40, 48, 56, 64])
def test_no_candidate_spills(head_dim: int, mask: str) -> None:
    problem = replace(PROBLEM, rows=12, queries=512, keys=512, head_dim=head_dim, mask=mask)
    offered = [config for config, _ in kernel_90a.candidates(problem)]
    legal = [config for config in offered if not kernel_90a.violations(config, SM_90A, problem)]
    assert any(config.converts for config in legal)
    found = [objections(kernel_90a, config, "sm_90a") for config in legal]
    assert found == [([], False)] * len(legal)


UNIFORM = {"bf16": re.compile(r"R\d+, R\d+, UR\d+, R\d+"), "none": re.compile(r"R\d+, R\d+, UR\d+")}
"""Operands of what makes exponents of scores, with a mask's number to add to them and without."""
COUNTS = re.compile(r"R\d+, R\d+, (UR\d+, R\d+|R\d+, 4\.5559\S+)")
"""The same of what makes counts of them, which have a constant to add where there is no mask."""


@kernel
@pytest.mark.parametrize("mask", list(UNIFORM))
@pytest.mark.parametrize("head_dim", [16, 32, 48])
def test_exponents_multiply_by_a_uniform_register(head_dim: int, mask: str) -> None:
    problem = replace(PROBLEM, rows=48, keys=512, head_dim=head_dim, mask=mask)
    offered = [config for config, _ in kernel_90a.candidates(problem)]
    config = next(each for each in offered if each.consumers_ask and each.tiled)
    code = assemble(render(kernel_90a.NAME, kernel_90a.values(config)), "sm_90a", cache=None)
    patterns = {"FMUL.FTZ" if mask == "none" else "FFMA.FTZ": UNIFORM[mask], "FFMA": COUNTS}
    found = [
        each
        for each in disassemble(code).instructions
        if (operands := patterns.get(each.opcode))
        and operands.fullmatch(each.operands.replace(".reuse", ""))
    ]
    assert config.emulates
    assert len(found) >= config.m_tiles * config.block_keys // 2
