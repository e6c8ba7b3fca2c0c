"""Devices, and the kernels of a folder that they get: such as they can load and run."""

from pathlib import Path

import pytest
from helpers import c_planner
from helpers.c_planner import DTYPES, ENCODER, Call, Device, Launched, Planner, forward_of, gemm_of

from cuevo.arrays import packed
from cuevo.ops.export.selection import Selection

pytestmark = pytest.mark.unit


def attention(length: int = 512, head_dim: int = 32) -> Call:
    """A forward pass that a kernel with tensor maps may have."""
    shapes = dict.fromkeys(("q", "k", "v", "out"), (1, length, length, 4, head_dim))
    shapes["mask_bias"] = (1, length, 1, 1, length)
    shapes["pair_bias"] = (1, 1, 4, length, length)
    views = {name: packed(shape, DTYPES["bf16"]) for name, shape in shapes.items()}
    for number, view in enumerate(views.values(), start=1):
        view.pointer = number << 40
    return forward_of(views, head_dim**-0.5, 1 << 50)


def square(size: int = 4096) -> Call:
    """A matrix product that a kernel with tensor maps may have."""
    views = {name: packed((size, size), DTYPES["bf16"]) for name in ("a", "b", "out")}
    for number, view in enumerate(views.values(), start=1):
        view.pointer = number << 40
    return gemm_of(views, 1.0, 0.0, 1 << 50)


def planned(planner: Planner, device: Device, call: Call) -> list[Launched]:
    status, plan = planner.plan(device, call)
    assert status == 0, plan.wrong
    return planner.launches(plan)


@pytest.mark.parametrize("call", [attention(), square()], ids=["attention", "product"])
def test_kernels_with_tensor_maps_are_for_their_own_architecture(
    planner: Planner, call: Call
) -> None:
    own = planned(planner, Device(90, 132, ENCODER), call)
    assert any(each.kernel.endswith("sm90a") for each in own)
    for number in (100, 103, 110):
        found = planned(planner, Device(number, 132, ENCODER), call)
        assert not any(each.kernel.endswith("a") for each in found), number
        assert found == planned(planner, Device(90, 132, None), call), number


def test_devices_get_the_highest_architecture_whose_shared_memory_they_have(
    tmp_path: Path,
) -> None:
    kinds = (("forward",), (8,), ("bf16",), ("sm_86", "sm_90"), ("own",), ("own",))
    planner = c_planner.compile_planner(Selection(*kinds), tmp_path)
    call = attention(129, 8)
    launched = {
        number: planned(planner, Device(number, 132, None), call)
        for number in (86, 89, 90, 100, 120, 121)
    }
    assert launched[89] == launched[120] == launched[121] == launched[86]
    assert launched[100] == launched[90] != launched[86]
    assert planner.plan(Device(80, 108, None), call)[0] == 7


def test_a_device_has_clusters_that_fit_on_it(planner: Planner) -> None:
    clusters = {}
    for count in (1, 2, 3, 132):
        *_, last = planned(planner, Device(90, count, ENCODER), attention(2048, 8))
        assert last.kernel == "evoformer_forward_sm90a"
        assert last.config.cluster <= last.grid[0] <= count
        clusters[count] = last.config.cluster
    assert clusters == {1: 1, 2: 2, 3: 1, 132: 2}
