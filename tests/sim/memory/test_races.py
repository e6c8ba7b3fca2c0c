"""Data races in shared memory: found where they are, and nowhere else."""

from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError

pytestmark = pytest.mark.unit

START = """
.reg .b64 p; .reg .b32 t, n, x, y, z, w, warp, own, other, base; .reg .pred first;
.extern .shared .align 16 .b8 smem[];
mov.u32 t, %tid.x; shr.u32 warp, t, 5; mov.u32 base, smem; mad.lo.u32 own, t, 4, base;
xor.b32 other, t, 32; mad.lo.u32 other, other, 4, base; setp.eq.u32 first, warp, 0;
ld.param.u64 p, [p0];
"""


def run(run_kernel: Any, body: str, arch: str = "sm_80") -> None:
    run_kernel(
        f"{START}{body} ret;", np.zeros(4096, np.uint8), block=64, grid=3, shared=1024, arch=arch
    )


HALVES = """
.reg .b32 m; .reg .pred low; and.b32 m, t, 16; setp.eq.u32 low, m, 0;
selp.b32 m, 0xffff, 0xffff0000, low;
"""

RACES = {
    "write, read": "st.shared.b32 [own], t; ld.shared.b32 x, [other];",
    "read, write": """
        st.shared.b32 [own], t; bar.sync 0; ld.shared.b32 x, [other]; st.shared.b32 [own], t;""",
    "write, write": "st.shared.b32 [own], t; st.shared.b32 [other], t;",
    "write at once": "st.shared.b32 [base], t;",
    "the same at once, another before": """
        @first st.shared.b32 [base], t; @!first bra GO; bra END;
        GO: st.shared.b32 [base], 99; END: mov.u32 x, 99; st.shared.b32 [base], x;""",
    "the same, and something else beside it": """
        @first st.shared.v2.b32 [base], {7, 8}; @!first st.shared.v2.b32 [base], {7, 9};""",
    "the same, then read": """
        @first st.shared.b32 [base], 7; @!first st.shared.b32 [base], 7;
        ld.shared.b32 x, [base];""",
    "wide and narrow": """
        @first st.shared.v4.b32 [base], {t, t, t, t}; @!first st.shared.b8 [base+7], t;""",
    "no barrier after the first": """
        st.shared.b32 [own], t; bar.sync 0; ld.shared.b32 x, [own]; st.shared.b32 [own], x;
        ld.shared.b32 x, [other];""",
    "a warp's own barrier is not the block's": """
        st.shared.b32 [own], t; bar.warp.sync -1; ld.shared.b32 x, [other];""",
    "several readers": """
        @first st.shared.b32 [own], t; bar.sync 0; and.b32 x, t, 31; mad.lo.u32 x, x, 4, base;
        ld.shared.b32 y, [x]; @!first st.shared.b32 [x], y;""",
    "copy not waited for before the barrier": """
        @first cp.async.ca.shared.global [own], [p], 4; cp.async.commit_group; bar.sync 0;
        cp.async.wait_group 0; @!first ld.shared.b32 x, [other];""",
    "no barrier after the wait": """
        cp.async.ca.shared.global [own], [p], 4; cp.async.wait_all; ld.shared.b32 x, [other];""",
    "copy over what others still read": """
        st.shared.b32 [own], t; bar.sync 0; ld.shared.b32 x, [other];
        cp.async.ca.shared.global [own], [p], 4; cp.async.wait_all;""",
    "atomic after a plain write": "@first st.shared.b32 [base], t; red.shared.add.u32 [base], 1;",
    "volatile read after a plain write": """
        st.shared.b32 [own], t; ld.volatile.shared.b32 x, [other];""",
    "lanes: write, read": """
        st.shared.b32 [own], t; xor.b32 x, t, 1; mad.lo.u32 x, x, 4, base; ld.shared.b32 y, [x];""",
    "lanes: read, write": """
        st.shared.b32 [own], t; xor.b32 x, t, 1; mad.lo.u32 x, x, 4, base; bar.warp.sync -1;
        ld.shared.b32 y, [x]; st.shared.b32 [own], y;""",
    "lanes: write, write": """
        st.shared.b32 [own], t; xor.b32 x, t, 1; mad.lo.u32 x, x, 4, base; st.shared.b32 [x], t;""",
    "lanes: a part of a word": """
        st.shared.b32 [own], t; xor.b32 x, t, 1; mad.lo.u32 x, x, 4, base;
        ld.shared.b16 y, [x+2];""",
    "lanes: a vector over words": """
        st.shared.b32 [own], t; and.b32 x, t, -2; mad.lo.u32 x, x, 4, base;
        ld.shared.v2.b32 {y, z}, [x];""",
    "lanes: several readers": """
        and.b32 x, t, 32; mad.lo.u32 x, x, 4, base; and.b32 y, t, 31; setp.eq.u32 first, y, 0;
        @first st.shared.b32 [x], t; bar.warp.sync -1; ld.shared.b32 y, [x];
        @first st.shared.b32 [x], t;""",
    "lanes: a shuffle orders nothing": """
        st.shared.b32 [own], t; xor.b32 x, t, 1; mad.lo.u32 x, x, 4, base;
        shfl.sync.idx.b32 y, t, 0, 31, -1; ld.shared.b32 y, [x];""",
    "lanes: copy, wait": """
        cp.async.ca.shared.global [own], [p], 4; cp.async.wait_all; xor.b32 x, t, 1;
        mad.lo.u32 x, x, 4, base; ld.shared.b32 y, [x];""",
    "lanes: each half by itself": HALVES
    + """
        st.shared.b32 [own], t; bar.warp.sync m; xor.b32 x, t, 16; mad.lo.u32 x, x, 4, base;
        ld.shared.b32 y, [x];""",
    "lanes: one half alone": HALVES
    + """
        st.shared.b32 [own], t; @low bar.warp.sync 0xffff; xor.b32 x, t, 1;
        mad.lo.u32 x, x, 4, base; ld.shared.b32 y, [x];""",
    "lanes: a half reads, the other writes": HALVES
    + """
        st.shared.b32 [own], t; bar.warp.sync -1; ld.shared.b32 y, [own]; bar.warp.sync m;
        xor.b32 x, t, 16; mad.lo.u32 x, x, 4, base; @low st.shared.b32 [x], y;""",
    "lanes: a write after the half's barrier": HALVES
    + """
        st.shared.b32 [own], t; bar.warp.sync m; st.shared.b32 [own], t; xor.b32 x, t, 1;
        mad.lo.u32 x, x, 4, base; ld.shared.b32 y, [x];""",
    "lanes: told of one word of two": HALVES
    + """
        st.shared.b32 [own], t; @low bar.warp.sync 0xffff; and.b32 x, t, 17;
        setp.eq.u32 first, x, 1; @first st.shared.b32 [own], t;
        and.b32 x, t, -2; mad.lo.u32 x, x, 4, base; @low ld.shared.v2.b32 {y, z}, [x];""",
    "ldmatrix": """
        and.b32 x, t, 31; mad.lo.u32 x, x, 16, base; @first st.shared.v4.b32 [x], {t, t, t, t};
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {x, y, z, w}, [x];""",
}

ORDERED = {
    "barrier": "st.shared.b32 [own], t; bar.sync 0; ld.shared.b32 x, [other];",
    "two barriers": """
        st.shared.b32 [own], t; bar.sync 0; ld.shared.b32 x, [other]; bar.sync 0;
        st.shared.b32 [own], x;""",
    "own memory": "st.shared.b32 [own], t; ld.shared.b32 x, [own]; st.shared.b32 [own], x;",
    "reading together": "@first st.shared.b32 [base], t; bar.sync 0; ld.shared.b32 x, [base];",
    "neighbouring bytes": """
        and.b32 x, t, 1; mad.lo.u32 x, warp, 2, x; add.u32 x, x, base; st.shared.b8 [x], t;
        ld.shared.b8 y, [x];""",
    "lanes of a warp": """
        st.shared.b32 [own], t; xor.b32 x, t, 1; mad.lo.u32 x, x, 4, base; bar.warp.sync -1;
        ld.shared.b32 y, [x]; bar.warp.sync -1; st.shared.b32 [x], y;""",
    "neighbouring halves of a word": """
        mad.lo.u32 x, t, 2, base; st.shared.b16 [x], t; ld.shared.b16 y, [x];""",
    "a word that all lanes write": "@first st.shared.b32 [base], t;",
    "the same at once": "st.shared.v2.b32 [base], {7, 8};",
    "the same, one after the other": """
        @first st.shared.b32 [base], 7; @!first st.shared.b32 [base], 7; bar.sync 0;
        ld.shared.b32 x, [base];""",
    "lanes at the block's barrier": """
        st.shared.b32 [own], t; xor.b32 x, t, 1; mad.lo.u32 x, x, 4, base; bar.sync 0;
        ld.shared.b32 y, [x];""",
    "copy, wait, barrier": """
        cp.async.ca.shared.global [own], [p], 4; cp.async.wait_all; bar.sync 0;
        ld.shared.b32 x, [other];""",
    "barrier before the copy over": """
        st.shared.b32 [own], t; bar.sync 0; ld.shared.b32 x, [other]; bar.sync 0;
        cp.async.ca.shared.global [own], [p], 4; cp.async.wait_all;""",
    "volatile": "st.volatile.shared.b32 [base], t; ld.volatile.shared.b32 x, [base];",
    "atomics": """
        @first st.shared.b32 [base], t; bar.sync 0; red.shared.add.u32 [base], 1; bar.sync 0;
        ld.shared.b32 x, [base];""",
    "lanes of a half": HALVES
    + """
        st.shared.b32 [own], t; xor.b32 x, t, 1; mad.lo.u32 x, x, 4, base; bar.warp.sync m;
        ld.shared.b32 y, [x]; ld.shared.b32 z, [own]; bar.warp.sync m; st.shared.b32 [x], y;
        ld.shared.b32 y, [x]; bar.warp.sync m; ld.shared.b32 y, [own]; st.shared.b32 [own], y;
        bar.warp.sync -1; xor.b32 x, t, 16; mad.lo.u32 x, x, 4, base; ld.shared.b32 y, [x];""",
    "several readers of a half": HALVES
    + """
        and.b32 x, t, 48; mad.lo.u32 x, x, 4, base; and.b32 y, t, 15; setp.eq.u32 first, y, 0;
        @first st.shared.b32 [x], t; bar.warp.sync m; ld.shared.b32 y, [x]; bar.warp.sync m;
        ld.shared.b32 y, [x]; bar.warp.sync m; @first st.shared.b32 [x], t;""",
    "lanes told of both words": HALVES
    + """
        st.shared.b32 [own], t; bar.warp.sync m;
        and.b32 x, t, -2; mad.lo.u32 x, x, 4, base; ld.shared.v2.b32 {y, z}, [x];""",
    "lanes told by one that was told": HALVES
    + """
        and.b32 z, t, 31; setp.eq.u32 first, z, 0; and.b32 x, t, 32; mad.lo.u32 x, x, 4, base;
        @first st.shared.b32 [x], t; @low bar.warp.sync 0xffff; setp.ge.u32 low, z, 15;
        @low bar.warp.sync 0xffff8000; ld.shared.b32 y, [x];""",
    "lanes whose others have exited": HALVES
    + """
        st.shared.b32 [own], t; @!low ret; bar.warp.sync 0xffff; xor.b32 x, t, 16;
        mad.lo.u32 x, x, 4, base; ld.shared.b32 y, [x];""",
    "a lane's own words, first alone": """
        mad.lo.u32 x, t, 8, base; st.shared.v2.b32 [x], {t, t}; ld.shared.b32 y, [x];
        ld.shared.v2.b32 {y, z}, [x]; st.shared.b32 [x], t;""",
    "named barrier of all": "st.shared.b32 [own], t; bar.sync 3, 64; ld.shared.b32 x, [other];",
}


@pytest.mark.parametrize("body", RACES.values(), ids=RACES.keys())
def test_races(run_kernel: Any, body: str) -> None:
    with pytest.raises(SimulatorError, match=r"data race: (reads|writes) shared offset \d+, which"):
        run(run_kernel, body)


@pytest.mark.parametrize("body", ORDERED.values(), ids=ORDERED.keys())
def test_what_is_ordered(run_kernel: Any, body: str) -> None:
    run(run_kernel, body)


MBARRIER = "mbarrier.init.shared.b64 [base+512], 1;"


@pytest.mark.parametrize(
    ("name", "body"), [(name, body) for name, body in RACES.items() if "lanes: " in name]
)
def test_lanes_race_where_there_are_mbarriers(run_kernel: Any, name: str, body: str) -> None:
    with pytest.raises(SimulatorError, match=r"of the same warp (wrote|read) without"):
        run(run_kernel, f"setp.eq.u32 first, t, 0; @first {MBARRIER} {body}", "sm_90")


@pytest.mark.parametrize(
    ("name", "body"),
    [(name, body) for name, body in ORDERED.items() if "lanes" in name or "the same" in name],
)
def test_what_is_ordered_where_there_are_mbarriers(run_kernel: Any, name: str, body: str) -> None:
    run(run_kernel, f"setp.eq.u32 first, t, 0; @first {MBARRIER} {body}", "sm_90")


def test_the_other_warp_is_named(run_kernel: Any) -> None:
    message = r"reads shared offset 128, which warp 1 wrote without a barrier between"
    with pytest.raises(SimulatorError, match=message) as caught:
        run(run_kernel, RACES["write, read"])
    assert "block (0, 0, 0), thread (0, 0, 0) [warp 0, lane 0]" in str(caught.value)
