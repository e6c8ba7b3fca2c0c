"""ptx/evoformer_forward_sm75.ptx against float64, on the CPU executor and a GPU; bank conflicts,
resources, ledger and host half: `helpers.forward_variants`, and what is this kernel's alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.attention_cases import Case
from helpers.attention_sweep import covering
from helpers.forward_variants import HALVES, ForwardVariantTests, label

from cuevo.kernels import evoformer_forward_sm75 as variant

# Each variant meets others of the cases, on its own architecture and on a newer one.
SWEEP = [
    case
    for start, arch in ((0, "sm_75"), (120, "sm_90"))
    for case in covering(HALVES[start:] + HALVES[:start], arch)
]
TILINGS = [
    (48, dict(block_queries=16, warp_queries=16)),
    (48, dict(block_queries=256, warp_queries=32, block_keys=64)),
    (120, dict(block_queries=64, warp_queries=32)),
    (128, dict(block_queries=128, warp_queries=16)),
]
LEDGERS = [
    dict(head_dim=8),
    dict(head_dim=24, block_keys=64),
    dict(head_dim=64, warp_queries=32, block_queries=128),
]
CONSTRAINTS = [
    (dict(), "sm_70", "mma.m16n8k8 needs sm_75; this is sm_70"),
    (dict(head_dim=36), "sm_75", "head_dim must be a multiple of 8 from 8 to 128"),
    (dict(dtype="bf16"), "sm_75", "bf16 needs the tensor cores of sm_80 or later"),
    (dict(dtype="f32"), "sm_75", "dtype must be f16, not 'f32'"),
    (dict(mask="int8"), "sm_75", "mask must be one of none, bounds, bool, f16, f32"),
    (dict(pair="bool"), "sm_75", "pair must be none, f16 or f32, not 'bool'"),
    (dict(warp_queries=48), "sm_75", "warp_queries must be 16 or 32"),
    (dict(block_queries=48), "sm_75", "those of 1, 2, 4 or 8 warps, not 48"),
    (dict(block_keys=48), "sm_75", "block_keys must be 32 or 64, not 48"),
    (dict(min_blocks=0), "sm_75", "0 blocks of 128 threads do not fit"),
    (dict(min_blocks=9), "sm_75", "9 blocks of 128 threads do not fit"),
    (dict(head_dim=128, block_queries=128, block_keys=64), "sm_75", "a block of sm_75"),
]


class TestSm75(ForwardVariantTests):
    variant = variant
    own = "sm_75"
    iterator = "warp_iterator"

    @pytest.mark.kernel
    @pytest.mark.parametrize("case", SWEEP, ids=label)
    def test_the_sweep(self, case: Case) -> None:
        self.check_case(case)

    @pytest.mark.unit
    @pytest.mark.parametrize("newer", [False, True])
    def test_the_sweep_has_everything(self, newer: bool) -> None:
        self.check_sweep(SWEEP, newer)

    @pytest.mark.kernel
    @pytest.mark.parametrize(("head_dim", "tiling"), TILINGS, ids=label)
    def test_every_tiling(self, head_dim: int, tiling: dict[str, int]) -> None:
        self.check_tiling(head_dim, tiling)

    @pytest.mark.unit
    @pytest.mark.parametrize("settings", LEDGERS, ids=label)
    def test_the_machine_code_has_what_the_ledger_says(
        self, settings: dict[str, int], tmp_path: Path
    ) -> None:
        self.check_ledger(settings, tmp_path)

    def check_products(self, found: Mapping[str, int], mma: int, reads: int) -> None:
        assert (found["HMMA.1688"], found["LDSM.16"]) == (mma, reads)

    @pytest.mark.unit
    @pytest.mark.parametrize(("changes", "arch", "reason"), CONSTRAINTS)
    def test_each_constraint(self, changes: dict[str, Any], arch: str, reason: str) -> None:
        self.check_constraint(changes, arch, reason)
