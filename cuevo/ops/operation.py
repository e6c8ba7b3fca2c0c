"""A call of an operation, from the caller's arrays to a plan that runs: the one way of all of them.

`Operation` identifies the arguments, looks their plan up or has it made, and runs it: in place on a
device, by copies of host arrays there, or on the CPU executor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import gcd
from typing import Any

from cuevo.arrays import (
    Addresses,
    ArrayView,
    DeviceArray,
    Guarded,
    Pick,
    as_numpy,
    copy_to_host,
    identify,
    view,
    without_gaps,
)
from cuevo.cuda import LEGACY_DEFAULT, NO_ORDER, resolve_stream, torch_streams
from cuevo.executors import DriverExecutor
from cuevo.ops.cpu_time import warn_of_cpu
from cuevo.ops.plan import Plan, Queue
from cuevo.ops.tuning import recording

__all__ = ["Operation", "Plans"]

_PLANS_KEPT = 1024


class Plans(dict[tuple[object, ...], Plan]):
    """The plans of an operation, by everything of a call that they depend on."""

    def keep(self, key: tuple[object, ...], plan: Plan) -> None:
        """Add a plan; where there are very many, the old ones go."""
        if len(self) >= _PLANS_KEPT:
            self.clear()
        self[key] = plan


MakePlan = Callable[..., Plan]
"""Checks a call and makes its plan: ``make_plan(views, *options, device=..., config=...)``.

ValueError or TypeError, naming the argument, where the arguments do not fit each other.
"""


_Repeated = tuple[Plan, Queue, Callable[[], int], Addresses]
"""The plan of calls on torch's tensors, what queues it, and what gives torch's current stream and
their addresses.
"""


class Operation:
    """An operation: the names of its arrays, how it makes a plan, and the plans made before."""

    def __init__(
        self,
        name: str,
        operands: Sequence[str],
        results: Sequence[str],
        make_plan: MakePlan,
        *,
        required: int,
        label: str = "",
    ) -> None:
        """The operation `name`, of which the first `required` operands have to be given.

        `label` is put before the names of results in error messages.
        """
        self.name = name
        self.plans = Plans()
        self._repeated: Guarded[_Repeated] = Guarded()
        self.names = (*operands, *results)
        """Of the arrays of a call, in their order."""
        self._labels = (*operands, *(label + name for name in results))
        self._operands = len(operands)
        self._required = required
        self._make_plan = make_plan

    def call(
        self,
        arrays: tuple[Any, ...],
        options: tuple[object, ...],
        device: object,
        stream: object,
        config: Any,
        workspace: Any = None,
        absent: tuple[bool, ...] | None = None,
    ) -> Sequence[Any]:
        """The results: the caller's arrays, `DeviceArray`s, NumPy arrays, or None if not wanted.

        arrays : operands and arrays for the results, None where there is none.
        options : whatever else the plan depends on, hashable.
        absent : whether each array that may be None is, where the caller has that at hand.
        """
        if absent is None:
            absent = tuple([x is None for x in arrays])
        given = arrays[self._operands :]
        # The first operand's shape, of which there are many.
        key = (getattr(arrays[0], "shape", None), absent, options, device, config)
        try:
            kinds = self._repeated.get(key, ())
        except TypeError:  # something that has no hash, as a mapping
            kinds = ()
        for pick, is_like, (known, queue, current_stream, addresses) in kinds:
            tensors = pick(arrays)
            if is_like(*tensors) and gcd(16, *(table := [0, *addresses(tensors)])) == 16:
                if stream is None:
                    handle = stream = current_stream() or LEGACY_DEFAULT
                else:
                    handle = resolve_stream(stream)
                results = known.make_results(table, given, stream) if known.new else given
                queue(table, handle, workspace)
                return results
        handle = resolve_stream(stream, arrays if workspace is None else (*arrays, workspace))
        table, described, found = identify(arrays, self._labels, handle)
        try:
            plan = self.plans.get((*described, options, device, config))
        except TypeError:  # something that has no hash, as a mapping
            plan = None
        if plan is None:
            plan = self._plan(described, found, options, device, config)
        if plan.in_place is not None:
            self._repeated.keep(key, arrays, partial(_repeat, plan))
            results = plan.make_results(table, given, handle if stream is None else stream)
            plan.queue(table, handle, workspace)
            return results
        views = self._views(found)
        if isinstance(plan.place, DriverExecutor):
            return self._run_on_copies(plan, plan.place, views, given, options, config, workspace)
        if device is None:
            warn_of_cpu(plan.cpu_seconds)
        return plan.run_on_cpu([views.get(name) for name in self.names], given, workspace)

    def _plan(
        self,
        described: Sequence[object],
        found: Sequence[Any],
        options: tuple[object, ...],
        device: object,
        config: Any,
    ) -> Plan:
        """The plan of a call, from what `identify` says of its arrays."""
        key = (*described, options, device, None if config is None else _hashable(config))
        try:
            plan = self.plans.get(key)
        except TypeError:  # an argument that has no hash: the checks say what is wrong with it
            plan = None
        if plan is None:
            views = self._views(found)
            plan = self._make_plan(views, *options, device=device, config=config)
            self.plans.keep(key, plan)
            if config is None and not plan.on_copies:
                recording.note(self.name, views, options)
        return plan

    def look_up(
        self, operands: Sequence[Any], options: tuple[object, ...]
    ) -> tuple[Plan | None, list[int]]:
        """The plan that a call with these operands and new results has made before, or None, and
        the table of the operands. No stream is made to wait.
        """
        table, described, _ = identify(operands, self._labels, NO_ORDER)
        described += (None,) * (len(self.names) - self._operands)
        return self.plans.get((*described, options, None, None)), table

    def plan_on_device(
        self, arrays: tuple[Any, ...], options: tuple[object, ...], device: object, config: Any
    ) -> Plan:
        """The plan of what a call runs: for host arrays on a device, that of their copies there.

        No stream is made to wait.
        """
        _, described, found = identify(arrays, self._labels, NO_ORDER)
        plan = self._plan(described, found, options, device, config)
        if not plan.on_copies:
            return plan
        views = {name: without_gaps(x) for name, x in self._views(found).items()}
        copies = {name: replace(x, device=plan.place.name) for name, x in views.items()}
        moved = tuple(copies.get(name) for name in self.names)
        return self.plan_on_device(moved, options, plan.place, config)

    def _views(self, found: Sequence[Any]) -> dict[str, ArrayView]:
        each = enumerate(zip(self.names, self._labels, found, strict=True))
        return {
            name: view(x, name=label)
            for i, (name, label, x) in each
            if x is not None or i < self._required
        }

    def _run_on_copies(
        self,
        plan: Plan,
        place: DriverExecutor,
        views: Mapping[str, ArrayView],
        given: Sequence[Any],
        options: tuple[object, ...],
        config: Any,
        workspace: Any,
    ) -> list[Any]:
        """Results of host arrays on a device: copied there, run, and fetched."""
        queue = place.stream
        handle = resolve_stream(queue)
        names = self.names[self._operands :]
        operands = [
            place.copy_to_device(views[name], queue) if name in views else None
            for name in self.names[: self._operands]
        ]
        targets: list[ArrayView | DeviceArray | None] = []
        for name, result in zip(names, plan.results, strict=True):
            if result is None:
                targets.append(None)
            elif result.is_updated:
                targets.append(place.copy_to_device(views[name], queue))
            else:
                targets.append(place.empty(result.array.shape, result.array.dtype, queue))
        self.call((*operands, *targets), options, place, queue, config, workspace)
        results = [*given]
        for i, (name, source) in enumerate(zip(names, targets, strict=True)):
            if source is not None:
                host = as_numpy(views[name]) if name in views else None
                fetched = copy_to_host(view(source, stream=handle), handle, host)
                if host is None:
                    results[i] = fetched
        return results


def _repeat(plan: Plan, pick: Pick, addresses: Addresses) -> _Repeated:
    return plan, plan.queue, torch_streams(plan.ordinal), addresses


def _hashable(config: Any) -> object:
    if isinstance(config, Mapping):
        return tuple([(name, _hashable(value)) for name, value in config.items()])
    return config
