"""ptx/gemm_sm80.ptx: its main loop, the ledger above it, and the budgets at its head.

Results, resources of what ships and constraints are those of `cuevo.gemm`: tests/ops.
"""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from blocks.harness import DIRECTORY
from helpers.ledgers import opcodes

from cuevo.architectures import architecture
from cuevo.kernels import gemm_sm80
from cuevo.kernels.gemm_mma import Config, Problem
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.template import render

unit = pytest.mark.unit
PROBLEM = Problem(1, 4096, 4096, 4096, "bf16", "bf16")
WHOLE = gemm_sm80.SHAPES[0].config(PROBLEM)
RAGGED = gemm_sm80.SHAPES[4].config(replace(PROBLEM, m=4001, k=4001))
RESIDENT = gemm_sm80.SHAPES[6].config(replace(PROBLEM, k=256))
CONFIGS = (
    WHOLE,
    RAGGED,
    RESIDENT,
    replace(RAGGED, instruction="m16n8k8", layout="padded"),
    replace(RAGGED, whole_steps=False, a_columns=True, b_columns=True),
    replace(RAGGED, a_access=8, b_access=2, dtype="f16", accumulate="f16"),
    replace(RESIDENT, clear="last_stage", cache_a="ca"),
)


def text_of(config: Config) -> str:
    assert not gemm_sm80.violations(config, architecture("sm_90"))
    return render(gemm_sm80.NAME, gemm_sm80.values(config)).text


def main_loop(text: str) -> list[str]:
    """Instructions from the first wait for a tile to the loop's end, labels by their number."""
    lines = [line.partition("//")[0].strip() for line in text.split("\n")]
    lines = [line for line in lines if line and not line.startswith((".loc", ".file"))]
    first = next(i for i, line in enumerate(lines) if line.startswith("cp.async.wait_group"))
    last = lines.index("cp.async.wait_group 0;", first + 1)
    loop = "\n".join(lines[first:last])
    for number, label in enumerate(re.findall(r"^(\w+):$", loop, re.MULTILINE)):
        loop = re.sub(rf"\b{label}\b", f"LABEL_{number}", loop)
    return [line for line in loop.split("\n") if line != "}"]


@unit
@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_the_loop_is_that_of_the_block(config: Config) -> None:
    """Tests of lib/mma_multistage.ptx are tests of this kernel's loop, too."""
    mma = config.mma
    values = {
        "mma": mma,
        "layout": config.accumulator,
        "dtype": config.dtype,
        "accumulate": config.accumulate,
        "order": "ab",
        "uses": 1,
    }
    block = render("mma_multistage", values, directory=DIRECTORY).text
    ours, theirs = main_loop(text_of(config)), main_loop(block)
    assert sum(line.startswith("mma.sync") for line in ours) >= mma.m_tiles * mma.n_tiles
    differing = [pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]]
    assert not differing, differing[0]
    # Where there is no K tile, the kernel goes on behind its loop, at one more label.
    (label,) = ours[len(theirs) :]
    assert re.fullmatch(r"LABEL_\d+:", label)


@unit
@pytest.mark.parametrize("config", CONFIGS[:5], ids=range(5))
def test_the_machine_code_has_what_the_ledger_says(config: Config, tmp_path: Path) -> None:
    rendered = render(gemm_sm80.NAME, gemm_sm80.values(config))
    mma, reads, copies = map(int, re.findall(r"//   [^\n]* = (\d+) \* \d clocks", rendered.text))
    found = opcodes(assemble(rendered, "sm_80", cache=None).code, tmp_path)
    block = config.mma
    assert (copies == 0) == block.resident
    products = "HMMA.16816" if config.instruction == "m16n8k16" else "HMMA.1688"
    assert found[products] == len(block.loops) * mma
    # The first fragments come before the loops.
    first = block.lookahead + block.b.groups
    assert found["LDSM.16"] == len(block.loops) * reads + first
    prologue = block.a.passes + block.b.passes
    assert found["LDGSTS.E"] == prologue + (len(block.loops) - 1) * copies


@unit
@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_the_schedule_multiplies_what_it_has_loaded(config: Config) -> None:
    """Followed over two iterations: every slot finds the fragments of its step and group."""
    mma = config.mma
    a = {group * mma.a.group_registers: (0, 0, group) for group in range(mma.lookahead)}
    b = {part * mma.b.group_registers: (0, 0, part) for part in range(mma.b.groups)}
    for tile in range(2):
        for slot in mma.schedule:
            for load in slot.loads:
                held = a if load.operand.name == "a" else b
                held[load.first] = (tile + load.of_next, load.step, load.group)
            assert a[slot.a_first] == (tile, slot.step, slot.group)
            for part in range(mma.b.groups):
                at = slot.b_first + part * mma.b.group_registers
                assert b[at] == (tile, slot.step, part)
                if slot.reloads:
                    load = slot.reloads[part]
                    assert load.first == at
                    b[at] = (tile + load.of_next, load.step, load.group)
    waits = [slot.number for slot in mma.schedule if slot.waits]
    assert waits == [mma.waiting_slot]
    for before, after in pairwise(mma.schedule):
        assert not any(load.of_next for load in before.loads) or after.number > waits[0]


@unit
@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_the_head_says_what_the_instance_takes(config: Config) -> None:
    text = text_of(config)
    (terms, total) = re.findall(r"// Shared memory: (.+) = (\d+) bytes\n", text)[0]
    sizes = [int(term.rpartition(" ")[2]) for term in terms.split(" + ")]
    assert sum(sizes) == int(total) == config.shared_bytes
    (budget,) = map(int, re.findall(r"// Registers: (\d+) a thread, ", text))
    found = assemble(render(gemm_sm80.NAME, gemm_sm80.values(config)), "sm_80", cache=None)
    assert found.resources.registers <= budget == config.registers


@unit
def test_the_register_budget() -> None:
    assert WHOLE.registers == 255
    assert replace(WHOLE, min_blocks=2).registers == 128
    assert replace(RESIDENT, min_blocks=3).registers == 65536 // (128 * 3) // 8 * 8
