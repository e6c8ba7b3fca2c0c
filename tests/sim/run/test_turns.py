"""Threads that wait for others by looking at memory; and launches that never end."""

import re
import struct
from typing import Any

import numpy as np
import pytest
from sim.conftest import Buffer, kernel_text

from cuevo.errors import SimulatorError
from cuevo.sim import Budget, SimExecutor

pytestmark = pytest.mark.unit

START = """
.reg .b64 p, q, at; .reg .b32 t, n, x, y, z, lane, warp; .reg .pred c, d, first, lead;
mov.u32 t, %tid.x; mov.u32 n, %ctaid.x; and.b32 lane, t, 31; shr.u32 warp, t, 5;
setp.eq.u32 first, warp, 0; setp.eq.u32 lead, lane, 0;
ld.param.u64 p, [p0]; ld.param.u64 q, [p1];
"""
BUDGET = Budget(instructions=300_000)


def run(
    body: str, words: int = 64, *, grid: int = 1, block: int = 64, arch: str = "sm_80", **more: Any
) -> Any:
    """`words` integers, zeros at first, at q; those at p are flags and locks."""
    flags, out = np.zeros(64, np.uint32), np.zeros(words, np.uint32)
    executor = SimExecutor(arch, budget=more.get("budget", BUDGET))
    kernel = executor.load_text("test", kernel_text(f"{START}{body}\nret;", 2, arch))
    kernel.launch(
        (grid, 1, 1),
        (block, 1, 1),
        more.get("shared", 0),
        struct.pack("<2Q", flags.ctypes.data, out.ctypes.data),
        buffers=[Buffer(flags), Buffer(out)],
    )
    return out


def test_a_warp_waits_for_the_flag_of_another() -> None:
    out = run("""
    @!first bra TELL;
    LOOK: ld.acquire.gpu.global.b32 x, [p]; setp.eq.u32 c, x, 0; @c bra LOOK;
    bra KEEP;
    TELL: mov.b32 x, 7; @lead st.release.gpu.global.b32 [p], x;
    KEEP: bar.sync 0; mad.wide.u32 at, t, 4, q; st.global.b32 [at], x;
    """)
    assert (out == 7).all()


def test_blocks_wait_for_later_ones() -> None:
    out = run(
        """
    setp.eq.u32 d, n, 5; mov.b32 y, 1; @d bra ADD; mad.wide.u32 at, n, 4, p;
    LOOK: ld.volatile.global.b32 y, [at+4]; setp.eq.u32 c, y, 0; @c bra LOOK;
    ADD: add.u32 y, y, 1; mad.wide.u32 at, n, 4, p; bar.warp.sync -1;
    @lead st.volatile.global.b32 [at], y; mad.wide.u32 at, n, 4, q; @lead st.global.b32 [at], y;
    """,
        6,
        grid=6,
        block=32,
    )
    assert out.tolist() == [7, 6, 5, 4, 3, 2]


LOCK = "LOCK: atom.acquire.gpu.global.cas.b32 x, [p], 0, 1; setp.ne.u32 c, x, 0; @c bra LOCK;"
ADD = "ld.volatile.global.b32 y, [q]; add.u32 y, y, 1; st.volatile.global.b32 [q], y;"
FREE = "atom.release.gpu.global.exch.b32 x, [p], 0;"


def test_a_lock_for_a_thread_of_each_warp() -> None:
    out = run(f"@!lead bra DONE; {LOCK} {ADD} {FREE} DONE: bar.sync 0;", 1, grid=3, block=128)
    assert out[0] == 12


@pytest.mark.parametrize("after", ["", "bar.warp.sync -1;", "bar.sync 0;"])
def test_a_lock_for_the_lanes_of_a_warp(after: str) -> None:
    """The one that has it stands above those that look."""
    assert run(f"{LOCK} {ADD} {FREE} {after}", 1)[0] == 64


def test_a_lock_that_is_tried_for() -> None:
    out = run(
        f"""
    TRY: atom.global.cas.b32 x, [p], 0, 1; setp.ne.u32 c, x, 0; @c bra AGAIN;
    {ADD} {FREE} bra DONE;
    AGAIN: bra TRY;
    DONE: shfl.sync.idx.b32 x, lane, 3, 31, -1; mad.wide.u32 at, t, 4, q; st.global.b32 [at+4], x;
    """,
        65,
    )
    assert out[0] == 64 and (out[1:] == 3).all()


def test_lanes_wait_for_a_lane_behind_a_shuffle() -> None:
    """Those that run ahead stop where they need the others."""
    out = run("""
    @lead bra WAIT; bra TELL;
    WAIT: ld.volatile.global.b32 x, [p]; setp.eq.u32 c, x, 0; @c bra WAIT;
    bra MEET;
    TELL: setp.eq.u32 d, lane, 9; @d st.volatile.global.b32 [p], 4;
    MEET: shfl.sync.bfly.b32 x, lane, 1, 31, -1; mad.wide.u32 at, t, 4, q; st.global.b32 [at], x;
    """)
    assert out.tolist() == [lane ^ 1 for lane in range(32)] * 2


@pytest.mark.parametrize("between", ["", "shfl.sync.bfly.b32 z, y, 1, 31, -1;", "bar.sync 0;"])
def test_lanes_of_long_loops_meet_again(between: str) -> None:
    out = run(f"""
    mul.lo.u32 x, lane, 40; mad.lo.u32 x, warp, 99, x; mov.b32 y, 0; mov.b32 z, 0;
    LOOP: setp.ge.u32 c, y, x; @c bra DONE; add.u32 y, y, 1; bra LOOP;
    DONE: mov.b32 z, y; {between} mad.wide.u32 at, t, 4, q; st.global.b32 [at], z;
    """)
    expected = np.array([40 * lane + 99 * warp for warp in range(2) for lane in range(32)])
    if "shfl" in between:
        expected = expected.reshape(2, 16, 2)[:, :, ::-1].reshape(-1)
    assert np.array_equal(out, expected)


def test_who_looks_at_memory_lets_copies_come() -> None:
    """One warp waits for memory, the other for a copy, and tells the first."""
    out = run(
        """
    .extern .shared .align 128 .b8 smem[]; .reg .b32 m; mov.u32 m, smem;
    setp.eq.u32 d, t, 0; @d mbarrier.init.shared.b64 [m], 1; fence.mbarrier_init.release.cluster;
    bar.sync 0; @!first bra FETCH;
    LOOK: ld.volatile.global.b32 x, [p]; setp.eq.u32 c, x, 0; @c bra LOOK;
    bra DONE;
    FETCH: @!lead bra WAIT; mbarrier.arrive.expect_tx.shared.b64 _, [m], 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [m+128], [p+128], 128, [m];
    WAIT: mbarrier.try_wait.parity.shared.b64 c, [m], 0; @!c bra WAIT;
    @lead st.volatile.global.b32 [p], 3; mov.b32 x, 3;
    DONE: mad.wide.u32 at, t, 4, q; st.global.b32 [at], x;
    """,
        arch="sm_90",
        shared=512,
    )
    assert (out == 3).all()


# -- Launches without end --------------------------------------------------------------------------

ENDLESS = """@!first bra TELL;
LOOK: ld.volatile.global.b32 x, [p]; setp.eq.u32 c, x, 0;
@c bra LOOK;
TELL: bar.sync 0;"""


def test_an_endless_wait_says_where_warps_stand() -> None:
    with pytest.raises(SimulatorError, match="the kernel does not end in 5,000 instr") as caught:
        run(ENDLESS, budget=Budget(instructions=5000), block=128)
    lines = kernel_text(f"{START}{ENDLESS}", 2).splitlines()
    look, tell = (
        next(number for number, line in enumerate(lines, 1) if line.startswith(label))
        for label in ("LOOK", "TELL")
    )
    assert re.search(
        rf"1 run at test \(rendered text\):({look}|{look + 1}), "
        rf"3 at test \(rendered text\):{tell}: barrier 0 has 96 of 128 threads",
        str(caught.value),
    )


def test_an_endless_wait_is_cut_off_by_the_clock() -> None:
    with pytest.raises(SimulatorError, match=r"does not end in 0\.05 seconds"):
        run(ENDLESS, budget=Budget(seconds=0.05))


@pytest.mark.parametrize(("name", "value"), [("instructions", 0), ("seconds", -1.0)])
def test_budgets_are_positive(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"a budget of {value} {name}; it must be positive"):
        Budget(**{name: value})
