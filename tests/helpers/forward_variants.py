"""Runs of a forward kernel, whichever it is, and tests of one below sm_80: the base class of those
in the files that have the kernels' names.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from helpers import attention_cases as cases
from helpers.attention_cases import Case, OnDevice, Strided
from helpers.attention_sweep import CASES, in_half_precision, name
from helpers.ledgers import opcodes

from cuevo.architectures import architecture
from cuevo.arrays import ArrayView
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of
from cuevo.executors.protocol import Executor, LoadedKernel
from cuevo.kernels import evoformer_forward_sm80 as sm80
from cuevo.kernels.forward import Problem
from cuevo.ops.attention_problem import broadcast_biases, check_scale, state_problem
from cuevo.sim import SimExecutor
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

kernel = pytest.mark.kernel
unit = pytest.mark.unit
gpu = pytest.mark.gpu

HEAD_DIMS = tuple(range(8, 129, 8))
HALVES = tuple(map(in_half_precision, CASES))
WIDE = Case("f16", 48, 150, 133, 1, 2, 1, mask="f16", pair="f32", layout="heads first", seed=1)
BIASES = (("f32", "f16"), ("bool", "f32"), ("f16", "none"), ("none", "f16"))
PROBLEM = Problem(1, 4, 2, 100, 128, 32, "f16", "f16", "f16", 16)
FARTHEST = float(np.finfo(np.float32).min)


def label(x: Any) -> str:
    """A part of a test's name."""
    if isinstance(x, Case):
        return f"{x.arch}-{name(x)}"
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
        **broadcast_biases(operands, problem),
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
    variant: ModuleType,
    case: Case,
    inputs: dict[str, Strided],
    place: DriverExecutor,
    **changes: Any,
) -> dict[str, Strided]:
    results = cases.make_results(case)
    on_device = OnDevice(inputs | results, place)
    launch(variant, case, place, on_device.views, **changes)
    on_device.fetch(results)
    return results


class ForwardVariantTests:
    """Tests of `variant`, the host module of a kernel."""

    variant: ClassVar[ModuleType]
    own: ClassVar[str]
    """The architecture that it is for."""
    iterator: ClassVar[str]
    """The file of ``ptx/lib`` that reads its fragments."""

    # -- Results -----------------------------------------------------------------------------------

    @gpu
    @pytest.mark.parametrize("case", HALVES, ids=name)
    def test_the_sweep_on_a_gpu(self, executor: DriverExecutor, case: Case) -> None:
        inputs = cases.make(case)
        results = run_on_gpu(self.variant, case, inputs, executor)
        cases.check(case, results["out"].array, results["lse"].array, inputs)
        cases.check_guards(case, results)
        again = run_on_gpu(self.variant, case, inputs, executor)
        for key, first in results.items():
            cases.assert_same_bytes(case, key, again[key].array, first.array)

    @gpu
    @pytest.mark.parametrize(("batch", "rows"), [(1, 70000), (70000, 1)], ids=str)
    def test_more_rows_than_a_grid_axis_has(
        self, executor: DriverExecutor, batch: int, rows: int
    ) -> None:
        case = Case("f16", 8, 8, 8, batch, rows, 1, mask="f32", pair="f16", seed=rows)
        inputs = cases.make(case)
        results = run_on_gpu(self.variant, case, inputs, executor)
        cases.check(case, results["out"].array, results["lse"].array, inputs)

    @kernel
    def test_the_same_bits_without_lse_and_from_any_memory(self) -> None:
        """Only the tiling decides the order of the sums."""
        case = replace(WIDE, head_dim=80, queries=70, keys=70, arch=self.own)
        inputs = cases.make(case)
        first, second = (
            run_on_cpu(self.variant, case, inputs),
            run_on_cpu(self.variant, case, inputs),
        )
        alone = run_on_cpu(self.variant, case, inputs, with_lse=False)
        for key in first:
            cases.assert_same_bytes(case, key, second[key].array, first[key].array)
        cases.assert_same_bytes(case, "out", alone["out"].array, first["out"].array)
        assert (alone["lse"].memory == cases.POISON).all()
        for layout in ("packed", "reversed", "fused"):
            other = replace(case, layout=layout, mask_layout="keys first", pair_layout="aligned 4")
            found = run_on_cpu(self.variant, other, cases.make(other))
            cases.assert_same_bytes(other, "out", found["out"].array, first["out"].array)

    @kernel
    @pytest.mark.parametrize("where", ["mask", "pair"])
    @pytest.mark.parametrize("value", [-1e9, -1e15, FARTHEST])
    def test_keys_far_below_the_others(self, where: str, value: float) -> None:
        """Row 0: the first 70 of 75 keys are far below. Row 1, or every row: all are, which weighs
        them the same: beside 1e9 a score of ordinary size is nothing in fp32.
        """
        case = Case("f16", 24, 20, 75, rows=2, **{where: "f32"}, arch=self.own, seed=24)
        inputs = cases.make(case)
        bias = inputs[f"{where}_bias"].array
        bias[...] = 0.0
        bias[..., :70] = value
        results = run_on_cpu(self.variant, case, inputs)
        cases.check(case, results["out"].array, results["lse"].array, inputs)
        bias[...] = value
        results = run_on_cpu(self.variant, case, inputs)
        found = results["out"].array.astype(np.float64)
        mean = inputs["v"].array.astype(np.float64).mean(axis=2, keepdims=True)
        error = np.linalg.norm(found - mean) / np.linalg.norm(np.broadcast_to(mean, found.shape))
        assert error < cases.TOLERANCE["f16"], (case, value)
        np.testing.assert_allclose(results["lse"].array, value, rtol=cases.LSE_TOLERANCE)

    @kernel
    @pytest.mark.parametrize("offset", [1e4, -1e4])
    def test_a_bias_of_1e4_on_every_key(self, offset: float) -> None:
        """It is added in fp32, half a unit of which is 2^-24 of the sum."""
        for arch in (self.own, "sm_90"):
            case = Case("f16", 64, 50, 70, mask="f32", values="offset", offset=offset, arch=arch)
            inputs = cases.make(case)
            results = run_on_cpu(self.variant, case, inputs)
            slack = 2.0**-24 * abs(offset)
            cases.check(case, results["out"].array, results["lse"].array, inputs, slack)

    # -- Shared memory, machine code ---------------------------------------------------------------

    @kernel
    @pytest.mark.parametrize("head_dim", HEAD_DIMS)
    def test_fragments_are_read_without_bank_conflicts(self, head_dim: int) -> None:
        case = Case("f16", head_dim, 33, 40, arch=self.own, shape=head_dim // 8)
        results = cases.make_results(case)
        inputs = cases.host_views(cases.make(case), readonly=True)
        views = inputs | cases.host_views(results, readonly=False)
        loaded = launch(self.variant, case, sim(case.arch, profile=True), views)
        assert loaded.profile is not None
        read = [use for use in loaded.profile.banks if f"lib/{self.iterator}.ptx" in use.origin]
        copied = [use for use in loaded.profile.banks if "lib/copy_pipelined.ptx" in use.origin]
        assert len(read) > 3 and len(copied) > 3
        assert all(use.opcode.startswith(("ldmatrix", "ld.shared")) for use in read)
        worse = [f"{use.origin}: {use.opcode}: {use}" for use in (*read, *copied) if use.conflicts]
        assert not worse, "\n".join(worse)

    # -- The host half -----------------------------------------------------------------------------

    @unit
    @pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_120"])
    def test_what_is_chosen_is_legal(self, arch: str) -> None:
        limits = architecture(arch)
        if limits.number < self.variant.MINIMUM_ARCH:
            with pytest.raises(
                ValueError, match=rf"{self.variant.NAME} has no configuration for Problem\("
            ):
                self.variant.choose(PROBLEM, limits)
            return
        for index, head_dim in enumerate(HEAD_DIMS):
            for mask, pair in BIASES:
                keys = (1, 77, 128, 1000)[index % 4]
                problem = Problem(2, 3, 2, 1 + 99 * index, keys, head_dim, "f16", mask, pair, 2)
                config = self.variant.choose(problem, limits)
                assert self.variant.violations(config, limits, problem) == ()
                assert config.mask == ("bounds" if mask == "none" and keys != 128 else mask)
                blocks = config.grid(problem)[0] // config.value_parts
                assert blocks * config.block_queries >= 12 * problem.queries

    @unit
    def test_large_problems_get_larger_tiles_than_small_ones(self) -> None:
        limits = architecture(self.own)
        small = self.variant.choose(replace(PROBLEM, rows=1, queries=16), limits)
        large = self.variant.choose(replace(PROBLEM, rows=512, queries=512, keys=512), limits)
        assert small.block_queries < large.block_queries

    @unit
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
        self, config: dict[str, Any], problem: dict[str, Any], reason: str
    ) -> None:
        base, arch = self.variant.Config(head_dim=32), architecture("sm_75")
        assert self.variant.violations(base, arch, PROBLEM) == ()
        (found,) = self.variant.violations(
            replace(base, **config), arch, replace(PROBLEM, **problem)
        )
        assert reason in found
        fitted = self.variant.adapt(replace(base, **config), replace(PROBLEM, **problem))
        assert self.variant.violations(fitted, arch, replace(PROBLEM, **problem)) == ()

    @unit
    def test_fields_have_their_types_and_registers_their_room(self) -> None:
        with pytest.raises(TypeError, match="block_keys: expected int; got '32'"):
            self.variant.Config(head_dim=32, block_keys="32")
        config = self.variant.Config(head_dim=32, min_blocks=3)
        assert [each.min_blocks for each in self.variant.spill_fallbacks(config)] == [3, 2, 1]
        assert {field.name for field in fields(config)} >= {"head_dim", "block_queries", "mask"}

    @unit
    def test_the_parameter_block_is_that_of_the_highest_variant(self) -> None:
        """Only what follows from the tiling differs."""
        case = replace(WIDE, scale=-0.5)
        views = cases.host_views(cases.make(case) | cases.make_results(case), readonly=False)
        found = self.variant.parameters(self.variant.Config(head_dim=48), scale=-0.5, **views)
        other = sm80.parameters(sm80.Config(head_dim=48, dtype="f16"), scale=-0.5, **views)
        assert set(found) == {
            field.name for field in load_header().kernels[self.variant.NAME].fields
        }
        differs = {key for key, value in found.items() if value != other[key]}
        assert differs <= {
            f"{x}_step_{y}" for x in ("k", "v", "pair", "mask") for y in ("pass", "tile")
        } | {f"{x}{y}" for x in ("query_tiles", "row_groups") for y in ("", "_magic", "_shift")}
        assert (found["q_multiplier"], found["mask_step_tile"]) == (0xBC00BC00, 64)

    # -- Checks of what differs from kernel to kernel ----------------------------------------------

    def check_case(self, case: Case, **options: Any) -> None:
        """Run the kernel on the CPU executor and compare with float64."""
        inputs = cases.make(case)
        results = run_on_cpu(self.variant, case, inputs, **options)
        cases.check(case, results["out"].array, results["lse"].array, inputs)
        cases.check_guards(case, results)

    def check_tiling(self, head_dim: int, tiling: dict[str, int]) -> None:
        """Run an instance with this tiling."""
        case = replace(WIDE, head_dim=head_dim, arch="sm_90")
        self.check_case(case, min_blocks=1, **tiling)

    def check_sweep(self, sweep: Sequence[Case], newer: bool) -> None:
        """The cases of an architecture have every kind of everything."""
        arch = "sm_90" if newer else self.own
        found = [case for case in sweep if case.arch == arch]
        assert len(found) > 15

        def seen(field: str) -> set[Any]:
            return {getattr(case, field) for case in found}

        assert seen("dtype") == {"f16"}
        assert seen("head_dim") == set(HEAD_DIMS)
        assert seen("values") == set(cases.VALUES)
        assert seen("layout") == set(cases.LAYOUTS)
        assert seen("mask_layout") == {*cases.MASK_LAYOUTS, *cases.SINGLE}
        assert seen("pair_layout") == {*cases.PAIR_LAYOUTS, "one B"}
        assert seen("mask") == {"none", "f16", "f32", "bool"}
        assert seen("pair") == {"none", "f16", "f32"}
        assert {None, 0.0, -0.3, 1e-20, -1e-25} < seen("scale")

    def check_ledger(self, settings: dict[str, int], tmp_path: Path) -> None:
        """The machine code has the instructions that the ledger above the main loop says."""
        rendered = render(self.variant.NAME, self.variant.values(self.variant.Config(**settings)))
        (mma,) = re.findall(r"//   mma\.\S+ .* = (\d+)", rendered.text)
        (reads,) = re.findall(r"//   fragments .* = (\d+)", rendered.text)
        (scores, rows) = re.findall(r"//   ex2 +(\d+) \+ (\d+)", rendered.text)[0]
        found = opcodes(assemble(rendered, "sm_75", cache=None).code, tmp_path)
        assert found["MUFU.EX2"] == int(scores) + int(rows)
        self.check_products(found, int(mma), int(reads))

    def check_products(self, found: Mapping[str, int], mma: int, reads: int) -> None:
        """The opcodes of `mma` products and `reads` loads of fragments are there."""
        raise NotImplementedError

    def check_constraint(self, changes: dict[str, Any], arch: str, reason: str) -> None:
        """The changed configuration is legal but for `reason`."""
        base = self.variant.Config(head_dim=32)
        assert self.variant.violations(base, architecture(self.own)) == ()
        (found,) = self.variant.violations(replace(base, **changes), architecture(arch))
        assert reason in found
