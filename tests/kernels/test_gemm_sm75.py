"""ptx/gemm_sm75.ptx: every bit, bank conflicts, resources, constraints."""

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
from cuevo.kernels import gemm_sm70, gemm_sm75

kernel = pytest.mark.kernel
unit = pytest.mark.unit
CASES = variants.CASES["sm_75"]

# -- Every bit -------------------------------------------------------------------------------------


@kernel
@pytest.mark.parametrize("case", variants.ON_CPU["sm_75"], ids=name)
def test_every_bit(case: GemmCase) -> None:
    check(gemm_sm75, case, shared("sm_75"))


@kernel
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("case", CASES[::19], ids=name)
def test_every_bit_on_later_architectures(case: GemmCase, arch: str) -> None:
    check(gemm_sm75, case, shared(arch))


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_bit_on_a_device(executor: DriverExecutor, case: GemmCase) -> None:
    check(gemm_sm75, case, executor)


@kernel
@pytest.mark.parametrize("case", variants.CASES["sm_70"][4::50], ids=name)
def test_results_are_near_float64(case: GemmCase) -> None:
    variants.check_near_float64(gemm_sm75, case)


@unit
def test_the_sweep_has_everything() -> None:
    variants.check_sweep(gemm_sm75)


@kernel
@pytest.mark.parametrize("output", variants.OUTPUTS, ids=str)
@pytest.mark.parametrize("b_order", ["rows", "columns"])
@pytest.mark.parametrize("a_order", ["rows", "columns"])
def test_no_bank_conflicts(a_order: str, b_order: str, output: tuple[str, str, int]) -> None:
    variants.check_bank_conflicts(gemm_sm75, "ldmatrix", a_order, b_order, output)


# -- Machine code ----------------------------------------------------------------------------------


@unit
def test_the_target_is_the_variant_s_own() -> None:
    """The executor of that architecture refuses what is newer; so it does in the sweep."""
    text = variants.any_text(gemm_sm75)
    assert ".target sm_75\n" in text
    assert ".version 6.5\n" in text
    assert "cp.async" not in text
    assert "ldmatrix" in text


@unit
def test_the_machine_code_has_what_the_ledger_says(tmp_path: Path) -> None:
    (mma, reads, copies), epilogue, found = variants.ledger_and_code(gemm_sm75, tmp_path)
    # Twice: in the loop, with the first fragments and the first tile, and in the last iteration.
    assert found["HMMA.1688"] == 2 * mma
    assert found["LDSM.16"] == 2 * reads
    assert found["LDS.U"] == epilogue
    assert found["LDG.E"] == found["STS.128"] == 2 * copies


# -- The host half ---------------------------------------------------------------------------------


@unit
@pytest.mark.parametrize(("changes", "reason"), variants.CONSTRAINTS)
def test_each_constraint(changes: dict[str, Any], reason: str) -> None:
    variants.check_constraint(gemm_sm75, changes, reason)


@unit
def test_the_architecture_is_a_constraint() -> None:
    base = gemm_sm70.SHAPES[2].config(variants.KINDS[0])
    (found,) = gemm_sm75.violations(base, architecture("sm_70"))
    assert found == "ldmatrix and mma.m16n8k8 need sm_75; this is sm_70"


@unit
def test_the_choice_is_legal_and_fills_the_device() -> None:
    variants.check_choice(gemm_sm75)
