"""cuevo.layouts.mma_shapes: fragments fit the names, and the executor's table of instructions."""

import re

import pytest

from cuevo.layouts import MMA_SHAPES, MmaShape, mma_shape
from cuevo.sim.instructions.table import Form, forms

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("shape", MMA_SHAPES, ids=lambda shape: f"{shape.name} {shape.types[0]}")
def test_fragments_have_the_extents_of_the_name(shape: MmaShape) -> None:
    m, n, k = map(int, re.fullmatch(r"m(\d+)n(\d+)k(\d+)", shape.name).groups())
    # The four products of m8n8k4 are stacked along the rows.
    products = 4 if shape.name == "m8n8k4" else 1
    assert {each.shape for each in shape.a.values()} == {(products * m, k)}
    assert {each.shape for each in shape.b.values()} == {(products * k, n)}
    assert {each.shape for each in shape.accumulators.values()} == {(products * m, n)}


def test_a_name_and_a_type_are_one_row() -> None:
    listed = [(shape.name, each) for shape in MMA_SHAPES for each in shape.types]
    assert len(set(listed)) == len(listed)
    assert all(each in mma_shape(name, each).types for name, each in listed)
    with pytest.raises(KeyError):
        mma_shape("m16n8k64", "f16")


def rows() -> list[Form]:
    return [form for form in forms() if form.row.startswith("mma.sync")]


@pytest.mark.parametrize("form", rows(), ids=lambda form: form.row)
def test_each_row_of_the_instructions_is_of_a_shape(form: Form) -> None:
    words = form.row.replace("<", ".").replace(">", ".").replace("|", ".").replace(":", ".")
    listed = [word for word in re.split(r"\W+", words) if word]
    (name,) = {word for word in listed if re.fullmatch(r"m\d+n\d+k\d+", word)}
    types = [word for word in listed if re.fullmatch(r"(tf|bf|f|s|u|b)\d+", word)]
    # D, A, B and C; of integers A and B have two choices each.
    d, *operands, c = types
    counts = {each.name: int(each.count) for each in form.operands}
    for operand in operands:
        shape = mma_shape(name, operand)
        assert {each.registers for each in shape.a.values()} == {counts["a"]}
        assert {each.registers for each in shape.b.values()} == {counts["b"]}
        assert shape.accumulators[d].registers == counts["d"]
        assert shape.accumulators[c].registers == counts["c"]


def test_each_shape_is_in_the_instructions() -> None:
    stated = " ".join(form.row for form in rows())
    assert all(shape.name in stated for shape in MMA_SHAPES)
