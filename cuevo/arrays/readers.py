"""Arrays of other libraries, seen without copying.

`view` takes whatever a caller has (NumPy, torch, CuPy, JAX, anything with DLPack or the CUDA array
interface) to an `ArrayView`: address, shape, strides in bytes, dtype, device. `array_from_pointer`
does so for who has nothing but an address. The rules for streams are those of `cuevo.cuda.stream`.
"""

import operator
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from cuda.bindings import driver as cuda

from cuevo.arrays import dlpack
from cuevo.arrays.array_view import BFLOAT16, ArrayView, DType, as_numpy, contiguous_strides, packed
from cuevo.arrays.device_array import DeviceArray, copy_to_host
from cuevo.cuda import (
    LEGACY_DEFAULT,
    NO_ORDER,
    describe_status,
    is_capturing,
    require_driver,
    wait_for,
)

__all__ = [
    "BFLOAT16",
    "ArrayView",
    "DeviceArray",
    "array_from_pointer",
    "as_numpy",
    "contiguous_strides",
    "copy_to_host",
    "identify",
    "packed",
    "view",
]


def view(
    x: object, *, name: str = "array", stream: int | None = None, writable: bool = False
) -> ArrayView:
    """The memory of `x`, not copied.

    x : a NumPy, torch, CuPy or JAX array, a `DeviceArray`, an `ArrayView` (returned as it is), or
        any object with ``__dlpack__`` or ``__cuda_array_interface__``.
    name : what error messages call it.
    stream : handle of the stream that is going to use the array, as `cuevo.cuda.resolve_stream`
        gives it: it is made to wait for the array's producer. None is the legacy default stream, -1
        waits for nobody.
    writable : the array is going to be written to.

    Raises TypeError for what is no array or has a dtype other than bool, integer, float or
    bfloat16, ValueError for a device that is neither CPU nor CUDA, and for a readonly array that
    has to be writable, DeviceUnavailable for device memory where there is no driver.

    >>> q = view(np.zeros((2, 3), np.float16), name="q")
    >>> q.shape, q.strides, q.device
    ((2, 3), (6, 2), 'cpu')
    """
    found = (_READERS.get(type(x)) or _reader(x, name))(x, name, stream)
    if writable and found.readonly:
        raise ValueError(f"{name}: has to be writable; this {type(x).__name__} is readonly")
    return found


def identify(
    arrays: Sequence[object], names: Sequence[str], stream: int
) -> tuple[list[int], list[object], Sequence[Any]]:
    """A table of the addresses of `arrays`, a null pointer first; everything else that `view` would
    find of them, hashable; and what to give to `view` in their place.

    An array may be None: it has no place in the table, and is given back as it is. The alignment of
    addresses to 16 bytes is part of what is found. It costs a fraction of what views cost: who has
    met an equal description before needs none. The order of streams is as with `view`, and is not
    made a second time by views of what is given back.
    """
    addresses = [0]
    described: list[object] = []
    found: Sequence[Any] = arrays
    known = _READERS.get
    x: Any
    for x in arrays:
        if x is None:
            described.append(None)
            continue
        reader = known(type(x)) or _reader(x, names[len(described)])
        if reader is _read_torch:
            address = _torch_address(x, names[len(described)])
            addresses.append(address)
            described.append((x.shape, x.stride(), x.dtype, x.device, address & 15))
            continue
        if reader is not _read_view:
            index = len(described)
            x = reader(x, names[index], stream)
            found = [*found[:index], x, *found[index + 1 :]]
        address = x.pointer
        addresses.append(address)
        described.append((x.shape, x.strides, x.dtype, x.device, x.readonly, address & 15))
    return addresses, described, found


def array_from_pointer(
    pointer: int,
    shape: Sequence[int],
    dtype: npt.DTypeLike,
    *,
    strides: Sequence[int] | None = None,
    device: str = "cuda:0",
    owner: object = None,
    readonly: bool = False,
) -> ArrayView:
    """A view of memory of which only the address is known.

    pointer : address of element (0, 0, ...), as an integer.
    shape : extents.
    dtype : anything that `numpy.dtype` takes, ``"bfloat16"`` too.
    strides : in bytes; C order without gaps where None.
    device : ``"cuda:<ordinal>"``, or ``"cpu"``.
    owner : an object to keep alive as long as the view.

    The memory must be ready on the stream that the view is used on, and stay allocated. Raises
    ValueError or TypeError for what cannot be an array.

    >>> array_from_pointer(0x7f0000000000, (4, 8), "bfloat16").strides
    (16, 2)
    """
    address = _index("pointer", pointer)
    extents = tuple(_index("shape", extent) for extent in shape)
    if address < 0 or any(extent < 0 for extent in extents):
        raise ValueError(f"pointer and shape must not be negative; got {address} and {extents}")
    if address == 0 and 0 not in extents:
        raise ValueError(f"pointer: the null pointer cannot hold an array of shape {extents}")
    known = _known_dtype(np.dtype(dtype), "dtype")
    if strides is None:
        steps = contiguous_strides(extents, known.itemsize)
    else:
        steps = tuple(_index("strides", stride) for stride in strides)
        if len(steps) != len(extents):
            raise ValueError(f"strides: expected one for each of {len(extents)} axes; got {steps}")
    place = "cuda:0" if device == "cuda" else device
    if place != "cpu" and not (place.startswith("cuda:") and place[5:].isdecimal()):
        raise ValueError(f"device: expected 'cpu' or 'cuda:<ordinal>'; got {device!r}")
    return ArrayView(address, extents, steps, known, place, readonly, owner)


def _index(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name}: expected an integer; got {type(value).__name__}") from None


def _known_dtype(dtype: DType, name: str) -> DType:
    if dtype == BFLOAT16 or (dtype.kind in "biuf" and dtype.itemsize <= 8 and dtype.isnative):
        return dtype
    raise TypeError(
        f"{name}: expected bool, an integer, a float of at most 64 bits or bfloat16, in native "
        f"byte order; got dtype {dtype}"
    )


# -- Readers: one for each kind of array -----------------------------------------------------------

_Reader = Callable[[Any, str, int | None], ArrayView]


def _reader(x: object, name: str) -> _Reader:
    """The reader for `x`, kept for its type where the type alone decides."""
    kind = type(x)
    if isinstance(x, np.ndarray):
        return _read_numpy
    for attributes, reader in _PROTOCOLS:
        if all(hasattr(kind, attribute) for attribute in attributes):
            _READERS[kind] = reader
            return reader
    for attributes, reader in _PROTOCOLS:
        if all(hasattr(x, attribute) for attribute in attributes):
            return reader
    hint = (
        "; numpy.asarray makes an array of it" if isinstance(x, list | tuple | int | float) else ""
    )
    raise TypeError(
        f"{name}: expected a NumPy, torch, CuPy or JAX array, or an object with __dlpack__ or "
        f"__cuda_array_interface__; got {kind.__module__}.{kind.__qualname__}{hint}"
    )


def _read_view(x: ArrayView, name: str, stream: int | None) -> ArrayView:
    return x


def _read_numpy(x: np.ndarray[Any, Any], name: str, stream: int | None) -> ArrayView:
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{name}: a masked array's mask would be lost; pass its data, and a mask_bias"
        )
    return ArrayView(
        x.__array_interface__["data"][0],
        x.shape,
        x.strides,
        _known_dtype(x.dtype, name),
        "cpu",
        not x.flags.writeable,
        x,
    )


_TORCH_DTYPES: dict[object, DType] = {}
_TORCH_DEVICES: dict[object, str] = {}


def _read_torch(x: Any, name: str, stream: int | None) -> ArrayView:
    try:
        dtype = _TORCH_DTYPES[x.dtype]
        device = _TORCH_DEVICES[x.device]
    except KeyError:
        dtype = _torch_dtype(x.dtype, name)
        device = _torch_device(x.device, name)
    address = _torch_address(x, name)
    strides = _in_bytes(x.stride(), dtype.itemsize)
    return ArrayView(address, tuple(x.shape), strides, dtype, device, False, x)


def _torch_address(x: Any, name: str) -> int:
    """Where the elements of a tensor are, if they are what is there."""
    try:
        if not (x.is_neg() or x._is_zerotensor()):
            return int(x.data_ptr())
        reason = "torch has noted a sign, or zeros, beside it; its clone() has all"
    except RuntimeError as error:  # of another layout, or without memory
        reason = str(error)
    raise TypeError(f"{name}: expected a tensor with its elements in memory: {reason}")


def _torch_dtype(dtype: object, name: str) -> DType:
    words = str(dtype).rpartition(".")[2]  # torch.bfloat16
    try:
        known = np.dtype(words)
    except TypeError:
        raise TypeError(f"{name}: cuevo has no dtype {dtype}") from None
    return _TORCH_DTYPES.setdefault(dtype, _known_dtype(known, name))


def _torch_device(device: object, name: str) -> str:
    words = str(device)
    if words == "cuda":
        words = "cuda:0"
    if words != "cpu" and not words.startswith("cuda:"):
        raise ValueError(f"{name}: expected an array on 'cpu' or 'cuda'; it is on {words!r}")
    return _TORCH_DEVICES.setdefault(device, words)


def _read_dlpack(x: Any, name: str, stream: int | None) -> ArrayView:
    from cuda.core.utils import StridedMemoryView

    kind, ordinal = map(int, x.__dlpack_device__())
    on_device = kind in (dlpack.CUDA, dlpack.CUDA_MANAGED)
    if not on_device and kind not in (dlpack.CPU, dlpack.CUDA_HOST):
        raise ValueError(
            f"{name}: expected an array on a CPU or a CUDA device; it is on DLPack's device type "
            f"{kind}"
        )
    if on_device:
        require_driver(name)
    try:
        source = StridedMemoryView.from_dlpack(
            x, _consumer(stream, ordinal) if on_device else NO_ORDER
        )
    except BufferError:
        if hasattr(x, "__cuda_array_interface__"):
            return _read_cuda_array_interface(x, name, stream)
        raise
    try:
        dtype = source.dtype
    except (TypeError, NotImplementedError) as error:
        raise TypeError(f"{name}: cuevo has no such dtype: {error}") from None
    known = _known_dtype(dtype, name)
    shape = tuple(source.shape)
    steps = source.strides
    jax: Any = sys.modules.get("jax")  # whose arrays are never written to, and do not say so
    readonly = source.readonly or (jax is not None and isinstance(x, jax.Array))
    return ArrayView(
        source.ptr,
        shape,
        contiguous_strides(shape, known.itemsize)
        if steps is None
        else _in_bytes(tuple(steps), known.itemsize),
        known,
        f"cuda:{ordinal}" if on_device else "cpu",
        bool(readonly),
        source,
    )


def _read_cuda_array_interface(x: Any, name: str, stream: int | None) -> ArrayView:
    require_driver(name)
    interface = x.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise TypeError(f"{name}: the mask of its __cuda_array_interface__ would be lost")
    known = _known_dtype(np.dtype(interface["typestr"]), name)
    pointer, readonly = interface["data"]
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    ordinal = _pointer_ordinal(pointer, name) if pointer else 0
    producer = interface.get("stream")
    if producer is not None:
        if producer == 0:
            raise ValueError(
                f"{name}: its __cuda_array_interface__ has stream 0, which the protocol leaves "
                "undefined"
            )
        wait_for(LEGACY_DEFAULT if stream is None else stream, producer, ordinal)
    return ArrayView(
        pointer,
        shape,
        contiguous_strides(shape, known.itemsize) if strides is None else tuple(strides),
        known,
        f"cuda:{ordinal}",
        bool(readonly),
        x,
    )


def _pointer_ordinal(pointer: int, name: str) -> int:
    attribute = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    status, ordinal = cuda.cuPointerGetAttribute(attribute, pointer)
    if status:
        raise ValueError(
            f"{name}: {pointer:#x} is no address of the CUDA driver: {describe_status(status)}"
        )
    return int(ordinal)


def _consumer(stream: int | None, ordinal: int) -> int:
    """The stream to give to a producer that does the waiting itself."""
    if stream is None:
        return LEGACY_DEFAULT
    return NO_ORDER if stream == NO_ORDER or is_capturing(stream, ordinal) else stream


@lru_cache(maxsize=1024)
def _in_bytes(strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple([stride * itemsize for stride in strides])


def _read_device_array(x: DeviceArray, name: str, stream: int | None) -> ArrayView:
    return x.view(stream)


_READERS: dict[type, _Reader] = {
    ArrayView: _read_view,
    np.ndarray: _read_numpy,
    DeviceArray: _read_device_array,
}

# Tried in this order: a tensor's own attributes are read in a tenth of the time of DLPack, and the
# CUDA array interface cannot name bfloat16.
_PROTOCOLS: tuple[tuple[tuple[str, ...], _Reader], ...] = (
    (("data_ptr", "stride", "shape", "dtype", "device"), _read_torch),
    (("__dlpack__", "__dlpack_device__"), _read_dlpack),
    (("__cuda_array_interface__",), _read_cuda_array_interface),
)
