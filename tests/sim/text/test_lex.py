"""cuevo.sim.text.lex."""

import pytest

from cuevo.sim.faults import PtxError
from cuevo.sim.text.lex import tokens

pytestmark = pytest.mark.unit


def texts(text: str) -> list[str]:
    return [token.text for token in tokens(text)][:-1]


def test_kinds() -> None:
    found = tokens('.reg .f32 %f<4>; mov.f32 %f1, 0f3F800000; x: .file 1 "a b" // end')
    assert [(token.kind, token.text) for token in found if token.kind != "mark"] == [
        ("directive", ".reg"),
        ("directive", ".f32"),
        ("word", "%f"),
        ("integer", "4"),
        ("word", "mov.f32"),
        ("word", "%f1"),
        ("float", "0f3F800000"),
        ("word", "x"),
        ("directive", ".file"),
        ("integer", "1"),
        ("string", '"a b"'),
        ("end", "end of text"),
    ]


def test_opcodes_are_one_word() -> None:
    assert texts("ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {a,_}, [%rd1+-16];") == [
        *["ld.global.nc.L1::no_allocate.L2::128B.v4.b32", "{", "a", ",", "_", "}", ",", "["],
        *["%rd1", "+", "-", "16", "]", ";"],
    ]
    assert texts("mma.sync.aligned.m16n8k16.row.col.f32 %tid.x") == [
        "mma.sync.aligned.m16n8k16.row.col.f32",
        "%tid.x",
    ]


def test_lines_count_through_comments() -> None:
    found = tokens("a\n/* one\ntwo */ b // c\n\nd")
    assert [(token.text, token.line) for token in found[:-1]] == [("a", 1), ("b", 3), ("d", 5)]


@pytest.mark.parametrize(
    "number", ["0x1Fu", "0b101", "017", "12U", "7.0", "1.5e-3", "0d3FF8000000000000"]
)
def test_numbers_are_single_tokens(number: str) -> None:
    if number.endswith("u"):
        number = number[:-1] + "U"
    assert texts(number) == [number]


def test_what_is_no_ptx() -> None:
    with pytest.raises(PtxError, match="cannot read '`c'") as caught:
        tokens("a\nb `c d")
    assert caught.value.line == 2
