"""cuevo.sim.instructions: load, store, cache and atomic, on global and shared memory."""

import re
import struct
from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor

pytestmark = pytest.mark.unit

START = """
.reg .b64 p, q; .reg .b32 n, x; .extern .shared .align 16 .b8 smem[];
mov.u32 n, %tid.x; mov.u32 x, %ctaid.x; mad.lo.u32 n, x, 32, n;
ld.param.u64 p, [p0]; ld.param.u64 q, [p1];
"""


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("vector", ["", ".v2", ".v4"])
@pytest.mark.parametrize("scalar", ["b8", "u8", "b16", "u16", "b32", "f32", "b64", "f64"])
def test_copies(run_kernel: Any, numbers: Any, scalar: str, vector: str, space: str) -> None:
    bits, count = int(scalar[1:]), int(vector[2:] or 1)
    size = bits // 8 * count
    if size > 16:
        with pytest.raises(SimulatorError, match="does not support the instruction"):
            run_kernel(f".reg .b64 p, r<4>; ld.{space}.v4.{scalar} {{r0, r1, r2, r3}}, [p];")
        return
    data = numbers.rng.integers(0, 256, (64, size)).astype(np.uint8)
    out = np.zeros_like(data)
    listed = "{" + ", ".join(f"r{i}" for i in range(count)) + "}" if vector else "r0"
    through = f"""
    mov.u32 x, smem; and.b32 n, n, 31; mad.lo.u32 x, n, {size}, x;
    st.shared{vector}.{scalar} [x], {listed}; ld.shared{vector}.{scalar} {listed}, [x];
    """
    body = f"""
    {START} .reg .b{max(bits, 16)} r<{count}>;
    mad.wide.u32 p, n, {size}, p; mad.wide.u32 q, n, {size}, q;
    ld.global{vector}.{scalar} {listed}, [p]; {through if space == "shared" else ""}
    st.global{vector}.{scalar} [q], {listed}; ret;
    """
    run_kernel(body, data, out, grid=2, shared=512)
    np.testing.assert_array_equal(out, data)


def test_extension_into_wider_registers(run_elementwise: Any, run_kernel: Any) -> None:
    data = np.array([0x80, 0xFF, 0x7F, 0x01] * 16, np.uint8)
    out = np.zeros((32, 4), np.uint64)
    body = f"""
    {START} .reg .b32 a, b; .reg .b64 c, d; .reg .b16 low;
    mad.wide.u32 p, n, 2, p; mad.wide.u32 q, n, 32, q;
    ld.global.s8 a, [p]; ld.global.u8 b, [p]; ld.global.s16 c, [p]; ld.global.u16 d, [p];
    cvt.s64.s32 p, a; st.global.b64 [q], p; cvt.u64.u32 p, b; st.global.b64 [q+8], p;
    st.global.b64 [q+16], c; st.global.b64 [q+24], d; st.global.b8 [q+25], a; ret;
    """
    run_kernel(body, data, out)
    signed, unsigned = data.view(np.int8)[::2].astype(np.int64), data[::2].astype(np.uint64)
    np.testing.assert_array_equal(out[:, 0].view(np.int64), signed)
    np.testing.assert_array_equal(out[:, 1], unsigned)
    np.testing.assert_array_equal(out[:, 2].view(np.int64), data.view(np.int16).astype(np.int64))
    low = data.view(np.uint16).astype(np.uint64)
    np.testing.assert_array_equal(out[:, 3], (low & np.uint64(0xFF)) | unsigned << np.uint64(8))


def test_a_wider_register_holds_patterns(run_kernel: Any) -> None:
    """A signalling NaN, and a number of f64 that is none of f32."""
    source = np.array([0x7FA00001_40490FDB], np.uint64)
    out = np.zeros(3, np.uint64)
    body = """
    .reg .b64 p, q, a, b, c, d; ld.param.u64 p, [p0]; ld.param.u64 q, [p1];
    ld.global.f32 a, [p+4]; ld.global.v2.f32 {b, c}, [p]; st.global.v2.b64 [q], {a, b};
    ld.global.b64 d, [p]; st.global.v2.b32 [q+16], {d, a}; ret;
    """
    run_kernel(body, source, out, block=1)
    assert [hex(x) for x in out] == ["0x7fa00001", "0x40490fdb", hex(source[0])]


@pytest.mark.parametrize(
    ("statement", "accepted"),
    [
        ("ld.global.f32 wide, [p]", True),
        ("ld.global.f32 double, [p]", False),
        ("ld.global.b32 double, [p]", True),
        ("ld.global.u32 double, [p]", False),
        ("ld.global.f32 signed, [p]", False),
        ("st.global.b32 [p], wide", True),
        ("st.global.f32 [p], wide", False),  # ptxas converts it, the PTX ISA cuts its bits
        ("st.global.f32 [p], double", False),
        ("cvt.f64.f32 double, wide", True),
        ("cvt.rn.f16.f32 single, single", False),
    ],
)
def test_what_may_be_wider_than_its_type(run_kernel: Any, statement: str, accepted: bool) -> None:
    body = f"""
    .reg .b64 p, wide; .reg .f64 double; .reg .s64 signed; .reg .f32 single;
    ld.param.u64 p, [p0]; mov.b64 wide, 0; mov.f64 double, 0d0000000000000000;
    mov.f32 single, 0f00000000; {statement}; ret;
    """
    if accepted:
        run_kernel(body, np.zeros(1, np.uint64), block=1)
    else:
        with pytest.raises(SimulatorError, match=r"is declared \.[bfs]"):
            run_kernel(body, np.zeros(1, np.uint64), block=1)


@pytest.mark.parametrize(
    "opcode",
    [
        "ld.global.nc.b32",
        "ld.global.nc.L1::no_allocate.L2::128B.b32",
        "ld.global.cg.b32",
        "ld.volatile.global.b32",
        "ld.relaxed.gpu.global.b32",
        "ld.acquire.gpu.global.L1::evict_last.b32",
        "ld.weak.global.L2::256B.f32",
    ],
)
def test_hints_change_nothing(run_kernel: Any, opcode: str) -> None:
    data, out = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    body = f"""
    {START} mad.wide.u32 p, n, 4, p; mad.wide.u32 q, n, 4, q;
    prefetch.global.L2 [p+100000]; prefetch.global.L1 [p]; prefetchu.L1 [p];
    {opcode} x, [p]; st.global.cs.u32 [q], x; st.global.L1::evict_first.u32 [q], x;
    st.release.gpu.global.u32 [q], x; ret;
    """
    run_kernel(body, data, out)
    np.testing.assert_array_equal(out, data)


def test_loads_of_rows_that_are_read_once(run_kernel: Any, numbers: Any) -> None:
    data = numbers.integers("u32", 128)
    out = np.zeros_like(data)
    body = f"""
    {START} .reg .b32 a, b, c; mad.wide.u32 p, n, 16, p; mad.wide.u32 q, n, 16, q;
    ld.global.nc.L1::no_allocate.v4.b32 {{x, a, b, c}}, [p];
    st.global.L1::no_allocate.v4.b32 [q], {{x, a, b, c}}; ret;
    """
    run_kernel(body, data, out)
    np.testing.assert_array_equal(out, data)


@pytest.mark.parametrize("level", ["L1", "L2"])
def test_prefetches_are_hints(run_kernel: Any, level: str) -> None:
    # Also of addresses that no access may have; on hardware one outside of all memory is ignored.
    data, out = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    body = f"""
    {START} .reg .pred in; .reg .b64 wild; setp.lt.u32 in, n, 20; mov.b64 wild, 3;
    mad.wide.u32 p, n, 4, p; mad.wide.u32 q, n, 4, q;
    @in prefetch.global.{level} [p]; @!in prefetch.global.{level} [wild];
    ld.global.u32 x, [p]; st.global.u32 [q], x; ret;
    """
    run_kernel(body, data, out)
    np.testing.assert_array_equal(out, data)


POLICY = "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 policy"


def test_cache_policies_are_hints(run_kernel: Any) -> None:
    data, out = np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    body = f"""
    {START} .reg .b32 a, b, c; .reg .b64 policy, other; .reg .f32 half;
    mad.wide.u32 p, n, 16, p; mad.wide.u32 q, n, 16, q;
    mov.f32 half, 0f3F000000; {POLICY}, half; createpolicy.fractional.L2::evict_first.b64 other;
    ld.global.nc.L2::cache_hint.v4.b32 {{x, a, b, c}}, [p], policy;
    st.global.L1::no_allocate.L2::cache_hint.v4.b32 [q], {{x, a, b, c}}, other; ret;
    """
    run_kernel(body, data, out)
    np.testing.assert_array_equal(out, data)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            f"mov.b32 x, 0f00000000; {POLICY}, x;",
            "a fraction of cache lines that is not above 0 and at most 1",
        ),
        (
            f"mov.b32 x, 0f3F800001; {POLICY}, x;",
            "a fraction of cache lines that is not above 0 and at most 1",
        ),
        (
            "mov.b64 policy, 1; st.global.L2::cache_hint.u32 [q], 1, policy;",
            "a cache policy that no createpolicy has made",
        ),
        (f"{POLICY}, 2.0;", "is above 0 and at most 1, not 2.0"),
        ("st.global.L2::cache_hint.u32 [q], 1;", "takes 3 operands, not 2"),
        ("ld.global.u32 x, [p], policy;", "takes 2 operands, not 3"),
    ],
)
def test_what_is_no_cache_policy(run_kernel: Any, body: str, message: str) -> None:
    data, out = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    with pytest.raises(SimulatorError, match=message):
        run_kernel(f"{START} .reg .b64 policy; {body} ret;", data, out)


PARAMETERS = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry test(.param .u64 out, .param .align 8 .b8 block[24], .param .u16 last)
{
    .reg .b64 p, d, a; .reg .b32 n, x; .reg .b16 h; .reg .f32 f;
    ld.param.u64 p, [out];
    ld.param.b64 d, [block+16]; st.global.b64 [p], d;
    ld.param.f32 f, [block+4]; st.global.f32 [p+8], f;
    ld.param.u16 h, [last]; cvt.u32.u16 x, h; st.global.b32 [p+12], x;
    ld.param.v2.b32 {n, x}, [block+8]; st.global.v2.b32 [p+16], {n, x};
    mov.u64 a, block; ld.param.b32 x, [a+12]; st.global.b32 [p+24], x;
    ret;
}
"""


def test_parameters(run_kernel: Any) -> None:
    out = np.zeros(7, np.uint32)

    class Out:
        pointer, extent, readonly = out.ctypes.data, (out.ctypes.data, out.ctypes.data + 28), False

    packed = struct.pack("<QIfIIQH", out.ctypes.data, 5, 1.5, 7, 8, 2**40 + 3, 9)
    kernel = SimExecutor().load_text("test", PARAMETERS)
    kernel.launch((1, 1, 1), (1, 1, 1), 0, packed, buffers=[Out()])
    one_and_half = int(np.float32(1.5).view(np.uint32))
    assert out.tolist() == [3, 2**8, one_and_half, 9, 7, 8, 8]


@pytest.mark.parametrize("offset", [20, -4, 2])
def test_parameters_outside_of_the_block(offset: int) -> None:
    text = PARAMETERS.replace("[block+16]", f"[block+{offset}]")
    with pytest.raises(SimulatorError, match="of the parameter block, which has 24 bytes"):
        SimExecutor().load_text("test", text)


@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomic_additions_return_what_they_found(run_kernel: Any, space: str) -> None:
    total, found = np.zeros(2, np.uint32), np.zeros(64, np.uint32)
    place = "[x]" if space == "shared" else "[p]"
    body = f"""
    {START} .reg .b32 old, zero; .reg .pred first;
    mov.u32 x, smem; mov.b32 zero, 0; mov.u32 old, %tid.x; setp.eq.u32 first, old, 0;
    @first st.shared.u32 [x], zero; bar.sync 0;
    atom.{space}.add.u32 old, {place}, 2; mad.wide.u32 q, n, 4, q; st.global.u32 [q], old;
    @first red.{space}.max.u32 {place}, 1000;
    @first atom.{space}.exch.b32 old, {place}, 5; @first st.global.u32 [q], old; ret;
    """
    run_kernel(body, total, found, grid=2, shared=16)
    assert found[0] == 1000
    if space == "global":
        # The lanes of the first block come first.
        assert found[1:32].tolist() == list(range(2, 64, 2)) and total[0] == 5
        assert found[33:].tolist() == list(range(66, 128, 2))
    else:
        assert found[33:].tolist() == list(range(2, 64, 2))


def test_reductions_in_order(run_kernel: Any, numbers: Any) -> None:
    values = numbers.rng.standard_normal(128).astype(np.float32)
    total = np.zeros(3, np.float32)
    body = f"""
    {START} .reg .f32 f; .reg .b32 s; mad.wide.u32 p, n, 4, p; ld.global.f32 f, [p];
    rem.u32 s, n, 3; mad.wide.u32 q, s, 4, q; red.relaxed.gpu.global.add.f32 [q], f; ret;
    """
    run_kernel(body, values, total, grid=4)
    expected = np.zeros(3, np.float32)
    for i, value in enumerate(values):
        expected[i % 3] += value
    np.testing.assert_array_equal(total, expected)


def test_counters_that_wrap_around(run_kernel: Any) -> None:
    total, found = np.array([3, 3, 40], np.uint32), np.zeros((2, 64), np.uint32)
    body = f"""
    {START} .reg .b32 old; mad.wide.u32 q, n, 4, q;
    atom.global.inc.u32 old, [p], 6; st.global.u32 [q], old;
    atom.acq_rel.gpu.global.dec.u32 old, [p+4], 6; st.global.u32 [q+256], old;
    red.relaxed.gpu.global.inc.u32 [p+8], 40; ret;
    """
    run_kernel(body, total, found, grid=2)
    turn = np.arange(64)
    np.testing.assert_array_equal(found[0], (3 + turn) % 7)
    np.testing.assert_array_equal(found[1], (3 - turn) % 7)
    # 40 goes to 0 first; then 63 more.
    assert total.tolist() == [(3 + 64) % 7, (3 - 64) % 7, 63 - 41]


def test_a_counter_above_its_end(run_kernel: Any) -> None:
    total = np.array([9, 9], np.uint32)
    body = f"""
    {START} .reg .pred first; setp.eq.u32 first, n, 0;
    @first red.global.inc.u32 [p], 6; @first red.global.dec.u32 [p+4], 6; ret;
    """
    run_kernel(body, total, np.zeros(1))
    assert total.tolist() == [0, 6]


def test_tickets(run_kernel: Any) -> None:
    """The last block to arrive sums what all have written: the pattern of split reductions."""
    total, out = np.zeros(2, np.uint32), np.zeros(6, np.uint32)
    body = f"""
    {START} .reg .b32 ticket, blocks, sum, i; .reg .pred first, last, more;
    mov.u32 i, %ctaid.x; mad.wide.u32 q, i, 4, q; mov.u32 n, %tid.x;
    setp.eq.u32 first, n, 0; add.u32 x, i, 100; @first st.global.u32 [q], x;
    membar.gl; bar.sync 0; mov.u32 blocks, %nctaid.x; sub.u32 blocks, blocks, 1;
    @!first bra DONE;
    atom.acq_rel.gpu.global.add.u32 ticket, [p], 1; fence.acq_rel.gpu;
    setp.eq.u32 last, ticket, blocks; @!last bra DONE;
    ld.param.u64 q, [p1]; mov.b32 sum, 0; mov.b32 i, 0;
    MORE: ld.global.cg.u32 x, [q]; add.u32 sum, sum, x; add.u64 q, q, 4; add.u32 i, i, 1;
    setp.le.u32 more, i, blocks; @more bra MORE;
    st.global.u32 [p+4], sum;
    DONE: ret;
    """
    run_kernel(body, total, out, grid=6)
    assert total.tolist() == [6, sum(range(100, 106))]


def test_a_guard_protects_bad_addresses(run_kernel: Any) -> None:
    data, out = np.arange(20, dtype=np.uint32), np.zeros(32, np.uint32)
    body = f"""
    {START} .reg .pred in; mad.wide.u32 p, n, 4, p; mad.wide.u32 q, n, 4, q; mov.b32 x, 99;
    setp.lt.u32 in, n, 20; @in ld.global.u32 x, [p]; st.global.u32 [q], x;
    @in st.global.u32 [p], 7; ret;
    """
    run_kernel(body, data, out)
    assert out.tolist() == [*range(20), *[99] * 12] and (data == 7).all()


def test_addresses_of_32_bits_are_not_global(run_kernel: Any) -> None:
    with pytest.raises(SimulatorError, match="x is no 64-bit address"):
        run_kernel(".reg .b32 x; ld.global.b32 x, [x];")


@pytest.mark.parametrize(
    "opcode", ["ld.global.v3.b32", "ld.global.ca.L1::no_allocate.b32", "ld.register.b32"]
)
def test_what_is_not_known(run_kernel: Any, opcode: str) -> None:
    with pytest.raises(
        SimulatorError, match=f"does not support the instruction {re.escape(opcode)}"
    ):
        run_kernel(f".reg .b64 p; .reg .b32 x; {opcode} x, [p];")
