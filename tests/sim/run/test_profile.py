"""cuevo.sim.run.profile: how often instructions ran."""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError
from cuevo.sim import LoadedKernel, SimExecutor

pytestmark = pytest.mark.unit

# Warp w goes round the loop w + 1 times; half of the lanes of warp 0 take the branch to ODD.
TEXT = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry loops(.param .u32 beyond)
{
    .reg .b32 t, n, at; .reg .pred again, odd; .shared .b32 table[65];
    mov.u32 n, %warpid; mov.u32 t, %tid.x; mov.u32 at, table; mad.lo.u32 at, t, 4, at;
    LOOP:
    sub.u32 n, n, 1;
    st.shared.u32 [at], n;
    setp.ge.s32 again, n, 0; @again bra LOOP;
    and.b32 n, t, 33; setp.eq.u32 odd, n, 1; @odd bra ODD;
    add.u32 n, n, 1;
    ODD: @odd ld.shared.u32 n, [at];
    ld.param.u32 n, [beyond]; add.u32 at, at, n; st.shared.u32 [at], t;
    ret;
}
"""
FIRST = TEXT.splitlines().index("    LOOP:") + 1


@dataclass(frozen=True)
class Line:
    file: str
    line: int


def load(executor: SimExecutor) -> LoadedKernel:
    # The two instructions after LOOP are of one line of a macro.
    return executor.load_text(
        "loops",
        TEXT,
        lambda line: Line("ptx/lib/loop.ptx", 7 if line in (FIRST + 1, FIRST + 2) else line),
    )


def launch(kernel: LoadedKernel, blocks: int = 3, beyond: int = 0) -> None:
    kernel.launch((blocks, 1, 1), (64, 1, 1), 0, struct.pack("<I", beyond))


def test_counts_of_all_launches() -> None:
    kernel, kept = (
        load(SimExecutor(profile=True)),
        load(SimExecutor(profile=True, keep_counts=True)),
    )
    for each in (kernel, kept):
        launch(each, 2)
        launch(each, 3)
    assert kernel.profile and kept.profile
    last, total = kernel.profile.by_opcode(), kept.profile.by_opcode()
    assert total == {opcode: count * 5 // 3 for opcode, count in last.items()}


@pytest.mark.parametrize("blocks", [1, 3, 1000])
def test_executions(blocks: int) -> None:
    kernel = load(SimExecutor(profile=True))
    launch(kernel, blocks)
    profile = kernel.profile
    assert profile is not None
    counts = [(use.opcode, use.executions // blocks) for use in profile.instructions]
    assert counts == [
        *[("mov.u32", 2), ("mov.u32", 2), ("mov.u32", 2), ("mad.lo.u32", 2)],
        *[("sub.u32", 3), ("st.shared.u32", 3), ("setp.ge.s32", 3), ("bra", 3)],
        *[("and.b32", 2), ("setp.eq.u32", 2), ("bra", 2), ("add.u32", 2)],
        # Lanes that have parted are together again; guards are not asked.
        *[("ld.shared.u32", 2), ("ld.param.u32", 2), ("add.u32", 2), ("st.shared.u32", 2)],
        ("ret", 2),
    ]
    assert all(use.executions % blocks == 0 for use in profile.instructions)
    assert profile.by_opcode()["st.shared.u32"] == 5 * blocks
    lines = profile.by_line()
    assert lines["ptx/lib/loop.ptx:7"] == 6 * blocks
    assert lines[f"ptx/lib/loop.ptx:{FIRST + 3}"] == 6 * blocks
    assert sum(lines.values()) == sum(profile.by_opcode().values())
    assert [(use.opcode, use.executions // blocks) for use in profile.banks] == [
        ("st.shared.u32", 3),
        ("ld.shared.u32", 1),
        ("st.shared.u32", 2),
    ]
    assert not any(use.conflicts for use in profile.banks)
    assert {use.origin for use in profile.banks} < set(lines)


def test_parted_lanes_come_in_parts(profile_of: Any) -> None:
    body = """
    .reg .b32 t, x; .reg .pred c; mov.u32 t, %tid.x; setp.lt.u32 c, t, 5; @c bra LOW;
    add.u32 x, t, 1; exit; LOW: sub.u32 x, t, 1; ret;
    """
    counts = {use.opcode: use.executions for use in profile_of(body).instructions}
    assert counts["add.u32"] == counts["exit"] == counts["sub.u32"] == counts["ret"] == 1


def test_counts_are_those_of_the_last_launch() -> None:
    kernel = load(SimExecutor(profile=True))
    assert kernel.profile is not None and not any(kernel.profile.by_opcode().values())
    launch(kernel, 5)
    first = kernel.profile
    launch(kernel, 2)
    second = kernel.profile
    assert (first.by_opcode()["ret"], second.by_opcode()["ret"]) == (10, 4)
    launch(kernel, 5)
    assert kernel.profile == first


def test_a_launch_after_a_fault_counts_afresh() -> None:
    kernel = load(SimExecutor(profile=True))
    launch(kernel)
    before = kernel.profile
    with pytest.raises(SimulatorError, match="outside of the block's 260 bytes"):
        launch(kernel, beyond=8)
    launch(kernel)
    assert kernel.profile == before


def test_nothing_is_recorded_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(
        "cuevo.sim.run.profile.wavefronts",
        lambda addresses, size, mask, atomic: counted.append(size) or (1, 1, 1),
    )
    kernel = load(SimExecutor())
    launch(kernel)
    assert kernel.profile is None and not counted
    launch(load(SimExecutor(profile=True)))
    assert counted


def test_results_are_the_same(profile_of: Any, run_kernel: Any) -> None:
    body = """
    .reg .b64 p; .reg .b32 t, at, x; .extern .shared .align 16 .b8 smem[];
    mov.u32 t, %tid.x; mov.u32 at, smem; mad.lo.u32 at, t, 4, at; st.shared.u32 [at], t;
    bar.sync 0; xor.b32 x, t, 63; mov.u32 at, smem; mad.lo.u32 at, x, 4, at; ld.shared.u32 x, [at];
    ld.param.u64 p, [p0]; mad.wide.u32 p, t, 4, p; st.global.u32 [p], x; ret;
    """
    plain, counted = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    run_kernel(body, plain, block=64, shared=256)
    profile_of(body, counted, block=64, shared=256)
    np.testing.assert_array_equal(counted, plain)
    assert plain[0] == 63


def test_generic_accesses_count_where_they_are(profile_of: Any) -> None:
    body = """
    .shared .align 4 .b8 smem[128]; .local .b32 own; .reg .b64 p, q, w; .reg .b32 n, x;
    mov.u32 n, %tid.x; mul.wide.u32 w, n, 4; mov.u64 p, smem; add.u64 p, p, w;
    st.shared.b32 [p], n; cvta.shared.u64 q, p; ld.b32 x, [q]; st.b32 [q], x;
    mov.u64 p, own; cvta.local.u64 p, p; st.b32 [p], x; ret;
    """
    used = [(use.opcode, use.executions) for use in profile_of(body).banks]
    assert used == [("st.shared.b32", 1), ("ld.b32", 1), ("st.b32", 1)]


ACCESSES = """
.reg .b64 p, q; .reg .b32 t, x; .reg .pred low, none;
mov.u32 t, %tid.x; ld.param.u64 p, [p0]; setp.lt.u32 low, t, 4; setp.gt.u32 none, t, 99;
mad.wide.u32 q, t, {step}, p; {guard} ld.global.b32 x, [q];
"""


@pytest.mark.parametrize(
    ("step", "guard", "expected"),
    [
        (4, "", (2, 8, 8)),
        (0, "", (2, 2, 2)),
        (8, "", (2, 16, 8)),
        (32, "", (2, 64, 8)),
        (16, "@low", (1, 2, 1)),
    ],
)
def test_sectors(profile_of: Any, step: int, guard: str, expected: tuple[int, int, int]) -> None:
    array = np.zeros(1024, np.uint32)
    profile = profile_of(ACCESSES.format(step=step, guard=guard) + "ret;", array, block=64)
    (use,) = profile.sectors
    assert (use.requests, use.sectors, use.ideal) == expected


def test_what_a_function_ends_with_is_counted_once() -> None:
    text = """
    .version 7.0
    .target sm_80
    .address_size 64
    .func (.param .b32 r) more(.param .b32 x)
    {
        .reg .b32 a;
        ld.param.b32 a, [x]; add.u32 a, a, 1; st.param.b32 [r], a;
        ret;
    }
    .entry test()
    {
        .reg .b32 a;
        { .param .b32 x, r; st.param.b32 [x], 1; call (r), more, (x); ld.param.b32 a, [r]; }
        ret;
    }
    """
    kernel = SimExecutor("sm_80", profile=True).load_text("test", text)
    kernel.launch((1, 1, 1), (32, 1, 1), 0, b"")
    assert kernel.profile is not None
    assert kernel.profile.never_ran == ()
    assert kernel.profile.by_opcode()["ret"] == 2


@pytest.mark.parametrize("begin", [0, 16])
def test_sectors_that_begin_in_the_middle(profile_of: Any, begin: int) -> None:
    """Of the array, wherever NumPy has put that."""
    space = np.zeros(1032, np.uint32)
    array = space[(begin - space.ctypes.data) % 32 // 4 :][:1024]
    for skip, expected in ((0, 4), (16, 5)):
        body = ACCESSES.format(step=4, guard="").replace("[q]", f"[q+{skip}]") + "ret;"
        (use,) = profile_of(body, array, block=32).sectors
        assert (use.sectors, use.ideal) == (expected, 4)


def test_guards_that_hold(profile_of: Any) -> None:
    array = np.zeros(1024, np.uint32)
    body = ACCESSES.format(step=4, guard="@low") + "@none ld.global.b32 x, [p]; ret;"
    profile = profile_of(body, array, block=64, grid=3)
    held = [use.held for use in profile.instructions if use.opcode == "ld.global.b32"]
    assert held == [3, 0]
    assert all(use.held is None for use in profile.instructions if use.opcode.startswith("mov"))


def test_the_main_loop(profile_of: Any) -> None:
    """The inner of two nested loops is the main one, by the iterations of all warps."""
    body = """
    .reg .b32 i, j, x; .reg .pred more; mov.u32 i, 0; mov.u32 x, 0;
    OUTER: mov.u32 j, 0;
    INNER: add.u32 x, x, 1; xor.b32 x, x, i; @more add.u32 x, x, 2; add.u32 j, j, 1;
    setp.lt.u32 more, j, 5; @more bra INNER;
    add.u32 i, i, 1; setp.lt.u32 more, i, 3; @more bra OUTER; ret;
    """.replace("mov.u32 i, 0;", "mov.u32 i, 0; setp.eq.u32 more, i, 1;", 1)
    loop = profile_of(body, block=64, grid=2).main_loop
    assert loop.iterations == 2 * 2 * 3 * 5
    counts = {"add.u32": 3, "xor.b32": 1, "setp.lt.u32": 1, "bra": 1}
    assert dict(loop.instructions) == counts and next(iter(loop.instructions)) == "add.u32"
    assert profile_of("ret;").main_loop is None


def test_lanes_that_wait_at_an_instruction_have_come_to_it_once(profile_of: Any) -> None:
    """Warp 0 in two arms, warp 1 whole in the first, which goes on without waiting again."""
    body = """
    .reg .b32 t, n; .reg .pred low; mov.u32 t, %tid.x; setp.lt.u32 low, t, 16; mov.b32 n, 1;
    @low bra ARM;
    add.u32 n, n, t; redux.sync.add.u32 n, n, -1; sub.u32 n, n, 1; bra END;
    ARM: redux.sync.add.u32 n, n, -1; sub.u32 n, n, 1;
    END: ret;
    """
    counts = profile_of(body, np.zeros(1, np.uint32), block=64).by_opcode()
    wanted = {"add.u32": 2, "redux.sync.add.u32": 3, "sub.u32": 3, "ret": 2}
    assert {opcode: counts[opcode] for opcode in wanted} == wanted
