"""Runs the kernels of ``tests/blocks/ptx``, each of which is a building block of ``ptx/lib`` alone.

Cases come by the hundred, so tests take them in parts: `parts` deals them out, `check_all` goes on
after a failure, and says of how many cases which was the first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from helpers.guarded import POISON, OnDevice, Strided, host_views, lay_out

from cuevo.errors import CuevoError
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor, LoadedKernel
from cuevo.sim import SimExecutor
from cuevo.toolchain.template import RenderedKernel, render

DIRECTORY = Path(__file__).parent / "ptx"
"""Test kernels and their ``cuevo.h``; ``lib`` in it is the shipped one."""
ARCHITECTURES = ("sm_80", "sm_90")
"""Architectures of the CPU executors."""

_Case = TypeVar("_Case")


@lru_cache(maxsize=64)
def _rendered(kernel: str, values: tuple[tuple[str, object], ...]) -> RenderedKernel:
    return render(kernel, dict(values), directory=DIRECTORY)


def instance(kernel: str, **values: object) -> RenderedKernel:
    """The test kernel with these values of its parameters, all of which can be hashed."""
    return _rendered(kernel, tuple(values.items()))


@cache
def on_cpu(arch: str = "sm_80") -> SimExecutor:
    """The CPU executor of an architecture; it counts bank conflicts."""
    return SimExecutor(arch, profile=True)


def run(
    place: Executor,
    kernel: RenderedKernel,
    inputs: Mapping[str, Strided],
    results: Mapping[str, Strided],
    *,
    threads: int,
    grid: int | tuple[int, int, int] = 1,
    shared_bytes: int = 0,
    **numbers: int | float,
) -> LoadedKernel:
    """Launch `kernel`, whose pointers have the names of the arrays; fields not named are 0.

    The results get what the kernel leaves in their memory; it may read and write them. Nothing
    else changes: neither the inputs nor what lies between elements and around the arrays.
    """
    arrays = {**inputs, **results}
    before = {name: x.memory.copy() for name, x in arrays.items()}
    loaded = place.load(kernel)
    on_device = OnDevice(arrays, place) if isinstance(place, DriverExecutor) else None
    views = (
        on_device.views
        if on_device
        else host_views(inputs, readonly=True) | host_views(results, readonly=False)
    )
    fields = {field.name: 0 for field in kernel.params.fields}
    pointers = {name: view.pointer for name, view in views.items()}
    block = kernel.params.pack(fields | pointers | numbers)
    size = (threads, 1, 1)
    blocks = (grid, 1, 1) if isinstance(grid, int) else grid
    loaded.launch(blocks, size, shared_bytes, block, buffers=list(views.values()))
    if on_device:
        on_device.fetch(arrays)
    for name, x in inputs.items():
        assert np.array_equal(x.memory, before[name]), f"the input {name} has changed"
    for name, x in results.items():
        touched = x.outside() != x.outside(before[name])
        assert not touched.any(), f"{np.count_nonzero(touched)} bytes around {name} were written"
    return loaded


def array(values: np.ndarray, **layout: Any) -> Strided:
    """An array with these values; `layout` as for `guarded.lay_out`."""
    found = lay_out(values.shape, values.dtype, **layout)
    found.array[...] = values
    return found


def empty(shape: Sequence[int], dtype: Any, **layout: Any) -> Strided:
    """An array of poisoned elements."""
    return lay_out(tuple(shape), np.dtype(dtype), **layout)


def poison(dtype: Any) -> Any:
    """An element that nobody has written."""
    size = np.dtype(dtype).itemsize
    return np.full(size, POISON, np.uint8).view(dtype)[0]


def assert_no_conflicts(loaded: LoadedKernel) -> None:
    """No instruction of the last launch met bank conflicts; a device is not asked."""
    profile = getattr(loaded, "profile", None)
    if profile is not None:
        assert profile.banks
        worse = [f"{use.origin}: {use.opcode}: {use}" for use in profile.banks if use.conflicts]
        assert not worse, "\n".join(["bank conflicts:", *worse])


def same(name: str, found: np.ndarray, expected: np.ndarray) -> None:
    """Equal in every bit."""
    found, expected = np.ascontiguousarray(found), np.ascontiguousarray(expected)
    assert found.shape == expected.shape, f"{name}: {found.shape}, not {expected.shape}"
    bits = np.dtype(f"u{found.itemsize}")
    differs = found.view(bits) != expected.view(bits)
    if differs.any():
        first = tuple(int(i) for i in np.argwhere(differs)[0])
        raise AssertionError(
            f"{name}: {np.count_nonzero(differs)} of {differs.size} differ, the first is {first}: "
            f"{found[first]!r} instead of {expected[first]!r}"
        )


# -- Many cases in a test --------------------------------------------------------------------------


def parts(count: int) -> Any:
    """Decorates a test with a parameter `part`, a slice that takes every `count`-th case."""
    slices = [slice(first, None, count) for first in range(count)]
    return pytest.mark.parametrize("part", slices, ids=[f"part{i}of{count}" for i in range(count)])


def check_all(
    check: Callable[[Executor, _Case], object],
    cases: Iterable[_Case],
    places: Executor | Sequence[Executor],
) -> None:
    """Check each case on a place, or on one of several in turn; raise for all that fail."""
    total, failed = 0, []
    for total, case in enumerate(cases, 1):
        place = places[total % len(places)] if isinstance(places, Sequence) else places
        try:
            check(place, case)
        except (AssertionError, CuevoError, ValueError) as error:
            failed.append((case, place, error))
    assert total, "there are no cases"
    if failed:
        case, place, error = failed[0]
        others = "".join(f"\n{case}" for case, _, _ in failed[1:4])
        raise AssertionError(
            f"{len(failed)} of {total} cases fail, the first on {place.name}:\n{case}\n{error}"
            f"{others and chr(10) + 'others:' + others}"
        ) from error


def both() -> list[SimExecutor]:
    """The CPU executors, to be taken in turn."""
    return [on_cpu(arch) for arch in ARCHITECTURES]


def changed_text(kernel: RenderedKernel, old: str, new: str) -> RenderedKernel:
    """The kernel with other instructions in its text."""
    assert old in kernel.text
    return replace(kernel, text=kernel.text.replace(old, new))
