"""Kernels of a few lines with one mistake each.

In a body, ``<<right => wrong>>`` stands for `right` in the original and for `wrong` in the broken
kernel; the comment ``// here`` is on the line at which the fault is to be reported.
"""

import re
from dataclasses import dataclass

START = """
.reg .b64 p, q, at, from, to, wide; .reg .b32 t, lane, warp, x, y, z, w, base, own, next, other;
.reg .b16 h; .reg .pred first, low, odd, c; .extern .shared .align 16 .b8 smem[];
mov.u32 t, %tid.x; and.b32 lane, t, 31; shr.u32 warp, t, 5; mov.u32 base, smem;
ld.param.u64 p, [p0]; ld.param.u64 q, [p1]; mul.wide.u32 wide, t, 16; add.u64 from, p, wide;
add.u64 to, q, wide; mad.lo.u32 own, t, 16, base; xor.b32 next, own, 16; xor.b32 other, t, 32;
mad.lo.u32 other, other, 16, base; setp.eq.u32 first, warp, 0; setp.lt.u32 low, lane, 16;
and.b32 x, t, 1; setp.eq.u32 odd, x, 1;
"""
"""p, q: 4096 bytes each, of which those of p are read-only. Two warps a block, or four; own: 16
bytes of a thread, next: those of its neighbour, other: those of the same lane of another warp.
"""
SHARED = 2048


@dataclass(frozen=True)
class Minimal:
    body: str
    message: str
    """A pattern."""
    thread: tuple[int, int] | None = (0, 0)
    """Warp and lane that are named; None: none is."""
    arch: str = "sm_80"
    """Architecture. With sm_90a there are also `maps`: tensor maps of p and of q, whose boxes are 8
    rows of 128 bytes, swizzled.
    """
    threads: int = 64
    cluster: int = 1
    version: str = "8.0"
    """Version of PTX; with sm_80 it is another one."""

    @property
    def parameter_bytes(self) -> int:
        return 16 if self.arch == "sm_80" else 320

    def text(self, *, broken: bool) -> str:
        body = re.sub(
            r"(?s)<<(.*?)=>(.*?)>>", lambda found: found[2 if broken else 1].strip(), self.body
        )
        plain = self.arch == "sm_80"
        maps = "" if plain else ", .param .align 64 .b8 maps[256]"
        cluster = f".reqnctapercluster {self.cluster}, 1, 1" if self.cluster > 1 else ""
        return f""".version {"7.8" if plain else self.version}
.target {self.arch}
.address_size 64
.visible .entry broken(.param .u64 p0, .param .u64 p1{maps})
{cluster}
{{{START}{body}
    ret;
}}
"""


FILL = "st.shared.v4.b32 [own], {t, t, t, t};"

REGISTERS = {
    "register never written": Minimal(
        """
        <<mov.b32 y, 1; => >>
        add.u32 z, y, 1; // here
        """,
        "reads the register y, which was never written",
    ),
    "register written by some lanes": Minimal(
        """
        mov.b32 y, 1; <<mov.b32 z, 1; => @low mov.b32 z, 1;>>
        add.u32 y, y, z; // here
        """,
        "reads the register z, which was never written",
        (0, 16),
    ),
    "register of a guarded load": Minimal(
        """
        <<mov.b32 y, 0; => >>
        @odd ld.global.b32 y, [from];
        st.global.b32 [to], y; // here
        """,
        "reads the register y, which was never written",
    ),
    "predicate never set": Minimal(
        """
        <<setp.eq.u32 c, t, 0; => >>
        @c st.global.b32 [to], t; // here
        """,
        "reads the register c, which was never written",
    ),
    "local memory never written": Minimal(
        """
        .local .align 4 .b8 room[16];
        st.local.b32 [<<room+4 => room>>], t;
        ld.local.b32 x, [room+4]; // here
        """,
        "local.*written",
    ),
    "local memory beyond its size": Minimal(
        """
        .local .align 4 .b8 room[16]; mov.u64 at, room;
        st.local.b32 [<<at+12 => at+16>>], t; // here
        """,
        "local",
    ),
}

GLOBAL = {
    "read past the end": Minimal(
        "ld.global.b32 x, [<<p+4092 => p+4096>>]; // here",
        "read of 4 bytes at 0x[0-9a-f]+ is outside of every buffer: 4 bytes past the end",
    ),
    "read before the beginning": Minimal(
        "ld.global.b32 x, [<<p => p+-4>>]; // here",
        "read of 4 bytes .* 4 bytes before the beginning",
    ),
    "vector over the end": Minimal(
        "ld.global.v4.b32 {x, y, z, w}, [<<p+4080 => p+4096>>]; // here",
        "read of 16 bytes .* 16 bytes past the end",
    ),
    "one thread too far": Minimal(
        """
        mul.wide.u32 wide, t, <<64 => 68>>; add.u64 at, p, wide;
        ld.global.b32 x, [at]; // here
        """,
        "read of 4 bytes .* past the end",
        (1, 29),
    ),
    "write past the end": Minimal(
        "mov.b16 h, 1; st.global.b16 [<<q+4094 => q+4096>>], h; // here",
        "write of 2 bytes .* 2 bytes past the end",
    ),
    "write to what is read-only": Minimal(
        "st.global.b32 [<<to => from>>], t; // here",
        "write of 4 bytes .* is read-only",
    ),
    "atomic on what is read-only": Minimal(
        "red.global.add.u32 [<<q => p>>], 1; // here",
        "write of 4 bytes .* is read-only",
    ),
    "null pointer": Minimal(
        """
        <<mov.b64 at, p; => mov.b64 at, 0;>>
        ld.global.b32 x, [at]; // here
        """,
        "read of 4 bytes at 0x0 is outside of every buffer",
    ),
    "misaligned word": Minimal(
        "ld.global.b32 x, [<<from+4 => from+2>>]; // here",
        "misaligned global access: 0x[0-9a-f]+ is no multiple of 4",
    ),
    "misaligned vector": Minimal(
        "ld.global.v4.b32 {x, y, z, w}, [<<p+16 => p+8>>]; // here",
        "misaligned global access: 0x[0-9a-f]+ is no multiple of 16",
    ),
    "misaligned vector to write": Minimal(
        "st.global.v2.b32 [<<to+8 => to+4>>], {t, t}; // here",
        "misaligned global access: 0x[0-9a-f]+ is no multiple of 8",
    ),
    "misaligned atomic": Minimal(
        "red.global.add.u32 [<<q+4 => q+2>>], 1; // here",
        "misaligned global access: 0x[0-9a-f]+ is no multiple of 4",
    ),
}

SHARED_MEMORY = {
    "never written": Minimal(
        f"""
        <<{FILL} => >>
        ld.shared.b32 x, [own]; // here
        """,
        "read of 4 bytes at shared offset 0, where nothing was written",
    ),
    "written in part": Minimal(
        """
        mov.b16 h, 1; st.shared.<<b32 => b16>> [own], <<t => h>>;
        ld.shared.b32 x, [own]; // here
        """,
        "read of 4 bytes at shared offset 0, where nothing was written",
    ),
    "written by some lanes": Minimal(
        """
        <<st.shared.b32 [own], t; => @low st.shared.b32 [own], t;>>
        ld.shared.b32 x, [own]; // here
        """,
        "read of 4 bytes at shared offset 256, where nothing was written",
        (0, 16),
    ),
    "atomic on what was never written": Minimal(
        """
        <<st.shared.b32 [own], t; => >>
        red.shared.add.u32 [own], 1; // here
        """,
        "shared offset 0, where nothing was written",
    ),
    "write past the end": Minimal(
        f"st.shared.b32 [<<own+12 => own+{SHARED // 2 + 16}>>], t; // here",
        "shared access of 4 bytes at offset 2048 is outside of the block's 2048 bytes",
        (1, 31),
    ),
    "read past the end": Minimal(
        f"""
        {FILL}
        ld.shared.b32 x, [<<own => own+{SHARED}>>]; // here
        """,
        "shared access of 4 bytes at offset 2048 is outside of the block's 2048 bytes",
    ),
    "before the beginning": Minimal(
        "st.shared.b32 [<<own => own+-16>>], t; // here",
        "shared access of 4 bytes at offset -16 is outside",
    ),
    "misaligned word": Minimal(
        "st.shared.b32 [<<own+4 => own+2>>], t; // here",
        "misaligned shared access: 0x[0-9a-f]+ is no multiple of 4",
    ),
    "misaligned vector": Minimal(
        f"""
        {FILL}
        ld.shared.v2.b32 {{x, y}}, [<<own+8 => own+4>>]; // here
        """,
        "misaligned shared access: 0x[0-9a-f]+ is no multiple of 8",
    ),
}

SPACES = {
    "generic address as a shared one": Minimal(
        """
        cvt.u64.u32 at, own; cvta.shared.u64 at, at; <<cvta.to.shared.u64 at, at; => >>
        st.shared.b32 [at], t; // here
        """,
        "is outside of the block's 2048 bytes",
    ),
    "shared address as a generic one": Minimal(
        """
        cvt.u64.u32 at, own; <<cvta.shared.u64 at, at; => >>
        st.b32 [at], t; // here
        """,
        "write of 4 bytes at 0x400 is outside of every buffer",
    ),
    "shared address as a global one": Minimal(
        """
        cvt.u64.u32 at, own; <<mov.b64 at, to; => >>
        st.global.b32 [at], t; // here
        """,
        "write of 4 bytes at 0x400 is outside of every buffer",
    ),
    "global address as a shared one": Minimal(
        """
        <<cvt.u64.u32 at, own; => mov.b64 at, to;>>
        st.shared.b32 [at], t; // here
        """,
        "is outside of the block's 2048 bytes",
    ),
    "generic address of shared memory as a global one": Minimal(
        """
        cvt.u64.u32 at, own; cvta.shared.u64 at, at; <<mov.b64 at, to; => >>
        st.global.b32 [at], t; // here
        """,
        "is outside of every buffer",
    ),
    "cvta.to.shared of a global address": Minimal(
        """
        cvt.u64.u32 at, own; cvta.shared.u64 at, at; <<=> mov.b64 at, to;>>
        cvta.to.shared.u64 at, at; // here
        """,
        "cvta.to of a generic address that is not in .shared",
    ),
    "copy from a shared address": Minimal(
        """
        <<mov.b64 at, from; => cvt.u64.u32 at, own;>>
        cp.async.ca.shared.global [own], [at], 16; // here
        """,
        "read of 16 bytes at 0x400 is outside of every buffer",
    ),
}
