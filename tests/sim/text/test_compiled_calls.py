"""What compilers make of function pointers, recursion, printf and assert."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sim.conftest import Buffer

from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor

pytestmark = pytest.mark.unit

BINARY = """
.func (.param .b32 result) {name}(.param .b32 {name}_0, .param .b32 {name}_1)
{{
	.reg .b32 	%r<4>;
	ld.param.u32 	%r1, [{name}_0];
	ld.param.u32 	%r2, [{name}_1];
	{opcode} 	%r3, %r1, %r2;
	st.param.b32 	[result+0], %r3;
	ret;
}}
"""

TEXT = f"""
.version 8.0
.target sm_80
.address_size 64
.extern .func (.param .b32 result) vprintf (.param .b64 a, .param .b64 b) ;
.extern .func __assertfail
(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e) ;
.extern .func (.param .b64 result) malloc (.param .b64 a) ;
.func (.param .b32 result) add (.param .b32 a, .param .b32 b) ;
.func (.param .b32 result) mul (.param .b32 a, .param .b32 b) ;
.common .global .align 4 .b32 counter;
.global .align 4 .b8 data[12] = {{1, 0, 0, 0, 2, 0, 0, 0, 3}};
.global .align 8 .u64 pdata = generic(data)+4;
.global .align 8 .u64 functions[2] = {{add, mul}};
.const .align 8 .u64 constants[2] = {{mul, add}};
.global .align 1 .b8 bytes[8] = {{0xff(data), 0xff00(data), 0xff0000(data), 0xff000000(data)}};
.global .align 1 .b8 $form[24] = "FORM";
.global .align 1 .b8 $word[3] = {{104, 105}};
{BINARY.format(name="add", opcode="add.s32")}
{BINARY.format(name="mul", opcode="mul.lo.s32")}
// walk(p, n) = n ? walk(&own, n - 1) + own : *p, with own = *p + n
.func (.param .b32 result) walk(.param .b64 walk_0, .param .b32 walk_1)
{{
	.local .align 8 .b8 	depot[8];
	.reg .b64 	%SP, %SPL, %rd<3>;
	.reg .b32 	%r<6>;
	.reg .pred 	%p;
	mov.u64 	%SPL, depot+8;
	add.s64 	%SPL, %SPL, -8;
	cvta.local.u64 	%SP, %SPL;
	ld.param.u64 	%rd1, [walk_0];
	ld.param.u32 	%r1, [walk_1];
	ld.u32 	%r2, [%rd1];
	setp.eq.s32 	%p, %r1, 0;
	@%p bra 	DONE;
	add.s32 	%r3, %r2, %r1;
	st.local.u32 	[%SPL], %r3;
	add.s32 	%r4, %r1, -1;
	{{
	.param .b64 param0;
	st.param.b64 	[param0+0], %SP;
	.param .b32 param1;
	st.param.b32 	[param1+0], %r4;
	.param .b32 retval0;
	call.uni (retval0), walk, (param0, param1);
	ld.param.b32 	%r2, [retval0+0];
	}}
	ld.local.u32 	%r5, [%SPL];
	add.s32 	%r2, %r2, %r5;
DONE:
	st.param.b32 	[result+0], %r2;
	ret;
}}
"""

ENTRY = """
.visible .entry test(.param .u64 target)
{{
	.local .align 8 .b8 	depot[32];
	.reg .b64 	%rd<12>, to, %SP, %SPL;
	.reg .b32 	%r<12>;
	.reg .b8 	%rs<3>;
	.reg .f64 	%fd<2>;
	.reg .pred 	%p<3>;
	ld.param.u64 	to, [target];
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd1, %r1, 4;
	add.s64 	to, to, %rd1;
	mov.u64 	%SPL, depot;
	cvta.local.u64 	%SP, %SPL;
	{body}
	st.global.u32 	[to], %r9;
	ret;
}}
"""
CALL = """
	{{
	.param .b32 param0;
	st.param.b32 	[param0+0], %r1;
	.param .b32 param1;
	st.param.b32 	[param1+0], 10;
	.param .b32 retval0;
	prototype_0 : .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
	call (retval0),
	%rd4,
	(
	param0,
	param1
	)
	, prototype_0;
	ld.param.b32 	%r9, [retval0+0];
	}}
"""


def run(body: str, form: str = "") -> Any:
    content = ", ".join(str(byte) for byte in form.encode())
    text = TEXT.replace('"FORM"', f"{{{content or 0}}}") + ENTRY.format(body=body)
    out = np.zeros(64, np.int32)
    kernel = SimExecutor("sm_80").load_text("test", text)
    address = np.array([out.ctypes.data], np.uint64).tobytes()
    kernel.launch((1, 1, 1), (64, 1, 1), 0, address, buffers=[Buffer(out)])
    return out


def expect(found: Any, function: Callable[[int], int]) -> None:
    assert found.tolist() == [function(thread) for thread in range(64)]


@pytest.mark.parametrize(("space", "table"), [("global", "functions"), ("const", "constants")])
def test_tables_of_functions(space: str, table: str) -> None:
    body = f"and.b32 %r2, %r1, 1; mul.wide.u32 %rd2, %r2, 8; mov.u64 %rd3, {table};"
    body += f"add.s64 %rd3, %rd3, %rd2; ld.{space}.u64 %rd4, [%rd3]; {CALL.format()}"
    sums = 0 if space == "global" else 1
    expect(run(body), lambda i: i + 10 if i % 2 == sums else 10 * i)


def test_pointers_to_functions() -> None:
    body = "setp.lt.u32 %p1, %r1, 40; mov.u64 %rd2, add; mov.u64 %rd3, mul;"
    body += f"selp.b64 %rd4, %rd2, %rd3, %p1; {CALL.format()}"
    expect(run(body), lambda i: i + 10 if i < 40 else 10 * i)
    with pytest.raises(SimulatorError, match="calls the address 0x5, which is that of no function"):
        run(body + f"mov.u64 %rd4, 5; {CALL.format()}")
    with pytest.raises(SimulatorError, match="calls walk, which has other parameters or results"):
        run(f"mov.u64 %rd4, walk; {CALL.format()}")


def test_addresses_in_memory() -> None:
    body = "ld.global.u64 %rd2, [pdata]; ld.u32 %r9, [%rd2]; ld.global.u32 %r2, [bytes];"
    body += (
        "mov.u64 %rd3, data; cvt.u32.u64 %r3, %rd3; sub.u32 %r2, %r2, %r3; add.u32 %r9, %r9, %r2;"
    )
    body += "ld.global.u32 %r2, [counter]; add.u32 %r9, %r9, %r2;"
    expect(run(body), lambda i: 2)


def test_functions_that_call_themselves() -> None:
    body = """
	st.local.u32 [%SPL], %r1; and.b32 %r2, %r1, 3;
	{
	.param .b64 param0; st.param.b64 [param0], %SP; .param .b32 param1; st.param.b32 [param1], %r2;
	.param .b32 retval0; call.uni (retval0), walk, (param0, param1); ld.param.b32 %r9, [retval0];
	}
    """

    def walk(value: int, n: int) -> int:
        return walk(value + n, n - 1) + value + n if n else value

    expect(run(body), lambda i: walk(i, i % 4))
    with pytest.raises(
        SimulatorError, match=r"walk calls itself so often .* more than 32,768 bytes"
    ):
        run(body.replace("and.b32 %r2, %r1, 3;", "mov.u32 %r2, 5000;"))


PRINT = """
	setp.gt.u32 %p1, %r1, 1; mov.u32 %r9, 0; @%p1 bra OVER;
	st.local.u32 [%SPL], %r1; cvt.rn.f64.u32 %fd1, %r1; st.local.f64 [%SPL+8], %fd1;
	mov.u64 %rd2, $word; st.local.u64 [%SPL+16], %rd2; mov.u64 %rd3, $form;
	{
	.param .b64 param0; st.param.b64 [param0], %rd3; .param .b64 param1; st.param.b64 [param1], %SP;
	.param .b32 retval0; call.uni (retval0), vprintf, (param0, param1); ld.param.b32 %r9, [retval0];
	}
	OVER:
"""


def test_printf(capsys: pytest.CaptureFixture[str]) -> None:
    expect(run(PRINT, "%3d|%.2f|%-4s|%%\n"), lambda i: 3 if i < 2 else 0)
    assert capsys.readouterr().out == "  0|0.00|hi  |%\n  1|1.00|hi  |%\n"


def test_assertions() -> None:
    body = """
	setp.lt.u32 %p1, %r1, 40; @%p1 bra OVER; mov.u64 %rd2, $form; mov.u64 %rd3, $word;
	{
	.param .b64 a; st.param.b64 [a], %rd2; .param .b64 b; st.param.b64 [b], %rd3;
	.param .b32 c; st.param.b32 [c], 14; .param .b64 d; st.param.b64 [d], %rd3;
	.param .b64 e; st.param.b64 [e], 1;
	call.uni __assertfail, (a, b, c, d, e);
	}
	OVER: mov.u32 %r9, 0;
    """
    with pytest.raises(SimulatorError, match=r"assertion 'i < n' failed, hi:14, in hi") as caught:
        run(body, "i < n")
    assert "thread (40, 0, 0)" in str(caught.value)


def test_the_heap_is_refused_when_it_is_reached() -> None:
    body = "mov.u32 %r9, 7; setp.gt.u32 %p1, %r1, {}; @!%p1 bra OVER;"
    body += (
        "{{ .param .b64 a; st.param.b64 [a], 16; .param .b64 r; call.uni (r), malloc, (a); }} OVER:"
    )
    expect(run(body.format(63)), lambda i: 7)
    with pytest.raises(SimulatorError, match="calls malloc; the CPU executor has no heap"):
        run(body.format(62))


def test_registers_of_eight_bits() -> None:
    body = "st.local.u8 [%SPL], %r1; ld.local.s8 %rs1, [%SPL]; cvt.u32.u8 %r9, %rs1;"
    expect(run(body), lambda i: i)


def test_reserved_shared_memory() -> None:
    body = "mov.u32 %r9, %reserved_smem_offset_end; mov.u32 %r2, %reserved_smem_offset_begin;"
    expect(run(body + "sub.u32 %r9, %r9, %r2;"), lambda i: 1024)
