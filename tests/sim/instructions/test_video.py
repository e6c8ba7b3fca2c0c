"""Packed video instructions, and modifiers in an order of one's own."""

from typing import Any

import numpy as np
import pytest
from sim.instructions.mutants import Mutant, of_executor

from cuevo.sim.instructions.table import forms, ordered

pytestmark = pytest.mark.unit


def parts(x: Any, kind: str) -> Any:
    return np.ascontiguousarray(x).view(kind).reshape(len(x), -1).astype(np.int64)


@pytest.mark.parametrize(
    ("opcode", "kind", "function"),
    [
        ("vabsdiff4.u32.u32.u32", "u1", lambda x, y: np.abs(x - y)),
        ("vadd4.s32.s32.s32", "i1", lambda x, y: x + y),
        ("vadd4.s32.s32.s32.sat", "i1", lambda x, y: np.clip(x + y, -128, 127)),
        ("vsub2.u32.u32.u32.sat", "u2", lambda x, y: np.clip(x - y, 0, 65535)),
        ("vmin2.s32.s32.s32", "i2", np.minimum),
        ("vmax4.u32.u32.u32", "u1", np.maximum),
        ("vavrg4.u32.u32.u32", "u1", lambda x, y: (x + y + 1) // 2),
        ("vavrg2.s32.s32.s32", "i2", lambda x, y: (x + y + (x + y >= 0)) >> 1),
    ],
)
def test_packed(run_elementwise: Any, opcode: str, kind: str, function: Any) -> None:
    x, y = np.random.default_rng(0).integers(0, 2**32, (2, 32), np.uint32)
    body = f"{opcode} d, x, y, z; {opcode.removesuffix('.sat')}.add e, x, y, z;"
    z = np.arange(32, dtype=np.uint32)
    d, e = run_elementwise(body, x=("b32", x), y=("b32", y), z=("b32", z), d="b32", e="b32")
    expected = function(parts(x, kind), parts(y, kind))
    packed = np.ascontiguousarray(expected.astype(kind)).view("u4").ravel()
    assert np.array_equal(d.view("u4"), packed)
    if not opcode.endswith(".sat"):
        total = (expected.sum(1) + z).astype(np.uint32)
        assert np.array_equal(e.view("u4"), total)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("add.f32.rn", "add.rn.f32"),
        ("ld.b32.global", "ld.global.b32"),
        ("ld.L2::128B.nc.global.L1::no_allocate.v2.b32",
         "ld.global.nc.L1::no_allocate.L2::128B.v2.b32"),
        ("cvt.f32.rn.s32", "cvt.rn.f32.s32"),
        ("cvt.s32.rn.f32", "cvt.s32.rn.f32"),
        ("atom.add.global.u32", "atom.global.add.u32"),
        ("fence.gpu.sc", "fence.sc.gpu"),
        ("vote.ballot.sync.b32", "vote.sync.ballot.b32"),
        ("mul.s32.lo", "mul.s32.lo"),
        ("cp.ca.async.shared.global", "cp.ca.async.shared.global"),
        ("cp.async.ca.global.shared", "cp.async.ca.global.shared"),
        ("mma.aligned.sync.m16n8k8.row.col.f32.f16.f16.f32",
         "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"),
    ],
)  # fmt: skip
def test_orders_of_modifiers(written: str, meant: str) -> None:
    """Names, types and directions stay where they are; what is no instruction stays as it is."""
    assert ordered(written) == meant


def test_another_order_runs_alike(run_elementwise: Any) -> None:
    x = np.linspace(-3, 3, 32, dtype=np.float32)
    body = "add.f32.rz.ftz d, x, x; sub.u32.cc n, 0, 1; addc.u32 n, 0, 0; cvt.f32.rn.u32 e, n;"
    body = ".reg .b32 n; " + body
    d, e = run_elementwise(body, x=("f32", x), d="f32", e="f32")
    assert np.array_equal(d, x + x) and not e.any()


def test_what_no_order_makes() -> None:
    complaint = of_executor(Mutant(forms()[0], "", "mul.s32.lo r1, r2, r3;").alone)
    assert "does not support the instruction mul.s32.lo" in complaint
