"""Device functions, indexed branches, reductions at barriers."""

import struct
from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor

pytestmark = pytest.mark.unit

START = """
.reg .b64 p, w; .reg .b32 n, x, y; .reg .pred e;
mov.u32 n, %tid.x; ld.param.u64 p, [p0]; mul.wide.u32 w, n, 4; add.u64 p, p, w;
"""


def run(functions: str, body: str, threads: int = 64) -> Any:
    text = f"""
    .version 7.8
    .target sm_80
    .address_size 64
    {functions}
    .visible .entry test(.param .u64 p0) {{ {START} {body} }}
    """
    out = np.zeros(threads, np.uint32)

    class Buffer:
        pointer = out.ctypes.data
        extent = (out.ctypes.data, out.ctypes.data + out.nbytes)
        readonly = False

    kernel = SimExecutor("sm_80").load_text("test", text)
    params = struct.pack("<Q", out.ctypes.data)
    kernel.launch((1, 1, 1), (threads, 1, 1), 0, params, buffers=[Buffer()])
    return out


SQUARE = """
.func (.reg .b32 r) square(.reg .b32 a)
{ .reg .b32 t; mul.lo.u32 t, a, a; mov.b32 r, t; ret; }
"""


def test_arguments_in_registers() -> None:
    body = "call (x), square, (n); call.uni (y), square, (3); add.u32 x, x, y;"
    out = run(SQUARE, f"{body} st.global.b32 [p], x; ret;")
    np.testing.assert_array_equal(out, np.arange(64) ** 2 + 9)


def test_functions_that_call_functions() -> None:
    functions = f"""
    .func (.reg .b32 r) fourth(.reg .b32 a);
    {SQUARE}
    .func (.reg .b32 r) fourth(.reg .b32 a)
    {{ .reg .b32 t; call (t), square, (a); call (r), square, (t); ret; }}
    """
    out = run(functions, "call (x), fourth, (n); st.global.b32 [p], x; ret;", 32)
    np.testing.assert_array_equal(out, np.arange(32) ** 4)


def test_parameters_in_memory() -> None:
    functions = """
    .func (.param .b32 r) total(.param .align 8 .b8 a[12])
    {
        .reg .b32 x, y, z;
        ld.param.v2.b32 {x, y}, [a]; ld.param.b32 z, [a+8]; add.u32 x, x, y; add.u32 x, x, z;
        st.param.b32 [r], x;
        ret;
    }
    """
    body = """
    {
        .param .align 8 .b8 given[12]; .param .b32 back;
        st.param.v2.b32 [given], {n, 100}; st.param.b32 [given+8], 1000;
        call.uni (back), total, (given);
        ld.param.b32 x, [back];
    }
    st.global.b32 [p], x; ret;
    """
    np.testing.assert_array_equal(run(functions, body), np.arange(64) + 1100)


def test_lanes_part_in_functions() -> None:
    functions = """
    .func (.reg .b32 r) collatz(.reg .b32 a)
    {
        .reg .b32 t; .reg .pred odd, done; mov.b32 r, 0;
        AGAIN: setp.le.u32 done, a, 1; @done ret;
        and.b32 t, a, 1; setp.eq.u32 odd, t, 1; add.u32 r, r, 1;
        @odd mad.lo.u32 a, a, 3, 1; @odd bra AGAIN; shr.u32 a, a, 1; bra AGAIN;
    }
    """
    body = """
    and.b32 x, n, 1; setp.eq.u32 e, x, 0; mov.b32 x, 77; @e call (x), collatz, (n);
    bar.sync 0; st.global.b32 [p], x;
    """
    out = run(functions, body)

    def steps(a: int) -> int:
        count = 0
        while a > 1:
            a, count = 3 * a + 1 if a % 2 else a // 2, count + 1
        return count

    assert out.tolist() == [steps(n) if n % 2 == 0 else 77 for n in range(64)]


@pytest.mark.parametrize(
    ("functions", "body", "message"),
    [
        (SQUARE, "call (x), square, (n, n);", "has 1 parameters here, not 2"),
        (SQUARE, "call square;", "has 1 parameters here, not 0"),
        (".func f() { call f; ret; }", "call f;", "f calls itself so often that a thread's stack"),
        (".func f(.param .b32 a) { ret; }", "call f, (n);", "wants a .param variable"),
        (
            ".func f(.param .b32 a) { .reg .b32 x; ld.param.b32 x, [a]; ret; }",
            ".param .b32 v; call f, (v);",
            "where nothing was written",
        ),
        (
            ".func (.reg .b32 r) f() { .reg .b32 x; add.u32 r, x, 1; ret; }",
            "call (x), f;",
            "register x, which was never written",
        ),
        (SQUARE, "setp.eq.u32 e, n, 0; @e call.uni (x), square, (n);", "by a part of the lanes"),
    ],
)
def test_wrong_calls(functions: str, body: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        run(functions, f"{body} ret;")


def test_the_entry_ends_before_the_functions() -> None:
    body = "st.global.b32 [p], n; setp.lt.u32 e, n, 64; @e bra END; call (x), square, (n); END:"
    np.testing.assert_array_equal(run(SQUARE, body), np.arange(64))


def test_indexed_branches() -> None:
    body = """
    TARGETS: .branchtargets A, B, C;
    rem.u32 x, n, 3; mov.b32 y, 0; brx.idx x, TARGETS;
    A: add.u32 y, y, 1;
    B: add.u32 y, y, 10;
    C: add.u32 y, y, 100; st.global.b32 [p], y; ret;
    """
    out = run("", body)
    assert out.tolist() == [[111, 110, 100][n % 3] for n in range(64)]
    with pytest.raises(SimulatorError, match="none of the 3 branch targets"):
        run("", body.replace("n, 3", "n, 4"))
    with pytest.raises(SimulatorError, match=r"different indices at brx\.idx\.uni"):
        run("", body.replace("brx.idx x", "brx.idx.uni x"))


def test_reductions_at_barriers() -> None:
    body = """
    .reg .pred q, r; .reg .b32 z;
    setp.lt.u32 e, n, 70; bar.red.popc.u32 x, 0, e;
    bar.red.and.pred q, 1, e; barrier.cta.red.aligned.or.pred r, 0, !e;
    selp.b32 y, 1000, 0, q; add.u32 x, x, y; selp.b32 y, 2000, 0, r; add.u32 x, x, y;
    setp.lt.u32 q, n, 64; @!q bra REST;
    bar.red.and.pred q, 2, 64, e; selp.b32 y, 4000, 0, q; add.u32 x, x, y;
    REST: st.global.b32 [p], x; ret;
    """
    out = run("", body, 96)
    assert out.tolist() == [2070 + 4000 * (n < 64) for n in range(96)]


def test_what_changes_no_result() -> None:
    body = "nanosleep.u32 n; pmevent 3; brkpt; st.global.b32 [p], n; exit;"
    np.testing.assert_array_equal(run("", body), np.arange(64))


def test_a_barrier_has_one_thread_count() -> None:
    body = "setp.lt.u32 e, n, 32; @!e bra B; bar.sync 1, 64; bra END; B: bar.sync 1, 96; END: ret;"
    with pytest.raises(SimulatorError, match="with different thread counts"):
        run("", body, 96)
