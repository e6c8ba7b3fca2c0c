"""cuevo.sim.instructions.table: which opcodes there are."""

import re

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


# What the assembler (ptxas 13.0) refuses for an older target, by the first that has it.
SINCE = {
    75: """ldmatrix.sync.aligned.m8n8.x4.shared.b16
    mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32
    tanh.approx.f32 ex2.approx.f16x2 ld.global.L2::128B.b32 ld.global.nc.L2::64B.v4.b32""",
    80: """mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16
    mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32
    cp.async.ca.shared.global cp.async.commit_group cp.async.wait_group cp.async.wait_all
    redux.sync.add.u32 cvt.rn.f16x2.f32 cvt.rn.bf16.f32 cvt.rn.bf16x2.f32 cvt.rn.relu.f16.f32
    cvt.f32.bf16 min.f16x2 max.NaN.f16 min.NaN.f32 fma.rn.bf16x2 fma.rn.relu.f16 neg.bf16x2
    ld.global.L2::256B.b32 prefetch.global.L2::evict_last
    createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64
    ld.global.L2::cache_hint.v4.f32 st.global.L2::cache_hint.b32""",
    90: """stmatrix.sync.aligned.m8n8.x4.shared.b16 add.bf16x2 ex2.approx.ftz.bf16x2
    setp.eq.bf16""",
}
ALWAYS = """mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 ld.global.nc.L1::no_allocate.v4.b32
cvt.rn.f16.f32 cvt.rz.sat.f16.f32 cvt.f32.f16 fma.rn.f16x2 min.f32 max.ftz.f32 setp.lt.f16
atom.global.inc.u32 atom.acq_rel.gpu.global.add.u32 fence.acq_rel.gpu membar.gl bar.warp.sync
prefetch.global.L1 prefetch.global.L2 mov.b32 ld.global.b16 st.global.b16 st.global.v4.b16
st.global.v2.b64 shfl.sync.bfly.b32 barrier.cta.sync"""


@pytest.mark.parametrize(
    ("since", "opcode"),
    [(since, opcode) for since, listed in SINCE.items() for opcode in listed.split()],
)
def test_architectures(since: int, opcode: str) -> None:
    modifiers(opcode, since)
    before = {75: 70, 80: 75, 90: 89}[since]
    message = f"{opcode} needs sm_{since} or later; this is sm_{before}"
    with pytest.raises(PtxError, match=re.escape(message)):
        modifiers(opcode, before)


@pytest.mark.parametrize("opcode", ALWAYS.split())
def test_what_the_oldest_architecture_has(opcode: str) -> None:
    for arch in (70, 75, 90):
        modifiers(opcode, arch)


def test_patterns_are_listed_once() -> None:
    assert len(patterns()) == len(set(patterns())) > 80
