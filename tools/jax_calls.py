"""Attention through JAX beside its kernels alone: eight calls in one compiled program, each on the
result of the one before, and their gradients.

The kernels are those of the same calls of `cuevo.attention`, in a CUDA graph. What XLA launches by
itself (`cuevo.jax.launcher`) is measured against what comes back to Python. What counts is the time
from the first of many runs to the end of the last, which is the device's or the host's, whichever
takes longer. The device's alone is that of runs which the host has queued while the device was kept
waiting (tools/pause), by the device's own clock. A program that only takes the same arguments is
measured, too: what JAX takes to start any.
"""

from __future__ import annotations

import os
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cuevo.executors.bound import bind
from cuevo.toolchain.template import render
from machine import circumstances
from report import print_rows
from workloads import Workload

CALLS = 8
ROUNDS, RUNS = 5, 20
DEFAULT = (Workload(64, 4, 64, 32), Workload(256, 4, 256, 32))
LAUNCHERS = ("xla", "python")
PAUSE = 40.0
"""Milliseconds, in which the host queues `RUNS` programs; JAX lets no more than 32 wait."""
_TYPES = {"bf16": "bfloat16", "fp16": "float16"}

Sets = Sequence[dict[str, Any]]


def make_inputs(workload: Workload, dtype: str, calls: int) -> tuple[Any, Sets]:
    """q, and for each of so many calls k, v and both biases."""
    import jax

    shape = (1, workload.rows, workload.length, workload.heads, workload.head_dim)
    shapes = {
        "k": shape,
        "v": shape,
        "mask_bias": (1, workload.rows, 1, 1, workload.length),
        "pair_bias": (1, 1, workload.heads, workload.length, workload.length),
    }
    keys = iter(jax.random.split(jax.random.key(0), 1 + calls * len(shapes)))

    def normal(shape: tuple[int, ...]) -> Any:
        return jax.random.normal(next(keys), shape, _TYPES[dtype])

    sets = [{name: normal(x) for name, x in shapes.items()} for _ in range(calls)]
    return normal(shape), sets


def forward(x: Any, sets: Sets) -> Any:
    """The calls, one on the result of the other."""
    from cuevo.jax import evoformer_attention

    for given in sets:
        x = evoformer_attention(x, **given)
    return x


def nothing(q: Any, sets: Sets) -> Any:
    """A program of the same arguments that calls nothing."""
    return q + 1


def gradients(q: Any, sets: Sets) -> Any:
    """The gradients of everything, for a dout that is q."""
    import jax

    _, pull = jax.vjp(forward, q, sets)
    return pull(q)


def compiled(function: Callable[..., Any], launcher: str, q: Any, sets: Sets) -> Callable[[], Any]:
    """A run of a program in which that one launches the kernels."""
    import jax

    from cuevo.jax import ENVIRONMENT

    before = os.environ.pop(ENVIRONMENT, None)
    os.environ[ENVIRONMENT] = launcher
    try:
        program = jax.jit(lambda *x: function(*x))  # another function for JAX, which keeps programs
        jax.block_until_ready(program(q, sets))
    finally:
        del os.environ[ENVIRONMENT]
        if before is not None:
            os.environ[ENVIRONMENT] = before
    return lambda: program(q, sets)


def kernels_alone(q: Any, sets: Sets, *, backward: bool) -> float:
    """Time of a graph of the same kernels on the device, us, one run behind the other."""
    import cuevo
    from cuevo.arrays import array_from_pointer
    from cuevo.executors import executor

    device = executor(0)

    def there(x: Any) -> Any:
        return array_from_pointer(x.unsafe_buffer_pointer(), x.shape, x.dtype, device=device.name)

    views = [{name: there(x) for name, x in given.items()} for given in sets]

    def work(stream: Any) -> Any:
        kept, found = [], there(q)
        for given in views:
            made = cuevo.attention(found, **given, return_lse=backward, stream=stream)
            out, lse = made if backward else (made, None)
            kept.append((found, out, lse))
            found = out
        if not backward:
            return kept
        dout, results = there(q), []
        for given, (x, out, lse) in zip(reversed(views), reversed(kept), strict=True):
            operands = (dout, x, given["k"], given["v"], out, lse)
            biases = {name: given[name] for name in ("mask_bias", "pair_bias")}
            results.append(cuevo.attention_backward(*operands, **biases, stream=stream))
            dout = results[-1][0]
        return kept, results

    stream = device.new_stream()
    work(stream)  # kernels are loaded outside of a capture
    graph = device.capture(work, stream)

    def timed(runs: int) -> float:
        events = [device.record_event(stream)]
        for _ in range(runs):
            graph.launch()
        events.append(device.record_event(stream))
        device.synchronize(stream)
        return (events[1] - events[0]) * 1e3

    return one_of_many(timed)


def microseconds(run: Callable[[], Any]) -> float:
    """Time of a run, the median of rounds."""
    import jax

    def timed(runs: int) -> float:
        start = time.perf_counter()
        for _ in range(runs):
            last = run()
        jax.block_until_ready(last)
        return (time.perf_counter() - start) * 1e6 / runs

    timed(3)
    return statistics.median(timed(RUNS) for _ in range(ROUNDS))


def one_of_many(timed: Callable[[int], float]) -> float:
    """Time of a run by that of so many, without what is the same for any number of them."""
    timed(1)
    one, many = (statistics.median(timed(n) for _ in range(ROUNDS)) for n in (1, RUNS))
    return (many - one) / (RUNS - 1)


def behind(pause: Callable[[float], Any], run: Callable[[], Any]) -> float:
    """Time of a run on the device, us: the host queues runs while the device is kept by `pause`,
    and one more pause, of no time. Those say in nanoseconds when they ended. RuntimeError where the
    first ends before all is queued.
    """
    import jax

    def timed(runs: int) -> float:
        jax.block_until_ready(run())
        start = time.perf_counter()
        paused = pause(PAUSE)
        for _ in range(runs):
            run()
        ended = pause(0)
        queued = time.perf_counter() - start
        jax.block_until_ready(paused)
        if time.perf_counter() - start < 1.2 * queued:
            raise RuntimeError("the host takes too long: the device has waited for it")
        begin, end = (int(np.asarray(x).view(np.uint64)[0]) for x in (paused, ended))
        return (end - begin) / 1e3

    return one_of_many(timed)


def pause_launch(milliseconds: float) -> Any:
    """The launch of tools/pause, which writes to array 2, and reads array 1 for nothing."""
    from cuevo.jax.launches import BoundLaunch

    kernel = render("pause_device", {}, directory=Path(__file__).parent / "pause")
    constants = struct.pack("Q", round(milliseconds * 1e6))
    bound = bind(kernel, constants, ("anything", "ended"))
    return BoundLaunch(bound, (1, 1, 1), (1, 1, 1), 0, (1,), (2,), ())


def pauses() -> Callable[[float], Any]:
    """What runs a program that keeps the device for so many milliseconds, 0 or `PAUSE`, and idle.
    Its result are two words, of the time at which it ended.
    """
    import jax

    from cuevo.jax.kernels import describe, run_launch

    ended = [jax.ShapeDtypeStruct((2,), "uint32")]
    anything = jax.numpy.zeros(1)

    def program(milliseconds: float) -> Callable[..., Any]:
        launch = pause_launch(milliseconds)
        found = jax.jit(lambda x: run_launch(launch, describe(launch), ended, [x])[0])
        jax.block_until_ready(found(anything))
        return found

    programs = {milliseconds: program(milliseconds) for milliseconds in (0, PAUSE)}
    return lambda milliseconds: programs[milliseconds](anything)


def measured(workload: Workload, dtype: str, kind: str) -> Iterator[tuple[str, float]]:
    """Time of all calls by what launches them: first, on a GPU, the kernels alone, and what XLA
    launches on the device alone.
    """
    import jax

    q, sets = make_inputs(workload, dtype, CALLS)
    function = {"forward": forward, "gradients": gradients}[kind]
    if jax.default_backend() == "gpu":
        yield "kernels", kernels_alone(q, sets, backward=kind == "gradients")
        yield "xla on device", behind(pauses(), compiled(function, "xla", q, sets))
    yield "empty", microseconds(compiled(nothing, "xla", q, sets))
    for launcher in LAUNCHERS:
        yield launcher, microseconds(compiled(function, launcher, q, sets))


def print_times(workloads: Sequence[Workload], dtype: str) -> None:
    """A table of all workloads."""
    import jax

    record = circumstances()
    print(f"{jax.devices()[0].device_kind}, {record['date']}  {record['command']}")
    print(f"time of {CALLS} calls, us, and how many times as long as their kernels alone\n")
    rows = []
    for workload in workloads:
        for kind in ("forward", "gradients"):
            times = dict(measured(workload, dtype, kind))
            alone = times.get("kernels")
            compared = ("xla on device", *LAUNCHERS) if alone else ()
            rows.append(
                [str(workload), kind]
                + [f"{x:.1f}" for x in times.values()]
                + [f"{times[name] / alone:.2f}" for name in compared]
            )
    columns = [*times, *(f"x {name}" for name in compared)]
    print_rows(("N,H,L,D", "calls", *columns), rows)
