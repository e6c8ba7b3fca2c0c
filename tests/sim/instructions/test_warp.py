"""cuevo.sim.instructions.warp: shuffles, votes, reductions."""

from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError

pytestmark = pytest.mark.unit

LANES = np.arange(32)


def shuffled(mode: str, by: int, control: int) -> tuple[list[int], list[bool]]:
    """Source lane of each lane and whether it is in range: the pseudocode of the PTX ISA."""
    origins, inside = [], []
    clamp, segment = control & 31, control >> 8 & 31
    for lane in range(32):
        highest = (lane & segment) | (clamp & ~segment & 31)
        lowest = lane & segment
        j = {
            "up": lane - by,
            "down": lane + by,
            "bfly": lane ^ by,
            "idx": lowest | (by & ~segment & 31),
        }[mode]
        good = j >= highest if mode == "up" else j <= highest
        origins.append(j if good else lane)
        inside.append(good)
    return origins, inside


@pytest.mark.parametrize("control", [0x1F, 0x00, 0x181F, 0x1800, 0x0F, 0x1C03])
@pytest.mark.parametrize("by", [0, 1, 2, 5, 16, 31])
@pytest.mark.parametrize("mode", ["bfly", "idx", "up", "down"])
@pytest.mark.parametrize("held", ["constants", "registers"])
def test_shuffle(
    run_elementwise: Any, numbers: Any, mode: str, by: int, control: int, held: str
) -> None:
    a = numbers.integers("u32", 96)
    source = f"{by}, {control}" if held == "constants" else "by, control"
    body = f"""
    .reg .b32 by, control; mov.b32 by, {by}; mov.b32 control, {control};
    shfl.sync.{mode}.b32 d|e, a, {source}, 0xffffffff;
    """
    d, e = run_elementwise(body, a=("u32", a), d="u32", e="pred")
    origins, inside = shuffled(mode, by, control)
    np.testing.assert_array_equal(d.reshape(3, 32), a.reshape(3, 32)[:, origins])
    np.testing.assert_array_equal(e.reshape(3, 32), np.tile(inside, (3, 1)))


def test_shuffle_by_different_lanes_into_its_source(run_elementwise: Any, numbers: Any) -> None:
    a, by = numbers.integers("u32", 64), numbers.rng.integers(0, 32, 64)
    body = "mov.b32 d, a; shfl.sync.idx.b32 d, d, by, 31, -1;"
    d = run_elementwise(body, a=("u32", a), by=("u32", by), d="u32")
    expected = np.take_along_axis(a.reshape(2, 32), by.reshape(2, 32), axis=1)
    np.testing.assert_array_equal(d.reshape(2, 32), expected)


def test_row_maximum_by_butterflies(run_elementwise: Any, numbers: Any) -> None:
    a = numbers.rng.standard_normal(64).astype(np.float32)
    body = """
    .reg .f32 o; mov.f32 d, a;
    shfl.sync.bfly.b32 o, d, 1, 31, 0xffffffff; max.f32 d, d, o;
    shfl.sync.bfly.b32 o, d, 2, 31, 0xffffffff; max.f32 d, d, o;
    """
    d = run_elementwise(body, a=("f32", a), d="f32")
    np.testing.assert_array_equal(d.reshape(-1, 4), np.tile(a.reshape(-1, 4).max(1)[:, None], 4))


def test_votes(run_elementwise: Any, numbers: Any) -> None:
    a = numbers.rng.integers(0, 2, 128)
    a[:32], a[32:64] = 0, 1
    body = """
    .reg .pred p; setp.ne.u32 p, a, 0;
    vote.sync.any.pred d, p, 0xffffffff; vote.sync.all.pred e, p, -1; vote.sync.uni.pred f, p, -1;
    vote.sync.ballot.b32 g, p, -1; vote.sync.any.pred h, !p, -1; activemask.b32 i;
    """
    names = {"d": "pred", "e": "pred", "f": "pred", "g": "u32", "h": "pred", "i": "u32"}
    results = run_elementwise(body, a=("u32", a), **names)
    warps = a.reshape(4, 32).astype(bool)
    some, every = warps.any(1), warps.all(1)
    bits = (warps << LANES.astype(np.uint64)).sum(1)
    full = np.full(4, 0xFFFFFFFF)
    for actual, wanted in zip(
        results, (some, every, every | ~some, bits, ~every, full), strict=True
    ):
        np.testing.assert_array_equal(actual.reshape(4, 32), np.tile(wanted[:, None], 32))


def test_votes_among_the_lanes_of_a_branch(run_elementwise: Any) -> None:
    body = """
    .reg .pred low, p; setp.lt.u32 low, a, 12; setp.gt.u32 p, a, 10; mov.b32 d, 0; mov.b32 e, 0;
    @!low bra DONE; vote.sync.ballot.b32 d, p, 0xfff; activemask.b32 e; bar.warp.sync 0xfff;
    DONE:
    """
    d, e = run_elementwise(body, a=("u32", LANES), d="u32", e="u32")
    assert d.tolist() == [1 << 11] * 12 + [0] * 20
    assert e.tolist() == [0xFFF] * 12 + [0] * 20


def test_reductions(run_elementwise: Any, numbers: Any) -> None:
    a, s = numbers.integers("u32", 64), numbers.integers("s32", 64)
    body = """
    redux.sync.add.u32 d, a, -1; redux.sync.min.s32 e, s, -1; redux.sync.max.u32 f, a, -1;
    redux.sync.and.b32 g, a, -1; redux.sync.or.b32 h, a, -1; redux.sync.xor.b32 i, a, -1;
    """
    names = {"d": "u32", "e": "s32", "f": "u32", "g": "u32", "h": "u32", "i": "u32"}
    results = run_elementwise(body, a=("u32", a), s=("s32", s), **names)
    rows, signed = a.reshape(2, 32), s.reshape(2, 32)
    expected = (
        rows.sum(1, dtype=np.uint32),
        signed.min(1),
        rows.max(1),
        np.bitwise_and.reduce(rows, 1),
        np.bitwise_or.reduce(rows, 1),
        np.bitwise_xor.reduce(rows, 1),
    )
    for actual, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(actual.reshape(2, 32), np.tile(wanted[:, None], 32))


@pytest.mark.parametrize(("op", "expected"), [("add", 10), ("min", 0), ("max", 4)])
def test_reduction_of_some_lanes(run_elementwise: Any, op: str, expected: int) -> None:
    body = f"""
    .reg .pred low; setp.lt.u32 low, a, 5; mov.b32 d, 77; @low redux.sync.{op}.u32 d, a, 31;
    """
    d = run_elementwise(body, a=("u32", LANES), d="u32")
    assert d.tolist() == [expected] * 5 + [77] * 27


@pytest.mark.parametrize(
    "instruction",
    [
        "shfl.sync.bfly.b32 d, a, 1, 31, -1",
        "vote.sync.any.pred p, p, -1",
        "redux.sync.add.u32 d, a, -1",
        "bar.warp.sync -1",
    ],
)
def test_members_that_are_elsewhere(run_elementwise: Any, instruction: str) -> None:
    body = f".reg .pred p; setp.lt.u32 p, a, 9; mov.b32 d, 0; @p {instruction};"
    with pytest.raises(SimulatorError, match="only 9 lanes of the warp are at an instruction"):
        run_elementwise(body, a=("u32", LANES), d="u32")


def test_member_masks_are_checked(run_elementwise: Any) -> None:
    body = ".reg .pred p; setp.lt.u32 p, a, 9; mov.b32 d, 0; @p shfl.sync.bfly.b32 d, a, 1, 31, {};"
    with pytest.raises(SimulatorError, match="lane 9 is in the member mask"):
        run_elementwise(body.format(0x3FF), a=("u32", LANES), d="u32")
    with pytest.raises(SimulatorError, match="not in the member mask of the instruction"):
        run_elementwise(body.format(0xFF), a=("u32", LANES), d="u32")
    with pytest.raises(SimulatorError, match="reads from a lane that does not take part"):
        run_elementwise(body.format(0x1FF), a=("u32", LANES), d="u32")


def test_fences_are_accepted(run_elementwise: Any) -> None:
    body = "membar.cta; membar.gl; fence.acq_rel.gpu; fence.sc.sys; mov.b32 d, a;"
    np.testing.assert_array_equal(run_elementwise(body, a=("u32", LANES), d="u32"), LANES)


def test_matches(run_kernel: Any, numbers: Any) -> None:
    values = numbers.rng.integers(0, 4, 64).astype(np.uint32)
    values[32:] = 7
    out = np.zeros((64, 3), np.uint32)
    body = """
    .reg .b64 p, w, l; .reg .b32 n, x, y; .reg .pred e;
    mov.u32 n, %tid.x; ld.param.u64 p, [p0]; mad.wide.u32 p, n, 4, p; ld.global.b32 x, [p];
    ld.param.u64 p, [p1]; mad.wide.u32 p, n, 12, p; cvt.u64.u32 l, x; not.b64 l, l;
    match.any.sync.b32 y, x, -1; st.global.b32 [p], y;
    match.all.sync.b64 y|e, l, -1; st.global.b32 [p+4], y; selp.b32 y, 1, 0, e;
    st.global.b32 [p+8], y; ret;
    """
    run_kernel(body, values, out, block=64)
    for i, value in enumerate(values):
        warp = values[i // 32 * 32 :][:32]
        assert int(out[i, 0]) == sum(1 << k for k in range(32) if warp[k] == value)
        same = bool((warp == warp[0]).all())
        assert out[i, 1:].tolist() == [0xFFFFFFFF if same else 0, same]


def test_elections(run_kernel: Any) -> None:
    out = np.zeros((32, 2), np.uint32)
    body = """
    .reg .b64 p; .reg .b32 n, x, y; .reg .pred e, h;
    mov.u32 n, %tid.x; ld.param.u64 p, [p0]; mad.wide.u32 p, n, 8, p;
    setp.ge.u32 h, n, 5; mov.b32 x, 99; mov.b32 y, 9;
    @!h bra DONE; elect.sync x|e, 0xffffffe0; selp.b32 y, 1, 0, e;
    DONE: st.global.v2.b32 [p], {x, y}; ret;
    """
    run_kernel(body, out, arch="sm_90")
    assert out[:5].tolist() == [[99, 9]] * 5
    assert out[5:].tolist() == [[5, int(lane == 5)] for lane in range(5, 32)]


def test_transposition_in_registers(run_kernel: Any) -> None:
    matrix = np.arange(128, dtype=np.uint16).reshape(2, 8, 8)
    out = np.zeros_like(matrix)
    body = """
    .reg .b64 p; .reg .b32 n, x; mov.u32 n, %tid.x;
    ld.param.u64 p, [p0]; mad.wide.u32 p, n, 4, p; ld.global.b32 x, [p];
    movmatrix.sync.aligned.m8n8.trans.b16 x, x;
    ld.param.u64 p, [p1]; mad.wide.u32 p, n, 4, p; st.global.b32 [p], x; ret;
    """
    run_kernel(body, matrix, out, block=64)
    np.testing.assert_array_equal(out, matrix.transpose(0, 2, 1))


OFFER = """
.reg .b64 p; .reg .b32 t, x, y, m; .reg .pred c; mov.u32 t, %tid.x; ld.param.u64 p, [p0];
setp.eq.u32 c, t, {leader}; @!c bra JOIN; mov.u32 x, 77; JOIN: {shuffle}
mad.wide.u32 p, t, 4, p; st.global.b32 [p], y; ret;
"""


def test_a_lane_may_offer_what_it_has_not_written(run_kernel: Any) -> None:
    """As in an atomic of one lane for all, whose result the others get."""
    out = np.zeros(32, np.uint32)
    run_kernel(OFFER.format(leader=3, shuffle="shfl.sync.idx.b32 y, x, 3, 31, -1;"), out)
    assert (out == 77).all()
    arms = "mov.u32 m, -1; @!c bra B; {0} bra E; B: {0} E:"
    for leader, shuffle, lane in (
        (3, "shfl.sync.idx.b32 y, x, 4, 31, -1;", 4),
        (31, "shfl.sync.down.b32 y, x, 1, 31, -1;", 1),
        (0, arms.format("shfl.sync.bfly.b32 y, x, 0, 31, m;"), 1),
    ):
        message = f"gets the register x of lane {lane}, which never wrote it"
        with pytest.raises(SimulatorError, match=message):
            run_kernel(OFFER.format(leader=leader, shuffle=shuffle), out)
    with pytest.raises(SimulatorError, match="reads the register x, which was never written"):
        shuffle = "shfl.sync.idx.b32 y, t, x, 31, -1;"
        run_kernel(OFFER.format(leader=3, shuffle=shuffle), out)
