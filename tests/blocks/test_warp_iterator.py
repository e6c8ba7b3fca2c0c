"""lib/warp_iterator.ptx: every operand tile that `layouts.Operand` admits, read as fragments."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from math import ceil

import numpy as np
import pytest
from blocks.harness import (
    array,
    assert_no_conflicts,
    both,
    check_all,
    empty,
    instance,
    parts,
    run,
    same,
)
from blocks.products import broken
from helpers.covering import covering, every

from cuevo import layouts
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor
from cuevo.layouts import SharedTile
from cuevo.layouts.tiles import INSTRUCTIONS, Operand

EXTENTS = (16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
WARP_EXTENTS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 192, 256)
DEPTHS = (16, 32, 48, 64, 80, 96, 112, 128, 192)
MOST_WARPS = 32

# What a lane supplies, as lib/warp_iterator.ptx says: row, chunk.
LANES = np.arange(32)
PATTERNS = {
    "a": (LANES % 16, LANES // 16),
    "b": (LANES % 8 + 8 * (LANES // 16), LANES // 8 % 2),
    "rows": (LANES, 0 * LANES),
    "columns": (LANES % 8, LANES // 8),
}
UNITS = {"a": 2, "b": 2, "rows": 1, "columns": 4}
CHUNKS = (*range(1, 17), 20, 24, 32)
ROWS = 40


# -- Operands of a threadblock product -------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One K tile of an operand."""

    name: str
    transposed: bool
    layout: str
    instruction: str
    extent: int
    warp_extent: int
    depth: int

    @property
    def operand(self) -> Operand:
        """With as many threads as it takes to copy it and to read all of it."""
        chunks = (self.extent if self.transposed else self.depth) // 8
        warps = max(self.extent // self.warp_extent, ceil(8 * chunks / 32))
        return Operand(threads=32 * min(warps, MOST_WARPS), **asdict(self))


def admitted() -> Iterator[Case]:
    """All that `blocks` admits."""
    for case in every(
        Case,
        name="ab",
        transposed=(False, True),
        layout=("swizzled", "padded"),
        instruction=("m16n8k16", "m16n8k8"),
        extent=EXTENTS,
        warp_extent=WARP_EXTENTS,
        depth=DEPTHS,
    ):
        warps, rest = divmod(case.extent, case.warp_extent)
        if rest or warps > MOST_WARPS:
            continue
        if not list(case.operand.violations()):
            yield case


@cache
def cases() -> tuple[Case, ...]:
    """Cases that must work."""
    return tuple(case for case in admitted() if not list(broken(case.operand)))


def fragments(x: Operand, tile: np.ndarray) -> np.ndarray:
    """[warp, step, register, lane], by the fragments of the instruction."""
    step = INSTRUCTIONS[x.instruction]
    of_a = {16: layouts.MMA_M16N8K16_A, 8: layouts.MMA_M16N8K8_A}[step]
    of_b = {16: layouts.MMA_M16N8K16_B, 8: layouts.MMA_M16N8K8_B}[step]
    matrix = tile.T if x.transposed else tile  # [m or n, k]
    height = 16 if x.name == "a" else 8
    found = []
    for k in range(0, x.depth, step):
        for first in range(0, x.extent, height):
            block = matrix[first : first + height, k : k + step]
            held = of_a.gather(block) if x.name == "a" else of_b.gather(block.T)
            found.append(np.ascontiguousarray(held).view(np.uint32)[..., 0].T)
    by_step = np.stack(found).reshape(x.steps, x.warps, -1, 32)
    return by_step.swapaxes(0, 1)


def check(place: Executor, case: Case) -> None:
    x = case.operand
    tile = numbered(x.rows, x.columns)
    expected = fragments(x, tile)
    found = empty(expected.shape, np.uint32)
    loaded = run(
        place,
        instance("warp_iterator", operand=x),
        {"tile": array(tile)},
        {"fragments": found},
        threads=x.threads,
        shared_bytes=128 + x.bytes,
    )
    same("fragments", found.array, expected)
    assert_no_conflicts(loaded)


def numbered(rows: int, columns: int) -> np.ndarray:
    """16-bit elements that are all different, as long as there are no more than 65536."""
    return (np.arange(rows * columns) * 40503 % 65536).astype(np.uint16).reshape(rows, columns)


# -- Single loads ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """Loads of `count` blocks from wherever a tile has an address for them."""

    chunks: int
    kind: str
    pattern: str
    trans: bool
    count: int

    @property
    def tile(self) -> SharedTile:
        return SharedTile(self.chunks, self.kind)

    @property
    def threads(self) -> int:
        """Enough to fill 8 rows at a time."""
        return max(32, 8 * ceil(self.chunks / 4) * 4)

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Rows and chunks whose blocks are in the tile."""
        rows, chunks = (int(x[: 8 * self.count].max()) for x in PATTERNS[self.pattern])
        step = min(UNITS[self.pattern], self.tile.group)
        return tuple(
            (row, chunk)
            for row in range(0, ROWS - rows, 8)
            for chunk in range(0, self.chunks - chunks, step)
        )


@cache
def loads() -> tuple[Load, ...]:
    """All that have a place; padded rows are a power of two, as `blocks` has them."""
    return tuple(
        load
        for load in every(
            Load,
            chunks=CHUNKS,
            kind=("swizzled", "padded"),
            pattern=PATTERNS,
            trans=(False, True),
            count=(1, 2, 4),
        )
        if load.places and (load.kind == "swizzled" or not load.chunks & (load.chunks - 1))
    )


def check_load(place: Executor, load: Load) -> None:
    tile = numbered(ROWS, 8 * load.chunks)
    rows, chunks = PATTERNS[load.pattern]
    way = layouts.LDMATRIX_TRANS if load.trans else layouts.LDMATRIX
    expected = np.empty((len(load.places), load.count, 32), np.uint32)
    for number, (row, chunk) in enumerate(load.places):
        for i in range(load.count):
            lanes = slice(8 * i, 8 * i + 8)
            down = row + rows[lanes, None]
            block = tile[down, 8 * (chunk + chunks[lanes, None]) + np.arange(8)]
            expected[number, i] = np.ascontiguousarray(way.gather(block)).view(np.uint32)[:, 0, 0]
    found = empty(expected.shape, np.uint32)
    loaded = run(
        place,
        instance(
            "warp_load",
            tile=load.tile,
            rows=ROWS,
            threads=load.threads,
            pattern=load.pattern,
            trans=load.trans,
            count=load.count,
            loads=load.places,
        ),
        {"tile": array(tile)},
        {"blocks": found},
        threads=load.threads,
        shared_bytes=ROWS * load.tile.pitch * 16,
    )
    same("blocks", found.array, expected)
    assert_no_conflicts(loaded)


# -- Tests -----------------------------------------------------------------------------------------


def counts() -> dict[str, tuple[int, int]]:
    """Combinations that a device runs, and how many of them the CPU executor."""
    return {
        "operands": (len(cases()), len(covering(cases()))),
        "loads": (len(loads()), len(covering(loads()))),
    }


@pytest.mark.unit
def test_the_number_of_combinations() -> None:
    assert counts() == {
        "operands": (3122, 148),
        "loads": (574, 77),
    }


@pytest.mark.unit
def test_blocks_refuse_what_the_macros_cannot_do() -> None:
    assert not [case for case in admitted() if list(broken(case.operand))]


@pytest.mark.kernel
@parts(8)
def test_operands_on_the_cpu_executor(part: slice) -> None:
    check_all(check, covering(cases())[part], both())


@pytest.mark.kernel
@parts(4)
def test_loads_on_the_cpu_executor(part: slice) -> None:
    check_all(check_load, covering(loads())[part], both())


@pytest.mark.gpu
@parts(32)
def test_operands_on_a_device(executor: DriverExecutor, part: slice) -> None:
    check_all(check, cases()[part], executor)


@pytest.mark.gpu
@parts(8)
def test_loads_on_a_device(executor: DriverExecutor, part: slice) -> None:
    check_all(check_load, loads()[part], executor)
