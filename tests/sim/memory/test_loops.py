"""The compiled checks of shared memory: whatever is done, what they find and what they leave behind
is as NumPy has it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cuevo.sim.faults import Fault
from cuevo.sim.memory import happens_before
from cuevo.sim.memory import races as of_warps
from cuevo.sim.memory.happens_before import HappensBefore
from cuevo.sim.memory.races import Races
from cuevo.sim.memory.shared_memory import WINDOW, SharedMemory

pytestmark = pytest.mark.unit

WARPS, BLOCKS, SIZE = 4, 2, 1024
ALIVE = np.ones((32, WARPS), np.bool_)
Step = Callable[[SharedMemory], object]


def memory(races: type[Races | HappensBefore]) -> SharedMemory:
    warps = np.arange(WARPS)
    return SharedMemory(BLOCKS, SIZE, warps // 2, warps % 2, races)


def lanes(rng: np.random.Generator) -> Any:
    """All of them, or some: of each warp the same, or not."""
    kind = rng.integers(4)
    if kind < 2:
        return None
    some = rng.random((32, WARPS if kind == 2 else 1)) < 0.7
    some[0] = True
    return np.array(np.broadcast_to(some, ALIVE.shape))


def step(rng: np.random.Generator, asynchronous: bool) -> Step:
    """Something that a kernel might do, now and then a mistake."""
    size, mask = int(rng.choice([2, 4, 8, 16])), lanes(rng)
    lane, warp = np.indices(ALIVE.shape)
    place = 32 * (warp % 2) + lane
    if rng.random() < 0.3:
        place = place ^ int(rng.choice([0, 1, 32]))
    if rng.random() < 0.3:
        place = place // int(rng.choice([2, 16, 64]))
    addresses = (WINDOW + place * size % SIZE).astype(np.uint32)
    copied = np.array([0, 5, 40])
    readers = np.array([0, 1, 2])
    kind = rng.choice(["load", "load", "store", "block", "warp", "copy", "unit", "fence"])

    def run(shared: SharedMemory) -> object:
        indices = shared.indices(addresses, size, mask)
        values = shared._data[size].take(indices)
        match kind:
            case "load":
                return shared.load(indices, size, mask).tobytes()
            case "store":
                return shared.store(indices, size, values, mask)
            case "copy" if size >= 4:
                shared.begin_copy(indices, size, values, mask)
                where = np.ones_like(ALIVE) if mask is None else mask
                return shared.end_copy(indices[where], size, np.flatnonzero(where))
            case "warp":
                return shared.races.warp_barrier(mask, ALIVE)
            case "unit" if asynchronous:
                shared.begin_async_read(copied, readers)
                return shared.end_async_read(copied, readers)
            case "fence" if asynchronous:
                assert isinstance(shared.races, HappensBefore)
                return shared.races.fence_proxy(mask)
        return shared.races.barrier(None)

    return run


def outcome(run: Step, shared: SharedMemory) -> Any:
    """What came of it, and all that is remembered."""
    try:
        said: Any = run(shared)
    except Fault as fault:
        assert fault.lanes is not None
        return fault.message, fault.lanes.tobytes(), repr(fault.earlier)
    kept = [shared._raw_state, *vars(shared.races).values()]
    if isinstance(shared.races, Races):
        kept += shared.races._lanes.tags
    return said, *(each.tobytes() for each in kept if isinstance(each, np.ndarray))


@pytest.mark.parametrize("races", [Races, HappensBefore])
def test_as_without(races: type[Races | HappensBefore], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    rng = np.random.default_rng(16)
    quick, slow = memory(races), memory(races)
    faults = 0
    for _ in range(600):
        run = step(rng, races is HappensBefore)
        found = outcome(run, quick)
        with monkeypatch.context() as numpy_alone:
            for module in (of_warps, happens_before):
                numpy_alone.setattr(module, "compiled", lambda loop: None)
            assert found == outcome(run, slow)
        if isinstance(found[0], str):
            faults += 1
            for each in (quick, slow):
                each.reset()
                each._raw_state.fill(1)
    assert 50 < faults < 400
