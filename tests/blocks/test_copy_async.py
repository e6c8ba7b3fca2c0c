"""lib/copy_async.ptx: what copies of row tiles leave in shared memory, byte for byte."""

from collections.abc import Iterator
from dataclasses import dataclass
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
from helpers.covering import covering, every

from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor
from cuevo.layouts import SharedTile

PAINT = 0xA5
"""Bytes that shared memory holds before."""


@dataclass(frozen=True)
class Case:
    """Copies of one tile."""

    chunks: int
    kind: str
    rows: int
    threads: int
    access: int
    cache: str
    what: str
    """Result where nothing exists: "zeros" or "keep"; "whole": everything does."""
    calls: str
    """Passes, in one call or several."""

    @property
    def tile(self) -> SharedTile:
        return SharedTile(self.chunks, self.kind)

    @property
    def pass_rows(self) -> int:
        """Rows of a pass, as `layouts.Operand` has them."""
        period = self.tile.period
        return min(self.threads // self.chunks // period * period, self.rows)

    @property
    def passes(self) -> tuple[range, ...]:
        """Passes of each call."""
        total = ceil(self.rows / self.pass_rows)
        return {
            "all": (range(total),),
            "halves": (range(total // 2), range(total // 2, total)),
            "all but the first": (range(1, total),),
        }[self.calls]


def possible(case: Case) -> bool:
    """Legality of the same numbers by `layouts.Operand`."""
    power_of_two = not case.chunks & (case.chunks - 1)
    return (
        case.threads >= case.chunks * case.tile.period
        and (power_of_two or case.kind != "padded")
        and (case.rows % case.tile.period == 0 or case.pass_rows % case.tile.period == 0)
        and (case.what != "whole" or case.access == 16)
        and (case.cache == "ca" or case.access == 16)
        and (case.calls == "all" or case.rows > case.pass_rows)
    )


@cache
def cases() -> tuple[Case, ...]:
    """All that `blocks` admits, for some tile of some operand."""
    return tuple(
        case
        for case in every(
            Case,
            chunks=(1, 2, 3, 4, 5, 6, 8, 12, 16, 20, 32),
            kind=("swizzled", "padded", "quads", "quad columns"),
            rows=(8, 20, 40, 128),
            threads=(32, 96, 128, 512),
            access=(16, 8, 4, 2),
            cache=("ca", "cg"),
            what=("zeros", "keep", "whole"),
            calls=("all", "halves", "all but the first"),
        )
        if possible(case)
    )


def extents(case: Case) -> Iterator[tuple[int, int]]:
    """Rows and elements of a row that exist."""
    rows, columns = case.rows, 8 * case.chunks
    yield rows, columns
    if case.what != "whole":
        yield rows - 3, columns - 1
        yield rows // 2 + 1, columns // 2 + 3
        yield 1, 1
        yield -5, columns
        yield rows, -2


def contents(case: Case, source: np.ndarray) -> np.ndarray:
    """The bytes of the tile."""
    rows, columns = source.shape
    covered = [
        row
        for passes in case.passes
        for p in passes
        for row in range(p * case.pass_rows, min((p + 1) * case.pass_rows, case.rows))
    ]
    found = np.full((case.rows * case.tile.pitch, 16), PAINT, np.uint8)
    for row in covered:
        line = np.zeros(8 * case.chunks, np.uint16)
        if row < rows:
            line[:columns] = source[row]
        for chunk in range(case.chunks):
            exists = row < rows and 8 * chunk < columns
            if exists or case.what == "zeros":
                part = line[8 * chunk : 8 * chunk + 8]
                found[case.tile.place(row, chunk)] = part.view(np.uint8)
    return found.ravel()


def check(place: Executor, case: Case) -> None:
    kernel = instance(
        "copy_tile",
        tile=case.tile,
        rows=case.rows,
        threads=case.threads,
        pass_rows=case.pass_rows,
        cache=case.cache,
        access=case.access,
        what=case.what,
        calls=case.passes,
    )
    rng = np.random.default_rng(case.rows * case.chunks)
    for rows, columns in extents(case):
        source = rng.integers(0, 2**16, (max(rows, 0), max(columns, 0))).astype(np.uint16)
        # An odd multiple of the access from row to row.
        pitch = (ceil(2 * source.shape[1] / case.access) | 1) * case.access
        expected = contents(case, source)
        found = empty(expected.shape, np.uint8)
        loaded = run(
            place,
            kernel,
            {"source": array(source, row_bytes=pitch, shift=case.access)},
            {"contents": found},
            threads=case.threads,
            shared_bytes=found.array.size,
            stride=pitch,
            step=pitch * case.pass_rows,
            rows=rows,
            bytes=2 * columns,
        )
        same(f"{rows} x {columns}: contents", found.array, expected)
        # The narrow copies of a chunk go to every fourth, or second, bank.
        if case.access in (16, 2):
            assert_no_conflicts(loaded)


def counts() -> dict[str, tuple[int, int]]:
    """Combinations that a device runs, and how many of them the CPU executor."""
    return {
        "tiles": (len(cases()), len(covering(cases()))),
    }


@pytest.mark.unit
def test_the_number_of_combinations() -> None:
    assert counts() == {
        "tiles": (9720, 52),
    }


@pytest.mark.kernel
@parts(8)
def test_on_the_cpu_executor(part: slice) -> None:
    check_all(check, covering(cases())[part], both())


@pytest.mark.gpu
@parts(32)
def test_on_a_device(executor: DriverExecutor, part: slice) -> None:
    check_all(check, cases()[part], executor)
