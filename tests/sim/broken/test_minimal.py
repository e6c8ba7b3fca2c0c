"""Kernels with one mistake each: caught where it is, and their originals clean.

`UNCAUGHT` has mistakes that nothing here sees, with the reason of each; a test holds that they are
not caught, so that they move when the executor learns.
"""

import re
import struct
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pytest
from sim.broken import (
    minimal,
    minimal_async,
    minimal_bulk,
    minimal_cluster,
    minimal_mbarrier,
    minimal_order,
    minimal_wgmma,
)
from sim.broken.minimal import SHARED, Minimal
from sim.broken.minimal_bulk import BOX, COMMITTED, EXPECT, LOAD, PUT, SAVE
from sim.broken.minimal_cluster import SYNC
from sim.broken.minimal_mbarrier import WAIT

from cuevo.cuda.tensor_map import TensorMap
from cuevo.errors import SimulatorError
from cuevo.sim import Budget, SimExecutor
from cuevo.sim.run import budget

pytestmark = pytest.mark.unit

GRID = 2


class Run(Protocol):
    def __call__(self, minimal: Minimal, *, broken: bool) -> None: ...


MINIMAL = {
    f"{group}, {name}": kernel
    for group, kernels in {
        "registers": minimal.REGISTERS,
        "global memory": minimal.GLOBAL,
        "shared memory": minimal.SHARED_MEMORY,
        "spaces": minimal.SPACES,
        "copies": minimal_order.COPIES,
        "races": minimal_order.RACES,
        "barriers": minimal_order.BARRIERS,
        "warps": minimal_order.WARPS,
        "wgmma registers": minimal_wgmma.REGISTERS,
        "wgmma fences": minimal_wgmma.FENCES,
        "wgmma warpgroups": minimal_wgmma.WARPGROUPS,
        "wgmma operands": minimal_wgmma.OPERANDS,
        "phases": minimal_mbarrier.PHASES,
        "mbarriers": minimal_mbarrier.OBJECTS,
        "bulk loads": minimal_bulk.LOADS,
        "bulk stores": minimal_bulk.STORES,
        "boxes": minimal_bulk.BOXES,
        "stages": minimal_bulk.STAGES,
        "clusters": minimal_cluster.BARRIERS,
        "peers": minimal_cluster.PEERS,
        "handed over": minimal_cluster.HANDED_OVER,
        "multicasts": minimal_cluster.MULTICASTS,
        "asynchronous stores": minimal_async.STORES,
        "asynchronous reductions": minimal_async.REDUCTIONS,
    }.items()
    for name, kernel in kernels.items()
}

UNCAUGHT = {
    "a plain read of what another block writes": Minimal(
        "<<=> st.global.b32 [q], 7; ld.global.b32 x, [q];>>",
        "global memory is sequentially consistent here, and blocks run one after the other",
    ),
    "a cached read of what the kernel has written": Minimal(
        "<<=> st.global.b32 [to], t; ld.global.nc.b32 x, [to];>>",
        "ld.global.nc reads what was written last, which a GPU's cache may not have",
    ),
    "a plain read after an atomic": Minimal(
        """
        @first st.shared.b32 [base], t; bar.sync 0;
        red.shared.add.u32 [base], 1; <<bar.sync 0; => >> ld.shared.b32 x, [base];
        """,
        "atomics and volatile accesses leave no tag for plain ones after them",
    ),
    "a barrier of one warp between two": Minimal(
        """
        st.shared.b32 [own], t; <<bar.sync 1; => @first bar.sync 1, 32;>>
        ld.shared.b32 x, [other];
        """,
        "a barrier of some warps clears the tags of the whole block",
    ),
    "a barrier of another warp between two lanes": Minimal(
        """
        st.shared.b32 [own], t; <<bar.warp.sync -1; => @first bar.warp.sync -1;>>
        @!first ld.shared.b32 x, [next];
        """,
        "a barrier of a warp clears the lanes' tags of the whole block",
    ),
    "a wait of one lane for its warp": minimal_mbarrier.kernel(
        f"""
        {minimal_mbarrier.STORE} {minimal_mbarrier.ARRIVE} setp.ne.u32 c, lane, 0;
        @c bra ON; {WAIT} ON: <<bar.warp.sync -1; => >> {minimal_mbarrier.READ}
        """,
        "of other warps' accesses a warp knows what any of its lanes has waited for",
    ),
    "a copy that nobody waits for": Minimal(
        "cp.async.ca.shared.global [own], [from], 16; <<cp.async.wait_all; => >>",
        "what is in flight when a thread exits is dropped",
    ),
    "a write to the source of a copy in flight": Minimal(
        """
        cp.async.ca.shared.global [own], [to], 16; <<=> st.global.b32 [to], t;>>
        cp.async.wait_all;
        """,
        "copies read global memory when they are issued",
    ),
    "lanes that write different values to one word": Minimal(
        "@first st.shared.b32 [<<own => base>>], t;",
        "one of them is written; the ISA does not say which, here it is the last lane's",
    ),
    "a box beside the array": minimal_bulk.load(
        f"""
        @lead {EXPECT} @lead {BOX} [tile], [map, {{0, <<0 => 64>>}}], [m]; {WAIT}
        """,
        "what an array does not have comes as zeros, by which kernels treat its edges",
    ),
    "a swizzled box read as if it were not": minimal_bulk.load(
        f"""
        @lead {EXPECT} @lead {BOX} [tile], [map, {{0, 0}}], [m]; mad.lo.u32 w, t, 16, tile;
        <<shr.u32 x, t, 3; and.b32 x, x, 7; shl.b32 x, x, 4; xor.b32 w, w, x; => >> {WAIT}
        ld.shared.b32 x, [w];
        """,
        "it is data that has come, only of another place: results can show it",
    ),
    "a bulk load of what was just written": minimal_bulk.load(
        f"""
        st.global.b32 [to], t; <<fence.proxy.async.global; => >> bar.sync 0; @lead {EXPECT}
        @lead {LOAD} [tile], [q], 1024, [m]; {WAIT}
        """,
        "global memory has no proxies here",
    ),
    "a plain read of what a bulk store may not have written yet": minimal_bulk.load(
        f"""
        {PUT} fence.proxy.async; bar.sync 0; @lead {SAVE} [q], [tile], 1024; {COMMITTED}
        cp.async.bulk.wait_group<<=>.read>> 0; ld.global.b32 x, [q];
        """,
        "global memory has no tags; what is read is what was there before",
    ),
    "lanes of a warp that store asynchronously to one place": minimal_async.kernel(
        f"""
        {minimal_async.READY} <<=> @first mov.u32 there, away; @first sub.u32 there, there, 64;>>
        {minimal_async.PUT} {WAIT}
        """,
        "one of them comes, as of ordinary stores",
    ),
    "an arrival in another block that is of the own block's scope": minimal_cluster.kernel(
        f"""
        {minimal_cluster.init(64)} st.shared::cluster.b32 [there], t;
        mbarrier.arrive.release.<<cluster => cta>>.shared::cluster.b64 _, [away]; {WAIT}
        ld.shared.b32 x, [own]; {SYNC}
        """,
        "what arrives releases all that is known, whatever the scope",
    ),
}
"""Cases with the reason as `message`."""


@dataclass(frozen=True)
class Line:
    file: str
    line: int


@dataclass(frozen=True)
class Buffer:
    array: Any
    readonly: bool

    @property
    def pointer(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def extent(self) -> tuple[int, int]:
        return self.pointer, self.pointer + self.array.nbytes


def _parameters(p: Any, q: Any) -> bytes:
    maps = b"".join(
        TensorMap(
            "u32", each.ctypes.data, (32, 32), (128,), (32, 8), swizzle=128
        ).encode_for_executor()
        for each in (p, q)
    )
    return struct.pack("<2Q48x", p.ctypes.data, q.ctypes.data) + maps


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(budget, "DEFAULT", Budget(instructions=1000))

    def launch(minimal: Minimal, *, broken: bool) -> None:
        memory = np.zeros(3 * 4096, np.uint8)
        # Around each of the two arrays is memory that belongs to none.
        start = 512 + -memory.ctypes.data % 16
        p, q = (memory[at : at + 4096] for at in (start, start + 5120))
        kernel = SimExecutor(minimal.arch).load_text(
            "broken", minimal.text(broken=broken), lambda line: Line("broken.ptx", line)
        )
        kernel.launch(
            (GRID, 1, 1),
            (minimal.threads, 1, 1),
            SHARED,
            _parameters(p, q)[: minimal.parameter_bytes],
            buffers=[Buffer(p, True), Buffer(q, False)],
        )

    return launch


EVERY = pytest.mark.parametrize("kernel", MINIMAL.values(), ids=MINIMAL.keys())


@EVERY
def test_the_original_is_clean(run: Run, kernel: Minimal) -> None:
    run(kernel, broken=False)


@EVERY
def test_the_mistake_is_caught(run: Run, kernel: Minimal) -> None:
    text = kernel.text(broken=True)
    assert text != kernel.text(broken=False)
    with pytest.raises(SimulatorError) as caught:
        run(kernel, broken=True)
    lines = text.splitlines()
    (here,) = (number for number, line in enumerate(lines, 1) if "// here" in line)
    first, quoted, _, *more = str(caught.value).splitlines()
    place = [line for line in more if not line.startswith("  earlier at ")]
    # Those who race while they run one instruction have nothing that was earlier.
    at_once = " writes without" in first or " at once" in first
    if ("data race" in first and not at_once) or "in flight uses" in first:
        assert len(more) == len(place) + 1
    assert first.startswith(f"broken.ptx:{here}: "), first
    assert re.search(kernel.message, first)
    assert quoted.strip() == lines[here - 1].strip()
    if kernel.thread is not None:
        warp, lane = kernel.thread
        thread = f"thread ({32 * warp + lane}, 0, 0) [warp {warp}, lane {lane}]"
        assert len(place) == 1 and place[0].endswith(f"block (0, 0, 0), {thread}")


@pytest.mark.parametrize("kernel", UNCAUGHT.values(), ids=UNCAUGHT.keys())
def test_what_is_not_caught(run: Run, kernel: Minimal) -> None:
    run(kernel, broken=False)
    run(kernel, broken=True)
