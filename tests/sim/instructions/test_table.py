"""cuevo.sim.instructions.table: which opcodes there are, and since when."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from sim.instructions.statements import chosen
from sim.instructions.test_table_assembled import sample

from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor
from cuevo.sim.faults import PtxError
from cuevo.sim.instructions import table
from cuevo.sim.instructions.levels import ANY, FIRST_VERSIONS, Level, declared, level, loadable
from cuevo.sim.instructions.table import find, forms, read
from cuevo.sim.text.syntax import Instruction, IntegerOperand

pytestmark = pytest.mark.unit

NEWEST = Level((9, 5), 90, "a")


def modifiers(opcode: str, kernel: Level = NEWEST, operands: int | None = None) -> dict[str, str]:
    if operands is None:
        operands = next(
            (
                max(form.counts(chosen(form, opcode)))
                for form in forms()
                if form.expression.fullmatch(opcode)
            ),
            0,
        )
    return dict(find(Instruction(opcode, (IntegerOperand(0),) * operands, None, 3), kernel)[1])


def test_choices_are_found_by_name() -> None:
    found = modifiers("fma.rn.ftz.f32")
    assert (found["round"], found["ftz"], found["sat"]) == ("rn", "ftz", "")
    found = modifiers("ld.global.nc.L2::128B.v4.b32")
    assert (found["prefetch"], found["access"]) == ("L2::128B", "v4.b32")
    assert modifiers("mul.lo.s32")["op"] == "mul.lo"


@pytest.mark.parametrize(
    "opcode",
    [
        "frobnicate",
        "add",
        "add.u8",
        "add.ftz.rn.f32",
        "add.f32.rn",
        "fma.f32",
        "add.s32.",
        "mul.s32",
        "ldx.global.b32",
        "ld.global.b32.v2",
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3",
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16",
        "wgmma.mma_async.sync.aligned.m64n264k16.f32.bf16.bf16",
    ],
)
def test_the_unknown_is_refused_by_name_and_line(opcode: str) -> None:
    with pytest.raises(PtxError, match="does not support the instruction") as caught:
        modifiers(opcode)
    assert opcode in caught.value.message and caught.value.line == 3


# What the assembler (ptxas 13.0) refuses for an older target, by the first that has it.
SINCE = {
    75: """ldmatrix.sync.aligned.m8n8.x4.shared.b16
    mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32
    tanh.approx.f32 ex2.approx.f16x2 ld.global.L2::128B.b32 ld.global.nc.L2::64B.v4.b32""",
    80: """mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16
    mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32
    cp.async.ca.shared.global cp.async.commit_group cp.async.wait_group cp.async.wait_all
    redux.sync.add.u32 cvt.rn.f16x2.f32 cvt.rn.bf16.f32 cvt.rn.bf16x2.f32 cvt.rn.relu.f16.f32
    cvt.f32.bf16 min.f16x2 max.NaN.f16 min.NaN.f32 fma.rn.bf16x2 fma.rn.relu.f16 neg.bf16x2
    ld.global.L2::256B.b32 prefetch.global.L2::evict_last
    createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64
    ld.global.L2::cache_hint.v4.f32 st.global.L2::cache_hint.b32""",
    90: """stmatrix.sync.aligned.m8n8.x4.shared.b16 add.bf16x2 ex2.approx.ftz.bf16x2
    setp.eq.bf16""",
}
ALWAYS = """mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 ld.global.nc.L1::no_allocate.v4.b32
cvt.rn.f16.f32 cvt.rz.sat.f16.f32 cvt.f32.f16 fma.rn.f16x2 min.f32 max.ftz.f32 setp.lt.f16
atom.global.inc.u32 atom.acq_rel.gpu.global.add.u32 fence.acq_rel.gpu membar.gl bar.warp.sync
prefetch.global.L1 prefetch.global.L2 mov.b32 ld.global.b16 st.global.b16 st.global.v4.b16
st.global.v2.b64 shfl.sync.bfly.b32 barrier.cta.sync"""


@pytest.mark.parametrize(
    ("since", "opcode"),
    [(since, opcode) for since, listed in SINCE.items() for opcode in listed.split()],
)
def test_architectures(since: int, opcode: str) -> None:
    modifiers(opcode, Level((8, 8), since))
    before = {75: 70, 80: 75, 90: 89}[since]
    message = f"{opcode} needs sm_{since} or later; the target is sm_{before}"
    with pytest.raises(PtxError, match=re.escape(message)):
        modifiers(opcode, Level((8, 8), before))


@pytest.mark.parametrize("opcode", ALWAYS.split())
def test_what_the_oldest_architecture_has(opcode: str) -> None:
    for arch in (70, 75, 90):
        modifiers(opcode, Level((8, 8), arch))


@pytest.mark.parametrize(
    ("opcode", "version"),
    [
        ("fma.rn.relu.f16", "7.0"),
        ("ld.global.L1::no_allocate.b32", "7.4"),
        ("elect.sync", "8.0"),
        ("cvt.rn.satfinite.f16.f32", "8.1"),
        ("lop3.or.b32", "8.2"),
    ],
)
def test_versions(opcode: str, version: str) -> None:
    first = level(version).version
    modifiers(opcode, Level(first, 90))
    before = Level((first[0], first[1] - 1) if first[1] else (first[0] - 1, 8), 90)
    message = f"{opcode} needs PTX ISA {version} or later; the .version is {before.version_name}"
    with pytest.raises(PtxError, match=re.escape(message)):
        modifiers(opcode, before)


def test_each_form_is_stated_with_its_level() -> None:
    assert len(forms()) > 200
    for form in forms():
        assert form.level >= Level((6, 0), 70), form.row
        for group in form.groups:
            names = [text for text, _ in group.choices]
            assert len(names) == len(set(names)), form.row
            assert all(at == ANY or at.version >= (6, 0) for _, at in group.choices), form.row


def test_no_opcode_has_two_forms() -> None:
    for form in forms():
        for opcode in sample(form, 20):
            count = max(form.counts(chosen(form, opcode)))
            vectors = [each.several for each in form.operands]
            others = [
                other.row
                for other in forms()
                if (match := other.expression.fullmatch(opcode)) is not None
                and count in other.counts({k: v or "" for k, v in match.groupdict().items()})
                and vectors == [each.several for each in other.operands]
            ]
            assert others == [form.row], opcode


def test_all_binders_are_in_the_table() -> None:
    """Public functions of the modules of instructions that take a binder and modifiers."""
    stated = {form.binder for form in forms()}
    found = set()
    for file in Path(table.__file__).parent.glob("*.py"):
        module = import_module(f"cuevo.sim.instructions.{file.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__ and not name.startswith("_")
            if own and list(inspect.signature(function).parameters) == ["b", "m"]:
                found.add(f"{file.stem}.{name}")
    assert stated == found


def test_the_notation() -> None:
    text = """
    # a comment
    KINDS = .a@7.0:80|.b
    """
    rows = """
[x.y!]
op{.ftz}{round:.rn|.rz}<type:KINDS>.z
    .tail                d|q:pred, a*4:b32, [p], n=16{, c, e:type}        6.1:75
op.n<n:8..16/4>k    d*n/2                                                 6.1:75
    """
    form, numbered = read(text.replace("    ", "") + rows)
    assert list(sample(numbered)) == ["op.n8k", "op.n12k", "op.n16k"]
    assert (numbered.operands[0].count, numbered.operands[0].divisor) == ("n", 2)
    assert form.control and form.binder == "x.y" and form.level == Level((6, 1), 75)
    assert set(sample(form)) >= {"op.a.z.tail", "op.ftz.rz.b.z.tail"}
    assert form.level_of(chosen(form, "op.a.z.tail")) == Level((7, 0), 80)
    assert list(form.counts({})) == [4, 5, 6]
    d, a, p, n, c, e = form.operands
    assert (d.paired, d.type, a.count, p.address, n.constant) == (True, "pred", "4", True, 16)
    assert (c.type, e.type) == ("", "type")


@pytest.mark.parametrize("row", ["op  d  6.0:70", "[x.y]\nop  d", "[x.y]\nop  ?  6.0:70"])
def test_rows_without_sense(row: str) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        list(read(row))


def test_levels_that_texts_declare() -> None:
    assert declared("7.0", "sm_80") == Level((7, 0), 80)
    assert declared("8.0", "sm_90a") == Level((8, 0), 90, "a")
    for version, target, message in (
        ("6.9", "sm_80", "needs .version 7.0; this is 6.9"),
        ("", "sm_80", "must begin with .version"),
        ("7.0", "sm_13", "does not support the .target 'sm_13'"),
    ):
        with pytest.raises(ValueError, match=message):
            declared(version, target)
    assert all(target.startswith("sm_") for target in FIRST_VERSIONS)


@pytest.mark.parametrize(
    ("target", "arch", "fits"),
    [
        ("sm_80", "sm_80", True),
        ("sm_80", "sm_90a", True),
        ("sm_80", "sm_75", False),
        ("sm_90a", "sm_90a", True),
        ("sm_90a", "sm_90", False),
        ("sm_90a", "sm_100a", False),
        ("sm_100f", "sm_103a", True),
        ("sm_100f", "sm_120", False),
    ],
)
def test_which_devices_take_a_target(target: str, arch: str, fits: bool) -> None:
    assert loadable(declared("9.0", target), arch) is fits


@pytest.mark.parametrize(
    ("version", "target", "body", "complaint"),
    [
        ("5.0", "sm_60", "ld.global.b32 x, [p]; bar.sync 0; st.global.b32 [p], x;", ""),
        ("4.3", "sm_50", "lop3.b32 x, x, x, x, 3; cvt.rn.f16.f32 h, f;", ""),
        ("8.0", "sm_52", "shfl.sync.bfly.b32 x, x, 1, 31, -1;", ""),
        ("5.0", "sm_52", "shfl.sync.bfly.b32 x, x, 1, 31, -1;", "needs PTX ISA 6.0 or later"),
        ("8.0", "sm_52", "fma.rn.f16 h, h, h, h;", "needs sm_53 or later; the target is sm_52"),
        ("8.0", "sm_60", "ld.relaxed.gpu.global.b32 x, [p];", "needs sm_70 or later"),
        ("8.0", "sm_61", "cp.async.wait_all;", "needs sm_80 or later; the target is sm_61"),
        ("8.0", "sm_60", "dp4a.u32.u32 x, x, x, x;", "needs sm_61 or later"),
        ("4.0", "sm_60", "ret;", "target sm_60 needs .version 5.0; this is 4.0"),
    ],
)
def test_targets_below_the_table(version: str, target: str, body: str, complaint: str) -> None:
    text = f".version {version}\n.target {target}\n.address_size 64\n.visible .entry k() {{"
    text += f".reg .b32 x; .reg .b64 p; .reg .b16 h; .reg .f32 f; {body} ret; }}"
    if not complaint:
        SimExecutor("sm_80").load_text("k", text)
        return
    with pytest.raises(SimulatorError, match=complaint):
        SimExecutor("sm_80").load_text("k", text)
