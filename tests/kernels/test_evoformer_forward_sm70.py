"""ptx/evoformer_forward_sm70.ptx against float64, on the CPU executor and a GPU; bank conflicts,
resources, ledger and host half: `helpers.forward_variants`, and what is this kernel's alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.attention_cases import Case
from helpers.attention_sweep import covering
from helpers.forward_variants import HALVES, ForwardVariantTests, label

from cuevo.kernels import evoformer_forward_sm70 as variant

# Each variant meets others of the cases, on its own architecture and on a newer one.
SWEEP = [
    case
    for start, arch in ((60, "sm_70"), (180, "sm_90"))
    for case in covering(HALVES[start:] + HALVES[:start], arch)
]
TILINGS = [
    (8, dict(block_queries=32)),
    (56, dict(block_queries=64, block_keys=64)),
    (72, dict(block_queries=128)),
    (128, dict(block_queries=32, block_keys=64)),
]
LEDGERS = [
    dict(head_dim=40),
    dict(head_dim=128),
]
CONSTRAINTS = [
    (dict(head_dim=136), "sm_70", "head_dim must be"),
    (dict(mask="bf16"), "sm_90", "evoformer_forward_sm70 takes q, k, v and 16-bit"),
    (dict(pair="bf16"), "sm_70", "biases in float16"),
    (dict(warp_queries=16), "sm_70", "warp_queries must be 32, not 16"),
]


class TestSm70(ForwardVariantTests):
    variant = variant
    own = "sm_70"
    iterator = "warp_iterator_sm70"

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
        assert found["HMMA.884"] == 4 * mma

    @pytest.mark.unit
    @pytest.mark.parametrize(("changes", "arch", "reason"), CONSTRAINTS)
    def test_each_constraint(self, changes: dict[str, Any], arch: str, reason: str) -> None:
        self.check_constraint(changes, arch, reason)
