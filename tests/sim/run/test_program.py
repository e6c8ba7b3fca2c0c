"""cuevo.sim.run.program: registers that were never written, and straight runs of code."""

from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError
from cuevo.sim.instructions.levels import level
from cuevo.sim.run.program import Program
from cuevo.sim.text.parse import parse

pytestmark = pytest.mark.unit

START = """
.reg .b64 p; .reg .b32 t, x, y; .reg .pred c, d; mov.u32 t, %tid.x; ld.param.u64 p, [p0];
mad.wide.u32 p, t, 4, p; setp.lt.u32 c, t, 5;
"""


def run(run_kernel: Any, body: str) -> Any:
    out = np.zeros(64, np.uint32)
    run_kernel(f"{START}{body} ret;", out, block=64)
    return out


@pytest.mark.parametrize(
    ("body", "name", "lane"),
    [
        ("add.u32 y, x, 1;", "x", 0),
        ("@c mov.b32 x, 1; st.global.b32 [p], x;", "x", 5),
        ("@!c mov.b32 x, 1; @c st.global.b32 [p], x;", "x", 0),
        ("@c bra L; mov.b32 x, 1; L: st.global.b32 [p], x;", "x", 0),
        ("mov.b32 y, 0; L: @!c add.u32 y, y, x; mov.b32 x, 2;", "x", 5),
        ("@d mov.b32 x, 1;", "d", 0),
        ("@c setp.lt.u32 d, t, 3; @d mov.b32 x, 1;", "d", 5),
        ("selp.b32 y, 1, 2, d;", "d", 0),
        ("st.shared.v2.b32 [t], {t, x};", "x", 0),
        ("@c ld.global.b32 x, [p]; mov.b64 p, {t, x};", "x", 5),
        ("vote.sync.any.pred d, d, -1;", "d", 0),
    ],
)
def test_reads_of_registers_never_written(run_kernel: Any, body: str, name: str, lane: int) -> None:
    message = rf"reads the register {name}, which was never written(?s:.*)lane {lane}\]"
    with pytest.raises(SimulatorError, match=message):
        run(run_kernel, body)


@pytest.mark.parametrize(
    "body",
    [
        "@c mov.b32 x, 1; @!c mov.b32 x, 2; st.global.b32 [p], x;",
        "@c mov.b32 x, 1; @c st.global.b32 [p], x;",
        "@c bra L; mov.b32 x, 1; bra J; L: mov.b32 x, 2; J: st.global.b32 [p], x;",
        """mov.b32 y, 0; L: setp.gt.u32 d, y, 0; @d add.u32 x, x, 1; mov.b32 x, 0; add.u32 y, y, 1;
        setp.lt.u32 d, y, 3; @d bra L; st.global.b32 [p], x;""",
        "@c setp.eq.u32 d, t, 2; @!c setp.eq.u32 d, t, 40; @d st.global.b32 [p], t;",
        "mov.b32 x, 0; bra L; K: add.u32 y, y, 1; L: st.global.b32 [p], x;",
    ],
)
def test_reads_of_registers_that_were_written(run_kernel: Any, body: str) -> None:
    run(run_kernel, body)


def test_flags_are_those_of_the_present_block(run_kernel: Any) -> None:
    # Only block 0 writes x; a later chunk must not see its flags.
    body = f"""
    {START} .reg .pred e; mov.u32 y, %ctaid.x; setp.eq.u32 e, y, 0; @e mov.b32 x, 7;
    st.global.b32 [p], x; ret;
    """
    out = np.zeros(64, np.uint32)
    with pytest.raises(SimulatorError, match=r"never written(?s:.*)block \(1, 0, 0\)"):
        run_kernel(body, out, block=64, grid=1000)


def program(body: str) -> Program:
    text = f".version 7.0\n.target sm_80\n.address_size 64\n.entry k() {{ {body} }}"
    return Program(parse(text).functions["k"], 80, level("7.0:80"))


def test_runs_end_at_labels_and_control() -> None:
    made = program(
        ".reg .b32 x; .reg .pred p; mov.b32 x, 0; mov.b32 x, 1;"
        "L: add.u32 x, x, 1; setp.lt.u32 p, x, 9;"
        "@p bra L; bar.sync 0; mov.b32 x, 2; ret;"
    )
    assert [(start, made.end_of_run(start)) for start in sorted(made.starts) if start < 8] == [
        *[(0, 2), (2, 4), (4, 5), (5, 6), (6, 7), (7, 8)]
    ]
    assert not made.tracked


def test_only_doubtful_registers_are_tracked() -> None:
    made = program(
        ".reg .b32 a, b; .reg .pred p; mov.b32 a, 0; setp.eq.u32 p, a, 0; @p mov.b32 b, a;"
        "@p add.u32 a, b, 1; ret;"
    )
    registers = made.function.registers
    assert [each.name for each in registers if made.tracked >> each.slot & 1] == ["b"]
