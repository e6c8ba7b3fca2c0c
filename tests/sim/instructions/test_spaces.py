"""State spaces, generic addresses, local and constant memory, variables of the module."""

import struct
from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor

pytestmark = pytest.mark.unit

START = """
.reg .b64 p, q, g, w; .reg .b32 n, x, y; .reg .pred e;
mov.u32 n, %tid.x; ld.param.u64 p, [p0]; mul.wide.u32 w, n, 4; add.u64 p, p, w;
"""


def run_module(module: str, body: str, out: Any, times: int = 1) -> None:
    text = f"""
    .version 7.8
    .target sm_80
    .address_size 64
    {module}
    .visible .entry test(.param .u64 p0) {{ {START} {body} }}
    """
    kernel = SimExecutor("sm_80").load_text("test", text)

    class Buffer:
        pointer = out.ctypes.data
        extent = (out.ctypes.data, out.ctypes.data + out.nbytes)
        readonly = False

    for _ in range(times):
        kernel.launch(
            (1, 1, 1), (out.size, 1, 1), 0, struct.pack("<Q", out.ctypes.data), buffers=[Buffer()]
        )


def test_local_memory_is_of_the_thread() -> None:
    out = np.zeros(64, np.uint32)
    body = """
    .local .align 16 .b8 own[32]; .local .b32 other;
    st.local.b32 [other], 1; st.local.v2.b32 [own+8], {n, 7}; mov.u64 q, own;
    ld.local.b32 x, [q+8]; ld.local.u8 y, [own+12]; add.u32 x, x, y; st.global.b32 [p], x; ret;
    """
    run_module("", body, out)
    np.testing.assert_array_equal(out, np.arange(64) + 7)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (".local .b32 v; ld.local.b32 x, [v];", "where nothing was written"),
        (".local .b32 v; ld.local.b32 x, [v+4];", "outside of the thread's local"),
        (".local .b64 v; st.local.b32 [v+2], x;", "misaligned"),
        (".local .b32 v; ld.shared.b32 x, [v];", r"v is in \.local, not \.shared"),
        (".local .b32 v; ld.global.b32 x, [v];", r"v is in \.local, not \.global"),
        (".local .b32 v; ld.b32 x, [v];", "where nothing was written"),
        ("ld.const.b32 x, [table+16];", "outside of constant memory"),
        ("mov.u64 q, 1; cvta.to.shared.u64 q, q;", "not in .shared"),
        ("mov.u64 q, -1; ld.b32 x, [q];", "in no state space"),
        ("mov.u64 q, table; cvta.const.u64 q, q; st.b32 [q], 1;", "no state space to be written"),
    ],
)
def test_what_is_wrong_with_an_address(body: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        run_module(
            ".const .align 4 .b32 table[4] = {1, 2, 3, 4};",
            f"mov.b32 x, 0; {body} ret;",
            np.zeros(32, np.uint32),
        )


def test_constants_of_the_module() -> None:
    out = np.zeros(32, np.uint32)
    module = """
    .const .align 4 .b32 table[4] = {10, 0x20, -1, 1+2};
    .const .f32 one = 1.0;
    .visible .const .align 8 .b8 bytes[8] = {1, 2};
    """
    body = """
    and.b32 x, n, 3; mul.wide.u32 w, x, 4; mov.u64 q, table; add.u64 q, q, w;
    ld.const.b32 x, [q]; ld.const.u8 y, [bytes+1]; add.u32 x, x, y;
    ld.const.b32 y, [one]; shr.u32 y, y, 28; add.u32 x, x, y; st.global.b32 [p], x; ret;
    """
    run_module(module, body, out)
    table = np.array([10, 0x20, 2**32 - 1, 3], np.uint32)
    np.testing.assert_array_equal(out, np.tile(table, 8) + np.uint32(2 + 3))


def test_global_variables_live_as_long_as_the_kernel() -> None:
    out = np.zeros(32, np.uint32)
    body = """
    mov.u64 q, counter; atom.global.add.u32 x, [q+4], 1; ld.global.b32 y, [counter];
    st.global.b32 [p], y; setp.eq.u32 e, n, 0; @e ld.global.b32 y, [q+4]; @e st.global.b32 [p], y;
    ret;
    """
    run_module(".global .align 8 .b32 counter[2] = {5};", body, out, times=3)
    assert out[0] == 96 and (out[1:] == 5).all()


def test_generic_addresses() -> None:
    out = np.zeros(32, np.uint32)
    module = ".const .b32 table[2] = {100, 200}; .shared .align 4 .b8 smem[128];"
    body = """
    .local .b32 own; .reg .pred f, l; .reg .b64 h;
    mov.u64 q, smem; cvta.shared.u64 q, q; add.u64 q, q, w; st.b32 [q], n;
    isspacep.shared e, q; isspacep.global f, q;
    mov.u64 g, own; cvta.local.u64 g, g; st.volatile.b32 [g], 1000; isspacep.local l, g;
    mov.u64 h, table; cvta.const.u64 h, h; ld.b32 y, [h+4];
    // Each lane its own space.
    and.b32 x, n, 1; setp.eq.u32 f, x, 1; selp.b64 g, q, g, f;
    setp.lt.u32 f, n, 16; selp.b64 g, p, g, f; @f st.global.b32 [p], 3;
    ld.b32 x, [g]; @e add.u32 x, x, y; @l add.u32 x, x, y;
    cvta.to.shared.u64 q, q; ld.shared.b32 y, [q]; add.u32 x, x, y; st.b32 [p], x; ret;
    """
    run_module(module, body, out)
    n = np.arange(32)
    found = np.where(n < 16, 3, np.where(n % 2 == 1, n, 1000))
    np.testing.assert_array_equal(out, found + 400 + n)


def test_generic_atomics() -> None:
    out = np.zeros(32, np.uint32)
    body = """
    mov.u64 q, smem; st.shared.b32 [q], 0; bar.sync 0; cvta.shared.u64 q, q;
    ld.param.u64 g, [p0]; and.b32 x, n, 1; setp.eq.u32 e, x, 0; selp.b64 q, q, g, e;
    atom.add.u32 x, [q], 1; bar.sync 0; ld.shared.b32 y, [smem];
    @!e bra END; setp.eq.u32 e, n, 2; @e st.global.b32 [p], y; END: ret;
    """
    run_module(
        ".shared .b32 smem;",
        body.replace("st.shared.b32 [q], 0", "setp.eq.u32 e, n, 0; @e st.shared.b32 [q], 0"),
        out,
    )
    assert out[0] == 16 and out[2] == 16


@pytest.mark.parametrize(
    ("registers", "arch", "message"),
    [
        ("mov.u32 x, %envreg31; mov.u32 x, %pm7; mov.u64 c, %pm0_64; mov.u32 x, %tid.w;", 70, ""),
        ("mov.u64 c, %current_graph_exec; mov.u32 x, %reserved_smem_offset_0;", 80, ""),
        ("mov.pred e, %is_explicit_cluster; mov.v4.u32 {x, x, x, x}, %clusterid;", 90, ""),
        ("mov.u32 x, %aggr_smem_size; mov.u32 x, %clusterid.w;", 90, ""),
        ("mov.u32 x, %clusterid.x;", 80, "%clusterid.x needs sm_90 or later"),
        ("mov.v4.u32 {x, x, x, x}, %nclusterid;", 80, "%nclusterid.x needs sm_90"),
        ("mov.u32 x, %reserved_smem_offset_1;", 70, "%reserved_smem_offset_1 needs sm_80"),
        ("mov.u32 x, %is_explicit_cluster;", 90, "%is_explicit_cluster is a predicate"),
        ("mov.u32 x, %envreg32;", 90, "unknown symbol '%envreg32'"),
    ],
)
def test_levels_of_special_registers(
    run_kernel: Any, registers: str, arch: int, message: str
) -> None:
    """As ptxas 13.0 has them."""
    text = f".reg .b32 x; .reg .b64 c; .reg .pred e; {registers} ret;"
    if not message:
        run_kernel(text, np.zeros(1), arch=f"sm_{arch}")
        return
    with pytest.raises(SimulatorError, match=message):
        run_kernel(text, np.zeros(1), arch=f"sm_{arch}")


def test_special_registers(run_kernel: Any) -> None:
    out = np.zeros((2, 32, 8), np.uint32)
    body = """
    .shared .b32 fixed[3]; .reg .b64 p, w; .reg .b64 c, d; .reg .b32 n, b, x<8>; .reg .pred e;
    mov.u32 n, %tid.x; mov.u32 b, %ctaid.x; mad.lo.u32 n, b, 32, n; ld.param.u64 p, [p0];
    mad.wide.u32 p, n, 32, p;
    mov.u32 x0, %smid; mov.u32 x1, %nsmid; mov.u32 x2, %dynamic_smem_size;
    mov.u32 x3, %total_smem_size; mov.u64 c, %clock64; mov.u64 d, %clock64;
    setp.lt.u64 e, c, d; selp.b32 x4, 1, 0, e; mov.u32 x5, WARP_SZ;
    mov.u32 x6, %aggr_smem_size; mov.u32 x7, %envreg2;
    mov.pred e, %is_explicit_cluster; selp.b32 x7, 1, x7, e;
    """ + "".join(f"st.global.b32 [p+{4 * i}], x{i};" for i in range(8))
    run_kernel(f"{body} ret;", out, grid=2, shared=64, arch="sm_90")
    smid, count, dynamic, total, later, lanes, whole, none = (out[..., i] for i in range(8))
    assert (whole == total + 1024).all() and (none == 0).all()
    np.testing.assert_array_equal(smid, np.broadcast_to([[0], [1]], smid.shape))
    assert (count > 1).all() and (dynamic == 64).all() and (total == 76).all()
    assert (later == 1).all() and (lanes == 32).all()
