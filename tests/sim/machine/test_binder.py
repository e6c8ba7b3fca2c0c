"""cuevo.sim.machine.binder: operands; a constant is worth a register that holds it."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError

pytestmark = pytest.mark.unit

# Opcodes by the types of destination and sources; constants as they are written, and their values.
FORMS: dict[tuple[str, ...], str] = {
    ("b32", "b32", "b32"): "and.b32 or.b32 xor.b32 add.u32 sub.s32 mul.lo.s32 mul.hi.s32 mul.hi.u32"
    " min.s32 max.u32 div.u32 rem.s32 shl.b32 shr.u32 shr.s32 set.lt.u32.s32 add.f16x2 mul.f16x2",
    ("b64", "b32", "b32"): "mul.wide.u32 mul.wide.s32",
    ("b64", "b64", "b64"): "add.s64 mul.lo.u64 mul.hi.s64 mul.hi.u64 and.b64 div.s64 max.s64",
    ("b64", "b32", "b32", "b64"): "mad.wide.s32",
    ("b32", "b32", "b32", "b32"): "mad.lo.u32 mad.hi.s32 bfe.u32 bfe.s32 shf.l.wrap.b32 prmt.b32"
    " fma.rn.bf16x2 fma.rn.f16x2",
    ("b32", "b32"): "not.b32 cnot.b32 popc.b32 clz.b32 brev.b32 bfind.s32 neg.s32 abs.s32 mov.b32"
    " cvt.sat.s16.s32 neg.bf16x2",
    (
        "f32",
        "f32",
        "f32",
    ): "add.f32 sub.rz.f32 mul.ftz.f32 min.f32 max.NaN.f32 div.rn.f32 copysign.f32"
    " add.sat.f32 mul.rp.f32",
    ("f32", "f32"): "neg.f32 abs.ftz.f32 ex2.approx.ftz.f32 lg2.approx.f32 sqrt.rn.f32 rcp.rn.f32"
    " cvt.rni.f32.f32 mov.f32",
    ("f32", "f32", "f32", "f32"): "fma.rn.f32 fma.rn.ftz.f32 fma.rz.f32",
    (
        "b32",
        "f32",
        "f32",
    ): "cvt.rn.bf16x2.f32 cvt.rz.f16x2.f32 cvt.rn.relu.bf16x2.f32 set.lt.u32.f32",
    ("b32", "f32"): "cvt.rzi.s32.f32 cvt.rni.u32.f32",
    ("f32", "b32"): "cvt.rn.f32.s32 cvt.rz.f32.u32",
    ("f64", "f64", "f64"): "add.f64 mul.f64 max.f64",
    ("f64", "f32"): "cvt.f64.f32",
    ("pred", "b32", "b32"): "setp.lt.s32 setp.eq.b32",
    ("pred", "f32", "f32"): "setp.lt.f32 setp.neu.ftz.f32",
}
CONSTANTS: dict[str, list[tuple[str, Any]]] = {
    "b32": [("3", 3), ("-7", 2**32 - 7)],
    "b64": [("3", 3), ("-7", 2**64 - 7)],
    "f32": [("0f00000000", 0.0), ("0f7FC00000", np.nan), ("1.5", 1.5)],
    "f64": [("0d3FF8000000000000", 1.5), ("0.25", 0.25)],
}
CASES = [
    pytest.param(opcode, types, id=opcode)
    for types, opcodes in FORMS.items()
    for opcode in opcodes.split()
]


OF_ALL_CONSTANTS = [
    # Packed halves take none, and bfe none that is negative.
    case
    for case in CASES
    if "x2" not in str(case.values[0]).rsplit(".")[-1] and "bfe" not in str(case.values[0])
]


@pytest.mark.parametrize(("opcode", "types"), OF_ALL_CONSTANTS)
def test_constants_equal_registers(
    run_elementwise: Any, opcode: str, types: tuple[str, ...]
) -> None:
    into, *sources = types
    for chosen in product(*(enumerate(CONSTANTS[scalar]) for scalar in sources)):
        held = {
            f"x{i}": (s, np.full(32, c[1][1]))
            for i, (s, c) in enumerate(zip(sources, chosen, strict=True))
        }
        for constant in product((False, True), repeat=len(sources)):
            listed = ", ".join(
                c[1][0] if fixed else f"x{i}"
                for i, (fixed, c) in enumerate(zip(constant, chosen, strict=True))
            )
            registers = ", ".join(held)
            body = f"{opcode} d, {listed}; {opcode} e, {registers};"
            d, e = run_elementwise(body, "sm_90", **held, d=into, e=into)
            assert d.tobytes() == e.tobytes(), listed


@pytest.mark.parametrize(("opcode", "types"), CASES)
def test_guards_and_branches_change_chosen_lanes_only(
    run_elementwise: Any, numbers: Any, opcode: str, types: tuple[str, ...]
) -> None:
    into, *sources = types
    held = {}
    for i, scalar in enumerate(sources):
        if scalar == "f64":
            values = numbers.rng.standard_normal(96)
        elif scalar == "f32":
            values = numbers.floats(96)
        else:
            # Odd numbers: nobody divides by zero.
            values = numbers.integers(scalar.replace("b", "u"), 96) | 1
        held[f"x{i}"] = (scalar, values)
    before = "setp.ne.u32 {0}, choice, choice;" if into == "pred" else f"mov.{into} {{0}}, other;"
    other = {} if into == "pred" else {"other": (into, np.arange(96))}
    listed = ", ".join(f"x{i}" for i in range(len(sources)))
    body = f"""
    .reg .pred p; setp.ne.u32 p, choice, 0; {before.format("e")} {before.format("f")}
    {opcode} d, {listed}; @p {opcode} e, {listed}; @!p bra OVER; {opcode} f, {listed}; OVER:
    """
    choice = numbers.rng.integers(0, 2, 96)
    choice[32:64] = 0
    d, e, f = run_elementwise(
        body, "sm_90", choice=("u32", choice), **held, **other, d=into, e=into, f=into
    )
    kept = np.zeros(96, d.dtype) if into == "pred" else np.arange(96).astype(d.dtype)
    expected = np.where(choice == 1, d, kept).tobytes()
    assert e.tobytes() == expected and f.tobytes() == expected


def test_guarded_instructions_take_constants(run_elementwise: Any) -> None:
    body = """
    .reg .pred p; setp.lt.u32 p, a, 4; mov.b32 d, 9; @p cvt.rn.bf16x2.f32 d, 0f3F800000, 0f40000000;
    @!p shl.b32 d, d, 2; selp.b32 e, 1, 2, p; @p shl.b32 e, 7, 40;
    """
    d, e = run_elementwise(body, a=("u32", np.arange(32)), d="u32", e="u32")
    assert d.tolist() == [0x3F804000] * 4 + [36] * 28
    assert e.tolist() == [0] * 4 + [2] * 28


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("add.u32 d, a, %tid.x, 1;", "takes 3 operands, not 4"),
        ("add.u32 d, a, 1.5;", "1.5 is no operand of type .u32"),
        ("add.u32 d, a, [a];", "of a kind that it does not take"),
        ("add.u32 d, a, {a, a};", "of a kind that it does not take"),
        ("add.u32 {d}, a, a;", "must be a register"),
        (".reg .pred p; add.u32 d, a, p;", r"p is declared \.pred"),
        (".reg .pred p; selp.b32 d, a, !p, p;", "!p cannot stand here|declared .pred"),
        ("selp.b32 d, a, a, a;", "a is declared"),
        ("selp.b32 d, a, a, 1.0;", "needs a predicate here"),
        ("add.f32 d, a, %tid.x;", "add does not take %tid.x; a mov does"),
        ("mov.f32 d, %tid.x;", "%tid.x is a 32-bit integer"),
        ("ld.global.b32 d, [d1];", "unknown symbol"),
        (".reg .b16 h; ld.shared.b32 d, [h];", "h is no address: it is \\.b16"),
        ("lop3.b32 d, a, a, a, a;", "needs a constant here"),
    ],
)
def test_operands_that_are_refused(run_elementwise: Any, body: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        run_elementwise(body, a=("b32", np.arange(32)), d="b32")
