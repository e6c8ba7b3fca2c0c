"""ptx/evoformer_forward_sm75.ptx and ..._sm70.ptx against float64, on the CPU executor and a GPU;
bank conflicts, resources, ledger and host halves.
"""

import re
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers import attention_cases as cases
from helpers.attention_cases import Case, OnDevice, Strided
from helpers.attention_sweep import CASES, covering, in_half_precision, name
from helpers.ledgers import opcodes

from cuevo.architectures import architecture
from cuevo.arrays import ArrayView
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of
from cuevo.executors.protocol import Executor, LoadedKernel
from cuevo.kernels import evoformer_forward_sm70 as sm70
from cuevo.kernels import evoformer_forward_sm75 as sm75
from cuevo.kernels import evoformer_forward_sm80 as sm80
from cuevo.kernels.forward import Problem
from cuevo.ops.attention_problem import check_scale, state_problem
from cuevo.sim import SimExecutor
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

kernel = pytest.mark.kernel
unit = pytest.mark.unit
gpu = pytest.mark.gpu

VARIANTS = (sm75, sm70)
OWN = {sm75: "sm_75", sm70: "sm_70"}
"""The architecture that a variant is for."""
HEAD_DIMS = tuple(range(8, 129, 8))
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.NAME[-4:])


def label(x: Any) -> str:
    """A part of a test's name."""
    if isinstance(x, Case):
        return f"{x.arch}-{name(x)}"
    if isinstance(x, ModuleType):
        return x.NAME[-4:]
    return "-".join(f"{key}{value}" for key, value in x.items()) if isinstance(x, dict) else str(x)


@cache
def sim(arch: str, profile: bool = False) -> SimExecutor:
    return SimExecutor(arch, profile=profile)


def configuration(variant: ModuleType, case: Case, problem: Problem, place: Executor) -> Any:
    """The candidate that the case names, of those that can run on `place`, or the one chosen."""
    arch = architecture_of(place)
    if case.shape is None:
        return variant.choose(problem, arch)
    offered = [
        c for c, _ in variant.candidates(problem) if not variant.violations(c, arch, problem)
    ]
    return offered[case.shape % len(offered)]


def launch(
    variant: ModuleType,
    case: Case,
    place: Executor,
    views: dict[str, ArrayView],
    *,
    with_lse: bool = True,
    **changes: Any,
) -> LoadedKernel:
    """Run the kernel on the arrays, out and lse among them."""
    operands = {key: x for key, x in views.items() if key != "lse"}
    problem = state_problem(**operands)
    config = configuration(variant, case, problem, place)
    config = variant.adapt(replace(config, **changes), problem)
    assert variant.violations(config, architecture_of(place), problem) == ()
    loaded = place.load(render(variant.NAME, variant.values(config)))
    parameters = variant.parameters(
        config,
        scale=check_scale(case.scale, case.head_dim),
        lse=views["lse"] if with_lse else None,
        **operands,
    )
    loaded.launch(
        config.grid(problem),
        (config.threads, 1, 1),
        config.shared_bytes,
        load_header().kernels[variant.NAME].pack(parameters),
        buffers=list(views.values()),
    )
    return loaded


def run_on_cpu(
    variant: ModuleType, case: Case, inputs: dict[str, Strided], **options: Any
) -> dict[str, Strided]:
    results = cases.make_results(case)
    views = cases.host_views(inputs, readonly=True) | cases.host_views(results, readonly=False)
    launch(variant, case, sim(case.arch), views, **options)
    return results


def run_on_gpu(
    variant: ModuleType, case: Case, inputs: dict[str, Strided], place: DriverExecutor
) -> dict[str, Strided]:
    results = cases.make_results(case)
    on_device = OnDevice(inputs | results, place)
    launch(variant, case, place, on_device.views)
    on_device.fetch(results)
    return results


# -- The sweep -------------------------------------------------------------------------------------

HALVES = tuple(map(in_half_precision, CASES))
# Each variant meets others of the cases, on its own architecture and on a newer one.
SWEEP = [
    (variant, case)
    for start, variant, arch in (
        (0, sm75, "sm_75"),
        (60, sm70, "sm_70"),
        (120, sm75, "sm_90"),
        (180, sm70, "sm_90"),
    )
    for case in covering(HALVES[start:] + HALVES[:start], arch)
]


@kernel
@pytest.mark.parametrize(("variant", "case"), SWEEP, ids=label)
def test_the_sweep(variant: ModuleType, case: Case) -> None:
    inputs = cases.make(case)
    results = run_on_cpu(variant, case, inputs)
    cases.check(case, results["out"].array, results["lse"].array, inputs)
    cases.check_guards(case, results)


@gpu
@each_variant
@pytest.mark.parametrize("case", HALVES, ids=name)
def test_the_sweep_on_a_gpu(executor: DriverExecutor, variant: ModuleType, case: Case) -> None:
    inputs = cases.make(case)
    results = run_on_gpu(variant, case, inputs, executor)
    cases.check(case, results["out"].array, results["lse"].array, inputs)
    cases.check_guards(case, results)
    again = run_on_gpu(variant, case, inputs, executor)
    for key, first in results.items():
        cases.assert_same_bytes(case, key, again[key].array, first.array)


@unit
@each_variant
@pytest.mark.parametrize("newer", [False, True])
def test_the_sweep_has_everything(variant: ModuleType, newer: bool) -> None:
    arch = "sm_90" if newer else OWN[variant]
    found = [case for each, case in SWEEP if each is variant and case.arch == arch]
    assert len(found) > 15

    def seen(field: str) -> set[Any]:
        return {getattr(case, field) for case in found}

    assert seen("dtype") == {"f16"}
    assert seen("head_dim") == set(HEAD_DIMS)
    assert seen("values") == set(cases.VALUES)
    assert seen("layout") == set(cases.LAYOUTS)
    assert seen("mask_layout") == set(cases.MASK_LAYOUTS)
    assert seen("pair_layout") == set(cases.PAIR_LAYOUTS)
    assert (seen("mask"), seen("pair")) == ({"none", "f16", "f32", "bool"}, {"none", "f16", "f32"})
    assert {None, 0.0, -0.3, 1e-20, -1e-25} < seen("scale")


@gpu
@each_variant
@pytest.mark.parametrize(("batch", "rows"), [(1, 70000), (70000, 1)], ids=str)
def test_more_rows_than_a_grid_axis_has(
    executor: DriverExecutor, variant: ModuleType, batch: int, rows: int
) -> None:
    case = Case("f16", 8, 8, 8, batch, rows, 1, mask="f32", pair="f16", seed=rows)
    inputs = cases.make(case)
    results = run_on_gpu(variant, case, inputs, executor)
    cases.check(case, results["out"].array, results["lse"].array, inputs)


# -- Tilings, bits, memory -------------------------------------------------------------------------

WIDE = Case("f16", 48, 150, 133, 1, 2, 1, mask="f16", pair="f32", layout="heads first", seed=1)
TILINGS = [
    (sm75, 48, dict(block_queries=16, warp_queries=16)),
    (sm75, 48, dict(block_queries=256, warp_queries=32, block_keys=64)),
    (sm75, 120, dict(block_queries=64, warp_queries=32)),
    (sm75, 128, dict(block_queries=128, warp_queries=16)),
    (sm70, 8, dict(block_queries=32)),
    (sm70, 56, dict(block_queries=64, block_keys=64)),
    (sm70, 72, dict(block_queries=128)),
    (sm70, 128, dict(block_queries=32, block_keys=64)),
]


@kernel
@pytest.mark.parametrize(("variant", "head_dim", "tiling"), TILINGS, ids=label)
def test_every_tiling(variant: ModuleType, head_dim: int, tiling: dict[str, int]) -> None:
    case = replace(WIDE, head_dim=head_dim, arch="sm_90")
    inputs = cases.make(case)
    results = run_on_cpu(variant, case, inputs, min_blocks=1, **tiling)
    cases.check(case, results["out"].array, results["lse"].array, inputs)
    cases.check_guards(case, results)


@kernel
@each_variant
def test_the_same_bits_without_lse_and_from_any_memory(variant: ModuleType) -> None:
    """Only the tiling decides the order of the sums."""
    case = replace(WIDE, head_dim=80, queries=70, keys=70, arch=OWN[variant])
    inputs = cases.make(case)
    first, second = run_on_cpu(variant, case, inputs), run_on_cpu(variant, case, inputs)
    alone = run_on_cpu(variant, case, inputs, with_lse=False)
    for key in first:
        cases.assert_same_bytes(case, key, second[key].array, first[key].array)
    cases.assert_same_bytes(case, "out", alone["out"].array, first["out"].array)
    assert (alone["lse"].memory == cases.POISON).all()
    for layout in ("packed", "reversed", "fused"):
        other = replace(case, layout=layout, mask_layout="keys first", pair_layout="aligned 4")
        found = run_on_cpu(variant, other, cases.make(other))
        cases.assert_same_bytes(other, "out", found["out"].array, first["out"].array)


# -- Biases far below every score ------------------------------------------------------------------

FARTHEST = float(np.finfo(np.float32).min)


@kernel
@each_variant
@pytest.mark.parametrize("where", ["mask", "pair"])
@pytest.mark.parametrize("value", [-1e9, -1e15, FARTHEST])
def test_keys_far_below_the_others(variant: ModuleType, where: str, value: float) -> None:
    """Row 0: the first 70 of 75 keys are far below. Row 1, or every row: all are, which weighs them
    the same: beside 1e9 a score of ordinary size is nothing in fp32.
    """
    case = Case("f16", 24, 20, 75, rows=2, **{where: "f32"}, arch=OWN[variant], seed=24)
    inputs = cases.make(case)
    bias = inputs[f"{where}_bias"].array
    bias[...] = 0.0
    bias[..., :70] = value
    results = run_on_cpu(variant, case, inputs)
    cases.check(case, results["out"].array, results["lse"].array, inputs)
    bias[...] = value
    results = run_on_cpu(variant, case, inputs)
    found = results["out"].array.astype(np.float64)
    mean = inputs["v"].array.astype(np.float64).mean(axis=2, keepdims=True)
    error = np.linalg.norm(found - mean) / np.linalg.norm(np.broadcast_to(mean, found.shape))
    assert error < cases.TOLERANCE["f16"], (case, value)
    np.testing.assert_allclose(results["lse"].array, value, rtol=cases.LSE_TOLERANCE)


@kernel
@each_variant
@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_a_bias_of_1e4_on_every_key(variant: ModuleType, offset: float) -> None:
    """It is added in fp32, half a unit of which is 2^-24 of the sum."""
    for arch in (OWN[variant], "sm_90"):
        case = Case("f16", 64, 50, 70, mask="f32", values="offset", offset=offset, arch=arch)
        inputs = cases.make(case)
        results = run_on_cpu(variant, case, inputs)
        slack = 2.0**-24 * abs(offset)
        cases.check(case, results["out"].array, results["lse"].array, inputs, slack)


# -- Shared memory ---------------------------------------------------------------------------------


@kernel
@each_variant
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_fragments_are_read_without_bank_conflicts(variant: ModuleType, head_dim: int) -> None:
    case = Case("f16", head_dim, 33, 40, arch=OWN[variant], shape=head_dim // 8)
    results = cases.make_results(case)
    inputs = cases.host_views(cases.make(case), readonly=True)
    views = inputs | cases.host_views(results, readonly=False)
    loaded = launch(variant, case, sim(case.arch, profile=True), views)
    assert loaded.profile is not None
    iterator = "warp_iterator_sm70" if variant is sm70 else "warp_iterator"
    read = [use for use in loaded.profile.banks if f"lib/{iterator}.ptx" in use.origin]
    copied = [use for use in loaded.profile.banks if "lib/copy_pipelined.ptx" in use.origin]
    assert len(read) > 3 and len(copied) > 3
    assert all(use.opcode.startswith(("ldmatrix", "ld.shared")) for use in read)
    worse = [f"{use.origin}: {use.opcode}: {use}" for use in (*read, *copied) if use.conflicts]
    assert not worse, "\n".join(worse)


# -- Machine code ----------------------------------------------------------------------------------

BIASES = (("f32", "f16"), ("bool", "f32"), ("f16", "none"), ("none", "f16"))


LEDGERS = [
    (sm75, dict(head_dim=8)),
    (sm75, dict(head_dim=24, block_keys=64)),
    (sm75, dict(head_dim=64, warp_queries=32, block_queries=128)),
    (sm70, dict(head_dim=40)),
    (sm70, dict(head_dim=128)),
]


@unit
@pytest.mark.parametrize(("variant", "settings"), LEDGERS, ids=label)
def test_the_machine_code_has_what_the_ledger_says(
    variant: ModuleType, settings: dict[str, int], tmp_path: Path
) -> None:
    rendered = render(variant.NAME, variant.values(variant.Config(**settings)))
    (mma,) = re.findall(r"//   mma\.\S+ .* = (\d+)", rendered.text)
    (reads,) = re.findall(r"//   fragments .* = (\d+)", rendered.text)
    (scores, rows) = re.findall(r"//   ex2 +(\d+) \+ (\d+)", rendered.text)[0]
    found = opcodes(assemble(rendered, "sm_75", cache=None).code, tmp_path)
    assert found["MUFU.EX2"] == int(scores) + int(rows)
    if variant is sm75:
        assert (found["HMMA.1688"], found["LDSM.16"]) == (int(mma), int(reads))
    else:
        assert found["HMMA.884"] == 4 * int(mma)


# -- The host halves -------------------------------------------------------------------------------

PROBLEM = Problem(1, 4, 2, 100, 128, 32, "f16", "f16", "f16", 16)


@unit
@each_variant
@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_120"])
def test_what_is_chosen_is_legal(variant: ModuleType, arch: str) -> None:
    limits = architecture(arch)
    if limits.number < variant.MINIMUM_ARCH:
        with pytest.raises(ValueError, match=rf"{variant.NAME} has no configuration for Problem\("):
            variant.choose(PROBLEM, limits)
        return
    for index, head_dim in enumerate(HEAD_DIMS):
        for mask, pair in BIASES:
            keys = (1, 77, 128, 1000)[index % 4]
            problem = Problem(2, 3, 2, 1 + 99 * index, keys, head_dim, "f16", mask, pair, 2)
            config = variant.choose(problem, limits)
            assert variant.violations(config, limits, problem) == ()
            assert config.mask == ("bounds" if mask == "none" and keys != 128 else mask)
            blocks = config.grid(problem)[0] // config.value_parts
            assert blocks * config.block_queries >= 12 * problem.queries


@unit
@each_variant
def test_large_problems_get_larger_tiles_than_small_ones(variant: ModuleType) -> None:
    limits = architecture(OWN[variant])
    small = variant.choose(replace(PROBLEM, rows=1, queries=16), limits)
    large = variant.choose(replace(PROBLEM, rows=512, queries=512, keys=512), limits)
    assert small.block_queries < large.block_queries


@unit
@pytest.mark.parametrize(
    ("variant", "changes", "arch", "reason"),
    [
        (sm75, dict(), "sm_70", "mma.m16n8k8 needs sm_75; this is sm_70"),
        (sm75, dict(head_dim=36), "sm_75", "head_dim must be a multiple of 8 from 8 to 128"),
        (sm70, dict(head_dim=136), "sm_70", "head_dim must be"),
        (sm75, dict(dtype="bf16"), "sm_75", "bf16 needs the tensor cores of sm_80 or later"),
        (sm70, dict(mask="bf16"), "sm_90", "evoformer_forward_sm70 takes q, k, v and 16-bit"),
        (sm70, dict(pair="bf16"), "sm_70", "biases in float16"),
        (sm75, dict(dtype="f32"), "sm_75", "dtype must be f16, not 'f32'"),
        (sm75, dict(mask="int8"), "sm_75", "mask must be one of none, bounds, bool, f16, f32"),
        (sm75, dict(pair="bool"), "sm_75", "pair must be none, f16 or f32, not 'bool'"),
        (sm75, dict(warp_queries=48), "sm_75", "warp_queries must be 16 or 32"),
        (sm70, dict(warp_queries=16), "sm_70", "warp_queries must be 32, not 16"),
        (sm75, dict(block_queries=48), "sm_75", "those of 1, 2, 4 or 8 warps, not 48"),
        (sm75, dict(block_keys=48), "sm_75", "block_keys must be 32 or 64, not 48"),
        (sm75, dict(min_blocks=0), "sm_75", "0 blocks of 128 threads do not fit"),
        (sm75, dict(min_blocks=9), "sm_75", "9 blocks of 128 threads do not fit"),
        (sm75, dict(head_dim=128, block_queries=128, block_keys=64), "sm_75", "a block of sm_75"),
    ],
)
def test_each_constraint(
    variant: ModuleType, changes: dict[str, Any], arch: str, reason: str
) -> None:
    base = variant.Config(head_dim=32)
    assert variant.violations(base, architecture(OWN[variant])) == ()
    (found,) = variant.violations(replace(base, **changes), architecture(arch))
    assert reason in found


@unit
@each_variant
@pytest.mark.parametrize(
    ("config", "problem", "reason"),
    [
        (dict(), dict(head_dim=40), "another head_dim, dtype or type of pair_bias"),
        (dict(), dict(pair="f32"), "another head_dim, dtype or type of pair_bias"),
        (dict(), dict(mask="bool"), "an instance for mask f16, not bool"),
        (
            dict(mask="none"),
            dict(mask="none", keys=100),
            '100 keys end within a tile of 32; mask must be "bounds"',
        ),
    ],
)
def test_each_constraint_of_a_problem(
    variant: ModuleType, config: dict[str, Any], problem: dict[str, Any], reason: str
) -> None:
    base, arch = variant.Config(head_dim=32), architecture("sm_75")
    assert variant.violations(base, arch, PROBLEM) == ()
    (found,) = variant.violations(replace(base, **config), arch, replace(PROBLEM, **problem))
    assert reason in found
    fitted = variant.adapt(replace(base, **config), replace(PROBLEM, **problem))
    assert variant.violations(fitted, arch, replace(PROBLEM, **problem)) == ()


@unit
@each_variant
def test_fields_have_their_types_and_registers_their_room(variant: ModuleType) -> None:
    with pytest.raises(TypeError, match="block_keys: expected int; got '32'"):
        variant.Config(head_dim=32, block_keys="32")
    config = variant.Config(head_dim=32, min_blocks=3)
    assert [each.min_blocks for each in variant.spill_fallbacks(config)] == [3, 2, 1]
    assert {field.name for field in fields(config)} >= {"head_dim", "block_queries", "mask"}


@unit
@each_variant
def test_the_parameter_block_is_that_of_the_highest_variant(variant: ModuleType) -> None:
    """Only what follows from the tiling differs."""
    case = replace(WIDE, scale=-0.5)
    views = cases.host_views(cases.make(case) | cases.make_results(case), readonly=False)
    found = variant.parameters(variant.Config(head_dim=48), scale=-0.5, **views)
    other = sm80.parameters(sm80.Config(head_dim=48, dtype="f16"), scale=-0.5, **views)
    assert set(found) == {field.name for field in load_header().kernels[variant.NAME].fields}
    differs = {key for key, value in found.items() if value != other[key]}
    assert differs <= {
        f"{x}_step_{y}" for x in ("k", "v", "pair", "mask") for y in ("pass", "tile")
    } | {f"{x}{y}" for x in ("query_tiles", "row_groups") for y in ("", "_magic", "_shift")}
    assert (found["q_multiplier"], found["mask_step_tile"]) == (0xBC00BC00, 64)
