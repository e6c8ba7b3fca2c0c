"""cuevo.sim.instructions: control and barrier; branches, loops, exits."""

from typing import Any

import numpy as np
import pytest

from cuevo.errors import SimulatorError
from cuevo.sim import Budget

pytestmark = pytest.mark.unit

THREADS = """
.reg .b64 p; .reg .b32 t, n, x, y, warp, smem_at; .reg .pred c, d;
.extern .shared .align 16 .b8 smem[];
mov.u32 t, %tid.x; mov.u32 x, %ctaid.x; mov.u32 n, %ntid.x; mad.lo.u32 n, x, n, t;
shr.u32 warp, t, 5; mov.u32 smem_at, smem; mad.lo.u32 smem_at, t, 4, smem_at;
ld.param.u64 p, [p0]; mad.wide.u32 p, n, 4, p;
"""


def run(run_kernel: Any, body: str, size: int = 64, block: int = 64, shared: int = 4096) -> Any:
    out = np.zeros(size, np.uint32)
    run_kernel(THREADS + body, out, grid=size // block, block=block, shared=shared)
    return out


def test_both_sides_of_a_branch_and_the_join(run_kernel: Any) -> None:
    body = """
    mov.b32 y, 0; setp.lt.u32 c, t, 11; @c bra LOW;
    mov.b32 y, 200; bra JOIN;
    LOW: mov.b32 y, 100;
    JOIN: activemask.b32 x; add.u32 y, y, 1; setp.ne.u32 d, x, -1; @d trap;
    st.global.u32 [p], y; ret;
    """
    out = run(run_kernel, body)
    assert out.tolist() == [101] * 11 + [201] * 53


def test_loops_of_different_lengths(run_kernel: Any) -> None:
    body = """
    mov.b32 y, 0; mov.b32 x, 0;
    LOOP: setp.ge.u32 c, x, n; @c bra DONE; add.u32 y, y, x; add.u32 x, x, 1; bra LOOP;
    DONE: st.global.u32 [p], y; ret;
    """
    n = np.arange(256)
    np.testing.assert_array_equal(run(run_kernel, body, 256), n * (n - 1) // 2)


def test_nested_divergence(run_kernel: Any) -> None:
    # Collatz steps: two branches in a loop of data-dependent length.
    body = """
    add.u32 x, n, 1; mov.b32 y, 0;
    LOOP: setp.eq.u32 c, x, 1; @c bra DONE; and.b32 n, x, 1; setp.ne.u32 d, n, 0; @d bra ODD;
    shr.u32 x, x, 1; bra NEXT;
    ODD: mad.lo.u32 x, x, 3, 1;
    NEXT: add.u32 y, y, 1; bra LOOP;
    DONE: st.global.u32 [p], y; ret;
    """
    expected = []
    for number in range(1, 129):
        steps = 0
        while number != 1:
            number = 3 * number + 1 if number % 2 else number // 2
            steps += 1
        expected.append(steps)
    assert run(run_kernel, body, 128).tolist() == expected


def test_early_exit_leaves_the_others(run_kernel: Any) -> None:
    body = """
    setp.ge.u32 c, n, 40; @c ret; setp.eq.u32 d, n, 5; @d exit;
    mov.b32 y, 1; st.global.u32 [p], y;
    """
    out = run(run_kernel, body, 128)
    assert out.tolist() == [int(i < 40 and i != 5) for i in range(128)]


def test_guards_of_predicates_that_change(run_kernel: Any) -> None:
    body = """
    setp.lt.u32 c, t, 10; mov.b32 y, 1; @c mov.b32 y, 2; @!c add.u32 y, y, 5;
    @c setp.gt.u32 c, t, 4; @c add.u32 y, y, 10; st.global.u32 [p], y; ret;
    """
    assert run(run_kernel, body).tolist() == [2] * 5 + [12] * 5 + [6] * 54


def test_blocks_whose_last_warp_is_not_full(run_kernel: Any) -> None:
    body = """
    st.shared.u32 [smem_at], n; bar.sync 0; ld.shared.u32 y, [smem_at]; st.global.u32 [p], y; ret;
    """
    np.testing.assert_array_equal(run(run_kernel, body, 120, block=40), np.arange(120))


REVERSE = """
sub.u32 x, %MOST%, t; mov.u32 y, smem; mad.lo.u32 x, x, 4, y; ld.shared.u32 y, [x];
st.global.u32 [p], y; ret;
"""


def test_barriers_order_the_warps(run_kernel: Any) -> None:
    body = "st.shared.u32 [smem_at], n; bar.sync 0;" + REVERSE.replace("%MOST%", "127")
    out = run(
        run_kernel, body.replace("sub.u32 x, 127, t", "mov.b32 x, 127; sub.u32 x, x, t"), 512, 128
    )
    np.testing.assert_array_equal(out.reshape(4, 128), np.arange(512).reshape(4, 128)[:, ::-1])


def test_warps_reach_a_barrier_on_different_ways(run_kernel: Any) -> None:
    # Odd warps come to the barrier after a loop, even ones at once.
    body = """
    st.shared.u32 [smem_at], n; and.b32 x, warp, 1; setp.eq.u32 c, x, 0; @c bra MEET;
    mov.b32 y, 0; LOOP: add.u32 y, y, 1; setp.lt.u32 d, y, 10; @d bra LOOP;
    MEET: barrier.cta.sync.aligned 3; mov.b32 x, 127; sub.u32 x, x, t; mov.u32 y, smem;
    mad.lo.u32 x, x, 4, y; ld.shared.u32 y, [x]; st.global.u32 [p], y; ret;
    """
    out = run(run_kernel, body, 256, 128)
    np.testing.assert_array_equal(out.reshape(2, 128), np.arange(256).reshape(2, 128)[:, ::-1])


def test_barriers_in_both_sides_of_a_branch_of_warps(run_kernel: Any) -> None:
    body = """
    st.shared.u32 [smem_at], n; setp.lt.u32 c, warp, 1; @c bra FIRST;
    bar.sync 0; bra OUT; FIRST: bar.sync 0;
    OUT: mov.b32 x, 63; sub.u32 x, x, t; mov.u32 y, smem; mad.lo.u32 x, x, 4, y;
    ld.shared.u32 y, [x]; st.global.u32 [p], y; ret;
    """
    assert run(run_kernel, body).tolist() == list(range(64))[::-1]


def test_barrier_of_a_part_of_the_block(run_kernel: Any) -> None:
    # Warps 0 and 1 meet at barrier 1, warps 2 and 3 at barrier 2; the count is a register.
    body = """
    st.shared.u32 [smem_at], n; shr.u32 x, warp, 1; add.u32 x, x, 1; mov.b32 y, 64; bar.sync x, y;
    xor.b32 x, t, 63; mov.u32 y, smem; mad.lo.u32 x, x, 4, y; ld.shared.u32 y, [x];
    st.global.u32 [p], y; ret;
    """
    assert run(run_kernel, body, 128, 128).tolist() == [i ^ 63 for i in range(128)]


def test_producer_arrives_and_consumer_waits(run_kernel: Any) -> None:
    body = """
    setp.eq.u32 c, warp, 0; @!c bra CONSUMER;
    st.shared.u32 [smem_at], n; bar.arrive 1, 64; ret;
    CONSUMER: bar.sync 1, 64; ld.shared.u32 y, [smem_at+-128]; st.global.u32 [p], y; ret;
    """
    assert run(run_kernel, body).tolist() == [0] * 32 + list(range(32))


def test_exited_warps_are_not_waited_for(run_kernel: Any) -> None:
    body = """
    setp.ge.u32 c, t, 32; @c ret; st.shared.u32 [smem_at], n; bar.sync 0;
    ld.shared.u32 y, [smem_at]; st.global.u32 [p], y; ret;
    """
    assert run(run_kernel, body, 128, 128).tolist() == [*range(32), *[0] * 96]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "setp.lt.u32 c, t, 32;\n@c bar.sync 1;\n@!c bar.sync 2;\nret;",
            "deadlock.*never complete",
        ),
        ("bar.sync 0, 96; ret;", "deadlock"),
        ("setp.lt.u32 c, t, 5; @c bar.sync 0; ret;", "only 5 of the 32 running lanes"),
        ("bar.sync 16; ret;", "numbers from 0 to 15, not 16"),
        ("bar.sync 0, 40; ret;", "multiples of 32"),
        ("add.u32 t, t, 16; bar.sync t; ret;", "barriers 0 to 15 only|name different"),
        ("bar.sync t; ret;", "name different barriers"),
        (
            "setp.lt.u32 c, t, 5; @c bra.uni OUT; OUT: ret;",
            "bra.uni is taken by a part of the lanes",
        ),
        ("setp.eq.u32 c, t, 7; @c trap; ret;", r"the kernel traps(?s:.*)lane 7\]"),
        ("bra NOWHERE;", "no label 'NOWHERE'"),
        ("bar.arrive 0; ret;", "takes 2 operands, not 1"),
    ],
)
def test_errors(run_kernel: Any, body: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        run(run_kernel, body)


def test_a_loop_without_end(run_kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuevo.sim.run.budget.DEFAULT", Budget(instructions=1000))
    message = r"the kernel does not end in 1,000 instructions(?s:.*)\n +AGAIN: bra AGAIN;"
    with pytest.raises(SimulatorError, match=message):
        run(run_kernel, "setp.eq.u32 c, t, 3; @!c ret;\nAGAIN: bra AGAIN;")


def test_a_deadlock_names_the_lines_where_warps_stand(run_kernel: Any) -> None:
    body = "setp.lt.u32 c, t, 32;\n@c bar.sync 1;\n@!c bar.sync 2;\nret;"
    with pytest.raises(SimulatorError) as caught:
        run(run_kernel, body)
    message = str(caught.value)
    first = 7 + THREADS.count("\n")
    for number in (1, 2):
        place = f"test (rendered text):{first + number}"
        assert f"1 at {place}: barrier {number} has 32 of 64 threads" in message
    assert "@c bar.sync 1;" in message and "block (0, 0, 0), thread (0, 0, 0)" in message
