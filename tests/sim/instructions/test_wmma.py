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
    run_kernel(KERNEL.format(LOAD.format(layout)), aligned(matrix), out)
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
        ("mov.u32 s, 48;" + NIBBLES, "its rows or columns at multiples of 16"),
        ("mov.u32 s, 192;" + BITS, "its rows or columns at multiples of 16"),
    ],
)
def test_what_is_wrong(run_kernel: Any, before: str, message: str) -> None:
    matrix, out = aligned(np.zeros(256, np.float16)), np.zeros((32, 16), np.float16)
    with pytest.raises(SimulatorError, match=message):
        run_kernel(KERNEL.format(before + LOAD.format("row")), matrix, out)


def test_a_fragment_has_its_registers(run_kernel: Any) -> None:
    given, out = aligned(np.zeros(256, np.float16)), np.zeros((32, 16), np.float16)
    for load, count in ((LOAD.format("row"), 8), (NIBBLES, 1), (BITS, 1)):
        wrong = re.sub(r"\{.*\}", "{a0,a1}", load)
        with pytest.raises(SimulatorError, match=f"needs {count} registers here, not 2"):
            run_kernel(KERNEL.format(wrong), given, out)


def aligned(array: Any) -> Any:
    """A copy at a multiple of 32 bytes."""
    space = np.zeros(array.size + 32, array.dtype)
    start = -space.ctypes.data % 32 // array.itemsize
    space[start : start + array.size] = array
    return space[start : start + array.size]
