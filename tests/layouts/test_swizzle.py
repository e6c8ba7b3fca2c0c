"""Tiles in shared memory are read and written without bank conflicts."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cuevo.layouts import SharedTile, swizzle, swizzled_chunk

pytestmark = pytest.mark.unit

BANK_GROUPS = 8  # of four 4-byte banks each: what a 16-byte access takes
ROWS = 64
LINES = (1, 2, 4, 8, 16, 32)  # chunks of rows that padding and the quads' swizzles are made for


def bank_groups(tile: SharedTile, row: NDArray[Any], chunk: NDArray[Any]) -> NDArray[Any]:
    return tile.place(row, chunk) % BANK_GROUPS


def all_different(groups: NDArray[Any]) -> bool:
    """Whether the last axis, of 8, has every group of banks once."""
    return bool((np.sort(groups, axis=-1) == np.arange(BANK_GROUPS)).all())


@pytest.mark.parametrize("kind", ["swizzled", "padded", "quads", "quad columns"])
@pytest.mark.parametrize("chunks", range(1, 17))
def test_chunks_stay_in_their_row(chunks: int, kind: str) -> None:
    tile = SharedTile(chunks, kind)
    assert tile.pitch in (chunks, chunks + 1)
    for row in range(ROWS):
        places = tile.place(row, np.arange(chunks)) - row * tile.pitch
        assert sorted(places) == list(range(chunks))


@pytest.mark.parametrize("kind", ["swizzled", "padded"])
@pytest.mark.parametrize("chunks", range(1, 17))
def test_ldmatrix_phases_have_no_bank_conflicts(chunks: int, kind: str) -> None:
    row, chunk = np.meshgrid(np.arange(ROWS), np.arange(chunks), indexing="ij")
    phases = bank_groups(SharedTile(chunks, kind), row, chunk).reshape(ROWS // 8, 8, chunks)
    assert all_different(phases.transpose(0, 2, 1))


@pytest.mark.parametrize("chunks", range(1, 17))
def test_write_phases_have_no_bank_conflicts(chunks: int) -> None:
    row, chunk = np.divmod(np.arange(ROWS * chunks), chunks)
    assert all_different(bank_groups(swizzle(chunks), row, chunk).reshape(-1, 8))


@pytest.mark.parametrize("kind", ["padded", "quads", "quad columns"])
@pytest.mark.parametrize("chunks", LINES)
def test_other_tiles_are_written_without_conflicts(chunks: int, kind: str) -> None:
    tile = SharedTile(chunks, kind)
    index, chunk = np.divmod(np.arange(ROWS * chunks), chunks)
    row = tile.copy_rows(index)
    assert sorted(set(row.tolist())) == list(range(ROWS))
    assert all_different(bank_groups(tile, row, chunk).reshape(-1, 8))


@pytest.mark.parametrize("chunks", LINES[1:])
def test_quads_read_rows_without_conflicts(chunks: int) -> None:
    """Eight lanes of two quads of mma.m8n8k4 read 16 bytes of rows r .. r + 3, r + 8 .. r + 11."""
    row = np.array([0, 1, 2, 3, 8, 9, 10, 11])
    for first in (0, 4, 16, 20):
        for chunk in range(chunks):
            groups = bank_groups(SharedTile(chunks, "quads"), row + first, np.full(8, chunk))
            assert all_different(groups)


@pytest.mark.parametrize("kind", ["quads", "quad columns"])
@pytest.mark.parametrize("chunks", LINES[1:])
def test_quads_read_columns_without_conflicts(chunks: int, kind: str) -> None:
    """Lanes read two neighbouring chunks of rows r .. r + 3."""
    row, chunk = np.repeat(np.arange(4), 2), np.tile([0, 1], 4)
    for first in range(0, 32, 4):
        for pair in range(0, chunks, 2):
            tile = SharedTile(chunks, kind)
            assert all_different(bank_groups(tile, row + first, chunk + pair))


@pytest.mark.parametrize("chunks", [2, 4, 6, 8, 16])
def test_the_test_sees_conflicts_where_nothing_is_swizzled(chunks: int) -> None:
    assert not all_different(np.arange(8) * chunks % BANK_GROUPS)


@pytest.mark.parametrize("chunks", range(1, 17))
def test_the_swizzle_is_the_stated_formula(chunks: int) -> None:
    group = np.gcd(chunks, 8)
    row, chunk = np.meshgrid(np.arange(ROWS), np.arange(chunks), indexing="ij")
    expected = chunk ^ ((row // (8 // group)) % group)
    np.testing.assert_array_equal(swizzled_chunk(row, chunk, chunks), expected)


@pytest.mark.parametrize("kind", ["swizzled", "padded", "quads", "quad columns"])
@pytest.mark.parametrize("unit", [1, 2, 4])
@pytest.mark.parametrize("chunks", range(1, 17))
def test_places_and_distances_reach_each_matrix(chunks: int, unit: int, kind: str) -> None:
    """A place's address plus the immediate is that of (row, chunk), whatever row a lane has."""
    tile = SharedTile(chunks, kind)
    step = min(unit, tile.group)
    for lane_row in range(tile.period):
        for lane_chunk in range(min(step, chunks)):
            at_origin = 16 * tile.place(lane_row, lane_chunk)
            for row in range(0, 48, tile.period):
                for chunk in range(0, chunks - lane_chunk, step):
                    place, distance = tile.address(row, chunk, unit)
                    assert 0 <= place < tile.places(unit)
                    expected = 16 * tile.place(row + lane_row, chunk + lane_chunk)
                    assert (at_origin ^ tile.distance(unit) * place) + distance == expected


@pytest.mark.parametrize("chunks", range(4, 33, 4))
def test_a_tile_for_quads_is_read_both_ways(chunks: int) -> None:
    """Lanes have rows 0 to 3 and any chunk by columns; K steps begin at every fourth row."""
    tile = SharedTile(chunks, "quads")
    for lane_row, lane_chunk in np.ndindex(4, 4):
        at_origin = 16 * tile.place(lane_row, lane_chunk)
        for row in range(0, 48, 4):
            for chunk in range(0, chunks - lane_chunk, 4):
                place, distance = tile.address(row, chunk, 1)
                expected = 16 * tile.place(row + lane_row, chunk + lane_chunk)
                assert (at_origin ^ tile.distance(1) * place) + distance == expected


def test_what_has_no_distance_is_refused() -> None:
    with pytest.raises(ValueError, match="row 4, chunk 0"):
        swizzle(4).address(4, 0)
    with pytest.raises(ValueError, match="row 0, chunk 1"):
        swizzle(4).address(0, 1)
    with pytest.raises(ValueError, match="at least one 16-byte chunk; got 0"):
        swizzle(0)
    with pytest.raises(ValueError, match="one of swizzled, padded, quads, quad columns; got 'x'"):
        SharedTile(4, "x")
