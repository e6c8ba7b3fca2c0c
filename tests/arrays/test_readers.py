import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.fake_tensor import FakeTensor, Name

from cuevo.arrays import (
    BFLOAT16,
    ArrayView,
    array_from_pointer,
    copy_to_host,
    readers,
    view,
)

unit = pytest.mark.unit
gpu = pytest.mark.gpu


# -- NumPy -----------------------------------------------------------------------------------------


@unit
@pytest.mark.parametrize(
    "dtype",
    [
        np.float16,
        np.float32,
        np.float64,
        np.bool_,
        np.int8,
        np.int32,
        np.uint64,
        ml_dtypes.bfloat16,
    ],
)
def test_view_of_numpy(dtype: type) -> None:
    base = np.zeros((4, 6, 8), dtype)
    for x in (base, base[1:, ::2], base[:, ::-1, 3:], base.transpose(2, 0, 1), base[1, 2]):
        seen = view(x)
        assert seen.pointer == x.ctypes.data
        assert seen.shape == x.shape
        assert seen.strides == x.strides
        assert seen.dtype == np.dtype(dtype)
        assert seen.device == "cpu"
        assert seen.owner is x
        assert not seen.readonly


@unit
def test_view_of_numpy_keeps_zero_and_negative_strides() -> None:
    x = np.broadcast_to(np.arange(8, dtype=np.float16)[::-1], (5, 8))
    seen = view(x)
    assert seen.strides == (0, -2)
    assert seen.readonly
    assert seen.extent == (seen.pointer - 14, seen.pointer + 2)


@unit
def test_view_of_a_numpy_subclass_is_that_of_its_base() -> None:
    class Named(np.ndarray):
        pass

    x = np.arange(6.0).view(Named)
    assert view(x).pointer == x.ctypes.data


@unit
def test_view_of_a_view_is_itself() -> None:
    seen = view(np.zeros(3))
    assert view(seen) is seen


@unit
def test_readonly_array_is_refused_as_an_output() -> None:
    x = np.zeros(4, np.float16)
    assert view(x, writable=True).pointer == x.ctypes.data
    x.setflags(write=False)
    with pytest.raises(ValueError, match=r"out: has to be writable; this ndarray is readonly"):
        view(x, name="out", writable=True)


@unit
@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([1.0, 2.0], "q: expected a NumPy, torch.*builtins.list; numpy.asarray makes"),
        (3.5, "q: expected a NumPy.*builtins.float"),
        (None, "q: expected a NumPy.*NoneType$"),
        ("text", "q: expected a NumPy.*builtins.str$"),
        (np.float32(1), "q: expected a NumPy.*numpy.float32"),
        (np.zeros(2, np.complex64), "q: expected bool.*got dtype complex64"),
        (np.zeros(2, np.longdouble), "q: expected bool.*got dtype"),
        (np.zeros(2, object), "q: expected bool.*got dtype object"),
        (np.zeros(2, ">f4"), "q: .*native byte order; got dtype >f4"),
        (np.zeros(2, [("a", "f4")]), "q: expected bool"),
        (np.zeros(2, "V2"), "q: expected bool.*V2"),
        (np.zeros(2, "M8[s]"), "q: expected bool"),
        (np.ma.masked_array([1.0], [True]), "q: a masked array's mask would be lost"),
    ],
    ids=repr,
)
def test_what_is_no_array(x: object, words: str) -> None:
    with pytest.raises(TypeError, match=f"(?s){words}"):
        view(x, name="q")


# -- Pointers --------------------------------------------------------------------------------------


@unit
def test_array_from_pointer() -> None:
    owner = object()
    seen = array_from_pointer(
        4096, [2, 3, 8], "bfloat16", strides=(48, 0, 2), device="cuda:1", owner=owner, readonly=True
    )
    assert (seen.pointer, seen.shape, seen.strides) == (4096, (2, 3, 8), (48, 0, 2))
    assert (seen.dtype, seen.device, seen.readonly) == (BFLOAT16, "cuda:1", True)
    assert seen.owner is owner
    assert seen.extent == (4096, 4096 + 48 + 14 + 2)


@unit
def test_array_from_pointer_takes_integers_of_numpy_and_names_the_first_gpu() -> None:
    seen = array_from_pointer(np.uint64(1 << 40), np.array([2, 3]), np.float32, device="cuda")
    assert (seen.pointer, seen.shape, seen.strides) == (1 << 40, (2, 3), (12, 4))
    assert type(seen.pointer) is type(seen.shape[0]) is int
    assert seen.device == "cuda:0"


@unit
def test_array_from_pointer_reads_the_memory_it_names() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    seen = array_from_pointer(
        x.ctypes.data + 4, (4, 2), np.float32, strides=(24, 8), device="cpu", owner=x
    )
    assert readers.as_numpy(seen).tolist() == x[:, 1:5:2].tolist()


@unit
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (dict(pointer=-1), ValueError, "must not be negative"),
        (dict(shape=(2, -3)), ValueError, r"must not be negative; got 4096 and \(2, -3\)"),
        (dict(pointer=0), ValueError, "null pointer cannot hold an array of shape"),
        (dict(pointer="x"), TypeError, "pointer: expected an integer; got str"),
        (dict(shape=(2.0,)), TypeError, "shape: expected an integer; got float"),
        (dict(strides=(4,)), ValueError, "strides: expected one for each of 2 axes"),
        (dict(strides=(4.0, 2)), TypeError, "strides: expected an integer"),
        (dict(dtype="complex64"), TypeError, "dtype: expected bool.*complex64"),
        (dict(device="tpu"), ValueError, "device: expected 'cpu' or 'cuda:<ordinal>'; got 'tpu'"),
        (dict(device="cuda:x"), ValueError, "device: expected"),
        (dict(device="cuda:"), ValueError, "device: expected"),
    ],
    ids=repr,
)
def test_array_from_pointer_refuses(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        array_from_pointer(**{"pointer": 4096, "shape": (2, 3), "dtype": "f4", **arguments})


@unit
def test_array_from_pointer_takes_a_null_pointer_for_no_elements() -> None:
    assert array_from_pointer(0, (4, 0), "f2").size == 0


# -- torch, by its attributes ----------------------------------------------------------------------


@unit
@pytest.mark.parametrize(
    ("torch_name", "dtype"),
    [
        ("torch.float16", np.float16),
        ("torch.bfloat16", ml_dtypes.bfloat16),
        ("torch.float32", np.float32),
        ("torch.float64", np.float64),
        ("torch.bool", np.bool_),
        ("torch.uint8", np.uint8),
        ("torch.int64", np.int64),
    ],
)
def test_view_of_a_tensor(torch_name: str, dtype: type) -> None:
    x = FakeTensor((2, 3, 8), (24, 0, 1), Name(torch_name), Name("cuda:1"))
    size = np.dtype(dtype).itemsize
    for _ in range(2):  # the second time from what the first one kept
        seen = view(x, name="q")
        assert seen.pointer == 0x7F0000001000
        assert seen.shape == (2, 3, 8)
        assert type(seen.shape) is tuple
        assert seen.strides == (24 * size, 0, size)
        assert seen.dtype == np.dtype(dtype)
        assert (seen.device, seen.readonly) == ("cuda:1", False)
        assert seen.owner is x


@unit
def test_view_of_tensors_on_several_devices() -> None:
    half = Name("torch.float16")
    for text in ("cpu", "cuda:0", "cuda:3", "cpu"):
        assert view(FakeTensor((2,), (1,), half, Name(text))).device == text


@unit
def test_tensor_of_an_unknown_dtype_or_device() -> None:
    cuda = Name("cuda:0")
    with pytest.raises(TypeError, match=r"q: expected bool.*complex64"):
        view(FakeTensor((2,), (1,), Name("torch.complex64"), cuda), name="q")
    with pytest.raises(TypeError, match=r"q: cuevo has no dtype torch\.quint4x2"):
        view(FakeTensor((2,), (1,), Name("torch.quint4x2"), cuda), name="q")
    with pytest.raises(ValueError, match=r"q: expected an array on 'cpu' or 'cuda'; .*'mps:0'"):
        view(FakeTensor((2,), (1,), Name("torch.float16"), Name("mps:0")), name="q")


@unit
def test_torch_is_never_imported() -> None:
    view(FakeTensor((2,), (1,), Name("torch.float16"), Name("cuda:0")))
    assert "torch" not in sys.modules or hasattr(sys.modules["torch"], "Tensor")


# -- DLPack ----------------------------------------------------------------------------------------


class Exporter:
    """An array of host memory with nothing but DLPack."""

    def __init__(self, x: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.x = x
        self.device = device
        self.streams: list[object] = []

    def __dlpack__(self, *, stream: object = None, **options: Any) -> object:
        self.streams.append(stream)
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


@unit
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.bool_, np.int32])
def test_view_of_dlpack_on_the_host(dtype: type) -> None:
    base = np.zeros((4, 6), dtype)
    for x in (base, base[1:, ::2], base.T, base[::-1]):
        seen = view(Exporter(x))
        assert (seen.pointer, seen.shape) == (x.ctypes.data, x.shape)
        assert (seen.strides, seen.dtype) == (x.strides, x.dtype)
        assert (seen.device, seen.readonly) == ("cpu", False)


@unit
def test_dlpack_says_what_is_readonly() -> None:
    x = np.zeros(3, np.float32)
    x.setflags(write=False)
    with pytest.raises(ValueError, match="out: has to be writable; this Exporter is readonly"):
        view(Exporter(x), name="out", writable=True)


@unit
def test_dlpack_keeps_the_memory() -> None:
    x = np.arange(5, dtype=np.float32)
    seen = view(Exporter(x))
    before = sys.getrefcount(x)
    del seen
    assert sys.getrefcount(x) < before


@unit
def test_host_memory_has_no_stream() -> None:
    exporter = Exporter(np.zeros(3, np.float32))
    view(exporter, stream=77)
    assert exporter.streams == [None]


@unit
def test_device_memory_is_exported_for_the_consumers_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capturing: set[int] = set()
    monkeypatch.setattr(readers, "require_driver", lambda name: None)
    monkeypatch.setattr(readers, "is_capturing", lambda stream, ordinal: stream in capturing)
    exporter = Exporter(np.zeros(3, np.float32), device=(2, 5))
    assert view(exporter, stream=77).device == "cuda:5"
    view(exporter)
    view(exporter, stream=1)
    view(exporter, stream=-1)
    capturing.add(78)
    view(exporter, stream=78)
    assert exporter.streams == [77, 1, 1, -1, -1]


@unit
def test_dlpack_on_a_foreign_device() -> None:
    with pytest.raises(ValueError, match=r"q: expected an array on a CPU or a CUDA device; .* 8"):
        view(Exporter(np.zeros(3, np.float32), device=(8, 0)), name="q")


@unit
def test_dlpack_of_a_foreign_dtype() -> None:
    with pytest.raises(TypeError, match=r"q: expected bool.*complex64"):
        view(Exporter(np.zeros(3, np.complex64)), name="q")


@unit
def test_a_refusing_dlpack_falls_back_to_the_cuda_array_interface(cai: Callable[..., Any]) -> None:
    class Both(cai):  # type: ignore[misc]
        def __dlpack__(self, **_: object) -> object:
            raise BufferError("not today")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    assert view(Both()).pointer == 0x7F0000002000

    class Refusing:
        def __dlpack__(self, **_: object) -> object:
            raise BufferError("not today")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    with pytest.raises(BufferError, match="not today"):
        view(Refusing())


# -- The CUDA array interface ----------------------------------------------------------------------


@pytest.fixture
def cai(monkeypatch: pytest.MonkeyPatch) -> type:
    """A class of arrays with the CUDA array interface, of memory that the driver puts on cuda:1."""
    waits: list[tuple[int, int, int]] = []
    monkeypatch.setattr(readers, "require_driver", lambda name: None)
    monkeypatch.setattr(readers, "_pointer_ordinal", lambda pointer, name: 1)
    monkeypatch.setattr(readers, "wait_for", lambda *streams: waits.append(streams))

    class Array:
        waited = waits

        def __init__(self, **changes: object) -> None:
            self.__cuda_array_interface__ = {
                "version": 3,
                "shape": (2, 3, 4),
                "typestr": "<f2",
                "data": (0x7F0000002000, False),
                "strides": None,
                **changes,
            }

    return Array


@unit
def test_view_of_the_cuda_array_interface(cai: Callable[..., Any]) -> None:
    x = cai()
    seen = view(x)
    assert (seen.pointer, seen.shape, seen.strides) == (0x7F0000002000, (2, 3, 4), (24, 8, 2))
    assert (seen.dtype, seen.device, seen.readonly) == (np.float16, "cuda:1", False)
    assert seen.owner is x
    assert view(cai(strides=(24, 0, 2))).strides == (24, 0, 2)
    assert view(cai(data=(4096, True))).readonly
    assert view(cai(typestr="|b1")).dtype == np.bool_
    assert view(cai(shape=(0, 2), data=(0, False))).size == 0


@unit
def test_cuda_array_interface_orders_the_streams(cai: Callable[..., Any]) -> None:
    view(cai())
    view(cai(stream=None), stream=9)
    assert cai.waited == []  # type: ignore[attr-defined]
    view(cai(stream=7), stream=9)
    view(cai(stream=7))
    view(cai(stream=7), stream=-1)
    assert cai.waited == [(9, 7, 1), (1, 7, 1), (-1, 7, 1)]  # type: ignore[attr-defined]


@unit
@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (dict(mask="of another array"), TypeError, "q: the mask of its __cuda_array_interface__"),
        (dict(typestr="<V2"), TypeError, "q: expected bool.*V2"),
        (dict(typestr="<c8"), TypeError, "q: expected bool.*complex64"),
        (dict(stream=0), ValueError, "q: .*stream 0, which the protocol leaves undefined"),
    ],
    ids=repr,
)
def test_cuda_array_interface_refused(
    cai: Callable[..., Any], changes: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        view(cai(**changes), name="q")


# -- Device memory of other libraries --------------------------------------------------------------


def same(found: ArrayView, expected: np.ndarray) -> None:
    """Compare device memory, read by its view alone, with the library's own copy to the host."""
    assert found.shape == expected.shape
    got = copy_to_host(found, 1)
    assert got.dtype == found.dtype
    np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))


@gpu
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "bool", "int32"])
def test_torch_tensor_is_seen_in_place(name: str) -> None:
    torch = pytest.importorskip("torch")
    base = (torch.arange(4 * 6 * 16, device="cuda").reshape(4, 6, 16) % 7).to(getattr(torch, name))
    for x in (base, base[1:, ::2], base.transpose(0, 2), base[:, :1].expand(4, 6, 16), base[2, 3]):
        seen = view(x, name="q")
        assert seen.pointer == x.data_ptr()
        assert seen.device == f"cuda:{x.device.index}"
        assert seen.strides == tuple(step * x.element_size() for step in x.stride())
        host = x.contiguous().cpu().view(torch.uint8)
        torch.cuda.synchronize()
        got = copy_to_host(seen, 1)
        assert got.dtype == np.dtype(name)
        np.testing.assert_array_equal(np.atleast_1d(got).view(np.uint8), host.numpy())


@gpu
def test_torch_parameter_and_empty_tensor() -> None:
    torch = pytest.importorskip("torch")
    x = torch.nn.Parameter(torch.zeros(3, 8, device="cuda", dtype=torch.bfloat16))
    assert view(x).pointer == x.data_ptr()
    assert view(torch.empty(0, 8, device="cuda")).size == 0


@gpu
def test_torch_tensor_through_dlpack_is_the_same_memory() -> None:
    torch = pytest.importorskip("torch")

    class Only:
        def __init__(self, x: Any) -> None:
            self.x = x

        def __dlpack__(self, **options: Any) -> object:
            return self.x.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.x.__dlpack_device__()

    for dtype in (torch.bfloat16, torch.float32, torch.bool):
        x = torch.zeros(4, 6, 16, device="cuda", dtype=dtype)[:, 1::2]
        direct, through = view(x), view(Only(x))
        for field in ("pointer", "shape", "strides", "dtype", "device"):
            assert getattr(direct, field) == getattr(through, field), (dtype, field)


@gpu
@pytest.mark.parametrize("name", ["float16", "float32", "bool", "bfloat16"])
def test_cupy_array_is_seen_in_place(name: str) -> None:
    cupy = pytest.importorskip("cupy")
    dtype = np.dtype(name)
    host = (np.arange(4 * 6 * 16).reshape(4, 6, 16) % 7).astype(dtype)
    try:
        base = cupy.asarray(host)
        base.__dlpack__()
    except Exception as error:
        if name != "bfloat16":
            raise
        pytest.skip(f"this CuPy ({cupy.__version__}) has no bfloat16: {error}")
    for index in (slice(None), (slice(1, None), slice(None, None, 2)), (slice(None), 3)):
        x = base[index]
        seen = view(x, name="q")
        assert seen.pointer == x.data.ptr
        assert seen.strides == x.strides
        assert seen.device == f"cuda:{x.device.id}"
        same(seen, np.ascontiguousarray(host[index]))


@gpu
def test_cupy_array_by_the_cuda_array_interface() -> None:
    cupy = pytest.importorskip("cupy")

    class Only:
        def __init__(self, x: Any) -> None:
            self.x = x

        @property
        def __cuda_array_interface__(self) -> Any:
            return self.x.__cuda_array_interface__

    x = cupy.arange(96, dtype=cupy.float32).reshape(4, 24)[:, ::3]
    seen = view(Only(x), name="q")
    assert (seen.pointer, seen.strides, seen.device) == (x.data.ptr, x.strides, "cuda:0")
    same(seen, np.ascontiguousarray(cupy.asnumpy(x)))


@gpu
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "bool"])
def test_jax_array_is_seen_in_place(name: str) -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        pytest.skip(f"this JAX runs on {jax.default_backend()}")
    host = (np.arange(4 * 6 * 16).reshape(4, 6, 16) % 7).astype(np.dtype(name))
    x = jax.device_put(host)
    seen = view(x, name="q")
    assert seen.pointer == x.unsafe_buffer_pointer()
    assert seen.dtype == np.dtype(name)
    assert seen.device == "cuda:0"
    same(seen, host)


@gpu
def test_host_memory_is_no_cuda_address() -> None:
    class Wrong:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {"version": 3, "shape": (1,), "typestr": "<f4", "data": (64, False)}

    with pytest.raises(ValueError, match="q: 0x40 is no address of the CUDA driver: CUDA_ERROR"):
        view(Wrong(), name="q")
