"""Accumulators of warp tiles: each element once, rows joined by butterflies, true to the ISA."""

import doctest
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest

from cuevo import layouts
from cuevo.layouts import (
    M8N8K4,
    M8N8K4_F16,
    M16N8,
    M16N8_F16,
    WGMMA,
    WGMMA_F16,
    Accumulator,
    accumulators,
    wgmma,
    wgmma_accumulator,
)

pytestmark = pytest.mark.unit

ALL = (M16N8, M16N8_F16, M8N8K4, M8N8K4_F16, WGMMA, WGMMA_F16)
CASES = [
    pytest.param(layout, m_tiles, n_tiles, id=f"{layout.name} {m_tiles}x{n_tiles}")
    for layout in ALL
    for m_tiles, n_tiles in [(1, 1), (1, 3), (2, 1), (2, 4), (3, 2)]
    if layout.threads == 32 or m_tiles == 1
]
of_tiles = pytest.mark.parametrize(("layout", "m_tiles", "n_tiles"), CASES)
of_layouts = pytest.mark.parametrize("layout", ALL, ids=lambda layout: layout.name)


def lanes_of_rows(layout: Accumulator, m_tiles: int, n_tiles: int) -> dict[int, set[int]]:
    """The lanes that hold any element of a row, for each row of the warp tile."""
    lanes: dict[int, set[int]] = defaultdict(set)
    for (lane, _, _), row in np.ndenumerate(layout.fragment(m_tiles, n_tiles).rows):
        lanes[int(row)].add(lane)
    return lanes


@of_tiles
def test_each_element_has_one_holder(layout: Accumulator, m_tiles: int, n_tiles: int) -> None:
    fragment = layout.fragment(m_tiles, n_tiles)
    height, width = layout.tile
    assert fragment.shape == (height * m_tiles, width * n_tiles)
    assert fragment.lanes == layout.threads
    places = fragment.rows * fragment.shape[1] + fragment.columns
    assert sorted(places.ravel()) == list(range(fragment.shape[0] * fragment.shape[1]))


@of_tiles
def test_rows_visit_every_accumulator_in_order(
    layout: Accumulator, m_tiles: int, n_tiles: int
) -> None:
    rows = layout.rows(m_tiles, n_tiles)
    assert [row.row for row in rows] == sorted({row.row for row in rows})
    for row in rows:
        columns = [element.column for element in row.elements]
        assert columns == sorted(set(columns))
    indices = sorted(element.index for row in rows for element in row.elements)
    assert indices == list(range(layout.count(m_tiles, n_tiles)))


@of_tiles
def test_rows_say_what_the_fragment_says(layout: Accumulator, m_tiles: int, n_tiles: int) -> None:
    fragment = layout.fragment(m_tiles, n_tiles)
    first_row, first_column = layout.lane_offset(np.arange(layout.threads))
    rows = fragment.rows.reshape(layout.threads, -1)
    columns = fragment.columns.reshape(layout.threads, -1)
    for row in layout.rows(m_tiles, n_tiles):
        for element in row.elements:
            np.testing.assert_array_equal(rows[:, element.index], first_row + row.row)
            np.testing.assert_array_equal(columns[:, element.index], first_column + element.column)


def offset_m16n8(lane: int) -> tuple[int, int]:
    return lane // 4, 2 * (lane % 4)


def offset_m8n8k4(lane: int) -> tuple[int, int]:
    quad, i = lane // 4, lane % 4
    row = (((quad & 4) >> 1) + (quad & 1)) * 8 + (i & 1)
    return row, ((quad >> 1) & 1) * 8 + (i & 2)


def offset_m8n8k4_f16(lane: int) -> tuple[int, int]:
    quad, i = lane // 4, lane % 4
    return (((quad & 4) >> 1) + (quad & 1)) * 8 + i, ((quad >> 1) & 1) * 8


def offset_wgmma(thread: int) -> tuple[int, int]:
    return thread // 32 * 16 + thread % 32 // 4, 2 * (thread % 4)


@pytest.mark.parametrize(
    ("layout", "formula"),
    [
        (M16N8, offset_m16n8),
        (M16N8_F16, offset_m16n8),
        (M8N8K4, offset_m8n8k4),
        (M8N8K4_F16, offset_m8n8k4_f16),
        (WGMMA, offset_wgmma),
        (WGMMA_F16, offset_wgmma),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_lane_offsets_are_the_stated_formulas(
    layout: Accumulator, formula: Callable[[int], tuple[int, int]]
) -> None:
    for lane in range(layout.threads):
        assert layout.lane_offset(lane) == formula(lane)


@pytest.mark.parametrize(("m_tiles", "n_tiles"), [(1, 1), (2, 3), (3, 2)])
def test_indices_of_m16n8_are_the_stated_formula(m_tiles: int, n_tiles: int) -> None:
    expected = {
        (16 * mi + 8 * half, 8 * ni + column, 4 * (ni * m_tiles + mi) + 2 * half + column)
        for mi in range(m_tiles)
        for ni in range(n_tiles)
        for half in range(2)
        for column in range(2)
    }
    for layout in (M16N8, M16N8_F16):
        assert visited(layout, m_tiles, n_tiles) == expected


@pytest.mark.parametrize(("m_tiles", "n_tiles"), [(1, 1), (2, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("layout", [M8N8K4, M8N8K4_F16], ids=lambda layout: layout.name)
def test_indices_of_m8n8k4_are_the_stated_formula(
    layout: Accumulator, m_tiles: int, n_tiles: int
) -> None:
    expected = set()
    for tile_n, tile_m, mma_n, mma_m, p, e in np.ndindex(n_tiles, m_tiles, 2, 2, 2, 4):
        m, n = (0, e) if layout.packed else divmod(e, 2)
        row = tile_m * 32 + mma_m * 4 + 2 * m
        column = tile_n * 32 + mma_n * 4 + p * 16 + n
        index = ((tile_n * m_tiles + tile_m) * 4 + mma_n * 2 + mma_m) * 8 + p * 4 + e
        expected.add((row, column, index))
    assert visited(layout, m_tiles, n_tiles) == expected


@pytest.mark.parametrize("n", [8, 96, 256])
def test_indices_of_wgmma_are_the_stated_formula(n: int) -> None:
    expected = {
        (8 * half, 8 * ni + column, 4 * ni + 2 * half + column)
        for ni in range(n // 8)
        for half in range(2)
        for column in range(2)
    }
    assert visited(WGMMA, 1, n // 8) == expected


def visited(layout: Accumulator, m_tiles: int, n_tiles: int) -> set[tuple[int, int, int]]:
    """Row, column and index of each element of `rows`."""
    return {
        (row.row, element.column, element.index)
        for row in layout.rows(m_tiles, n_tiles)
        for element in row.elements
    }


@pytest.mark.parametrize(
    ("layout", "tile", "lane_bits", "owner_mask"),
    [
        (M16N8, (16, 8), (1, 2), 0b11),
        (M16N8_F16, (16, 8), (1, 2), 0b11),
        (M8N8K4, (32, 32), (2, 8), 0b1010),
        (M8N8K4_F16, (32, 32), (8,), 0b1000),
        (WGMMA, (64, 8), (1, 2), 0b11),
        (WGMMA_F16, (64, 8), (1, 2), 0b11),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_tiles_and_butterflies(
    layout: Accumulator, tile: tuple[int, int], lane_bits: tuple[int, ...], owner_mask: int
) -> None:
    assert layout.tile == tile
    assert layout.lane_bits == lane_bits
    assert layout.owner_mask == owner_mask


@of_tiles
def test_butterflies_join_the_lanes_of_a_row(
    layout: Accumulator, m_tiles: int, n_tiles: int
) -> None:
    for lanes in lanes_of_rows(layout, m_tiles, n_tiles).values():
        joined = {min(lanes)}
        for distance in layout.lane_bits:
            assert distance < 32
            joined |= {lane ^ distance for lane in joined}
        assert joined == lanes
        assert len([lane for lane in lanes if lane & layout.owner_mask == 0]) == 1


@of_tiles
def test_owners_get_the_sums_of_their_rows(layout: Accumulator, m_tiles: int, n_tiles: int) -> None:
    fragment = layout.fragment(m_tiles, n_tiles)
    matrix = np.random.default_rng(3).integers(-1000, 1000, fragment.shape)
    lane = np.arange(layout.threads)
    held = fragment.gather(matrix).reshape(layout.threads, -1)
    first_row, _ = layout.lane_offset(lane)
    owner = lane & layout.owner_mask == 0
    sums = np.full(fragment.shape[0], np.iinfo(int).min)
    for row in layout.rows(m_tiles, n_tiles):
        total = held[:, [element.index for element in row.elements]].sum(axis=1)
        for distance in layout.lane_bits:
            total = total + total[lane ^ distance]
        sums[first_row[owner] + row.row] = total[owner]
    np.testing.assert_array_equal(sums, matrix.sum(axis=1))


@pytest.mark.parametrize("module", [accumulators, wgmma], ids=lambda module: module.__name__)
def test_the_examples_run(module: object) -> None:
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed


@pytest.mark.parametrize(
    ("layout", "instruction"),
    [(M16N8, layouts.MMA_M16N8_F32), (M16N8_F16, layouts.MMA_M16N8_F16)],
    ids=lambda value: value.name,
)
def test_a_tile_of_m16n8_is_the_instruction(
    layout: Accumulator, instruction: layouts.Fragment
) -> None:
    fragment = layout.fragment(1, 1)
    np.testing.assert_array_equal(fragment.rows, instruction.rows)
    np.testing.assert_array_equal(fragment.columns, instruction.columns)


@pytest.mark.parametrize(
    ("layout", "instruction"),
    [(M8N8K4, layouts.MMA_M8N8K4_F32), (M8N8K4_F16, layouts.MMA_M8N8K4_F16)],
    ids=lambda value: value.name,
)
def test_a_tile_of_m8n8k4_is_four_interleaved_instructions(
    layout: Accumulator, instruction: layouts.Fragment
) -> None:
    tile = layout.fragment(1, 1)
    registers = instruction.registers
    for mma_n, mma_m in np.ndindex(2, 2):
        first = (mma_n * 2 + mma_m) * registers
        for (lane, register, half), stacked in np.ndenumerate(instruction.rows):
            pair, row = divmod(int(stacked), 8)
            column = int(instruction.columns[lane, register, half])
            expected_row = (pair & 1) * 8 + mma_m * 4 + row % 4 + 16 * (row // 4)
            expected_column = (pair >> 1) * 8 + mma_n * 4 + column % 4 + 16 * (column // 4)
            assert tile.rows[lane, first + register, half] == expected_row
            assert tile.columns[lane, first + register, half] == expected_column


@pytest.mark.parametrize("packed", [False, True], ids=["f32", "f16"])
@pytest.mark.parametrize("n", range(8, 257, 8))
def test_a_warp_of_wgmma_holds_16_rows_like_m16n8(n: int, packed: bool) -> None:
    fragment = wgmma_accumulator(n, packed=packed)
    assert fragment.shape == (64, n)
    assert fragment.registers == (n // 4 if packed else n // 2)
    of_warp = (M16N8_F16 if packed else M16N8).fragment(1, n // 8)
    for warp in range(4):
        lanes = slice(32 * warp, 32 * warp + 32)
        np.testing.assert_array_equal(fragment.rows[lanes], of_warp.rows + 16 * warp)
        np.testing.assert_array_equal(fragment.columns[lanes], of_warp.columns)


def test_two_tiles_of_wgmma_accumulators_are_one_a_operand() -> None:
    """P, rounded in place, is the A operand of the second product from registers."""
    accumulators = np.random.default_rng(2).standard_normal((64, 16))
    held = wgmma_accumulator(16).gather(accumulators).reshape(128, 4, 2)
    np.testing.assert_array_equal(layouts.WGMMA_A.gather(accumulators), held)


@of_layouts
def test_what_is_no_warp_tile_is_refused(layout: Accumulator) -> None:
    with pytest.raises(ValueError, match="at least one tile; got 0 by 1"):
        layout.rows(0, 1)
    with pytest.raises(ValueError, match="at least one tile; got 1 by -1"):
        layout.fragment(1, -1)


def test_what_wgmma_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="one tile high; got 2 tiles"):
        WGMMA.fragment(2, 1)
    for n in (0, 12, 264):
        with pytest.raises(ValueError, match=f"from 8 to 256; got {n}"):
            wgmma_accumulator(n)
