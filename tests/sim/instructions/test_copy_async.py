"""cuevo.sim.instructions.copy_async: what is copied, and when it may be touched."""

from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError

pytestmark = pytest.mark.unit

START = """
.reg .b64 p, q; .reg .b32 n, t, to, x, y, z, w; .extern .shared .align 16 .b8 smem[];
mov.u32 t, %tid.x; mov.u32 x, %ctaid.x; mad.lo.u32 n, x, 32, t;
ld.param.u64 p, [p0]; ld.param.u64 q, [p1];
mad.wide.u32 p, n, 16, p; mad.wide.u32 q, n, 16, q; mov.u32 to, smem; mad.lo.u32 to, t, 16, to;
"""
COPY = "cp.async.cg.shared.global [to], [p], 16;"
OUT = "ld.shared.v4.b32 {x, y, z, w}, [to]; st.global.v4.b32 [q], {x, y, z, w}; ret;"


def run(run_kernel: Any, body: str, data: Any, arch: str = "sm_80") -> Any:
    out = np.zeros((64, 16), np.uint8)
    run_kernel(START + body, data, out, grid=2, shared=1024, arch=arch)
    return out


@pytest.fixture
def data(numbers: Any) -> Any:
    return numbers.rng.integers(1, 256, (64, 16)).astype(np.uint8)


@pytest.mark.parametrize(
    "wait", ["cp.async.commit_group; cp.async.wait_group 0;", "cp.async.wait_all;"]
)
def test_copies_land_at_the_wait(run_kernel: Any, data: Any, wait: str) -> None:
    np.testing.assert_array_equal(run(run_kernel, COPY + wait + OUT, data), data)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_sizes(run_kernel: Any, data: Any, size: int) -> None:
    pieces = "".join(
        f"cp.async.ca.shared::cta.global.L2::128B [to+{at}], [p+{at}], {size};"
        for at in range(0, 16, size)
    )
    np.testing.assert_array_equal(run(run_kernel, pieces + "cp.async.wait_all;" + OUT, data), data)


def test_source_size_fills_with_zeros(run_kernel: Any, data: Any) -> None:
    body = "rem.u32 x, n, 17; cp.async.cg.shared.global [to], [p], 16, x; cp.async.wait_all;" + OUT
    out = run(run_kernel, body, data)
    count = np.arange(64) % 17
    np.testing.assert_array_equal(out, np.where(np.arange(16) < count[:, None], data, 0))
    body = "cp.async.cg.shared.global [to], [p], 16, 5; cp.async.wait_all;" + OUT
    np.testing.assert_array_equal(run(run_kernel, body, data)[:, 5:], 0)


@pytest.mark.parametrize("sign", ["", "!"])
def test_a_source_that_is_ignored(run_kernel: Any, data: Any, sign: str) -> None:
    """It is not read: it may be outside of every buffer."""
    body = f"""
    .reg .pred odd; and.b32 x, n, 1; setp.ne.u32 odd, x, {int(sign == "!")};
    @{sign}odd mov.u64 p, 64; cp.async.cg.shared.global [to], [p], 16, {sign}odd;
    cp.async.wait_all; {OUT}
    """
    ignored = (np.arange(64) % 2 != (sign == "!")) != (sign == "!")
    out = run(run_kernel, body, data)
    np.testing.assert_array_equal(out, np.where(ignored[:, None], 0, data))


@pytest.mark.parametrize("size", [4, 8, 16])
def test_sizes_fill_with_zeros(run_kernel: Any, data: Any, size: int) -> None:
    # Of each piece the first n % (size + 1) bytes.
    pieces = "".join(
        f"cp.async.ca.shared.global [to+{at}], [p+{at}], {size}, x;" for at in range(0, 16, size)
    )
    body = f"rem.u32 x, n, {size + 1}; {pieces} cp.async.wait_all;" + OUT
    out = run(run_kernel, body, data)
    count = np.arange(64)[:, None] % (size + 1)
    np.testing.assert_array_equal(out, np.where(np.arange(16) % size < count, data, 0))


def test_an_empty_source_touches_nothing(run_kernel: Any, data: Any) -> None:
    body = (
        "mov.b64 p, 0; mov.b32 x, 0; cp.async.cg.shared.global [to], [p], 16, x; cp.async.wait_all;"
    )
    assert not run(run_kernel, body + OUT, data).any()


def test_a_source_beyond_its_copy(run_kernel: Any, data: Any) -> None:
    with pytest.raises(SimulatorError, match="a source of 17 bytes for a copy of 16"):
        run(run_kernel, "mov.b32 x, 17; cp.async.cg.shared.global [to], [p], 16, x;", data)


def test_groups_are_waited_for_in_order(run_kernel: Any, data: Any) -> None:
    two = (
        COPY
        + "cp.async.commit_group; cp.async.ca.shared.global [to+512], [p], 16;"
        + "cp.async.commit_group;"
    )
    np.testing.assert_array_equal(run(run_kernel, two + "cp.async.wait_group 1;" + OUT, data), data)
    later = OUT.replace("[to]", "[to+512]")
    with pytest.raises(SimulatorError, match="still in flight"):
        run(run_kernel, two + "cp.async.wait_group 1;" + later, data)
    np.testing.assert_array_equal(
        run(run_kernel, two + "cp.async.wait_group 0;" + later, data), data
    )


@pytest.mark.parametrize(
    "touch",
    [
        OUT,
        "st.shared.b32 [to], t; ret;",
        COPY + "ret;",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {x, y, z, w}, [to]; ret;",
    ],
)
@pytest.mark.parametrize(
    "almost", ["", "cp.async.commit_group;", "cp.async.wait_group 0;", "bar.sync 0;"]
)
def test_in_flight_is_poison(run_kernel: Any, data: Any, touch: str, almost: str) -> None:
    with pytest.raises(SimulatorError, match="an asynchronous copy is still in flight"):
        run(run_kernel, COPY + almost + touch, data)


def test_waiting_is_each_threads_own_affair(run_kernel: Any, data: Any) -> None:
    # Odd lanes do not wait for what they copied.
    body = """
    .reg .pred odd; and.b32 x, t, 1; setp.ne.u32 odd, x, 0; cp.async.cg.shared.global [to], [p], 16;
    cp.async.commit_group; @!odd cp.async.wait_group 0;
    """
    guarded = OUT.replace("ld.", "@!odd ld.").replace("st.", "@!odd st.")
    out = run(run_kernel, body + guarded, data)
    np.testing.assert_array_equal(out[::2], data[::2])
    with pytest.raises(SimulatorError, match=r"in flight(?s:.*)lane 1\]"):
        run(run_kernel, body + OUT, data)
    # Waiting later retires them too.
    out = run(run_kernel, body + "cp.async.wait_group 0;" + OUT, data)
    np.testing.assert_array_equal(out, data)


def test_lanes_that_did_not_copy(run_kernel: Any, data: Any) -> None:
    body = """
    .reg .pred few; setp.lt.u32 few, t, 5; st.shared.v4.b32 [to], {t, t, t, t};
    @few cp.async.cg.shared.global [to], [p], 16; cp.async.wait_all;
    """
    out = run(run_kernel, body + OUT, data)
    few = np.arange(64) % 32 < 5
    np.testing.assert_array_equal(out[few], data[few])
    np.testing.assert_array_equal(out[~few].view(np.uint32)[:, 0], (np.arange(64) % 32)[~few])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("cp.async.cg.shared.global [to+8], [p], 16;", "misaligned shared"),
        ("cp.async.cg.shared.global [to], [p+8], 16;", "misaligned global"),
        ("mov.b32 x, 3; cp.async.cg.shared.global [to], [p+8], 16, x;", "no multiple of 16"),
        ("cp.async.cg.shared.global [to+1024], [p], 16;", "outside of the block's 1024 bytes"),
        ("cp.async.cg.shared.global [to], [p+1024], 16;", "past the end"),
        ("cp.async.cg.shared.global [to], [p], 8;", "does not copy 8 bytes"),
        ("cp.async.ca.shared.global [to], [p], 12;", "does not copy 12 bytes"),
        ("cp.async.ca.shared.global [to], [p], 4, 5;", "a source of 5 bytes for a copy of 4"),
        ("cp.async.wait_group x;", "needs a constant"),
    ],
)
def test_errors(run_kernel: Any, data: Any, body: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        run(run_kernel, body + "ret;", data)


def test_needs_sm_80(run_kernel: Any, data: Any) -> None:
    for body in (COPY, "cp.async.commit_group;", "cp.async.wait_all;"):
        with pytest.raises(SimulatorError, match="needs sm_80 or later; the target is sm_75"):
            run(run_kernel, body, data, "sm_75")


def test_cache_policies(run_kernel: Any) -> None:
    data, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    body = """
    .extern .shared .align 16 .b8 smem[]; .reg .b64 p, q, l; .reg .b32 n, x, s;
    mov.u32 n, %tid.x; ld.param.u64 p, [p0]; ld.param.u64 q, [p1]; mul.lo.u32 x, n, 8;
    mad.wide.u32 p, n, 8, p; mad.wide.u32 q, n, 8, q; mov.u32 s, smem; add.u32 x, x, s;
    createpolicy.fractional.L2::evict_first.b64 l;
    cp.async.ca.shared.global.L2::cache_hint [x], [p], 4, l;
    cp.async.ca.shared.global.L2::cache_hint.L2::128B [x+4], [p+4], 4, 0, l;
    cp.async.wait_all; ld.shared.b32 n, [x]; ld.shared.b32 x, [x+4];
    st.global.v2.b32 [q], {n, x}; ret;
    """
    run_kernel(body, data, out, shared=256)
    np.testing.assert_array_equal(out, np.where(np.arange(64) % 2, 0, data))
    with pytest.raises(SimulatorError, match="no createpolicy has made"):
        no_policy = body.replace("createpolicy.fractional.L2::evict_first.b64 l", "mov.b64 l, 0")
        run_kernel(no_policy, data, out, shared=256)
