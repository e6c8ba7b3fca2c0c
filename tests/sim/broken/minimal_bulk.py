"""Kernels of a few lines with one mistake each around bulk copies and tensor maps, and stages that
they fill. How they are written: `minimal`.
"""

from sim.broken.minimal import FILL, Minimal
from sim.broken.minimal_mbarrier import RELEASE, START, TOLD, WAIT, kernel, wait
from sim.broken.minimal_wgmma import COMMIT, FENCE, WGMMA
from sim.broken.minimal_wgmma import START as OPERANDS
from sim.broken.minimal_wgmma import WAIT as WAIT_GROUP

LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
SAVE = "cp.async.bulk.global.shared::cta.bulk_group"
EXPECT = "mbarrier.arrive.expect_tx.shared.b64 _, [m], 1024;"
LOADED = f"@lead {LOAD} [tile], [p], 1024, [m];"
GO = f"@lead {EXPECT} {LOADED}"
TAKE = "mad.lo.u32 w, t, 16, tile; ld.shared.v4.b32 {v0, v1, v2, v3}, [w];"
PUT = "mad.lo.u32 w, t, 16, tile; st.shared.v4.b32 [w], {t, t, t, t};"
PROXY = "fence.proxy.async;"
COMMITTED = "@lead cp.async.bulk.commit_group;"
SAVED = "cp.async.bulk.wait_group.read 0;"


def load(body: str, message: str, thread: tuple[int, int] | None = (0, 0)) -> Minimal:
    return kernel(body, message, thread, count=1)


LOADS = {
    "not waited for": load(
        f"""
        {GO} mad.lo.u32 w, t, 16, tile; <<{WAIT} => >>
        ld.shared.b32 x, [w]; // here
        """,
        "to which an asynchronous copy is still in flight",
    ),
    "waited for at another mbarrier": load(
        f"""
        @lead {RELEASE} {GO} mad.lo.u32 w, t, 16, tile; {wait("<<m => m+8>>")}
        ld.shared.b32 x, [w]; // here
        """,
        "to which an asynchronous copy is still in flight",
    ),
    "the phase before": load(
        f"""
        {GO} mad.lo.u32 w, t, 16, tile; {wait("m", "<<0 => 1>>")}
        ld.shared.b32 x, [w]; // here
        """,
        "to which an asynchronous copy is still in flight",
    ),
    "read although another copy only has come": load(
        f"""
        {GO} @lead mbarrier.arrive.expect_tx.shared.b64 _, [m+8], 16;
        @lead {LOAD} [tile+1024], [p], 16, [m+8]; mad.lo.u32 w, t, 16, tile;
        {wait("m+8", "0", "V")} <<{WAIT} => >>
        ld.shared.b32 x, [w]; // here
        {WAIT.replace("W:", "U:").replace("bra W", "bra U")}
        """,
        "data race: reads shared offset 0, which an asynchronous copy wrote|still in flight",
    ),
    "counted by another mbarrier": load(
        f"""
        @lead {EXPECT} @lead {LOAD} [tile], [p], 1024, [<<m => m+8>>];
        W: mbarrier.try_wait.parity.shared.b64 done, [m], 0; // here
        @!done bra W;
        """,
        "deadlock.*lacks 0 of 1 arrivals and 1024 bytes",
    ),
    "fewer bytes announced": load(
        f"""
        @lead {EXPECT.replace("1024", "<<1024 => 512>>")} {LOADED}
        W: mbarrier.try_wait.parity.shared.b64 done, [m], 0; // here
        @!done bra W;
        """,
        "deadlock.*lacks 0 of 1 arrivals and has 512 bytes that nobody expects",
    ),
    "more bytes announced": load(
        f"""
        @lead {EXPECT.replace("1024", "<<1024 => 2048>>")} {LOADED}
        W: mbarrier.try_wait.parity.shared.b64 done, [m], 0; // here
        @!done bra W;
        """,
        "deadlock.*lacks 0 of 1 arrivals and 1024 bytes",
    ),
    "one copy of two announced": load(
        f"""
        @lead {EXPECT.replace("1024", "<<2048 => 1024>>")} {LOADED}
        @lead {LOAD} [tile+1024], [p], 1024, [m]; {WAIT} mad.lo.u32 w, t, 16, tile;
        ld.shared.b32 x, [w+1024]; // here
        """,
        "data race: reads shared offset 1024, which an asynchronous copy wrote without",
    ),
    "announced by all lanes of a warp": load(
        f"""
        <<@lead {EXPECT} => @first {EXPECT}>> // here
        {LOADED} {WAIT}
        """,
        "more arrivals at an mbarrier than its phase expects",
        (0, 1),
    ),
    "told of by all lanes of a warp": load(
        f"""
        @lead {EXPECT}
        <<@lead {LOAD} => @first {LOAD}>> [tile], [p], 1024, [m]; // here
        {WAIT}
        """,
        "asynchronous write at shared offset 0, to which an asynchronous copy is still in flight",
    ),
    "an exit before it has come": load(
        f"""
        {GO} <<{WAIT} => >>
        ret; // here
        """,
        "the block exits while an asynchronous copy to its shared memory is under way",
    ),
    "no multiple of 16 bytes": load(
        f"""
        .reg .b32 bytes; mov.u32 bytes, <<1024 => 1000>>;
        @lead {EXPECT}
        @lead {LOAD} [tile], [p], bytes, [m]; // here
        {WAIT}
        """,
        "a bulk copy has a multiple of 16 bytes, and some",
    ),
    "no bytes": load(
        f"""
        @lead {EXPECT}
        @lead {LOAD} [tile], [p], <<1024 => 0>>, [m]; // here
        {WAIT}
        """,
        "a bulk copy has a multiple of 16 bytes, and some",
    ),
    "misaligned source": load(
        f"""
        @lead {EXPECT}
        @lead {LOAD} [tile], [p+<<16 => 8>>], 1024, [m]; // here
        {WAIT}
        """,
        "misaligned global access: 0x[0-9a-f]+ is no multiple of 16",
    ),
    "misaligned destination": load(
        f"""
        @lead {EXPECT}
        @lead {LOAD} [tile+<<16 => 8>>], [p], 1024, [m]; // here
        {WAIT}
        """,
        "misaligned shared access: 0x[0-9a-f]+ is no multiple of 16",
    ),
    "past the array": load(
        f"""
        @lead {EXPECT}
        @lead {LOAD} [tile], [p+<<3072 => 3088>>], 1024, [m]; // here
        {WAIT}
        """,
        "read of 16 bytes .* 16 bytes past the end",
    ),
    "past shared memory": load(
        f"""
        @lead {EXPECT} mov.b32 x, tile;
        @lead {LOAD} [x+<<0 => 4096>>], [p], 1024, [m]; // here
        {WAIT}
        """,
        "is outside of the block's 4128 bytes",
    ),
    "no mbarrier": load(
        f"""
        @lead {EXPECT}
        @lead {LOAD} [tile], [p], 1024, [<<m => m+16>>]; // here
        {WAIT}
        """,
        "there is no mbarrier at this address",
    ),
    "over what is still read": load(
        f"""
        {PUT} bar.sync 0; xor.b32 x, t, 32; mad.lo.u32 w, x, 16, tile; ld.shared.b32 x, [w];
        {PROXY} <<bar.sync 0; => >> @lead {EXPECT}
        {LOADED} // here
        {WAIT}
        """,
        "asynchronously writes shared offset [0-9]+, which warp 1 (read|wrote)",
    ),
    "over what was written, unfenced": load(
        f"""
        {PUT} <<{PROXY} => >> bar.sync 0; @lead {EXPECT}
        {LOADED} // here
        {WAIT}
        """,
        "which was written by ordinary instructions, without a fence.proxy.async between",
    ),
    "a fence for global memory only": load(
        f"""
        {PUT} fence.proxy.async<<.shared::cta => .global>>; bar.sync 0; @lead {EXPECT}
        {LOADED} // here
        {WAIT}
        """,
        "which was written by ordinary instructions, without a fence.proxy.async between",
    ),
    "over what another warp has not read yet": load(
        f"""
        {GO} {WAIT} {TAKE} <<bar.sync 0; => >> @lead {EXPECT}
        {LOADED} // here
        {wait("m", "1", "V")}
        """,
        "data race: asynchronously writes shared offset 512, which warp 1 read without a barrier",
    ),
}

STORES = {
    "without a fence": kernel(
        f"""
        {PUT} <<{PROXY} => >> bar.sync 0;
        @lead {SAVE} [q], [tile], 1024; // here
        {COMMITTED} {SAVED}
        """,
        "asynchronously reads shared offset 0, .* without a fence.proxy.async between",
    ),
    "copies of threads without a fence": kernel(
        f"""
        mad.lo.u32 w, t, 16, tile; cp.async.ca.shared.global [w], [from], 16;
        cp.async.mbarrier.arrive.noinc.shared.b64 [m]; {WAIT} <<{PROXY} => >> bar.sync 0;
        @lead {SAVE} [q], [tile], 1024; // here
        {COMMITTED} {SAVED}
        """,
        "asynchronously reads shared offset 0, .* without a fence.proxy.async between",
    ),
    "the fence before the writes": kernel(
        f"""
        <<{PUT} {PROXY} => {PROXY} {PUT}>> bar.sync 0;
        @lead {SAVE} [q], [tile], 1024; // here
        {COMMITTED} {SAVED}
        """,
        "asynchronously reads shared offset 0, .* without a fence.proxy.async between",
    ),
    "the fence by some of the writers": kernel(
        f"""
        {PUT} <<{PROXY} => @first {PROXY}>> bar.sync 0;
        @lead {SAVE} [q], [tile], 1024; // here
        {COMMITTED} {SAVED}
        """,
        "asynchronously reads shared offset 512, .* without a fence.proxy.async between",
    ),
    "without a barrier": kernel(
        f"""
        {PUT} {PROXY} <<bar.sync 0; => >>
        @lead {SAVE} [q], [tile], 1024; // here
        {COMMITTED} {SAVED}
        """,
        "data race: asynchronously reads shared offset 512, which warp 1 wrote without",
    ),
    "of what nobody has written": kernel(
        f"""
        {PUT} {PROXY} bar.sync 0;
        @lead {SAVE} [q], [tile<<=>+1024>>], 1024; // here
        {COMMITTED} {SAVED}
        """,
        "asynchronous read at shared offset 1024, where nothing was written",
    ),
    "written over before the wait": kernel(
        f"""
        {PUT} {PROXY} bar.sync 0; @lead {SAVE} [q], [tile], 1024; {COMMITTED} <<{SAVED} => >>
        bar.sync 0;
        st.shared.b32 [w], t; // here
        <<=> {SAVED}>>
        """,
        "writes shared offset 0, which an asynchronous instruction still reads",
    ),
    "waited for by another thread": kernel(
        f"""
        {PUT} {PROXY} bar.sync 0; @lead {SAVE} [q], [tile], 1024; {COMMITTED}
        <<{SAVED} => @!lead {SAVED}>> bar.sync 0;
        st.shared.b32 [w], t; // here
        {SAVED}
        """,
        "writes shared offset 0, which an asynchronous instruction still reads",
    ),
    "waited for without a barrier": kernel(
        f"""
        {PUT} {PROXY} bar.sync 0; @lead {SAVE} [q], [tile], 1024; {COMMITTED} {SAVED}
        <<bar.sync 0; => >>
        st.shared.b32 [w], t; // here
        """,
        "data race: writes shared offset 512, which warp 0 read",
        (1, 0),
    ),
    "wait for too few groups": kernel(
        f"""
        {PUT} {PROXY} bar.sync 0; @lead {SAVE} [q], [tile], 1024; {COMMITTED}
        cp.async.bulk.wait_group.read <<0 => 1>>; bar.sync 0;
        st.shared.b32 [w], t; // here
        {SAVED}
        """,
        "writes shared offset 0, which an asynchronous instruction still reads",
    ),
    "not committed": kernel(
        f"""
        {PUT} {PROXY} bar.sync 0; @lead {SAVE} [q], [tile], 1024; <<{COMMITTED} => >> {SAVED}
        bar.sync 0;
        st.shared.b32 [w], t; // here
        """,
        "writes shared offset 0, which an asynchronous instruction still reads",
    ),
    "an exit before it was read": kernel(
        f"""
        {PUT} {PROXY} bar.sync 0; @lead {SAVE} [q], [tile], 1024; {COMMITTED} <<{SAVED} => >>
        ret; // here
        """,
        "cp.async.bulk.wait_group.read is missing",
    ),
    "past the array": kernel(
        f"""
        {PUT} {PROXY} bar.sync 0; @lead {SAVE} [q+<<3072 => 3088>>], [tile], 1024; {COMMITTED}
        cp.async.bulk.wait_group 0; // here
        """,
        "write of 16 bytes .* 16 bytes past the end",
    ),
    "to what is read-only": kernel(
        f"""
        {PUT} {PROXY} bar.sync 0; @lead {SAVE} [<<q => p>>], [tile], 1024; {COMMITTED}
        cp.async.bulk.wait_group 0; // here
        """,
        "is read-only",
    ),
    "combined with what is read-only": kernel(
        f"""
        {PUT} {PROXY} bar.sync 0;
        @lead cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [<<q => p>>], [tile], 16;
        {COMMITTED}
        cp.async.bulk.wait_group 0; // here
        """,
        "is read-only",
    ),
}

# -- Boxes -----------------------------------------------------------------------------------------

BOX = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
_BACK = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
BOXES = {
    "fewer bytes announced than a box at the edge has": load(
        f"""
        @lead {EXPECT.replace("1024", "<<1024 => 512>>")}
        @lead {BOX} [tile], [map, {{0, 28}}], [m];
        W: mbarrier.try_wait.parity.shared.b64 done, [m], 0; // here
        @!done bra W;
        """,
        "deadlock.*lacks 0 of 1 arrivals and has 512 bytes that nobody expects",
    ),
    "read before it has come": load(
        f"""
        @lead {EXPECT} @lead {BOX} [tile], [map, {{0, 0}}], [m]; mad.lo.u32 w, t, 16, tile;
        <<{WAIT} => >>
        ld.shared.b32 x, [w]; // here
        """,
        "to which an asynchronous copy is still in flight",
    ),
    "misaligned in shared memory": load(
        f"""
        @lead {EXPECT}
        @lead {BOX} [tile+<<1024 => 64>>], [map, {{0, 0}}], [m]; // here
        {WAIT}
        """,
        "misaligned shared access: 0x[0-9a-f]+ is no multiple of 128",
    ),
    "past shared memory": load(
        f"""
        @lead {EXPECT}
        @lead {BOX} [tile+<<1024 => 4096>>], [map, {{0, 0}}], [m]; // here
        {WAIT}
        """,
        "outside of the block's 4128 bytes",
    ),
    "misaligned map": load(
        f"""
        @lead {EXPECT}
        @lead {BOX} [tile], [map+<<0 => 16>>, {{0, 0}}], [m]; // here
        {WAIT}
        """,
        "a tensor map at 0x[0-9a-f]+, which is no multiple of 64",
    ),
    "the middle of a map": load(
        f"""
        @lead {EXPECT}
        @lead {BOX} [tile], [map+<<0 => 64>>, {{0, 0}}], [m]; // here
        {WAIT}
        """,
        "no tensor map",
    ),
    "a map at a parameter's address that is not generic": load(
        f"""
        @lead {EXPECT} <<=> mov.u64 map, maps;>>
        @lead {BOX} [tile], [map, {{0, 0}}], [m]; // here
        {WAIT}
        """,
        "is outside of every buffer",
    ),
    "one coordinate too few": load(
        f"""
        @lead {EXPECT}
        @lead {BOX} [tile], [map, {{<<0, 0 => 0>>}}], [m]; // here
        {WAIT}
        """,
        "a map of 2 axes takes as many coordinates, not 1",
        None,
    ),
    "one axis too few": load(
        f"""
        @lead {EXPECT} mov.u64 at, map;
        @lead {BOX.replace(".2d", ".<<2d => 1d>>")} [tile], [at, {{0<<, 0 => >>}}], [m]; // here
        {WAIT}
        """,
        "a map of 2 axes in a copy of 1",
    ),
    "stored without a fence": kernel(
        f"""
        {PUT} <<{PROXY} => >> bar.sync 0;
        @lead {_BACK} [back, {{0, 0}}], [tile]; // here
        {COMMITTED} {SAVED}
        """,
        "asynchronously reads shared offset 0, .* without a fence.proxy.async between",
    ),
    "written over while it is stored": kernel(
        f"""
        {PUT} {PROXY} bar.sync 0; @lead {_BACK} [back, {{0, 0}}], [tile]; {COMMITTED}
        <<{SAVED} => >> bar.sync 0;
        st.shared.b32 [w], t; // here
        <<=> {SAVED}>>
        """,
        "writes shared offset 0, which an asynchronous instruction still reads",
    ),
    "stored to what is read-only": kernel(
        f"""
        {PUT} {PROXY} bar.sync 0; @lead {_BACK} [<<back => map>>, {{0, 0}}], [tile]; {COMMITTED}
        cp.async.bulk.wait_group 0; // here
        """,
        "is read-only",
    ),
}

# -- Stages of matrix products ---------------------------------------------------------------------

_FILLED = f"@lead {EXPECT} {LOADED}"
_PRODUCT = f"{FENCE} {WGMMA} {COMMIT}"
_GROUP = OPERANDS.replace(FILL, "").replace("base;", "tile;", 1)


def _stage(take: str, message: str, thread: tuple[int, int], ask: str = "") -> Minimal:
    """Warp 4 asks for two fillings of a stage, which a warpgroup multiplies."""
    ask = ask or wait("m+8", "0", "E")
    body = f"""
        {START} {_GROUP} @lead mbarrier.init.shared.b64 [m], 1;
        @lead mbarrier.init.shared.b64 [m+8], 128; {TOLD} bar.sync 0;
        setp.eq.u32 lead, t, 128; setp.lt.u32 c, t, 128; @c bra TAKE;
        @!lead bra END; {EXPECT} {LOADED} {ask} {EXPECT}
        {LOADED} {"// here" if "// here" not in take else ""}
        {wait("m", "1", "F")} bra END;
        TAKE: {take}
        END:
        """
    return Minimal(body, message, thread, "sm_90a", 160)


STAGES = {
    "no wait until it is full": _stage(
        f"""<<{WAIT} => >> {FENCE}
        {WGMMA} // here
        {COMMIT} {WAIT_GROUP} {RELEASE}""",
        "asynchronous read at shared offset 0, to which an asynchronous copy is still in flight",
        (0, 0),
    ),
    "given back before the products have ended": _stage(
        f"{WAIT} {_PRODUCT} <<{WAIT_GROUP} {RELEASE} => {RELEASE} {WAIT_GROUP}>>",
        "data race: asynchronously writes shared offset 0, which warp . read without a barrier",
        (4, 0),
    ),
    "given back while one group is in flight": _stage(
        f"""{WAIT} {_PRODUCT} {WAIT_GROUP.replace("0;", "<<0 => 1>>;")} {RELEASE}
        {wait("m", "1", "V")} {WAIT_GROUP}""",
        "asynchronously writes shared offset 0, which an asynchronous instruction still reads",
        (4, 0),
    ),
    "not waited for until it is empty": _stage(
        f"""{WAIT} {FENCE}
        {WGMMA} // here
        {COMMIT} {WAIT_GROUP} {RELEASE}""",
        "asynchronous read at shared offset 0, to which an asynchronous copy is still in flight",
        (0, 0),
        f"<<{wait('m+8', '0', 'E')} => {wait('m', '0', 'E')}>>",
    ),
}
