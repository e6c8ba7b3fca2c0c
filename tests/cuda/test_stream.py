import gc
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from cuevo.arrays import view
from cuevo.arrays.array_view import ArrayView
from cuevo.cuda.stream import LEGACY_DEFAULT, NO_ORDER, resolve_stream, wait_for
from cuevo.errors import DriverError

unit = pytest.mark.unit
gpu = pytest.mark.gpu
SUCCESS = cuda.CUresult.CUDA_SUCCESS
FLOAT = np.dtype(np.float32)


def on(device: str, owner: object = None) -> ArrayView:
    return ArrayView(4096, (2,), (4,), np.dtype(np.float32), device, False, owner)


class Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0x77


@unit
@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (0x1234, 0x1234),
        (0, 1),
        (1, 1),
        (2, 2),
        (Protocol(), 0x77),
        (SimpleNamespace(__cuda_stream__=(0, 0x78)), 0x78),
        (SimpleNamespace(__cuda_stream__=(0, 0)), 1),
        (SimpleNamespace(cuda_stream=0x79), 0x79),
        (SimpleNamespace(cuda_stream=0), 1),
        (SimpleNamespace(ptr=0x80), 0x80),
        (cuda.CUstream(0x81), 0x81),
        (cuda.CUstream(0), 1),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_is_a_stream(stream: object, handle: int) -> None:
    found = resolve_stream(stream, [on("cuda:0")])
    assert found == handle
    assert type(found) is int


@unit
@pytest.mark.parametrize(
    ("stream", "error", "words"),
    [
        (-1, ValueError, "a handle is not negative; got -1"),
        ("7", TypeError, "expected None, an integer handle.*got str"),
        (1.0, TypeError, "got float"),
        (True, TypeError, "got bool"),
        (SimpleNamespace(__cuda_stream__=(1, 5)), TypeError, "version 1 of __cuda_stream__"),
        (SimpleNamespace(ptr="x"), TypeError, "got SimpleNamespace"),
    ],
    ids=repr,
)
def test_what_is_no_stream(stream: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        resolve_stream(stream)


class FakeTensor:
    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.is_cuda = ordinal >= 0

    def get_device(self) -> int:
        return self.ordinal


def fake_torch(raw: bool) -> Any:
    streams = {0: 0, 1: 0x111, 2: 0x222}
    torch = SimpleNamespace(
        Tensor=FakeTensor,
        _C=SimpleNamespace(),
        cuda=SimpleNamespace(
            current_stream=lambda ordinal: SimpleNamespace(cuda_stream=streams[ordinal])
        ),
    )
    if raw:
        torch._C._cuda_getCurrentRawStream = streams.__getitem__
        del torch.cuda
    return torch


@unit
@pytest.mark.parametrize("raw", [True, False])
def test_the_default_is_torchs_current_stream_for_tensors(
    monkeypatch: pytest.MonkeyPatch, raw: bool
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(raw))
    for seen in (lambda tensor: tensor, lambda tensor: on("cuda:1", tensor)):
        assert resolve_stream(None, [seen(FakeTensor(1))]) == 0x111
        assert resolve_stream(None, [seen(FakeTensor(0))]) == LEGACY_DEFAULT
        assert resolve_stream(None, [on("cuda:2"), None, seen(FakeTensor(2))]) == 0x222
        assert resolve_stream(None, [seen(FakeTensor(-1)), seen(FakeTensor(1))]) == 0x111
        assert resolve_stream(None, [seen(FakeTensor(-1))]) == LEGACY_DEFAULT
        assert resolve_stream(5, [seen(FakeTensor(1))]) == 5
    assert resolve_stream(None, [on("cuda:1"), np.zeros(2), None]) == LEGACY_DEFAULT
    assert resolve_stream() == LEGACY_DEFAULT


@unit
@pytest.mark.parametrize("torch", [None, SimpleNamespace()], ids=["absent", "half imported"])
def test_the_default_without_torch(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    if torch is None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "torch", torch)
    assert resolve_stream(None, [on("cuda:1", FakeTensor(1))]) == LEGACY_DEFAULT


# -- Waiting ---------------------------------------------------------------------------------------


class FakeDriver:
    """Records what is asked of events and streams; context 100 is current."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capturing: set[int]) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fail_record = False
        status = cuda.CUstreamCaptureStatus

        def record(*what: Any) -> Any:
            self.calls.append(what)
            return (SUCCESS,)

        def record_event(event: str, stream: int) -> Any:
            if self.fail_record:
                return (cuda.CUresult.CUDA_ERROR_INVALID_HANDLE,)
            return record("record", event, stream)

        answers = {
            "cuEventCreate": lambda flags: (SUCCESS, "event"),
            "cuEventRecord": record_event,
            "cuStreamWaitEvent": lambda stream, event, flags: record("wait", stream, event),
            "cuEventDestroy": lambda event: record("destroy", event),
            "cuStreamIsCapturing": lambda stream: (
                SUCCESS,
                status.CU_STREAM_CAPTURE_STATUS_ACTIVE
                if stream in capturing
                else status.CU_STREAM_CAPTURE_STATUS_NONE,
            ),
            "cuGetErrorName": lambda status: (SUCCESS, status.name.encode()),
            "cuGetErrorString": lambda status: (SUCCESS, b""),
            "cuInit": lambda flags: (SUCCESS,),
            "cuDeviceGet": lambda ordinal: (SUCCESS, ordinal),
            "cuDevicePrimaryCtxRetain": lambda device: (SUCCESS, 100),
            "cuCtxGetCurrent": lambda: (SUCCESS, 100),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(cuda, name, answer)
        monkeypatch.setattr("cuevo.cuda.context._contexts", {})


@unit
def test_one_stream_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(monkeypatch, set())
    wait_for(7, 9, 0)
    assert driver.calls == [("record", "event", 9), ("wait", 7, "event"), ("destroy", "event")]


@unit
@pytest.mark.parametrize(("consumer", "producer"), [(7, 7), (NO_ORDER, 9), (1, 1)])
def test_nobody_waits_for_itself(
    monkeypatch: pytest.MonkeyPatch, consumer: int, producer: int
) -> None:
    driver = FakeDriver(monkeypatch, set())
    wait_for(consumer, producer, 0)
    assert driver.calls == []


@unit
@pytest.mark.parametrize(
    ("consumer", "producer", "capturing", "waits"),
    [
        (7, 9, {7}, False),  # outside work cannot be waited for in a graph
        (7, 1, {7}, False),
        (1, 9, {9}, False),  # the legacy default stream cannot join a capture
        (7, 9, {9}, True),  # a fork of the capture
        (7, 9, {7, 9}, True),  # within one capture
    ],
)
def test_waiting_and_graph_capture(
    monkeypatch: pytest.MonkeyPatch,
    consumer: int,
    producer: int,
    capturing: set[int],
    waits: bool,
) -> None:
    driver = FakeDriver(monkeypatch, capturing)
    wait_for(consumer, producer, 0)
    assert (("wait", consumer, "event") in driver.calls) is waits


@unit
def test_a_failed_wait_leaves_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(monkeypatch, set())
    driver.fail_record = True
    with pytest.raises(
        DriverError,
        match="making stream 0x7 wait for stream 0x9: CUDA_ERROR_INVALID_HANDLE",
    ):
        wait_for(7, 9, 0)
    assert driver.calls == [("destroy", "event")]


@gpu
def test_streams_of_other_libraries() -> None:
    torch = pytest.importorskip("torch")
    side = torch.cuda.Stream()
    assert resolve_stream(side) == side.cuda_stream
    assert resolve_stream(torch.cuda.default_stream()) == LEGACY_DEFAULT
    tensor = torch.zeros(2, device="cuda")
    view = on(str(tensor.device), tensor)
    assert resolve_stream(None, [view]) == LEGACY_DEFAULT
    with torch.cuda.stream(side):
        assert resolve_stream(None, [view]) == side.cuda_stream
        assert resolve_stream(None, [None, tensor.cpu(), tensor]) == side.cuda_stream
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    assert resolve_stream(stream) == stream.ptr
    assert resolve_stream(cupy.cuda.Stream.null) == LEGACY_DEFAULT
    assert resolve_stream(cupy.cuda.Stream.ptds) == 2


@gpu
def test_an_unordered_reader_comes_too_early(
    executor: Any, read_on: Any, late: Callable[[], Any]
) -> None:
    """What the tests below would see if nobody waited."""
    queue = executor.new_stream()
    assert read_on(view(late(), stream=-1), queue) == {2.0}


@gpu
def test_a_call_waits_for_its_argument(
    executor: Any, read_on: Any, late: Callable[[], Any]
) -> None:
    queue = executor.new_stream()
    seen = view(late(), stream=int(queue.handle))
    assert read_on(seen, queue) == {14.0}


@gpu
def test_a_call_waits_for_the_stream_of_the_cuda_array_interface(
    executor: Any, read_on: Any, late: Callable[[], Any]
) -> None:
    class Only:
        def __init__(self, x: Any) -> None:
            self.x = x
            self.__cuda_array_interface__ = x.__cuda_array_interface__

    queue = executor.new_stream()
    seen = view(Only(late()), stream=int(queue.handle))
    assert read_on(seen, queue) == {14.0}


@gpu
def test_a_call_waits_for_the_producer_of_dlpack(
    executor: Any, read_on: Any, late: Callable[[], Any]
) -> None:
    class Only:
        def __init__(self, x: Any) -> None:
            self.__dlpack__ = x.__dlpack__
            self.__dlpack_device__ = x.__dlpack_device__

    queue = executor.new_stream()
    seen = view(Only(late()), stream=int(queue.handle))
    assert seen.device == "cuda:0"
    assert read_on(seen, queue) == {14.0}


@gpu
def test_to_numpy_waits_on_any_stream(executor: Any, late: Callable[[], Any]) -> None:
    assert set(late().to_numpy().tolist()) == {7.0}
    assert set(late().to_numpy(stream=executor.new_stream()).tolist()) == {7.0}
    assert set(late().to_numpy(stream=1).tolist()) == {7.0}


@gpu
@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
def test_torch_waits_for_the_array(late: Callable[[], Any], side: bool) -> None:
    torch = pytest.importorskip("torch")
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        x = late()
        doubled = 2 * torch.from_dlpack(x)
    stream.synchronize()
    assert set(doubled.tolist()) == {14.0}


@gpu
def test_cupy_waits_for_the_array(late: Callable[[], Any]) -> None:
    cupy = pytest.importorskip("cupy")
    with cupy.cuda.Stream(non_blocking=True):
        for take in (cupy.from_dlpack, cupy.asarray):
            x = late()
            doubled = 2 * take(x)
            assert set(cupy.asnumpy(doubled).tolist()) == {14.0}, take


@gpu
def test_jax_waits_for_the_array(late: Callable[[], Any]) -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        pytest.skip(f"this JAX runs on {jax.default_backend()}")
    x = late()
    doubled = 2 * jax.dlpack.from_dlpack(x)
    assert set(np.asarray(doubled).tolist()) == {14.0}


@gpu
def test_a_call_on_torchs_stream_waits_for_torch(read_on: Any) -> None:
    torch = pytest.importorskip("torch")
    ones = torch.ones(256, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)
        x = 7 * ones
        seen = view(x, name="x")
        queue = resolve_stream(None, [seen])
        assert queue == torch.cuda.current_stream().cuda_stream
        assert read_on(seen, queue) == {14.0}


@gpu
def test_memory_goes_back_after_the_default_stream_has_read_it(executor: Any, small: Any) -> None:
    torch = pytest.importorskip("torch")
    queue = executor.new_stream()
    count = 1 << 20

    def filled(value: float) -> Any:
        x = executor.empty((count,), FLOAT, queue)
        small.fill(executor, x, value, queue)
        return x

    filled(0.0)
    torch.ones(count, device="cuda").clone()  # torch has its memory: it need not wait to get some
    torch.cuda.synchronize()
    tensor = torch.from_dlpack(filled(7.0))
    torch.cuda._sleep(40_000_000)
    copy = tensor.clone()
    del tensor
    gc.collect()
    others = [filled(float(number)) for number in range(4)]
    executor.synchronize(queue)
    torch.cuda.synchronize()
    assert set(torch.unique(copy).tolist()) == {7.0}
    assert len(others) == 4
