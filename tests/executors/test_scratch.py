"""Memory of workspaces that stays where it is: for whom, and for how long."""

import gc
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda

import cuevo
from cuevo.arrays import copy_to_host, view
from cuevo.executors import scratch
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.scratch import NBYTES, Scratch

unit = pytest.mark.unit
gpu = pytest.mark.gpu
SUCCESS = cuda.CUresult.CUDA_SUCCESS
REFUSED = cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY


class Driver:
    """The driver's memory and streams; each allocation has another address."""

    def __init__(self) -> None:
        self.allocated = 0
        self.freed: list[int] = []
        self.numbers: dict[int, int] = {}
        self.captured: set[int] = set()
        self.answer = SUCCESS

    def allocate(self, nbytes: int) -> Any:
        assert nbytes == NBYTES
        self.allocated += 1
        return self.answer, 1000 * self.allocated

    def number(self, stream: int) -> Any:
        assert stream not in self.captured  # It would be spoilt.
        return SUCCESS, self.numbers.get(stream, stream)

    def free(self, address: int) -> Any:
        self.freed.append(address)
        return (SUCCESS,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    for name, call in {
        "cuGetErrorName": lambda status: (SUCCESS, status.name.encode()),
        "cuGetErrorString": lambda status: (SUCCESS, b"the driver's text"),
        "cuMemAlloc": driver.allocate,
        "cuMemFree": driver.free,
        "cuStreamGetId": driver.number,
        "cuStreamIsCapturing": lambda stream: (SUCCESS, int(stream in driver.captured)),
        "cuThreadExchangeStreamCaptureMode": lambda mode: (SUCCESS, mode),
    }.items():
        monkeypatch.setattr(cuda, name, call)
    return driver


@pytest.fixture
def memory(driver: Driver) -> Iterator[Scratch]:
    context: Any = SimpleNamespace(current=nullcontext)
    memory = Scratch(context)
    yield memory
    memory._memories.clear()  # while it is this driver's


@unit
def test_calls_on_a_stream_share_memory(driver: Driver, memory: Scratch) -> None:
    assert [memory.find(nbytes, 5) for nbytes in (1, NBYTES, 7)] == [1000] * 3
    assert [memory.find(1, stream) for stream in (6, 1, 5, 1)] == [2000, 3000, 1000, 3000]
    assert not driver.freed


@unit
def test_a_large_workspace_has_none(driver: Driver, memory: Scratch) -> None:
    assert memory.find(NBYTES + 1, 5) is None and not driver.allocated


@unit
def test_a_stream_that_is_captured_has_none(driver: Driver, memory: Scratch) -> None:
    driver.captured = {5}
    assert memory.find(1, 5) is None and not driver.allocated
    driver.captured = set()
    assert memory.find(1, 5) == 1000


@unit
def test_a_later_stream_of_the_same_handle_has_its_own(driver: Driver, memory: Scratch) -> None:
    assert memory.find(1, 5) == 1000
    driver.numbers = {5: 77}
    assert memory.find(1, 5) == memory.find(1, 5) == 2000
    assert driver.freed == [1000]


@unit
def test_another_thread_has_its_own(driver: Driver, memory: Scratch) -> None:
    found = [memory.find(1, 5)]

    def run() -> None:
        found.extend([memory.find(1, 5), memory.find(1, 5)])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    gc.collect()
    assert found == [1000, 2000, 2000] and driver.freed == [2000]


@unit
def test_streams_that_have_memory_do_not_grow_without_end(
    driver: Driver, memory: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "_KEPT", 3)
    for stream in range(5, 25):
        assert memory.find(1, stream) is not None
        assert driver.allocated - len(driver.freed) <= 3


@unit
def test_without_memory_there_is_none(driver: Driver, memory: Scratch) -> None:
    driver.answer = REFUSED
    assert memory.find(1, 5) is None
    driver.answer = SUCCESS
    assert memory.find(1, 5) is not None


@gpu
def test_calls_on_several_streams_do_not_meet(executor: DriverExecutor) -> None:
    """Of one thread, in flight at a time, also on streams that have gone meanwhile."""
    n, length, heads, dim = 96, 256, 4, 32
    random = np.random.default_rng(0)
    shapes = [(1, n, length, heads, dim)] * 3
    shapes.append((1, 1, heads, length, length))
    sets = [[random.standard_normal(x).astype(np.float16) for x in shapes] for _ in range(3)]
    moved = [[executor.copy_to_device(view(x)) for x in each] for each in sets]
    executor.synchronize()

    def call(number: int, stream: Any) -> Any:
        q, k, v, pair = moved[number]
        return cuevo.attention(q, k, v, pair_bias=pair, stream=stream)

    def fetch(x: Any, stream: Any) -> bytes:
        handle = int(stream.handle)
        return copy_to_host(view(x, stream=handle), handle).tobytes()

    expected = [fetch(call(number, executor.stream), executor.stream) for number in range(3)]
    streams = [executor.new_stream() for _ in range(3)]
    for _ in range(5):
        results = [call(number, stream) for number, stream in enumerate(streams)]
        assert [*map(fetch, results, streams)] == expected
    results = []
    for turn in range(24):
        stream = executor.new_stream()
        results.append(call(turn % 3, stream))
        del stream  # while it has work
    for turn, result in enumerate(results):
        assert fetch(result, executor.stream) == expected[turn % 3], turn
