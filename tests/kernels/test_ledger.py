"""The ledger above the main loop of a kernel, against the machine code of its text."""

import re
from pathlib import Path

import pytest
from ledgers import opcodes

from cuevo.assemble import assemble
from cuevo.kernels import evoformer_forward_sm80 as forward
from cuevo.template import render

CONFIGS = [
    forward.Config(
        head_dim=32, block_rows=2, block_queries=64, block_keys=32, q_in_registers=False
    ),
    forward.Config(head_dim=64),
    forward.Config(head_dim=24, mask="f32", pair="f32"),
    forward.Config(head_dim=8, dtype="f16", mask="bounds", pair="none"),
    forward.Config(head_dim=128, block_queries=64, m_tiles=1, stages=2),
]


def ledger(text: str) -> dict[str, int]:
    """The counts of the comment: the number before the clocks, and the sum of the ldmatrix."""
    counts = {
        name: int(count)
        for name, count in re.findall(r"//   (\S+(?: and add)?) +(\d+) \* \d+ clocks?", text)
    }
    (loads,) = re.findall(r"//   ldmatrix .* = (\d+)", text)
    return {**counts, "ldmatrix": int(loads)}


@pytest.mark.unit
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"D{config.head_dim}")
def test_the_machine_code_has_what_the_ledger_says(config: forward.Config, tmp_path: Path) -> None:
    kernel = render(forward.NAME, forward.values(config))
    said = ledger(kernel.text)
    found = opcodes(assemble(kernel, "sm_90", cache=None).code, tmp_path)
    steps = config.block_keys // config.chunk_keys
    rows = 2 * config.m_tiles
    # Beside the fast road each step has a slow one: the exponentials again, one more a row for what
    # O is multiplied by, and six m16n8k8 an m tile for the maxima of its rows.
    assert found["MUFU.EX2"] == 2 * said["ex2"] + steps * rows
    assert found["HMMA.16816"] == said["mma.m16n8k16"]
    assert found["HMMA.1688"] == said["mma.m16n8k8"] + steps * 6 * config.m_tiles
    prologue = -(-config.chunks // 2) * config.m_tiles if config.q_in_registers else 0
    assert found["LDSM.16"] == said["ldmatrix"] + prologue
