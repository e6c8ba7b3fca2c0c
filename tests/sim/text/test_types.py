"""cuevo.sim.text.types."""

import pytest

from cuevo.sim.text.types import TYPES

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("operand", "register", "agrees"),
    [
        ("s32", "u32", True),
        ("s32", "b32", True),
        ("f32", "b32", True),
        ("b32", "f32", True),
        ("f32", "s32", False),
        ("u32", "f32", False),
        ("b32", "b64", False),
        ("u16", "b16", True),
        ("pred", "pred", True),
        ("bf16", "b16", True),
        ("f16x2", "b32", True),
        ("f16", "f16", True),
        ("f16", "u16", False),
    ],
)
def test_agreement_of_operand_and_register(operand: str, register: str, agrees: bool) -> None:
    assert TYPES[operand].agrees_with(TYPES[register]) is agrees


def test_dtypes_have_the_size_of_their_type() -> None:
    for scalar in TYPES.values():
        if scalar.kind != "p":
            assert scalar.dtype.itemsize * 8 == scalar.bits, scalar
