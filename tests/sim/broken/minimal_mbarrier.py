"""Kernels of a few lines with one mistake each around mbarriers. How they are written:
`minimal`.
"""

from sim.broken.minimal import FILL, Minimal

START = """
.shared .align 1024 .b8 room[2048]; .shared .b64 bars[4]; .reg .b32 m, tile, v<4>;
.reg .b64 map, back, state; .reg .pred lead, done;
mov.u32 m, bars; mov.u32 tile, room; setp.eq.u32 lead, t, 0; mov.u64 map, maps;
cvta.param.u64 map, map; add.u64 back, map, 128;
"""
INIT = "@lead mbarrier.init.shared.b64 [m], {0}; @lead mbarrier.init.shared.b64 [m+8], {0};"
TOLD = "fence.mbarrier_init.release.cluster;"
ARRIVE = "mbarrier.arrive.shared.b64 _, [m];"
RELEASE = "mbarrier.arrive.shared.b64 _, [m+8];"
STORE, READ = "st.shared.b32 [own], t;", "ld.shared.b32 x, [other];"


def wait(at: str = "m", parity: str = "0", name: str = "W") -> str:
    return f"{name}: mbarrier.try_wait.parity.shared.b64 done, [{at}], {parity}; @!done bra {name};"


WAIT = wait()


def kernel(
    body: str,
    message: str,
    thread: tuple[int, int] | None = (0, 0),
    *,
    count: object = 64,
    barrier: str = "bar.sync 0;",
    threads: int = 64,
) -> Minimal:
    ready = f"{INIT.format(count)} {TOLD} {barrier}"
    return Minimal(f"{START} {ready} {body}", message, thread, "sm_90a", threads)


# -- mbarriers -------------------------------------------------------------------------------------

PHASES = {
    "no wait": kernel(
        f"""
        {STORE} {ARRIVE} <<{WAIT} => >>
        {READ} // here
        """,
        "data race: reads shared offset [0-9]+, which warp 1 wrote without a barrier",
    ),
    "the wrong parity": kernel(
        f"""
        {STORE} bar.sync 0; @first bra WRITE; {wait("m", "<<0 => 1>>")} {READ} bra END;
        WRITE: mov.b32 x, 5;
        st.shared.b32 [own], x; // here
        {ARRIVE}
        END:
        """,
        "data race: writes shared offset [0-9]+, which warp 1 read without a barrier",
        count=32,
    ),
    "one look, whatever comes": kernel(
        f"""
        @first bra WRITE;
        W: mbarrier.try_wait.parity.shared.b64 done, [m], 0; <<@!done bra W; => >>
        {READ} // here
        bra END;
        WRITE: {STORE} {ARRIVE}
        END:
        """,
        "data race: reads shared offset [0-9]+, which warp 0 wrote without a barrier",
        (1, 0),
        count=32,
    ),
    "a wait for another one": kernel(
        f"""
        {RELEASE} {STORE} {ARRIVE} {wait("<<m => m+8>>")}
        {READ} // here
        """,
        "data race: reads shared offset [0-9]+, which warp 1 wrote without a barrier",
    ),
    "an arrival at another one": kernel(
        f"""
        {STORE} mbarrier.arrive.shared.b64 _, [<<m => m+8>>];
        W: mbarrier.try_wait.parity.shared.b64 done, [m], 0; // here
        @!done bra W; {READ}
        """,
        "deadlock.*phase 0 of the mbarrier .* lacks 64 of 64 arrivals and 0 bytes",
    ),
    "an arrival before the write": kernel(
        f"""
        <<{STORE} {ARRIVE} => {ARRIVE} {STORE}>> {WAIT}
        {READ} // here
        """,
        "data race: reads shared offset [0-9]+, which warp 1 wrote without a barrier",
    ),
    "an arrival before the read": kernel(
        f"""
        {STORE} {ARRIVE} {WAIT} <<{READ} {RELEASE} => {RELEASE} {READ}>> {wait("m+8", "0", "E")}
        {STORE} // here
        """,
        "data race: writes shared offset [0-9]+, which warp 1 read without a barrier",
    ),
    "no wait before it is written over": kernel(
        f"""
        {STORE} {ARRIVE} {WAIT} {READ} {RELEASE} <<{wait("m+8", "0", "E")} => >>
        {STORE} // here
        """,
        "data race: writes shared offset [0-9]+, which warp 1 read without a barrier",
    ),
    "an arrival of one lane for all": kernel(
        f"""
        {STORE} <<bar.warp.sync -1; => >> setp.eq.u32 c, lane, 0; @c {ARRIVE} {WAIT}
        {READ} // here
        """,
        "data race: reads shared offset [0-9]+, which warp 1 wrote without a barrier",
        (0, 1),
        count=2,
    ),
    "an arrival of some lanes for others": kernel(
        f"""
        {STORE} bar.sync 0; ld.shared.b32 x, [own]; <<bar.warp.sync -1; => >> @low {ARRIVE} {WAIT}
        st.shared.b32 [other], t; // here
        """,
        "data race: writes shared offset [0-9]+, which warp 1 read without a barrier",
        (0, 16),
        count=32,
    ),
    "a wait of another warp": kernel(
        f"""
        {STORE} <<bar.warp.sync -1; => >> {ARRIVE} @first bra READS; {WAIT} bra END;
        READS:
        ld.shared.b32 x, [next]; // here
        END:
        """,
        "data race: reads shared offset [0-9]+, which lane 1 of the same warp wrote without",
    ),
    "a phase after the one that is waited for": kernel(
        f"""
        mbarrier.arrive.shared.b64 state, [m]; @!first bra LATE;
        bra.uni READS;
        LATE: {STORE} mbarrier.arrive.shared.b64 _, [m], 2; bra END;
        READS: mbarrier.try_wait<<.parity => >>.shared.b64 done, [m], <<1 => state>>;
        @!done bra READS;
        {READ} // here
        END:
        """,
        "data race: reads shared offset [0-9]+, which warp 1 wrote without a barrier",
    ),
    "an arrival that is missing": kernel(
        f"""
        {STORE} <<{ARRIVE} => @first {ARRIVE}>>
        W: mbarrier.try_wait.parity.shared.b64 done, [m], 0; // here
        @!done bra W;
        """,
        "deadlock.*lacks 32 of 64 arrivals and 0 bytes",
    ),
    "a count too high": kernel(
        f"""
        {STORE} {ARRIVE}
        W: mbarrier.try_wait.parity.shared.b64 done, [m], 0; // here
        @!done bra W;
        """,
        "deadlock.*lacks 1 of 65 arrivals and 0 bytes",
        count="<<64 => 65>>",
    ),
    "a count too low": kernel(
        f"""
        {STORE} bar.sync 0; @!first bra LATE; {ARRIVE}
        {WAIT} ld.shared.b32 x, [other]; bra END;
        LATE: mov.b32 y, 5;
        st.shared.b32 [own], y; // here
        {ARRIVE}
        END:
        """,
        "data race: writes shared offset [0-9]+, which warp 0 read without a barrier",
        (1, 0),
        count="<<64 => 32>>",
    ),
    "more arrivals at once than the count": kernel(
        "@lead mbarrier.arrive.shared.b64 _, [m], <<64 => 65>>; // here",
        "more arrivals at an mbarrier than its phase expects",
    ),
    "arrivals of a warp that count twice": kernel(
        """
        @first mbarrier.arrive.shared.b64 _, [m], <<1 => 2>>; // here
        """,
        "more arrivals at an mbarrier than its phase expects",
        (0, 16),
        count=33,
    ),
    "a drop for an arrival": kernel(
        f"""
        mbarrier.<<arrive => arrive_drop>>.shared.b64 _, [m]; {WAIT}
        {ARRIVE} // here
        """,
        "more arrivals at an mbarrier than its phase expects",
    ),
    "bytes that never come": kernel(
        f"""
        @lead mbarrier.expect_tx.relaxed.cta.shared.b64 [m], 16;
        <<@lead mbarrier.complete_tx.relaxed.cta.shared.b64 [m], 16; => >> {ARRIVE}
        W: mbarrier.try_wait.parity.shared.b64 done, [m], 0; // here
        @!done bra W;
        """,
        "deadlock.*lacks 0 of 64 arrivals and 16 bytes",
    ),
    "a copy after its arrival": kernel(
        f"""
        <<cp.async.ca.shared.global [own], [from], 16; => >>
        cp.async.mbarrier.arrive.noinc.shared.b64 [m];
        <<=> cp.async.ca.shared.global [own], [from], 16;>> {WAIT}
        {READ} // here
        """,
        "to which an asynchronous copy is still in flight",
    ),
    "copies that nobody waits for": kernel(
        f"""
        cp.async.ca.shared.global [own], [from], 16;
        cp.async.mbarrier.arrive.noinc.shared.b64 [m]; <<{WAIT} => >>
        {READ} // here
        """,
        "to which an asynchronous copy is still in flight",
    ),
}

_OTHER = "mbarrier.init.shared.b64 [m+16], 64;"
OBJECTS = {
    "made without a barrier": kernel(
        "mbarrier.arrive.shared.b64 _, [m]; // here",
        "data race: reads shared offset [0-9]+, which warp 0 wrote without a barrier",
        (1, 0),
        barrier="<<bar.sync 0; => bar.warp.sync -1;>>",
    ),
    "never made": kernel(
        "mbarrier.arrive.shared.b64 _, [<<m => m+16>>]; // here", "there is no mbarrier"
    ),
    "made twice": kernel(
        "@lead mbarrier.init.shared.b64 [<<m+16 => m>>], 1; // here", "there is an mbarrier already"
    ),
    "made by a warp": kernel(
        f"<<@lead {_OTHER} => @first {_OTHER}>> // here",
        "several lanes make the same mbarrier",
    ),
    "made by all": kernel(f"<<@lead {_OTHER} => {_OTHER}>> // here", "another warp writes at once"),
    "made for no arrivals": kernel(
        "@lead mbarrier.init.shared.b64 [m+16], <<1 => 0>>; // here",
        "an mbarrier counts 1 to 1048575 arrivals",
    ),
    "misaligned": kernel(
        "@lead mbarrier.init.shared.b64 [m+<<16 => 20>>], 1; // here",
        "misaligned shared access: 0x[0-9a-f]+ is no multiple of 8",
    ),
    "read as a number": kernel(
        f"""
        {FILL}
        ld.shared.b64 wide, [<<own => m>>]; // here
        """,
        "read of 8 bytes at shared offset [0-9]+, where an mbarrier is",
    ),
    "written as a number": kernel(
        "@lead st.shared.b64 [<<own => m>>], p; // here",
        "write of 8 bytes at shared offset [0-9]+, where an mbarrier is",
    ),
    "used after its end": kernel(
        f"""
        @lead mbarrier.inval.shared.b64 [<<m+8 => m>>]; bar.sync 0;
        {ARRIVE} // here
        """,
        "there is no mbarrier",
    ),
    "no parity": kernel(
        """
        .reg .b32 parity; mov.u32 parity, <<1 => 2>>;
        mbarrier.test_wait.parity.shared.b64 done, [m], parity; // here
        """,
        "a parity is 0 or 1",
    ),
    "no state": kernel(
        """
        mbarrier.arrive.shared.b64 state, [m];
        mbarrier.test_wait.shared.b64 done, [m], <<state => p>>; // here
        """,
        "a state that no mbarrier.arrive gave",
    ),
    "a generic address of global memory": kernel(
        """
        cvt.u64.u32 at, m; cvta.shared.u64 at, at;
        mbarrier.arrive.b64 _, [<<at => p>>]; // here
        """,
        "a generic address that is not in .shared",
    ),
}
