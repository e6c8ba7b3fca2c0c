"""Operands that the assembler refuses are refused, and those that it takes are taken."""

import shutil

import pytest
from sim.instructions.mutants import Mutant, disagreements, mutants, of_executor

from cuevo.sim.instructions.table import forms

pytestmark = pytest.mark.unit

MULTICAST = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")
def test_what_the_assembler_says() -> None:
    """More of them: python tools/compare_operands.py."""
    found = list(disagreements(list(mutants(seed=4, count=200))))
    assert not found, "\n".join(f"{each.text} | {theirs} | {ours}" for each, theirs, ours in found)


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("add.u32 _, r1, r2;", "takes no _ for a result"),
        ("ld.global.f32 _, [d1];", "has no result that is kept"),
        ("mov.b64 {_, _}, d1;", "has no result that is kept"),
        ("ld.global.b32 r1, [f1];", "f1 is no 64-bit address"),
        ("ld.shared.b32 r1, [f1];", "f1 is no address: it is .f32"),
        ("redux.sync.add.u32 r1, r2, f1;", "f1 is declared .f32"),
        ("ld.global.f32 g1, [d1];", "g1 is declared .f64"),
        ("add.u32 r1, r2, %tid.x;", "add does not take %tid.x; a mov does"),
        ("cvt.rn.f32.u32 f1, %tid.x;", "cvt does not take %tid.x"),
        ("add.u32 r1, r2, 1.0;", "1.0 is no operand of type .u32"),
        ("add.u32 r1, r2, 0f3F800000;", "a literal of 32 bits is no operand of type .u32"),
        ("mul.bf16 h1, h2, 3;", "3 is an integer; bf16 takes none"),
        ("add.f16x2 r1, f1, r2;", "f1 is declared .f32; add.f16x2 needs .f16x2"),
        ("ld.global.b32 r1, [-8];", "a number is an address in .local only"),
        ("ld.global.b32 r1, [d1-8];", "expected ']', found '-'"),
        ("bar.sync 16;", "takes numbers from 0 to 15, not 16"),
        ("bar.sync 0, 33;", "takes multiples of 32 from 0"),
        ("bar.arrive 0, 0;", "takes multiples of 32 from 32"),
        ("bfe.u32 r1, r2, 256, 1;", "takes numbers from 0 to 255"),
        ("ld.global.v2.b32 {r1, d1}, [d1];", "registers of 32 and of 64 bits in one vector"),
        ("cp.async.ca.shared.global [d1], [own], 4;", "own is in .shared, not .global"),
        ("elect.sync r1, r2;", "has two results, d|p"),
        ("elect.sync f1|p1, r2;", "f1 is declared .f32; elect.sync needs .u32 here"),
        ("match.any.sync.b32 f1, r1, r2;", "f1 is declared .f32"),
        ("match.all.sync.b32 f1|p1, r1, r2;", "f1 is declared .f32"),
        ("mov.pred _, p1;", "has no result that is kept"),
        ("cvt.rn.f16x2.f32 d1, f1, f2;", "d1 is declared .b64"),
        ("cvt.rm.ftz.f32.f64 d1, g1;", "d1 is declared .b64"),
        ("tensormap.replace.tile.box_dim.global.b1024.b32 [d1], 0, f1;", "f1 is declared .f32"),
        ("mov.u64 d1, %tid.x;", "%tid.x is a 32-bit integer"),
        ("mbarrier.test_wait.shared.b64 p1, [d1], own+4;", "and no address"),
        ("cvta.global.u64 d1, own;", "own is in .shared, not .global"),
        ("cvta.param.u64 d1, own+4;", "own is in .shared, not .param"),
        (f"{MULTICAST} [d1], [d2], r1, [d3], own+4;", "are bits, and no address"),
    ],
)
def test_what_is_refused(statement: str, complaint: str) -> None:
    assert complaint in of_executor(Mutant(forms()[0], "", statement).alone)


@pytest.mark.parametrize(
    "statement",
    [
        "selp.b32 r1, r2, r3, 1;",
        "setp.eq.and.u32 p1, r1, r2, !0;",
        "and.pred p1, p2, 1;",
        "mov.pred p1, !p2;",
        "mov.f32 f1, 0d3FF0000000000000;",
        "add.f64 g1, g2, 0f3F800000;",
        "mov.b64 d1, 1.0;",
        "mov.b64 {r1, _}, d1;",
        "add.u32 r1, r2, own+4;",
        "mov.u16 h1, %tid.x;",
        "cvt.u16.u64 h1, %clock64;",
        "ld.u32 r1, [own+8];",
        "ld.local.b32 r1, [16];",
        "shf.l.wrap.b32 f1, f2, r1, 3;",
        "mov.b32 r1, WARP_SZ+1;",
        "and.b32 r1, r2, 1 ? 2 : 3;",
        "mov.v4.u32 {r1, r2, r3, r4}, %ctaid;",
    ],
)
def test_what_is_taken(statement: str) -> None:
    assert not of_executor(Mutant(forms()[0], "", statement).alone)
