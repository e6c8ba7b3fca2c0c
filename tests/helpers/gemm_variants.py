"""Cases, launches and checks of ptx/gemm_sm75.ptx and ptx/gemm_sm70.ptx."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from re import findall
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers import gemm_cases as cases
from helpers.attention_sweep import WHOLE as WHOLE_SWEEPS
from helpers.attention_sweep import Deck
from helpers.executors import shared
from helpers.gemm_cases import Arrays, GemmCase
from helpers.gemm_sweep import CASES as ALL
from helpers.guarded import OnDevice, host_views
from helpers.ledgers import opcodes
from helpers.shipped_kernels import LOWER_PRODUCTS as KINDS
from helpers.sweep_sample import needed, of_product, products

from cuevo.architectures import architecture
from cuevo.arrays import copy_to_host, view
from cuevo.executors.driver import DriverExecutor
from cuevo.kernels import gemm_sm70, gemm_sm75
from cuevo.kernels.gemm_mma import Config, Problem
from cuevo.ops.gemm_problem import check_operands
from cuevo.sim import LoadedKernel, SimExecutor
from cuevo.sim.arithmetic.quad_product import quad_product
from cuevo.sim.faults import KernelText
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

VARIANTS = {"sm_75": gemm_sm75, "sm_70": gemm_sm70}
"""By the architecture that each is for."""

# -- Cases -----------------------------------------------------------------------------------------

SHAPES = tuple(
    dict(
        block_m=m,
        block_n=n,
        block_k=k,
        warp_m=warp_m,
        warp_n=warp_n,
        stages=2,
        min_blocks=1,
        splits=1,
        max_k=0,
    )
    for m, n, k, warp_m, warp_n in (
        (64, 64, 32, 32, 32),
        (64, 64, 64, 32, 32),
        (128, 64, 32, 64, 32),
        (64, 128, 32, 32, 64),
        (128, 128, 32, 64, 64),
        (32, 128, 32, 32, 32),
        (128, 32, 64, 32, 32),
        (64, 64, 16, 64, 32),
        (96, 64, 32, 32, 32),
        (64, 128, 64, 64, 64),
        (16, 128, 32, 16, 32),
        (96, 32, 32, 48, 32),
    )
)
DETAILS: tuple[dict[str, Any], ...] = (
    dict(),
    dict(whole_steps=False),
    dict(splits=2),
    dict(splits=3),
    dict(whole_steps=False, splits=2),
    dict(raster=2),
    dict(raster=2, accumulate="f16"),
    dict(layout="padded"),
    dict(accumulate="f16"),
    dict(accumulate="f16", whole_steps=False),
    dict(max_k=64),
    dict(max_k=128),
    dict(cache_a="ca", cache_b="ca"),
    dict(a_access=4, b_access=8),
    dict(a_access=8, b_access=4),
    dict(a_access=2, b_access=2),
    dict(c_access=4, d_access=4),
    dict(d_access=2),
    dict(prefetch="none"),
    dict(prefetch="L1"),
    dict(raster=1),
)
WHOLE: tuple[dict[str, Any], ...] = (
    *(dict(clear="none", whole_steps=whole) for whole in (True, False)),
    dict(clear="none", max_k=128),
    dict(clear="none", splits=2),
    dict(clear="none", a_access=8, b_access=2),
)
"""For the cases of whole tiles."""


def of_halves(case: GemmCase) -> GemmCase:
    """The case with what is bfloat16 of a, b and the result in float16, and with such a result."""
    out = "f16" if case.out_dtype == "bf16" else case.out_dtype
    layout = "packed" if case.out_layout == "new" else case.out_layout
    return replace(case, dtype="f16", out_dtype=out, out_layout=layout, settings=())


def configuration(variant: ModuleType, problem: Problem, arch: str, case: GemmCase) -> Config:
    """The choice with the settings of the case; without them where they cannot be."""
    limits = architecture(arch)
    chosen = _choice(variant, problem, arch)
    wanted: Config = variant.adapt(replace(chosen, **dict(case.settings)), problem)  # type: ignore[arg-type]
    return chosen if variant.violations(wanted, limits, problem) else wanted


@lru_cache(maxsize=1)
def _choice(variant: ModuleType, problem: Problem, arch: str) -> Config:
    """The same for all the settings that a sweep tries on a problem."""
    found: Config = variant.choose(problem, architecture(arch))
    return found


def sweep(arch: str, start: int) -> Iterator[GemmCase]:
    """A quarter of the sweep of gemm_sm80, or the whole, in fp16, each case with the next settings
    that it can have.
    """
    variant, rng = VARIANTS[arch], np.random.default_rng(start)
    shapes, details, of_whole = (Deck(cards, rng) for cards in (SHAPES, DETAILS, WHOLE))
    for plain in map(of_halves, ALL if WHOLE_SWEEPS else ALL[start::4]):
        whole = not (plain.m % 64 or plain.n % 64 or plain.k % 64)
        views = host_views(cases.make(plain).call(plain), readonly=False)
        problem = cases.problem_of(plain, views)
        while True:
            settings = shapes.deal() | (of_whole if whole else details).deal()
            case = replace(plain, settings=tuple(settings.items()))
            config = configuration(variant, problem, arch, case)
            if all(getattr(config, key) == value for key, value in settings.items()):
                yield case
                break


CASES = {arch: tuple(sweep(arch, start)) for start, arch in enumerate(VARIANTS)}
ON_CPU = {arch: needed(found, of_product, products) for arch, found in CASES.items()}
"""What of these a run of the tests takes on the CPU executor."""

# -- Every bit -------------------------------------------------------------------------------------

_sums_of_one = cases.sums


def sums(a: np.ndarray, b: np.ndarray, config: Config, arch: str) -> np.ndarray:
    """`gemm_cases.sums`, with what stands for m8n8k4 from sm_80 on."""
    number = architecture(arch).number
    with pytest.MonkeyPatch.context() as patch:
        if config.instruction == "m8n8k4" and number >= 80:
            patch.setattr(
                cases.tensor_core,
                "multiply_accumulate",
                lambda a, b, c, *_: quad_product(a, b, c, number),
            )
        return _sums_of_one(a, b, config, arch)


def launch(
    variant: ModuleType, case: GemmCase, place: SimExecutor | DriverExecutor
) -> tuple[Arrays, Config]:
    """Run the case; what lies around its arrays must stay as it was."""
    arrays = cases.make(case)
    was = cases.memory_of(arrays)
    call = arrays.call(case)
    views = host_views(call, readonly=True) | host_views({"out": call["out"]}, readonly=False)
    on_device = OnDevice(call, place) if isinstance(place, DriverExecutor) else None
    if on_device is not None:
        views = dict(on_device.views)
    if case.c == "out":
        views["c"] = views["out"]
    problem = cases.problem_of(case, views)
    options = cases.options(case)
    factor = options.pop("alpha"), options["beta"]
    x = check_operands(**views, **options)
    config = configuration(variant, problem, place.arch, case)
    floats, counters = config.workspace(problem)
    partials, arrivals = np.full(floats, np.nan, np.float32), np.zeros(counters, np.uint32)
    work = dict(partials=view(partials), arrivals=view(arrivals)) if floats else {}
    if isinstance(place, DriverExecutor):
        work = {key: place.copy_to_device(each, place.stream) for key, each in work.items()}
        place.synchronize(place.stream)
    parameters = variant.parameters(
        config, problem, a=x.a, b=x.b, c=x.c, bias=x.bias, scatter=x.scatter, d=x.out,
        alpha=factor[0], beta=factor[1], **work,
    )  # fmt: skip
    buffers = [each for each in (*x.inputs, x.out, *work.values()) if each is not None]
    place.load(render(variant.NAME, variant.values(config))).launch(
        config.grid(problem),
        (config.threads, 1, 1),
        config.shared_bytes,
        load_header().kernels[variant.NAME].pack(parameters),
        buffers=buffers,
    )
    if on_device is not None:
        on_device.fetch(call)
        if work:
            arrivals = copy_to_host(work["arrivals"], 1)
    assert not arrivals.any(), f"{case}: the counts of arrivals are left at {arrivals}"
    cases.check_surroundings(case, arrays, was)
    return arrays, config


def check(variant: ModuleType, case: GemmCase, place: SimExecutor | DriverExecutor) -> None:
    arrays, config = launch(variant, case, place)
    assert arrays.out is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cases, "sums", sums)
        cases.check(case, arrays.out.array, arrays, config, place.arch)


def check_near_float64(variant: ModuleType, case: GemmCase) -> None:
    """The case without what makes results far from float64."""
    case = replace(case, values="normal", alpha=1.0, c="none", scatter="none", settings=())
    arrays, _ = launch(variant, case, shared(f"sm_{variant.MINIMUM_ARCH}"))
    assert arrays.out is not None
    cases.check_near(case, arrays.out.array, arrays)


def check_sweep(variant: ModuleType, without: frozenset[tuple[str, object]] = frozenset()) -> None:
    """The variant's cases have every setting but those `without`, and everything of a problem."""
    found = CASES[f"sm_{variant.MINIMUM_ARCH}"]
    settings = {setting for case in found for setting in case.settings}
    wanted = {setting for detail in (*DETAILS, *WHOLE) for setting in detail.items()}
    assert without <= wanted
    assert wanted - without <= settings
    assert {(x.a_order, x.b_order) for x in found} == set(product(("rows", "columns"), repeat=2))
    assert {x.a_layout for x in found} == {x.b_layout for x in found} == set(cases.LAYOUTS)
    assert {x.scatter for x in found} == set(cases.SCATTERS)
    assert {x.c for x in found} == {"none", "f16", "bf16", "f32", "out"}


# -- Bank conflicts --------------------------------------------------------------------------------

OUTPUTS = [("f16", "f32", 0), ("f32", "f32", 1), ("f16", "f16", 2)]
"""Type of d, type of the accumulators, the first of the shapes, of which every third is taken."""


class Profiler(SimExecutor):
    """A CPU executor that counts bank conflicts, and keeps the kernel that it loaded last."""

    kernel: LoadedKernel

    def __init__(self, arch: str) -> None:
        super().__init__(arch, profile=True)

    def load(self, kernel: KernelText) -> LoadedKernel:
        self.kernel = super().load(kernel)
        return self.kernel


def check_bank_conflicts(
    variant: ModuleType, reads: str, a_order: str, b_order: str, output: tuple[str, str, int]
) -> None:
    """None in the main loop, whose fragments are read by `reads`; in the epilogue of fp16 no more
    than two words of a bank at a time.
    """
    out, accumulate, first = output
    for shape in SHAPES[first::3]:
        settings = (*shape.items(), ("accumulate", accumulate))
        case = GemmCase(
            60, 120, 100, "f16", out, a_order=a_order, b_order=b_order, a_layout="aligned 16",
            b_layout="aligned 16", settings=settings,
        )  # fmt: skip
        place = Profiler(f"sm_{variant.MINIMUM_ARCH}")
        _, config = launch(variant, case, place)
        if any(getattr(config, key) != value for key, value in settings):
            continue
        banks = place.kernel.profile.banks
        epilogue = [use for use in banks if use.origin.startswith("ptx/lib/gemm.ptx")]
        loop = [use for use in banks if use not in epilogue]
        assert {use.opcode.startswith(reads) for use in loop} == {True, False}
        worse = [use for use in (banks if out == "f32" else loop) if use.conflicts]
        worse += [use for use in epilogue if use.wavefronts > 2 * use.ideal]
        if worse:
            raise AssertionError(f"{config}: {len(worse)} accesses, the first is {worse[0]}")


# -- Machine code ----------------------------------------------------------------------------------


def any_text(variant: ModuleType) -> str:
    """The text of an instance."""
    return render(variant.NAME, variant.values(variant.SHAPES[0].config(KINDS[1]))).text


def ledger_and_code(
    variant: ModuleType, tmp_path: Path
) -> tuple[tuple[int, int, int], int, dict[str, int]]:
    """The ledger's mma, reads and copies; the loads of the epilogue; the opcodes of the code."""
    config = replace(variant.SHAPES[2].config(KINDS[0]), clear="none")
    kernel = render(variant.NAME, variant.values(config))
    mma, reads, copies = map(int, findall(r"//   [^\n]* = (\d+) \* \d clocks", kernel.text))
    found = opcodes(assemble(kernel, "sm_75", cache=None).code, tmp_path)
    return (mma, reads, copies), len(config.d_tile.row_offsets) * config.slabs, found


# -- The host halves -------------------------------------------------------------------------------

CONSTRAINTS: list[tuple[dict[str, Any], str]] = [
    (dict(dtype="bf16"), "a and b in bf16 needs sm_80"),
    (dict(out_dtype="bf16"), "d in bf16 needs sm_80"),
    (dict(stages=3), "stages must be 2, filled through registers; got 3"),
    (dict(instruction="m16n8k16"), "instruction must be one of m"),
    (dict(clear="last_stage", max_k=64), "clear = last_stage is for asynchronous copies"),
    (dict(block_m=32), "do not fill 32 x"),
    (dict(block_m=256, block_n=256, block_k=64), "bytes of shared memory; a block of sm_"),
]


def check_constraint(variant: ModuleType, changes: dict[str, Any], reason: str) -> None:
    """A legal configuration with the changes is refused, for this reason only."""
    arch = architecture(f"sm_{variant.MINIMUM_ARCH}")
    base = variant.SHAPES[2].config(KINDS[0])
    assert not variant.violations(base, arch, KINDS[0])
    (found,) = variant.violations(replace(base, **changes), arch)
    assert reason in found


def check_choice(variant: ModuleType) -> None:
    """The choice is legal and fills the device."""
    arch = architecture(f"sm_{variant.MINIMUM_ARCH}")
    for problem in (
        *KINDS,
        Problem(1, 4096, 4096, 4096, "f16", "f16"),
        Problem(1, 64, 64, 8192, "f16", "f32"),
        Problem(200, 40, 40, 40, "f16", "f16"),
    ):
        chosen = variant.choose(problem, arch)
        assert not variant.violations(chosen, arch, problem)
    assert variant.choose(Problem(1, 4096, 4096, 4096, "f16", "f16"), arch).block_m >= 128
    assert variant.choose(Problem(1, 64, 64, 8192, "f16", "f32"), arch).splits > 4
    assert variant.choose(Problem(200, 40, 40, 40, "f16", "f16"), arch).block_m == 64
    with pytest.raises(ValueError, match=f"(?s){variant.NAME} has no.* bf16 needs sm_80"):
        variant.choose(Problem(1, 64, 64, 64, "bf16", "bf16"), arch)
