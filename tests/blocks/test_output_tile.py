"""lib/output_tile.ptx: which elements are read and written, and that nothing else is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from blocks.harness import (
    array,
    both,
    changed_text,
    check_all,
    empty,
    instance,
    parts,
    run,
    same,
)
from helpers.covering import covering, every

from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor
from cuevo.layouts import OutputTile
from cuevo.toolchain.template import RenderedKernel

SCRIPTS = {
    "move": ("offset", "load", "advance", "advance", "store"),
    "one tile": ("set", "load", "enable", "get", "store"),
    "columns": ("store", "columns", "load", "columns", "advance", "store"),
    "masked store": ("clear", "get", "store", "set", "get", "store", "advance", "enable", "store"),
    "masked load": ("set", "load", "clear", "load", "advance", "enable", "get", "load"),
}
SHAPES = {
    "rows": (1, 0, 1, 0, 0),
    "groups": (2, 2, 1, 0, 1),
    "groups of clusters": (3, 2, 2, 6, 1),
    "gaps": (2, 3, 2, 8, 16),
}
"""groups, group_step, clusters, cluster_step, tile_step, all steps in rows of a group."""
MOST_REGISTERS = 64
"""Registers of a fragment: two or three have room in a thread."""


@dataclass(frozen=True)
class Case:
    """A tile, and what is done with it."""

    threads: int
    columns: int
    rows: int
    element_bytes: int
    width: int
    access: int
    exact: bool
    shape: str
    index_bytes: int
    """0: rows do not go through an index vector."""
    script: str

    @property
    def tile(self) -> OutputTile:
        groups, group_step, clusters, cluster_step, tile_step = SHAPES[self.shape]
        return OutputTile(
            "d",
            self.threads,
            self.columns,
            self.rows,
            self.element_bytes,
            self.width,
            self.access,
            self.exact,
            groups,
            group_step * self.rows,
            clusters,
            cluster_step * self.rows,
            tile_step * self.rows,
            self.index_bytes > 0,
            self.index_bytes or 8,
        )


def broken(case: Case) -> Iterator[str]:
    """Why the macros cannot do what `OutputTile.violations` lets pass."""
    if case.access < case.element_bytes:
        yield "an access is at least one element"


@cache
def admitted() -> tuple[Case, ...]:
    """All that `layouts` admits, as far as fragments have room in a thread."""
    found = []
    for case in every(
        Case,
        threads=(32, 128),
        columns=(24, 64),
        rows=(4, 16),
        element_bytes=(2, 4),
        width=(1, 2, 4, 8),
        access=(16, 8, 4, 2),
        exact=(False, True),
        shape=SHAPES,
        index_bytes=(0, 8, 4),
        script=SCRIPTS,
    ):
        tile = case.tile
        if list(tile.violations()) or (tile.stands_alone and "advance" in SCRIPTS[case.script]):
            continue
        if len(tile.row_offsets) * tile.registers <= MOST_REGISTERS:
            found.append(case)
    return tuple(found)


@cache
def cases() -> tuple[Case, ...]:
    """Cases that must work."""
    return tuple(case for case in admitted() if not list(broken(case)))


@dataclass(frozen=True)
class Place:
    """Beginning of the tile, and the extents that exist."""

    rows: int
    columns: int
    first_row: int = 0
    first_column: int = 0
    backwards: bool = False
    """Whether the rows of the matrix follow each other downwards in memory."""


def places(case: Case) -> Iterator[Place]:
    """Whole and ragged ones, with little in them or nothing."""
    groups, group_step, clusters, cluster_step, tile_step = SHAPES[case.shape]
    advances = SCRIPTS[case.script].count("advance") * (tile_step or groups * clusters)
    last = advances + (groups - 1) * group_step + (clusters - 1) * cluster_step
    reach = (last + 1) * case.rows
    cut = case.tile.piece if case.exact else 1
    yield Place(reach, case.columns)
    yield Place(reach + 1, 2 * case.columns - cut, 3, case.columns, backwards=True)
    yield Place(reach - case.rows // 2 + 5, case.columns // 2 // cut * cut + cut, 5)
    yield Place(reach, 3 * case.columns + cut, 1, case.columns)
    yield Place(3, case.columns + cut, 2, case.columns)
    yield Place(reach, case.columns, 0, case.columns)
    yield Place(4, case.columns, 4)


def sample() -> list[Case]:
    """Every three values of three parameters."""
    return covering(cases(), together=3)


# -- What is right ---------------------------------------------------------------------------------


class Model:
    """The iterator, by the definition of its tiles."""

    def __init__(self, case: Case, place: Place, index: np.ndarray | None, bound: int) -> None:
        self.case = case
        self.place = place
        self.index = index
        self.bound = bound
        self.rows_moved = 0
        self.columns_moved = 0
        self.tiles_advanced = 0
        self.enabled = np.ones(case.threads, bool)

    def elements(self) -> tuple[np.ndarray, ...]:
        """Thread, access, element, and row and column in the matrix, of each that is touched."""
        case, place = self.case, self.place
        groups, group_step, clusters, cluster_step, tile_step = SHAPES[case.shape]
        across = case.columns // case.width
        together = min(case.threads // across, case.rows)
        shape = (clusters, groups, case.rows, across, case.width)
        cluster, group, row, part, element = np.indices(shape).reshape(5, -1)
        thread = row % together * across + part
        access = (cluster * groups + group) * -(-case.rows // together) + row // together
        tile = self.tiles_advanced * (tile_step or groups * clusters)
        row = row + case.rows * (cluster * cluster_step + group * group_step + tile)
        row, column = row + place.first_row, part * case.width + element
        column = column + place.first_column + self.columns_moved
        there = self.enabled[thread] & (row < place.rows) & (column < place.columns)
        found = [x[there] for x in (thread, access, element, row, column)]
        if self.index is not None:
            found[3] = self.index[found[3]]
            there = (found[3] >= 0) & (found[3] < self.bound)
            found = [x[there] for x in found]
        found[3] = found[3] + self.rows_moved
        return tuple(found)

    def play(self, script: Sequence[str], matrix: np.ndarray, fragments: np.ndarray) -> np.ndarray:
        """Does to the matrix and the fragments what the script says; the masks that `get` finds."""
        each = 4 // self.case.element_bytes
        words = fragments.view(f"u{self.case.element_bytes}")
        transfer, masks = 0, [np.empty((0, self.case.threads), bool)]
        for step in script:
            if step in ("load", "store"):
                thread, access, element, row, column = self.elements()
                register = access * self.case.tile.registers + element // each
                held = (transfer, register, thread * each + element % each)
                if step == "load":
                    words[held] = matrix[row, column]
                else:
                    matrix[row, column] = words[held]
                transfer += 1
            elif step == "advance":
                self.tiles_advanced += 1
            elif step == "offset":
                self.rows_moved += 1
            elif step == "columns":
                self.columns_moved += self.case.columns
            elif step == "get":
                masks.append(self.enabled[None])
            else:
                odd = np.arange(self.case.threads) % 2 == 1
                self.enabled = {"clear": odd & False, "enable": odd | True, "set": odd}[step]
        return np.concatenate(masks).astype(np.uint32)


def targets(rng: np.random.Generator, rows: int, index_bytes: int) -> tuple[np.ndarray | None, int]:
    """Targets of the rows, some out of range, on both sides and by far; and the bound."""
    if not index_bytes:
        return None, rows
    bound = rows * 5 // 4
    found = rng.permutation(bound)[:rows].astype(f"i{index_bytes}")
    outside = np.array([-1, bound, bound + 3, 2**31, 2**32, -(2**63), 2**63 - 1])
    if index_bytes == 4:
        outside = np.array([-1, bound, bound + 3, 2**31 - 1, -(2**31)])
    dropped = rng.random(rows) < 0.25
    found[dropped] = rng.choice(outside, np.count_nonzero(dropped))
    return found, bound


def rendered(tile: OutputTile, script: Sequence[str]) -> RenderedKernel:
    """The test kernel that does what the script says."""
    kinds = ["transfer" if step in ("load", "store") else step for step in script]
    numbers = tuple((step, kinds[:i].count(kinds[i])) for i, step in enumerate(script))
    return instance("output_tile", tile=tile, transfers=kinds.count("transfer"), script=numbers)


def check(executor: Executor, case: Case) -> None:
    tile, script = case.tile, SCRIPTS[case.script]
    kernel = rendered(tile, script)
    rng = np.random.default_rng(case.columns * case.rows + case.threads)
    transfers = sum(step in ("load", "store") for step in script)
    registers = len(tile.row_offsets) * tile.registers
    for place in places(case):
        index, bound = targets(rng, place.rows, case.index_bytes)
        model = Model(case, place, index, bound)
        shape = (bound + script.count("offset"), place.columns)
        bits = 8 * case.element_bytes
        before = rng.integers(0, 2**bits, shape).astype(f"u{case.element_bytes}")
        pitch = -(-place.columns * case.element_bytes // case.access) | 1
        matrix = array(
            before,
            row_bytes=pitch * case.access,
            shift=case.access,
            backwards=(0,) if place.backwards else (),
        )
        fragments = rng.integers(0, 2**32, (transfers, registers, case.threads), np.uint32)
        after = empty(fragments.shape, np.uint32)
        masks = empty((script.count("get"), case.threads), np.uint32)
        run(
            executor,
            kernel,
            {"before": array(fragments)} | ({} if index is None else {"index": array(index)}),
            {"matrix": matrix, "after": after, "masks": masks},
            threads=case.threads,
            stride=matrix.array.strides[0],
            shift=matrix.array.strides[0],
            bound=bound,
            rows=place.rows,
            columns=place.columns,
            first_row=place.first_row,
            first_column=place.first_column,
        )
        same(f"{place}: masks", masks.array, model.play(script, before, fragments))
        same(f"{place}: matrix", matrix.array, before)
        same(f"{place}: fragments", after.array, fragments)


# -- Prefetches ------------------------------------------------------------------------------------

LINE = 128
"""Bytes that a request brings."""
PREFETCHES = {"prefetch L1": 1, "prefetch L2": 1, "prefetch all": 3}
"""Scripts, and how many tiles they ask for."""


@cache
def prefetches() -> tuple[Case, ...]:
    """Tiles of which something is to be asked for."""
    return tuple(
        case
        for case in every(
            Case,
            threads=(32, 128),
            columns=(8, 24, 64, 256),
            rows=(4, 16),
            element_bytes=(2, 4),
            width=(1, 2, 4, 8),
            access=(16,),
            exact=(False,),
            shape=SHAPES,
            index_bytes=(0, 8, 4),
            script=PREFETCHES,
        )
        if not list(case.tile.violations()) and not list(broken(case))
        if not case.tile.stands_alone or PREFETCHES[case.script] == 1
    )


def asked_for(
    executor: Executor, case: Case, place: Place, pitch: int, script: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """[row, byte]: where requests go; and what of that is of the tile's elements.

    Each request is made a store of one byte, so that it leaves a trace, and is checked.
    """
    kernel = rendered(case.tile, script)
    for level in ("L1", "L2"):
        if f"prefetch.global.{level} [address]" in kernel.text:
            request = f"prefetch.global.{level} [address]"
            kernel = changed_text(kernel, request, "st.global.b8 [address], mark")
    rng = np.random.default_rng(case.columns)
    index, bound = targets(rng, place.rows, case.index_bytes)
    found = array(np.zeros((bound, place.columns * case.element_bytes), np.uint8), row_bytes=pitch)
    run(
        executor,
        kernel,
        {} if index is None else {"index": array(index)},
        {"matrix": found},
        threads=case.threads,
        stride=pitch,
        bound=bound,
        rows=place.rows,
        columns=place.columns,
        first_row=place.first_row,
        first_column=place.first_column,
    )
    model = Model(case, place, index, bound)
    wanted = np.zeros((bound, place.columns, case.element_bytes), bool)
    for model.tiles_advanced in range(PREFETCHES[case.script]):
        _, _, _, row, column = model.elements()
        wanted[row, column] = True
    return found.array == 0x5A, wanted.reshape(found.array.shape)


def lines(bytes_of_rows: np.ndarray, pitch: int) -> np.ndarray:
    """[row, line]: how many of the bytes are in a line; the first row begins one."""
    row, byte = np.nonzero(bytes_of_rows)
    found = np.zeros((len(bytes_of_rows), bytes_of_rows.shape[1] // LINE + 2), int)
    np.add.at(found, (row, (row * pitch % LINE + byte) // LINE), 1)
    return found


def check_prefetch(executor: Executor, case: Case) -> None:
    for place in (
        Place(12 * case.rows, case.columns),
        Place(7 * case.rows + 3, case.columns - 3, 2),
        Place(3 * case.rows, case.columns + 1, 2, case.columns),
        Place(3, case.columns, 3),
    ):
        size = place.columns * case.element_bytes
        for pitch in (-(-size // LINE) * LINE, -(-size // 16) * 16 + 16):
            found, wanted = asked_for(executor, case, place, pitch, [case.script])
            what = f"{place}, rows {pitch} bytes apart"
            assert not (found & ~wanted).any(), f"{what}: asks for what is not the tile's"
            assert (lines(found, pitch) <= 1).all(), f"{what}: asks for a line twice"
            if pitch % LINE == 0 and place.first_column * case.element_bytes % LINE == 0:
                same(f"{what}: lines", lines(found, pitch), np.minimum(lines(wanted, pitch), 1))
            found, _ = asked_for(executor, case, place, pitch, ["clear", case.script])
            assert not found.any(), f"{what}: asks though it is masked"


def check_every_line(executor: Executor, case: Case) -> None:
    """Lines asked for, of rows that begin anywhere."""
    place = Place(12 * case.rows, case.columns)
    pitch = -(-place.columns * case.element_bytes // 16) * 16 + 16
    found, wanted = asked_for(executor, case, place, pitch, [case.script])
    same("lines", lines(found, pitch), np.minimum(lines(wanted, pitch), 1))


# -- Tests -----------------------------------------------------------------------------------------


def counts() -> dict[str, tuple[int, int]]:
    """Combinations that a device runs, and how many of them the CPU executor."""
    return {
        "loads and stores": (len(cases()), len(sample())),
        "prefetches": (len(prefetches()), len(covering(prefetches()))),
    }


@pytest.mark.unit
def test_the_number_of_combinations() -> None:
    assert counts() == {
        "loads and stores": (18450, 106),
        "prefetches": (3102, 23),
    }


@pytest.mark.unit
def test_blocks_refuse_what_the_macros_cannot_do() -> None:
    assert not [case for case in admitted() if list(broken(case))]


@pytest.mark.kernel
@parts(8)
def test_loads_and_stores_on_the_cpu_executor(part: slice) -> None:
    check_all(check, sample()[part], both())


@pytest.mark.kernel
@parts(2)
def test_prefetches_on_the_cpu_executor(part: slice) -> None:
    check_all(check_prefetch, covering(prefetches())[part], both())


@pytest.mark.kernel
def test_prefetches_reach_every_line_of_rows_that_begin_within_one() -> None:
    check_all(check_every_line, covering(prefetches()), both())


@pytest.mark.gpu
@parts(32)
def test_loads_and_stores_on_a_device(executor: DriverExecutor, part: slice) -> None:
    check_all(check, cases()[part], executor)


@pytest.mark.gpu
@parts(4)
def test_prefetches_on_a_device(executor: DriverExecutor, part: slice) -> None:
    check_all(check_prefetch, prefetches()[part], executor)
