"""Kernels of a few lines with one mistake each around st.async and red.async, in clusters of two
blocks. How they are written: `minimal`.
"""

from sim.broken.minimal import Minimal
from sim.broken.minimal_cluster import PEER, SYNC, init
from sim.broken.minimal_mbarrier import START, WAIT, wait

TELLS = "mbarrier::complete_tx::bytes"
STORE = f"st.async.shared::cluster.{TELLS}"
PUT = f"{STORE}.b32 [there], t, [away];"
ADD = f"red.async.relaxed.cluster.shared::cluster.{TELLS}.add.u32 [there], 1, [away];"
READ = "ld.shared.b32 x, [own];"
HANG = "W: mbarrier.try_wait.parity.shared.b64 done, [m], 0; // here\n        @!done bra W;"


def kernel(body: str, message: str, thread: tuple[int, int] | None = (0, 0)) -> Minimal:
    return Minimal(f"{START} {PEER} {body}", message, thread, "sm_90a", cluster=2, version="8.1")


def expect(count: object = 256) -> str:
    return f"@lead mbarrier.arrive.expect_tx.shared.b64 _, [m], {count};"


READY = f"{init(1)} {expect()}"
ZERO = "st.shared.b32 [own], 0;"

STORES = {
    "read before the wait": kernel(
        f"""
        {READY} {PUT} <<{WAIT} => >>
        {READ} // here
        """,
        "read of 4 bytes at shared offset [0-9]+, to which an asynchronous copy is still in flight",
    ),
    "a wait for another mbarrier": kernel(
        f"""
        {init(1)} @lead mbarrier.init.shared.b64 [m+8], 1; {expect()} bar.sync 0;
        @lead mbarrier.arrive.shared.b64 _, [m+8]; {PUT} {wait("<<m => m+8>>")}
        {READ} // here
        """,
        "read of 4 bytes at shared offset [0-9]+, to which an asynchronous copy is still in flight",
    ),
    "read by who knows of another one only": kernel(
        f"""
        {init(1)} @lead mbarrier.init.shared.b64 [m+8], 1; bar.sync 0; {expect()}
        {expect().replace("[m]", "[m+8]")} {SYNC} {PUT}
        {STORE}.b32 [there+4], t, [away+8]; {wait("m+8", "0", "V")} <<{WAIT} => >>
        {READ} // here
        """,
        "data race: reads shared offset [0-9]+, which an asynchronous copy wrote without a barrier",
    ),
    "told by a barrier of the cluster only": kernel(
        f"""
        {READY} {PUT} <<{WAIT} {SYNC} => {SYNC}>>
        {READ} // here
        """,
        "data race: reads shared offset [0-9]+, which an asynchronous copy wrote|still in flight",
    ),
    "fewer bytes announced": kernel(
        f"""
        {init(1)} {expect("<<256 => 252>>")} {PUT}
        {HANG} {READ}
        """,
        "deadlock.*lacks 0 of 1 arrivals and has 4 bytes that nobody expects",
    ),
    "more bytes announced": kernel(
        f"""
        {init(1)} {expect("<<256 => 260>>")} {PUT}
        {HANG} {READ}
        """,
        "deadlock.*lacks 0 of 1 arrivals and 4 bytes",
    ),
    "none announced": kernel(
        f"""
        {init(1)} <<{expect()} => @lead mbarrier.arrive.shared.b64 _, [m];>> {PUT} {WAIT}
        {READ} // here
        """,
        "read of 4 bytes at shared offset [0-9]+, to which an asynchronous copy is still in flight",
    ),
    "a lane that does not store": kernel(
        f"""
        {READY} <<=> setp.lt.u32 c, t, 63; @c>> {PUT}
        {HANG} {READ}
        """,
        "deadlock.*lacks 0 of 1 arrivals and 4 bytes",
    ),
    "the own mbarrier": kernel(
        f"""
        {READY}
        {STORE}.b32 [there], t, [<<away => m>>]; // here
        {WAIT}
        """,
        "the data and its mbarrier are in shared memory of different blocks",
    ),
    "the own data": kernel(
        f"""
        {READY}
        {STORE}.b32 [<<there => own>>], t, [away]; // here
        {WAIT}
        """,
        "the data and its mbarrier are in shared memory of different blocks",
    ),
    "no mbarrier": kernel(
        f"""
        {READY}
        {STORE}.b32 [there], t, [away<<=>+16>>]; // here
        {WAIT}
        """,
        "there is no mbarrier at this address",
    ),
    "an mbarrier that the other block has not told of": kernel(
        f"""
        {init(1, f"<<{SYNC} => bar.sync 0;>>")} {expect()}
        {PUT} // here
        {WAIT} {SYNC}
        """,
        "data race: reads shared offset [0-9]+, which warp 0 of the cluster's block 1 wrote",
    ),
    "a misaligned pair": kernel(
        f"""
        {init(1)} {expect(512)}
        {STORE}.v2.b32 [there+<<8 => 4>>], {{t, t}}, [away]; // here
        {WAIT}
        """,
        "misaligned shared access: 0x[0-9a-f]+ is no multiple of 8",
    ),
    "a misaligned vector": kernel(
        f"""
        {init(1)} {expect(1024)}
        {STORE}.v4.b32 [there<<=>+8>>], {{t, t, t, t}}, [away]; // here
        {WAIT}
        """,
        "misaligned shared access: 0x[0-9a-f]+ is no multiple of 16",
    ),
    "past the end": kernel(
        f"""
        {READY}
        {STORE}.b32 [there+<<16 => 4096>>], t, [away]; // here
        {WAIT}
        """,
        "is outside of the block's",
    ),
    "over an mbarrier": kernel(
        f"""
        {init(1)} {expect(4)}
        @lead {STORE}.b32 [<<there => away>>], t, [away]; // here
        {WAIT}
        """,
        "write of 4 bytes at shared offset [0-9]+, where an mbarrier is",
    ),
    "two to one place": kernel(
        f"""
        {init(1)} {expect(512)} {PUT}
        {STORE}.b32 [there<<+4 => >>], t, [away]; // here
        {WAIT}
        """,
        "write of 4 bytes at shared offset [0-9]+, to which an asynchronous copy is still in",
    ),
    "of two warps to one place": kernel(
        f"""
        {READY} mapa.shared::cluster.u32 x, base, s; mad.lo.u32 x, lane, 16, x;
        <<mov.u32 x, there; => >>
        {STORE}.b32 [x], t, [away]; // here
        {WAIT}
        """,
        "data race: writes shared offset [0-9]+, which another warp writes at once",
    ),
    "over what the other block still reads": kernel(
        f"""
        {ZERO} {READY} <<{READ} {SYNC} => {SYNC} {READ}>>
        {PUT} // here
        {WAIT}
        """,
        "data race: writes shared offset [0-9]+, which warp . of the cluster's block 1 read",
    ),
    "over what the other block has written": kernel(
        f"""
        {READY} <<{ZERO} {SYNC} => {ZERO}>>
        {PUT} // here
        {WAIT}
        """,
        "data race: writes shared offset [0-9]+, which warp . of the cluster's block 1 wrote",
    ),
    "written over while it is on its way": kernel(
        f"""
        {READY} {PUT} <<{WAIT} => >>
        {ZERO} // here
        """,
        "write of 4 bytes at shared offset [0-9]+, to which an asynchronous copy is still in",
    ),
    "the next before the last was read": kernel(
        f"""
        {READY} {PUT} {WAIT} {READ} {expect()} <<{SYNC} => >>
        {PUT} // here
        {wait("m", "1", "V")}
        """,
        "data race: writes shared offset [0-9]+, which an asynchronous copy wrote|warp . of the",
    ),
    "read by an asynchronous unit without a fence": kernel(
        f"""
        {init(1)} {expect(1024)} {STORE}.v4.b32 [there], {{t, t, t, t}}, [away]; {WAIT}
        <<fence.proxy.async; => >> bar.sync 0; setp.eq.and.u32 c, r, 0, lead;
        @c cp.async.bulk.global.shared::cta.bulk_group [q], [base], 1024; // here
        @c cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        """,
        "which was written by ordinary instructions, without a fence.proxy.async between",
    ),
    "an exit before it has come": kernel(
        f"""
        {READY} {PUT} <<=> @rank0 bra OUT;>> {WAIT} {SYNC}
        OUT: exit; // here
        """,
        "the block exits while an asynchronous store to its shared memory is under way",
        None,
    ),
    "to a block that has exited": kernel(
        f"""
        {READY} <<=> @!rank0 exit;>>
        {PUT} // here
        {WAIT}
        """,
        "shared memory of a block of the cluster that has exited",
    ),
}

REDUCTIONS = {
    "read before the wait": kernel(
        f"""
        {ZERO} {READY} {SYNC} {ADD} <<{WAIT} => >>
        {READ} // here
        """,
        "reads shared offset [0-9]+, which an asynchronous reduction is still to update",
    ),
    "read by who knows of another one only": kernel(
        f"""
        {ZERO} {init(1)} @lead mbarrier.init.shared.b64 [m+8], 1; bar.sync 0; {expect()}
        {expect().replace("[m]", "[m+8]")} st.shared.b32 [own+4], 0; {SYNC} {ADD}
        {ADD.replace("[there]", "[there+4]").replace("[away]", "[away+8]")}
        {wait("m+8", "0", "V")} <<{WAIT} => >>
        {READ} // here
        """,
        "data race: reads shared offset [0-9]+, which an asynchronous reduction wrote without",
    ),
    "written before the wait": kernel(
        f"""
        {ZERO} {READY} {SYNC} {ADD} <<{WAIT} => >>
        {ZERO} // here
        """,
        "writes shared offset [0-9]+, which an asynchronous reduction is still to update",
    ),
    "a copy over what is to be updated": kernel(
        f"""
        {ZERO} {READY} {SYNC} {ADD} <<{WAIT} => >>
        cp.async.ca.shared.global [own], [from], 4; // here
        cp.async.wait_all;
        """,
        "writes shared offset [0-9]+, which an asynchronous reduction is still to update",
    ),
    "an asynchronous unit that reads what is to be updated": kernel(
        f"""
        st.shared.v4.b32 [own], {{t, t, t, t}}; {READY} {SYNC} {ADD} <<{WAIT} => >>
        fence.proxy.async; bar.sync 0; setp.eq.and.u32 c, r, 0, lead;
        @c cp.async.bulk.global.shared::cta.bulk_group [q], [base], 1024; // here
        @c cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        """,
        "asynchronously reads shared offset [0-9]+, which an asynchronous reduction is still to",
    ),
    "read by an asynchronous unit without a fence": kernel(
        f"""
        st.shared.v4.b32 [own], {{t, t, t, t}}; {READY} {SYNC} {ADD} {WAIT}
        <<fence.proxy.async; => >> bar.sync 0; setp.eq.and.u32 c, r, 0, lead;
        @c cp.async.bulk.global.shared::cta.bulk_group [q], [base], 1024; // here
        @c cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        """,
        "which was written by ordinary instructions, without a fence.proxy.async between",
    ),
    "of what was never written": kernel(
        f"""
        <<{ZERO} => >> {READY} {SYNC}
        {ADD} // here
        {WAIT}
        """,
        "read of 4 bytes at shared offset [0-9]+, where nothing was written",
    ),
    "of what a copy is on its way to": kernel(
        f"""
        {ZERO} {init(1)} {expect(512)} {SYNC} {STORE}.b32 [there<<+4 => >>], t, [away];
        {ADD} // here
        {WAIT}
        """,
        "read of 4 bytes at shared offset [0-9]+, to which an asynchronous copy is still in flight",
    ),
    "of what the other block has just written": kernel(
        f"""
        {READY} <<{ZERO} {SYNC} => {ZERO}>>
        {ADD} // here
        {WAIT}
        """,
        "data race: writes shared offset [0-9]+, which warp . of the cluster's block 1 wrote",
    ),
    "of what the other block still reads": kernel(
        f"""
        {ZERO} {READY} {SYNC} <<{READ} {SYNC} => {SYNC} {READ}>>
        {ADD} // here
        {WAIT}
        """,
        "data race: writes shared offset [0-9]+, which warp . of the cluster's block 1 read",
    ),
    "fewer bytes announced": kernel(
        f"""
        {ZERO} {init(1)} {expect("<<256 => 128>>")} {SYNC} {ADD}
        {HANG} {READ}
        """,
        "deadlock.*lacks 0 of 1 arrivals and has 128 bytes that nobody expects",
    ),
    "more bytes announced": kernel(
        f"""
        {ZERO} {init(1)} {expect("<<256 => 512>>")} {SYNC} {ADD}
        {HANG} {READ}
        """,
        "deadlock.*lacks 0 of 1 arrivals and 256 bytes",
    ),
    "none announced": kernel(
        f"""
        {ZERO} {init(1)} <<{expect()} => @lead mbarrier.arrive.shared.b64 _, [m];>> {SYNC} {ADD}
        {WAIT}
        {READ} // here
        """,
        "reads shared offset [0-9]+, which an asynchronous reduction is still to update",
    ),
    "the own mbarrier": kernel(
        f"""
        {ZERO} {READY} {SYNC}
        {ADD.replace("away", "<<away => m>>")} // here
        {WAIT}
        """,
        "the data and its mbarrier are in shared memory of different blocks",
    ),
    "misaligned": kernel(
        f"""
        {ZERO} st.shared.b32 [own+4], 0; {READY} {SYNC}
        {ADD.replace("[there]", "[there+<<4 => 2>>]")} // here
        {WAIT}
        """,
        "misaligned shared access: 0x[0-9a-f]+ is no multiple of 4",
    ),
    "an exit before it has come": kernel(
        f"""
        {ZERO} {READY} {SYNC} {ADD} <<=> @rank0 bra OUT;>> {WAIT} {SYNC}
        OUT: exit; // here
        """,
        "the block exits while an asynchronous store to its shared memory is under way",
        None,
    ),
    "a store to what it updates": kernel(
        f"""
        {ZERO} {init(1)} {expect(512)} {SYNC} {ADD}
        {STORE}.b32 [there<<+4 => >>], t, [away]; // here
        {WAIT}
        """,
        "writes shared offset [0-9]+, which an asynchronous reduction is still to update",
    ),
}
