"""cuevo.sim.instructions.members: lanes of a warp that run an instruction in groups."""

from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError

pytestmark = pytest.mark.unit

LANES = np.arange(32)
HALVES = np.where(LANES < 16, 0xFFFF, 0xFFFF0000)
PAIRS = 3 << (LANES & ~1)
MIXED = np.array(
    [sum(1 << k for k in range(32) if k * 7 % 5 == lane * 7 % 5) for lane in range(32)]
)


def group(mask: int) -> list[int]:
    return [lane for lane in range(32) if mask >> lane & 1]


def test_sums_of_halves(run_elementwise: Any) -> None:
    d = run_elementwise("redux.sync.add.u32 d, a, m;", a=("u32", LANES), m=("u32", HALVES), d="u32")
    assert d.tolist() == [120] * 16 + [376] * 16


@pytest.mark.parametrize("masks", [HALVES, PAIRS, MIXED, 1 << LANES], ids=str)
def test_groups_keep_to_themselves(run_elementwise: Any, numbers: Any, masks: Any) -> None:
    a = numbers.rng.integers(0, 4, 32)
    body = """
    .reg .pred p; setp.gt.u32 p, a, 1;
    redux.sync.min.u32 d, a, m; redux.sync.xor.b32 e, a, m;
    vote.sync.any.pred f, p, m; vote.sync.all.pred g, p, m; vote.sync.uni.pred h, p, m;
    vote.sync.ballot.b32 i, p, m; match.any.sync.b32 j, a, m; match.all.sync.b32 k|l, a, m;
    elect.sync n|o, m;
    """
    names = dict.fromkeys("deijkn", "u32") | dict.fromkeys("fghlo", "pred")
    results = run_elementwise(
        body, arch="sm_90", a=("u32", a), m=("u32", masks), **dict(sorted(names.items()))
    )
    found = dict(zip(sorted(names), results, strict=True))
    for lane in range(32):
        mine = group(int(masks[lane]))
        values, high = a[mine], a[mine] > 1
        same = bool((values == values[0]).all())
        expected = {
            "d": values.min(),
            "e": np.bitwise_xor.reduce(values),
            "f": high.any(),
            "g": high.all(),
            "h": high.all() or not high.any(),
            "i": sum(1 << k for k in mine if a[k] > 1),
            "j": sum(1 << k for k in mine if a[k] == a[lane]),
            "k": int(masks[lane]) if same else 0,
            "l": same,
            "n": mine[0],
            "o": lane == mine[0],
        }
        assert {name: found[name][lane] for name in expected} == expected


def test_the_mask_may_be_overwritten(run_elementwise: Any) -> None:
    body = "mov.b32 d, m; redux.sync.or.b32 d, d, d;"
    d = run_elementwise(body, m=("u32", PAIRS), d="u32")
    np.testing.assert_array_equal(d, PAIRS)


def test_shuffles_of_halves(run_elementwise: Any, numbers: Any) -> None:
    a = numbers.integers("u32", 32)
    body = "shfl.sync.down.b32 d, a, 3, 0x101f, m; shfl.sync.idx.b32 e, a, by, 31, m;"
    by = np.where(LANES < 16, 9, 25)
    d, e = run_elementwise(body, a=("u32", a), by=("u32", by), m=("u32", HALVES), d="u32", e="u32")
    origins = np.where(LANES % 16 + 3 < 16, LANES + 3, LANES)
    np.testing.assert_array_equal(d, a[origins])
    np.testing.assert_array_equal(e, a[by])


def test_exited_lanes_may_be_named(run_kernel: Any) -> None:
    out = np.zeros(32, np.uint32)
    body = """
    .reg .b64 p; .reg .b32 n, x; .reg .pred few; mov.u32 n, %tid.x; ld.param.u64 p, [p0];
    mad.wide.u32 p, n, 4, p; setp.lt.u32 few, n, 4; @few ret;
    redux.sync.add.u32 x, n, 0xff; st.global.b32 [p], x; ret;
    """
    run_kernel(body.replace("@few ret;", "@few ret; setp.ge.u32 few, n, 8; @few ret;"), out)
    assert out.tolist() == [0] * 4 + [22] * 4 + [0] * 24


@pytest.mark.parametrize(
    ("statement", "masks", "message"),
    [
        # The source is active, but of the other half.
        ("shfl.sync.bfly.b32 d, a, 16, 31, m", HALVES, "from a lane that does not take part"),
        ("shfl.sync.idx.b32 d, a, 3, 31, m", HALVES, r"does not take part(?s:.*)lane 16\]"),
        (
            "redux.sync.add.u32 d, a, m",
            np.where(LANES == 5, 0xFFFFFFF0, 0xFFFFFFFF),
            "lane 0 has the member mask 0xffffffff, and lane 5, which is in it, 0xfffffff0",
        ),
        (
            "bar.warp.sync m",
            np.where(LANES < 16, 0x1FFFF, 0xFFFF0000),
            "lane 0 has the member mask 0x0001ffff, and lane 16, which is in it, 0xffff0000",
        ),
        (
            "vote.sync.ballot.b32 d, p, m",
            np.full(32, 0xFFFF),
            r"not in the member mask of the instruction(?s:.*)lane 16\]",
        ),
    ],
)
def test_members_that_do_not_agree(
    run_elementwise: Any, statement: str, masks: Any, message: str
) -> None:
    body = f".reg .pred p; setp.lt.u32 p, a, 9; mov.b32 d, 0; {statement};"
    with pytest.raises(SimulatorError, match=message):
        run_elementwise(body, a=("u32", LANES), m=("u32", masks), d="u32")


PARTED = """
.reg .pred low; .reg .b32 l; mov.u32 l, %laneid; setp.lt.u32 low, l, 16; mov.u32 e, 0;
"""


def test_lanes_meet_that_came_one_after_the_other(run_elementwise: Any) -> None:
    """Those in the second arm come back to what is above it."""
    body = f"""{PARTED}
    @low bra LATE;
    MEET: shfl.sync.bfly.b32 d, a, 16, 31, -1; bra END;
    LATE: add.u32 a, a, 100; bra MEET;
    END: add.u32 d, d, e;
    """
    d = run_elementwise(body, a=("u32", LANES), d="u32", e="u32")[0]
    assert d.tolist() == [*range(16, 32), *range(100, 116)]


def test_barriers_in_two_arms_meet(run_elementwise: Any) -> None:
    body = f"""{PARTED}
    .shared .b32 room[32]; .reg .b32 at, other; mov.u32 at, room; mad.lo.u32 at, l, 4, at;
    xor.b32 other, at, 64;
    st.shared.b32 [at], a;
    @low bra ARM;
    bar.warp.sync -1; bra END;
    ARM: bar.warp.sync -1; add.u32 e, e, 1;
    END: ld.shared.b32 d, [other];
    """
    d, e = run_elementwise(body, a=("u32", LANES), d="u32", e="u32")
    assert d.tolist() == [lane ^ 16 for lane in range(32)]
    assert e.tolist() == [1] * 16 + [0] * 16


TWO_ARMS = f"""{PARTED}
@low bra ARM;
%FIRST%; bra END;
ARM: %SECOND%;
END: {{}}
"""


def in_two_arms(first: str, second: str) -> str:
    return TWO_ARMS.replace("%FIRST%", first).replace("%SECOND%", second)


@pytest.mark.parametrize("low_first", [False, True])
def test_exchanges_in_two_arms_meet(run_elementwise: Any, numbers: Any, low_first: bool) -> None:
    """Each lane brings what its own instruction reads, from wherever, and gets it where that writes
    to.
    """
    a, c = numbers.rng.integers(0, 4, 32), numbers.rng.integers(0, 4, 32)
    high = """
    setp.gt.u32 p, a, 1; mov.b32 by, 16;
    shfl.sync.bfly.b32 d|q, a, by, 31, -1; redux.sync.add.u32 i, a, -1;
    vote.sync.ballot.b32 j, p, -1; vote.sync.uni.pred r, p, -1;
    match.any.sync.b32 k, a, -1; match.all.sync.b32 n|s, a, -1
    """
    low = """
    setp.le.u32 p, c, 1;
    shfl.sync.bfly.b32 e|q, c, 16, 31, -1; redux.sync.add.u32 f, c, -1;
    vote.sync.ballot.b32 g, !p, -1; vote.sync.uni.pred r, !p, -1;
    match.any.sync.b32 h, c, -1; match.all.sync.b32 m|s, c, -1
    """
    start = ".reg .pred p, q, r, s; .reg .b32 by, m, n;" + "".join(
        f"mov.b32 {name}, 0;" for name in "defghijk"
    )
    names = dict.fromkeys("defghijk", "u32")
    arms = in_two_arms(high, low)
    if low_first:
        arms = in_two_arms(low, high).replace("@low bra", "@!low bra")
    found = dict(
        zip(names, run_elementwise(start + arms, a=("u32", a), c=("u32", c), **names), strict=True)
    )
    brought = np.where(LANES < 16, c, a)
    same = [sum(1 << k for k in range(32) if brought[k] == each) for each in brought]
    expected = {
        "d": brought[LANES ^ 16],
        "i": np.full(32, brought.sum()),
        "j": np.full(32, sum(1 << k for k in range(32) if brought[k] > 1)),
        "k": np.array(same),
    }
    for of_high, of_low in zip("dijk", "efgh", strict=True):
        mine = LANES >= 16
        np.testing.assert_array_equal(found[of_high], np.where(mine, expected[of_high], 0))
        np.testing.assert_array_equal(found[of_low], np.where(mine, 0, expected[of_high]))


def test_what_others_write_counts_as_written(run_elementwise: Any) -> None:
    """Which lanes have written a register is known where one is not surely written."""
    body = in_two_arms("redux.sync.add.u32 x, a, -1", "redux.sync.add.u32 y, a, -1")
    body = ".reg .b32 x, y;" + body
    body += "@low add.u32 d, y, 0; @!low add.u32 d, x, 0;"
    assert run_elementwise(body, a=("u32", LANES), d="u32", e="u32")[0].tolist() == [496] * 32


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            "shfl.sync.bfly.b32 d, a, 16, 31, -1",
            "shfl.sync.idx.b32 d, a, 16, 31, -1",
            r"names them all; lane 0 waits with the mask 0xffffffff at shfl.sync.idx.b32, test \(",
        ),
        (
            "vote.sync.ballot.b32 d, low, 0xffffffff",
            "vote.sync.ballot.b32 d, low, 0x1ffff",
            "only 16 lanes .*; lane 0 waits with the mask 0x0001ffff at vote",
        ),
        (
            "bar.warp.sync -1",
            "redux.sync.add.u32 d, a, -1",
            "only 16 lanes .*; lane 0 waits with .* at redux.sync.add.u32",
        ),
        (
            "barrier.sync 0",
            "barrier.red.popc.u32 d, 0, low",
            "only 16 of the 32 running lanes of a warp are at the barrier; lane 0 waits",
        ),
        (
            "barrier.sync 0",
            "barrier.sync 1",
            "the lanes of a warp name different barriers or counts",
        ),
        ("barrier.sync.aligned 0", "barrier.sync.aligned 0", "only 16 of the 32 running lanes"),
        (
            "barrier.sync 0",
            "bar.warp.sync -1",
            "only 16 of the 32 running lanes .*; lane 0 waits with .* at bar.warp.sync, ",
        ),
        (
            "shfl.sync.bfly.b32 d, a, 16, 31, -1",
            "st.global.u32 [at], a",
            r"outside of every buffer(?s:.*)while others of the warp wait at shfl.sync.bfly.b32, ",
        ),
    ],
)
def test_what_does_not_meet_in_two_arms(
    run_elementwise: Any, first: str, second: str, message: str
) -> None:
    body = ".reg .b64 at; mov.b64 at, 64; mov.b32 d, 0;" + in_two_arms(first, second)
    with pytest.raises(SimulatorError, match=message):
        run_elementwise(body, a=("u32", LANES), d="u32", e="u32")


APART = """
.reg .b64 p; .reg .b32 t, lane, warp, at, other, x, y; .reg .pred low, odd, c;
.shared .b32 room[64];
mov.u32 t, %tid.x; mov.u32 lane, %laneid; shr.u32 warp, t, 5; setp.lt.u32 low, lane, 9;
mov.u32 at, room; mad.lo.u32 at, t, 4, at; mov.u32 other, room; xor.b32 x, t, 63;
mad.lo.u32 other, x, 4, other; ld.param.u64 p, [p0]; mad.wide.u32 p, t, 4, p;
and.b32 x, t, 1; setp.eq.u32 odd, x, 1;
"""


@pytest.mark.parametrize(
    "ways",
    [
        "@low bra ARM; barrier.sync 0; bra END; ARM: barrier.cta.sync 0; END:",
        "@low bra ARM; barrier.sync 0, 64; bra END; ARM: mov.b32 y, 64; barrier.sync 0, y; END:",
        # Up again to the one above, where the others stand.
        "@low bra ARM; MEET: barrier.sync 0; bra END; ARM: add.u32 x, x, 1; bra MEET; END:",
        # Three times: of three ways, those that are apart and those that meet take turns.
        """@low bra ARM; barrier.sync 0; barrier.sync 1; @odd bra ARM2; barrier.sync 0; bra END;
        ARM: barrier.sync 0; ARM2: setp.eq.u32 c, x, 9; @low barrier.sync 1; barrier.sync 0; END:
        """,
    ],
)
def test_barriers_of_the_block_for_lanes_that_are_apart(run_kernel: Any, ways: str) -> None:
    out = np.zeros(64, np.uint32)
    body = f"{APART} st.shared.b32 [at], t; {ways}"
    run_kernel(body + "ld.shared.b32 x, [other]; st.global.b32 [p], x; ret;", out, block=64)
    assert out.tolist() == list(range(63, -1, -1))


def test_barriers_do_not_wait_for_lanes_that_exit_instead(run_kernel: Any) -> None:
    """Some at once, some after others have waited, one after the other."""
    out = np.zeros(64, np.uint32)
    body = f"""{APART} st.shared.b32 [at], t; @low bra OUT; barrier.sync 0; @odd ret;
    ld.shared.b32 x, [other]; bra MORE; OUT: setp.lt.u32 c, lane, 4; mov.u32 x, 0; @c bra LAST;
    ret; MORE: barrier.sync 1; st.global.b32 [p], x; ret; LAST: add.u32 x, x, 1; ret;
    """
    run_kernel(body, out, block=64)
    assert out.tolist() == [63 - t if t % 32 > 8 and t % 2 == 0 else 0 for t in range(64)]


def test_votes_at_barriers_for_lanes_that_are_apart(run_kernel: Any) -> None:
    out = np.zeros(64, np.uint32)
    body = f"""{APART} mov.b32 x, 0; mov.b32 y, 0;
    @low bra ARM; barrier.red.popc.u32 x, 3, odd; bra END;
    ARM: barrier.red.popc.u32 y, 3, !odd; END: mad.lo.u32 x, y, 100, x;
    st.global.b32 [p], x; ret;
    """
    run_kernel(body, out, block=64)
    # Lanes 0, 2, 4, 6, 8 and the odd ones from 9 on.
    assert out.tolist() == ([1700 * 2] * 9 + [17 * 2] * 23) * 2


@pytest.mark.parametrize("seed", range(6))
def test_groups_on_ways_of_their_own(run_kernel: Any, seed: int) -> None:
    """At each step a lane takes one of three ways, and meets those of its group, whichever they
    take.
    """
    rng = np.random.default_rng(seed)
    steps, ways = 4, 3
    members = rng.integers(0, 4, 64) + 4 * (np.arange(64) // 32)
    masks = np.array(
        [sum(1 << k % 32 for k in range(64) if members[k] == each) for each in members], np.uint32
    )
    taken = rng.integers(0, ways, (steps, 64)).astype(np.uint32)
    body = """
    .reg .b64 p, q, r; .reg .b32 t, m, w, x, y, a; .reg .pred e; mov.u32 t, %tid.x; mov.u32 a, t;
    ld.param.u64 p, [p0]; mad.wide.u32 p, t, 4, p; ld.global.u32 m, [p];
    ld.param.u64 q, [p1]; mad.wide.u32 q, t, 4, q; ld.param.u64 r, [p2]; mad.wide.u32 r, t, 4, r;
    """
    values = np.arange(64)
    for step in range(steps):
        body += f"ld.global.u32 w, [q+{256 * step}]; mov.u32 x, a;\n"
        body += "".join(f"setp.eq.u32 e, w, {i}; @e bra S{step}_{i};\n" for i in range(ways))
        for i in rng.permutation(ways):
            source, result = ("a", "x")[i % 2], ("x", "y", "w")[i]
            body += f"""
            S{step}_{i}: {"add.u32 y, t, t;" * rng.integers(3)}
            redux.sync.add.u32 {result}, {source}, m; add.u32 a, a, {result}; bra J{step};
            """
        body += f"J{step}: add.u32 a, a, 1; {rng.choice(['', 'barrier.sync 0;'])}\n"
        sums = np.bincount(members, values)[members].astype(np.int64)
        values = values + sums + 1
    out = np.zeros(64, np.uint32)
    run_kernel(body + "st.global.u32 [r], a; ret;", masks, taken, out, block=64)
    np.testing.assert_array_equal(out, values)
