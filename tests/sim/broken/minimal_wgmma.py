"""Kernels of a few lines with one mistake each around wgmma. How they are written: `minimal`."""

from sim.broken.minimal import FILL, SHARED, Minimal

# Fields of a descriptor: 128 bytes from core matrix to core matrix, both ways.
_DISTANCES = 0x0000_0008_0008_0000
START = f"""
.reg .f32 d<4>, e<4>; .reg .b32 a<4>; .reg .b64 b;
mov.b32 a0, t; mov.b32 a1, t; mov.b32 a2, t; mov.b32 a3, t;
mov.f32 d0, 0f00000000; mov.f32 d1, d0; mov.f32 d2, d0; mov.f32 d3, d0;
{FILL} cvt.u64.u32 b, base; shr.u64 b, b, 4; or.b64 b, b, {_DISTANCES:#x};
"""
READY = START + "fence.proxy.async; bar.sync 0;"
FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
WAIT = "wgmma.wait_group.sync.aligned 0;"
D, A = "{d0, d1, d2, d3}", "{a0, a1, a2, a3}"
F16 = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
HALVES = "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16"
TF32 = "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32"
WGMMA = f"{F16} {D}, {A}, b, 1, 1, 1, 0;"
_TOUCHES = "which a wgmma in flight uses: no wgmma.wait_group has waited for it"


def _kernel(
    body: str, message: str, thread: tuple[int, int] | None = (0, 0), threads: int = 128
) -> Minimal:
    return Minimal(body, message, thread, "sm_90a", threads)


REGISTERS = {
    "accumulator read before the wait": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT} <<{WAIT} => >>
        mov.f32 e0, d3; // here
        {WAIT}
        """,
        f"touches the register d3, {_TOUCHES}",
    ),
    "accumulator stored before the wait": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT} <<{WAIT} => >>
        st.global.f32 [to], d0; // here
        {WAIT}
        """,
        f"touches the register d0, {_TOUCHES}",
    ),
    "accumulator written before the wait": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT} <<{WAIT} => >>
        @first mov.f32 d1, 0f00000000; // here
        {WAIT}
        """,
        f"touches the register d1, {_TOUCHES}",
    ),
    "elements of A written before the wait": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT} <<{WAIT} => >>
        mov.b32 a2, 0; // here
        {WAIT}
        """,
        f"touches the register a2, {_TOUCHES}",
    ),
    "elements of A read before the wait": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT} <<{WAIT} => >>
        mov.b32 x, a0; // here
        {WAIT}
        """,
        f"touches the register a0, {_TOUCHES}",
    ),
    "wait for too few groups": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT} {WGMMA} {COMMIT} wgmma.wait_group.sync.aligned <<0 => 1>>;
        mov.f32 e0, d0; // here
        {WAIT}
        """,
        f"touches the register d0, {_TOUCHES}",
    ),
    "no commit": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} <<{COMMIT} => >> {WAIT}
        mov.f32 e0, d0; // here
        """,
        f"touches the register d0, {_TOUCHES}",
    ),
    "one warp does not wait": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT} <<{WAIT} => @!first {WAIT}>>
        mov.f32 e0, d0; // here
        {WAIT}
        """,
        f"touches the register d0, {_TOUCHES}",
    ),
    "accumulators of another shape": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT} <<{WAIT} {FENCE} => >>
        {TF32} {D}, {A}, b, 1, 1, 1; // here
        {COMMIT} {WAIT}
        """,
        "uses the register d0, which a wgmma in flight uses in another shape or as another operand",
    ),
    "accumulators in another order": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT}
        {F16} {{<<d0, d1 => d1, d0>>, d2, d3}}, {A}, b, 1, 1, 1, 0; // here
        {COMMIT} {WAIT}
        """,
        "uses the register d1, which a wgmma in flight uses in another shape or as another operand",
    ),
    "accumulators as elements of A": _kernel(
        f"""
        {READY} {FENCE} {HALVES} {{x, y}}, {A}, b, 0, 1, 1, 0; {COMMIT} <<{WAIT} {FENCE} => >>
        {F16} {D}, {{a0, a1, x, y}}, b, 1, 1, 1, 0; // here
        {COMMIT} {WAIT}
        """,
        "uses the register x, which a wgmma in flight uses in another shape or as another operand",
    ),
    "accumulators that were never written": _kernel(
        f"""
        {READY} {FENCE} setp.eq.u32 c, t, <<1000 => t>>;
        {F16} {{e0, e1, e2, e3}}, {A}, b, c, 1, 1, 0; // here
        {COMMIT} {WAIT}
        """,
        "reads the register e0, which was never written",
    ),
    "elements of A that were never written": _kernel(
        f"""
        {READY} <<mov.b32 z, 0; => >> {FENCE}
        {F16} {D}, {{a0, a1, a2, z}}, b, 1, 1, 1, 0; // here
        {COMMIT} {WAIT}
        """,
        "reads the register z, which was never written",
    ),
}

FENCES = {
    "no fence at all": _kernel(
        f"""
        {READY} <<{FENCE} => >>
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "a wgmma without a wgmma.fence before",
    ),
    "accumulators written after the fence": _kernel(
        f"""
        {READY} <<mov.f32 d2, d1; {FENCE} => {FENCE} mov.f32 d2, d1;>>
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "uses the register d1, which another instruction has used without a wgmma.fence between",
    ),
    "accumulators of a warp written after the fence": _kernel(
        f"""
        {READY} {FENCE} <<=> @first mov.f32 d0, d1;>>
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "uses the register d0, which another instruction has used without a wgmma.fence between",
    ),
    "elements of A written after the fence": _kernel(
        f"""
        {READY} <<mov.b32 a3, 0; {FENCE} => {FENCE} mov.b32 a3, 0;>>
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "uses the register a3, which another instruction has used without a wgmma.fence between",
    ),
    "accumulators read, and then overwritten": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT} {WAIT} st.global.f32 [to], d0; <<{FENCE} => >>
        {F16} {D}, {A}, b, 0, 1, 1, 0; // here
        {COMMIT} {WAIT}
        """,
        "uses the register d0, which another instruction has used without a wgmma.fence between",
    ),
    "written in a loop, with the fence before it": _kernel(
        f"""
        {READY} mov.b32 x, 0; {FENCE}
        AGAIN: <<{FENCE} => >>
        {WGMMA} // here
        {COMMIT} {WAIT} add.u32 a0, a0, 1; add.u32 x, x, 1; setp.lt.u32 c, x, 3; @c bra AGAIN;
        """,
        "uses the register a0, which another instruction has used without a wgmma.fence between",
    ),
    "accumulators of another shape": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT} {WAIT} <<{FENCE} => >>
        {TF32} {D}, {A}, b, 1, 1, 1; // here
        {COMMIT} {WAIT}
        """,
        "uses the register d0, which a wgmma of another shape has used without a wgmma.fence",
    ),
    "a fence of three of the warps": _kernel(
        f"""
        {READY} <<{FENCE} => @!first {FENCE}>>
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "the warps of a warpgroup do not run the same wgmma: the instruction is another",
    ),
    "an exit before the wait": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT} <<{WAIT} => >>
        ret; // here
        """,
        "exits with a wgmma in flight: no wgmma.wait_group waits for it",
    ),
    "an exit without a commit": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} <<{COMMIT} => >> {WAIT}
        ret; // here
        """,
        "exits with a wgmma in flight: no wgmma.commit_group commits it",
    ),
}

WARPGROUPS = {
    "under divergence": _kernel(
        f"""
        {READY} {FENCE} <<=> @low bra END;>>
        {WGMMA} // here
        {COMMIT} {WAIT}
        END:
        """,
        "an .aligned instruction is run by 16 of the 32 lanes of a warp",
        (0, 16),
    ),
    "a warp passes by": _kernel(
        f"""
        {READY} {FENCE} <<=> @first bra END;>>
        {WGMMA} {COMMIT} {WAIT}
        END: ret; // here
        """,
        "exits after 1 of the 4 instructions of wgmma that another warp of the warpgroup has run",
    ),
    "a warp runs one more": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} <<{WGMMA} => @first {WGMMA}>>
        {COMMIT} // here
        {WAIT}
        """,
        "the warps of a warpgroup do not run the same wgmma: the instruction is another",
        (1, 0),
    ),
    "a warp waits by itself": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT} <<=> @first {WAIT}>>
        {WAIT} // here
        """,
        "the warps of a warpgroup do not run the same wgmma: the instruction is another",
        (1, 0),
    ),
    "a warp has exited": _kernel(
        f"""
        {READY} {FENCE} <<=> @first ret;>>
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "wgmma needs the 4 warps of a warpgroup, all of their threads; here run 3",
        (1, 0),
    ),
    "two ways through": _kernel(
        f"""
        {READY} {FENCE} <<=> @!first bra OTHER;>>
        {WGMMA} bra JOIN;
        OTHER: {WGMMA} // here
        JOIN: {COMMIT} {WAIT}
        """,
        "the warps of a warpgroup do not run the same wgmma: the instruction is another",
        (1, 0),
    ),
    "descriptors of a lane": _kernel(
        f"""
        {READY} {FENCE} <<=> @odd add.u64 b, b, 16;>>
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "the lanes of a warp have different descriptors of B",
        (0, 1),
    ),
    "descriptors of a warp": _kernel(
        f"""
        {READY} {FENCE} <<=> @!first add.u64 b, b, 16;>>
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "the warps of a warpgroup do not run the same wgmma: the descriptor of B is another",
    ),
    "scale-d of a lane": _kernel(
        f"""
        {READY} {FENCE} setp.ge.u32 c, lane, <<0 => 3>>;
        {F16} {D}, {A}, b, c, 1, 1, 0; // here
        {COMMIT} {WAIT}
        """,
        "the lanes of a warp have different scale-d",
        (0, 3),
    ),
    "scale-d of a warp": _kernel(
        f"""
        {READY} {FENCE} setp.ge.u32 c, t, <<0 => 64>>;
        {F16} {D}, {A}, b, c, 1, 1, 0; // here
        {COMMIT} {WAIT}
        """,
        "the warps of a warpgroup do not run the same wgmma: the scale-d is another",
    ),
    "a commit under divergence": _kernel(
        f"""
        {READY} {FENCE} {WGMMA}
        <<{COMMIT} => @low {COMMIT}>> // here
        {WAIT}
        """,
        "an .aligned instruction is run by 16 of the 32 lanes of a warp",
    ),
}

OPERANDS = {
    "shared memory that nobody has written": _kernel(
        f"""
        {START.replace(FILL, f"<<{FILL} => @first {FILL}>>")}
        fence.proxy.async; bar.sync 0; add.u64 b, b, 32; {FENCE}
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "asynchronous read at shared offset 512, where nothing was written",
    ),
    "past the end": _kernel(
        f"""
        {READY} add.u64 b, b, <<{SHARED // 16 - 16} => {SHARED // 16 - 15}>>; {FENCE}
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "shared access of 16 bytes at offset 2048 is outside of the block's 2048 bytes",
        (0, 15),
    ),
    "a copy in flight": _kernel(
        f"""
        {START} cp.async.ca.shared.global [own], [from], 16; <<cp.async.wait_all; => >>
        fence.proxy.async; bar.sync 0; {FENCE}
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "asynchronous read at shared offset 0, to which an asynchronous copy is still in flight",
    ),
    "no barrier": _kernel(
        f"""
        {START} fence.proxy.async; <<bar.sync 0; => >> {FENCE}
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "data race: asynchronously reads shared offset",
        None,
    ),
    "no fence of the proxy": _kernel(
        f"""
        {START} <<fence.proxy.async; => >> bar.sync 0; {FENCE}
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "written by ordinary instructions, without a fence.proxy.async between",
    ),
    "written over while it is read": _kernel(
        f"""
        {READY} {FENCE} {WGMMA} {COMMIT} <<{WAIT} => >> bar.sync 0;
        {FILL} // here
        <<=> {WAIT}>>
        """,
        "which an asynchronous instruction still reads: its group was not waited for",
    ),
    "bits without a meaning": _kernel(
        f"""
        {READY} or.b64 b, b, <<0 => 0x4000>>; {FENCE}
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "a descriptor has bits set that belong to none of its fields",
    ),
    "a base offset": _kernel(
        f"""
        {READY} or.b64 b, b, <<0 => 0x0002000000000000>>; {FENCE}
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "a descriptor with a base offset: the CPU executor supports none but 0",
    ),
    "the second row of a pattern": _kernel(
        f"""
        {READY} or.b64 b, b, 0xC000000000000000; add.u64 b, b, <<16 => 2>>; {FENCE}
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "a descriptor's start is not in the first row of its swizzle's pattern of 8 rows",
    ),
    "the middle of a row": _kernel(
        f"""
        {READY} or.b64 b, b, 0xC000000000000000; add.u64 b, b, <<0 => 1>>; {FENCE}
        {WGMMA} // here
        {COMMIT} {WAIT}
        """,
        "the operand needs 32 bytes of each row of the swizzle's pattern, and its start leaves",
    ),
}
