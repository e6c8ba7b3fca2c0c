"""Swizzled tiles are read and written without bank conflicts."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cuevo.layouts import swizzle, swizzled_chunk

pytestmark = pytest.mark.unit

BANK_GROUPS = 8  # of four 4-byte banks each: what a 16-byte access takes
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
