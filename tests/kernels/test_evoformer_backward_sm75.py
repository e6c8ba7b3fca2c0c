"""ptx/evoformer_backward_sm75.ptx against float64, on the CPU executor and a GPU; bank conflicts,
resources, ledger and host half: `helpers.backward_variants`, and what is this kernel's alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.attention_sweep import TRAITS, covering
from helpers.backward_cases import BackwardCase
from helpers.backward_variants import LIGHT, BackwardVariantTests, label, run

from cuevo.kernels import evoformer_backward_sm75 as variant

# Each variant meets others of the cases, enough on its own architecture, some on a newer one.
SWEEP = [
    replace(case, arch=arch)
    for arch, found in (
        ("sm_75", covering(LIGHT, "sm_75", (*TRAITS, "dout_layout"))),
        ("sm_90", LIGHT[5::30]),
    )
    for case in found
]
LEDGERS: list[dict[str, Any]] = [
    dict(head_dim=8, first=False, second=True),
    dict(head_dim=24, side="queries", sums=True),
    dict(head_dim=104, second=True, sums=True),
]
CONSTRAINTS = [
    (dict(), "sm_70", "mma.m16n8k8 needs sm_75; this is sm_70"),
    (dict(head_dim=36), "sm_75", "head_dim must be a multiple of 8 from 8 to 128"),
    (dict(dtype="bf16"), "sm_75", "bf16 needs the tensor cores of sm_80 or later"),
    (dict(dtype="f32"), "sm_75", "dtype must be f16, not 'f32'"),
    (dict(pair="bool"), "sm_75", "pair must be none, f16 or f32, not 'bool'"),
    (dict(side="queries"), "sm_75", "a side gives first or sums, the keys second too"),
    (dict(block_stationary=48), "sm_75", "1, 2, 4 or 8 warps, at most 128, not 48"),
    (dict(min_blocks=0), "sm_75", "0 blocks of 128 threads do not fit"),
    (dict(min_blocks=9), "sm_75", "9 blocks of 128 threads do not fit"),
    (dict(head_dim=128, block_stationary=128), "sm_75", "a block of sm_75 has 65536"),
]


class TestSm75(BackwardVariantTests):
    variant = variant
    own = "sm_75"
    iterator = "warp_iterator"

    @pytest.mark.kernel
    @pytest.mark.parametrize("case", SWEEP, ids=label)
    def test_the_sweep(self, case: BackwardCase) -> None:
        run(variant, case)

    @pytest.mark.unit
    def test_the_sweep_has_everything(self) -> None:
        self.check_sweep(SWEEP, ("dtype", "head_dim", "values", "dout_layout", "mask", "pair"))

    @pytest.mark.unit
    @pytest.mark.parametrize("settings", LEDGERS, ids=label)
    def test_the_machine_code_has_what_the_ledger_says(
        self, settings: dict[str, Any], tmp_path: Path
    ) -> None:
        self.check_ledger(settings, tmp_path)

    def check_products(self, found: Mapping[str, int], mma: int, reads: int) -> None:
        assert (found["HMMA.1688"], found["LDSM.16"]) == (mma, reads)

    @pytest.mark.unit
    @pytest.mark.parametrize(("changes", "arch", "reason"), CONSTRAINTS)
    def test_each_constraint(self, changes: dict[str, Any], arch: str, reason: str) -> None:
        self.check_constraint(changes, arch, reason)
