"""cuevo.sim.machine.state: layout of shared memory, names of threads."""

from typing import Any

import numpy as np
import pytest

from cuevo.sim.machine.state import Geometry, Machine, shared_layout
from cuevo.sim.memory.shared_memory import WINDOW
from cuevo.sim.text.syntax import Function, Variable

pytestmark = pytest.mark.unit


def variable(name: str, size: int | None, alignment: int) -> Variable:
    return Variable(name, ".shared", size, alignment, 1)


def test_dynamic_shared_memory_comes_last() -> None:
    declared = [variable("all", None, 128), variable("a", 10, 2), variable("b", 8, 8)]
    addresses, size = shared_layout(declared, 1000)
    assert addresses == {"a": WINDOW, "b": WINDOW + 16, "all": WINDOW + 128}
    assert size == 128 + 1000


def test_without_dynamic_variables() -> None:
    assert shared_layout([], 0) == ({}, 0)
    assert shared_layout([variable("a", 10, 2)], 6) == ({"a": WINDOW}, 16)


def test_threads_are_named_by_block_warp_and_lane() -> None:
    machine = Machine(Function("k", 1), Geometry((3, 2, 2), (8, 4, 2), 0), 4)
    machine.first_block = 5
    lanes = np.zeros((32, 8), bool)
    lanes[3, 5] = lanes[1, 6] = True
    # Warp 5 is the second one of the third block of the machine, block 7 of the grid.
    expected = "block (1, 0, 1), thread (3, 0, 1) [warp 1, lane 3]"
    assert machine.thread_name(lanes) == expected


def test_static_shared_memory_in_a_kernel(run_kernel: Any) -> None:
    out = np.zeros(32, np.uint32)
    body = """
    .shared .align 4 .b8 first[4]; .shared .u32 table[32]; .reg .b64 p; .reg .b32 t, at, x;
    mov.u32 t, %tid.x; ld.param.u64 p, [p0]; mad.wide.u32 p, t, 4, p;
    mov.u32 at, table; mad.lo.u32 at, t, 4, at; st.shared.u32 [at], t; st.shared.u32 [first], 77;
    bar.warp.sync -1;
    ld.shared.u32 x, [table+12]; ld.shared.u32 at, [first]; add.u32 x, x, at;
    st.global.u32 [p], x; ret;
    """
    run_kernel(body, out)
    assert (out == 80).all()
