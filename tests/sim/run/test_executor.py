"""cuevo.sim.run.executor: loading, launching, and how errors look."""

import gc
import struct
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sim.conftest import kernel_text

from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor
from cuevo.sim.machine.state import Machine

pytestmark = pytest.mark.unit

TEXT = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry add_one(.param .u64 x, .param .u32 n)
.maxntid 128, 1, 1
{
    .reg .b64 p; .reg .b32 i, t, m; .reg .f32 f; .reg .pred in;
    mov.u32 i, %ctaid.x; mov.u32 t, %ntid.x; mov.u32 m, %tid.x; mad.lo.u32 i, i, t, m;
    ld.param.u64 p, [x]; ld.param.u32 m, [n];
    setp.lt.u32 in, i, m;
    mad.wide.u32 p, i, 4, p;
    @in ld.global.f32 f, [p];
    @in add.f32 f, f, 0f3F800000;
    @in st.global.f32 [p], f;
    ret;
}
"""

COUNT_BLOCKS = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry count_blocks(.param .u64 p)
{
    .reg .b64 a, w; .reg .b32 i, j, x;
    mov.u32 i, %ctaid.z; mov.u32 j, %ctaid.y; mad.lo.u32 i, i, 5, j;
    mov.u32 j, %nctaid.x; mov.u32 x, %ctaid.x; mad.lo.u32 i, i, j, x;
    ld.param.u64 a, [p]; cvt.u64.u32 w, i; add.u64 a, a, w;
    mov.b32 x, 1; st.global.b8 [a], x;
    ret;
}
"""


@dataclass(frozen=True)
class Buffer:
    array: Any
    readonly: bool = False

    @property
    def pointer(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def extent(self) -> tuple[int, int]:
        return self.pointer, self.pointer + self.array.nbytes


@dataclass(frozen=True)
class Line:
    file: str
    line: int


def launch(kernel: Any, x: Any, n: int, grid: int = 4, block: int = 64, **options: Any) -> None:
    kernel.launch(
        (grid, 1, 1),
        (block, 1, 1),
        0,
        struct.pack("<QI", x.ctypes.data, n),
        buffers=[Buffer(x, **options)],
    )


def test_launches() -> None:
    x = np.arange(200, dtype=np.float32)
    kernel = SimExecutor("sm_90a").load_text("add_one", TEXT)
    launch(kernel, x, 200)
    np.testing.assert_array_equal(x, np.arange(200) + 1)
    launch(kernel, x, 10, grid=1, block=33)
    assert x[9] == 11 and x[10] == 11


def test_progress_and_chunks() -> None:
    seen: list[tuple[int, int]] = []
    x = np.zeros(100_000, np.float32)
    kernel = SimExecutor(progress=lambda done, total: seen.append((done, total))).load_text(
        "add_one", TEXT
    )
    launch(kernel, x, x.size, grid=-(-x.size // 64))
    assert (x == 1).all()
    blocks = -(-x.size // 64)
    done = [d for d, _ in seen]
    assert len(seen) > 3 and done == sorted(done) and done[-1] == blocks
    assert {total for _, total in seen} == {blocks}


def test_large_and_high_dimensional_grids() -> None:
    out = np.zeros((3, 5, 70_000), np.uint8)
    kernel = SimExecutor().load_text("count_blocks", COUNT_BLOCKS)
    kernel.launch(
        (70_000, 5, 3), (1, 1, 1), 0, struct.pack("<Q", out.ctypes.data), buffers=[Buffer(out)]
    )
    assert (out == 1).all()


def test_the_same_text_is_loaded_once() -> None:
    executor = SimExecutor()
    assert executor.load_text("add_one", TEXT) is executor.load_text("add_one", TEXT)


def test_small_machines_are_kept_and_large_ones_go(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    prepare = Machine.__init__

    def count(machine: Machine, function: Any, geometry: Any, blocks: int, **options: Any) -> None:
        prepare(machine, function, geometry, blocks, **options)
        made.append(machine.warps)

    x = np.zeros(1, np.float32)
    kernel = SimExecutor().load_text("add_one", TEXT)
    monkeypatch.setattr(Machine, "__init__", count)
    for grid in (*range(1, 17), *range(1, 17)):
        launch(kernel, x, 1, grid=grid, block=32)
    assert made == [*range(1, 17)]
    made.clear()
    for grid in (250, 251, 252, 253, 254, 254, 250):
        launch(kernel, x, 1, grid=grid, block=32)
    assert made == [250, 251, 252, 253, 254, 250]


def test_names() -> None:
    executor = SimExecutor("sm_86")
    assert (executor.name, executor.arch) == ("sim:sm_86", "sm_86")
    for bad in ("sm_61", "80", "sm_", "compute_80"):
        with pytest.raises(ValueError, match="arch"):
            SimExecutor(bad)


def origin(line: int) -> Line:
    return Line("ptx/lib/thing.ptx", line + 1000)


def test_a_fault_says_everything() -> None:
    x = np.zeros(100, np.float32)
    kernel = SimExecutor().load_text("add_one", TEXT, origin)
    with pytest.raises(SimulatorError) as caught:
        launch(kernel, x, 101)
    lines = str(caught.value).splitlines()
    begin, end = Buffer(x).extent
    place = "ptx/lib/thing.ptx:1013"
    message = f"read of 4 bytes at {end:#x} is outside of every buffer"
    assert lines == [
        f"{place}: {message}: 4 bytes past the end of x ({begin:#x}..{end:#x})",
        "    @in ld.global.f32 f, [p];",
        "  in add_one",
        "  block (1, 0, 0), thread (36, 0, 0) [warp 1, lane 4]",
    ]


def test_an_error_at_load_says_where() -> None:
    text = TEXT.replace("add.f32 f", "add.bogus.f32 f")
    with pytest.raises(SimulatorError) as caught:
        SimExecutor().load_text("add_one", text, origin)
    assert str(caught.value).splitlines() == [
        "ptx/lib/thing.ptx:1014: the CPU executor does not support the instruction add.bogus.f32",
        "    @in add.bogus.f32 f, f, 0f3F800000;",
        "  in add_one",
    ]


def test_writing_what_is_readonly() -> None:
    x = np.zeros(64, np.float32)
    kernel = SimExecutor().load_text("add_one", TEXT)
    with pytest.raises(SimulatorError, match="is read-only"):
        launch(kernel, x, 64, grid=1, readonly=True)
    assert not x.any()


def test_a_kernel_can_run_again_after_a_fault() -> None:
    x = np.zeros(64, np.float32)
    kernel = SimExecutor().load_text("add_one", TEXT)
    with pytest.raises(SimulatorError):
        launch(kernel, x, 70, grid=2)
    x[:] = 0
    launch(kernel, x, 64, grid=2)
    assert (x == 1).all()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("add.f32 f, f,", "add.f32 f, f, f,", "takes 3 operands, not 4"),
        ("add.f32 f, f,", "add.f32 in, f,", r"in is declared \.pred; add\.f32 needs \.f32 here"),
        ("add.f32 f, f,", "add.f64 f, f,", r"f is declared \.f32; add\.f64 needs \.f64 here"),
        ("0f3F800000", "1", "1 is an integer"),
        ("mad.wide.u32 p, i, 4, p", "mad.wide.u32 i, i, 4, p", r"i is declared \.b32"),
        ("setp.lt.u32 in, i, m", "setp.lt.u32 i, i, m", "i is declared"),
        ("setp.lt.u32 in, i, m", "setp.lt.u32 1, i, m", "must be a register"),
        ("st.global.f32 [p], f", "st.global.f32 p, f", "needs an address in brackets"),
        ("mov.u32 t, %ntid.x", "mov.u64 p, %ntid.x", "is a 32-bit integer"),
        ("ret;", "ret", "expected an operand, found '}'"),
        ("entry add_one", "entry other", "no entry 'add_one' in the text; there are: other"),
    ],
)
def test_what_is_refused_at_load(old: str, new: str, message: str) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new)
    with pytest.raises(SimulatorError, match=message):
        SimExecutor().load_text("add_one", text)


@pytest.mark.parametrize("arch", ["sm_70", "sm_75"])
def test_instructions_of_later_architectures(arch: str) -> None:
    text = TEXT.replace("sm_80", arch)
    x = np.zeros(64, np.float32)
    launch(SimExecutor(arch).load_text("add_one", text), x, 64, grid=1)
    assert (x == 1).all()
    later = text.replace("add.f32 f, f,", "min.NaN.f32 f, f,")
    message = rf"min\.NaN\.f32 needs sm_80 or later; the target is {arch}"
    with pytest.raises(SimulatorError, match=message):
        SimExecutor(arch).load_text("add_one", later)


def test_instructions_of_later_versions() -> None:
    text = TEXT.replace("add.f32 f, f,", "min.NaN.xorsign.abs.f32 f, f,").replace("sm_80", "sm_86")
    text = text.replace(".version 7.0", ".version 7.1")
    with pytest.raises(SimulatorError) as caught:
        SimExecutor("sm_90").load_text("add_one", text, origin)
    assert str(caught.value).splitlines()[0] == (
        "ptx/lib/thing.ptx:1014: min.NaN.xorsign.abs.f32 needs PTX ISA 7.2 or later; "
        "the .version is 7.1"
    )
    SimExecutor("sm_90").load_text("add_one", text.replace(".version 7.1", ".version 7.2"), origin)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sm_80", "sm_86", "the text is for sm_86; this is sm_80"),
        ("sm_80", "sm_13", r"does not support the \.target 'sm_13'"),
        (".version 7.0", ".version 6.5", r"\.target sm_80 needs \.version 7\.0; this is 6\.5"),
        (".version 7.0\n", "", r"must begin with \.version"),
    ],
)
def test_texts_for_other_devices(old: str, new: str, message: str) -> None:
    text = TEXT.replace(old, new)
    if new == "sm_86":
        text = text.replace(".version 7.0", ".version 7.1")
    with pytest.raises(SimulatorError, match=message):
        SimExecutor("sm_80").load_text("add_one", text)


@pytest.mark.parametrize(
    ("grid", "block", "size", "message"),
    [
        ((0, 1, 1), (32, 1, 1), 12, "must be positive"),
        ((1, 1, 1), (1, 32, 0), 12, r"block \(1, 32, 0\) must be positive"),
        ((1, 1.5, 1), (32, 1, 1), 12, "a launch is in integers; got grid"),
        ((1, 1, 1), (2000, 1, 1), 12, "2000 threads in a block; 1024 are the most"),
        ((1, 1, 1), (256, 1, 1), 12, "maxntid allows"),
        ((1, 70_000, 1), (32, 1, 1), 12, "is larger than"),
        ((1, 1, 1), (32, 1, 1), 16, "a parameter block of 16 bytes, not 12"),
    ],
)
def test_launches_that_no_device_takes(
    grid: tuple[int, int, int], block: tuple[int, int, int], size: int, message: str
) -> None:
    kernel = SimExecutor().load_text("add_one", TEXT)
    with pytest.raises(ValueError, match=message):
        kernel.launch(grid, block, 0, bytes(size))


def test_shared_memory_beyond_the_architecture() -> None:
    kernel = SimExecutor("sm_86").load_text("add_one", TEXT)
    with pytest.raises(
        ValueError, match="102400 bytes of shared memory; a block of sm_86 has 101376"
    ):
        kernel.launch((1, 1, 1), (32, 1, 1), 102400, bytes(12))


@pytest.mark.parametrize(
    ("shared", "message"),
    [
        (-1, "add_one: dynamic shared memory must not be negative; got -1"),
        (1.5, r"in integers; got .*, 1\.5 bytes of shared"),
        ("9", "in integers; got .*, 9 bytes of shared"),
    ],
)
def test_shared_memory_is_a_number_of_bytes(shared: Any, message: str) -> None:
    kernel = SimExecutor().load_text("add_one", TEXT)
    with pytest.raises(ValueError, match=message):
        kernel.launch((1, 1, 1), (32, 1, 1), shared, bytes(12))
    kernel.launch((1, 1, 1), (32, 1, 1), np.int64(16), bytes(12))


@pytest.mark.parametrize("arch", ["sm_99", "sm_85", "sm_60", "hopper"])
def test_an_architecture_that_does_not_exist(arch: str) -> None:
    with pytest.raises(ValueError, match=rf"there is no architecture {arch}|sm_70 or later"):
        SimExecutor(arch)


def test_required_block() -> None:
    text = TEXT.replace(".maxntid", ".reqntid")
    kernel = SimExecutor().load_text("add_one", text)
    with pytest.raises(ValueError, match=r"the kernel requires \(128, 1, 1\)"):
        kernel.launch((1, 1, 1), (64, 1, 1), 0, bytes(12))


@pytest.mark.parametrize("enabled", [True, False])
def test_loading_leaves_the_collector_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with pytest.raises(SimulatorError):
            SimExecutor().load_text("k", "no PTX")
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_nobody_uses_is_freed_without_the_collector(
    asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Machine]] = []
    begin = Machine.begin

    def remember(machine: Machine, *arguments: Any) -> None:
        made.append(weakref.ref(machine))
        begin(machine, *arguments)

    monkeypatch.setattr(Machine, "begin", remember)
    text = TEXT
    if asynchronous:
        first = "setp.eq.u32 in, i, 0; @in mbarrier.init.shared.b64 [bar], 1; ret;"
        text = TEXT.replace("ret;", first)
        text = text.replace(".reg .b64 p;", ".reg .b64 p; .shared .b64 bar;")
    gc.disable()
    try:
        executor = SimExecutor()
        kernel = executor.load_text("add_one", text)
        launch(kernel, np.zeros(64, np.float32), 64, 1)
        (machine,) = made
        found = machine()
        assert found is not None
        assert found.asynchronous == asynchronous
        rest = [weakref.ref(executor), weakref.ref(kernel)]
        del executor, kernel, found
        assert machine() is None
        assert [each() for each in rest] == [None, None]
    finally:
        gc.enable()


def test_the_earlier_access_of_a_race_is_found(run_kernel: Any) -> None:
    """In a loop, of the last time round; not what others wrote there, or wrote earlier."""
    out = np.zeros(64, np.uint32)
    body = """
    .reg .b64 p; .reg .b32 t, n, at; .reg .pred c, first; .shared .b32 room[64];
    mov.u32 t, %tid.x; mov.u32 n, 0; setp.lt.u32 first, t, 32; mov.u32 at, room;
    @first st.shared.u32 [at+4], n;
    bar.sync 0;
    AGAIN: setp.eq.u32 c, t, 40;
    @c st.shared.u32 [at+4], n;
    bar.warp.sync -1;
    add.u32 n, n, 1; setp.lt.u32 c, n, 3; @c bra AGAIN;
    @first ld.shared.u32 n, [at+4];
    ret;
    """
    with pytest.raises(SimulatorError) as caught:
        run_kernel(body, out, block=64)
    *_, last = str(caught.value).splitlines()
    line = kernel_text(body, 1).splitlines().index("    @c st.shared.u32 [at+4], n;") + 1
    assert last == (
        f"  earlier at st.shared.u32, test (rendered text):{line}, by block (0, 0, 0), "
        "thread (40, 0, 0) [warp 1, lane 8]"
    )


def test_what_is_not_found_again_is_left_out(run_kernel: Any) -> None:
    """The blocks go another way the second time: what they have written leads them there."""
    flag = np.zeros(64, np.uint32)
    body = """
    .reg .b64 p; .reg .b32 t, n, at; .reg .pred c; .shared .b32 room[64];
    mov.u32 t, %tid.x; mov.u32 at, room; ld.param.u64 p, [p0];
    ld.volatile.global.u32 n, [p]; setp.ne.u32 c, n, 0; @c ret;
    mov.u32 n, 1; st.volatile.global.u32 [p], n;
    mad.lo.u32 at, t, 4, at; st.shared.u32 [at], t; xor.b32 t, t, 32; mov.u32 at, room;
    mad.lo.u32 at, t, 4, at; ld.shared.u32 n, [at]; ret;
    """
    with pytest.raises(SimulatorError, match="data race") as caught:
        run_kernel(body, flag, block=64)
    assert "earlier" not in str(caught.value)
