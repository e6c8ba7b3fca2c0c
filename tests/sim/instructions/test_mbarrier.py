"""mbarriers: phases, waiting, and the order that they make between warps."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.unit

START = """
.extern .shared .align 128 .b8 smem[];
.reg .b64 p, q, state; .reg .b32 t, w, x, y, m, base, own, other; .reg .pred done, first, lead;
mov.u32 t, %tid.x; shr.u32 w, t, 5; mov.u32 m, smem; add.u32 base, m, 64;
mad.lo.u32 own, t, 4, base; xor.b32 other, t, 32; mad.lo.u32 other, other, 4, base;
setp.eq.u32 first, t, 0; setp.eq.u32 lead, w, 0; ld.param.u64 p, [p0];
"""
INIT = """
@first mbarrier.init.shared.b64 [m], {count}; @first mbarrier.init.shared.b64 [m+8], {count};
fence.mbarrier_init.release.cluster; bar.sync 0;
"""
ARRIVE = "mbarrier.arrive.shared.b64 state, [m];"
STORE = "mad.wide.u32 p, t, 4, p; st.global.b32 [p], x;"


def wait(parity: object, at: str = "m", name: str = "WAIT") -> str:
    return f"""
    {name}: mbarrier.try_wait.parity.shared.b64 done, [{at}], {parity};
    @!done bra {name};
    """


def run(run_kernel: Any, body: str, count: int = 64, block: int = 64, grid: int = 3) -> Any:
    out = np.zeros(4096, np.uint32)
    text = START + INIT.format(count=count) + body + " ret;"
    run_kernel(text, out, block=block, grid=grid, shared=2048, arch="sm_90a")
    return out


def test_what_others_wrote_before_they_arrived(run_kernel: Any) -> None:
    body = f"st.shared.b32 [own], t; {ARRIVE} {wait(0)} ld.shared.b32 x, [other]; {STORE}"
    out = run(run_kernel, body)
    assert np.array_equal(out[:64], np.arange(64) ^ 32)


def test_a_parity_of_minus_one_is_odd(run_kernel: Any) -> None:
    body = (
        f"{ARRIVE} {wait(0)} {ARRIVE} mov.u32 x, -1; {wait('x', name='ODD')} mov.u32 x, 5; {STORE}"
    )
    assert (run(run_kernel, body)[:64] == 5).all()


def test_by_state(run_kernel: Any) -> None:
    body = f"""
    st.shared.b32 [own], t; {ARRIVE}
    AGAIN: mbarrier.test_wait.shared.b64 done, [m], state; @!done bra AGAIN;
    ld.shared.b32 x, [other]; {STORE}"""
    assert np.array_equal(run(run_kernel, body)[:64], np.arange(64) ^ 32)


def test_phases_follow_one_another(run_kernel: Any) -> None:
    """Two warps hand one word to and fro, each phase by the parity of its number."""
    body = f"""
    .reg .b32 iteration, parity; .reg .pred mine, more; mov.u32 iteration, 0; mov.u32 x, 0;
    @first st.shared.b32 [base], 0; bar.sync 0;
    LOOP: and.b32 parity, iteration, 1; setp.eq.u32 mine, w, parity;
    @!mine bra PASS;
    ld.shared.b32 x, [base]; add.u32 x, x, 3; bar.warp.sync -1;
    @!mine bra PASS;
    and.b32 y, t, 31; setp.eq.u32 mine, y, 0;
    @mine st.shared.b32 [base], x;
    PASS: {ARRIVE}
    W: mbarrier.try_wait.parity.shared.b64 done, [m], parity; @!done bra W;
    add.u32 iteration, iteration, 1; setp.lt.u32 more, iteration, 7; @more bra LOOP;
    ld.shared.b32 x, [base]; {STORE}"""
    assert (run(run_kernel, body)[:64] == 21).all()


def test_a_ring_of_stages(run_kernel: Any) -> None:
    """Warp 0 fills two stages, warp 1 empties them: full and empty mbarriers, no other barrier."""
    text = f"""
    .reg .b32 iteration, stage, full, empty, parity, sum, free, at; .reg .pred more;
    @first mbarrier.init.shared.b64 [m+16], 32; @first mbarrier.init.shared.b64 [m+24], 32;
    bar.sync 0; mov.u32 iteration, 0; mov.u32 sum, 0; and.b32 y, t, 31;
    LOOP: and.b32 stage, iteration, 1; shr.u32 parity, iteration, 1; and.b32 parity, parity, 1;
    mad.lo.u32 full, stage, 8, m; add.u32 empty, full, 16;
    mad.lo.u32 at, stage, 128, base; mad.lo.u32 at, y, 4, at;
    @!lead bra TAKE;
    xor.b32 free, parity, 1;
    E: mbarrier.try_wait.parity.shared.b64 done, [empty], free; @!done bra E;
    mad.lo.u32 x, iteration, 100, y; st.shared.b32 [at], x;
    mbarrier.arrive.shared.b64 _, [full]; bra NEXT;
    TAKE:
    F: mbarrier.try_wait.parity.shared.b64 done, [full], parity; @!done bra F;
    ld.shared.b32 x, [at]; add.u32 sum, sum, x; mbarrier.arrive.shared.b64 _, [empty];
    NEXT: add.u32 iteration, iteration, 1; setp.lt.u32 more, iteration, 5; @more bra LOOP;
    mov.u32 x, sum; {STORE}"""
    out = run(run_kernel, text, count=32)
    assert np.array_equal(out[32:64], 1000 + 5 * np.arange(32))


def test_counts_and_drops(run_kernel: Any) -> None:
    """Warp 1 leaves after the first phase; later ones need warp 0 alone."""
    body = f"""
    @lead bra STAY; mbarrier.arrive_drop.shared.b64 _, [m]; bra OUT;
    STAY: {ARRIVE} {wait(0, name="A")} {ARRIVE} {wait(1, name="B")}
    OUT: mov.u32 x, 5; {STORE}"""
    assert (run(run_kernel, body)[:64] == 5).all()
    body = f"@first mbarrier.arrive.shared.b64 state, [m], 64; {wait(0)} mov.u32 x, 5; {STORE}"
    assert (run(run_kernel, body)[:64] == 5).all()


def test_when_all_have_dropped_the_phase_ends(run_kernel: Any) -> None:
    body = f"mbarrier.arrive_drop.shared.b64 _, [m]; {wait(0)} mov.u32 x, 5; {STORE}"
    assert (run(run_kernel, body)[:64] == 5).all()


def test_bytes_count_too(run_kernel: Any) -> None:
    body = f"""
    @first mbarrier.arrive.expect_tx.shared.b64 _, [m], 48;
    @first mbarrier.complete_tx.shared.b64 [m], 32; @first mbarrier.complete_tx.shared.b64 [m], 16;
    {wait(0)} mov.u32 x, 7; {STORE}"""
    assert (run(run_kernel, body, count=1)[:64] == 7).all()


def test_a_generic_address(run_kernel: Any) -> None:
    body = f"""
    .reg .b64 g; cvt.u64.u32 g, m; cvta.shared.u64 g, g; mbarrier.arrive.b64 state, [g];
    AGAIN: mbarrier.try_wait.b64 done, [g], state; @!done bra AGAIN; mov.u32 x, 3; {STORE}"""
    assert (run(run_kernel, body)[:64] == 3).all()


def test_copies_of_threads_arrive_when_they_have_landed(run_kernel: Any) -> None:
    body = f"""
    mad.wide.u32 q, t, 4, p; cp.async.ca.shared.global [own], [q], 4;
    cp.async.mbarrier.arrive{{noinc}}.shared.b64 [m];
    {{more}} {wait(0)} ld.shared.b32 x, [other]; add.u32 x, x, 1; bar.sync 0; {STORE}"""
    for noinc, more in (".noinc", ""), ("", ARRIVE):
        assert (run(run_kernel, body.format(noinc=noinc, more=more), grid=1)[:64] == 1).all()
