"""Clusters of blocks: each other's shared memory, their barrier, copies that go to several."""

from typing import Any

import numpy as np
import pytest
from sim.conftest import Buffer

from cuevo.sim import SimExecutor

pytestmark = pytest.mark.unit

START = """
.extern .shared .align 1024 .b8 smem[];
.reg .b64 a, d, g; .reg .b32 t, r, s, x, y, m, base, own, there; .reg .pred done, first, lead;
mov.u32 t, %tid.x; mov.u32 base, smem; add.u32 m, base, 2048; mad.lo.u32 own, t, 4, base;
setp.eq.u32 first, t, 0; mov.u32 r, %cluster_ctarank; setp.eq.u32 lead, r, 0;
xor.b32 s, r, 1; mapa.shared::cluster.u32 there, own, s; and.pred first, first, first;
ld.param.u64 d, [p0]; ld.param.u64 a, [p1];
"""
SYNC = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
OUT = """
.reg .b32 n; mov.u32 n, %ctaid.x; mad.lo.u32 n, n, 64, t; mad.wide.u32 d, n, 4, d;
st.global.b32 [d], x;
"""
INIT = f"""
@first mbarrier.init.shared.b64 [m], {{count}}; fence.mbarrier_init.release.cluster; {SYNC}
"""
WAIT = "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [m], 0; @!done bra W;"


def run(body: str, *, grid: Any = (4, 1, 1), cluster: str = "2, 1, 1") -> tuple[Any, Any]:
    out = np.zeros(64 * int(np.prod(grid)), np.uint32)
    source = np.arange(4096, dtype=np.uint32) * 7
    text = f"""
    .version 8.0
    .target sm_90a
    .address_size 64
    .visible .entry test(.param .u64 p0, .param .u64 p1)
    .reqnctapercluster {cluster}
    {{
    {START} {body} ret;
    }}"""
    kernel = SimExecutor("sm_90a").load_text("test", text)
    params = np.array([out.ctypes.data, source.ctypes.data], np.uint64).tobytes()
    kernel.launch(grid, (64, 1, 1), 4096, params, buffers=[Buffer(out), Buffer(source, True)])
    return out, source


def test_a_block_reads_what_the_other_wrote() -> None:
    out, _ = run(f"""
    mad.lo.u32 x, r, 1000, t; st.shared.b32 [own], x; {SYNC}
    ld.shared::cluster.b32 x, [there]; {SYNC} {OUT}""")
    expected = [1000 * (1 - block % 2) + np.arange(64) for block in range(4)]
    assert np.array_equal(out, np.concatenate(expected))


def test_a_block_writes_to_the_other_and_tells_its_mbarrier() -> None:
    out, _ = run(f"""{INIT.format(count=64)}
    mad.lo.u32 x, r, 1000, t; st.shared::cluster.b32 [there], x;
    mapa.shared::cluster.u32 y, m, s; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [y];
    {WAIT} ld.shared.b32 x, [own]; {SYNC} {OUT}""")
    expected = [1000 * (1 - block % 2) + np.arange(64) for block in range(4)]
    assert np.array_equal(out, np.concatenate(expected))


GENERIC = """
cvt.u64.u32 g, own; cvta.shared.u64 g, g; mapa.u64 g, g, s;
"""


def test_generic_addresses_of_the_other_block() -> None:
    out, _ = run(f"""{GENERIC} mul.lo.u32 x, r, 1000; add.u32 x, x, t; st.b32 [g], x; {SYNC}
    ld.shared.b32 x, [own]; add.u32 x, x, 5; bar.sync 0; st.shared.b32 [own], x; {SYNC}
    ld.b32 x, [g]; {SYNC} {OUT}""")
    expected = [1000 * (block % 2) + np.arange(64) + 5 for block in range(4)]
    assert np.array_equal(out, np.concatenate(expected))


def test_generic_atomics_in_the_other_block() -> None:
    out, _ = run(f"""{GENERIC} st.shared.b32 [own], t; {SYNC}
    atom.add.u32 x, [g], 100; add.u32 x, x, 1; red.max.u32 [g], 130; {SYNC}
    ld.shared.b32 y, [own]; mad.lo.u32 x, y, 1000, x; {OUT}""")
    lanes = np.arange(64)
    assert np.array_equal(out, np.tile(1000 * np.maximum(lanes + 100, 130) + lanes + 1, 4))


def test_each_lane_to_a_block_of_its_own_choice() -> None:
    out, _ = run(f"""{GENERIC} and.b32 s, t, 1; cvt.u64.u32 g, own; cvta.shared.u64 g, g;
    mapa.u64 g, g, s; mad.lo.u32 x, r, 1000, t; st.shared.b32 [own], x; {SYNC}
    ld.b32 x, [g]; {SYNC} {OUT}""")
    assert np.array_equal(out, np.tile(1000 * (np.arange(64) % 2) + np.arange(64), 4))


def test_whose_shared_memory_a_generic_address_is_of() -> None:
    out, _ = run(f"""{GENERIC} .reg .b64 h; .reg .pred p, q; cvt.u64.u32 h, own;
    cvta.shared.u64 h, h; mov.u32 x, 0;
    isspacep.shared::cluster p, g; isspacep.shared::cta q, h; and.pred p, p, q; @p add.u32 x, x, 1;
    isspacep.shared::cta p, g; @p add.u32 x, x, 2; isspacep.global p, g; @p add.u32 x, x, 4; {OUT}
    """)
    assert (out == 1).all()


def test_lanes_are_ordered_in_the_other_block_too() -> None:
    out, _ = run(f"""{SYNC} mov.u32 x, 0; @lead bra END;
    st.shared::cluster.b32 [there], t; bar.warp.sync -1;
    xor.b32 y, there, 4; ld.shared::cluster.b32 x, [y]; END: {SYNC} {OUT}""")
    expected = [block % 2 * (np.arange(64) ^ 1) for block in range(4)]
    assert np.array_equal(out, np.concatenate(expected))


def test_lanes_of_both_blocks_take_turns() -> None:
    """One block writes what other lanes of the other block have read, as it tells."""
    out, _ = run(f"""{INIT.format(count=64)} mapa.shared::cluster.u32 y, m, s;
    st.shared.b32 [own], t; {SYNC} mov.u32 x, 0; @lead bra WRITE;
    xor.b32 x, own, 4; ld.shared.b32 x, [x];
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [y]; bra END;
    WRITE: {WAIT} st.shared::cluster.b32 [there], t;
    END: {SYNC} {OUT}""")
    expected = [block % 2 * (np.arange(64) ^ 1) for block in range(4)]
    assert np.array_equal(out, np.concatenate(expected))


def test_ranks_and_places() -> None:
    """Clusters of 2 x 2 blocks in a grid of 4 x 2: each block writes its numbers to its place."""
    out, _ = run("""
    .reg .b32 p, q; mov.u32 x, r; mov.u32 p, %clusterid.x; mad.lo.u32 x, p, 10, x;
    mov.u32 p, %cluster_ctaid.y; mad.lo.u32 x, p, 100, x;
    mov.u32 p, %nclusterid.x; mad.lo.u32 x, p, 1000, x;
    mov.u32 p, %cluster_nctarank; mad.lo.u32 x, p, 10000, x;
    getctarank.shared::cluster.u32 p, there; mad.lo.u32 x, p, 100000, x;
    cvt.u64.u32 g, there; cvta.shared::cluster.u64 g, g; getctarank.u64 p, g;
    mad.lo.u32 x, p, 1000000, x;
    mov.u32 p, %ctaid.y; mov.u32 q, %ctaid.x; mad.lo.u32 q, p, 4, q;
    mad.lo.u32 q, q, 64, t; mad.wide.u32 d, q, 4, d; st.global.b32 [d], x;""",
    grid=(4, 2, 1), cluster="2, 2, 1")  # fmt: skip
    for y in range(2):
        for x in range(4):
            rank = x % 2 + 2 * y
            other = rank ^ 1
            number = 1100000 * other + 42000 + 100 * y + 10 * (x // 2) + rank
            assert (out.reshape(2, 4, 64)[y, x] == number).all(), (x, y)


LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


def test_a_copy_to_all_blocks() -> None:
    out, source = run(f"""{INIT.format(count=1)}
    @first mbarrier.arrive.expect_tx.shared.b64 _, [m], 256; .reg .b16 both; mov.b16 both, 3;
    and.pred first, first, lead; @!first bra GO;
    {LOAD}.multicast::cluster [base], [a], 256, [m], both;
    GO: {WAIT} ld.shared.b32 x, [own]; {SYNC} {OUT}""")
    assert np.array_equal(out, np.tile(source[:64], 4))


def test_a_copy_from_block_to_block() -> None:
    copy = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    out, _ = run(f"""{INIT.format(count=1)}
    @first mbarrier.arrive.expect_tx.shared.b64 _, [m], 256;
    mad.lo.u32 x, r, 1000, t; st.shared.b32 [own+512], x; fence.proxy.async; bar.sync 0;
    mapa.shared::cluster.u32 y, m, s; mapa.shared::cluster.u32 there, base, s;
    @first {copy} [there], [base+512], 256, [y];
    {WAIT} ld.shared.b32 x, [own]; {SYNC} {OUT}""")
    expected = [1000 * (1 - block % 2) + np.arange(64) for block in range(4)]
    assert np.array_equal(out, np.concatenate(expected))


def test_grids_are_made_of_clusters() -> None:
    with pytest.raises(ValueError, match=r"not made of clusters of \(2, 1, 1\)"):
        run("", grid=(3, 1, 1))
    with pytest.raises(ValueError, match="16 blocks in a cluster; 8 are the most"):
        run("", grid=(16, 1, 1), cluster="16, 1, 1")
