"""The planner in C beside Python's plans: the same launches, byte for byte."""

import ctypes
import math
import os
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import c_planner
from helpers.c_planner import DTYPES, Array, Backward, Device, Forward, Planner, as_array

from cuevo import reference
from cuevo.architectures import architecture
from cuevo.arrays import ArrayView, view
from cuevo.ops.export.selection import Selection

PROBLEMS = int(os.environ.get("CUEVO_PLANNER_PROBLEMS", "100"))
"""In either direction: two thousand and more before a release, which then have all head dims of
real models."""
SELECTION = Selection(
    ("forward", "backward"),
    (8, 32) if PROBLEMS < 1000 else (8, 16, 24, 32, 48, 64),
    ("bf16", "f16"),
    ("sm_80", "sm_90a"),
    ("none", "own", "f32") if PROBLEMS < 1000 else ("none", "own", "f32", "bool"),
    ("none", "own") if PROBLEMS < 1000 else ("none", "own", "f32"),
)
LENGTHS = (1, 7, 16, 31, 63, 64, 65, 80, 127, 128, 129, 130, 200, 256, 300, 384, 513, 769, 1024)


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    return c_planner.compile_planner(SELECTION, tmp_path_factory.mktemp("planner"))


class Drawing:
    """Random problems at addresses that nothing is at."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._next = 1 << 40

    def choice(self, *of: object) -> object:
        return of[self.rng.integers(len(of))]

    def array(self, shape: tuple[int, ...], kind: str, order: tuple[int, ...]) -> ArrayView:
        """An array whose axes lie in that order, the last fastest, perhaps with gaps."""
        step = DTYPES[kind].itemsize
        strides = [0] * len(shape)
        for axis in reversed(order):
            strides[axis] = step
            step *= shape[axis]
            if axis == order[-1] and self.rng.random() < 0.3:
                step = -(-step // 16) * 16
        self._next += 1 << 36
        return ArrayView(self._next, shape, tuple(strides), DTYPES[kind], "cpu", False, None)

    def bias(self, shape: tuple[int, ...], kind: str, single: int) -> ArrayView:
        order = tuple(int(x) for x in self.rng.permutation(5))
        if self.rng.random() < 0.5:
            order = (0, 1, 3, 4, 2) if self.rng.random() < 0.5 else (0, 1, 2, 3, 4)
        own = tuple(1 if i < single and self.rng.random() < 0.3 else n for i, n in enumerate(shape))
        found = self.array(own, kind, order)
        if self.rng.random() < 0.2:
            found.pointer += int(self.rng.integers(1, 16))
        if self.rng.random() < 0.1:
            found.strides = (0, *found.strides[1:])
        return found

    def problem(self) -> tuple[dict[str, ArrayView], float]:
        rng = self.rng
        batch, rows = int(rng.choice((1, 1, 2, 3))), int(rng.choice((1, 2, 5, 64, 129, 512)))
        heads = int(rng.choice((1, 3, 4, 8, 16)))
        queries, keys = (int(rng.choice(LENGTHS)) for _ in range(2))
        head_dim, kind = int(rng.choice(SELECTION.head_dims)), str(rng.choice(SELECTION.dtypes))
        orders = ((0, 1, 2, 3, 4), (0, 1, 3, 2, 4), (1, 0, 3, 2, 4))
        views = {}
        for name, length in (("q", queries), ("k", keys), ("v", keys)):
            shape = (batch, rows, length, heads, head_dim)
            views[name] = self.array(shape, kind, orders[rng.integers(3)])
        mask, pair = str(rng.choice(SELECTION.masks)), str(rng.choice(SELECTION.pairs))
        own = {"own": kind}
        if mask != "none":
            shape = (batch, rows, 1, 1, keys)
            views["mask_bias"] = self.bias(shape, own.get(mask, mask), 2)
        if pair != "none":
            shape = (batch, 1, heads, queries, keys)
            views["pair_bias"] = self.bias(shape, own.get(pair, pair), 1)
        views["out"] = self.array((batch, rows, queries, heads, head_dim), kind, orders[0])
        if rng.random() < 0.5:
            lse = self.array((batch, rows, heads, queries), "f32", (0, 1, 2, 3))
            lse.strides = tuple(4 * math.prod(lse.shape[i + 1 :]) for i in range(4))
            views["lse"] = lse
        scale = float(self.choice(head_dim**-0.5, -0.3, 1e-20, 0.0, 2.5))
        return views, scale


def call_of(views: dict[str, ArrayView], scale: float, workspace: int) -> Forward:
    names = ("q", "k", "v", "out", "mask_bias", "pair_bias")
    return Forward(
        *(as_array(views.get(name)) for name in names),
        views["lse"].pointer if "lse" in views else None,
        scale,
        workspace,
        1 << 50,
    )


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
        kind = next(kind for kind, dtype in DTYPES.items() if dtype == views[name].dtype)
        kind = "f32" if single and name.endswith("bias") else kind
        made = drawing.array(views[name].shape, kind, (0, 1, 2, 3, 4))
        size = made.dtype.itemsize
        made.strides = tuple(size * math.prod(made.shape[i + 1 :]) for i in range(5))
        views[f"d{name}"] = made
    names = [name for name, _ in Backward._fields_[:12]]
    arrays = (as_array(views.get(name)) for name in names)
    return views, Backward(*arrays, lse.pointer, scale, workspace, 1 << 50)


def compare(planner: Planner, seed: int, direction: str) -> list[str]:
    """Plan a problem both ways, and give the names of the kernels that are launched."""
    drawing = Drawing(seed)
    views, scale = drawing.problem()
    arch = str(drawing.choice(*SELECTION.architectures))
    limits, workspace = architecture(arch), 1 << 30
    call: Forward | Backward
    if direction == "forward":
        call = call_of(views, scale, workspace)
        plan = c_planner.forward_plan(views, scale, arch)
    else:
        views, call = backward_of(drawing, views, scale, workspace)
        plan = c_planner.backward_plan(views, scale, arch)
    device = Device(limits.number, limits.multiprocessors, c_planner.ENCODER)
    status, found = planner.plan(device, call)
    assert status == 0, (seed, status, found.wrong)
    ours, theirs = planner.launches(found), c_planner.launched(plan, views, workspace)
    assert [each.kernel for each in ours] == [each.kernel for each in theirs], seed
    for one, other in zip(ours, theirs, strict=True):
        assert [*c_planner.differences(one, other)] == [], seed
    assert found.workspace_bytes == plan.workspace_bytes, seed
    return [each.kernel for each in theirs]


@pytest.mark.kernel
def test_results_are_right_where_c_launches(planner: Planner) -> None:
    """Odd lengths, a mask, a bias with heads last: what the examples have."""
    rng = np.random.default_rng(0)
    queries, keys, heads, head_dim, rows = 37, 53, 2, 8, 3
    of_queries, of_keys = (1, rows, queries, heads, head_dim), (1, rows, keys, heads, head_dim)
    shapes = {"q": of_queries, "k": of_keys, "v": of_keys, "dout": of_queries}
    shapes |= {"mask_bias": (1, rows, 1, 1, keys), "pair_bias": (1, queries, keys, heads)}
    arrays = {
        name: rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
        for name, shape in shapes.items()
    }
    arrays["pair_bias"] = arrays["pair_bias"].transpose(0, 3, 1, 2)[:, None]
    arrays["lse"] = np.zeros((1, rows, heads, queries), np.float32)
    for name, like in {"out": "q", "dq": "q", "dk": "k", "dv": "v"}.items():
        arrays[name] = np.zeros(arrays[like].shape, arrays[like].dtype)
    for name in ("mask_bias", "pair_bias"):
        arrays[f"d{name}"] = np.zeros(arrays[name].shape, np.float32)
    views = {name: view(array) for name, array in arrays.items()}

    run(planner, Forward, views, head_dim**-0.5)
    inputs = [arrays[name] for name in ("q", "k", "v", "mask_bias", "pair_bias")]
    out, lse = reference.attention(*inputs)
    assert np.linalg.norm(arrays["out"] - out) < 1e-2 * np.linalg.norm(out)
    assert np.abs(arrays["lse"] - lse).max() < 1e-2

    run(planner, Backward, views, head_dim**-0.5)
    exact = reference.attention_backward(arrays["dout"], *inputs)
    for name, gradient in zip(("dq", "dk", "dv", "dmask_bias", "dpair_bias"), exact, strict=True):
        assert gradient is not None
        error = np.linalg.norm(arrays[name] - gradient) / np.linalg.norm(gradient)
        assert error < 2e-2, name


def run(
    planner: Planner,
    kind: type[Forward] | type[Backward],
    views: dict[str, ArrayView],
    scale: float,
) -> None:
    """Plan a call without a workspace, again with one, and run it on the CPU executor."""
    call = kind()
    for name, field in kind._fields_:
        if field is Array:
            setattr(call, name, as_array(views[name]))
    call.lse, call.scale = views["lse"].pointer, scale
    device = Device(80, 108, None)
    status, plan = planner.plan(device, call)
    assert status == 0
    assert plan.workspace_bytes > 0
    memory = aligned_bytes(plan.workspace_bytes)
    call.workspace, call.workspace_bytes = memory.ctypes.data, len(memory)
    status, plan = planner.plan(device, call)
    assert status == 0
    c_planner.run(planner, plan, [*views.values(), view(memory)], "sm_80")


def aligned_bytes(count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    memory = np.zeros(count + 256, np.uint8)
    start = -memory.ctypes.data % 256
    return memory[start : start + count]


@pytest.mark.unit
def test_wrong_calls_get_a_status_and_the_name_of_what_is_wrong(planner: Planner) -> None:
    problems = (Drawing(seed).problem() for seed in range(99))
    views, scale = next(found for found in problems if "pair_bias" in found[0])
    device = Device(80, 108, None)

    def status(device: Device = device, **changes: object) -> tuple[int, bytes | None]:
        call = call_of(views, scale, 0)
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
    assert refused("lse", None) == (3, b"lse")
    texts = planner.library.cuevo_status_text
    texts.restype = ctypes.c_char_p
    assert len({texts(number) for number in range(11)}) == 11


@pytest.mark.unit
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_launches_are_those_of_python(planner: Planner, direction: str) -> None:
    seen = {name for seed in range(PROBLEMS) for name in compare(planner, seed, direction)}
    assert seen == EXPECTED[direction]


EXPECTED = {
    "forward": {
        *("evoformer_forward_sm80", "evoformer_forward_sm90a", "pair_tiles_sm70", "pack_sm70")
    },
    "backward": {
        *("evoformer_backward_sm80", "attention_delta_sm70", "key_bias_sm70", "pack_sm70"),
        "partial_sums_sm70",
    },
}
