"""Kernels of a few lines with one mistake each in the order of things: copies, races, barriers,
warps. How they are written: `minimal`.
"""

from sim.broken.minimal import FILL, SHARED, Minimal

COPY = "cp.async.ca.shared.global [own], [from], 16;"

COPIES = {
    "read before the wait": Minimal(
        f"""
        {COPY} cp.async.commit_group; <<cp.async.wait_group 0; => >>
        ld.shared.b32 x, [own]; // here
        """,
        "read of 4 bytes at shared offset 0, to which an asynchronous copy is still in flight",
    ),
    "a volatile read before the wait": Minimal(
        f"""
        {COPY} cp.async.commit_group; <<cp.async.wait_group 0; => >>
        ld.volatile.shared.b32 x, [own]; // here
        """,
        "to which an asynchronous copy is still in flight",
    ),
    "wait for too few groups": Minimal(
        f"""
        {COPY} cp.async.commit_group; cp.async.wait_group <<0 => 1>>;
        ld.shared.b32 x, [own]; // here
        """,
        "to which an asynchronous copy is still in flight",
    ),
    "no commit": Minimal(
        f"""
        {COPY} <<cp.async.commit_group; => >> cp.async.wait_group 0;
        ld.shared.b32 x, [own]; // here
        """,
        "to which an asynchronous copy is still in flight",
    ),
    "a commit between that makes one group more": Minimal(
        f"""
        {COPY} cp.async.commit_group; <<cp.async.commit_group; => >> cp.async.wait_group 1;
        ld.shared.b32 x, [own]; // here
        """,
        "to which an asynchronous copy is still in flight",
    ),
    "half of the lanes wait": Minimal(
        f"""
        {COPY} <<cp.async.wait_all; => @low cp.async.wait_all;>>
        ld.shared.b32 x, [own]; // here
        """,
        "read of 4 bytes at shared offset 256, to which an asynchronous copy is still in flight",
        (0, 16),
    ),
    "write under a copy": Minimal(
        f"""
        {COPY} <<cp.async.wait_all; => >>
        st.shared.b32 [own], t; // here
        """,
        "write of 4 bytes at shared offset 0, to which an asynchronous copy is still in flight",
    ),
    "copy under a copy": Minimal(
        f"""
        {COPY} <<cp.async.wait_all; => >>
        cp.async.ca.shared.global [own], [from], 4; // here
        """,
        "write of 4 bytes at shared offset 0, to which an asynchronous copy is still in flight",
    ),
    "a warp reads before its barrier": Minimal(
        f"""
        {COPY} cp.async.wait_all; <<bar.sync 0; => >>
        ld.shared.b32 x, [other]; // here
        """,
        "data race: reads shared offset 512, which warp 1 wrote without a barrier between",
    ),
    "the wait is after the barrier": Minimal(
        f"""
        @first {COPY} <<cp.async.wait_all; => >> bar.sync 0; <<=> cp.async.wait_all;>>
        @!first ld.shared.b32 x, [other]; // here
        """,
        "data race: reads shared offset 0, which warp 0 wrote without a barrier between",
        (1, 0),
    ),
    "a lane reads what its neighbour waited for": Minimal(
        f"""
        {COPY} cp.async.wait_all; <<bar.warp.sync -1; => >>
        ld.shared.b32 x, [next]; // here
        """,
        "data race: reads shared offset 16, which lane 1 of the same warp wrote",
    ),
    "copy over what others read": Minimal(
        f"""
        {FILL} bar.sync 0; ld.shared.b32 x, [other]; <<bar.sync 0; => >>
        {COPY} // here
        """,
        "data race: writes shared offset 0, which warp 1 read without a barrier between",
    ),
    "source past the end": Minimal(
        "cp.async.ca.shared.global [own], [<<p+4088 => p+4096>>], 8; // here",
        "read of 8 bytes .* 8 bytes past the end",
    ),
    "source that is left out in part": Minimal(
        """
        mov.b32 x, 8; add.u64 at, p, <<4080 => 4096>>;
        cp.async.cg.shared.global [own], [at], 16, x; // here
        """,
        "read of 1 bytes .* 1 bytes past the end",
    ),
    "source of more bytes than the copy": Minimal(
        "mov.b32 x, <<16 => 17>>; cp.async.cg.shared.global [own], [from], 16, x; // here",
        "a source of 17 bytes for a copy of 16",
    ),
    "misaligned destination": Minimal(
        "cp.async.cg.shared.global [<<own => own+8>>], [from], 16; // here",
        "misaligned shared access: 0x[0-9a-f]+ is no multiple of 16",
    ),
    "misaligned source": Minimal(
        "cp.async.cg.shared.global [own], [<<from => p+8>>], 16; // here",
        "misaligned global access: 0x[0-9a-f]+ is no multiple of 16",
    ),
}

RACES = {
    "warps: write, read": Minimal(
        f"""
        {FILL} <<bar.sync 0; => >>
        ld.shared.b32 x, [other]; // here
        """,
        "data race: reads shared offset 512, which warp 1 wrote without a barrier between",
    ),
    "warps: read, write": Minimal(
        f"""
        {FILL} bar.sync 0; ld.shared.b32 x, [other]; <<bar.sync 0; => >>
        st.shared.b32 [own], t; // here
        """,
        "data race: writes shared offset 0, which warp 1 read without a barrier between",
    ),
    "warps: write, write": Minimal(
        f"""
        {FILL} <<bar.sync 0; => >>
        st.shared.b32 [other], t; // here
        """,
        "data race: writes shared offset 512, which warp 1 wrote without a barrier between",
    ),
    "warps: write at once": Minimal(
        """
        <<@first st.shared.b32 [base], t; => st.shared.b32 [base], t;>> // here
        """,
        "data race: writes shared offset 0, which warp 1 writes without a barrier between",
    ),
    "a barrier of the warp for one of the block": Minimal(
        f"""
        {FILL} <<bar.sync 0 => bar.warp.sync -1>>;
        ld.shared.b32 x, [other]; // here
        """,
        "data race: reads shared offset 512, which warp 1 wrote without a barrier between",
    ),
    "warps: write, atomic": Minimal(
        """
        @first st.shared.b32 [base], t; <<bar.sync 0; => >>
        @!first red.shared.add.u32 [base], 1; // here
        """,
        "data race: reads shared offset 0, which warp 0 wrote without a barrier between",
        (1, 0),
    ),
    "lanes: write, read": Minimal(
        f"""
        {FILL} <<bar.warp.sync -1; => >>
        ld.shared.b32 x, [next]; // here
        """,
        "data race: reads shared offset 16, which lane 1 of the same warp wrote",
    ),
    "lanes: read, write": Minimal(
        f"""
        {FILL} bar.warp.sync -1; ld.shared.b32 x, [next]; <<bar.warp.sync -1; => >>
        st.shared.b32 [own], t; // here
        """,
        "data race: writes shared offset 0, which lane 1 of the same warp read",
    ),
    "lanes: write, write": Minimal(
        f"""
        {FILL} <<bar.warp.sync -1; => >>
        st.shared.b32 [next], t; // here
        """,
        "data race: writes shared offset 16, which lane 1 of the same warp wrote",
    ),
    "lanes: a barrier of the writer alone": Minimal(
        f"""
        {FILL} setp.eq.u32 c, lane, 1; <<bar.warp.sync -1; => @c bar.warp.sync 2;>>
        ld.shared.b32 x, [next]; // here
        """,
        "data race: reads shared offset 16, which lane 1 of the same warp wrote",
    ),
    "lanes: a barrier of the half that does not read": Minimal(
        f"""
        {FILL} <<bar.warp.sync -1; => @!low bar.warp.sync 0xffff0000;>>
        @low ld.shared.b32 x, [next]; // here
        """,
        "data race: reads shared offset 16, which lane 1 of the same warp wrote",
    ),
    "lanes: write, ldmatrix": Minimal(
        f"""
        {FILL} <<bar.warp.sync -1; => >>
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{x, y, z, w}}, [next]; // here
        """,
        "data race: reads shared offset 16, which lane 1 of the same warp wrote",
    ),
}

BARRIERS = {
    "barrier under divergence": Minimal(
        """
        <<bar.sync 0; => @low bar.sync 0;>> // here
        """,
        "only 16 of the 32 running lanes of a warp are at the barrier",
    ),
    "warps wait at different barriers": Minimal(
        """
        @first bra.uni ONE;
        bar.sync <<1 => 2>>; // here
        bra.uni END;
        ONE: bar.sync 1;
        END:
        """,
        r"deadlock: warps wait at barriers that are never complete "
        r"\(2 at broken\.ptx:\d+: barrier 2 has 32 of 64 threads, "
        r"2 at broken\.ptx:\d+: barrier 1 has 32 of 64 threads\)",
    ),
    "too few come to a counted barrier": Minimal(
        "bar.sync 1, <<64 => 96>>; // here",
        r"deadlock: warps wait .* \(4 at broken\.ptx:\d+: barrier 1 has 64 of 96 threads\)",
    ),
    "nobody arrives": Minimal(
        """
        <<@!first bar.arrive 1, 64; => >>
        @first bar.sync 1, 64; // here
        """,
        r"deadlock: warps wait .* \(2 at broken\.ptx:\d+: barrier 1 has 32 of 64 threads\)",
    ),
    "different counts": Minimal(
        """
        @first bar.arrive 1, <<64 => 96>>;
        @!first bar.sync 1, 64; // here
        """,
        "warps are at one barrier with different thread counts",
        (1, 0),
    ),
    "a count that is no multiple of a warp": Minimal(
        "mov.b32 x, <<64 => 48>>; bar.sync 1, x; // here",
        "the thread count of a barrier must be a multiple of 32",
    ),
    "a barrier that is not there": Minimal(
        "mov.b32 x, <<15 => 16>>; bar.sync x, 64; // here",
        "there are barriers 0 to 15 only",
    ),
    "lanes name different barriers": Minimal(
        "<<mov.b32 x, 1 => and.b32 x, t, 1>>; bar.sync x, 64; // here",
        "the lanes of a warp name different barriers or counts",
        (0, 1),
    ),
}

WARPS = {
    "bar.warp.sync without a member": Minimal(
        """
        <<bar.warp.sync -1; => @low bar.warp.sync -1;>> // here
        """,
        "only 16 lanes of the warp are at an instruction whose member mask names them all",
    ),
    "bar.warp.sync without a member of a part": Minimal(
        """
        <<@low bar.warp.sync 0xffff => @low bar.warp.sync 0x1ffff>>; // here
        """,
        "lane 16 is in the member mask, but not at the instruction",
    ),
    "bar.warp.sync by a lane that is no member": Minimal(
        "bar.warp.sync <<-1 => 0xffff>>; // here",
        "a lane is not in the member mask of the instruction that it runs",
        (0, 16),
    ),
    "shuffle under divergence": Minimal(
        """
        <<shfl.sync.bfly.b32 x, t, 1, 31, -1; => @low shfl.sync.bfly.b32 x, t, 1, 31, -1;>> // here
        """,
        "only 16 lanes of the warp are at an instruction whose member mask names them all",
    ),
    "shuffle from a lane that takes no part": Minimal(
        "@low shfl.sync.bfly.b32 x, t, <<1 => 16>>, 31, 0xffff; // here",
        "shfl reads from a lane that does not take part",
    ),
    "vote under divergence": Minimal(
        """
        <<vote.sync.any.pred c, odd, -1; => @low vote.sync.any.pred c, odd, -1;>> // here
        """,
        "only 16 lanes of the warp are at an instruction whose member mask names them all",
    ),
    "ldmatrix under divergence": Minimal(
        """
        st.shared.v4.b32 [own], {t, t, t, t}; bar.warp.sync -1; <<=> @!low bra END;>>
        ldmatrix.sync.aligned.m8n8.x2.shared.b16 {x, y}, [own]; // here
        END:
        """,
        "an .aligned instruction is run by 16 of the 32 lanes of a warp",
    ),
    "ldmatrix with misaligned rows": Minimal(
        """
        st.shared.v4.b32 [own], {t, t, t, t}; bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {x}, [<<own => own+8>>]; // here
        """,
        "misaligned shared access: 0x[0-9a-f]+ is no multiple of 16",
    ),
    "ldmatrix past the end": Minimal(
        f"""
        st.shared.v4.b32 [own], {{t, t, t, t}}; bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{x}}, [<<own => own+{SHARED}>>]; // here
        """,
        "shared access of 16 bytes at offset 2048 is outside of the block's 2048 bytes",
    ),
    "ldmatrix of rows that were never written": Minimal(
        """
        st.shared.v4.b32 [own], {t, t, t, t}; bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {x}, [<<own => own+1024>>]; // here
        """,
        "read of 16 bytes at shared offset 1024, where nothing was written",
    ),
    "mma under divergence": Minimal(
        """
        .reg .f16x2 s<2>; mov.b32 s0, 0; mov.b32 s1, 0; <<=> @odd bra END;>>
        mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {s0, s1}, {t, t}, {t}, {s0, s1}; // here
        END:
        """,
        "an .aligned instruction is run by 16 of the 32 lanes of a warp",
    ),
    "bra.uni by a part of a warp": Minimal(
        """
        <<@first => @low>> bra.uni END; // here
        END:
        """,
        "bra.uni is taken by a part of the lanes of a warp",
    ),
    "brx.idx past its targets": Minimal(
        """
        TABLE: .branchtargets ONE, END;
        mov.b32 x, <<1 => 2>>;
        brx.idx x, TABLE; // here
        ONE:
        END:
        """,
        "an index that is none of the 2 branch targets",
    ),
    "a loop without end": Minimal(
        """
        mov.b32 x, 0;
        AGAIN: add.u32 x, x, <<1 => 0>>; setp.lt.u32 c, x, 4; @c bra AGAIN; // here
        """,
        "the kernel does not end",
        None,
    ),
    "trap": Minimal(
        """
        setp.gt.u32 c, t, 99; <<@c => @!c>> trap; // here
        """,
        "the kernel traps",
        None,
    ),
}
