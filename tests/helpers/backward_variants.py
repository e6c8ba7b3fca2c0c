"""Tests of a backward kernel below sm_80, whichever it is: the base class of those in the files
that have the kernels' names. Calls go through `cuevo.attention_backward`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import combinations, product
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from helpers import backward_cases as cases
from helpers.attention_sweep import WHOLE, in_half_precision
from helpers.backward_calls import KEYS_GRADS, OPERANDS, QUERIES_GRADS, arguments, named, sides
from helpers.backward_cases import GRAD_LAYOUTS, GRADS, BackwardCase
from helpers.backward_sweep import CASES, name
from helpers.device_calls import moved
from helpers.executors import Recorder
from helpers.guarded import assert_same_bytes, check_guards, host_views
from helpers.ledgers import opcodes

import cuevo
from cuevo.architectures import Architecture, architecture
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of
from cuevo.kernels import evoformer_backward_sm80 as sm80
from cuevo.kernels.backward import Problem, padded
from cuevo.kernels.backward_pipelined import PipelinedConfig
from cuevo.ops import backward_plan
from cuevo.ops.backward_plan import RESULTS
from cuevo.sim import SimExecutor
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

kernel = pytest.mark.kernel
unit = pytest.mark.unit
gpu = pytest.mark.gpu

HEAD_DIMS = tuple(range(8, 129, 8))
HALVES = tuple(map(in_half_precision, CASES))
LIGHT = tuple(
    case
    for case in HALVES
    if WHOLE
    or case.batch * case.rows * case.heads * case.queries * case.keys * case.head_dim <= 1_000_000
)
"""Cases that a variant takes half a second for."""

WIDE = BackwardCase("f16", 72, 70, 85, 1, 3, 2, mask="f16", pair="f32", layout="heads first")
SUBSETS = [
    subset
    for grads in (KEYS_GRADS, QUERIES_GRADS)
    for size in range(1, len(grads) + 1)
    for subset in combinations(grads, size)
]
PROBLEM = Problem(1, 4, 2, 100, 128, 32, "f16", "f16", "f16", 16, second=True, sums=True)
WANTED = (
    *(dict(side="queries", first=first, sums=sums) for first, sums in ((1, 0), (0, 1), (1, 1))),
    *(
        dict(side="keys", first=first, second=second, sums=sums)
        for first, second, sums in product((1, 0), repeat=3)
        if first or second or sums
    ),
)
"""Sets of gradients of either side."""
SIZES = ((1, 1, 1, 1, 1), (1, 128, 8, 256, 256), (2, 5, 3, 77, 131), (1, 70000, 1, 8, 8))
"""B, N, H, Lq, Lk."""


def problems(head_dim: int) -> list[Problem]:
    """Every set of gradients, with one or another set of biases, of several sizes."""
    found = []
    for index, wanted in enumerate(WANTED):
        turn = head_dim // 8 + index
        mask = ("f32", "f16")[turn % 2] if wanted["sums"] else ("none", "bool", "f16")[turn % 3]
        pair = ("f32", "f16", "none")[turn % (2 if wanted["sums"] else 3)]
        flags = {key: bool(value) for key, value in wanted.items() if key != "side"}
        sizes = (*SIZES[turn % len(SIZES)], head_dim, "f16", mask, pair, 2)
        found.append(Problem(*sizes, side=str(wanted["side"]), **flags))
    return found


def label(x: Any) -> str:
    """A part of a test's name."""
    if isinstance(x, BackwardCase):
        return f"{x.arch}-{name(x)}"
    return str(x)


def base(lower: ModuleType) -> Any:
    return lower.Config(head_dim=32, mask=True, pair="f16", second=True, sums=True)


def configurations(
    lower: ModuleType, case: BackwardCase, inputs: Mapping[str, Any], arch: Architecture
) -> dict[str, Any]:
    """The argument `config`: of each side the candidate that the case names, or the one chosen."""
    found = {}
    for side, problem in sides(case, inputs).items():
        offered = [
            c for c, _ in lower.candidates(problem) if not lower.violations(c, arch, problem)
        ]
        chosen = case.shape is None
        found[side] = lower.choose(problem, arch) if chosen else offered[case.shape % len(offered)]
    return found


def run(lower: ModuleType, case: BackwardCase, place: Any = None) -> dict[str, Any]:
    """The gradients, checked, in arrays with guard bands."""
    inputs, call = arguments(case)
    results = cases.make_results(replace(case, grad_layout="packed"))
    targets = [results[f"d{grad}"].array if f"d{grad}" in results else None for grad in GRADS]
    config = configurations(lower, case, inputs, architecture(case.arch))
    device = place or f"sim:{case.arch}"
    found = named(cuevo.attention_backward(**call, device=device, results=targets, config=config))
    cases.check(case, found, inputs)
    check_guards(case, results)
    return found


def run_on_gpu(lower: ModuleType, case: BackwardCase, executor: DriverExecutor) -> dict[str, Any]:
    """The gradients, checked, as host arrays."""
    inputs, call = arguments(case)
    call["config"] = configurations(lower, case, inputs, architecture_of(executor))
    results = named(cuevo.attention_backward(**moved(call, executor)))
    found = {key: x if x is None else x.to_numpy() for key, x in results.items()}
    cases.check(case, found, inputs)
    return found


class Profiler(SimExecutor):
    """One that counts bank conflicts of the kernels that it has loaded."""

    def __init__(self, arch: str) -> None:
        super().__init__(arch, profile=True)
        self.kernels: list[Any] = []

    def load(self, kernel: Any) -> Any:
        self.kernels.append(super().load(kernel))
        return self.kernels[-1]


class BackwardVariantTests:
    """Tests of `variant`, the host module of a kernel."""

    variant: ClassVar[ModuleType]
    own: ClassVar[str]
    """The architecture that it is for."""
    iterator: ClassVar[str]
    """The file of ``ptx/lib`` that reads its fragments."""

    # -- Results: rows N, sets of gradients, strides, bits -----------------------------------------

    @gpu
    @pytest.mark.parametrize("case", HALVES, ids=name)
    def test_the_sweep_on_a_gpu(self, executor: DriverExecutor, case: BackwardCase) -> None:
        first, second = (run_on_gpu(self.variant, case, executor) for _ in range(2))
        for key, x in first.items():
            if x is not None:
                assert_same_bytes(case, key, second[key], x)

    @kernel
    @pytest.mark.parametrize("groups", [1, 3, 7])
    def test_rows_in_chunks(self, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """7 rows: a last chunk of fewer."""
        monkeypatch.setattr(
            PipelinedConfig, "groups", lambda self, *_: groups if self.sums_rows else 1
        )
        case = BackwardCase("f16", 16, 40, 50, 2, 7, 2, pair="f16", arch=self.own)
        first, second = (run(self.variant, case, Recorder(case.arch)) for _ in range(2))
        for key in ("dq", "dpair_bias"):
            assert_same_bytes(case, key, second[key], first[key])

    @kernel
    def test_every_set_of_gradients(self) -> None:
        """Each gradient has the same bits as among all of them."""
        case = replace(WIDE, queries=24, keys=37, rows=2, heads=1, arch=self.own)
        every = run(self.variant, case)
        for subset in SUBSETS:
            found = run(self.variant, replace(case, grads=subset))
            for key in (f"d{grad}" for grad in subset):
                assert_same_bytes((case, subset), key, found[key], every[key])

    @kernel
    @pytest.mark.parametrize("layout", GRAD_LAYOUTS)
    def test_gradients_of_any_strides(self, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A call makes them contiguous; the kernels do not need that."""
        case = BackwardCase("f16", 24, 37, 45, 2, 3, 2, grad_layout=layout, grads=("q", "k", "v"))
        inputs, call = arguments(case)
        results = cases.make_results(case)
        monkeypatch.setattr(backward_plan, "check_result", lambda *_: None)
        call["results"] = [results[key].array if key in results else None for key in RESULTS]
        cuevo.attention_backward(**call, device=f"sim:{self.own}")
        cases.check(case, {key: x.array for key, x in results.items()}, inputs)
        check_guards(case, results)

    @kernel
    def test_how_arrays_lie_in_memory_changes_no_bit(self) -> None:
        """Only the tiling decides the order of the sums."""
        found = []
        for layout in ("packed", "stepped", "fused"):
            case = replace(WIDE, layout=layout, queries=40, keys=40, pair_layout="aligned 4")
            case = replace(case, dout_layout="packed" if layout == "fused" else layout)
            found.append(run(self.variant, replace(case, arch=self.own)))
        for other in found[1:]:
            for key, x in found[0].items():
                assert_same_bytes(WIDE, key, other[key], x)

    @kernel
    @pytest.mark.parametrize("block_stationary", [16, 32, 64, 128])
    def test_every_tiling(self, block_stationary: int) -> None:
        if block_stationary < self.variant.Config(head_dim=8).warp_stationary:
            pytest.skip("less than a warp")
        case = replace(WIDE, head_dim=40, queries=150, keys=133, rows=1, heads=1)
        inputs, call = arguments(case)
        config = {
            side: {"block_stationary": block_stationary, "min_blocks": 1}
            for side in ("keys", "queries")
        }
        place = Recorder(self.own)
        found = named(cuevo.attention_backward(**call, device=place, config=config))
        cases.check(case, found, inputs)
        chosen = [x.values["config"] for x in place.loaded if x.name == self.variant.NAME]
        assert [each.block_stationary for each in chosen] == [block_stationary] * 2

    @gpu
    @pytest.mark.parametrize(("batch", "rows"), [(1, 70000), (70000, 1)], ids=str)
    def test_more_rows_than_a_grid_axis_has(
        self, executor: DriverExecutor, batch: int, rows: int
    ) -> None:
        grads = GRADS if batch == 1 else ("q", "k", "v", "mask_bias")
        case = BackwardCase("f16", 8, 8, 8, batch, rows, 1, mask="f32", pair="f16", grads=grads)
        run_on_gpu(self.variant, case, executor)

    # -- Shared memory, machine code ---------------------------------------------------------------

    @kernel
    @pytest.mark.parametrize("head_dim", [8, 24, 32, 40, 64, 96, 104])
    def test_fragments_are_read_without_bank_conflicts(self, head_dim: int) -> None:
        """Streamed tiles both ways, too."""
        place = Profiler(self.own)
        case = BackwardCase("f16", head_dim, 33, 40, arch=self.own, shape=head_dim // 8)
        run(self.variant, case, place)
        found = [each for each in place.kernels if each.kernel.name == self.variant.NAME]
        assert len(found) == 2
        for loaded in found:
            read = [use for use in loaded.profile.banks if f"lib/{self.iterator}.ptx" in use.origin]
            copied = [use for use in loaded.profile.banks if "lib/copy_pipelined.ptx" in use.origin]
            assert len(read) > 3 and len(copied) > 3
            assert all(use.opcode.startswith(("ldmatrix", "ld.shared")) for use in read)
            worse = [
                f"{use.origin}: {use.opcode}: {use}" for use in (*read, *copied) if use.conflicts
            ]
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
        for problem in (each for head_dim in HEAD_DIMS for each in problems(head_dim)):
            config = self.variant.choose(problem, limits)
            assert self.variant.violations(config, limits, problem) == ()
            groups = config.groups(problem, limits)
            chunks = config.chunks_of(problem, groups)
            assert (chunks - 1) * groups < problem.rows <= chunks * groups
            assert groups == 1 or config.sums_rows
            tiles = ceil(problem.stationary / config.block_stationary)
            blocks = tiles * problem.heads * problem.batch * chunks * config.parts
            assert config.grid(problem, groups) == (blocks, 1, 1)
            columns = config.parts * config.part_columns
            assert columns - config.part_columns < problem.head_dim <= columns
            if config.sums_rows:
                sums = 4 * problem.heads * padded(problem.queries, 128) * padded(problem.keys, 128)
                q = 2 * problem.rows * problem.queries * problem.heads * problem.head_dim
                assert chunks <= 2 or chunks * sums <= 2 * q

    @unit
    def test_large_problems_get_larger_tiles_than_small_ones(self) -> None:
        limits = architecture(self.own)
        small = self.variant.choose(replace(PROBLEM, rows=1, queries=16, keys=16), limits)
        large = self.variant.choose(replace(PROBLEM, rows=512, queries=512, keys=512), limits)
        assert small.block_stationary < large.block_stationary

    @unit
    @pytest.mark.parametrize(
        ("config", "problem", "reason"),
        [
            *(
                (dict(), {field: value}, f"is an instance for another {field}: ")
                for field, value in (
                    ("head_dim", 40),
                    ("pair", "f32"),
                    ("first", False),
                    ("second", False),
                    ("sums", False),
                )
            ),
            (dict(second=False), dict(second=False, side="queries"), "another side: keys"),
            (dict(mask=False), dict(), "needs mask: there is one"),
            (
                dict(side="queries", second=False, mask=False),
                dict(side="queries", second=False, mask="none", keys=100),
                "or keys end within a streamed tile",
            ),
        ],
    )
    def test_each_constraint_of_a_problem(
        self, config: dict[str, Any], problem: dict[str, Any], reason: str
    ) -> None:
        arch = architecture("sm_75")
        assert self.variant.violations(base(self.variant), arch, PROBLEM) == ()
        stated, changed = replace(PROBLEM, **problem), replace(base(self.variant), **config)
        (found,) = self.variant.violations(changed, arch, stated)
        assert reason in found
        assert self.variant.violations(self.variant.adapt(changed, stated), arch, stated) == ()

    @unit
    def test_fields_have_their_types_and_registers_their_room(self) -> None:
        with pytest.raises(TypeError, match="block_stationary: expected int; got '32'"):
            self.variant.Config(head_dim=32, block_stationary="32")
        config = self.variant.Config(head_dim=32, min_blocks=3)
        assert [each.min_blocks for each in self.variant.spill_fallbacks(config)] == [3, 2, 1]

    @unit
    @pytest.mark.parametrize("side", ["keys", "queries"])
    def test_the_parameter_block_is_that_of_the_highest_variant(self, side: str) -> None:
        """Only what follows from the tiling differs."""
        case = replace(WIDE, head_dim=32, scale=-0.5)
        inputs = cases.make(case)
        problem = sides(case, inputs)[side]
        views = host_views({key: inputs[key] for key in (*OPERANDS, "dout")}, readonly=True)
        del views["mask_bias"]
        found, other = (
            each.parameters(
                each.adapt(each.Config(head_dim=32, block_stationary=64), problem), problem, 1,
                scale=-0.5, **views,
            )
            for each in (self.variant, sm80)
        )  # fmt: skip
        assert set(found) == {
            field.name for field in load_header().kernels[self.variant.NAME].fields
        }
        differs = {key for key, value in found.items() if value != other[key]}
        assert differs <= {f"{x}_step_pass" for x in ("first", "second", "pair")}
        assert {field.name for field in fields(self.variant.Config)} >= {
            "head_dim",
            "block_stationary",
            "side",
        }

    # -- Checks of what differs from kernel to kernel ----------------------------------------------

    def check_sweep(self, sweep: Sequence[BackwardCase], fields: Sequence[str]) -> None:
        """The cases of the kernel's own architecture have every kind of these fields."""
        found = [case for case in sweep if case.arch == self.own]
        assert len(found) > 15

        def seen(field: str) -> set[Any]:
            return {getattr(case, field) for case in found}

        every = {
            "dtype": {"f16"},
            "head_dim": set(HEAD_DIMS),
            "values": set(cases.VALUES),
            "dout_layout": set(cases.DOUT_LAYOUTS),
            "mask": {"none", "f16", "f32", "bool"},
            "pair": {"none", "f16", "f32"},
        }
        for field in fields:
            assert seen(field) == every[field], field
        assert {len(gradients) for gradients in seen("gradients")} == {1, 2, 3, 4, 5}
        assert {None, 0.0, -0.3, 1e-20, -1e-25} < seen("scale")

    def check_ledger(self, settings: dict[str, Any], tmp_path: Path) -> None:
        """The machine code has the instructions that the ledger above the main loop says."""
        rendered = render(self.variant.NAME, self.variant.values(self.variant.Config(**settings)))
        (mma,) = re.findall(r"//   mma\.\S+ .* = (\d+)", rendered.text)
        (reads,) = re.findall(r"//   fragments .* = (\d+)", rendered.text)
        (scores,) = re.findall(r"//   ex2 +(\d+)", rendered.text)
        found = opcodes(assemble(rendered, "sm_75", cache=None).code, tmp_path)
        assert found["MUFU.EX2"] == int(scores)
        self.check_products(found, int(mma), int(reads))

    def check_products(self, found: Mapping[str, int], mma: int, reads: int) -> None:
        """The opcodes of `mma` products and `reads` loads of fragments are there."""
        raise NotImplementedError

    def check_constraint(self, changes: dict[str, Any], arch: str, reason: str) -> None:
        """The changed configuration is legal but for `reason`."""
        legal = base(self.variant)
        assert self.variant.violations(legal, architecture(self.own)) == ()
        (found,) = self.variant.violations(replace(legal, **changes), architecture(arch))
        assert reason in found
