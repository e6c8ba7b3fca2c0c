"""128-bit scalars: registers, moves, every state space, atomics."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sim.conftest import Buffer

from cuevo.errors import SimulatorError
from cuevo.sim import Profile, SimExecutor

pytestmark = pytest.mark.unit

START = """
.extern .shared .align 16 .b8 smem[]; .reg .b64 p, q, w, lo, hi; .reg .b32 n, x, own, a, b, c, d;
.reg .b128 v, u, t; .reg .pred odd;
mov.u32 n, %tid.x; and.b32 x, n, 1; setp.eq.u32 odd, x, 1; mul.wide.u32 w, n, 16;
mov.u32 own, smem; mad.lo.u32 own, n, 16, own;
ld.param.u64 p, [p0]; ld.param.u64 q, [p1]; add.u64 p, p, w; add.u64 q, q, w;
"""
NANS = np.array([0x7FF0000000000001, 0xFFF4000000000000, 0x7FF8123456789ABC], np.uint64)
"""Signalling and quiet: what moves 16 bytes must not see numbers in them."""


@pytest.fixture
def rows() -> Any:
    found = np.random.default_rng(1).integers(0, 2**64, (32, 2), np.uint64)
    found[:3, 0] = found[1:4, 1] = NANS
    return found


Wide = Callable[..., Any]


@pytest.fixture
def wide(run_kernel: Any, rows: Any) -> Wide:
    """Results of `body` on `rows`; each thread has its own in p, and its result's in q."""

    def run(body: str, arch: str = "sm_80", shared: int = 512) -> Any:
        out = np.zeros_like(rows)
        run_kernel(f"{START} {body} ret;", rows, out, arch=arch, shared=shared)
        return out

    return run


LOAD, STORE = "ld.global.b128 v, [p];", "st.global.b128 [q], v;"


def test_moves(wide: Wide, rows: Any) -> None:
    assert np.array_equal(wide(f"{LOAD} mov.b128 u, v; mov.b128 v, u; {STORE}"), rows)
    swapped = wide(f"{LOAD} mov.b128 {{lo, hi}}, v; mov.b128 v, {{hi, lo}}; {STORE}")
    assert np.array_equal(swapped, rows[:, ::-1])
    turned = wide(f"{LOAD} mov.b128 {{a, b, c, d}}, v; mov.b128 v, {{d, a, b, c}}; {STORE}")
    assert np.array_equal(turned.view(np.uint32), np.roll(rows.view(np.uint32), 1, axis=1))
    half = wide(f"{LOAD} mov.b128 {{_, hi}}, v; mov.b128 v, {{hi, -2}}; {STORE}")
    assert np.array_equal(half[:, 0], rows[:, 1]) and (half[:, 1] == 2**64 - 2).all()


def test_constants(wide: Wide) -> None:
    out = wide("mov.b128 v, -3; @odd mov.b128 v, 5; " + STORE)
    assert out[0].tolist() == [2**64 - 3, 2**64 - 1] and out[1].tolist() == [5, 0]


def test_guarded_moves(wide: Wide, rows: Any) -> None:
    out = wide(f"{LOAD} mov.b128 u, 7; @odd mov.b128 v, u; {STORE}")
    assert np.array_equal(out[::2], rows[::2]) and (out[1::2] == [7, 0]).all()


@pytest.mark.parametrize(
    "through",
    [
        "st.shared.b128 [own], v; ld.shared.b128 u, [own];",
        "st.volatile.shared.b128 [own], v; ld.relaxed.cta.shared.b128 u, [own];",
        "st.local.b128 [room+16], v; ld.local.b128 u, [room+16];",
        "st.release.gpu.global.b128 [q], v; ld.acquire.gpu.global.b128 u, [q];",
        "cvt.u64.u32 w, own; cvta.shared.u64 w, w; st.b128 [w], v; ld.b128 u, [w];",
        "mov.u64 w, room; cvta.local.u64 w, w; st.b128 [w], v; ld.b128 u, [w];",
        "st.b128 [q], v; ld.relaxed.sys.b128 u, [q];",
    ],
)
def test_there_and_back(run_kernel: Any, rows: Any, through: str) -> None:
    out = np.zeros_like(rows)
    text = f"{START} .local .b128 room[2]; {LOAD} {through} st.global.b128 [q], u; ret;"
    run_kernel(text, rows, out, shared=512)
    assert np.array_equal(out, rows)


MODULE = """
.version 8.4
.target sm_80
.address_size 64
.const .b128 table[2] = {5, -7};
.func (.reg .b128 result) same(.reg .b128 given) { mov.b128 result, given; ret; }
.func (.param .b128 result) kept(.param .b128 given)
{ .reg .b128 v; ld.param.b128 v, [given]; st.param.b128 [result], v; ret; }
.visible .entry test(.param .u64 out, .param .b128 own)
{
    .reg .b64 p; .reg .b128 v, u; .param .b128 there; .param .b128 back;
    ld.param.u64 p, [out];
    ld.const.b128 v, [table+16]; st.global.b128 [p], v;
    ld.param.b128 v, [own]; call (u), same, (v); st.global.b128 [p+16], u;
    st.param.b128 [there], v; call (back), kept, (there);
    ld.param.b128 u, [back]; st.global.b128 [p+32], u;
    ret;
}
"""


def test_constants_and_parameters() -> None:
    out = np.zeros((3, 2), np.uint64)
    packed = np.array([out.ctypes.data, 0, *NANS[:2]], np.uint64).tobytes()
    kernel = SimExecutor("sm_80").load_text("test", MODULE)
    kernel.launch((1, 1, 1), (1, 1, 1), 0, packed, buffers=[Buffer(out)])
    assert out.tolist() == [[2**64 - 7, 2**64 - 1], NANS[:2].tolist(), NANS[:2].tolist()]


# -- Atomics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["global", "shared", ""])
def test_exchange(run_kernel: Any, rows: Any, space: str) -> None:
    out = np.zeros_like(rows)
    place = "own" if space == "shared" else "p"
    dot = f".{space}" if space else ""
    body = f"""
    {START} {LOAD} ld.param.u64 p, [p0]; mov.u32 own, smem; setp.eq.u32 odd, n, 0;
    @odd st.shared.b128 [own], v; bar.sync 0;
    atom.relaxed.gpu{dot}.exch.b128 u, [{place}], v; st.global.b128 [q], u; ret;
    """
    expected = np.concatenate([rows[:1], rows[:-1]])
    last = rows[-1].copy()
    run_kernel(body, rows, out, arch="sm_90", shared=512)
    assert np.array_equal(out, expected)
    assert space == "shared" or np.array_equal(rows[0], last)


@pytest.mark.parametrize("space", ["global", "shared"])
def test_compare_and_swap(run_kernel: Any, space: str) -> None:
    """A counter of 128 bits: each thread adds 2^63 + 1 to it."""
    memory, out = np.zeros((32, 2), np.uint64), np.zeros((32, 2), np.uint64)
    place = "own" if space == "shared" else "p"
    body = f"""
    {START} .reg .b64 l2, h2; .reg .pred done, same; .reg .b32 before;
    ld.param.u64 p, [p0]; mov.u32 own, smem; setp.eq.u32 odd, n, 0;
    mov.b128 v, 0; @odd st.shared.b128 [own], v; bar.sync 0; mov.b128 u, 0;
    AGAIN: mov.b128 {{lo, hi}}, u; add.cc.u64 l2, lo, 0x8000000000000001; addc.u64 h2, hi, 0;
    mov.b128 v, {{l2, h2}}; atom.{space}.cas.b128 t, [{place}], u, v;
    mov.b128 {{l2, h2}}, t; setp.eq.u64 done, l2, lo; setp.eq.and.u64 done, h2, hi, done;
    mov.b128 u, t; @!done bra AGAIN; st.global.b128 [q], v; ret;
    """
    run_kernel(body, memory, out, arch="sm_90", shared=512)
    found = sorted(int(lo) | int(hi) << 64 for lo, hi in out)
    assert found == [k * (2**63 + 1) for k in range(1, 33)]


def test_a_swap_compares_bits(run_kernel: Any) -> None:
    """Compare bits: as a number a NaN is unlike itself, and the two zeros are alike."""
    memory = np.array([[NANS[0], NANS[2]], [0, 0]], np.uint64)
    out = np.zeros((2, 2), np.uint64)
    body = f"""
    {START} {LOAD} mov.b128 u, {{1, 2}}; mov.b128 t, {{{2**63}, 0}}; @odd mov.b128 v, t;
    atom.global.cas.b128 v, [p], v, u; {STORE} ret;
    """
    before = memory.copy()
    run_kernel(body, memory, out, block=2, arch="sm_90")
    assert memory.tolist() == [[1, 2], [0, 0]] and np.array_equal(out, before)


# -- Refusals and faults ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("@odd mov.b128 v, 5; st.global.b128 [q], v;", "reads the register v, which was never"),
        ("ld.global.b128 v, [p+8];", "misaligned global access: .* no multiple of 16"),
        ("ld.shared.b128 v, [own+4];", "misaligned shared access: .* no multiple of 16"),
        ("ld.shared.b128 v, [own];", "read of 16 bytes at shared offset 0, where nothing was"),
        ("ld.global.b128 v, [p+512];", "read of 16 bytes .* outside of every buffer"),
        ("ld.global.v2.b128 {v, u}, [p];", "does not support the instruction ld.global.v2.b128"),
        ("atom.global.and.b128 v, [p], v;", "does not support the instruction"),
        ("selp.b128 v, v, v, odd;", "does not support the instruction"),
        ("ld.global.b64 v, [p];", r"v is declared .b128; ld.global.b64 needs .b64 here"),
        ("cvt.u64.u32 v, n;", r"v is declared .b128; cvt.u64.u32 needs .u64 here"),
        ("mov.b128 lo, v;", r"lo is declared .b64; mov.b128 needs .b128 here"),
        ("mov.b128 v, smem;", "of a kind that it does not take"),
        ("mov.b128 v, %clock64;", "%clock64 is a 64-bit integer"),
        ("mov.b128 v, 1.5;", "1.5 is no operand of type .b128"),
        ("mov.b128 v, {lo, hi, lo};", "mov.b128 does not pack 3 elements"),
        ("mov.b128 v, {x, n};", "x is declared .b32; mov.b128 needs .b64 here"),
        ("ld.global.b32 x, [v];", "v is no 64-bit address"),
        ("ld.shared.b32 x, [v];", r"v is no address: it is \.b128"),
    ],
)
def test_what_is_refused(wide: Wide, body: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        wide(body, arch="sm_90")


def test_a_race_of_half_a_register(run_kernel: Any) -> None:
    body = f"""
    {START} mov.b128 v, 1; st.shared.b128 [own], v; xor.b32 n, n, 32; mov.u32 own, smem;
    mad.lo.u32 own, n, 16, own; ld.shared.b32 x, [own+12]; ret;
    """
    with pytest.raises(SimulatorError, match=r"data race: reads shared offset \d+, which warp 1"):
        run_kernel(body, *np.zeros((2, 128), np.uint64), block=64, shared=1024)


def test_banks_and_sectors(profile_of: Callable[..., Profile], rows: Any) -> None:
    """Wavefronts are those of vectors of four words."""
    results = np.zeros_like(rows)  # in one place, on which the number of sectors depends

    def counts(body: str) -> Any:
        profile = profile_of(f"{START} {body} ret;", rows, results, shared=1024)
        banks = [(use.executions, use.wavefronts, use.ideal) for use in profile.banks]
        return banks, [(use.requests, use.sectors, use.ideal) for use in profile.sectors]

    spread = "mad.lo.u32 own, n, 16, own;"
    banks, sectors = counts(f"{LOAD} {spread} st.shared.b128 [own], v; {STORE}")
    words = "{a, b, c, d}"
    as_vectors = counts(
        f"ld.global.v4.b32 {words}, [p]; {spread} st.shared.v4.b32 [own], {words}; "
        f"st.global.v4.b32 [q], {words};"
    )
    assert (banks, sectors) == as_vectors
    assert banks == [(1, 8, 4)] and len(sectors) == 2
