import ctypes
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

from cuevo.arrays import device_array as module
from cuevo.arrays import view
from cuevo.arrays.array_view import BFLOAT16, ArrayView
from cuevo.arrays.device_array import DeviceArray, copy_to_host

pytestmark = pytest.mark.usefixtures("nothing_old_to_collect")
unit = pytest.mark.unit
gpu = pytest.mark.gpu
FLOAT = np.dtype(np.float32)
ADDRESS = 0x7F0000003000


class Buffer:
    """Device memory, as cuda.core has it."""

    freed: ClassVar[list[int]] = []

    def __init__(self, handle: int = ADDRESS) -> None:
        self.handle = handle

    def __del__(self) -> None:
        self.freed.append(self.handle)


def make(dtype: np.dtype = FLOAT, stream: int = 7, **options: Any) -> DeviceArray:
    buffer = Buffer()
    return DeviceArray(buffer, (2, 3, 4), dtype, "cuda:1", stream, **options)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """(consumer, producer, device) of each wait that was asked of the driver."""
    waits: list[tuple[int, int, int]] = []
    monkeypatch.setattr(module, "wait_for", lambda *streams: waits.append(streams))
    return waits


@pytest.fixture
def exported(
    monkeypatch: pytest.MonkeyPatch, waited: list[tuple[int, int, int]]
) -> Iterator[list[tuple[Any, ...]]]:
    """What was given to the exporter of DLPack."""
    exports: list[tuple[Any, ...]] = []
    monkeypatch.setattr(module.dlpack, "export", lambda *what: exports.append(what) or "capsule")
    yield exports
    exports.clear()  # what is still exported has an end, too, which asks the driver


@unit
def test_what_an_array_says_of_itself() -> None:
    x = make()
    assert (x.pointer, x.shape, x.strides) == (ADDRESS, (2, 3, 4), (48, 16, 4))
    assert (x.dtype, x.device, x.stream) == (FLOAT, "cuda:1", 7)
    assert (x.ndim, x.size, x.nbytes) == (3, 24, 96)
    assert make(strides=(64, 16, 4)).strides == (64, 16, 4)
    assert repr(x) == (
        "DeviceArray(shape=(2, 3, 4), dtype=float32, device='cuda:1', pointer=0x7f0000003000)"
    )


@unit
def test_it_is_an_argument(waited: list[tuple[int, int, int]]) -> None:
    x = make()
    seen = view(x, stream=7, writable=True)
    assert (seen.pointer, seen.shape, seen.dtype, seen.device) == (
        ADDRESS,
        (2, 3, 4),
        FLOAT,
        "cuda:1",
    )
    assert seen.owner is not None
    assert waited == []
    view(x, stream=9)
    view(x)
    view(x, stream=-1)
    assert waited == [(9, 7, 1), (1, 7, 1), (-1, 7, 1)]


@unit
def test_cuda_array_interface(waited: list[Any]) -> None:
    assert make(strides=(64, 16, 4)).__cuda_array_interface__ == {
        "version": 3,
        "shape": (2, 3, 4),
        "strides": (64, 16, 4),
        "typestr": "<f4",
        "data": (ADDRESS, False),
        "stream": 7,
    }


@unit
def test_bfloat16_has_no_cuda_array_interface() -> None:
    x = make(BFLOAT16)
    assert not hasattr(x, "__cuda_array_interface__")
    with pytest.raises(AttributeError, match="no name for bfloat16; DLPack"):
        _ = x.__cuda_array_interface__


@unit
def test_it_is_not_copied_to_the_host_unasked() -> None:
    with pytest.raises(TypeError, match=r"call its to_numpy\(\)"):
        np.asarray(make())


@unit
@pytest.mark.parametrize(
    ("stream", "waits"), [(None, [(1, 7, 1)]), (1, [(1, 7, 1)]), (9, [(9, 7, 1)]), (7, [])]
)
def test_dlpack_makes_the_consumer_wait(
    waited: list[Any], exported: list[Any], stream: int | None, waits: list[Any]
) -> None:
    x = make()
    assert x.__dlpack__(stream=stream, max_version=(1, 0)) == "capsule"
    assert waited == waits
    pointer, nbytes, shape, strides, dtype, _, version = exported[0]
    assert (pointer, nbytes, shape, strides) == (ADDRESS, 96, (2, 3, 4), (48, 16, 4))
    assert (dtype, version) == (FLOAT, (1, 0))
    assert x.__dlpack_device__() == (2, 1)


@unit
@pytest.mark.parametrize(("stream", "waits_at_the_end"), [(1, True), (2, True), (9, False)])
def test_memory_goes_back_after_the_default_stream_that_read_it(
    waited: list[Any], exported: list[Any], stream: int, waits_at_the_end: bool
) -> None:
    make().__dlpack__(stream=stream)
    assert waited == [(stream, 7, 1)]
    exported.clear()  # the consumer lets go
    gc.collect()
    assert waited[1:] == ([(7, stream, 1)] if waits_at_the_end else [])


@unit
@pytest.mark.parametrize(("stream", "waits"), [(7, [(7, 1, 1)]), (1, [])])
def test_memory_goes_back_after_who_read_the_cuda_array_interface(
    waited: list[Any], stream: int, waits: list[Any]
) -> None:
    Buffer.freed.clear()
    x = make(stream=stream)
    for _ in range(2):
        assert x.__cuda_array_interface__["stream"] == stream
    assert waited == Buffer.freed == []
    del x
    gc.collect()
    assert waited == waits
    assert Buffer.freed == [ADDRESS]


@unit
def test_memory_lives_as_long_as_the_capsule(waited: list[Any], exported: list[Any]) -> None:
    for stream in (7, 9, 1, -1):
        Buffer.freed.clear()
        make().__dlpack__(stream=stream)
        gc.collect()
        assert Buffer.freed == []
        exported.clear()
        gc.collect()
        assert Buffer.freed == [ADDRESS]


@unit
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (dict(stream=0), ValueError, "DLPack leaves 0 undefined"),
        (dict(dl_device=(1, 0)), BufferError, r"on cuda:1; to_numpy\(\)"),
        (dict(dl_device=(2, 0)), BufferError, "on cuda:1"),
        (dict(copy=True), BufferError, "without a copy only"),
    ],
    ids=repr,
)
def test_dlpack_refuses(
    exported: list[Any], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make().__dlpack__(**options)
    assert exported == []


@unit
def test_dlpack_takes_what_it_can_do(waited: list[Any], exported: list[Any]) -> None:
    assert make().__dlpack__(stream=7, dl_device=(2, 1), copy=False) == "capsule"


# -- Copies to the host ----------------------------------------------------------------------------


@pytest.fixture
def host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let host memory be the device's."""

    def fetch(address: int, pointer: int, nbytes: int, stream: int, source: ArrayView) -> None:
        assert (pointer, pointer + nbytes) == source.extent
        ctypes.memmove(address, pointer, nbytes)

    monkeypatch.setattr(module, "_fetch", fetch)


BASE = np.arange(60).reshape(3, 4, 5)


@unit
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.bool_])
@pytest.mark.parametrize(
    "pick",
    [
        lambda x: x,
        lambda x: x[::-1, :, ::2],
        lambda x: x.transpose(2, 0, 1),
        lambda x: np.broadcast_to(x[:, :1], x.shape),
        lambda x: x[0, 0, 0:0],
        lambda x: x[1, 2, 3:4].reshape(()),
    ],
    ids=["contiguous", "reversed", "transposed", "broadcast", "empty", "scalar"],
)
def test_copy_to_host_keeps_the_elements(host_memory: None, dtype: type, pick: Any) -> None:
    x = pick((BASE % 7).astype(dtype))
    seen = view(x)
    got = copy_to_host(seen, 1)
    assert got.dtype == x.dtype
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, x)
    assert not np.shares_memory(got, x)
    for out in (np.empty_like(got), np.empty((*x.shape, 2), x.dtype)[..., 0]):
        assert copy_to_host(seen, 1, out) is out
        np.testing.assert_array_equal(out, x)


@unit
def test_to_numpy_waits_for_the_array(
    host_memory: None, waited: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    host = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    x = DeviceArray(SimpleNamespace(handle=host.ctypes.data), host.shape, FLOAT, "cuda:0", 7)
    assert x.to_numpy().tolist() == host.tolist()
    assert waited == []
    assert x.to_numpy(stream=SimpleNamespace(ptr=9)).tolist() == host.tolist()
    assert waited == [(9, 7, 0)]


# -- On a device -----------------------------------------------------------------------------------


def on_device(executor: Any, host: np.ndarray, stream: Any = None) -> DeviceArray:
    """A DeviceArray with the elements of `host`."""
    from cuda.bindings import driver as cuda

    from cuevo.cuda.context import check

    stream = executor.stream if stream is None else stream
    x = executor.empty(host.shape, host.dtype, stream)
    with executor.context.current():
        check(cuda.cuMemcpyHtoDAsync(x.pointer, host.ctypes.data, host.nbytes, x.stream), "copying")
    return x


def numbers(name: str) -> np.ndarray:
    return (np.arange(4 * 6 * 16).reshape(4, 6, 16) % 7).astype(np.dtype(name))


NAMES = ["float16", "bfloat16", "float32", "bool", "int32"]


@gpu
@pytest.mark.parametrize("name", NAMES)
def test_to_numpy(executor: Any, name: str) -> None:
    host = numbers(name)
    got = on_device(executor, host).to_numpy()
    assert got.dtype == host.dtype
    np.testing.assert_array_equal(got, host)


@gpu
@pytest.mark.parametrize("name", NAMES)
def test_torch_takes_it(executor: Any, name: str) -> None:
    torch = pytest.importorskip("torch")
    x = on_device(executor, numbers(name))
    tensor = torch.from_dlpack(x)
    assert tensor.data_ptr() == x.pointer
    assert str(tensor.dtype) == f"torch.{name}"
    assert tensor.shape == x.shape
    assert tensor.is_cuda
    np.testing.assert_array_equal(
        tensor.view(torch.uint8).cpu().numpy(), numbers(name).view(np.uint8)
    )


@gpu
@pytest.mark.parametrize("name", NAMES)
def test_cupy_takes_it(executor: Any, name: str) -> None:
    cupy = pytest.importorskip("cupy")
    x = on_device(executor, numbers(name))
    try:
        array = cupy.from_dlpack(x)
    except Exception as error:
        if name != "bfloat16":
            raise
        pytest.skip(f"this CuPy ({cupy.__version__}) has no bfloat16: {error}")
    assert array.data.ptr == x.pointer
    np.testing.assert_array_equal(cupy.asnumpy(array).view(np.uint8), numbers(name).view(np.uint8))
    if name != "bfloat16":
        again = cupy.asarray(x)  # by the CUDA array interface
        assert again.data.ptr == x.pointer
        np.testing.assert_array_equal(cupy.asnumpy(again), numbers(name))


@gpu
@pytest.mark.parametrize("name", NAMES)
def test_jax_takes_it(executor: Any, name: str) -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        pytest.skip(f"this JAX runs on {jax.default_backend()}")
    x = on_device(executor, numbers(name))
    array = jax.dlpack.from_dlpack(x)
    assert array.dtype == np.dtype(name)
    np.testing.assert_array_equal(np.asarray(array).view(np.uint8), numbers(name).view(np.uint8))


@gpu
def test_a_strided_array_is_exported_with_its_strides(executor: Any) -> None:
    torch = pytest.importorskip("torch")
    bf16 = np.dtype("bfloat16")
    x = executor.empty((3, 2, 8), bf16, executor.stream, strides=(64, 16, 2))
    tensor = torch.from_dlpack(x)
    assert tensor.stride() == (32, 8, 1)
    tensor.copy_(torch.arange(48, device="cuda").reshape(3, 2, 8))
    torch.cuda.synchronize()
    assert x.to_numpy().astype(int).tolist() == np.arange(48).reshape(3, 2, 8).tolist()


@gpu
def test_an_empty_array_is_exported(executor: Any) -> None:
    torch = pytest.importorskip("torch")
    x = executor.empty((3, 0, 8), np.dtype("bfloat16"), executor.stream)
    assert x.__dlpack_device__() == (2, executor.info.ordinal)
    tensor = torch.from_dlpack(x)
    assert tensor.shape == (3, 0, 8)
    assert tensor.is_cuda
    assert x.to_numpy().shape == (3, 0, 8)


@gpu
def test_numpy_cannot_take_device_memory(executor: Any) -> None:
    x = on_device(executor, numbers("float32"))
    for _ in range(3):  # what the refusal leaves behind would show in a later round
        with pytest.raises((BufferError, RuntimeError)):
            np.from_dlpack(x)
    np.testing.assert_array_equal(x.to_numpy(), numbers("float32"))


@gpu
def test_the_memory_outlives_the_array_in_its_consumer(executor: Any) -> None:
    torch = pytest.importorskip("torch")
    host = numbers("bfloat16")
    x = on_device(executor, host)
    tensor = torch.from_dlpack(x)
    pointer = x.pointer
    del x
    gc.collect()
    others = [on_device(executor, np.ones_like(host)) for _ in range(8)]
    assert pointer not in {other.pointer for other in others}
    torch.cuda.synchronize()
    np.testing.assert_array_equal(tensor.view(torch.uint8).cpu().numpy(), host.view(np.uint8))
    del tensor, others
    gc.collect()
    executor.synchronize(executor.stream)
    again = [executor.empty(host.shape, host.dtype, executor.stream) for _ in range(64)]
    assert pointer in {other.pointer for other in again}, "the memory was not given back"


@gpu
def test_letting_go_while_an_exception_is_raised_keeps_the_exception(executor: Any) -> None:
    torch = pytest.importorskip("torch")

    def fail() -> None:
        tensor = torch.from_dlpack(on_device(executor, numbers("bfloat16")))
        assert tensor.is_cuda
        raise KeyError("the right one")

    for _ in range(20):
        with pytest.raises(KeyError, match="the right one"):
            fail()
