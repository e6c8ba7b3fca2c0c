"""Where calls are tuned: arrays for them, a clock, and kernels assembled ahead by other processes.

On a device the arrays of a call are there several times, so that no call finds its operands in the
L2 cache, and a call is queued from its plan, with results and workspace that are there already.
"""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from cuevo.arrays import ArrayView, view
from cuevo.cuda import resolve_stream
from cuevo.errors import CuevoError
from cuevo.executors import DriverExecutor, Executor
from cuevo.ops.plan import Plan
from cuevo.ops.tuning.calls import Call
from cuevo.ops.tuning.events import EventClock, free_bytes
from cuevo.ops.tuning.measure import Clock, Entrant, input_sets

__all__ = ["Bench", "DeviceBench", "Prepared"]

_MASKED, _MASK_VALUE = 0.1, -1e9
"""Share of the keys that mask biases take out, and by what."""
_MOST_PROCESSES = 16
_PATTERN = 2**20
"""Random elements, of which arrays are repetitions."""


class Prepared(Protocol):
    """A call with arrays."""

    def plan(self, config: Any) -> Plan:
        """The plan of the call, configured so, or not at all. Raises ValueError or CuevoError where
        that cannot run.
        """

    def entrant(self, plan: Plan) -> Entrant:
        """What is timed of such a plan."""


class Bench(Protocol):
    """A place with a clock."""

    @property
    def place(self) -> Executor: ...
    @property
    def clock(self) -> Clock: ...
    def prepare(self, call: Call) -> Prepared:
        """The call with arrays, which live as long as what is returned."""

    def assemble(self, call: Call, configs: Sequence[Any]) -> list[str]:
        """Have the kernels of all configurations in the cache; for each the reason why it is not to
        be measured, if there is one.
        """


class DeviceBench:
    """A CUDA device. Kernels are assembled by as many processes as there are processors, 16 at
    most.
    """

    def __init__(self, place: DriverExecutor) -> None:
        self.place = place
        self.clock = EventClock(place)

    def prepare(self, call: Call) -> "DeviceCall":
        return DeviceCall(self.place, call)

    @cached_property
    def _processes(self) -> ProcessPoolExecutor:
        # A forked process would have a context of the driver that does not work.
        context = multiprocessing.get_context("spawn")
        processors = len(os.sched_getaffinity(0))
        return ProcessPoolExecutor(min(processors, _MOST_PROCESSES), mp_context=context)

    def assemble(self, call: Call, configs: Sequence[Any]) -> list[str]:
        record, arch = call.record(), self.place.arch
        submit = self._processes.submit
        futures = [submit(_assemble, record, arch, config) for config in configs]
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the processes."""
        if "_processes" in vars(self):
            self._processes.shutdown(cancel_futures=True)


def _assemble(record: dict[str, Any], arch: str, config: Any) -> str:
    """Assemble what a call launches; the reason if that is impossible, or spills."""
    from cuevo.executors.assembling import assembling

    call = Call.of_record(record)
    try:
        plan = call.operation.plan_on_device(call.arrays, call.options, assembling(arch), config)
    except (CuevoError, ValueError) as error:
        return str(error)
    spilling = dict.fromkeys(x.name for x in plan.every_launch if x.kernel.spills)
    return f"spills registers: {', '.join(spilling)}" if spilling else ""


class DeviceCall:
    """A call with its arrays in device memory, several times."""

    def __init__(self, place: DriverExecutor, call: Call) -> None:
        self._place, self._call = place, call
        self._patterns: dict[tuple[str, str], tuple[Any, int]] = {}
        arrays = [x for x in call.arrays if x is not None]
        traffic = sum(_span(x) for x in arrays)
        count = input_sets(traffic, place.info.l2_bytes, free_bytes(place))
        self._buffers: list[Any] = []
        self._sets = [self._fill(number) for number in range(count)]
        self._results: list[list[int]] | None = None
        self._workspace: Any = None

    def plan(self, config: Any) -> Plan:
        operation, options = self._call.operation, self._call.options
        return operation.plan_on_device(self._sets[0], options, self._place, config)

    def entrant(self, plan: Plan) -> Entrant:
        self._make_room(plan)
        assert self._results is not None
        return Entrant(
            [
                self._queue(plan, arrays, results)
                for arrays, results in zip(self._sets, self._results, strict=True)
            ]
        )

    def _queue(
        self, plan: Plan, arrays: Sequence[ArrayView | None], results: list[int]
    ) -> Callable[[], None]:
        table = [0, *(x.pointer for x in arrays if x is not None), *results]
        handle = resolve_stream(self._place.stream)
        workspace = int(self._workspace.handle) if plan.workspace_bytes else None
        queue = plan.queue
        return lambda: queue([*table], handle, workspace)

    def _make_room(self, plan: Plan) -> None:
        """Results, which are alike for all configurations, and the largest workspace."""
        place = self._place
        if self._results is None:
            self._results = []
            for _ in self._sets:
                made = [place.allocate(nbytes, place.stream) for _, _, nbytes in plan.new]
                self._buffers += made
                self._results.append([int(buffer.handle) for buffer in made])
        if self._workspace is None or self._workspace.size < plan.workspace_bytes:
            # Earlier entrants keep the smaller one.
            self._workspace = place.allocate(plan.workspace_bytes, place.stream)
            self._buffers.append(self._workspace)

    # -- Arrays ------------------------------------------------------------------------------------

    def _fill(self, number: int) -> tuple[ArrayView | None, ...]:
        """A set of the call's arrays, filled."""
        names = self._call.operation.names
        return tuple(
            None if x is None else self._array(name, x, number)
            for name, x in zip(names, self._call.arrays, strict=True)
        )

    def _array(self, name: str, like: ArrayView, number: int) -> ArrayView:
        low, high = like.extent
        offset = low % 16
        buffer = self._place.allocate(offset + high - low, self._place.stream)
        self._buffers.append(buffer)
        start = int(buffer.handle) + offset
        source, nbytes = self._pattern(name, like)
        # Other sets begin elsewhere in the pattern.
        skipped = number * 4096 % max(nbytes // 2, 1) // 16 * 16
        done = 0
        while done < high - low:
            size = min(nbytes - skipped, high - low - done)
            self._place.copy_bytes(start + done, source + skipped, size, self._place.stream)
            done, skipped = done + size, 0
        pointer = start + like.pointer - low
        return replace(like, pointer=pointer, device=self._place.name, owner=buffer)

    def _pattern(self, name: str, like: ArrayView) -> tuple[int, int]:
        """Address and bytes of random elements in device memory."""
        key = (name if name in _SPECIAL else "", like.dtype.name)
        if key not in self._patterns:
            count = like.size if name == "scatter" else _PATTERN
            host = view(pattern(name, like.dtype, count))
            copy = self._place.copy_to_device(host, self._place.stream)
            self._place.synchronize(self._place.stream)
            self._patterns[key] = copy, host.nbytes
        copy, nbytes = self._patterns[key]
        return copy.pointer, nbytes


def _span(x: ArrayView) -> int:
    low, high = x.extent
    return high - low


_SPECIAL = ("mask_bias", "lse", "scatter")


def pattern(name: str, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
    """`count` elements for an array of that name: as the operations have them."""
    generator = np.random.default_rng(0)
    if name == "scatter":
        return np.arange(count, dtype=dtype)
    if name == "mask_bias":
        out = generator.random(count) < _MASKED
        if dtype == np.bool_:
            return ~out
        lowest = -np.inf if dtype == np.float16 else _MASK_VALUE
        return np.where(out, lowest, 0.0).astype(dtype)
    drawn = generator.standard_normal(count, dtype=np.float32)
    # Log-sum-exps as of many scores: probabilities are not to be above 1.
    return (drawn + (8.0 if name == "lse" else 0.0)).astype(dtype)
