"""Fragments hold each element once and fit together."""

from collections.abc import Callable

import numpy as np
import pytest

from cuevo import layouts
from cuevo.layouts import Fragment

pytestmark = pytest.mark.unit

Place = Callable[[int, int, int], tuple[int, int]]

OF_SHAPES = [
    each for shape in layouts.MMA_SHAPES for each in (*shape.a.values(), *shape.b.values())
]
FRAGMENTS = {
    fragment.name: fragment
    for fragment in (*vars(layouts).values(), *OF_SHAPES)
    if isinstance(fragment, Fragment)
}


@pytest.mark.parametrize("fragment", FRAGMENTS.values(), ids=FRAGMENTS.keys())
def test_each_element_has_one_holder(fragment: Fragment) -> None:
    places = fragment.rows * fragment.shape[1] + fragment.columns
    assert sorted(places.ravel()) == list(range(fragment.shape[0] * fragment.shape[1]))


@pytest.mark.parametrize("fragment", FRAGMENTS.values(), ids=FRAGMENTS.keys())
def test_scatter_undoes_gather(fragment: Fragment) -> None:
    matrix = np.random.default_rng(1).standard_normal(fragment.shape).astype(np.float32)
    elements = fragment.gather(matrix)
    assert elements.shape == fragment.rows.shape
    assert elements.shape[:2] == (fragment.lanes, fragment.registers)
    np.testing.assert_array_equal(fragment.scatter(elements), matrix)


def upper(lane: int) -> int:
    """Offset of lanes 16 to 31 in m8n8k4."""
    return 4 if lane >= 16 else 0


# The formulas of the PTX ISA, for a lane, register r and half h, as (row, column). For m8n8k4
# within the matrix of the lane's quad pair.
ISA = {
    "mma.m16n8k8 A": lambda lane, r, h: (lane // 4 + 8 * r, lane % 4 * 2 + h),
    "mma.m16n8k8 B": lambda lane, r, h: (lane % 4 * 2 + h, lane // 4),
    "mma.m16n8k16 A": lambda lane, r, h: (lane // 4 + 8 * (r % 2), lane % 4 * 2 + h + 8 * (r // 2)),
    "mma.m16n8k16 B": lambda lane, r, h: (lane % 4 * 2 + h + 8 * r, lane // 4),
    "mma.m16n8 accumulator f16": lambda lane, r, h: (lane // 4 + 8 * r, lane % 4 * 2 + h),
    "mma.m16n8 accumulator f32": lambda lane, r, h: (
        lane // 4 + 8 * (r // 2),
        lane % 4 * 2 + r % 2,
    ),
    "mma.m8n8k4 A row": lambda lane, r, h: (lane % 4 + upper(lane), 2 * r + h),
    "mma.m8n8k4 A col": lambda lane, r, h: (2 * r + h + upper(lane), lane % 4),
    "mma.m8n8k4 B row": lambda lane, r, h: (lane % 4, 2 * r + h + upper(lane)),
    "mma.m8n8k4 B col": lambda lane, r, h: (2 * r + h, lane % 4 + upper(lane)),
    "mma.m8n8k4 accumulator f16": lambda lane, r, h: (lane % 4 + upper(lane), 2 * r + h),
    "mma.m8n8k4 accumulator f32": lambda lane, r, h: (
        (lane & 1) + (r & 2) + upper(lane),
        (r & 4) + (lane & 2) + (r & 1),
    ),
    "mma.m16n8k4 A tf32": lambda lane, r, h: (lane // 4 + 8 * r, lane % 4),
    "mma.m16n8k4 B tf32": lambda lane, r, h: (lane % 4, lane // 4),
    "mma.m16n8k8 A tf32": lambda lane, r, h: (lane // 4 + 8 * (r % 2), lane % 4 + 4 * (r // 2)),
    "mma.m16n8k8 B tf32": lambda lane, r, h: (lane % 4 + 4 * r, lane // 4),
    "mma.m8n8 accumulator s32": lambda lane, r, h: (lane // 4, lane % 4 * 2 + r),
    "wgmma.m64k8 A tf32": lambda lane, r, h: (
        lane // 32 * 16 + lane % 32 // 4 + 8 * (r % 2),
        lane % 4 + 4 * (r // 2),
    ),
    "wgmma.m64k16 A": lambda lane, r, h: (
        lane // 32 * 16 + lane % 32 // 4 + 8 * (r % 2),
        lane % 4 * 2 + h + 8 * (r // 2),
    ),
    "ldmatrix": lambda lane, r, h: (lane // 4, lane % 4 * 2 + h),
    "ldmatrix.trans": lambda lane, r, h: (lane % 4 * 2 + h, lane // 4),
}


def of_a(rows: int, n: int) -> Place:
    """A in registers of `n` integers or bits."""
    return lambda lane, r, i: (
        lane // 4 + 8 * (r % (rows // 8)),
        lane % 4 * n + i + 4 * n * (r // (rows // 8)),
    )


def of_b(n: int) -> Place:
    """B in registers of `n` integers or bits."""
    return lambda lane, r, i: (lane % 4 * n + i + 4 * n * r, lane // 4)


for kind, count, shapes in (
    ("8-bit", 4, ("m8n8k16", "m16n8k16", "m16n8k32")),
    ("4-bit", 8, ("m8n8k32", "m16n8k32", "m16n8k64")),
    ("1-bit", 32, ("m8n8k128", "m16n8k128", "m16n8k256")),
):
    for shape in shapes:
        ISA[f"mma.{shape} A {kind}"] = of_a(8 if shape.startswith("m8") else 16, count)
        ISA[f"mma.{shape} B {kind}"] = of_b(count)


@pytest.mark.parametrize("name", FRAGMENTS)
def test_fragments_are_those_of_the_isa(name: str) -> None:
    fragment = FRAGMENTS[name]
    height = (4 if " B " in name else 8) if "m8n8k4" in name else 0
    for (lane, register, half), row in np.ndenumerate(fragment.rows):
        expected_row, expected_column = ISA[name](lane, register, half)
        assert row == expected_row + height * (lane // 4 % 4)
        assert fragment.columns[lane, register, half] == expected_column


def test_two_accumulator_tiles_are_one_a_operand() -> None:
    """P, rounded in place, is the A operand of the second product: no lane needs another's."""
    accumulators = np.random.default_rng(2).standard_normal((16, 16))
    left, right = (
        layouts.MMA_M16N8_F32.gather(tile).reshape(32, 2, 2)
        for tile in (accumulators[:, :8], accumulators[:, 8:])
    )
    operand = layouts.MMA_M16N8K16_A.gather(accumulators)
    np.testing.assert_array_equal(operand, np.concatenate([left, right], axis=1))


@pytest.mark.parametrize(
    ("fragment", "loaded"),
    [
        (layouts.MMA_M16N8K16_A, layouts.LDMATRIX),
        (layouts.MMA_M16N8K8_A, layouts.LDMATRIX),
        (layouts.MMA_M16N8K16_B, layouts.LDMATRIX_TRANS),
        (layouts.MMA_M16N8K8_B, layouts.LDMATRIX_TRANS),
    ],
    ids=["A k16", "A k8", "B k16", "B k8"],
)
def test_ldmatrix_loads_operands(fragment: Fragment, loaded: Fragment) -> None:
    """A from rows [m, k] as they are, B from rows [k, n] with .trans, 8x8 after 8x8 matrix."""
    matrix = np.arange(fragment.shape[0] * fragment.shape[1]).reshape(fragment.shape)
    parts = [
        matrix[row : row + 8, column : column + 8]
        for column in range(0, fragment.shape[1], 8)
        for row in range(0, fragment.shape[0], 8)
    ]
    got = np.concatenate([loaded.gather(part) for part in parts], axis=1)
    np.testing.assert_array_equal(got, fragment.gather(matrix))


def test_b_from_rows_of_keys_needs_no_transposition() -> None:
    """K lies in rows [n, k]: B = K^T comes from plain ldmatrix."""
    keys = np.arange(8 * 16).reshape(8, 16)
    got = np.concatenate(
        [layouts.LDMATRIX.gather(half) for half in (keys[:, :8], keys[:, 8:])], axis=1
    )
    np.testing.assert_array_equal(got, layouts.MMA_M16N8K16_B.gather(keys.T))


def test_layouts_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        layouts.MMA_M16N8K16_A.rows[0, 0, 0] = 1
