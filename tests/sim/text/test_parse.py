"""cuevo.sim.text.parse: text to declarations, scopes and instructions."""

import pytest

from cuevo.sim.faults import PtxError
from cuevo.sim.text.parse import parse
from cuevo.sim.text.syntax import (
    AddressOperand,
    FloatOperand,
    Function,
    IntegerOperand,
    PairOperand,
    RegisterOperand,
    SinkOperand,
    SpecialOperand,
    SymbolOperand,
    VectorOperand,
)

pytestmark = pytest.mark.unit

HEAD = ".version 7.0\n.target sm_80\n.address_size 64\n"


def function(body: str, entry: str = "k()", before: str = "") -> Function:
    return parse(f"{HEAD}{before}.visible .entry {entry}\n{{\n{body}\n}}\n").functions["k"]


def refused(body: str, message: str, line: int = 6) -> None:
    with pytest.raises(PtxError, match=message) as caught:
        function(body)
    assert caught.value.line == line


def test_module() -> None:
    module = parse(
        f'{HEAD}.entry a() {{ ret; }} .visible .entry b() {{ ret; }}\n.file 1 "x.ptx", 3, 4'
    )
    assert (module.version, module.target, module.address_size) == ("7.0", "sm_80", 64)
    assert list(module.functions) == ["a", "b"]


def test_entry_and_its_directives() -> None:
    entry = "k(.param .align 8 .b8 params[24], .param .u64 .ptr .global .align 16 x)"
    entry += ' .maxntid 128, 2 .reqntid 64 .minnctapersm 2 .maxnreg 32 .pragma "nounroll";'
    k = function('.pragma "nounroll"; .loc 1 7 1\nret;', entry)
    params, x = k.parameters.values()
    assert (params.size, params.alignment, x.size, x.alignment) == (24, 8, 8, 8)
    assert (k.maximum_threads, k.required_threads) == ((128, 2, 1), (64, 1, 1))


def test_registers() -> None:
    k = function(".reg .f32 acc<3>, x; .reg .pred p; .reg .b64 %rd<2>; ret;")
    names = ["acc0", "acc1", "acc2", "x", "p", "%rd0", "%rd1"]
    assert [r.name for r in k.registers] == names
    assert [r.slot for r in k.registers] == list(range(7))
    assert [r.type.name for r in k.registers] == ["f32"] * 4 + ["pred"] + ["b64"] * 2


def test_shared_memory() -> None:
    before = ".extern .shared .align 128 .b8 all[];\n"
    k = function(
        ".shared .align 16 .b8 a[10]; .shared .f32 b[2][3]; .shared .u64 c; ret;", before=before
    )
    found = [(v.name, v.size, v.alignment) for v in k.shared]
    assert found == [("all", None, 128), ("a", 10, 16), ("b", 24, 4), ("c", 8, 8)]


def test_scopes_hide_and_end() -> None:
    k = function(".reg .b32 x; { .reg .b64 x; mov.b64 x, 1; { mov.b64 x, 2; } } mov.b32 x, 3; ret;")
    slots = [i.operands[0].register.slot for i in k.instructions[:3]]  # type: ignore[union-attr]
    assert slots == [1, 1, 0]
    refused("{ .reg .b32 y; } mov.b32 y, 1; ret;", "unknown symbol 'y'")


def test_labels_are_of_their_scope() -> None:
    k = function("{ L: bra L; } { L: bra OUT; } bra OUT; OUT: ret; END:")
    targets = [k.labels[i.operands[0].name] for i in k.instructions[:3]]  # type: ignore[union-attr]
    assert targets == [0, 3, 3] and 4 in k.labels.values()


def test_operands() -> None:
    k = function(
        """.reg .b32 a, b; .reg .pred p, q; .shared .b8 s[64];
        @!p foo.x a, %tid.x, -5, 0x10, 0f3F800000, 1.5, -0f3F800000, s, s+4, _, {a, b, _}, !q,
            (1 << 4);
        """
    )
    (i,) = k.instructions
    assert i.opcode == "foo.x" and i.line == 7
    assert i.guard is not None and i.guard.negated and i.guard.register.name == "p"
    a, tid, minus, hexadecimal, one, decimal, negative, s, s4, sink, vector, q, shifted = i.operands
    assert isinstance(a, RegisterOperand) and tid == SpecialOperand("%tid.x")
    assert (minus, hexadecimal, shifted) == tuple(IntegerOperand(v) for v in (-5, 16, 16))
    assert one == FloatOperand(1.0, 0x3F800000, 32)
    assert isinstance(decimal, FloatOperand) and (decimal.value, decimal.bits) == (1.5, None)
    assert negative == FloatOperand(-1.0, 0xBF800000, 32)
    assert isinstance(s, SymbolOperand) and s.offset == 0
    assert isinstance(s4, SymbolOperand) and s4.offset == 4
    assert sink == SinkOperand() and isinstance(vector, VectorOperand) and len(vector.elements) == 3
    assert isinstance(q, RegisterOperand) and q.negated


def test_addresses_and_pairs() -> None:
    k = function(
        ".reg .b64 a; .reg .pred p, q; .shared .b8 s[64];"
        "f [a], [a+16], [a+-8], [a+4<<1], [s+4*3+1], [64], p|q, p|_;"
    )
    *addresses, pair, half = k.instructions[0].operands
    found = [(type(x.base).__name__, x.offset) for x in addresses if isinstance(x, AddressOperand)]
    register, symbol = "RegisterOperand", "SymbolOperand"
    expected = [(register, 0), (register, 16), (register, -8), (register, 8), (symbol, 13)]
    assert found == [*expected, ("NoneType", 64)]
    assert isinstance(pair, PairOperand) and isinstance(half, PairOperand)
    assert half.second == SinkOperand()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("1+2*3", 7), ("(1+2)*3", 9), ("-7/2", -3), ("-7 % 3", -1), ("~0", -1), ("017", 15)],
        *[("0b11", 3), ("1<<3>>1", 4), ("6&3^1", 3), ("-(2-5)", 3), ("0xFFU", 255)],
        *[("!0", 1), ("!3 || 2", 1), ("1 && 0", 0), ("6 | 1", 7), ("2 < 1 ? 5 : 6 >= 6", 1)],
        *[("3 == 3", 1), ("3 != 3", 0), ("0x4000000000000000 * 4", 0), ("WARP_SZ / 2", 16)],
    ],
)
def test_constant_expressions(text: str, value: int) -> None:
    assert function(f"f {text};").instructions[0].operands == (IntegerOperand(value),)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mov.b32 x, 1;", "unknown symbol 'x'"),
        (".reg .b32 x, x;", "'x' is declared twice"),
        (".reg .bf16 x;", r"no registers of type \.bf16"),
        (".reg .foo x;", r"no registers of type \.foo"),
        (".reg .b32 x<9>, y<1048568>;", r"y<1048568>: .* at most 1,048,576 registers"),
        ("L: ret; L: ret;", "label 'L' is there twice"),
        ("bra L;", "there is no label 'L'"),
        ("{ L: ret; } bra L;", "there is no label 'L'"),
        (".reg .b32 x; @x ret;", "'x' is no predicate"),
        (".reg .b32 x; f !x;", "'x' is no predicate"),
        (".reg .b32 x; f x y;", "expected ',' or ';' after an operand, found 'y'"),
        ("f [1;", r"expected '\]', found ';'"),
        ("f 1 2;", "found '2'"),
        ("f +;", "expected an operand, found ';'"),
        (".branchtargets a;", r"does not support the directive \.branchtargets"),
        (".local .b8 x[4] = {1};", r"a variable in \.local cannot be initialised"),
        ("call f, (1);", "there is no function 'f'"),
        ("ret", r"expected ',' or ';' after an operand|expected an operand"),
    ],
)
def test_errors_have_their_line(body: str, message: str) -> None:
    with pytest.raises(PtxError, match=message) as caught:
        function(body)
    assert caught.value.line in (6, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".version 7.0\n.target sm_80\n.address_size 32\n", "needs .address_size 64"),
        (f"{HEAD}.alias f, g;", r"does not support \.alias at module level"),
        (f"{HEAD}.global .b8 x[2] = {{1, 2, 3}};", "'x' has 2 bytes, its content more"),
        (
            f"{HEAD}.entry k() .cluster_dim 2 {{ ret; }}",
            r"does not support the directive \.cluster_dim",
        ),
        (f"{HEAD}.entry k() {{ ret;", "'{' without '}'"),
    ],
)
def test_modules_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(PtxError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("end", "returns"),
    [
        ("ret;", 1),
        ("exit;", 0),
        ("L: bra.uni L;", 0),
        ("trap;", 0),
        ("add.u32 a, a, 1;", 1),
        ("@p ret;", 2),
        ("@p bra L; ret; L:", 2),
        ("", 1),
    ],
)
def test_a_closing_brace_returns_where_control_may_come_to_it(end: str, returns: int) -> None:
    body = f".reg .b32 a; .reg .pred p; {end}"
    k = function("{ call f; } ret;", before=f".func f() {{ {body} }}\n")
    inside = [each.opcode for each in k.instructions if each.subroutine == "f"]
    assert inside.count("ret") == returns
    assert [each.opcode for each in k.instructions if not each.subroutine] == ["call", "ret"]
