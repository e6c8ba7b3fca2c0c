"""Times of calls on a whole problem and on shards of it, for `bench_shards`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from report import print_rows
from workloads import Workload

REPEATS, WARM_UP, CALLS = 10, 2, 8


class Times(NamedTuple):
    """Milliseconds of a call on the whole problem, and on shards of it."""

    name: str
    whole: float
    shards: float


def shapes(size: Workload) -> dict[str, tuple[int, ...]]:
    """Shapes of the operands."""
    n, h, length, d = size.rows, size.heads, size.length, size.head_dim
    rows = (1, n, length, h, d)
    mask, pair = (1, n, 1, 1, length), (1, 1, h, length, length)
    return {"q": rows, "k": rows, "v": rows, "mask_bias": mask, "pair_bias": pair}


def milliseconds(
    call: Callable[[], Any], wait: Callable[[Any], object], meet: Callable[[], object]
) -> float:
    """Time of a call, the median of repeats, each of which begins when all processes meet."""
    samples = []
    for _ in range(WARM_UP + REPEATS):
        wait(call())
        meet()
        start = time.perf_counter()
        for _ in range(CALLS):
            last = call()
        wait(last)
        samples.append(1e3 * (time.perf_counter() - start) / CALLS)
    return statistics.median(samples[WARM_UP:])


def print_times(
    library: str, devices: int, device: str, size: Workload, times: Sequence[Times]
) -> None:
    """A table with the efficiency of each."""
    print(f"{library}, {size} on {devices} x {device}, B = 1, bf16, both biases; ms")
    table = [
        (name, f"{whole:.3f}", f"{shards:.3f}", f"{whole / (devices * shards):.3f}")
        for name, whole, shards in times
    ]
    print_rows(("", "one device", f"{devices} devices", "efficiency"), table)
