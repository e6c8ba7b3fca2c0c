"""lib/accumulator.ptx: places of accumulators, reductions over rows, and what they are good for."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from blocks.harness import array, both, check_all, empty, instance, parts, run, same
from helpers.covering import covering, every

from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor
from cuevo.layouts import M8N8K4, M8N8K4_F16, M16N8, M16N8_F16, WGMMA, WGMMA_F16, Accumulator

LAYOUTS = (M16N8, M16N8_F16, M8N8K4, M8N8K4_F16, WGMMA, WGMMA_F16)
OPERATIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add.f32": np.add,
    "max.f32": np.maximum,
    "min.f32": np.minimum,
    "add.u32": np.add,
    "min.u32": np.minimum,
    "max.s32": np.maximum,
    "or.b32": np.bitwise_or,
    "and.b32": np.bitwise_and,
    "xor.b32": np.bitwise_xor,
}
TYPES = {"f32": np.float32, "u32": np.uint32, "s32": np.int32, "b32": np.uint32}
MOST_ACCUMULATORS = 128


@dataclass(frozen=True)
class Reduction:
    """One value of each thread, joined with those of its row."""

    layout: Accumulator
    operation: str


@dataclass(frozen=True)
class Example:
    """Something done to the rows of a warp tile."""

    kernel: str
    layout: Accumulator
    m_tiles: int
    n_tiles: int


@cache
def reductions() -> tuple[Reduction, ...]:
    return tuple(every(Reduction, layout=LAYOUTS, operation=OPERATIONS))


@cache
def examples() -> tuple[Example, ...]:
    """All warp tiles that have room in a thread."""
    return tuple(
        case
        for case in every(
            Example,
            kernel=EXAMPLES,
            layout=LAYOUTS,
            m_tiles=(1, 2, 3, 4, 8),
            n_tiles=(1, 2, 3, 4, 8, 16, 32),
        )
        if case.layout.threads == 32 or case.m_tiles == 1
        if case.layout.count(case.m_tiles, case.n_tiles) <= MOST_ACCUMULATORS
    )


def check_reduction(place: Executor, case: Reduction) -> None:
    layout = case.layout
    threads = np.arange(layout.threads)
    dtype = TYPES[case.operation.partition(".")[2]]
    rng = np.random.default_rng(layout.threads)
    values = rng.integers(0, 2**32, layout.threads, np.uint32).view(dtype)
    if dtype == np.float32:
        values = rng.standard_normal(layout.threads).astype(np.float32)
    joined = empty(values.shape, dtype)
    numbers = {name: empty(values.shape, np.uint32) for name in ("rows", "columns", "owners")}
    run(
        place,
        instance("accumulator", layout=layout, operation=case.operation),
        {"values": array(values)},
        {"joined": joined, **numbers},
        threads=layout.threads,
    )
    rows, columns = layout.lane_offset(threads)
    same("rows", numbers["rows"].array, rows.astype(np.uint32))
    same("columns", numbers["columns"].array, columns.astype(np.uint32))
    expected = values
    for distance in layout.lane_bits:
        expected = OPERATIONS[case.operation](expected, expected[threads ^ distance])
    same("joined", joined.array, expected)
    # Each row has one owner among its threads, and all of these have the row's value.
    owners = numbers["owners"].array == 1
    same("owners", numbers["owners"].array, owners.astype(np.uint32))
    same("rows of owners", np.sort(rows[owners]), np.unique(rows))
    for row in np.unique(rows):
        assert len(set(joined.array[rows == row].tolist())) == 1


# -- Examples --------------------------------------------------------------------------------------


def row_sum(case: Example, matrix: np.ndarray) -> np.ndarray:
    """In the order of the threads, so that every bit is right."""
    threads = np.arange(case.layout.threads)
    held = case.layout.fragment(case.m_tiles, case.n_tiles).gather(matrix.astype(np.float32))
    held = held.reshape(len(threads), -1)
    first_row, _ = case.layout.lane_offset(threads)
    sums = np.empty(len(matrix), np.float32)
    for row in case.layout.rows(case.m_tiles, case.n_tiles):
        total = held[:, row.elements[0].index]
        for element in row.elements[1:]:
            total = total + held[:, element.index]
        for distance in case.layout.lane_bits:
            total = total + total[threads ^ distance]
        sums[first_row + row.row] = total
    return sums


def row_softmax(case: Example, matrix: np.ndarray) -> np.ndarray:
    x = matrix.astype(np.float64)
    weights = np.exp(x - x.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def layer_norm(case: Example, matrix: np.ndarray) -> np.ndarray:
    x = matrix.astype(np.float64)
    x = x - x.mean(axis=1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5)


EXAMPLES: dict[str, Callable[[Example, np.ndarray], np.ndarray]] = {
    "row_sum": row_sum,
    "row_softmax": row_softmax,
    "layer_norm": layer_norm,
}


def check_example(place: Executor, case: Example) -> None:
    height, width = case.layout.tile
    shape = height * case.m_tiles, width * case.n_tiles
    rng = np.random.default_rng(shape)
    matrix = (3 * rng.standard_normal(shape)).astype(np.float16 if case.layout.packed else "f4")
    expected = EXAMPLES[case.kernel](case, matrix)
    result = empty(expected.shape, np.float32)
    run(
        place,
        instance(case.kernel, layout=case.layout, m_tiles=case.m_tiles, n_tiles=case.n_tiles),
        {"matrix": array(matrix)},
        {"result": result},
        threads=case.layout.threads,
    )
    if expected.dtype == np.float32:
        same("result", result.array, expected)
    else:
        np.testing.assert_allclose(result.array, expected, rtol=4e-6, atol=4e-6)


# -- Tests -----------------------------------------------------------------------------------------


def counts() -> dict[str, tuple[int, int]]:
    """Combinations that a device runs, and how many of them the CPU executor."""
    return {
        "reductions": (len(reductions()), len(reductions())),
        "examples": (len(examples()), len(covering(examples()))),
    }


@pytest.mark.unit
def test_the_number_of_combinations() -> None:
    assert counts() == {
        "reductions": (54, 54),
        "examples": (252, 48),
    }


@pytest.mark.kernel
def test_reductions_on_the_cpu_executor() -> None:
    check_all(check_reduction, reductions(), both())


@pytest.mark.kernel
@parts(4)
def test_examples_on_the_cpu_executor(part: slice) -> None:
    check_all(check_example, covering(examples())[part], both())


@pytest.mark.gpu
def test_reductions_on_a_device(executor: DriverExecutor) -> None:
    check_all(check_reduction, reductions(), executor)


@pytest.mark.gpu
@parts(4)
def test_examples_on_a_device(executor: DriverExecutor, part: slice) -> None:
    check_all(check_example, examples()[part], executor)
