"""Tensor maps that kernels make: tensormap.replace, and their way to global memory."""

from typing import Any

import numpy as np
import pytest

from cuevo.cuda.tensor_map import TensorMap
from cuevo.errors import SimulatorError

pytestmark = pytest.mark.unit

START = """
.extern .shared .align 128 .b8 smem[]; .reg .b64 map, p; .reg .b32 t, x, base, own;
ld.param.u64 map, [p0]; mov.u32 t, %tid.x; mov.u32 base, smem; mad.lo.u32 own, t, 4, base;
"""
REPLACE = "tensormap.replace.tile"
COPY = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
FIELDS = (
    ("rank", "1"), ("box_dim", "0, 32"), ("box_dim", "1, 8"), ("global_dim", "0, 100"),
    ("global_dim", "1, x"), ("element_stride", "0, 1"), ("element_stride", "1, 1"),
    ("elemtype", "10"), ("swizzle_mode", "2"), ("fill_mode", "1"), ("interleave_layout", "0"),
)  # fmt: skip


def aligned(encoded: bytes) -> Any:
    space = np.zeros(256, np.uint8)
    found = space[-space.ctypes.data % 128 :][:128]
    found[:] = np.frombuffer(encoded, np.uint8)
    return found


def run(run_kernel: Any, body: str, found: Any) -> None:
    run_kernel(START + body + " ret;", found, shared=256, arch="sm_90a")


def test_of_zeros_a_map_is_made(run_kernel: Any) -> None:
    """By all lanes of a warp, which then hand it over together."""
    lines = [f"{REPLACE}.{field}.shared::cta.b1024.b32 [base], {value};" for field, value in FIELDS]
    found = aligned(bytes(128))
    body = f"""
    st.shared.b32 [own], 0; mov.u32 x, 77; bar.warp.sync -1;
    {REPLACE}.global_address.shared::cta.b1024.b64 [base], 4096; {" ".join(lines)}
    {REPLACE}.global_stride.shared::cta.b1024.b64 [base], 0, 208; bar.warp.sync -1;
    {COPY} [map], [base], 128; fence.proxy.tensormap::generic.acquire.gpu [map], 128;
    """
    run(run_kernel, body, found)
    expected = TensorMap("bf16", 4096, (100, 77), (208,), (32, 8), swizzle=64, nan_fill=True)
    assert TensorMap.decode(found.tobytes()) == expected


def test_a_map_is_changed_where_it_is(run_kernel: Any) -> None:
    before = TensorMap("f32", 4096, (64, 5), (256,), (32, 2))
    found = aligned(before.encode_for_executor())
    body = f"mov.u64 p, 8192; {REPLACE}.global_address.global.b1024.b64 [map], p;"
    run(run_kernel, body, found)
    assert TensorMap.decode(found.tobytes()) == TensorMap("f32", 8192, (64, 5), (256,), (32, 2))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{REPLACE}.elemtype.global.b1024.b32 [map], 8;", "no tensor map: no elemtype is 8"),
        (f"{REPLACE}.global_stride.global.b1024.b64 [map], 4, 8;", "has axes up to 3; got 4"),
        (f"{REPLACE}.interleave_layout.global.b1024.b32 [map], 1;", "no interleave_layout is 1"),
        (f"{REPLACE}.rank.global.b1024.b32 [map+64], 0;", "outside of every buffer"),
        (f"{REPLACE}.rank.global.b1024.b32 [map+16], 0;", "at a multiple of 64 bytes"),
        (f"{REPLACE}.rank.shared::cta.b1024.b32 [base], 0;", "where nothing was written"),
        (f"{COPY} [map], [base], 64;", "a tensor map has 128 bytes"),
    ],
)
def test_what_is_no_map(run_kernel: Any, body: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        run(run_kernel, body, aligned(bytes(128)))
