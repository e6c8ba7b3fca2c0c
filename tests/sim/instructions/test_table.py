"""cuevo.sim.instructions.table: which opcodes there are."""

import pytest

from cuevo.sim import instructions
from cuevo.sim.faults import PtxError
from cuevo.sim.instructions.table import find, patterns
from cuevo.sim.syntax import Instruction

pytestmark = pytest.mark.unit

assert instructions.__all__


def modifiers(opcode: str, arch: int = 90) -> dict[str, str]:
    return dict(find(Instruction(opcode, (), None, 3), arch)[1])


def test_choices_are_found_by_name() -> None:
    found = modifiers("fma.rn.ftz.f32")
    assert (found["round"], found["ftz"], found["sat"]) == ("rn", "ftz", "")
    found = modifiers("ld.global.nc.L2::128B.v4.b32")
    assert (found["prefetch"], found["vector"], found["type"]) == ("L2::128B", "v4", "b32")
    assert modifiers("mul.lo.s32")["op"] == "mul.lo"


@pytest.mark.parametrize(
    "opcode",
    [
        "frobnicate",
        "add",
        "add.u8",
        "add.ftz.rn.f32",
        "add.f32.rn",
        "fma.f32",
        "add.s32.",
        "mul.s32",
        "ldx.global.b32",
        "ld.global.b32.v2",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16",
    ],
)
def test_the_unknown_is_refused_by_name_and_line(opcode: str) -> None:
    with pytest.raises(PtxError, match="does not know the instruction") as caught:
        modifiers(opcode)
    assert opcode in caught.value.message and caught.value.line == 3


def test_architectures() -> None:
    assert modifiers("ex2.approx.ftz.bf16x2", 90)["type"] == "bf16x2"
    for opcode, arch in (
        ("ex2.approx.ftz.bf16x2", 89),
        ("cp.async.wait_all", 75),
        ("tanh.approx.f32", 70),
    ):
        with pytest.raises(PtxError, match=f"needs sm_.* or later; this is sm_{arch}"):
            modifiers(opcode, arch)


def test_patterns_are_listed_once() -> None:
    assert len(patterns()) == len(set(patterns())) > 80
