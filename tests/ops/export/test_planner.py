"""The planner in C beside Python's plans: the same launches, byte for byte."""

import ctypes
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import c_planner
from helpers.c_planner import (
    DTYPES,
    Array,
    Backward,
    Device,
    Forward,
    Launched,
    Planner,
    as_array,
    forward_of,
    kind_of,
)
from helpers.drawn_calls import PROBLEMS, SELECTION, Drawing

from cuevo.architectures import architecture
from cuevo.arrays import ArrayView
from cuevo.cuda.tensor_map import BYTES, TensorMap
from cuevo.ops.export.selection import Selection


def backward_of(
    drawing: Drawing, given: dict[str, ArrayView], scale: float, workspace: int
) -> tuple[dict[str, ArrayView], Backward]:
    """A backward pass of a forward pass: Python's operands and results, and the problem of C."""
    views = {name: given[name] for name in ("q", "k", "v")}
    out, lse = given["out"], given.get("lse")
    if lse is None:
        batch, rows, queries, heads, _ = out.shape
        lse = drawing.array((batch, rows, heads, queries), "f32", (0, 1, 2, 3))
        lse.strides = tuple(4 * math.prod(lse.shape[i + 1 :]) for i in range(4))
    dout = drawing.array(out.shape, "f32", tuple(map(int, drawing.rng.permutation(5))))
    dout = replace(dout, dtype=out.dtype, strides=tuple(x // 2 for x in dout.strides))
    if drawing.rng.random() < 0.2:
        dout.strides = (0,) * 5
    views = {"dout": dout, **views, "out": out, "lse": lse}
    views |= {name: given[name] for name in ("mask_bias", "pair_bias") if name in given}
    single = drawing.rng.random() < 0.3
    for name in ("q", "k", "v", "mask_bias", "pair_bias"):
        if name not in views or views[name].dtype == np.bool_:
            continue
        if name == "mask_bias" and drawing.rng.random() < 0.3:
            continue
        kind = "f32" if single and name.endswith("bias") else kind_of(views[name])
        made = drawing.array(views[name].shape, kind, (0, 1, 2, 3, 4))
        size = made.dtype.itemsize
        made.strides = tuple(size * math.prod(made.shape[i + 1 :]) for i in range(5))
        views[f"d{name}"] = made
    names = [name for name, _ in Backward._fields_[:12]]
    arrays = (as_array(views.get(name)) for name in names)
    return views, Backward(*arrays, lse.pointer, scale, workspace, 1 << 50)


def compare(planner: Planner, seed: int, direction: str) -> list[str]:
    """Plan a problem both ways, and give the names of the kernels that are launched, and "short"
    for one with a short last tile.
    """
    drawing = Drawing(seed)
    views, scale = drawing.attention()
    arch = str(drawing.choice(*SELECTION.architectures))
    limits, workspace = architecture(arch), 1 << 30
    call: Forward | Backward
    if direction == "forward":
        call = forward_of(views, scale, workspace)
        plan = c_planner.forward_plan(views, scale, arch)
    else:
        views, call = backward_of(drawing, views, scale, workspace)
        plan = c_planner.backward_plan(views, scale, arch)
    device = Device(limits.number, limits.multiprocessors, c_planner.ENCODER, 1)
    status, found = planner.plan(device, call)
    assert status == 0, (seed, status, found.wrong)
    theirs = c_planner.launched(plan, views, workspace)
    assert [*unlike(planner.launches(found), theirs)] == [], seed
    assert found.workspace_bytes == plan.workspace_bytes, seed
    short = ["short" for each in theirs if getattr(each.config, "short_queries", 0)]
    return [each.kernel for each in theirs] + short


def unlike(ours: list[Launched], theirs: list[Launched]) -> Iterator[str]:
    """What the launches of two plans differ in."""
    assert [each.kernel for each in ours] == [each.kernel for each in theirs]
    for one, other in zip(ours, theirs, strict=True):
        yield from c_planner.differences(one, other)


@pytest.mark.unit
def test_wrong_calls_get_a_status_and_the_name_of_what_is_wrong(planner: Planner) -> None:
    problems = (Drawing(seed).attention() for seed in range(99))
    views, scale = next(x for x in problems if "pair_bias" in x[0] and x[0]["q"].shape[4] == 32)
    device = Device(80, 108, None)

    def status(device: Device = device, **changes: object) -> tuple[int, bytes | None]:
        call = forward_of(views, scale, 0)
        for name, value in changes.items():
            target: Any = call
            *way, last = name.split("__")
            for each in way:
                target = getattr(target, each)
            if isinstance(value, tuple):
                getattr(target, last)[value[0]] = value[1]
            else:
                setattr(target, last, value)
        found, plan = planner.plan(device, call)
        return found, plan.wrong

    assert status() == (0, None)
    assert status(k__shape=(4, 40)) == (1, b"k")
    assert status(out__shape=(1, 77)) == (1, b"out")
    assert status(q__shape=(0, -1)) == (1, b"q")
    assert status(v__type=3) == (2, b"v")
    assert status(pair_bias__type=4) == (2, b"pair_bias")
    assert status(q__strides=(4, 4)) == (3, b"q")
    assert status(v__data=views["v"].pointer + 8) == (3, b"v")
    long = next(axis for axis in range(4) if views["out"].shape[axis] > 1)
    assert status(out__strides=(long, 0)) == (3, b"out")
    assert status(out__strides=(long, -48)) == (3, b"out")
    for name in ("q", "k", "v", "out", "pair_bias"):
        assert status(**{f"{name}__type": 0}) == (2, name.encode())
        assert status(**{f"{name}__data": None}) == (10, name.encode())
    assert status(scale=math.nan) == (4, b"scale")
    assert status(workspace=8, workspace_bytes=1 << 40) == (5, b"workspace")
    assert status(Device(75, 40, None)) == (7, None)
    assert status(Device(89, 128, None)) == (7, None)  # less shared memory than sm_80
    assert status(Device(87, 16, None)) == (0, None)
    backwards, backward = backward_of(Drawing(0), views, scale, 0)

    def refused(name: str, changed: object) -> tuple[int, bytes | None]:
        call = Backward.from_buffer_copy(backward)
        setattr(call, name, changed)
        found, plan = planner.plan(device, call)
        return found, plan.wrong

    spread = as_array(backwards["dq"])
    spread.strides[2] *= 2
    assert refused("scale", scale) == (0, None)
    assert refused("dq", spread) == (3, b"dq")
    assert refused("dpair_bias", Array()) == (1, b"dpair_bias")
    longer = as_array(backwards["dk"])
    longer.shape[2] += 1
    assert refused("dk", longer) == (1, b"dk")
    assert refused("dv", as_array(replace(backwards["dv"], dtype=DTYPES["f32"]))) == (2, b"dv")
    assert refused("lse", None) == (10, b"lse")
    assert refused("lse", backwards["lse"].pointer + 2) == (3, b"lse")
    untyped, nowhere = as_array(backwards["dpair_bias"]), as_array(backwards["dpair_bias"])
    untyped.type, nowhere.data = 0, None
    assert refused("dpair_bias", untyped) == (2, b"dpair_bias")
    assert refused("dpair_bias", nowhere) == (10, b"dpair_bias")
    texts = planner.library.cuevo_status_text
    texts.restype = ctypes.c_char_p
    assert len({texts(number) for number in range(12)}) == 12


@pytest.mark.unit
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_launches_are_those_of_python(planner: Planner, direction: str) -> None:
    seen = {name for seed in range(PROBLEMS) for name in compare(planner, seed, direction)}
    assert seen >= EXPECTED[direction]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "queues"), [("mask_bias", [0, 0]), ("pair_bias", [0, 1, 2])], ids=["alone", "behind"]
)
def test_a_last_tile_is_beside_the_others_where_both_follow_a_launch(
    planner: Planner, name: str, queues: list[int]
) -> None:
    drawing, order = Drawing(0), (0, 1, 2, 3, 4)
    bias = {"mask_bias": (1, 512, 1, 1, 320), "pair_bias": (1, 1, 4, 320, 320)}[name]
    shape = (1, 512, 320, 4, 32)
    shapes = {"q": shape, "k": shape, "v": shape, name: bias, "out": shape}
    views = {name: drawing.array(shape, "bf16", order) for name, shape in shapes.items()}
    ours = on_hopper(planner, views)
    assert [each.queue for each in ours] == queues
    assert ours[-1].config != ours[-2].config


@pytest.mark.unit
def test_on_one_stream_each_launch_has_all_of_the_device(planner: Planner) -> None:
    drawing, order = Drawing(0), (0, 1, 2, 3, 4)
    shapes = dict.fromkeys(("q", "k", "v", "pair_bias", "out"), (1, 512, 320, 4, 32))
    shapes["pair_bias"] = (1, 1, 4, 320, 320)
    views = {name: drawing.array(shape, "bf16", order) for name, shape in shapes.items()}
    shared, call = on_hopper(planner, views), forward_of(views, 0.2, 1 << 30)
    status, found = planner.plan(Device(90, 132, c_planner.ENCODER), call)
    alone = planner.launches(found)
    assert status == 0
    blocks = [[each.grid[0] for each in launches[-2:]] for launches in (alone, shared)]
    assert blocks[0] == [132, 132] and sum(blocks[1]) == 132
    assert [each.config for each in alone] == [each.config for each in shared]


@pytest.mark.unit
@pytest.mark.parametrize(("rows", "heads"), [(16, 8), (6, 3), (700, 3)])
def test_a_large_pair_bias_has_its_heads_in_the_same_sets(
    planner: Planner, rows: int, heads: int
) -> None:
    """Whole lines of them, all, or single ones."""
    drawing, order, length = Drawing(0), (0, 1, 2, 3, 4), 2100
    shape = (1, rows, length, heads, 32)
    shapes = dict.fromkeys(("q", "k", "v", "pair_bias", "out"), shape)
    shapes["pair_bias"] = (1, 1, heads, length, length)
    views = {name: drawing.array(shape, "bf16", order) for name, shape in shapes.items()}
    *_, last = on_hopper(planner, views)
    assert last.kernel == "evoformer_forward_sm90a"


FORWARD, TILES, BOTH = "evoformer_forward_sm90a", "pair_tiles_sm90", "bias_tiles_sm90"


def packed(
    kind: str, rows: int, length: int, head_dim: int, masked: bool = True
) -> dict[str, ArrayView]:
    """Packed arrays of a forward pass with 16 heads and a pair bias."""
    drawing, order = Drawing(0), (0, 1, 2, 3, 4)
    shape = (1, rows, length, 16, head_dim)
    shapes = dict.fromkeys(("q", "k", "v"), shape)
    shapes |= {"mask_bias": (1, rows, 1, 1, length)} if masked else {}
    shapes |= {"pair_bias": (1, 1, 16, length, length), "out": shape}
    return {name: drawing.array(shape, kind, order) for name, shape in shapes.items()}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("rows", "length", "m_tiles"),
    [
        (1, 1000, [1]),  # all tiles have 64 queries
        (1, 1024, [1]),
        (300, 301, [1, 2]),
        (300, 330, [2]),
    ],
)
def test_a_last_tile_of_64_queries_beside_others(
    planner: Planner, rows: int, length: int, m_tiles: list[int]
) -> None:
    found = on_hopper(planner, packed("bf16", rows, length, 32))
    assert [each.config.m_tiles for each in found if each.kernel == FORWARD] == m_tiles


@pytest.mark.unit
@pytest.mark.parametrize(
    ("rows", "length", "head_dim", "masked", "kernels"),
    [
        (768, 768, 32, True, [BOTH, FORWARD]),
        (768, 768, 32, False, [TILES, FORWARD]),
        (256, 256, 32, True, [BOTH, FORWARD]),
        (300, 512, 8, True, [TILES, FORWARD]),
        (16, 2048, 32, True, [BOTH, FORWARD]),
        (16, 2048, 32, False, [FORWARD]),
        (16, 2136, 32, False, [TILES, FORWARD]),  # keys end within a tile
        (16, 2130, 32, True, [BOTH, FORWARD]),  # and rows at no multiple of 16 bytes
        (5, 1112, 64, False, [FORWARD]),
        (5, 1112, 64, True, [FORWARD]),
    ],
)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_who_makes_tiles(
    planner: Planner, kind: str, rows: int, length: int, head_dim: int, masked: bool, kernels: Any
) -> None:
    views = packed(kind, rows, length, head_dim, masked)
    if kind == "f16" and kernels == [FORWARD]:
        kernels = [TILES, *kernels]  # it has no registers to convert at these head dims
    assert [each.kernel for each in on_hopper(planner, views)] == kernels


@pytest.mark.unit
@pytest.mark.parametrize(
    ("rows", "length", "head_dim", "scale", "scaled"),
    [
        (8, 1024, 64, 0.125, True),  # two warpgroups share a row, beside tiles of the mask
        (8, 1096, 64, -1.0, True),
        (16, 2048, 32, 2.0**-16, True),
        (16, 2048, 32, 2.0**-17, False),
        (16, 2048, 32, 0.2, False),
        (16, 2048, 32, 2.0, False),
    ],
)
def test_a_scale_that_q_is_multiplied_by(
    planner: Planner, rows: int, length: int, head_dim: int, scale: float, scaled: bool
) -> None:
    found = on_hopper(planner, packed("bf16", rows, length, head_dim), scale)
    assert [each.kernel for each in found] == [BOTH, FORWARD]
    assert {each.config.scales_q for each in found[1:]} == {scaled}
    assert {each.config.row_warpgroups for each in found[1:]} == {2}
    rows = 1 if head_dim == 64 else 2
    assert {each.config.warpgroup_rows for each in found[1:]} == {rows}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("rows", "length", "l2_promotion"), [(256, 2048, 64), (256, 1536, 128), (96, 2049, 64)]
)
def test_heads_one_at_a_time(planner: Planner, rows: int, length: int, l2_promotion: int) -> None:
    found = on_hopper(planner, packed("bf16", rows, length, 32))
    maps = {TensorMap.decode(x.parameters[:BYTES]) for x in found if x.kernel == FORWARD}
    assert {each.l2_promotion for each in maps} == {l2_promotion}


@pytest.mark.unit
def test_boxes_that_are_narrower_than_their_swizzle(tmp_path: Path) -> None:
    dims = (24, 40, 48)
    kinds = (("forward",), dims, ("bf16",), ("sm_90a",), ("own",), ("own",))
    planner = c_planner.compile_planner(Selection(*kinds), tmp_path)
    orders = ((0, 1, 2, 3, 4), (0, 1, 3, 2, 4))
    for head_dim, order, rows in itertools.product(dims, orders, (16, 400)):
        drawing, shape = Drawing(0), (1, rows, 1024, 4, head_dim)
        views = {name: drawing.array(shape, "bf16", order) for name in "qkv"}
        for name, of_bias in (
            ("mask_bias", (1, rows, 1, 1, 1024)),
            ("pair_bias", (1, 1, 4, 1024, 1024)),
            ("out", shape),
        ):
            views[name] = drawing.array(of_bias, "bf16", (0, 1, 2, 3, 4))
        *_, last = on_hopper(planner, views)
        assert last.kernel == FORWARD
        assert last.config.k_map(views["k"]).box[0] == head_dim < last.config.row_elements


def on_hopper(planner: Planner, views: dict[str, ArrayView], scale: float = 0.2) -> list[Launched]:
    """The launches of a forward pass, which are Python's."""
    device, call = Device(90, 132, c_planner.ENCODER, 1), forward_of(views, scale, 1 << 30)
    status, found = planner.plan(device, call)
    assert status == 0, found.wrong
    ours = planner.launches(found)
    plan = c_planner.forward_plan(views, scale, "sm_90a")
    assert [*unlike(ours, c_planner.launched(plan, views, 1 << 30))] == []
    return ours


EXPECTED = {
    "forward": {
        *("evoformer_forward_sm80", "evoformer_forward_sm90a", "pair_tiles_sm90", "pack_sm70"),
        "short",
    },
    "backward": {
        *("evoformer_backward_sm80", "attention_delta_sm70", "key_bias_sm70", "pack_sm70"),
        "partial_sums_sm70",
    },
}
