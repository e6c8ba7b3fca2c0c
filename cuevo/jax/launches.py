"""Calls for a host that knows nothing but the addresses of its buffers, as XLA does: launches of
kernels whose parameter blocks are among their instructions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from cuevo.arrays import ArrayView, packed
from cuevo.executors import Executor
from cuevo.executors.assembling import assembling
from cuevo.executors.bound import bind
from cuevo.kernels import attention_maps_sm90a, evoformer_forward_sm90a, pair_tiles_sm90
from cuevo.kernels.mapped_addresses import MappedAddresses
from cuevo.ops.operation import Operation
from cuevo.ops.plan import Launch, Plan
from cuevo.toolchain.template import RenderedKernel, render

__all__ = ["BoundLaunch", "BoundPlan", "plan_for"]

_IN_MEMORY = ("q", "k", "v")
"""Arrays whose tensor maps a launch makes: out has no address before the launch that writes it."""


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
        mapped = [x for x in plan.every_launch if isinstance(x.addresses, MappedAddresses)]
        tiles: Launch | None = None
        for launch in plan.every_launch:
            if mapped and launch.name == pair_tiles_sm90.NAME:
                tiles = launch  # made beside the maps
                continue
            if launch in mapped:
                if launch is mapped[0]:
                    maps = self._make_maps(mapped, tiles)
                    yield maps
                bound = _with_maps(launch, maps, mapped.index(launch), written)
            else:
                bound = _bind(
                    _kernel(launch), launch.constants, _slots(launch), launch.shape, written
                )
            written.update(bound.writes)
            yield bound

    def _make_maps(self, mapped: Sequence[Launch], tiles: Launch | None) -> BoundLaunch:
        """What launches of a kernel with tensor maps find in memory: a set of these for each, and
        what the launch `tiles` makes.
        """
        own, slot = attention_maps_sm90a, max((*self.workspace, *self.results)) + 1
        count = len(_IN_MEMORY)
        sets = [launch.addresses.maps[:count] for launch in mapped]  # type: ignore[attr-defined]
        pair = tiles.config.pair if tiles else "none"  # type: ignore[attr-defined]
        config = own.config_for(sets, pair)
        self.workspace[slot] = packed((config.sets * own.SET_BYTES,), np.dtype(np.uint8))
        kernel = render(own.NAME, own.values(config))
        struct = kernel.params
        fields = own.parameters(sets[0], to=0, tiles=_fields(tiles) if tiles else None)
        of_maps = _slots(mapped[0])
        arrays = {name: of_maps[f"{name}_map"] for name in _IN_MEMORY}
        arrays |= {"maps": slot, **(_slots(tiles) if tiles else {})}
        grid = config.grid(tiles.shape[0][0] if tiles else 0)
        shape = (grid, (config.threads, 1, 1), config.shared_bytes)
        return _bind(kernel, struct.pack(fields)[struct.addresses.size :], arrays, shape, set())


def _kernel(launch: Launch) -> RenderedKernel:
    kernel: RenderedKernel = launch.kernel.kernel
    return kernel


def _slots(launch: Launch) -> dict[str, int]:
    """The slots of a launch by the names of its address fields."""
    return dict(zip(_kernel(launch).params.address_fields, launch.slots, strict=True))


def _fields(launch: Launch) -> dict[str, Any]:
    """The parameter block of a launch, addresses being 0."""
    struct = _kernel(launch).params
    block = struct.ctype.from_buffer_copy(bytes(struct.addresses.size) + launch.constants)
    return {field.name: getattr(block, field.name) or 0 for field in struct.fields}


def _with_maps(launch: Launch, maps: BoundLaunch, place: int, written: set[int]) -> BoundLaunch:
    """A launch with the set of maps at that place of those that the launch `maps` makes: what they
    are of is read as well.
    """
    config: Any = launch.config
    maps_at = place * attention_maps_sm90a.SET_BYTES
    kernel = render(launch.name, evoformer_forward_sm90a.values(config, maps_at=maps_at))
    slots = _slots(launch)
    arrays = {name: slots.pop(f"{name}_map") for name in _IN_MEMORY}
    del slots["out_map"], slots["pair_map"]
    arrays |= {"q_map": maps.writes[0], **slots}
    return _bind(kernel, launch.constants, arrays, launch.shape, written)


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
    return assembling(arch, device, knows_addresses=False)
