"""cuevo.sim.text.statements: lines that are known from elsewhere mean what their tokens say."""

import random
import re

import pytest
from sim.broken.originals import original

from cuevo.sim.faults import PtxError
from cuevo.sim.instructions.levels import declared
from cuevo.sim.run.program import Program
from cuevo.sim.text.lex import tokens
from cuevo.sim.text.parse import parse, parse_tokens
from cuevo.sim.text.statements import condensed, statement
from cuevo.sim.text.syntax import Function, Module

pytestmark = pytest.mark.unit

EVERYTHING = """
.version 8.0
.target sm_90a
.address_size 64
.file 1 "a;{b"
.global .align 4 .b32 table[2] = { 1,
2 };
.func (.reg .b32 r) twice (.reg .b32 x)
{
    .loc 1 2 3
    add.u32 r, x, x;
    ret;
}
.visible .entry k(.param .u64 out)
{
    .reg .b32 x, y<4>;
    .reg .pred p;
    .reg .b64 at, wide;
    .shared .align 16 .b8 tile[64];  // add.u32 x, x, x;
    ld.param.u64 at, [out];
    .loc 1 7 1
    mov.u32 x, %tid.x;
    mov.b32 y0, tile;
    setp.lt.u32 p, x, 5;
LOOP:
    @p add.u32 x, x, 1;
    @!p add.u32 x, x, WARP_SZ;
    {
        .reg .f32 x;
        .reg .b64 y1;
        mov.f32 x, 0f3F800000;
        add.f32 x, x, 1.5;
        mov.b64 y1, at;
        st.global.f32 [y1+4], x; st.global.f32 [at], x;
    }
    mov.b32 y1, 3; // {
    mov.b64 wide, {x, y1};
    mov.b64
        {y2, _},
        wide;
    setp.lt.and.u32 p|_, x, -5, !p;
    st.shared.v2.b32 [y0+(8-8)], {x, y1};
    add.cc.u32 x, x, y1;
    call (x), twice, (x);
    @p bra LOOP;
    ret;
}
"""


def entry(module: Module) -> Function:
    (function,) = module.functions.values()
    return function


def assert_alike(one: Module, other: Module) -> None:
    assert one.functions.keys() == other.functions.keys()
    for name, function in one.functions.items():
        twin = other.functions[name]
        assert [each[:5] for each in function.instructions] == [
            each[:5] for each in twin.instructions
        ]
        for field in ("parameters", "registers", "shared", "labels", "subroutines", "carry"):
            assert getattr(function, field) == getattr(twin, field), field


def known(function: Function) -> int:
    return sum(each.pattern is not None for each in function.instructions)


def test_each_kind_of_line() -> None:
    found = parse(EVERYTHING)
    assert_alike(found, parse_tokens(tokens(EVERYTHING)))
    assert known(entry(found)) == 15
    assert not known(entry(parse_tokens(tokens(EVERYTHING))))


@pytest.mark.parametrize("name", ["forward", "backward", "gemm_sm80", "gemm_sm90a"])
def test_kernels(name: str) -> None:
    for launch in original(name).launches:
        text = launch.kernel.text
        found, plain = parse(text), parse_tokens(tokens(text))
        assert_alike(found, plain)
        one, other = entry(found), entry(plain)
        assert known(one) > 0.8 * len(one.instructions)
        level = declared(found.version, found.target)
        for operation, twin in zip(
            Program(one, level.number, level).operations,
            Program(other, level.number, level).operations,
            strict=True,
        ):
            for field in ("form", "modifiers", "reads", "writes", "conditional", "keeps"):
                assert getattr(operation, field) == getattr(twin, field)
            assert operation.suspects == twin.suspects


PIECE = re.compile(r"[\w.%$]+|\s+|.")


def test_damaged_texts() -> None:
    """Texts refused as tokens are refused, with the same words; others mean the same."""
    refused = 0
    for seed in range(600):
        rng = random.Random(seed)
        pieces = [each.group() for each in PIECE.finditer(EVERYTHING)]
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(len(pieces))
            pieces[at : at + rng.randrange(2)] = rng.choices(pieces, k=rng.randrange(3))
        text = "".join(pieces)
        try:
            plain = parse_tokens(tokens(text))
        except PtxError as error:
            refused += 1
            with pytest.raises(PtxError) as caught:
                parse(text)
            assert (caught.value.line, caught.value.message) == (error.line, error.message)
            with pytest.raises(PtxError):
                parse_tokens(list(condensed(text)))
        else:
            assert_alike(parse(text), plain)
    assert 200 < refused < 560


@pytest.mark.parametrize(
    "line",
    [
        "L: ret;", "ret", "ret; ret;", "bra L;", "call f, (x);", "@p bra L;", ".reg .b32 x;",
        "{ ret; }", "mov.b64 {x, y;", "mov.b32 x}, y;", "add.cc.u32 x, x, y;", "addc.u32 x, x, y;",
        '.pragma "nounroll";', "add.u32 x), (y;", "}", ";",
        "add.u32 add.u32, x, y;",
    ],
)  # fmt: skip
def test_lines_that_are_more_or_less_than_a_statement(line: str) -> None:
    assert statement(line) is None


def test_names_of_a_statement() -> None:
    found = statement("@!p fma.rn.f32 d, a, a, %tid.x;")
    assert found is not None
    assert found.names == ("p", "d", "a")
