"""cuevo.sim.text.contraction: products that an assembler may fuse with sums."""

import pytest
from sim.conftest import kernel_text

from cuevo.sim import SimExecutor

pytestmark = pytest.mark.unit

START = """
.reg .f32 a, b, c, d, e; .reg .b32 n; .reg .pred p; .reg .b16 h, i; .reg .f64 x, y;
mov.f32 a, 0f3F800000; mov.f32 b, a; mov.f32 c, a; mov.u32 n, 3; setp.eq.u32 p, n, 3;
mov.b16 h, 1; mov.b16 i, 2; mov.f64 x, 0d0000000000000000; mov.f64 y, x;
"""


def found(body: str) -> list[tuple[str, str]]:
    kernel = SimExecutor("sm_90").load_text(
        "test", kernel_text(f"{START}\n{body} ret;", 0, "sm_90")
    )
    return [(each.opcode, each.sum_opcode) for each in kernel.contractions]


@pytest.mark.parametrize(
    "body",
    [
        "mul.f32 d, a, b; add.f32 e, d, c;",
        "mul.f32 d, a, b; sub.f32 e, c, d;",
        "mul.ftz.f32 d, a, b; add.ftz.f32 e, d, d;",
        "mul.f16 h, h, i; add.f16 h, h, i;",
        "mul.f64 x, x, y; sub.f64 x, x, y;",
        # As it is, or negated, by way of other registers.
        "mul.f32 d, a, b; neg.f32 d, d; mov.f32 e, d; add.f32 e, e, c;",
        # A guard may leave what was there.
        "mul.f32 d, a, b; @p mov.f32 d, a; add.f32 e, d, c;",
        # Around a loop.
        "LAP: add.f32 e, a, c; mul.f32 a, b, c; sub.u32 n, n, 1; setp.ne.u32 p, n, 0; @p bra LAP;",
    ],
)
def test_may_be_fused(body: str) -> None:
    ((product, total),) = found(body)
    assert product.startswith("mul") and total.startswith(("add", "sub"))


@pytest.mark.parametrize(
    "body",
    [
        "mul.rn.f32 d, a, b; add.f32 e, d, c;",
        "mul.f32 d, a, b; add.rn.f32 e, d, c;",
        "fma.rn.f32 d, a, b, c; add.f32 e, d, c;",
        "mul.f32 d, a, b; mul.f32 e, d, c;",
        "mul.f32 d, a, b; mov.f32 d, a; add.f32 e, d, c;",
        "mul.f32 d, a, b; max.f32 d, d, a; add.f32 e, d, c;",
        "mul.f32 d, a, b; bra DONE; add.f32 e, d, c; DONE:",
    ],
)
def test_may_not(body: str) -> None:
    assert found(body) == []


def test_it_says_where() -> None:
    text = kernel_text(f"{START}\nmul.f32 d, a, b;\nadd.f32 e, d, c;\nret;", 0)
    (each,) = SimExecutor("sm_80").load_text("test", text).contractions
    line = text.splitlines().index("mul.f32 d, a, b;") + 1
    assert (each.origin, each.sum_origin) == tuple(
        f"test (rendered text):{at}" for at in (line, line + 1)
    )
