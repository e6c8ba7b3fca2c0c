import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from cuevo.arrays import copy_to_host, view
from cuevo.cuda import devices
from cuevo.cuda.context import check
from cuevo.errors import DeviceUnavailable, DriverError
from cuevo.executors import driver as module

unit = pytest.mark.unit
gpu = pytest.mark.gpu
FLOAT = np.dtype(np.float32)


@unit
def test_without_a_device_there_is_no_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "cuevo.cuda.device_info._probe", lambda: "looked for a GPU, found none. Buy one"
    )
    module.executor.cache_clear()
    try:
        assert devices() == ()
        with pytest.raises(DeviceUnavailable, match=r"cuda:0: looked for a GPU, .*device='sim'"):
            module.executor(0)
    finally:
        module.executor.cache_clear()


# -- On a device -----------------------------------------------------------------------------------


def put(executor: Any, host: np.ndarray, stream: object) -> Any:
    return executor.copy_to_device(view(host), stream)


@gpu
def test_the_executor_of_a_device_is_shared(executor: Any) -> None:
    assert module.executor(0) is executor
    assert (executor.name, executor.arch) == ("cuda:0", executor.info.arch)


# Contexts


def current_context() -> int:
    return int(check(cuda.cuCtxGetCurrent(), "asking for the current context"))


def in_new_thread(work: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    # What other tests have left would make a context current where it is collected.
    gc.collect()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(120)
    if errors:
        raise errors[0]


def use_everything(executor: Any, small: Any) -> None:
    """Each entry to the driver, on the default stream, which has no context of its own."""
    for stream in (1, executor.new_stream()):
        host = np.arange(64, dtype=np.float32)
        x = put(executor, host, stream)
        out = executor.empty((64,), FLOAT, stream)
        first = executor.record_event(stream)
        small.add(executor, x, x, out, 1.0, stream)
        last = executor.record_event(stream)
        np.testing.assert_array_equal(out.to_numpy(), 2 * host)
        assert last - first >= 0
        view(out, stream=int(executor.stream.handle))
        del x, out
        gc.collect()
        executor.synchronize(stream)


@gpu
def test_a_thread_without_a_context_stays_without(executor: Any, small: Any) -> None:
    def work() -> None:
        assert current_context() == 0
        use_everything(executor, small)
        assert current_context() == 0
        graph = executor.capture(lambda stream: None)
        graph.launch()
        assert current_context() == 0

    in_new_thread(work)


@gpu
def test_a_threads_own_context_stays_current(executor: Any, small: Any) -> None:
    def work() -> None:
        device = check(cuda.cuDeviceGet(0), "device")
        own = check(cuda.cuCtxCreate(None, 0, device), "making a context")
        try:
            assert current_context() == int(own) != executor.context.handle
            use_everything(executor, small)
            assert current_context() == int(own)
        finally:
            check(cuda.cuCtxDestroy(own), "destroying the context")

    in_new_thread(work)


@gpu
def test_another_devices_context_stays_current(executor: Any, small: Any) -> None:
    if len(devices()) < 2:
        pytest.skip("needs two GPUs")
    other = module.executor(1)

    def work() -> None:
        with other.context.current():
            use_everything(executor, small)
            assert current_context() == other.context.handle
            use_everything(other, small)
        assert current_context() == 0

    in_new_thread(work)


# Memory


@gpu
def test_memory_is_used_again(executor: Any, capsys: pytest.CaptureFixture[str]) -> None:
    queue = executor.new_stream()
    pointers = set()
    for _ in range(50):
        buffer = executor.allocate(64 << 20, queue)
        pointers.add(int(buffer.handle))
        del buffer
    executor.synchronize(queue)
    attributes = executor._pool.attributes
    with capsys.disabled():
        print(
            f"\npool: release threshold {attributes.release_threshold}, "
            f"reserved {attributes.reserved_mem_current}, {len(pointers)} addresses for 50 buffers"
        )
    assert len(pointers) <= 2
    assert attributes.release_threshold > 1 << 30


@gpu
@pytest.mark.no_memory_left
def test_more_memory_than_there_is(executor: Any) -> None:
    with pytest.raises(
        DriverError,
        match=r"allocating [\d,]{17,} bytes on cuda:0: CUDA_ERROR_OUT_OF_MEMORY"
        r".* bytes [\d,]+ are free",
    ):
        executor.allocate(1 << 40, executor.stream)
    assert executor._pool.attributes.reserved_mem_current < 1 << 30, "others have the memory"
    assert executor.allocate(1024, executor.stream).size >= 1024


@gpu
def test_an_empty_array_has_memory_of_its_own(executor: Any) -> None:
    x, y = (executor.empty((0, 4), FLOAT, executor.stream) for _ in range(2))
    assert x.pointer != y.pointer != 0
    assert x.to_numpy().shape == (0, 4)


@gpu
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_an_array_is_filled(executor: Any, name: str) -> None:
    dtype = np.dtype(name)
    for value in (0.0, 1.5, -np.inf):
        x = executor.empty((3, 4, 5), dtype, executor.stream)
        executor.fill(x.view(x.stream), value, executor.stream)
        assert set(x.to_numpy().reshape(-1).tolist()) == {value}
        y = executor.empty((3, 2, 5), dtype, executor.stream, strides=(100, 20, dtype.itemsize))
        y_memory = view(y, stream=y.stream)
        executor.fill(y_memory, value, executor.stream)
        assert set(y.to_numpy().reshape(-1).tolist()) == {value}
    executor.fill(executor.empty((0, 3), dtype, executor.stream).view(1), 1.0, executor.stream)


BASE = (np.arange(4 * 6 * 40) % 251).reshape(4, 6, 40)


@gpu
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "bool"])
@pytest.mark.parametrize(
    "pick",
    [
        lambda x: x,
        lambda x: x[1:, ::2, 8:],
        lambda x: x[::-1, :, ::-1],
        lambda x: x.transpose(2, 0, 1),
        lambda x: np.broadcast_to(x[:, :1], (4, 1000, 40)),
        lambda x: x[:, ::5, :8],
        lambda x: x[:0],
        lambda x: x[0, 0, 0:1].reshape(()),
    ],
    ids=["whole", "sliced", "reversed", "transposed", "broadcast", "gaps", "empty", "scalar"],
)
def test_host_arrays_go_there_and_back(executor: Any, same_bits: Any, name: str, pick: Any) -> None:
    x = pick(BASE.astype(np.dtype(name)))
    seen = view(x)
    far = executor.copy_to_device(seen, executor.stream)
    assert (far.shape, far.dtype, far.device) == (x.shape, x.dtype, "cuda:0")
    assert [step == 0 for step in far.strides] == [step == 0 for step in x.strides]
    if x.size:
        low, high = far.extent
        assert high - low <= seen.extent[1] - seen.extent[0]
    got = copy_to_host(far, int(executor.stream.handle))
    same_bits(got, x)


@gpu
def test_alignment_survives_the_copy(executor: Any) -> None:
    base = np.zeros(4096, np.uint8)
    for shift in (0, 2, 16, 32, 100, 255):
        x = base[shift : shift + 64]
        far = executor.copy_to_device(view(x), executor.stream)
        assert far.pointer % 256 == x.ctypes.data % 256


# Graphs


@gpu
def test_a_graph_runs_again_on_new_inputs(executor: Any, small: Any) -> None:
    queue = executor.new_stream()
    x = put(executor, np.zeros(256, np.float32), queue)

    def work(stream: Any) -> Any:
        once = executor.empty((256,), FLOAT, stream)
        twice = executor.empty((256,), FLOAT, stream)
        small.add(executor, x, x, once, 1.0, stream)
        small.add(executor, once, x, twice, 1.0, stream)
        return once, twice

    executor.synchronize(queue)
    graph = executor.capture(work)
    once, twice = graph.result
    addresses = once.pointer, twice.pointer
    for turn, stream in enumerate((None, queue, executor.new_stream())):
        host = np.random.default_rng(turn).random(256, np.float32)
        with executor.context.current():
            check(cuda.cuMemcpyHtoD(x.pointer, host.ctypes.data, host.nbytes), "copying")
            # It returns before the device has all of it, and the streams here do not wait for it.
            check(cuda.cuCtxSynchronize(), "copying")
        graph.launch(stream)
        executor.synchronize(graph._stream if stream is None else stream)
        np.testing.assert_array_equal(once.to_numpy(), host + host)
        np.testing.assert_array_equal(twice.to_numpy(), host + host + host)
        assert (once.pointer, twice.pointer) == addresses


@gpu
def test_a_capture_on_the_callers_stream(executor: Any, small: Any) -> None:
    queue = executor.new_stream()
    x = put(executor, np.ones(8, np.float32), queue)
    out = executor.empty((8,), FLOAT, queue)
    executor.synchronize(queue)
    handle = int(queue.handle)
    graph = executor.capture(
        lambda stream: small.add(executor, x, x, out, 2.0, int(stream.handle)), stream=handle
    )
    graph.launch(handle)
    assert out.to_numpy().tolist() == [3.0] * 8


@gpu
def test_what_cannot_be_captured(executor: Any, small: Any) -> None:
    for stream in (0, 1):
        with pytest.raises(ValueError, match="cannot capture the legacy default stream"):
            executor.capture(lambda stream: None, stream=stream)
    queue = executor.new_stream()

    def fail(stream: Any) -> None:
        raise ZeroDivisionError("of the caller")

    with pytest.raises(ZeroDivisionError, match="of the caller"):
        executor.capture(fail, queue)
    with pytest.raises(DriverError, match=r"waiting for stream .*: CUDA_ERROR_STREAM_CAPTURE"):
        executor.capture(lambda stream: executor.synchronize(stream), queue)
    # The stream is an ordinary one again.
    x = put(executor, np.ones(8, np.float32), queue)
    out = executor.empty((8,), FLOAT, queue)
    small.add(executor, x, x, out, 2.0, queue)
    assert out.to_numpy().tolist() == [3.0] * 8


@gpu
def test_torch_captures_a_call(executor: Any, small: Any) -> None:
    torch = pytest.importorskip("torch")
    from cuevo.cuda.stream import resolve_stream

    graph = torch.cuda.CUDAGraph()
    # A library that works on several devices may have left another one than the first current.
    with torch.cuda.device(0):
        x = torch.ones(256, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            seen = view(x)
            queue = resolve_stream(None, [seen])
            assert queue == torch.cuda.current_stream().cuda_stream
            out = executor.empty((256,), FLOAT, queue)
            small.add(executor, seen, seen, out, 1.0, queue)
            tensor = torch.from_dlpack(out)
            doubled = 2 * tensor
        for value in (3.0, 5.0):
            x.fill_(value)
            graph.replay()
            torch.cuda.synchronize()
            assert set(tensor.tolist()) == {2 * value}
            assert set(doubled.tolist()) == {4 * value}


# Events


@gpu
def test_events_measure_time(executor: Any, small: Any) -> None:
    queue = executor.new_stream()
    out = executor.empty((128,), FLOAT, queue)
    small.fill(executor, out, 1.0, queue)
    first = executor.record_event(queue)
    small.fill(executor, out, 1.0, queue, milliseconds=10)
    last = executor.record_event(queue)
    last.sync()
    assert 9.9 <= last - first <= 30
