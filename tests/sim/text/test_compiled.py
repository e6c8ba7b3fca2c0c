"""Texts as compilers write them: debug data, locations, functions in any order."""

from typing import Any

import numpy as np
import pytest
from sim.conftest import Buffer

from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor
from cuevo.sim.text.locations import Location, Locations

pytestmark = pytest.mark.unit

TEXT = """//
.version 8.0
.target sm_80, debug
.address_size 64

.extern .func  (.param .b32 func_retval0) vprintf
(
	.param .b64 vprintf_param_0,
	.param .b64 vprintf_param_1
)
;
.func  (.param .b32 func_retval0) thrice
(
	.param .b32 thrice_param_0
)
;
.global .align 8 .u64 functions[2] = {thrice, nobody};
.global .align 1 .b8 $str[4] = {37, 100, 10};
.visible .entry scale(
	.param .u64 .ptr .align 16 scale_param_0,
	.param .u32 scale_param_1,
	.param .u64 .ptr .global .align 1 scale_param_2
)
{
	.reg .b32 	%r<5>;
	.reg .b64 	%rd<4>;
	.loc	1 8 0


	ld.param.u64 	%rd1, [scale_param_0];
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd2, %r1, 4;
	.loc	1 9 3
	add.s64 	%rd1, %rd1, %rd2;
	.loc	2 70 13, function_name $L__info_string0, inlined_at 1 9 3
	ld.global.u32 	%r2, [%rd1];
	.loc	3 5 9, function_name $L__info_string0+24, inlined_at 2 70 13
	{ // callseq 0, 0
	.param .b32 param0;
	st.param.b32 	[param0+0], %r2;
	.param .b32 retval0;
	call.uni (retval0),
	thrice,
	(
	param0
	);
	ld.param.b32 	%r3, [retval0+0];
	} // callseq 0
	.loc	1 10 1
	ld.param.u64 	%rd3, [scale_param_2];
	add.s64 	%rd3, %rd3, %rd2;
	st.global.u32 	[%rd3], %r3;
	ret;

}
.visible .entry talk()
{
	.reg .b64 	%rd<2>;
	{ // callseq 1, 0
	.param .b64 param0;
	st.param.b64 	[param0+0], 0;
	.param .b32 retval0;
	call.uni (retval0), vprintf, (param0, param0);
	} // callseq 1
	ret;
}
.visible .entry jump()
{
	.reg .b64 	%rd<2>;
	mov.u64 %rd1, functions;
	ret;
}
.func  (.param .b32 func_retval0) thrice(
	.param .b32 thrice_param_0
)
{
	.reg .b32 	%r<3>;
	ld.param.u32 	%r1, [thrice_param_0];
	mul.lo.s32 	%r2, %r1, 3;
	st.param.b32 	[func_retval0+0], %r2;
	ret;
}
	.file	1 "/home/who/scale.cu"
	.file	2 "/usr/include/thing.h"
	.section	.debug_str
	{
$L__info_string0:
.b8 95,90,78,75,49,56,99,111,111,112,101,114,97,116,105,118,101,95,103,114,111,117,112,115,52,95
.b8 115,0

	}
	.section	.debug_info
	{
.b32 24
.b64 .debug_abbrev
.b32 $L__info_string0+3
.b64 -1
	}
	.section	.debug_macinfo	{	}
"""


def launch(source: Any, target: Any) -> None:
    kernel = SimExecutor("sm_80").load_text("scale", TEXT)
    parameters = np.array([source.ctypes.data, 0, target.ctypes.data], np.uint64).tobytes()
    buffers = [Buffer(source, True), Buffer(target)]
    kernel.launch((1, 1, 1), (32, 1, 1), 0, parameters, buffers=buffers)


def test_a_text_with_debug_data_runs() -> None:
    source, target = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    launch(source, target)
    assert np.array_equal(target, 3 * source)


def test_faults_name_the_line_of_the_source() -> None:
    source = np.arange(31, dtype=np.uint32)
    with pytest.raises(SimulatorError) as caught:
        launch(source, np.zeros(32, np.uint32))
    first, quoted, *_ = str(caught.value).splitlines()
    assert first.startswith("/usr/include/thing.h:70: ") and "outside of every buffer" in first
    assert "ld.global.u32" in quoted
    assert "\n  called at /home/who/scale.cu:9\n" in str(caught.value)
    source = np.arange(32, dtype=np.uint32)
    with pytest.raises(SimulatorError, match=r"^/home/who/scale\.cu:10: "):
        launch(source, np.zeros(31, np.uint32))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("jump", "'functions' is initialised with the address nobody, which is none of a function"),
        ("shout", "no entry 'shout' in the text; there are: scale, talk, jump"),
    ],
)
def test_only_what_is_reached_is_refused(entry: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        SimExecutor("sm_80").load_text(entry, TEXT)


def test_locations() -> None:
    found = Locations('.loc 1 0 0\na\n.loc 1 5 2\nb\nc\n.loc 2 6 1\nd\n}\ne\n.file 1 "f.cu"\n')
    f = [found(line) for line in range(1, 10)]
    assert f == [None, None, None, Location("f.cu", 5), Location("f.cu", 5), *[None] * 4]


@pytest.mark.parametrize("numbers", ["1 9 9 9", "1 9", "9"])
def test_locations_with_absurd_numbers_are_none(numbers: str) -> None:
    stated = ".loc " + numbers.replace("9", "9" * 5000)
    assert Locations(f'{stated}\na\n.file 1 "f.cu"\n')(2) is None


def test_functions_inlined_in_one_another() -> None:
    text = """.loc 1 5 2
.loc 2 6 1, function_name $L__info_string0, inlined_at 1 5 2
.loc 3 7 9, function_name $L__info_string0+24, inlined_at 2 6 1
a
.loc 3 7 9, function_name $L__info_string0+24, inlined_at 3 7 9
b
.file 1 "f.cu"
.file 2 "g.h"
.file 3 "h.h"
"""
    found = Locations(text)
    assert found.calls(4) == [Location("h.h", 7), Location("g.h", 6), Location("f.cu", 5)]
    assert found.calls(6) == [Location("h.h", 7), *found.calls(4)]
