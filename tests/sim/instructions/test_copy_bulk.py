"""Bulk copies and boxes of tensor maps: what comes, and where."""

from typing import Any

import numpy as np
import pytest

from cuevo.cuda.tensor_map import TensorMap

pytestmark = pytest.mark.unit

START = """
.extern .shared .align 1024 .b8 smem[];
.reg .b64 a, d, map, q; .reg .b32 t, x, y, m, base, own; .reg .pred done, first;
mov.u32 t, %tid.x; mov.u32 base, smem; add.u32 m, base, 16384; mad.lo.u32 own, t, 16, base;
setp.eq.u32 first, t, 0; ld.param.u64 d, [p0]; ld.param.u64 a, [p1]; ld.param.u64 map, [p2];
"""
INIT = """
@first mbarrier.init.shared.b64 [m], 1; fence.mbarrier_init.release.cluster; bar.sync 0;
"""
LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
EXPECT = "@first mbarrier.arrive.expect_tx.shared.b64 _, [m], {};"
WAIT = "W: mbarrier.try_wait.parity.shared.b64 done, [m], 0; @!done bra W;"
OUT = """
.reg .b32 w<4>; ld.shared.v4.b32 {w0, w1, w2, w3}, [own];
mad.wide.u32 d, t, 16, d; st.global.v4.b32 [d], {w0, w1, w2, w3};
"""
FILL = """
.reg .b32 v<4>; mov.u32 v0, t; add.u32 v1, t, 100; add.u32 v2, t, 200; add.u32 v3, t, 300;
st.shared.v4.b32 [own], {v0, v1, v2, v3};
"""
SAVE = f"@first {STORE} [d], [base], 1024; @first cp.async.bulk.commit_group;"


def run(run_kernel: Any, body: str, *arrays: Any, block: int = 64, init: str = INIT) -> None:
    text = START + init + body + " ret;"
    run_kernel(text, *arrays, block=block, shared=17408, arch="sm_90a", readonly=(1,))


def arrays(size: int = 4096) -> tuple[Any, Any]:
    source = np.random.default_rng(1).integers(0, 2**32, size, np.uint32)
    return np.zeros(4096, np.uint32), source


FENCE = "fence.mbarrier_init.release.cluster;"


@pytest.mark.parametrize("init", [INIT, INIT.replace(FENCE, "")], ids=["fenced", "unfenced"])
def test_a_run_comes_to_shared_memory(run_kernel: Any, init: str) -> None:
    """An mbarrier of the own block needs no fence, only its barrier; Triton writes it so. That
    another block's does is among the broken kernels.
    """
    out, source = arrays()
    run(run_kernel, f"{EXPECT.format(1024)} @first {LOAD} [base], [a], 1024, [m]; {WAIT} {OUT}",
        out, source, out, init=init)  # fmt: skip
    assert np.array_equal(out[:256], source[:256])


def test_several_copies_are_one_phase(run_kernel: Any) -> None:
    out, source = arrays()
    body = f"""{EXPECT.format(1024)} @first {LOAD} [base], [a+64], 512, [m];
    @first {LOAD} [base+512], [a+2048], 512, [m]; {WAIT} {OUT}"""
    run(run_kernel, body, out, source, out)
    assert np.array_equal(out[:256], np.concatenate([source[16:144], source[512:640]]))


def test_a_run_goes_to_global_memory(run_kernel: Any) -> None:
    out, source = arrays()
    body = f"""{FILL} fence.proxy.async.shared::cta; bar.sync 0; {SAVE}
    cp.async.bulk.wait_group.read 0; bar.sync 0; st.shared.b32 [own], t;"""
    run(run_kernel, body, out, source, out)
    expected = np.arange(64)[:, None] + [0, 100, 200, 300]
    assert np.array_equal(out[:256].reshape(64, 4), expected)


def test_a_thread_waits_for_its_own_copies(run_kernel: Any) -> None:
    """The copy of the first warp is issued first, and waited for last."""
    out, source = arrays()
    body = f"""{FILL} fence.proxy.async.shared::cta; bar.sync 0;
    .reg .pred one, second; .reg .b32 lane; and.b32 lane, t, 31; setp.eq.u32 one, lane, 0;
    setp.ge.and.u32 second, t, 32, one; mad.wide.u32 d, t, 16, d;
    @one {STORE} [d], [own], 512; @one cp.async.bulk.commit_group; bar.sync 0;
    @second cp.async.bulk.wait_group 0; bar.sync 0; @first cp.async.bulk.wait_group 0;"""
    run(run_kernel, body, out, source, out)
    expected = np.arange(64)[:, None] + [0, 100, 200, 300]
    assert np.array_equal(out[:256].reshape(64, 4), expected)


def test_a_reduction_adds_to_what_is_there(run_kernel: Any) -> None:
    out, source = arrays()
    out[:] = 5
    reduce = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"
    body = f"""{FILL} fence.proxy.async; bar.sync 0; @first {reduce} [d], [base], 1024;
    @first cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"""
    run(run_kernel, body, out, source, out)
    expected = np.arange(64)[:, None] + [5, 105, 205, 305]
    assert np.array_equal(out[:256].reshape(64, 4), expected)


# -- Boxes ----------------------------------------------------------------------------------------


def encoded(tensor_map: TensorMap) -> Any:
    """The map at an address that is a multiple of 64."""
    space = np.zeros(192, np.uint8)
    skip = -space.ctypes.data % 64
    space[skip : skip + 128] = np.frombuffer(tensor_map.encode_for_executor(), np.uint8)
    return space[skip : skip + 128]


TENSOR = "cp.async.bulk.tensor.{}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


def load_box(run_kernel: Any, tensor_map: TensorMap, source: Any, at: tuple[int, ...]) -> Any:
    """The bytes of shared memory, which have been 0xab."""
    size = tensor_map.shared_bytes
    out = np.zeros(max(size, 16) // 4 + 4, np.uint32)
    given = ", ".join(map(str, at))
    steps = f"""{EXPECT.format(tensor_map.box_bytes)}
    .reg .pred more; .reg .b32 w<4>; mad.wide.u32 d, t, 16, d; mov.u32 x, own;
    add.u32 y, base, {size}; setp.ge.u32 more, x, y; @more bra FILLED; mov.b32 w0, 0xabababab;
    FILL: st.shared.v4.b32 [x], {{w0, w0, w0, w0}}; add.u32 x, x, 1024;
    setp.lt.u32 more, x, y; @more bra FILL;
    FILLED: fence.proxy.async.shared::cta; bar.sync 0; mov.u32 x, own;
    @first {TENSOR.format(len(at))} [base], [map, {{{given}}}], [m]; {WAIT}
    setp.ge.u32 more, x, y; @more bra DONE;
    COPY: ld.shared.v4.b32 {{w0, w1, w2, w3}}, [x]; st.global.v4.b32 [d], {{w0, w1, w2, w3}};
    add.u32 x, x, 1024; add.s64 d, d, 1024; setp.lt.u32 more, x, y; @more bra COPY; DONE:"""
    run(run_kernel, steps, out, source, encoded(tensor_map))
    return out.view(np.uint8)[:size]


def expected_box(tensor_map: TensorMap, source: Any, at: tuple[int, ...]) -> Any:
    """One element at a time: a slow model of its own."""
    size = tensor_map.element_bytes
    raw = source.view(np.uint8).ravel()
    box = np.full(tensor_map.shared_bytes, 0xAB, np.uint8)
    strides = (size, *tensor_map.strides)
    shape = tensor_map.box_shape
    for number, index in enumerate(np.ndindex(*reversed(shape))):
        place = [c + i * s for c, i, s in
                 zip(at, reversed(index), tensor_map.element_strides, strict=True)]  # fmt: skip
        pitch = tensor_map.swizzle or shape[0] * size
        target = number // shape[0] * pitch + number % shape[0] * size
        if tensor_map.swizzle:
            row, chunk = target // 128, target // 16
            span = tensor_map.swizzle // 16
            chunk ^= row % 8 % span
            target = 16 * chunk + target % 16
        box[target : target + size] = 0
        if all(0 <= p < e for p, e in zip(place, tensor_map.extents, strict=True)):
            begin = sum(p * s for p, s in zip(place, strides, strict=True))
            box[target : target + size] = raw[begin : begin + size]
    return box


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("at", [(0, 0), (16, 3), (-5, -2), (41, 28), (1000, 1000)])
def test_boxes_of_a_matrix(run_kernel: Any, swizzle: int, at: tuple[int, int]) -> None:
    source = np.random.default_rng(2).integers(0, 2**16, (33, 48), np.uint16)
    width = swizzle // 2 or 24
    rows = TensorMap("bf16", source.ctypes.data, (45, 33), (96,), (width, 8), swizzle)
    assert np.array_equal(load_box(run_kernel, rows, source, at), expected_box(rows, source, at))


@pytest.mark.parametrize(("swizzle", "width"), [(32, 8), (64, 24), (128, 40), (128, 8)])
def test_rows_of_a_box_take_their_swizzle(run_kernel: Any, swizzle: int, width: int) -> None:
    """As H200s have it: what a row does not fill is left alone, and not counted."""
    source = np.random.default_rng(4).integers(0, 2**16, (2, 9, 64), np.uint16)
    strides = (128, 128 * 9)
    rows = TensorMap("bf16", source.ctypes.data, (64, 9, 2), strides, (width, 5, 2), swizzle)
    at = (16, 6, 0)
    assert np.array_equal(load_box(run_kernel, rows, source, at), expected_box(rows, source, at))


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_axes(run_kernel: Any, rank: int) -> None:
    shape = (3, 4, 2, 5, 16)[-rank:]
    source = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    strides = tuple(reversed(source.strides[:-1]))
    box = (8, 3, 2, 2, 2)[:rank]
    steps = (1, 2, 1, 1, 1)[:rank]
    tiles = TensorMap("f32", source.ctypes.data, tuple(reversed(shape)), strides, box,
                      element_strides=steps)  # fmt: skip
    at = (9, 1, -1, 1, 2)[:rank]
    assert np.array_equal(load_box(run_kernel, tiles, source, at), expected_box(tiles, source, at))


def test_a_box_goes_back(run_kernel: Any) -> None:
    """At the edge, what does not exist is not written."""
    out, source = np.zeros((12, 40), np.uint32), np.zeros(16, np.uint32)
    rows = TensorMap("u32", out.ctypes.data, (38, 10), (160,), (32, 8), swizzle=128)
    store = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
    body = f"""{FILL} fence.proxy.async.shared::cta; bar.sync 0;
    @first {store} [map, {{8, 4}}], [base]; @first cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;"""
    run(run_kernel, body, out, source, encoded(rows))
    flat = (np.arange(64)[:, None] + [0, 100, 200, 300]).reshape(8, 8, 4)
    tile = np.stack([flat[r][np.arange(8) ^ r] for r in range(8)]).reshape(8, 32)
    expected = np.zeros_like(out)
    expected[4:10, 8:38] = tile[:6, :30]
    assert np.array_equal(out, expected)
