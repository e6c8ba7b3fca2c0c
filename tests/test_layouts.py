"""cuevo.layouts: fragments hold each element once and fit together; no bank conflicts."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cuevo import layouts
from cuevo.layouts import Fragment, swizzle, swizzled_chunk

pytestmark = pytest.mark.unit

FRAGMENTS = {
    fragment.name: fragment for fragment in vars(layouts).values() if isinstance(fragment, Fragment)
}
BANK_GROUPS = 8  # of four 4-byte banks each: what a 16-byte access takes


@pytest.mark.parametrize("fragment", FRAGMENTS.values(), ids=FRAGMENTS.keys())
def test_each_element_has_one_holder(fragment: Fragment) -> None:
    places = fragment.rows * fragment.shape[1] + fragment.columns
    assert sorted(places.ravel()) == list(range(fragment.shape[0] * fragment.shape[1]))


@pytest.mark.parametrize("fragment", FRAGMENTS.values(), ids=FRAGMENTS.keys())
def test_scatter_undoes_gather(fragment: Fragment) -> None:
    matrix = np.random.default_rng(1).standard_normal(fragment.shape).astype(np.float32)
    elements = fragment.gather(matrix)
    assert elements.shape == fragment.rows.shape
    assert elements.shape[:2] == (32, fragment.registers)
    np.testing.assert_array_equal(fragment.scatter(elements), matrix)


# The formulas of the PTX ISA, for a lane, register r and half h, as (row, column).
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
    "ldmatrix": lambda lane, r, h: (lane // 4, lane % 4 * 2 + h),
    "ldmatrix.trans": lambda lane, r, h: (lane % 4 * 2 + h, lane // 4),
}


@pytest.mark.parametrize("name", FRAGMENTS)
def test_fragments_are_those_of_the_isa(name: str) -> None:
    fragment = FRAGMENTS[name]
    for (lane, register, half), row in np.ndenumerate(fragment.rows):
        assert (row, fragment.columns[lane, register, half]) == ISA[name](lane, register, half)


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


# -- The swizzle -----------------------------------------------------------------------------------

ROWS = 64


def bank_groups(row: NDArray[Any], chunk: NDArray[Any], chunks: int) -> NDArray[Any]:
    return (row * chunks + swizzled_chunk(row, chunk, chunks)) % BANK_GROUPS


@pytest.mark.parametrize("chunks", range(1, 17))
def test_chunks_stay_in_their_row(chunks: int) -> None:
    for row in range(ROWS):
        assert sorted(swizzled_chunk(row, np.arange(chunks), chunks)) == list(range(chunks))


@pytest.mark.parametrize("chunks", range(1, 17))
def test_ldmatrix_phases_have_no_bank_conflicts(chunks: int) -> None:
    row, chunk = np.meshgrid(np.arange(ROWS), np.arange(chunks), indexing="ij")
    phases = bank_groups(row, chunk, chunks).reshape(ROWS // 8, 8, chunks)
    assert (np.sort(phases, axis=1) == np.arange(8)[None, :, None]).all()


@pytest.mark.parametrize("chunks", range(1, 17))
def test_write_phases_have_no_bank_conflicts(chunks: int) -> None:
    row, chunk = np.divmod(np.arange(ROWS * chunks), chunks)
    phases = bank_groups(row, chunk, chunks).reshape(-1, 8)
    assert (np.sort(phases, axis=1) == np.arange(8)).all()


@pytest.mark.parametrize("chunks", [2, 4, 6, 8, 16])
def test_the_test_sees_conflicts_where_nothing_is_swizzled(chunks: int) -> None:
    row = np.arange(8)
    assert len(np.unique(row * chunks % BANK_GROUPS)) < 8


@pytest.mark.parametrize("chunks", range(1, 17))
def test_the_swizzle_is_the_stated_formula(chunks: int) -> None:
    group = np.gcd(chunks, 8)
    row, chunk = np.meshgrid(np.arange(ROWS), np.arange(chunks), indexing="ij")
    expected = chunk ^ ((row // (8 // group)) % group)
    np.testing.assert_array_equal(swizzled_chunk(row, chunk, chunks), expected)


@pytest.mark.parametrize("chunks", range(1, 17))
def test_places_and_distances_reach_each_matrix(chunks: int) -> None:
    """A place's address plus the immediate is that of (row, chunk), whatever row a lane has."""
    pattern = swizzle(chunks)
    step = 2 if pattern.mask else 1
    for lane_row in range(8):
        for lane_chunk in range(min(step, chunks)):
            at_origin = 16 * (lane_row * chunks + swizzled_chunk(lane_row, lane_chunk, chunks))
            for row in range(0, 32, 8):
                for chunk in range(0, chunks - lane_chunk, step):
                    place, distance = pattern.address(row, chunk)
                    assert 0 <= place < pattern.places
                    r, c = row + lane_row, chunk + lane_chunk
                    expected = 16 * (r * chunks + swizzled_chunk(r, c, chunks))
                    assert (at_origin ^ 32 * place) + distance == expected


def test_what_has_no_distance_is_refused() -> None:
    with pytest.raises(ValueError, match="row 4, chunk 0"):
        swizzle(4).address(4, 0)
    with pytest.raises(ValueError, match="row 0, chunk 1"):
        swizzle(4).address(0, 1)
    with pytest.raises(ValueError, match="at least one 16-byte chunk; got 0"):
        swizzle(0)
