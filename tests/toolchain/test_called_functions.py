"""Functions that a kernel calls, in what is told of its machine code: the assembler's report, the
listing and the page.
"""

from typing import Any

import pytest

from cuevo.check.page import Subject, content
from cuevo.executors.own.texts import read_kernel
from cuevo.toolchain.assembler import Cubin, assemble
from cuevo.toolchain.image import Image
from cuevo.toolchain.sass import disassemble

pytestmark = pytest.mark.unit

LOADS = "".join(f"ld.volatile.global.u32 v{i}, [p+{4 * i}];\n" for i in range(64))
SUMS = "".join(f"mad.lo.u32 s, s, s, v{63 - i};\n" for i in range(64))
# `heavy` has more values alive than .maxnreg leaves registers; `deep` calls itself; `chosen` is
# called by its address alone.
TEXT = f"""\
.version 7.0
.target sm_75
.address_size 64
.func (.param .b32 sum) heavy(.param .b64 from)
{{
.reg .b64 p; .reg .b32 v<64>, s;
ld.param.u64 p, [from]; mov.u32 s, 0;
{LOADS}{SUMS}st.param.b32 [sum], s;
ret;
}}
.func (.param .b32 sum) deep(.param .b32 left)
{{
.reg .b32 n, s; .reg .pred none;
ld.param.b32 n, [left];
mov.u32 s, n;
setp.eq.u32 none, n, 0;
@none bra END;
sub.u32 n, n, 1;
{{ .param .b32 a, r; st.param.b32 [a], n; call (r), deep, (a); ld.param.b32 n, [r]; }}
mad.lo.u32 s, s, 3, n;
END:
st.param.b32 [sum], s;
ret;
}}
.func (.param .b32 sum) chosen(.param .b32 left)
{{
.reg .b32 n; .local .b32 own[8]; .reg .b64 at, more;
ld.param.b32 n, [left]; mul.wide.u32 more, n, 4; mov.u64 at, own; add.u64 at, at, more;
st.local.b32 [at], n; ld.local.b32 n, [own+4];
st.param.b32 [sum], n;
ret;
}}
.global .u64 table[2] = {{deep, chosen}};
.visible .entry spills(.param .u64 p)
.maxnreg 24
{{
.reg .b64 q; .reg .b32 x, y;
ld.param.u64 q, [p];
{{ .param .b64 a; .param .b32 r; st.param.b64 [a], q; call (r), heavy, (a); ld.param.b32 x, [r]; }}
{{ .param .b64 a; .param .b32 r; st.param.b64 [a], q; call (r), heavy, (a); ld.param.b32 y, [r]; }}
add.u32 x, x, y;
st.global.u32 [q], x;
ret;
}}
.visible .entry recurs(.param .u64 p, .param .u32 n)
{{
.reg .b64 q; .reg .b32 x;
ld.param.u64 q, [p]; ld.param.u32 x, [n];
{{ .param .b32 a, r; st.param.b32 [a], x; call (r), deep, (a); ld.param.b32 x, [r]; }}
st.global.u32 [q], x;
ret;
}}
.visible .entry chooses(.param .u64 p, .param .u32 n)
{{
.reg .b64 q, f; .reg .b32 x;
ld.param.u64 q, [p]; ld.param.u32 x, [n];
mov.u64 f, table; mad.wide.u32 f, x, 8, f; ld.global.u64 f, [f];
PROTOTYPE: .callprototype (.param .b32 r) _ (.param .b32 a);
{{ .param .b32 a, r; st.param.b32 [a], x; call (r), f, (a), PROTOTYPE; ld.param.b32 x, [r]; }}
st.global.u32 [q], x;
ret;
}}
.visible .entry alone(.param .u64 p)
{{
.reg .b64 q;
ld.param.u64 q, [p];
st.global.u32 [q], 1;
ret;
}}
"""


def assembled(entry: str, arch: str = "sm_80") -> Cubin:
    return assemble(read_kernel(TEXT, entry=entry), arch, cache=None)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_their_spills_and_their_stack_are_the_kernels(arch: str) -> None:
    found = assembled("spills", arch).resources
    assert found.spill_stores > 100
    assert found.spill_loads > 100
    assert found.stack > 100
    assert found.registers <= 24
    assert found.code_size > 128 * 16
    alone = assembled("alone", arch).resources
    assert (alone.spill_stores, alone.spill_loads, alone.stack) == (0, 0, 0)
    assert 0 < alone.code_size < found.code_size / 4


def test_a_function_that_calls_itself_counts_once() -> None:
    found = assembled("recurs").resources
    assert 0 < found.stack <= 64
    assert 0 < found.spill_stores <= found.stack


@pytest.mark.parametrize(
    ("entry", "called"),
    [
        ("spills", {"heavy"}),
        ("recurs", {"deep"}),
        ("chooses", {"deep", "chosen"}),
        ("alone", set()),
    ],
)
def test_they_are_listed_behind_the_kernel(entry: str, called: set[str]) -> None:
    cubin = assembled(entry)
    listing = disassemble(cubin)
    assert {*listing.called} == called == {*Image(cubin.code).functions(entry)[1:]}
    addresses = [each.address for each in listing.instructions]
    assert addresses == [*range(0, 16 * len(addresses), 16)]
    # Each function ends with what is never run, which is not listed.
    assert 0 <= cubin.resources.code_size - 16 * len(addresses) < 256 * (1 + len(called))
    begins = [listing.labels[name] for name in listing.called]
    assert sorted(begins) == begins
    if entry == "spills":
        heavy = [x.opcode for x in listing.instructions if x.address >= begins[0]]
        assert sum(opcode.startswith("LDG") for opcode in heavy) == 64
        assert any(opcode.startswith("STL") for opcode in heavy)


def test_their_lines_are_those_of_the_text() -> None:
    kernel = read_kernel(TEXT, entry="recurs")
    listing = disassemble(assemble(kernel, "sm_80", cache=None))
    text = TEXT.splitlines()
    inside = [each for each in listing.instructions if each.address >= listing.labels["deep"]]
    told = {kernel.located.number(each.line) for each in inside}
    begin, end = text.index("ld.param.b32 n, [left];") - 2, text.index("END:")
    assert text.index("mad.lo.u32 s, s, 3, n;") + 1 in told
    assert {line for line in told if line} <= {*range(begin, end + 4)}


def test_the_page_names_and_lists_them() -> None:
    kernel = read_kernel(TEXT, entry="spills")
    cubin = assemble(kernel, "sm_80", cache=None)
    shown: dict[str, Any] = content(Subject(kernel, cubin, 32, 0))
    assert shown["facts"]["calls"] == ["heavy"]
    assert shown["facts"]["spills"] != ["0 bytes stored, 0 loaded"]
    rows = shown["panes"]["machine"]
    begin = next(
        n for n, row in enumerate(rows) if row.get("k") == "label" and row["t"] == "heavy:"
    )
    assert any("CALL" in row["t"] for row in rows[:begin])
    texts = shown["panes"]["text"]
    linked = {texts[row["o"]]["t"].split()[0] for row in rows[begin:] if "o" in row}
    assert {"ld.volatile.global.u32", "mad.lo.u32"} <= linked
