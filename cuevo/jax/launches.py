"""Calls for a host that knows nothing but the addresses of its buffers, as XLA does: launches of
kernels whose parameter blocks are among their constants.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cuevo.arrays import ArrayView, packed
from cuevo.executors import Executor
from cuevo.executors.assembling import assembling
from cuevo.executors.bound import bind
from cuevo.kernels import attention_maps_sm90a, evoformer_forward_sm90a
from cuevo.kernels.mapped_addresses import MappedAddresses
from cuevo.ops.operation import Operation
from cuevo.ops.plan import Plan
from cuevo.toolchain.template import RenderedKernel, render

__all__ = ["BoundLaunch", "BoundPlan", "plan_for"]


@dataclass(frozen=True)
class BoundLaunch:
    """A kernel that takes the addresses of the arrays in `reads` and then of those in `writes`."""

    kernel: RenderedKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    """Dynamic shared memory of a threadblock."""
    reads: tuple[int, ...]
    """Slots of the plan's table; those of `updates` are among them."""
    writes: tuple[int, ...]
    updates: tuple[int, ...]
    """What is written of these arrays joins what launches before have written."""


class BoundPlan:
    """The launches of a plan, and the arrays that they write."""

    def __init__(self, plan: Plan) -> None:
        """The launches of a plan that `plan_for` made; its workspace is not cleared."""
        assert not any(part.is_cleared for part in plan.parts)
        self.results = {x.slot: x for x in plan.results if x is not None}
        """Those that are wanted, by their slots of the plan's table: the operands that there are
        have the first ones, from 1 on.
        """
        parts = enumerate(plan.parts, start=max(self.results, default=0) + 1)
        self.workspace = {slot: part.array for slot, part in parts}
        """The arrays that launches write besides, likewise."""
        self.launches: tuple[BoundLaunch, ...] = tuple(self._bound(plan))

    def _bound(self, plan: Plan) -> Iterator[BoundLaunch]:
        written: set[int] = set()
        for launch in plan.every_launch:
            kernel: RenderedKernel = launch.kernel.kernel
            slots = dict(zip(kernel.params.address_fields, launch.slots, strict=True))
            if isinstance(launch.addresses, MappedAddresses):
                maps = self._make_maps(launch.addresses, slots)
                yield maps
                given: Any = launch.config
                values = evoformer_forward_sm90a.values(given, maps_in_memory=True)
                kernel = render(kernel.name, values)
                slots = _in_the_place_of_maps(slots, maps)
            bound = _bind(kernel, launch.constants, slots, launch.shape, written)
            written.update(bound.writes)
            yield bound

    def _make_maps(self, addresses: MappedAddresses, slots: Mapping[str, int]) -> BoundLaunch:
        """A launch that makes tensor maps of the arrays that the launch after it has in `slots`."""
        own, slot = attention_maps_sm90a, max((*self.workspace, *self.results)) + 1
        self.workspace[slot] = packed(own.SHAPE, np.dtype(np.uint8))
        config = own.config_for(addresses.maps)
        kernel = render(own.NAME, own.values(config))
        struct = kernel.params
        constants = struct.pack(own.parameters(addresses.maps, to=0))[struct.addresses.size :]
        arrays = {name: slots[f"{name}_map"] for name in "qkv"}
        shape = (config.grid, (config.threads, 1, 1), config.shared_bytes)
        return _bind(kernel, constants, {**arrays, "maps": slot}, shape, set())


def _in_the_place_of_maps(slots: Mapping[str, int], maps: BoundLaunch) -> dict[str, int]:
    """The arrays of a kernel whose maps that launch has made: what they are of is read as well."""
    (made,) = maps.writes
    rest = {name: slot for name, slot in slots.items() if not name.endswith("_map")}
    return {"q": slots["q_map"], "k": slots["k_map"], "v": slots["v_map"], "q_map": made, **rest}


def _bind(
    kernel: RenderedKernel,
    constants: bytes,
    slots: Mapping[str, int],
    shape: tuple[tuple[int, int, int], tuple[int, int, int], int],
    written: set[int],
) -> BoundLaunch:
    """A launch of `kernel` with the arrays in `slots`, by name, of which `written` have been
    written to before.
    """
    targets = {field.name for field in kernel.params.fields if field.is_written}
    reads = {name: slot for name, slot in slots.items() if slot and name not in targets}
    writes = {name: slot for name, slot in slots.items() if slot and name in targets}
    updates = {f"{name}_before": slot for name, slot in writes.items() if slot in written}
    return BoundLaunch(
        bind(kernel, constants, (*reads, *updates, *writes)),
        *shape,
        (*reads.values(), *updates.values()),
        tuple(writes.values()),
        tuple(updates.values()),
    )


def plan_for(
    operation: Operation,
    arrays: tuple[ArrayView | None, ...],
    options: tuple[object, ...],
    arch: str,
    device: str = "",
) -> BoundPlan:
    """The plan of a call on an architecture, where `arrays` are nowhere yet; the device's name is
    what tuned choices are looked up by.
    """
    return BoundPlan(operation.plan_on_device(arrays, options, _place(arch, device), None))


@lru_cache
def _place(arch: str, device: str) -> Executor:
    return assembling(arch, device)
