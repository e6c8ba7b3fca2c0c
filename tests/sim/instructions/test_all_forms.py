"""Every form is bound at load, and every one that only computes is run, with registers and with
constants as sources.
"""

import re

import pytest
from sim.instructions.statements import DECLARATIONS, WIDE
from sim.instructions.test_table_assembled import sampled

from cuevo.sim import SimExecutor

pytestmark = pytest.mark.kernel

# These want addresses, members of a warp or numbers of barriers that fit.
ELSEWHERE = re.compile(
    r"\[|^(bra|brx|call|ret|exit|trap|bar|barrier|shfl|vote|match|elect|redux|cp|cvta.to|mbarrier|mapa|getctarank|wgmma)\b"
)


NEWEST = "sm_100"
HOPPER = "sm_90a"


def text(statements: list[str], target: str = NEWEST) -> str:
    start = [
        "mov.u32 n, %tid.x; cvt.rn.f32.u32 t, n; fma.rn.f32 t, t, 0f3C800000, 0f3E000000;",
        *(f"cvt.u16.u32 h{i}, n; add.u16 h{i}, h{i}, {i + 1};" for i in range(20)),
        *(f"add.u32 r{i}, n, {i + 1};" for i in range(32)),
        *(f"cvt.u64.u32 d{i}, n; add.u64 d{i}, d{i}, {i + 1};" for i in range(20)),
        *(f"mul.f32 f{i}, t, 0f3F400000; cvt.f64.f32 g{i}, t;" for i in range(20)),
        *(f"mov.b128 x{i}, {{d{i}, d{i}}};" for i in range(20)),
        *(f"setp.gt.u32 p{i}, n, {i};" for i in range(10)),
    ]
    body = "\n".join([*start, *statements, "DONE: ret;"])
    return f"""
    .version 9.2
    .target {target}
    .address_size 64
    .func subroutine() {{ ret; }}
    .visible .entry k() {{
    .reg .b32 n; .reg .f32 t; {DECLARATIONS} {WIDE}
    TARGETS: .branchtargets DONE;
    {body} }}
    """


def test_all_forms_are_bound() -> None:
    for target, special in ((NEWEST, ""), (HOPPER, "a")):
        found = [each for _, each, level in sampled() if level.special == special]
        listed = found[::3] if target == NEWEST else found
        SimExecutor(target).load_text("k", text(listed, target))


def run(statements: list[str]) -> None:
    kernel = SimExecutor(NEWEST).load_text("k", text(statements))
    kernel.launch((1, 1, 1), (64, 1, 1), 0, b"")


def test_all_computations_run() -> None:
    run([x for _, x, level in sampled() if not level.special and not ELSEWHERE.search(x)])


def test_under_a_guard() -> None:
    listed = [
        f"@p9 {x}"
        for _, x, level in sampled()[::7]
        if not ELSEWHERE.search(x) and not level.special
    ]
    run([each for each in listed if ".aligned" not in each])


def test_constants_as_sources() -> None:
    """The last source of each statement whose sources are all integers."""
    found = []
    for opcode, each, _ in sampled():
        operands = each.removesuffix(";").split(" ", 1)[-1].split(", ")
        typed = re.search(r"\.[busf]\w*\d$", opcode)
        whole = all(re.fullmatch(r"[rd]\d+", operand) for operand in operands)
        if whole and len(operands) > 1 and not ELSEWHERE.search(each) and typed:
            if "f" in typed[0] or "x2" in opcode or opcode.startswith("movmatrix"):
                continue
            found.append(f"{opcode} {', '.join([*operands[:-1], '3'])};")
            if not opcode.startswith("createpolicy"):
                constants = ["7"] * (len(operands) - 1)
                found.append(f"{opcode} {', '.join([operands[0], *constants])};")
    assert len(found) > 200
    run(found)
