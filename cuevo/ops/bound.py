"""The launches of a plan for a host that knows nothing but the addresses of its buffers, as XLA
does: each is a kernel whose parameter block is among its constants.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from cuevo.arrays import ArrayView
from cuevo.executors import Executor
from cuevo.executors.assembling import assembling
from cuevo.ops.operation import Operation
from cuevo.ops.plan import Launch, Plan
from cuevo.toolchain.bound import bind
from cuevo.toolchain.template import RenderedKernel

__all__ = ["BoundLaunch", "arrays_made", "bound_launches", "plan_for"]


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


def plan_for(
    operation: Operation,
    arrays: tuple[ArrayView | None, ...],
    options: tuple[object, ...],
    arch: str,
    device: str = "",
) -> Plan:
    """The plan of a call on an architecture, where `arrays` are nowhere yet; the device's name is
    what tuned choices are looked up by.
    """
    return operation.plan_on_device(arrays, options, _place(arch, device), None)


@lru_cache
def _place(arch: str, device: str) -> Executor:
    return assembling(arch, device)


def arrays_made(plan: Plan) -> dict[int, ArrayView]:
    """The arrays that launches of a plan write, results and workspace, by their slots."""
    made = {result.slot: result.array for result in plan.results if result is not None}
    parts = enumerate(plan.parts, start=max(made, default=0) + 1)
    return made | {slot: part.array for slot, part in parts}


def bound_launches(plan: Plan) -> Iterator[BoundLaunch]:
    """The launches of a plan that `plan_for` made, in order; its workspace is not cleared."""
    assert not any(part.is_cleared for part in plan.parts)
    written: set[int] = set()
    for launch in plan.every_launch:
        bound = _bound(launch, written)
        written.update(bound.writes)
        yield bound


def _bound(launch: Launch, written: set[int]) -> BoundLaunch:
    kernel: RenderedKernel = launch.kernel.kernel
    count = len(kernel.params.address_fields)
    fields = zip(kernel.params.fields[:count], launch.slots, strict=True)
    present = [(field.name, field.is_written, slot) for field, slot in fields if slot]
    reads = {name: slot for name, is_written, slot in present if not is_written}
    writes = {name: slot for name, is_written, slot in present if is_written}
    updates = {f"{name}_before": slot for name, slot in writes.items() if slot in written}
    return BoundLaunch(
        bind(kernel, launch.constants, (*reads, *updates, *writes)),
        *launch.shape,
        (*reads.values(), *updates.values()),
        tuple(writes.values()),
        tuple(updates.values()),
    )
