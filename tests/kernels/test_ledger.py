"""The ledger above the main loop of a kernel, against the machine code of its text."""

import re
from collections import Counter
from pathlib import Path

import pytest
from helpers.ledgers import opcodes

from cuevo.architectures import architecture
from cuevo.kernels import evoformer_backward_sm80 as backward
from cuevo.kernels import evoformer_forward_sm80 as forward
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.template import render

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
    found = opcodes(assemble(kernel, "sm_90", cache=None).code, tmp_path)
    _, *ledgers = kernel.text.split("// Ledger of an iteration")
    expected: Counter[str] = Counter()
    for (each, guessed), text in zip(config.passes, ledgers, strict=True):
        said = ledger(text)
        # Beside the fast path each step has a slow one where references follow maxima: the
        # exponentials again, one more a row for what O is multiplied by, and six m16n8k8 an m tile
        # for the maxima of its rows.
        slow = 0 if guessed else each.block_keys // each.chunk_keys
        expected["MUFU.EX2"] += said["ex2"] * (1 if guessed else 2) + slow * 2 * each.m_tiles
        expected["HMMA.16816"] += said["mma.m16n8k16"]
        expected["HMMA.1688"] += said["mma.m16n8k8"] + slow * 6 * each.m_tiles
        prologue = -(-each.chunks // 2) * each.m_tiles if each.q_in_registers else 0
        expected["LDSM.16"] += said["ldmatrix"] + prologue
    assert {name: found[name] for name in expected} == dict(expected)


GRADIENTS = [
    backward.Config(
        32, pair="bf16", mask=True, second=True, sums=True,
        block_streamed=64, chunk_streamed=16, stages=2, stationary_in_registers=True,
    ),
    backward.Config(
        32, pair="bf16", mask=True, side="queries", sums=True,
        block_rows=2, chunk_streamed=16, stages=2, stationary_in_registers=True,
    ),
    backward.Config(64, dtype="f16", side="queries", pair="f32", sums=True, stages=2),
    backward.Config(24, first=False, second=True, m_tiles=1, block_stationary=64),
    backward.Config(8, side="queries", mask=True),
]  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize("config", GRADIENTS, ids=lambda config: f"D{config.head_dim}{config.side}")
def test_the_machine_code_of_gradients_has_what_the_ledger_says(
    config: backward.Config, tmp_path: Path
) -> None:
    assert not backward.violations(config, architecture("sm_90"))
    kernel = render(backward.NAME, backward.values(config))
    said = ledger(kernel.text)
    found = opcodes(assemble(kernel, "sm_90", cache=None).code, tmp_path)
    # The last tile may end with any step: all but the last step a second time, or half of the only
    # one, with all of the stationary operands.
    again = config.block_streamed - config.last_step
    said = {name: count + count * again // config.block_streamed for name, count in said.items()}
    if config.last_step < config.chunk_streamed:
        (stationary,) = re.findall(r"ldmatrix +(\d+) stationary", kernel.text)
        said["ldmatrix"] += int(stationary) // 2
    assert found["MUFU.EX2"] == said["ex2"]
    assert found["HMMA.16816"] == said["mma.m16n8k16"]
    assert found["HMMA.1688"] == said["mma.m16n8k8"]
    prologue = 0
    if config.stationary_in_registers and config.warp_rows == 1:
        products = 1 + (config.first or config.sums)
        prologue = -(-config.tile.chunks // 2) * config.m_tiles * products
    assert found["LDSM.16"] == said["ldmatrix"] + prologue
