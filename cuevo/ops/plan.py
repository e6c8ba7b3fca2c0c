"""Plans: everything that a call has found out and the next call of its kind need not.

A plan names the arrays of a call by slots of one table of addresses: a null pointer, the operands
and the caller's results, as far as they are there, new results, and the parts of the workspace.
Each launch picks its own from the table; the rest of its parameter block is packed already. A
`PlanBuilder` fills a plan for one operation, `Plan.queue` queues it on a device, `Plan.run_on_cpu`
runs it on the CPU executor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from cuevo.arrays import ArrayView, as_numpy, exportable, packed, view
from cuevo.executors import DriverExecutor, Executor, LoadedKernel
from cuevo.executors.replay import Addresses, replayed
from cuevo.ops.given_memory import ALIGNMENT, device_workspace, host_workspace
from cuevo.toolchain.header import load_header

__all__ = [
    "Addresses",
    "KernelConfig",
    "Launch",
    "Part",
    "Plan",
    "PlanBuilder",
    "Queue",
    "Result",
    "check_grid",
]


class KernelConfig(Protocol):
    """One instance of a kernel: a frozen dataclass."""

    @property
    def threads(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...


def check_grid(grid: tuple[int, int, int]) -> None:
    """ValueError for a grid that no device takes."""
    if grid[0] >= 2**31:
        raise ValueError(
            f"the problem is too large: {grid[0]} threadblocks; a launch has fewer than 2^31"
        )


class Launch:
    """A kernel, its launch geometry, and its parameter block but for the addresses in front."""

    kernel: Any
    """A `LoadedKernel`; on a device, a `DriverKernel`."""

    def __init__(
        self,
        name: str,
        kernel: LoadedKernel,
        config: KernelConfig,
        grid: tuple[int, int, int],
        slots: tuple[int, ...],
        addresses: Addresses,
        constants: bytes,
    ) -> None:
        """A launch of the kernel `name` with the addresses in `slots`, two at least, of a plan's
        table.

        `constants` are what follows the addresses in the parameter block. Raises ValueError for a
        grid that no device takes.
        """
        check_grid(grid)
        self.name = name
        self.kernel = kernel
        self.config = config
        self.shape = (grid, (config.threads, 1, 1), config.shared_bytes)
        self.slots = slots
        self.pick = itemgetter(*slots)
        self.addresses = addresses
        self.constants = constants

    @cached_property
    def queue(self) -> Callable[..., None]:
        """``queue(table, stream)`` queues the kernel for the arrays at the addresses of the table;
        see `DriverKernel.launcher`.
        """
        queue: Callable[..., None] = self.kernel.launcher(
            self.shape, self.pick, self.addresses.pack, self.constants
        )
        return queue

    def run_on_cpu(self, table: Sequence[ArrayView | None]) -> None:
        """Run the kernel on the CPU executor for the arrays of `table`."""
        arrays = self.pick(table)
        addresses = [0 if x is None else x.pointer for x in arrays]
        self.kernel.launch(
            *self.shape,
            self.addresses.pack(*addresses) + self.constants,
            buffers=[x for x in arrays if x is not None],
        )


@dataclass(frozen=True, slots=True)
class Result:
    """An array that a call gives back."""

    slot: int
    array: ArrayView
    """The caller's, or one like the new array of each call; its address does not count."""
    empty_value: float | None
    """Value of every element where there is nothing to launch; None: the caller's stay as they
    are.
    """
    is_updated: bool
    """Elements of the caller's array that no kernel writes stay as they are."""


@dataclass(frozen=True, slots=True)
class Part:
    """An array in the workspace."""

    offset: int
    array: ArrayView
    is_cleared: bool
    """Whether it is zeroed before the first launch."""


Queue = Callable[[list[int], int, Any], None]
"""Queues a plan: ``queue(table, stream, workspace)``; see `Plan.queue`."""


@dataclass
class Plan:
    """A call of one kind: what it makes, what it launches, and where."""

    place: Executor
    in_place: DriverExecutor | None
    """`place`, where the arrays are in the memory of its device."""
    results: list[Result | None]
    """Each of the operation's results, None where it is not wanted."""
    new: list[tuple[int, ArrayView, int]] = field(default_factory=list)
    """The arrays that each call makes: place among the results, one like it, bytes."""
    launches: list[Launch] = field(default_factory=list)
    """In order; none where the problem is empty."""
    beside: list[Launch] = field(default_factory=list)
    """Launches on a side stream once the `launches` are done, beside those in `after`; a plan that
    has them has a workspace.
    """
    after: list[Launch] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    """The workspace, in the order of slots."""
    workspace_bytes: int = 0
    chosen_by: str = "an estimate"
    """Where the configurations come from, for a reader."""
    problems: tuple[Any, ...] = ()
    """What they were chosen for, and what the chosen kernels serve, by choice: see
    `cuevo.ops.tuning.tuned.settle`.
    """
    served: tuple[Any, ...] = ()
    cpu_seconds: float = 0.0
    """What it takes on the CPU executor, about; 0 where nobody has to know."""

    @property
    def every_launch(self) -> tuple[Launch, ...]:
        """All launches, in an order that one stream may run them in."""
        return (*self.launches, *self.beside, *self.after)

    @property
    def on_copies(self) -> bool:
        """Whether the arrays are in host memory and the place is a device: they are copied, and the
        copies have a plan of their own.
        """
        return self.in_place is None and isinstance(self.place, DriverExecutor)

    @property
    def ordinal(self) -> int:
        """Of the device in whose memory the arrays are."""
        assert self.in_place is not None
        return self.in_place.info.ordinal

    def make_results(self, table: list[int], given: Sequence[Any], stream: object) -> list[Any]:
        """The caller's arrays for results, and in the place of None, where one is wanted, a new
        `DeviceArray`, to be written on `stream`, whose address comes into the table.
        """
        place = self.in_place
        assert place is not None
        results = [*given]
        for i, like, nbytes in self.new:
            new = results[i] = place.empty(like.shape, like.dtype, stream, like.strides, nbytes)
            table.append(new.pointer)
        return results

    @cached_property
    def queue(self) -> Queue:
        """``queue(table, stream, workspace)`` queues the work on `stream`.

        `table` has the addresses of all operands and results; `workspace` is an array, the address
        of memory that will do, or None. What does not change from call to call is looked up once.
        """
        place, work = self.in_place, self.queue_in_context
        assert place is not None
        enter, leave = place.context.enter, place.context.leave

        def queue(table: list[int], stream: int, workspace: Any) -> None:
            entered = enter()
            try:
                work(table, stream, workspace)
            finally:
                if entered:
                    leave()

        return queue

    @cached_property
    def queue_in_context(self) -> Queue:
        """As `queue`, for a thread whose current context is the device's."""
        if self.parts:
            return self._queue_in_workspace()
        return self._queue_launches() if self.launches else self._fill

    def _queue_in_workspace(self) -> Queue:
        """For a plan with a workspace."""
        place, launch = self.in_place, self._queue_launches()
        assert place is not None
        offsets = [part.offset for part in self.parts]
        cleared = [(part.offset, part.array.nbytes) for part in self.parts if part.is_cleared]

        def queue(table: list[int], stream: int, workspace: Any) -> None:
            if workspace is None:
                workspace = place.scratch.find(self.workspace_bytes, stream)
            if type(workspace) is not int:
                if workspace is None:
                    start = place.take_workspace(self.workspace_bytes, stream)
                    try:
                        queue(table, stream, start)
                    finally:
                        place.give_back_workspace(start, stream)
                    return
                workspace = device_workspace(workspace, self.workspace_bytes, place.name, stream)
            table += [workspace + offset for offset in offsets]
            for offset, nbytes in cleared:
                place.clear(workspace + offset, nbytes, stream)
            launch(table, stream, None)

        return queue

    def _queue_launches(self) -> Queue:
        """For one whose launches find everything in the table."""
        each = (self.launches, self.beside, self.after)
        first, beside, after = ([launch.queue for launch in launches] for launches in each)

        def queue(table: list[int], stream: int) -> None:
            for launch in first:
                launch(table, stream)
            if beside:
                assert self.in_place is not None
                with self.in_place.side_stream(stream) as side:
                    for launch in beside:
                        launch(table, side)
                    for launch in after:
                        launch(table, stream)

        return replayed(queue, self)

    def _fill(self, table: list[int], stream: int, workspace: Any) -> None:
        """Queue the results of an empty problem."""
        assert self.in_place is not None
        for result in self.results:
            if result is not None and result.empty_value is not None:
                target = replace(result.array, pointer=table[result.slot])
                self.in_place.fill(target, result.empty_value, stream)

    def run_on_cpu(
        self, views: Sequence[ArrayView | None], given: Sequence[Any], workspace: Any
    ) -> list[Any]:
        """The caller's arrays for results, and NumPy arrays in the place of None, once it has run
        on the CPU executor: `views` are the operands, then what is given.
        """
        # Marked read-only, so that the executor reports a kernel that writes to its inputs.
        count = len(views) - len(self.results)
        inputs = [None if x is None else replace(x, readonly=True) for x in views[:count]]
        present = [x for x in (*inputs, *views[count:]) if x is not None]
        table: list[ArrayView | None] = [None, *present]
        results = [*given]
        for i, like, _ in self.new:
            results[i] = exportable(np.zeros(like.shape, like.dtype))
            table.append(view(results[i]))
        if not self.launches:
            for result in self.results:
                if result is not None and result.empty_value is not None:
                    target = table[result.slot]
                    assert target is not None
                    as_numpy(target)[...] = result.empty_value
            return results
        if self.parts:
            memory = host_workspace(workspace, self.workspace_bytes)
            for part in self.parts:
                x = memory[part.offset : part.offset + part.array.nbytes]
                if part.is_cleared:
                    x[...] = 0
                table.append(view(x.view(part.array.dtype).reshape(part.array.shape)))
        for launch in self.every_launch:
            launch.run_on_cpu(table)
        return results


class PlanBuilder:
    """Fills a plan with results, workspace and launches, whose arrays it knows by name."""

    def __init__(
        self,
        operands: Sequence[str],
        results: Sequence[str],
        views: Mapping[str, ArrayView],
        place: Executor,
    ) -> None:
        """A plan without launches, on `place`, for a call with `views` of operands and results."""
        self.views = dict(views)
        """Views of everything there is, for shapes, types and strides: addresses will change."""
        on_device = any(x.device != "cpu" for x in views.values())
        in_place = place if on_device and isinstance(place, DriverExecutor) else None
        self.plan = Plan(place, in_place, [None] * len(results))
        self._results = tuple(results)
        given = [name for name in (*operands, *results) if name in views]
        self.slots = {name: slot for slot, name in enumerate(("", *given))}
        """Place of each array in the plan's table; "" is the null pointer."""

    def add_result(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        empty_value: float | None,
        is_updated: bool = False,
    ) -> None:
        """A result that is wanted: the caller's array, or a new one of this shape and type."""
        i = self._results.index(name)
        if name not in self.views:
            new = self.views[name] = packed(shape, dtype)
            self.slots[name] = len(self.slots)
            self.plan.new.append((i, new, new.nbytes))
        array = replace(self.views[name], owner=None)
        self.plan.results[i] = Result(self.slots[name], array, empty_value, is_updated)

    def add_workspace(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: Any = np.float32,
        *,
        is_cleared: bool = False,
    ) -> None:
        """An array in the workspace."""
        plan, array = self.plan, packed(shape, np.dtype(dtype))
        self.views[name] = array
        self.slots[name] = len(self.slots)
        plan.parts.append(Part(plan.workspace_bytes, array, is_cleared))
        plan.workspace_bytes += -(-array.nbytes // ALIGNMENT) * ALIGNMENT

    def substitute(self, name: str, other: str, view: ArrayView) -> None:
        """Let `name` be the array `other`, seen as `view`, for all launches that follow."""
        self.views[name] = view
        self.slots[name] = self.slots[other]

    def add_launch(
        self,
        kernel: str,
        loaded: LoadedKernel,
        config: KernelConfig,
        grid: tuple[int, int, int],
        values: Mapping[str, Any],
        *,
        arrays: Mapping[str, str] | None = None,
        addresses: Addresses | None = None,
        queue: list[Launch] | None = None,
    ) -> None:
        """A launch of the kernel of that name, behind those in `queue`, the plan's `launches` where
        None.

        values : the parameter block.
        arrays : name of the array for address fields that have another name; "" and the name of an
            array that is absent are null pointers.
        addresses : packer of the address fields; by default that of the header.
        """
        struct = load_header().kernels[kernel]
        names = [(arrays or {}).get(name, name) for name in struct.address_fields]
        slots = [self.slots.get(name, self.slots[""]) for name in names]
        addresses = struct.addresses if addresses is None else addresses
        constants = struct.pack(values)[addresses.size :]
        launch = Launch(kernel, loaded, config, grid, tuple(slots), addresses, constants)
        (self.plan.launches if queue is None else queue).append(launch)
