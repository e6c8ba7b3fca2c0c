"""cuevo.ops.plan and cuevo.ops.operation: how many plans are kept, what a launch and a plan are;
tests of the operations do the rest.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Any

import numpy as np
import pytest

import cuevo
from cuevo.arrays import ArrayView, view
from cuevo.kernels.evoformer_forward_sm80 import Config
from cuevo.ops import operation
from cuevo.ops.operation import Plans
from cuevo.ops.plan import Launch, Plan, PlanBuilder
from cuevo.sim import SimExecutor
from cuevo.toolchain.header import load_header

pytestmark = pytest.mark.unit

CONFIG = Config(head_dim=32)


class Kernel:
    """A loaded kernel that remembers its launches."""

    spills = False

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []

    def launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        params: bytes | bytearray,
        *,
        buffers: Sequence[ArrayView] = (),
        stream: object = None,
    ) -> None:
        self.launches.append((grid, block, shared_bytes, params, buffers, stream))

    def launcher(self, shape: Any, pick: Any, pack: Any, constants: bytes) -> Any:
        def queue(table: Sequence[int], stream: int) -> None:
            self.launch(*shape, pack(*pick(table)) + constants, stream=stream)

        return queue


def test_plans_are_found_again_and_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "_PLANS_KEPT", 3)
    kept = Plans()
    for n in range(7):
        plan = Plan(SimExecutor("sm_80"), None, [])
        kept.keep((n,), plan)
        assert kept[(n,)] is plan
        assert len(kept) <= 3
    assert kept.get((0,)) is None


def test_a_launch_puts_addresses_of_its_slots_before_its_constants() -> None:
    kernel = Kernel()
    launch = Launch("x", kernel, CONFIG, (7, 1, 1), (2, 0), Struct("<2Q"), b"constant")
    launch.queue([1, 5, 2], 5)
    launch.queue([3, 5, 4, 6], 6)
    shape = ((7, 1, 1), (CONFIG.threads, 1, 1), CONFIG.shared_bytes)
    one, two, three, four = (n.to_bytes(8, "little") for n in range(1, 5))
    assert kernel.launches == [
        (*shape, two + one + b"constant", (), 5),
        (*shape, four + three + b"constant", (), 6),
    ]


def test_a_launch_on_the_cpu_executor_has_the_arrays_of_its_slots_for_buffers() -> None:
    kernel = Kernel()
    launch = Launch("x", kernel, CONFIG, (7, 1, 1), (2, 0, 1), Struct("<3Q"), b"constant")
    x, y, z = (view(np.zeros(4, np.float32)) for _ in range(3))
    launch.run_on_cpu([x, None, y, z])
    (params, buffers, stream) = kernel.launches[0][3:]
    assert params == Struct("<3Q").pack(y.pointer, x.pointer, 0) + b"constant"
    assert [id(each) for each in buffers] == [id(y), id(x)] and stream is None


def test_a_grid_that_no_device_takes() -> None:
    Launch("x", Kernel(), CONFIG, (2**31 - 1, 1, 1), (0, 1), Struct("<2Q"), b"")
    with pytest.raises(ValueError, match="too large: 2147483648 threadblocks; a launch has fewer"):
        Launch("x", Kernel(), CONFIG, (2**31, 1, 1), (0, 1), Struct("<2Q"), b"")


def test_a_plan_knows_arrays_by_the_slots_of_their_names() -> None:
    q = np.zeros((2, 3), np.float16)
    builder = PlanBuilder(("q", "mask_bias"), ("out",), {"q": view(q)}, SimExecutor("sm_80"))
    builder.add_result("out", (4, 8), np.dtype(np.float32), empty_value=0.0)
    builder.add_workspace("sums", (5,))
    builder.add_workspace("counts", (65,), np.uint32, is_cleared=True)
    builder.add_workspace("rest", (1,))
    names = ("", "q", "out", "sums", "counts", "rest")
    assert builder.slots == {name: slot for slot, name in enumerate(names)}
    assert [part.offset for part in builder.plan.parts] == [0, 256, 768]
    assert builder.plan.workspace_bytes == 1024
    (result,) = builder.plan.results
    assert result is not None and result.array.owner is None
    assert [(i, nbytes) for i, _, nbytes in builder.plan.new] == [(0, 128)]
    assert not builder.plan.on_copies and builder.plan.in_place is None


def test_address_fields_are_those_of_the_header() -> None:
    header = load_header().kernels["partial_sums_sm70"]
    values = dict.fromkeys((field.name for field in header.fields), 0)
    x = view(np.zeros(4, np.float32))
    kernel = Kernel()
    for arrays, expected in (
        ({"partials": "x", "sums": "y"}, (7, 8)),
        ({"partials": "", "sums": "x"}, (0, 7)),
        ({"sums": "y"}, (0, 8)),
    ):
        builder = PlanBuilder(("x",), ("y",), {"x": x, "y": x}, SimExecutor("sm_80"))
        builder.add_launch("partial_sums_sm70", kernel, CONFIG, (1, 1, 1), values, arrays=arrays)
        builder.plan.launches[0].queue([0, 7, 8], 5)
        params = kernel.launches[-1][3]
        assert len(params) == header.size
        assert header.addresses.unpack(params[: header.addresses.size]) == expected


def test_errors_of_a_new_plan_stand_alone() -> None:
    """That a call is the first of its kind is no part of what is wrong with it."""
    a, b = np.zeros((3, 4), np.float16), np.zeros((5, 6), np.float16)
    for more in ({}, {"alpha": []}):  # the second has no hash
        with pytest.raises((TypeError, ValueError)) as caught:
            cuevo.gemm(a, b, device="sim", **more)
        assert caught.value.__context__ is None
