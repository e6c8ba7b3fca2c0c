"""ptx/evoformer_backward_sm70.ptx against float64, on the CPU executor and a GPU; bank conflicts,
resources, ledger and host half: `helpers.backward_variants`, and what is this kernel's alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.attention_sweep import covering
from helpers.backward_cases import BackwardCase
from helpers.backward_variants import LIGHT, BackwardVariantTests, label, run

from cuevo.kernels import evoformer_backward_sm70 as variant

# Each variant meets others of the cases, enough on its own architecture, some on a newer one.
# The kind of values matters to the body, which the variants share.
SWEEP = [
    replace(case, arch=arch)
    for arch, found in (
        (
            "sm_70",
            covering(
                LIGHT[::-1],
                "sm_70",
                ("head_dim", "layout", "mask", "pair", "pair_layout", "dout_layout", "scale"),
            ),
        ),
        ("sm_90", LIGHT[20::30]),
    )
    for case in found
]
LEDGERS: list[dict[str, Any]] = [
    dict(head_dim=40, second=True),
    dict(head_dim=128, side="queries", block_stationary=32),
]
CONSTRAINTS = [
    (dict(head_dim=136), "sm_70", "head_dim must be"),
    (dict(pair="bf16"), "sm_70", "evoformer_backward_sm70 takes q, k, v, dout and"),
    (dict(side="rows"), "sm_70", "side must be keys or queries, not 'rows'"),
    (dict(first=False, second=False, sums=False), "sm_70", "at least one of them"),
    (dict(block_stationary=16), "sm_70", "block_stationary must be those of 1, 2, 4 or 8 warps"),
    (dict(block_stationary=256), "sm_70", "at most 128, not 256"),
    (dict(head_dim=128, block_stationary=128), "sm_70", "a block of sm_70 has 98304"),
]


class TestSm70(BackwardVariantTests):
    variant = variant
    own = "sm_70"
    iterator = "warp_iterator_sm70"

    @pytest.mark.kernel
    @pytest.mark.parametrize("case", SWEEP, ids=label)
    def test_the_sweep(self, case: BackwardCase) -> None:
        run(variant, case)

    @pytest.mark.unit
    def test_the_sweep_has_everything(self) -> None:
        self.check_sweep(SWEEP, ("dtype", "head_dim", "dout_layout", "mask", "pair"))

    @pytest.mark.unit
    @pytest.mark.parametrize("settings", LEDGERS, ids=label)
    def test_the_machine_code_has_what_the_ledger_says(
        self, settings: dict[str, Any], tmp_path: Path
    ) -> None:
        self.check_ledger(settings, tmp_path)

    def check_products(self, found: Mapping[str, int], mma: int, reads: int) -> None:
        assert found["HMMA.884"] == 4 * mma

    @pytest.mark.unit
    @pytest.mark.parametrize(("changes", "arch", "reason"), CONSTRAINTS)
    def test_each_constraint(self, changes: dict[str, Any], arch: str, reason: str) -> None:
        self.check_constraint(changes, arch, reason)
