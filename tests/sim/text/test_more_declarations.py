"""Vectors of registers, variables of functions, nested content, and declarations that are wrong."""

from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor

pytestmark = pytest.mark.unit

ANY = np.zeros(32, np.uint32)


def text(body: str = "", *, before: str = "", head: str = "", parameters: str = "") -> str:
    return f"""
    .version 9.0
    .target sm_90
    .address_size 64
    {before}
    .visible .entry k({parameters}) {head} {{ {body} ret; }}
    """


def test_vectors_of_registers(run_elementwise: Any) -> None:
    body = """
    .reg .v4 .f32 v, w<2>; .reg .v2 .b32 u;
    mov.f32 v.x, x; add.f32 v.y, v.x, v.x; add.f32 v.b, v.g, v.r; mov.f32 v.w, 1.0;
    mov.v4.f32 w1, v; mov.f32 u.x, w1.z; mov.f32 u.y, w1.a;
    .reg .b64 both; mov.b64 both, u; mov.b64 u, both;
    mov.b32 d, u.r; mov.b32 e, u.g;
    """
    x = np.arange(32, dtype=np.float32)
    d, e = run_elementwise(body, x=("f32", x), d="f32", e="f32")
    assert np.array_equal(d, 3 * x) and (e == 1).all()


def test_variables_of_functions(run_elementwise: Any) -> None:
    body = """
    .const .b16 table[2][3] = {{1}, {4, 5, 6}}; .global .v2 .f32 pair = {-1.5, 2.5};
    .reg .b16 h, i; .reg .b32 n; .reg .f32 f, g;
    ld.const.b16 h, [table+2]; ld.const.b16 i, [table+6]; mov.b32 d, {h, i};
    ld.global.v2.f32 {f, g}, [pair]; add.f32 e, f, g;
    """
    d, e = run_elementwise(body, x=("b32", ANY), d="b32", e="f32")
    assert (d == 4 << 16).all() and (e == 1).all()


def test_several_variables_in_one_declaration(run_elementwise: Any) -> None:
    body = """
    .global .align 8 .b32 first[2] = {3, 4}, second = 5; .global .b64 places[1] = {second}, more;
    .shared .b32 one, two[2]; .local .b32 three, four; .reg .b64 at; .reg .b32 i, j;
    mov.b32 i, one; mov.b32 j, two; sub.u32 d, j, i; st.local.b32 [four], x; ld.local.b32 i, [four];
    ld.global.b64 at, [places]; ld.global.b32 e, [at]; add.u32 e, e, i;
    """
    d, e = run_elementwise(body, x=("b32", ANY), d="b32", e="b32")
    assert (d == 4).all() and (e == 5).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"before": ".global .align 3 .b32 x;"}, "an alignment of 3, which is no power of two"),
        ({"before": ".global .b32 x[08];"}, "08 is no number"),
        ({"before": ".global .b32 x[1/0];"}, "expected ']', found '/'"),
        ({"before": ".global .b32 x[-1];"}, "expected a integer"),
        ({"before": ".global .b32 x[];"}, "the extent of 'x' is missing or 0"),
        ({"before": ".extern .const .b8 x[];"}, "the extent of 'x' is missing or 0"),
        ({"before": ".common .shared .b8 x[4];"}, ".common variables are in .global"),
        ({"body": ".extern .local .b8 x[];"}, "in a function .extern stands before .shared"),
        ({"before": ".global .b8 x[99999999999];"}, "at most 1,073,741,824"),
        ({"before": ".global .u32 x = 1.5;"}, "1.5 is no content of type .u32"),
        ({"before": ".global .u8 x; .global .u8 y = 0x0(x);"}, "0x0 is not the mask of one byte"),
        ({"before": ".global .b16 x = 0f3F800000;"}, "1.0 is no content of type .b16"),
        ({"before": ".global .f32 x = 1;"}, "an integer is no content of type .f32"),
        ({"before": ".global .b8 x[2] = {1, {2}};"}, "has fewer extents than its content"),
        ({"before": ".global .b8 x[2][2] = {{1, 2, 3}};"}, "has 2 bytes, its content more"),
        ({"parameters": ".param .b8 p[]"}, "the extent of 'p' is missing or 0"),
        ({"parameters": ".param .b32 p,"}, "'\\)' cannot stand here"),
        ({"parameters": ".param .v4 .f32 p"}, "the parameter 'p' cannot be a vector"),
        ({"head": ".reqntid 0"}, ".reqntid takes positive numbers of 32 bits"),
        ({"head": ".maxntid 1, 2, 3, 4"}, "expected '{', found ','"),
        ({"body": ".reg .v4 .f64 v;"}, "no vector of 4 .f64"),
        ({"body": ".reg .v4 .f32 v; add.f32 v, v, v;"}, "must be a register|of a kind"),
        ({"body": ".reg .b32 n; mov.b32 n, 1/0;"}, "divides by zero"),
        ({"body": ".reg .b32 n; mov.b32 n, 1<<64;"}, "a shift by 64 in a constant expression"),
        ({"body": ".reg .b32 n; mov.b32 n, 1<<-1;"}, "a shift by -1"),
        ({"body": f".reg .b32 n; mov.b32 n, {'9' * 5000};"}, "is no number"),
        ({"body": ".reg .b64 n; mov.b64 n, 0x10000000000000000;"}, "has more than 64 bits"),
        ({"body": f".reg .b32 n; mov.b32 n, {'(' * 500}1{')' * 500};"}, "nest too deeply"),
        ({"body": "{" * 2000 + "}" * 2000}, "nest too deeply"),
        ({"body": ".reg .f32 f; mov.f32 f, 1e999;"}, "too large for a number of 64 bits"),
        ({"body": ".local .b8 x[600000];"}, "at most 524,288"),
    ],
)
def test_what_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        SimExecutor("sm_90").load_text("k", text(**given))


def test_a_block_that_is_too_deep() -> None:
    kernel = SimExecutor("sm_90").load_text("k", text())
    kernel.launch((1, 1, 1), (1, 1, 64), 0, b"")
    with pytest.raises(ValueError, match="a block is 1024 threads deep; 64 are the most"):
        kernel.launch((1, 1, 1), (1, 1, 1024), 0, b"")


def test_a_stack_of_a_compiler_may_be_read_before_it_is_written(run_elementwise: Any) -> None:
    body = ".local .align 4 .b8 {}[8]; st.local.b8 [{}], 1; ld.local.b32 d, [{}];"
    d = run_elementwise(body.format(*["__local_depot7"] * 3), x=("b32", ANY), d="b32")
    assert (d == 0xA5A5A501).all()
    with pytest.raises(SimulatorError, match="where nothing was written"):
        run_elementwise(body.format(*["own"] * 3), x=("b32", ANY), d="b32")


def test_beside_a_stack_of_a_compiler_registers_may_be_left_open(run_elementwise: Any) -> None:
    body = """.local .align 4 .b8 {}[8]; .reg .b32 open; .reg .pred p;
    st.local.b32 [{}], open; ld.local.b32 d, [{}]; @!p add.u32 d, d, 0; setp.eq.u32 p, d, 0;"""
    first = body.replace("@!p ", "")
    d = run_elementwise(first.format(*["__local_depot7"] * 3), x=("b32", ANY), d="b32")
    assert (d == 0xA5A5A5A5).all()
    for text, name, register in (
        (first, "own", "open"),
        (body, "__local_depot7", "p"),
        (body + " mov.u32 open, d;", "__local_depot7", "open"),
    ):
        with pytest.raises(SimulatorError, match=f"reads the register {register}, which was never"):
            run_elementwise(text.format(*[name] * 3), x=("b32", ANY), d="b32")
