"""Kernels whose parameter block is in their instructions, and that take addresses."""

from typing import Any

import numpy as np
import pytest

from cuevo.arrays import view
from cuevo.errors import CuevoError
from cuevo.executors.bound import bind
from cuevo.sim import SimExecutor
from cuevo.toolchain.template import RenderedKernel

pytestmark = pytest.mark.unit


def vector_add(small: Any, count: int, scale: float, addresses: tuple[str, ...]) -> RenderedKernel:
    constants = small.add_params(0, 0, 0, count, scale)[24:]
    return bind(small.rendered("vector_add"), constants, addresses)


def test_a_block_becomes_numbers(small: Any) -> None:
    """Addresses come in the order that is asked for, one of them for nobody."""
    bound = vector_add(small, 3, 0.5, ("out", "nobody", "b", "a"))
    a, b, out = np.arange(4, dtype=np.float32), np.full(4, 8, np.float32), np.zeros(4, np.float32)
    views = [view(x) for x in (out, a, b)]
    block = bound.params.pack(
        {"out": out.ctypes.data, "nobody": 0, "b": b.ctypes.data, "a": a.ctypes.data}
    )
    SimExecutor("sm_80").load(bound).launch((1, 1, 1), (32, 1, 1), 0, block, buffers=views)
    assert out.tolist() == [4, 5, 6, 0]


def test_only_loads_of_the_block_change(small: Any) -> None:
    kernel, bound = small.rendered("vector_add"), vector_add(small, 3, 0.5, ("a", "b", "out"))
    lines, own = bound.text.split("\n"), kernel.text.split("\n")
    changed = [x.strip() for x, y in zip(lines, own, strict=True) if x != y]
    assert changed[1:] == [
        "ld.param.u64 a, [param_a];",
        "ld.param.u64 b, [param_b];",
        "ld.param.u64 out, [param_out];",
        "mov.s32 count, 0x00000003;",
        "mov.f32 scale, 0f3F000000;",
    ]
    assert all(bound.origin(i) == kernel.origin(i) for i in range(1, len(own) + 1))


@pytest.mark.parametrize(
    "text, message",
    [
        (".visible .entry vector_add(.param .u64 a) { ret; }", "does not take the one block"),
        (
            ".visible .entry vector_add(.param .align 8 .b8 params[32])\n{ mov.u64 at, params; }",
            "needs params for more than its fields",
        ),
        (
            ".entry add(.param .align 8 .b8 params[32]) { ld.param.v2.b32 {x, y}, [params]; }",
            "needs params for more than its fields",
        ),
    ],
    ids=["another entry", "an address of the block", "two fields at once"],
)
def test_what_cannot_be_bound(small: Any, text: str, message: str) -> None:
    with pytest.raises(CuevoError, match=message):
        bind(small.rendered("vector_add", text=text), bytes(8), ())
