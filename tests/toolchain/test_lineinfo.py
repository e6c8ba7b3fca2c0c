"""cuevo.toolchain.lineinfo: where .loc and .file directives go."""

import pytest

from cuevo.toolchain.lineinfo import SourceLine, add_line_information

pytestmark = pytest.mark.unit


def with_locs(ptx: str) -> list[str]:
    """`ptx` with line information, each line's origin being its own number in ``ptx/k.ptx``."""
    lines = ptx.strip("\n").split("\n")
    origins = [SourceLine("ptx/k.ptx", number) for number in range(1, len(lines) + 1)]
    located = add_line_information(lines, origins)
    result = located.text.split("\n")
    assert result.pop() == ""
    assert len(located.lines) == len(result)
    for line, origin in zip(result, located.lines, strict=True):
        if ".loc" in line:
            assert origin is not None
            assert line.strip() == f".loc 1 {origin.line} 1"
        elif origin is not None:
            assert line == lines[origin.line - 1]
    return result


def lines_with_locs(ptx: str) -> list[int]:
    return [int(line.split()[2]) for line in with_locs(ptx) if line.lstrip().startswith(".loc")]


def test_each_instruction_of_a_body_has_its_line() -> None:
    ptx = """
.version 7.0
.visible .entry k(
    .param .b32 x
)
.maxntid 128, 1, 1
{
    .reg .b32 y;
    ld.param.b32 y, [x];
    // mov.b32 y, 1;
    add.u32 y, y, y;

    ret;
}
.func f() { ret; }
"""
    assert lines_with_locs(ptx) == [8, 10, 12]
    assert with_locs(ptx)[-1] == '.file 1 "ptx/k.ptx"'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("mov.b32 x, 1;\nmov.b32 y, 2;", [2, 3]),
        ("mma.sync.aligned\n    {a, b}, {c,\n d}, {e};\nret;", [2, 5]),
        ("{\nmov.b32 x, 1;\n{ mov.b32 y, 1;\n}\n}\nret;", [3, 4, 7]),
        ("LOOP:\nadd.u32 x, x, 1;\nEND: ret;\n$L$a:", [3, 4]),
        ("@!p bra LOOP;\n@p\nbra LOOP;", [2, 3]),
        ("/* mov.b32 x,\nmov */ mov.b32 x, 1; /* */ mov.b32 x, /*\n*/ 2;\nret;", [3, 5]),
        ("mov.b32 x, 1; // { a block\nret; // }", [2, 3]),
        ('.pragma "nounroll; }";\nret;', [3]),
        (".reg .f32 a<4>; mov.b32 x, 1;\nret;", [3]),
        ("cp.async.cg.shared::cta.global [a], [b], 16;\nst.shared::cluster.b32 [a], b;", [2, 3]),
        ("targets: .branchtargets\nA, B;\nbrx.idx x, targets;", [4]),
        ("", []),
    ],
)
def test_statements(body: str, expected: list[int]) -> None:
    assert lines_with_locs(f".entry k() {{\n{body}\n}}") == expected


def test_nothing_outside_of_functions() -> None:
    ptx = ".const .b32 table[2] = {1,\n2};\n.extern .shared .b8 memory[];\n.global .b32 x = 5;"
    assert lines_with_locs(ptx) == []
    assert with_locs(ptx) == ptx.split("\n")


def test_a_body_after_an_initializer() -> None:
    assert lines_with_locs(".const .b32 t[2] = {1, 2};\n.entry k()\n{\nret;\n}") == [4]


def test_a_line_is_repeated_only_after_another() -> None:
    first, second = SourceLine("ptx/k.ptx", 7), SourceLine("ptx/lib/a.ptx", 7)
    lines = [".entry k() {", *["    add.u32 x, x, 1;"] * 5, "}"]
    located = add_line_information(lines, [first, first, first, second, second, first, first])
    text = located.text
    assert [line.strip() for line in text.split("\n") if ".loc" in line or ".file" in line] == [
        ".loc 1 7 1",
        ".loc 2 7 1",
        ".loc 1 7 1",
        '.file 1 "ptx/k.ptx"',
        '.file 2 "ptx/lib/a.ptx"',
    ]
    assert text.split("\n")[1] == "    .loc 1 7 1"
    assert located.lines[-1] is None
    assert located.origin(2) == located.origin(3) == first
    assert located.origin(0) is located.origin(99) is None


def test_a_line_without_origin_gets_none() -> None:
    located = add_line_information([".entry k() {", "ret;", "}"], [None] * 3)
    assert located.text == ".entry k() {\nret;\n}\n"
    assert located.lines == (None, None, None)
