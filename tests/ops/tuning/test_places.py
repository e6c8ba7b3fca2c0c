"""Arrays for calls that are tuned on a device, by an executor whose memory is the host's."""

import ctypes
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.tuning_bench import rendered

from cuevo.arrays import as_numpy, view
from cuevo.executors import DriverExecutor
from cuevo.ops import dispatch, forward, product
from cuevo.ops.tuning import events, places
from cuevo.ops.tuning.calls import Call
from cuevo.ops.tuning.places import DeviceCall, _assemble

LEGACY = 1


class OnHost(DriverExecutor):
    """A device whose memory is the host's, and whose kernels note what they are launched with."""

    def __init__(self) -> None:
        sizes = dict(sm_count=108, shared_per_block_optin=163 << 10, l2_bytes=1 << 16)
        self.info = SimpleNamespace(**sizes, name="a device", driver_version="13.0")
        self.name, self.arch, self.stream = "cuda:0", "sm_80", LEGACY
        self.context = SimpleNamespace(
            current=nullcontext, enter=lambda: False, leave=lambda: None, handle=0
        )
        self.allocated: list[Any] = []
        self.launches: list[tuple[Any, ...]] = []
        self.cleared: list[tuple[int, int]] = []

    def allocate(self, nbytes: int, stream: object = None) -> Any:
        memory = np.empty(nbytes + 256, np.uint8)
        address = -(-memory.ctypes.data // 256) * 256
        self.allocated.append(SimpleNamespace(handle=address, size=nbytes, memory=memory))
        return self.allocated[-1]

    def copy_to_device(self, source: Any, stream: object = None) -> Any:
        buffer = self.allocate(source.nbytes)
        ctypes.memmove(buffer.handle, source.pointer, source.nbytes)
        return SimpleNamespace(pointer=buffer.handle, owner=buffer)

    def copy_bytes(self, target: int, source: int, nbytes: int, stream: object = None) -> None:
        ctypes.memmove(target, source, nbytes)

    def clear(self, address: int, nbytes: int, stream: int) -> None:
        self.cleared.append((address, nbytes))

    def synchronize(self, stream: object = None) -> None:
        pass

    def load(self, kernel: Any) -> Any:
        def launcher(shape: Any, pick: Any, pack: Any, constants: bytes) -> Any:
            return lambda table, stream: self.launches.append((kernel.name, pick(table)))

        return SimpleNamespace(kernel=kernel, spills=False, launcher=launcher)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> OnHost:
    monkeypatch.setattr(places, "free_bytes", lambda place: 1 << 30)
    monkeypatch.setattr(events, "free_bytes", lambda place: 1 << 20)
    monkeypatch.setattr(dispatch, "render", rendered)
    for operation in (forward.OPERATION, product.OPERATION):
        operation.plans.clear()
    return OnHost()


def content(place: OnHost, x: Any) -> np.ndarray:
    """The elements of an array of the device, all of them in its memory."""
    low, high = x.extent
    assert any(b.handle <= low and high <= b.handle + b.size for b in place.allocated)
    return as_numpy(replace(x, device="cpu"))


def call_of(operation: Any, arrays: dict[str, Any], options: tuple[object, ...]) -> Call:
    views = {name: view(x) for name, x in arrays.items()}
    return Call(operation, tuple(views.get(name) for name in operation.names), options)


@pytest.mark.unit
def test_calls_have_their_arrays_several_times(place: OnHost) -> None:
    q = np.zeros((1, 2, 24, 2, 16), np.float16)
    odd = np.zeros((1, 1, 2, 24, 25), np.float16)[..., 1:]
    mask = np.zeros((1, 2, 1, 1, 24), bool)
    arrays = {"q": q, "k": np.broadcast_to(q[:, :1], q.shape), "v": q, "mask_bias": mask,
              "pair_bias": odd}  # fmt: skip
    made = DeviceCall(place, call_of(forward.OPERATION, arrays, (None, False, None)))
    sets = made._sets
    assert 2 < len(sets) <= 16
    for views in sets:
        for x, given in zip(views[:5], arrays.values(), strict=True):
            assert (x.shape, x.strides, x.dtype) == (given.shape, given.strides, given.dtype)
            assert x.pointer % 16 == given.ctypes.data % 16
            found = content(place, x)
            if given is mask:
                assert 0.5 < found.mean() <= 1.0
            else:
                assert 0.5 < found.astype(np.float64).std() < 1.5
    first, second = (content(place, views[0]) for views in sets[:2])
    assert (first != second).any()


@pytest.mark.unit
def test_an_entrant_queues_the_plan_on_each_set(place: OnHost) -> None:
    a, b = np.zeros((64, 4096), np.float16), np.zeros((4096, 64), np.float16)
    options = (1.0, 0.0, False, False, None)
    made = DeviceCall(place, call_of(product.OPERATION, {"a": a, "b": b}, options))
    plan = made.plan(None)
    assert plan.launches[0].config.splits > 1, "a workspace is wanted"
    entrant = made.entrant(plan)
    for each in entrant.calls:
        each()
    launched = [pick for name, pick in place.launches]
    assert len(launched) == len(made._sets) == len(entrant.calls)
    operands = [(x[0].pointer, x[1].pointer) for x in made._sets]
    results = [result for (result,) in made._results]
    for pick, pair, result in zip(launched, operands, results, strict=True):
        assert {*pair, result} <= set(pick)
    workspace = made._workspace
    assert workspace.size >= plan.workspace_bytes
    assert all(
        workspace.handle <= at < workspace.handle + workspace.size for at, _ in place.cleared
    )
    other = made.entrant(made.plan({"splits": 2}))
    place.launches.clear()
    other.calls[0]()
    assert {*operands[0], results[0]} <= set(place.launches[0][1])


@pytest.mark.unit
def test_a_stream_is_held_with_memory_of_its_own(place: OnHost) -> None:
    clock = events.EventClock(place)
    clock.hold()
    clock.hold()
    assert len(place.allocated) == 1 and len(set(place.cleared)) == 1
    assert len(place.cleared) > 2


@pytest.mark.unit
def test_another_process_assembles_what_a_call_launches() -> None:
    a = np.zeros((64, 64), np.float16)
    options = (1.0, 0.0, False, False, None)
    record = call_of(product.OPERATION, {"a": a, "b": a}, options).record()
    assert "splits" in _assemble(record, "sm_80", {"splits": 7})
    q = np.zeros((1, 4, 128, 2, 32), np.float16)
    pair = np.zeros((1, 1, 2, 128, 128), np.float32)
    arrays = {"q": q, "k": q, "v": q, "pair_bias": pair}
    record = call_of(forward.OPERATION, arrays, (None, False, None)).record()
    tile = dict(m_tiles=2, block_queries=64, block_rows=1, stages=2, min_blocks=12)
    assert _assemble(record, "sm_80", tile) == "spills registers: evoformer_forward_sm80"
