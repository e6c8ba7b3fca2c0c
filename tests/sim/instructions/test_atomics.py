"""cuevo.sim.instructions.atomic beyond 32-bit integers: swaps, halves, vectors."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuevo.errors import SimulatorError

pytestmark = pytest.mark.unit

START = """
.reg .b64 p, q, w; .reg .b32 n, x, y, z; .reg .b16 h<9>; .reg .f32 f<9>; .reg .b32 r<9>;
.reg .b64 l, k; .reg .pred e;
mov.u32 n, %tid.x; ld.param.u64 p, [p0]; ld.param.u64 q, [p1]; mul.wide.u32 w, n, 4;
add.u64 q, q, w;
"""
DTYPES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def test_compare_and_swap(run_kernel: Any) -> None:
    counter, out = np.zeros(4, np.uint32), np.zeros(64, np.uint32)
    body = f"""
    {START}
    // A lock-free maximum of (n * 7) mod 64.
    mul.lo.u32 x, n, 7; and.b32 x, x, 63; ld.volatile.global.b32 y, [p];
    AGAIN: setp.ge.u32 e, y, x; @e bra DONE;
    atom.relaxed.gpu.global.cas.b32 z, [p], y, x; setp.eq.u32 e, y, z; mov.b32 y, z; @!e bra AGAIN;
    DONE: st.global.b32 [q], x; cvt.u16.u32 h0, n;
    atom.global.cas.b16 h1, [p+4], 0, h0; atom.global.cas.b64 l, [p+8], 0, 5; ret;
    """
    run_kernel(body, counter, out, block=64)
    assert counter[0] == 63 and counter[1] == 1 and counter[2:].tolist() == [5, 0]


def test_long_words(run_kernel: Any) -> None:
    memory, out = np.array([10, 2**40, -5], np.int64), np.zeros(32, np.uint32)
    body = f"""
    {START} cvt.u64.u32 l, n;
    atom.global.exch.b64 k, [p], l; atom.global.min.u64 k, [p+8], l; red.global.max.s64 [p+16], l;
    ret;
    """
    run_kernel(body, memory, out)
    assert memory.tolist() == [31, 0, 31]


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_sums_of_halves(run_kernel: Any, name: str) -> None:
    dtype = DTYPES[name]
    memory, out = np.zeros(6, dtype), np.zeros(32, np.uint32)
    body = f"""
    {START} cvt.rn.f32.u32 f0, n; cvt.rn.{name}.f32 h0, f0; mov.b32 x, {{h0, h0}};
    atom.global.add.noftz.{name} h1, [p], h0; red.global.add.noftz.{name}x2 [p+4], x;
    cvt.rn.f32.{name} f1, h1; cvt.rzi.u32.f32 y, f1; st.global.b32 [q], y; ret;
    """
    if name == "bf16":
        body = body.replace("cvt.rn.f32.bf16", "cvt.f32.bf16")
    body = body.replace("cvt.rn.f32.f16", "cvt.f32.f16")
    run_kernel(body, memory, out, arch="sm_90")
    total, before = dtype(0), []
    for lane in range(32):
        before.append(int(total))
        total = dtype(total + dtype(lane))
    assert out.tolist() == before
    assert memory.astype(float).tolist() == [float(total), 0, float(total), float(total), 0, 0]


def test_vectors(run_kernel: Any) -> None:
    memory, out = np.zeros(8, np.float32), np.zeros(32, np.uint32)
    body = f"""
    {START} cvt.rn.f32.u32 f0, n;
    atom.global.add.v4.f32 {{f1, f2, f3, f4}}, [p], {{f0, f0, 0f3F800000, 0f40000000}};
    red.global.add.v2.f32 [p+16], {{f0, 0f3F800000}};
    cvt.rzi.u32.f32 x, f3; st.global.b32 [q], x; ret;
    """
    run_kernel(body, memory, out, arch="sm_90")
    assert memory.tolist() == [496, 496, 32, 64, 496, 32, 0, 0]
    assert out.tolist() == list(range(32))
    with pytest.raises(SimulatorError, match="misaligned"):
        run_kernel(body.replace("[p],", "[p+8],"), memory, out, arch="sm_90")


def test_vectors_of_halves(run_kernel: Any) -> None:
    memory, out = np.zeros(8, np.float16), np.zeros(32, np.uint32)
    body = f"""
    {START} cvt.rn.f16.u32 h0, n; neg.f16 h1, h0; mov.b32 x, {{h0, h1}};
    red.global.add.noftz.v2.f16 [p], {{h0, h1}};
    atom.global.max.noftz.v2.f16 {{h2, h3}}, [p+4], {{h0, h1}};
    red.global.min.noftz.v2.f16x2 [p+8], {{x, x}}; ret;
    """
    run_kernel(body, memory, out, arch="sm_90")
    assert memory.tolist() == [496, -496, 31, 0, 0, -31, 0, -31]


def test_cache_policies_of_ranges(run_kernel: Any) -> None:
    data, out = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    body = f"""
    {START} add.u64 p, p, w; createpolicy.range.global.L2::evict_last.b64 l, [p], 64, 128;
    createpolicy.cvt.L2.b64 k, 77; ld.global.L2::cache_hint.b32 x, [p], l;
    st.global.L2::cache_hint.b32 [q], x, k; ret;
    """
    run_kernel(body, data, out)
    np.testing.assert_array_equal(out, data)
    with pytest.raises(SimulatorError, match="larger than the whole"):
        run_kernel(body.replace("64, 128", "64, 32"), data, out)


def test_hints_of_lines(run_kernel: Any) -> None:
    storage = np.zeros(128, np.uint32)
    start = -(storage.ctypes.data // 4) % 32
    line, out = storage[start : start + 32], np.zeros(32, np.uint32)
    body = (
        f"{START} applypriority.global.L2::evict_normal [p], 128; discard.global.L2 [p], 128; ret;"
    )
    run_kernel(body, line, out)
    with pytest.raises(SimulatorError, match="no multiple of 128"):
        run_kernel(body.replace("[p]", "[p+4]"), line, out)
    with pytest.raises(SimulatorError, match="a line has 128 bytes"):
        run_kernel(body.replace("128", "64"), line, out)


def test_hinted_atomics(run_kernel: Any) -> None:
    memory, out = np.zeros(2, np.uint32), np.zeros(32, np.uint32)
    body = f"""
    {START} createpolicy.fractional.L2::evict_last.b64 l, 0f3F000000;
    atom.global.add.L2::cache_hint.u32 x, [p], 2, l; red.global.or.L2::cache_hint.b32 [p+4], n, l;
    st.global.b32 [q], x; ret;
    """
    run_kernel(body, memory, out)
    assert memory.tolist() == [64, 31] and out.tolist() == [2 * n for n in range(32)]


def test_subnormal_sums(run_kernel: Any) -> None:
    """Global memory has none of them, shared memory has."""
    memory, out = np.full(2, 1e-40, np.float32), np.zeros(32, np.float32)
    body = f"""
    {START} .shared .f32 own; setp.eq.u32 e, n, 0; mov.b32 f0, 0f00000400; mov.b32 f1, 0f00C00000;
    @e st.shared.f32 [own], 0f00000000; bar.warp.sync -1;
    red.shared.add.f32 [own], f0; @e red.global.add.f32 [p], f0; @e red.global.add.f32 [p+4], f1;
    ld.volatile.shared.f32 f0, [own]; st.global.f32 [q], f0; ret;
    """
    run_kernel(body, memory, out)
    tiny, normal = np.uint32([0x400, 0xC00000]).view(np.float32)
    assert memory.tolist() == [0, normal] and (out == 32 * tiny).all()
