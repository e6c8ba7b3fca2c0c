"""The planner of matrix products in C beside Python's plans: the same launches, byte for byte."""

import math
from dataclasses import replace
from typing import Any

import pytest
from helpers import c_planner
from helpers.c_planner import DTYPES, ENCODER, Device, Planner, gemm_of
from helpers.drawn_calls import PROBLEMS, SELECTION, Drawing

from cuevo.architectures import architecture
from cuevo.arrays import ArrayView


@pytest.mark.unit
def test_launches_are_those_of_python(planner: Planner) -> None:
    seen: set[str] = set()
    split = 0
    for seed in range(5 * PROBLEMS):
        drawing = Drawing(seed)
        views, alpha, beta = drawing.product()
        limits = architecture(str(drawing.choice(*SELECTION.architectures)))
        workspace = 1 << 30
        device = Device(limits.number, limits.multiprocessors, ENCODER)
        status, found = planner.plan(device, gemm_of(views, alpha, beta, workspace))
        assert status == 0, (seed, status, found.wrong)
        plan = c_planner.gemm_plan(
            views, alpha, beta, limits.name, alignments=SELECTION.products.alignments
        )
        ours, theirs = planner.launches(found), c_planner.launched(plan, views, workspace)
        assert [each.kernel for each in ours] == [each.kernel for each in theirs], seed
        for one, other in zip(ours, theirs, strict=True):
            assert [*c_planner.differences(one, other)] == [], seed
        assert found.workspace_bytes == plan.workspace_bytes, seed
        cleared = [(part.offset, part.array.nbytes) for part in plan.parts if part.is_cleared]
        assert (found.cleared_at, found.cleared_bytes) == (cleared or [(0, 0)])[0], seed
        seen |= {each.kernel for each in theirs}
        split += bool(cleared)
    assert seen == {"gemm_sm80", "gemm_sm90a"}
    assert split > PROBLEMS / 4


@pytest.mark.unit
def test_wrong_calls_get_a_status_and_the_name_of_what_is_wrong(planner: Planner) -> None:
    drawing = Drawing(0)
    given = {
        "a": drawing.matrix(3, 40, 64, "bf16"),
        "b": drawing.matrix(0, 64, 48, "bf16"),
        "c": drawing.matrix(3, 40, 48, "bf16"),
        "out": ArrayView(1 << 50, (3, 40, 48), (3840, 96, 2), DTYPES["bf16"], "cpu", False, None),
    }

    ampere = Device(80, 108, None)

    def status(device: Device = ampere, **changes: Any) -> tuple[int, bytes | None]:
        views = dict(given)
        factors = {"alpha": 1.0, "beta": 1.0, "workspace": 0}
        for name, value in changes.items():
            if name in factors:
                factors[name] = value
            elif isinstance(value, ArrayView):
                views[name] = value
            else:
                views[name] = replace(views[name], **value)
        found, plan = planner.plan(device, gemm_of(views, **factors))
        return found, plan.wrong

    assert status() == (0, None)
    assert status(b={"shape": (65, 48)}) == (1, b"b")
    assert status(out={"shape": (1, 40, 48)}) == (1, b"out")
    assert status(c={"shape": (3, 41, 48)}) == (1, b"c")
    assert status(a={"shape": (3, -1, 64)}) == (1, b"a")
    assert status(scatter=drawing.vector(39, "i32")) == (1, b"scatter")
    assert status(b={"dtype": DTYPES["f16"]}) == (2, b"b")
    assert status(c={"dtype": DTYPES["i32"]}) == (2, b"c")
    assert status(scatter=drawing.vector(40, "f32")) == (2, b"scatter")
    assert status(bias=drawing.vector(48, "f32")) == (2, b"bias")
    assert status(a={"strides": (1 << 20, 4096, 4)}) == (3, b"a")
    assert status(out={"strides": (3840, 94, 2)}) == (3, b"out")
    assert status(c={"pointer": 4097}) == (3, b"c")
    for name in given:
        assert status(**{name: {"pointer": 0}}) == (10, name.encode())
    assert status(bias=replace(drawing.vector(48, "bf16"), pointer=0)) == (10, b"bias")
    optional = {"bias": drawing.vector(48, "bf16"), "scatter": drawing.vector(40, "i32")}
    for name in ("c", *optional):
        call = gemm_of(given | optional, 1.0, 1.0, 0)
        getattr(call, name).type = 0
        code, plan = planner.plan(ampere, call)
        assert (code, plan.wrong) == (2, name.encode())
    assert status(alpha=math.inf) == (4, b"alpha")
    assert status(workspace=8) == (5, b"workspace")
    assert status(Device(75, 40, None)) == (7, None)
    long = {"shape": (3, 1 << 29, 64)}
    assert status(a=long, out={"shape": (3, 1 << 29, 48)}) == (8, None)
    large = replace(given["a"], shape=(1 << 13, 1 << 13), strides=(1 << 14, 2))
    square = {name: replace(large, pointer=i << 50) for i, name in enumerate(("a", "b", "out"), 1)}
    refusing = Device(90, 132, c_planner.REFUSING)
    code, plan = planner.plan(refusing, gemm_of(square, 1.0, 0.0, 0))
    assert (code, plan.wrong) == (9, b"a")


@pytest.mark.unit
@pytest.mark.parametrize("scattered", [False, True])
def test_a_product_without_launches_fills_out_unless_rows_are_scattered(
    planner: Planner, scattered: bool
) -> None:
    drawing = Drawing(0)
    rows, depth = (0, 64) if scattered else (40, 0)
    views = {
        "a": drawing.matrix(0, rows, depth, "bf16"),
        "b": drawing.matrix(0, depth, 48, "bf16"),
        **({"scatter": drawing.vector(0, "i32")} if scattered else {}),
        "out": drawing.matrix(0, 40, 48, "bf16"),
    }
    status, found = planner.plan(Device(80, 108, None), gemm_of(views, 1.0, 0.0, 0))
    assert (status, found.count) == (0, 0)
    plan = c_planner.gemm_plan(views, 1.0, 0.0, "sm_80", alignments=SELECTION.products.alignments)
    (out,) = plan.results
    assert not [*plan.every_launch]
    assert out is not None and out.empty_value == (None if scattered else 0.0)
