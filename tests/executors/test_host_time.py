"""Host time of repeated launches and allocations on a device."""

import struct
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from cuevo.arrays import view
from cuevo.cuda.context import check
from cuevo.ops.plan import Launch, Plan

FLOAT = np.dtype(np.float32)


def microseconds(work: Callable[[], object], after: Callable[[], None]) -> float:
    """Host time of `work`, the best of several series; `after` empties the queue between them."""
    series = []
    for _ in range(7):
        after()
        start = time.perf_counter()
        for _ in range(300):
            work()
        series.append((time.perf_counter() - start) / 300 * 1e6)
    after()
    return min(series)


@pytest.mark.gpu
@pytest.mark.whole_device
def test_host_time_of_a_repeated_launch(
    executor: Any, small: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = executor.load(small.rendered("vector_add"))
    handle = int(executor.stream.handle)
    x = executor.copy_to_device(view(np.ones(128, np.float32)), handle)
    out = executor.empty((128,), FLOAT, handle)
    params = bytearray(small.add_params(x.pointer, x.pointer, out.pointer, 128, 1.0))
    grid, block = (1, 1, 1), (128, 1, 1)
    shape, strides = (1, 128, 256, 8, 32), (2097152, 16384, 64, 2048, 2)
    half = np.dtype(np.float16)
    driver_launch = kernel._prepare_launch((grid, block, 0), handle, kernel._prepared.block)
    config: Any = SimpleNamespace(threads=128, shared_bytes=0)
    addresses, constants = struct.Struct("<3Q"), bytes(params[24:])
    of_plan = Launch("vector_add", kernel, config, grid, (1, 1, 2), addresses, constants)
    replay = Plan(executor, executor, [], launches=[of_plan]).queue_in_context
    table = [0, x.pointer, out.pointer]
    pool, queue = executor._pool, executor.stream

    def allocate_by_bindings() -> None:
        _, pointer = cuda.cuMemAllocFromPoolAsync(1 << 20, pool.handle, handle)
        cuda.cuMemFreeAsync(pointer, handle)

    def in_context() -> None:
        if executor.context.enter():
            executor.context.leave()

    def launch() -> None:
        kernel.launch(grid, block, 0, params, stream=handle)

    def drain() -> None:
        executor.synchronize(handle)

    ways: dict[str, Callable[[], object]] = {
        "launch": launch,
        "of it the driver": driver_launch,
        "by a launcher": lambda: of_plan.queue(table, handle),
        "by a graph": lambda: replay(table, handle, None),
        "of it the context": in_context,
        "empty() and its end": lambda: executor.empty(shape, half, handle),
        "empty() with strides": lambda: executor.empty(shape, half, handle, strides),
        "allocate() and its end": lambda: executor.allocate(1 << 20, handle),
        "cuda.core's pool alone": lambda: pool.allocate(1 << 20, stream=queue),
        "cuda.bindings' pool alone": allocate_by_bindings,
        "allocate() on the default stream": lambda: executor.allocate(1 << 20, 1),
    }
    times = {}
    for current in (True, False):
        if current:
            check(cuda.cuCtxPushCurrent(executor.context._context), "entering")
        try:
            for name, work in ways.items():
                if not current and any(x in name for x in ("alone", "driver", "by a")):
                    continue
                label = name if current else f"{name}, context not current"
                times[label] = microseconds(work, drain)
        finally:
            if current:
                check(cuda.cuCtxPopCurrent(), "leaving")
    with capsys.disabled():
        print("\nhost time, us:", *(f"{t:6.2f}  {name}" for name, t in times.items()), sep="\n  ")
    assert times["launch"] < 12
    assert times["by a launcher"] < 10
    assert times["empty() and its end"] < 12
