"""ptx/evoformer_backward_sm75.ptx and ..._sm70.ptx against float64, through
`cuevo.attention_backward`, on the CPU executor and a GPU; bank conflicts, resources, ledger and
host halves.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from itertools import combinations, product
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import backward_cases as cases
from helpers.attention_sweep import TRAITS, WHOLE, covering, in_half_precision
from helpers.backward_calls import KEYS_GRADS, OPERANDS, QUERIES_GRADS, arguments, named, sides
from helpers.backward_cases import GRAD_LAYOUTS, GRADS, BackwardCase
from helpers.backward_sweep import CASES, name
from helpers.device_calls import moved
from helpers.executors import Recorder
from helpers.guarded import assert_same_bytes, check_guards, host_views
from helpers.ledgers import opcodes

import cuevo
from cuevo.architectures import Architecture, architecture
from cuevo.arrays import packed
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.placement import architecture_of
from cuevo.kernels import evoformer_backward_sm70 as sm70
from cuevo.kernels import evoformer_backward_sm75 as sm75
from cuevo.kernels import evoformer_backward_sm80 as sm80
from cuevo.kernels.backward import Problem, padded
from cuevo.kernels.backward_pipelined import PipelinedConfig
from cuevo.ops import backward_plan
from cuevo.ops.backward_plan import VARIANTS, Wanted, make_plan
from cuevo.ops.dispatch import ENVIRONMENT, dispatch
from cuevo.sim import SimExecutor
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

kernel = pytest.mark.kernel
unit = pytest.mark.unit
gpu = pytest.mark.gpu

LOWER = (sm75, sm70)
OWN = {sm75: "sm_75", sm70: "sm_70"}
"""The architecture that a variant is for."""
HEAD_DIMS = tuple(range(8, 129, 8))
each_variant = pytest.mark.parametrize("lower", LOWER, ids=lambda each: each.NAME[-4:])


def label(x: Any) -> str:
    """A part of a test's name."""
    if isinstance(x, BackwardCase):
        return f"{x.arch}-{name(x)}"
    return x.NAME[-4:] if isinstance(x, ModuleType) else str(x)


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


# -- The sweep -------------------------------------------------------------------------------------

HALVES = tuple(map(in_half_precision, CASES))
LIGHT = tuple(
    case
    for case in HALVES
    if WHOLE
    or case.batch * case.rows * case.heads * case.queries * case.keys * case.head_dim <= 1_000_000
)
"""What a variant takes half a second for."""
# Each variant meets others of the cases, enough on its own architecture, some on a newer one. The
# kind of values matters to the body, which the variants share.
SM70_TRAITS = (*("head_dim", "layout", "mask", "pair", "pair_layout"), "dout_layout", "scale")
SWEEP = [
    (lower, replace(case, arch=arch))
    for lower, arch, found in (
        (sm75, "sm_75", covering(LIGHT, "sm_75", (*TRAITS, "dout_layout"))),
        (sm70, "sm_70", covering(LIGHT[::-1], "sm_70", SM70_TRAITS)),
        (sm75, "sm_90", LIGHT[5::30]),
        (sm70, "sm_90", LIGHT[20::30]),
    )
    for case in found
]


@kernel
@pytest.mark.parametrize(("lower", "case"), SWEEP, ids=label)
def test_the_sweep(lower: ModuleType, case: BackwardCase) -> None:
    run(lower, case)


@gpu
@each_variant
@pytest.mark.parametrize("case", HALVES, ids=name)
def test_the_sweep_on_a_gpu(
    executor: DriverExecutor, lower: ModuleType, case: BackwardCase
) -> None:
    first, second = (run_on_gpu(lower, case, executor) for _ in range(2))
    for key, x in first.items():
        if x is not None:
            assert_same_bytes(case, key, second[key], x)


@unit
@each_variant
def test_the_sweep_has_everything(lower: ModuleType) -> None:
    found = [case for each, case in SWEEP if each is lower and case.arch == OWN[lower]]
    assert len(found) > 15

    def seen(field: str) -> set[Any]:
        return {getattr(case, field) for case in found}

    assert seen("dtype") == {"f16"}
    assert seen("head_dim") == set(HEAD_DIMS)
    assert lower is sm70 or seen("values") == set(cases.VALUES)
    assert seen("dout_layout") == set(cases.DOUT_LAYOUTS)
    assert (seen("mask"), seen("pair")) == ({"none", "f16", "f32", "bool"}, {"none", "f16", "f32"})
    assert {len(gradients) for gradients in seen("gradients")} == {1, 2, 3, 4, 5}
    assert {None, 0.0, -0.3, 1e-20, -1e-25} < seen("scale")


# -- Rows N, sets of gradients, strides, bits ------------------------------------------------------

WIDE = BackwardCase("f16", 72, 70, 85, 1, 3, 2, mask="f16", pair="f32", layout="heads first")
SUBSETS = [
    subset
    for grads in (KEYS_GRADS, QUERIES_GRADS)
    for size in range(1, len(grads) + 1)
    for subset in combinations(grads, size)
]


@kernel
@each_variant
@pytest.mark.parametrize("groups", [1, 3, 7])
def test_rows_in_chunks(lower: ModuleType, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """7 rows: a last chunk of fewer."""
    monkeypatch.setattr(PipelinedConfig, "groups", lambda self, *_: groups if self.sums_rows else 1)
    case = BackwardCase("f16", 16, 40, 50, 2, 7, 2, pair="f16", arch=OWN[lower])
    first, second = (run(lower, case, Recorder(case.arch)) for _ in range(2))
    for key in ("dq", "dpair_bias"):
        assert_same_bytes(case, key, second[key], first[key])


@kernel
@each_variant
def test_every_set_of_gradients(lower: ModuleType) -> None:
    """Each gradient has the same bits as among all of them."""
    case = replace(WIDE, queries=24, keys=37, rows=2, heads=1, arch=OWN[lower])
    every = run(lower, case)
    for subset in SUBSETS:
        found = run(lower, replace(case, grads=subset))
        for key in (f"d{grad}" for grad in subset):
            assert_same_bytes((case, subset), key, found[key], every[key])


@kernel
@each_variant
@pytest.mark.parametrize("layout", GRAD_LAYOUTS)
def test_gradients_of_any_strides(
    lower: ModuleType, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call makes them contiguous; the kernels do not need that."""
    case = BackwardCase("f16", 24, 37, 45, 2, 3, 2, grad_layout=layout, grads=("q", "k", "v"))
    inputs, results = cases.make(case), cases.make_results(case)
    views = host_views(results, readonly=False)
    by_shape = {x.shape: x for x in views.values()}
    monkeypatch.setattr(
        backward_plan, "packed", lambda shape, dtype: by_shape.get(shape) or packed(shape, dtype)
    )
    operands = host_views(inputs, readonly=True)
    wanted = Wanted.of(case.grads, None)
    plan = make_plan(operands, case.scale, wanted, f"sim:{OWN[lower]}", None)
    plan.run_on_cpu(operands, {key[1:]: x for key, x in views.items()}, None)
    cases.check(case, {key: x.array for key, x in results.items()}, inputs)
    check_guards(case, results)


@kernel
@each_variant
def test_how_arrays_lie_in_memory_changes_no_bit(lower: ModuleType) -> None:
    """Only the tiling decides the order of the sums."""
    found = []
    for layout in ("packed", "stepped", "fused"):
        case = replace(WIDE, layout=layout, queries=40, keys=40, pair_layout="aligned 4")
        case = replace(case, dout_layout="packed" if layout == "fused" else layout)
        found.append(run(lower, replace(case, arch=OWN[lower])))
    for other in found[1:]:
        for key, x in found[0].items():
            assert_same_bytes(WIDE, key, other[key], x)


@kernel
@each_variant
@pytest.mark.parametrize("block_stationary", [16, 32, 64, 128])
def test_every_tiling(lower: ModuleType, block_stationary: int) -> None:
    if block_stationary < lower.Config(head_dim=8).warp_stationary:
        pytest.skip("less than a warp")
    case = replace(WIDE, head_dim=40, queries=150, keys=133, rows=1, heads=1)
    inputs, call = arguments(case)
    config = {
        side: {"block_stationary": block_stationary, "min_blocks": 1}
        for side in ("keys", "queries")
    }
    place = Recorder(OWN[lower])
    found = named(cuevo.attention_backward(**call, device=place, config=config))
    cases.check(case, found, inputs)
    chosen = [x.values["config"] for x in place.loaded if x.name == lower.NAME]
    assert [each.block_stationary for each in chosen] == [block_stationary] * 2


@gpu
@each_variant
@pytest.mark.parametrize(("batch", "rows"), [(1, 70000), (70000, 1)], ids=str)
def test_more_rows_than_a_grid_axis_has(
    executor: DriverExecutor, lower: ModuleType, batch: int, rows: int
) -> None:
    grads = GRADS if batch == 1 else ("q", "k", "v", "mask_bias")
    case = BackwardCase("f16", 8, 8, 8, batch, rows, 1, mask="f32", pair="f16", grads=grads)
    run_on_gpu(lower, case, executor)


# -- Dispatch ------------------------------------------------------------------------------------

HALF = Problem(1, 2, 2, 100, 128, 16, "f16", "f16", "f16", side="queries", sums=True)


@unit
@pytest.mark.parametrize(
    ("arch", "expected"),
    [("sm_70", sm70), ("sm_72", sm70), ("sm_75", sm75), ("sm_80", sm80), ("sm_90", sm80)],
)
def test_the_highest_variant_that_the_device_has_wins(arch: str, expected: object) -> None:
    assert dispatch(VARIANTS, HALF, architecture(arch)) is expected
    for dtype in ("bf16", "f16"):
        problem = replace(HALF, dtype=dtype, pair=dtype, mask="none", side="keys", sums=False)
        if dtype == "f16" or expected is sm80:
            assert dispatch(VARIANTS, problem, architecture(arch)) is expected
            continue
        with pytest.raises(ValueError, match=r"no kernel serves Problem\(") as caught:
            dispatch(VARIANTS, problem, architecture(arch))
        for line in str(caught.value).split("\n")[2:]:
            assert "bf16 needs the tensor cores of sm_80 or later" in line
            assert "takes q, k, v, dout and 16-bit biases in float16" in line


@kernel
@pytest.mark.parametrize("each", VARIANTS, ids=lambda each: each.NAME[-4:])
def test_calls_on_every_architecture_and_with_the_environment(
    each: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = BackwardCase("f16", 16, 20, 33, rows=2, mask="f32", pair="f32")
    inputs, call = arguments(case)
    own = f"sm_{each.MINIMUM_ARCH}"
    alone, forced = Recorder(own), Recorder("sm_90")
    cases.check(case, named(cuevo.attention_backward(**call, device=alone)), inputs)
    monkeypatch.setenv(ENVIRONMENT, own)
    cases.check(case, named(cuevo.attention_backward(**call, device=forced)), inputs)
    for place in (alone, forced):
        found = [key for key in place.names if key.startswith("evoformer_backward")]
        assert found == [each.NAME] * 2


@unit
def test_a_variant_for_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    case = BackwardCase("f16", 16, 20, 33)
    _, call = arguments(case)
    place = Recorder("sm_90")
    config = {"keys": sm70.Config(head_dim=16), "queries": sm75.Config(head_dim=16)}
    cuevo.attention_backward(**call, device=place, config=config)
    assert [key for key in place.names if "backward" in key] == [sm75.NAME, sm70.NAME]


# -- Shared memory ---------------------------------------------------------------------------------


class Profiler(SimExecutor):
    """One that counts bank conflicts of the kernels that it has loaded."""

    def __init__(self, arch: str) -> None:
        super().__init__(arch, profile=True)
        self.kernels: list[Any] = []

    def load(self, kernel: Any) -> Any:
        self.kernels.append(super().load(kernel))
        return self.kernels[-1]


@kernel
@each_variant
@pytest.mark.parametrize("head_dim", [8, 24, 32, 40, 64, 96, 104])
def test_fragments_are_read_without_bank_conflicts(lower: ModuleType, head_dim: int) -> None:
    """Walked tiles both ways, too."""
    place = Profiler(OWN[lower])
    case = BackwardCase("f16", head_dim, 33, 40, arch=OWN[lower], shape=head_dim // 8)
    run(lower, case, place)
    found = [each for each in place.kernels if each.kernel.name == lower.NAME]
    assert len(found) == 2
    iterator = "warp_iterator_sm70" if lower is sm70 else "warp_iterator"
    for loaded in found:
        read = [use for use in loaded.profile.banks if f"lib/{iterator}.ptx" in use.origin]
        copied = [use for use in loaded.profile.banks if "lib/copy_pipelined.ptx" in use.origin]
        assert len(read) > 3 and len(copied) > 3
        assert all(use.opcode.startswith(("ldmatrix", "ld.shared")) for use in read)
        worse = [f"{use.origin}: {use.opcode}: {use}" for use in (*read, *copied) if use.conflicts]
        assert not worse, "\n".join(worse)


# -- Machine code ----------------------------------------------------------------------------------

WANTED = (
    *(dict(side="queries", first=first, sums=sums) for first, sums in ((1, 0), (0, 1), (1, 1))),
    *(
        dict(side="keys", first=first, second=second, sums=sums)
        for first, second, sums in product((1, 0), repeat=3)
        if first or second or sums
    ),
)
"""What either side may be asked for."""
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


@unit
@each_variant
@pytest.mark.parametrize(
    ("arch", "head_dim"),
    [*(("sm_75", d) for d in (8, 32, 64, 96, 128)), ("sm_90", 32)],
)
def test_nothing_that_is_chosen_spills(lower: ModuleType, arch: str, head_dim: int) -> None:
    """A third of the sets of gradients, another third for the next head dim."""
    limits = architecture(arch)
    for problem in problems(head_dim)[head_dim // 8 % 3 :: 3]:
        config = lower.choose(problem, limits)
        found = assemble(render(lower.NAME, lower.values(config)), arch, cache=None).resources
        what = f"{config} on {arch}: {found}"
        assert (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0), what
        assert found.static_shared == 0 and found.barriers == 1, what
        assert found.registers * config.threads * config.min_blocks <= 65536, what


LEDGERS = [
    (sm75, dict(head_dim=8, first=False, second=True)),
    (sm75, dict(head_dim=24, side="queries", sums=True)),
    (sm75, dict(head_dim=104, second=True, sums=True)),
    (sm70, dict(head_dim=40, second=True)),
    (sm70, dict(head_dim=128, side="queries", block_stationary=32)),
]


@unit
@pytest.mark.parametrize(("lower", "settings"), LEDGERS, ids=label)
def test_the_machine_code_has_what_the_ledger_says(
    lower: ModuleType, settings: dict[str, Any], tmp_path: Path
) -> None:
    rendered = render(lower.NAME, lower.values(lower.Config(**settings)))
    (mma,) = re.findall(r"//   mma\.\S+ .* = (\d+)", rendered.text)
    (reads,) = re.findall(r"//   fragments .* = (\d+)", rendered.text)
    (scores,) = re.findall(r"//   ex2 +(\d+)", rendered.text)
    found = opcodes(assemble(rendered, "sm_75", cache=None).code, tmp_path)
    assert found["MUFU.EX2"] == int(scores)
    if lower is sm75:
        assert (found["HMMA.1688"], found["LDSM.16"]) == (int(mma), int(reads))
    else:
        assert found["HMMA.884"] == 4 * int(mma)


# -- The host halves -------------------------------------------------------------------------------

PROBLEM = Problem(1, 4, 2, 100, 128, 32, "f16", "f16", "f16", 16, second=True, sums=True)


def base(lower: ModuleType) -> Any:
    return lower.Config(head_dim=32, mask=True, pair="f16", second=True, sums=True)


@unit
@each_variant
@pytest.mark.parametrize("arch", ["sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_120"])
def test_what_is_chosen_is_legal(lower: ModuleType, arch: str) -> None:
    limits = architecture(arch)
    if limits.number < lower.MINIMUM_ARCH:
        with pytest.raises(ValueError, match=rf"{lower.NAME} has no configuration for Problem\("):
            lower.choose(PROBLEM, limits)
        return
    for problem in (each for head_dim in HEAD_DIMS for each in problems(head_dim)):
        config = lower.choose(problem, limits)
        assert lower.violations(config, limits, problem) == ()
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
            assert chunks <= 2 or chunks * sums <= q


@unit
@each_variant
def test_large_problems_get_larger_tiles_than_small_ones(lower: ModuleType) -> None:
    limits = architecture(OWN[lower])
    small = lower.choose(replace(PROBLEM, rows=1, queries=16, keys=16), limits)
    large = lower.choose(replace(PROBLEM, rows=512, queries=512, keys=512), limits)
    assert small.block_stationary < large.block_stationary


@unit
@pytest.mark.parametrize(
    ("lower", "changes", "arch", "reason"),
    [
        (sm75, dict(), "sm_70", "mma.m16n8k8 needs sm_75; this is sm_70"),
        (sm75, dict(head_dim=36), "sm_75", "head_dim must be a multiple of 8 from 8 to 128"),
        (sm70, dict(head_dim=136), "sm_70", "head_dim must be"),
        (sm75, dict(dtype="bf16"), "sm_75", "bf16 needs the tensor cores of sm_80 or later"),
        (sm70, dict(pair="bf16"), "sm_70", "evoformer_backward_sm70 takes q, k, v, dout and"),
        (sm75, dict(dtype="f32"), "sm_75", "dtype must be f16, not 'f32'"),
        (sm70, dict(side="rows"), "sm_70", "side must be keys or queries, not 'rows'"),
        (sm75, dict(pair="bool"), "sm_75", "pair must be none, f16 or f32, not 'bool'"),
        (sm75, dict(side="queries"), "sm_75", "a side gives first or sums, the keys second too"),
        (sm70, dict(first=False, second=False, sums=False), "sm_70", "at least one of them"),
        (sm75, dict(block_stationary=48), "sm_75", "1, 2, 4 or 8 warps, at most 128, not 48"),
        (
            sm70,
            dict(block_stationary=16),
            "sm_70",
            "block_stationary must be those of 1, 2, 4 or 8 warps",
        ),
        (sm70, dict(block_stationary=256), "sm_70", "at most 128, not 256"),
        (sm75, dict(min_blocks=0), "sm_75", "0 blocks of 128 threads do not fit"),
        (sm75, dict(min_blocks=9), "sm_75", "9 blocks of 128 threads do not fit"),
        (sm75, dict(head_dim=128, block_stationary=128), "sm_75", "a block of sm_75 has 65536"),
        (sm70, dict(head_dim=128, block_stationary=128), "sm_70", "a block of sm_70 has 98304"),
    ],
)
def test_each_constraint(
    lower: ModuleType, changes: dict[str, Any], arch: str, reason: str
) -> None:
    assert lower.violations(base(lower), architecture(OWN[lower])) == ()
    (found,) = lower.violations(replace(base(lower), **changes), architecture(arch))
    assert reason in found


@unit
@each_variant
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
    lower: ModuleType, config: dict[str, Any], problem: dict[str, Any], reason: str
) -> None:
    arch = architecture("sm_75")
    assert lower.violations(base(lower), arch, PROBLEM) == ()
    stated, changed = replace(PROBLEM, **problem), replace(base(lower), **config)
    (found,) = lower.violations(changed, arch, stated)
    assert reason in found
    assert lower.violations(lower.adapt(changed, stated), arch, stated) == ()


@unit
@each_variant
def test_fields_have_their_types_and_registers_their_room(lower: ModuleType) -> None:
    with pytest.raises(TypeError, match="block_stationary: expected int; got '32'"):
        lower.Config(head_dim=32, block_stationary="32")
    config = lower.Config(head_dim=32, min_blocks=3)
    assert [each.min_blocks for each in lower.spill_fallbacks(config)] == [3, 2, 1]


@unit
@each_variant
@pytest.mark.parametrize("side", ["keys", "queries"])
def test_the_parameter_block_is_that_of_the_highest_variant(lower: ModuleType, side: str) -> None:
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
        for each in (lower, sm80)
    )  # fmt: skip
    assert set(found) == {field.name for field in load_header().kernels[lower.NAME].fields}
    differs = {key for key, value in found.items() if value != other[key]}
    assert differs <= {f"{x}_step_pass" for x in ("first", "second", "pair")}
    assert {field.name for field in fields(lower.Config)} >= {
        "head_dim",
        "block_stationary",
        "side",
    }
