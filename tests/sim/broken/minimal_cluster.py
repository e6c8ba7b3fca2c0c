"""Kernels of a few lines with one mistake each around clusters of two blocks. How they are written:
`minimal`.
"""

from sim.broken.minimal import Minimal
from sim.broken.minimal_bulk import LOAD, PUT
from sim.broken.minimal_mbarrier import START, TOLD, WAIT

SYNC = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
PEER = """
.reg .b32 r, s, there, away; .reg .b16 blocks; .reg .pred rank0; mov.u32 r, %cluster_ctarank;
xor.b32 s, r, 1; mapa.shared::cluster.u32 there, own, s; mapa.shared::cluster.u32 away, bars, s;
setp.eq.u32 rank0, r, 0; mov.b16 blocks, 3;
"""
STORE, READ = "st.shared.b32 [own], t;", "ld.shared::cluster.b32 x, [there];"
TELL = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [away];"
MULTICAST = f"{LOAD}.multicast::cluster"
EXPECT = "@lead mbarrier.arrive.expect_tx.shared.b64 _, [m], 1024;"
GO = f"@lead {MULTICAST} [tile], [p], 1024, [m], blocks;"


def kernel(body: str, message: str, thread: tuple[int, int] | None = (0, 0)) -> Minimal:
    return Minimal(f"{START} {PEER} {body}", message, thread, "sm_90a", cluster=2)


def init(count: int, sync: str = SYNC) -> str:
    return f"@lead mbarrier.init.shared.b64 [m], {count}; {TOLD} {sync}"


BARRIERS = {
    "no barrier before the other's memory is read": kernel(
        f"""
        {STORE} <<{SYNC} => >>
        {READ} // here
        {SYNC}
        """,
        "data race: reads shared offset [0-9]+, which warp 0 of the cluster's block 1 wrote",
    ),
    "no barrier before the other's memory is read by a generic address": kernel(
        f"""
        .reg .b64 g; cvt.u64.u32 g, own; cvta.shared.u64 g, g; mapa.u64 g, g, s;
        {STORE} <<{SYNC} => >>
        ld.b32 x, [g]; // here
        {SYNC}
        """,
        "data race: reads shared offset [0-9]+, which warp 0 of the cluster's block 1 wrote",
    ),
    "exits while another block still counts in its memory by generic addresses": kernel(
        f"""
        .reg .b64 g; cvt.u64.u32 g, own; cvta.shared.u64 g, g; mapa.u64 g, g, s;
        {STORE} {SYNC} red.add.u32 [g], 1; <<{SYNC} => >>
        ret; // here
        """,
        "the block exits, and nothing says that warp 0 of the cluster's block 1 no longer reaches",
        None,
    ),
    "a barrier of the block": kernel(
        f"""
        {STORE} <<{SYNC} => bar.sync 0;>>
        {READ} // here
        {SYNC}
        """,
        "data race: reads shared offset [0-9]+, which warp 0 of the cluster's block 1 wrote",
    ),
    "a barrier that releases nothing": kernel(
        f"""
        {STORE} barrier.cluster.arrive.<<release => relaxed>>.aligned;
        barrier.cluster.wait.acquire.aligned;
        {READ} // here
        {SYNC}
        """,
        "data race: reads shared offset [0-9]+, which warp 0 of the cluster's block 1 wrote",
    ),
    "no barrier before the other's memory is written over": kernel(
        f"""
        {STORE} {SYNC} {READ} <<{SYNC} => >>
        {STORE} // here
        {SYNC}
        """,
        "data race: writes shared offset [0-9]+, which warp 0 of the cluster's block 1 read",
    ),
    "arrives twice": kernel(
        """
        barrier.cluster.arrive.aligned; <<barrier.cluster.wait.aligned; => >>
        barrier.cluster.arrive.aligned; // here
        barrier.cluster.wait.aligned;
        """,
        "arrives at the barrier of the cluster again before it has waited",
    ),
    "waits without having arrived": kernel(
        """
        <<barrier.cluster.arrive.aligned; => >>
        barrier.cluster.wait.aligned; // here
        """,
        "waits at the barrier of the cluster, and has not arrived there",
    ),
    "one does not come": kernel(
        """
        <<=> @!rank0 bra LATE;>> barrier.cluster.arrive.aligned;
        barrier.cluster.wait.aligned; bra END;
        LATE: bar.sync 0, 96; // here
        END:
        """,
        "deadlock.*the barrier of a cluster",
        None,
    ),
    "no barrier between the lanes": kernel(
        f"""
        {SYNC} st.shared::cluster.b32 [there], t; <<bar.warp.sync -1; => >> xor.b32 y, there, 16;
        ld.shared::cluster.b32 x, [y]; // here
        {SYNC}
        """,
        "data race: reads shared offset [0-9]+, which lane 1 of the same warp wrote without",
    ),
    "an exit while it is read": kernel(
        f"""
        {STORE} {SYNC} {READ} <<{SYNC} => >>
        ret; // here
        """,
        "the block exits, and nothing says that warp 0 of the cluster's block 1 no longer reaches",
    ),
    "an exit before it is read": kernel(
        f"""
        {STORE} {SYNC} @rank0 bra TAKE; <<{SYNC} => >> exit;
        TAKE: mov.u32 x, 0;
        {READ} // here
        {SYNC}
        """,
        "shared memory of a block of the cluster that has exited",
    ),
    "an exit before it is told of": kernel(
        f"""
        {init(64)} @rank0 bra TAKE; {TELL} bra END;
        TAKE: <<{WAIT} => >>
        exit; // here
        END:
        """,
        "the block exits, and nothing says that warp 0 of the cluster's block 1 no longer reaches",
    ),
}

PEERS = {
    "no such rank": kernel(
        """
        mapa.shared::cluster.u32 there, own, <<s => 2>>; // here
        """,
        "a rank in a cluster of 2 blocks",
    ),
    "the own rank": kernel(
        f"""
        {init(64)} st.shared::cluster.b32 [there], t;
        mapa.shared::cluster.u32 away, m, <<s => r>>; {TELL} {WAIT}
        ld.shared.b32 x, [own]; // here
        {SYNC}
        """,
        "data race: reads shared offset [0-9]+, which warp 0 of the cluster's block 1 wrote",
    ),
    "told before it is written": kernel(
        f"""
        {init(64)} <<st.shared::cluster.b32 [there], t; {TELL}
        => {TELL} st.shared::cluster.b32 [there], t;>> {WAIT}
        ld.shared.b32 x, [own]; // here
        {SYNC}
        """,
        "data race: reads shared offset [0-9]+, which warp 0 of the cluster's block 1 wrote",
    ),
    "an mbarrier that the other block does not know": kernel(
        f"""
        {init(64, f"<<{SYNC} => bar.sync 0;>>")}
        {TELL} // here
        {SYNC}
        """,
        "data race: reads shared offset [0-9]+, which warp 0 of the cluster's block 1 wrote",
    ),
    "an mbarrier beyond the other block's": kernel(
        f"""
        {init(64)} add.u32 away, away, <<0 => 16>>;
        {TELL} // here
        {SYNC}
        """,
        "there is no mbarrier at this address",
    ),
    "an address of a block that there is not": kernel(
        f"""
        {init(64)} add.u32 away, away, <<0 => 0x5000000>>;
        {TELL} // here
        {SYNC}
        """,
        "a shared address of block 6 of a cluster of 2",
        (0, 0),
    ),
    "a state of another block": kernel(
        f"""
        {init(64)}
        {TELL.replace("_", "<<_ => state>>")} // here
        {SYNC}
        """,
        "an arrival in another block gives no state: write _",
        None,
    ),
    "an address of another block where the own is meant": kernel(
        f"""
        {init(64)}
        mbarrier.arrive.release.cta.shared::cta.b64 _, [<<m => away>>]; // here
        {SYNC}
        """,
        "is outside of the block's",
    ),
}

HAND_OVER = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
_FILLED = f"{PUT} fence.proxy.async; bar.sync 0;"
HANDED_OVER = {
    "an exit while it is read": kernel(
        f"""
        {init(1)} {_FILLED} mapa.shared::cluster.u32 x, tile, s; @rank0 bra GIVE;
        {EXPECT} {WAIT} {SYNC} exit;
        GIVE: @lead {HAND_OVER} [x+1024], [tile], 1024, [away]; <<{SYNC} => >>
        exit; // here
        """,
        "the block exits while an asynchronous copy still reads its shared memory",
    ),
    "an exit before it has come": kernel(
        f"""
        {init(1)} {_FILLED} mapa.shared::cluster.u32 x, tile, s; @rank0 bra TAKE;
        @lead {HAND_OVER} [x+1024], [tile], 1024, [away]; {SYNC} exit;
        TAKE: {EXPECT} <<{WAIT} => >>
        exit; // here
        """,
        "the block exits while an asynchronous copy to its shared memory is under way",
        None,
    ),
    "written over while it is read": kernel(
        f"""
        {init(1)} {_FILLED} mapa.shared::cluster.u32 x, tile, s; {EXPECT}
        @lead {HAND_OVER} [x+1024], [tile], 1024, [away]; <<{WAIT} {SYNC} => >>
        st.shared.b32 [w], t; // here
        {WAIT.replace("W", "V")} {SYNC}
        """,
        "writes shared offset 0, which an asynchronous instruction still reads",
    ),
    "to the own mbarrier": kernel(
        f"""
        {init(1)} {_FILLED} mapa.shared::cluster.u32 x, tile, s; {EXPECT}
        mapa.shared::cluster.u32 away, m, <<s => r>>;
        @lead {HAND_OVER} [x+1024], [tile], 1024, [away]; {WAIT}
        ld.shared.b32 y, [tile+1024]; // here
        {SYNC}
        """,
        "data race: reads shared offset 1024, which an asynchronous copy wrote without a barrier",
    ),
}

MULTICASTS = {
    "to no block": kernel(
        f"""
        {init(1)} {EXPECT} and.pred lead, lead, rank0; <<=> mov.b16 blocks, 0;>>
        {GO} // here
        {WAIT} {SYNC}
        """,
        "0x0 are no blocks of the cluster",
    ),
    "to a block that there is not": kernel(
        f"""
        {init(1)} {EXPECT} and.pred lead, lead, rank0; <<=> mov.b16 blocks, 7;>>
        {GO} // here
        {WAIT} {SYNC}
        """,
        "0x7 are no blocks of the cluster",
    ),
    "to one block of two": kernel(
        f"""
        {init(1)} {EXPECT} and.pred lead, lead, rank0; <<=> mov.b16 blocks, 1;>> {GO}
        W: mbarrier.try_wait.parity.shared.b64 done, [m], 0; // here
        @!done bra W; {SYNC}
        """,
        "deadlock.*lacks 0 of 1 arrivals and 1024 bytes",
        None,
    ),
    "by both blocks": kernel(
        f"""
        {init(1)} {EXPECT} <<and.pred lead, lead, rank0; => >>
        {GO} // here
        {WAIT} {SYNC}
        """,
        "asynchronous write at shared offset 0, to which an asynchronous copy is still in flight",
        None,
    ),
    "to mbarriers that are not known": kernel(
        f"""
        {init(1, f"<<{SYNC} => bar.sync 0;>>")} {EXPECT} and.pred lead, lead, rank0;
        {GO} // here
        {WAIT} {SYNC}
        """,
        "data race: asynchronously works on shared offset .*, which warp 0 of the cluster's block",
    ),
    "to mbarriers that TMA is not told of": kernel(
        f"""
        @lead mbarrier.init.shared.b64 [m], 1; <<{TOLD} => >> {SYNC} {EXPECT}
        and.pred lead, lead, rank0;
        {GO} // here
        {WAIT} {SYNC}
        """,
        "asynchronously works on shared offset .* without a fence.proxy.async between",
    ),
    "to one who does not expect it": kernel(
        f"""
        {init(1)} <<{EXPECT} => @rank0 bra ON; bra WAIT; ON: {EXPECT} WAIT:>>
        and.pred lead, lead, rank0; {GO}
        W: mbarrier.try_wait.parity.shared.b64 done, [m], 0; // here
        @!done bra W; {SYNC}
        """,
        "deadlock.*lacks 1 of 1 arrivals and has 1024 bytes that nobody expects",
        None,
    ),
    "over what the other block still reads": kernel(
        f"""
        {init(1)} mad.lo.u32 w, t, 16, tile; st.shared.b32 [w], t; fence.proxy.async; {EXPECT}
        {SYNC} <<ld.shared.b32 x, [w]; {SYNC} => {SYNC} ld.shared.b32 x, [w];>>
        and.pred lead, lead, rank0;
        {GO} // here
        {WAIT} {SYNC}
        """,
        "data race: asynchronously writes shared offset .*, which warp . of the cluster's block",
    ),
    "to a block that has exited": kernel(
        f"""
        {init(1)} <<=> @!rank0 exit;>> {EXPECT} and.pred lead, lead, rank0;
        {GO} // here
        {WAIT} {SYNC}
        """,
        "shared memory of a block of the cluster that has exited",
    ),
    "an exit before it has come": kernel(
        f"""
        {init(1)} {EXPECT} and.pred lead, lead, rank0; {GO} @rank0 bra TAKE; <<{WAIT} => >>
        exit; // here
        TAKE: {WAIT.replace("W", "V")}
        """,
        "the block exits while an asynchronous copy to its shared memory is under way",
    ),
}
