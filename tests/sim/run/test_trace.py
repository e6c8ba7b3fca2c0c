"""cuevo.sim.run.trace: what is told of a kernel while it runs."""

from typing import Any

import numpy as np
import pytest
from sim.conftest import kernel_text

from cuevo.arrays import view
from cuevo.sim import SimExecutor, Trace

pytestmark = pytest.mark.unit

# Lines 8 and on are those of the body.
BODY = """
.reg .b64 p, q; .reg .b32 t, n, at; .reg .pred odd; .shared .b32 room[64]; .reg .f32 f;
mov.u32 t, %tid.x;
and.b32 n, t, 1; setp.eq.u32 odd, n, 1;
mov.u32 at, room; mad.lo.u32 at, t, 4, at;
ld.param.u64 p, [p0]; ld.param.u64 q, [p1]; mad.wide.u32 p, t, 4, p;
ld.global.f32 f, [p];
@odd add.f32 f, f, 0f3F800000;
st.shared.f32 [at], f;
bar.sync 0;
ld.shared.v2.b32 {t, n}, [room+8];
red.global.add.u32 [q], 1;
st.global.f32 [p], f;
ret;
"""


FIRST = "block (0, 0, 0), thread (0, 0, 0) [warp 0, lane 0]"


class Line:
    def __init__(self, line: int) -> None:
        self.file, self.line = "ptx/lib/thing.ptx", line - 7


def told(trace: dict[str, Any], *, grid: int = 1, times: int = 1) -> list[str]:
    """Of two warps a block: the line of the body, and what was told."""
    lines: list[str] = []
    x, count = np.arange(64, dtype=np.float32).reshape(8, 8), np.zeros(1, np.uint32)
    executor = SimExecutor(trace=Trace(**trace, write=lines.append))
    kernel = executor.load_text("test", kernel_text(BODY, 2), Line)
    parameters = np.array([x.ctypes.data, count.ctypes.data], np.uint64).tobytes()
    for _ in range(times):
        kernel.launch((grid, 1, 1), (64, 1, 1), 0, parameters, buffers=[view(x), view(count)])
    found = []
    for line in lines:
        head, _, what = line.partition("  ")
        found.append(f"{head.removeprefix('ptx/lib/thing.ptx:').partition(':')[0]} {what}")
    return found


def test_a_line() -> None:
    assert told(
        {"lines": ("lib/thing.ptx:7", "16"), "thread": (33, 0, 0), "block": (1, 0, 0)}, grid=2
    ) == [
        "7 odd = true, f = 0x42040000 (33.0) -> f = 0x42080000 (34.0)",
        "9 ",
    ]
    # A guard that does not hold is told, too: the register stays as it is.
    even = told({"lines": ("thing.ptx:7",), "thread": (2, 0, 0)})
    assert even == ["7 odd = false, f = 0x40000000 (2.0) -> f = 0x40000000 (2.0)"]


def test_registers() -> None:
    assert told({"watch": ("t", "odd"), "thread": (3, 0, 0)}) == [
        "2 t = 0x3 (3)",
        "3 odd = true",
        "10 t = 0x40000000 (1073741824, or 2)",
    ]


@pytest.mark.parametrize(
    ("watched", "said"),
    [
        (
            "shared:0x00:12",
            [
                f"8 writes 4 bytes at shared offset 0, by {FIRST} and 2 more",
                f"10 reads 8 bytes at shared offset 8, by {FIRST} and 63 more",
            ],
        ),
        (
            "p0[1, 2]",
            [
                f"{line} {does} 4 bytes at p0[1, 2] of shape (8, 8), by block (0, 0, 0), "
                "thread (10, 0, 0) [warp 0, lane 10]"
                for line, does in ((6, "reads"), (12, "writes"))
            ],
        ),
    ],
)
def test_memory(watched: str, said: list[str]) -> None:
    assert told({"watch": (watched,)}) == said


def test_an_address() -> None:
    """Of all blocks, as long as lines are left; each launch has as many."""
    x = np.zeros(1, np.uint32)
    lines: list[str] = []
    watch = (f"global:{x.ctypes.data}:4",)
    executor = SimExecutor(trace=Trace(watch=watch, most=2, write=lines.append), profile=True)
    body = ".reg .b64 p; ld.param.u64 p, [p0]; red.global.add.u32 [p], 1; ret;"
    kernel = executor.load_text("test", kernel_text(body, 1))
    parameters = np.array([x.ctypes.data], np.uint64).tobytes()
    for blocks in (1, 600):
        kernel.launch((blocks, 1, 1), (32, 1, 1), 0, parameters, buffers=[view(x)])
    # In three chunks of blocks.
    *first, last = (line.rpartition("lane 0] ")[2] for line in lines)
    assert first == ["and 31 more", *["and 6399 more"] * 2]
    assert "touches 4 bytes at p0[0] of shape (1,), by block (0, 0, 0)" in lines[0]
    assert last == "nothing is told any more, after 2 lines"
    assert kernel.profile is not None and kernel.profile.sectors


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ({"lines": ("thing.ptx",)}, "a line to trace is file:line, such as softmax.ptx:41"),
        ({"lines": ("thing.ptx:99",)}, "of test is at thing.ptx:99; the nearest are at 12 and 13"),
        ({"lines": ("other.ptx:8",)}, "no instruction of test is at other.ptx:8$"),
        ({"watch": ("r7",)}, "test has no register r7"),
        ({"watch": ("p0[1,]",)}, "an element to watch is such as"),
        ({"watch": ("p0[1]",)}, r"the launch has no array with an element p0\[1\]"),
        ({"watch": ("p0[8, 0]",)}, r"no array with an element p0\[8, 0\]"),
        ({"watch": ("local:8",)}, "what is watched is a register, an element .*; not local:8"),
        ({"watch": ("shared:x",)}, "what is watched is .*; not shared:x"),
    ],
)
def test_what_cannot_be_told(trace: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        told(trace)


def test_another_kernel() -> None:
    assert told({"lines": ("nowhere.ptx:1",), "kernel": "other"}) == []
