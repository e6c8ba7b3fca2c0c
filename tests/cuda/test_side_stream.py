"""Work on a stream and on its side stream: what comes before the fork, and after the join.

Copies of hundreds of megabytes on either: where one did not wait for the other, it would find, or
leave, other bytes.
"""

import threading
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from cuevo.arrays import copy_to_host, view
from cuevo.cuda.context import check
from cuevo.cuda.side_stream import SideStream
from cuevo.cuda.stream import resolve_stream
from cuevo.executors.driver import DriverExecutor

pytestmark = pytest.mark.gpu

WORDS = 64 * 1024 * 1024


class Arrays:
    """A source, and copies of it that are made on either stream."""

    def __init__(self, executor: DriverExecutor, queue: Any) -> None:
        self.executor = executor
        self.queue = queue
        self.main = resolve_stream(queue)
        self.source, self.beside, self.after = (
            executor.empty((WORDS,), np.dtype(np.float32), queue) for _ in range(3)
        )

    def fill(self, stream: int, value: float) -> None:
        self.executor.fill(view(self.source, stream=stream), value, stream)

    def copy(self, stream: int, target: Any) -> None:
        with self.executor.context.current():
            check(
                cuda.cuMemcpyDtoDAsync(target.pointer, self.source.pointer, 4 * WORDS, stream),
                "copying",
            )

    def work(self) -> None:
        """The side stream copies 1, and writes 2, which the stream copies when it has joined."""
        self.fill(self.main, 0.0)
        self.fill(self.main, 1.0)
        with (
            self.executor.context.current(),
            self.executor.side_stream(self.main) as beside,
        ):
            assert beside != self.main
            self.copy(beside, self.beside)
            self.fill(beside, 2.0)
        self.copy(self.main, self.after)
        self.fill(self.main, 3.0)

    def check(self) -> None:
        for array, value in ((self.beside, 1.0), (self.after, 2.0), (self.source, 3.0)):
            assert np.all(copy_to_host(view(array), self.main) == value)


@pytest.mark.parametrize("stream", ["own", "legacy default"])
def test_a_side_stream_forks_and_joins(executor: DriverExecutor, stream: str) -> None:
    queue = executor.new_stream() if stream == "own" else None
    arrays = Arrays(executor, queue)
    for _ in range(3):
        arrays.work()
        arrays.check()


def test_a_side_stream_is_captured_with_its_stream(executor: DriverExecutor) -> None:
    queue = executor.new_stream()
    arrays = Arrays(executor, queue)
    graph = executor.capture(lambda _: arrays.work(), queue)
    for _ in range(2):
        arrays.fill(arrays.main, 7.0)
        graph.launch()
        arrays.check()


def test_the_stream_waits_for_work_that_failed(executor: DriverExecutor) -> None:
    """Work that the side stream was given before an error is waited for all the same."""
    arrays = Arrays(executor, executor.new_stream())
    arrays.fill(arrays.main, 1.0)
    with (
        pytest.raises(ZeroDivisionError),
        executor.context.current(),
        executor.side_stream(arrays.main) as beside,
    ):
        arrays.copy(beside, arrays.beside)
        arrays.fill(beside, 2.0)
        raise ZeroDivisionError
    arrays.copy(arrays.main, arrays.after)
    arrays.fill(arrays.main, 3.0)
    arrays.check()


def test_a_thread_has_side_streams_of_its_own(executor: DriverExecutor) -> None:
    main = resolve_stream(executor.stream)
    mine = executor.side_stream(main)
    assert executor.side_stream(main) is mine
    others: list[SideStream] = []
    thread = threading.Thread(target=lambda: others.append(executor.side_stream(main)))
    thread.start()
    thread.join()
    assert len(others) == 1 and others[0].handle != mine.handle
