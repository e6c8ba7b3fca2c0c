import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from cuevo.array_view import ArrayView
from cuevo.errors import DriverError
from cuevo.stream import LEGACY_DEFAULT, NO_ORDER, resolve_stream, wait_for

unit = pytest.mark.unit
gpu = pytest.mark.gpu
SUCCESS = cuda.CUresult.CUDA_SUCCESS


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
    ids=repr,
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
    pass


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
    tensor = FakeTensor()
    assert resolve_stream(None, [on("cuda:1", tensor)]) == 0x111
    assert resolve_stream(None, [on("cuda:0", tensor)]) == LEGACY_DEFAULT
    assert resolve_stream(None, [on("cuda:2"), on("cuda:2", tensor)]) == 0x222
    assert resolve_stream(None, [on("cpu", tensor)]) == LEGACY_DEFAULT
    assert resolve_stream(None, [on("cuda:1")]) == LEGACY_DEFAULT
    assert resolve_stream(5, [on("cuda:1", tensor)]) == 5
    assert resolve_stream() == LEGACY_DEFAULT


@unit
@pytest.mark.parametrize("torch", [None, SimpleNamespace()], ids=["absent", "half imported"])
def test_the_default_without_torch(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    if torch is None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "torch", torch)
    assert resolve_stream(None, [on("cuda:1", FakeTensor())]) == LEGACY_DEFAULT


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
        monkeypatch.setattr("cuevo.context._contexts", {})


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
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    assert resolve_stream(stream) == stream.ptr
    assert resolve_stream(cupy.cuda.Stream.null) == LEGACY_DEFAULT
    assert resolve_stream(cupy.cuda.Stream.ptds) == 2
