"""ptx/gemm_sm70.ptx: every bit, bank conflicts, resources, constraints."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import gemm_variants as variants
from helpers.executors import shared
from helpers.gemm_cases import GemmCase
from helpers.gemm_sweep import name
from helpers.gemm_variants import check

from cuevo.architectures import architecture
from cuevo.executors.driver import DriverExecutor
from cuevo.kernels import gemm_sm70

kernel = pytest.mark.kernel
unit = pytest.mark.unit
CASES = variants.CASES["sm_70"]

# -- Every bit -------------------------------------------------------------------------------------


@kernel
@pytest.mark.parametrize("case", variants.ON_CPU["sm_70"], ids=name)
def test_every_bit(case: GemmCase) -> None:
    check(gemm_sm70, case, shared("sm_70"))


@kernel
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("case", CASES[8::9], ids=name)
def test_every_bit_on_later_architectures(case: GemmCase, arch: str) -> None:
    """From sm_80 on m8n8k4 is made of fp32 arithmetic, and warp tiles are smaller: these cases have
    kernels that sm_70 has not.
    """
    check(gemm_sm70, case, shared(arch))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_bit_on_a_device(executor: DriverExecutor, case: GemmCase) -> None:
    check(gemm_sm70, case, executor)


@kernel
@pytest.mark.parametrize("case", variants.CASES["sm_70"][4::50], ids=name)
def test_results_are_near_float64(case: GemmCase) -> None:
    variants.check_near_float64(gemm_sm70, case)


@unit
def test_the_sweep_has_everything() -> None:
    variants.check_sweep(gemm_sm70, without=frozenset({("layout", "padded")}))


@kernel
@pytest.mark.parametrize("output", variants.OUTPUTS, ids=str)
@pytest.mark.parametrize("b_order", ["rows", "columns"])
@pytest.mark.parametrize("a_order", ["rows", "columns"])
def test_no_bank_conflicts(a_order: str, b_order: str, output: tuple[str, str, int]) -> None:
    variants.check_bank_conflicts(gemm_sm70, "ld.shared.v4", a_order, b_order, output)


# -- Machine code ----------------------------------------------------------------------------------


@unit
def test_the_target_is_the_variant_s_own() -> None:
    """The executor of that architecture refuses what is newer; so it does in the sweep."""
    text = variants.any_text(gemm_sm70)
    assert ".target sm_70\n" in text
    assert ".version 6.4\n" in text
    assert "cp.async" not in text
    assert "ldmatrix" not in text


@unit
def test_the_machine_code_has_what_the_ledger_says(tmp_path: Path) -> None:
    (mma, reads, copies), epilogue, found = variants.ledger_and_code(gemm_sm70, tmp_path)
    # Twice: in the loop, with the first fragments and the first tile, and in the last iteration.
    # An m8n8k4 is four instructions.
    assert found["HMMA.884"] == 2 * 4 * mma
    assert found["LDS.U"] == 2 * reads + epilogue
    assert found["LDG.E"] == found["STS.128"] == 2 * copies


# -- The host half ---------------------------------------------------------------------------------


@unit
@pytest.mark.parametrize(("changes", "reason"), variants.CONSTRAINTS)
def test_each_constraint(changes: dict[str, Any], reason: str) -> None:
    variants.check_constraint(gemm_sm70, changes, reason)


@unit
def test_the_architecture_is_a_constraint() -> None:
    base = gemm_sm70.SHAPES[2].config(variants.KINDS[0])
    assert not gemm_sm70.violations(base, architecture("sm_75"))
    (found,) = gemm_sm70.violations(base, architecture("sm_80"))
    assert "a warp tile is at most 64 x 32, not 64 x 64" in found
    for found in gemm_sm70.violations(replace(base, layout="padded"), architecture("sm_70")):
        assert "padding leaves the reads of m8n8k4 with conflicts" in found


@unit
def test_the_choice_is_legal_and_fills_the_device() -> None:
    variants.check_choice(gemm_sm70)
