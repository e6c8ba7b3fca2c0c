"""wmma: fragments whose places are this executor's own, and what it asks of memory. The products
are in tests/sim/compiled.
"""

import re
from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError

pytestmark = pytest.mark.kernel

NIBBLES = "wmma.load.a.sync.aligned.row.m8n8k32.s4 {a0}, [p], s;"
BITS = "wmma.load.b.sync.aligned.col.m8n8k128.b1 {a0}, [p], s;"
LOAD = "wmma.load.a.sync.aligned.{}.m16n16k16.global.f16 {{a0,a1,a2,a3,a4,a5,a6,a7}}, [p], s;"
KERNEL = """
.reg .b32 a<8>, s, t; .reg .b64 p, q, w; .reg .pred c;
ld.param.u64 p, [p0]; ld.param.u64 q, [p1]; mov.u32 t, %tid.x; mov.u32 s, 16;
mul.wide.u32 w, t, 32; add.s64 q, q, w; {}
st.global.v4.b32 [q], {{a0,a1,a2,a3}}; st.global.v4.b32 [q+16], {{a4,a5,a6,a7}}; ret;
"""


@pytest.mark.parametrize("layout", ["row", "col"])
def test_places_of_elements(run_kernel: Any, layout: str) -> None:
    matrix = np.arange(256, dtype=np.float16)
    out = np.zeros((32, 16), np.float16)
    run_kernel(KERNEL.format(LOAD.format(layout)), matrix, out)
    rows = matrix if layout == "row" else matrix.reshape(16, 16).T.ravel()
    assert np.array_equal(out, np.tile(rows.reshape(32, 8), (1, 2)))


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("add.s64 p, p, 16;", "a matrix begins at a multiple of 32 bytes"),
        ("mov.u32 s, 12;", "its rows or columns at multiples of 16"),
        ("mov.u32 s, t; shl.b32 s, s, 3;", "name different strides of a matrix"),
        ("mul.wide.u32 w, t, 32; add.s64 p, p, w;", "name different addresses of a matrix"),
        ("mov.u32 s, 32;", "outside of every buffer"),
        ("setp.lt.u32 c, t, 9; @c bra AT; exit; AT:", r"is run by 9 of the 32 lanes of a warp"),
        ("mov.u32 s, 36;" + NIBBLES, "its rows or columns at multiples of 4"),
        ("mov.u32 s, 144;" + BITS, "its rows or columns at multiples of 4"),
        ("add.s64 p, p, 2;" + NIBBLES, "a matrix begins at a multiple of 4 bytes"),
    ],
)
def test_what_is_wrong(run_kernel: Any, before: str, message: str) -> None:
    matrix, out = np.zeros(256, np.float16), np.zeros((32, 16), np.float16)
    with pytest.raises(SimulatorError, match=message):
        run_kernel(KERNEL.format(before + LOAD.format("row")), matrix, out)


@pytest.mark.parametrize("shift", [0, 4])
@pytest.mark.parametrize("begin", [16, 48])
def test_a_matrix_is_aligned_as_its_array_is_on_a_device(
    run_kernel: Any, begin: int, shift: int
) -> None:
    """Where NumPy has put the array is nothing to the kernel; what is in the array is."""
    space = np.zeros(512, np.float16)
    first = (-space.ctypes.data % 32 + begin) // 2 + shift
    matrix, out = space[first : first + 256], np.zeros((32, 16), np.float16)
    matrix[:] = np.arange(256)
    if shift:
        with pytest.raises(SimulatorError, match="a matrix begins at a multiple of 32 bytes"):
            run_kernel(KERNEL.format(LOAD.format("row")), matrix, out)
    else:
        run_kernel(KERNEL.format(LOAD.format("row")), matrix, out)
        assert np.array_equal(out[:, :8], matrix.reshape(32, 8))


OF_F64 = """
.reg .b64 p, q; .reg .b32 s; .reg .f64 x, y; .reg .b64 w; .reg .b32 t;
ld.param.u64 p, [p0]; ld.param.u64 q, [p1]; mov.u32 t, %tid.x; mov.u32 s, 5;
add.s64 p, p, {};
wmma.load.a.sync.aligned.row.m8n8k4.global.f64 {{x}}, [p], s;
mul.wide.u32 w, t, 8; add.s64 q, q, w; st.global.f64 [q], x; ret;
"""


def test_what_a_matrix_is_aligned_to_depends_on_its_fragment(run_kernel: Any) -> None:
    """Of f64 a lane has 8 bytes of A."""
    given, out = np.arange(48.0), np.zeros(32)
    run_kernel(OF_F64.format(8), given, out)
    assert np.array_equal(out.reshape(8, 4), given[1:41].reshape(8, 5)[:, :4])
    with pytest.raises(SimulatorError, match="a matrix begins at a multiple of 8 bytes"):
        run_kernel(OF_F64.format(4), given, out)


HALVES = """
.reg .b64 p, q; .reg .b32 x<4>, y<4>; .reg .f32 d<8>; .reg .b32 s;
ld.param.u64 p, [p0]; ld.param.u64 q, [p1]; mov.u32 s, 8;
wmma.load.a.sync.aligned.row.m16n16k8.global.tf32 {x0,x1,x2,x3}, [p], s;
wmma.load.b.sync.aligned.col.m16n16k8.global.tf32 {y0,y1,y2,y3}, [p+512], s;
mov.b32 d0, 0; mov.b32 d1, 0; mov.b32 d2, 0; mov.b32 d3, 0;
mov.b32 d4, 0; mov.b32 d5, 0; mov.b32 d6, 0; mov.b32 d7, 0;
wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32
    {d0,d1,d2,d3,d4,d5,d6,d7}, {x0,x1,x2,x3}, {y0,y1,y2,y3}, {d0,d1,d2,d3,d4,d5,d6,d7};
mov.u32 s, 16;
wmma.store.d.sync.aligned.row.m16n16k8.global.f32 [q], {d0,d1,d2,d3,d4,d5,d6,d7}, s; ret;
"""


def test_products_of_tf32_are_added_by_fours(run_kernel: Any) -> None:
    """What is small is added up before it meets what is large."""
    small = 1.9375 * 2.0**-26
    given = np.ones((32, 8), np.float32)
    given[:16] = [small, small, small, small, 1.0, -0.5, 0.0, 0.0]
    out = np.zeros(256, np.float32)
    run_kernel(HALVES, given.ravel(), out, arch="sm_90")
    assert set(out) == {np.float32(0.5 + 2.0**-24)}


def test_a_fragment_has_its_registers(run_kernel: Any) -> None:
    given, out = np.zeros(256, np.float16), np.zeros((32, 16), np.float16)
    for load, count in ((LOAD.format("row"), 8), (NIBBLES, 1), (BITS, 1)):
        wrong = re.sub(r"\{.*\}", "{a0,a1}", load)
        with pytest.raises(SimulatorError, match=f"needs {count} registers here, not 2"):
            run_kernel(KERNEL.format(wrong), given, out)
