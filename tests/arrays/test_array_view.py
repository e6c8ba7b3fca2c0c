import ctypes
import gc

import ml_dtypes
import numpy as np
import pytest

from cuevo.arrays import view
from cuevo.arrays.array_view import ArrayView, as_numpy, contiguous_strides

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("nothing_old_to_collect")]


def reached(x: np.ndarray) -> tuple[int, int]:
    """Lowest and one past the highest address, from the address of every element."""
    # Views of one element each: indexing with integers would copy it.
    addresses = [
        x[tuple(slice(i, i + 1) for i in index)].__array_interface__["data"][0]
        for index in np.ndindex(x.shape)
    ]
    return min(addresses), max(addresses) + x.itemsize


BASE = np.arange(7 * 6 * 5, dtype=np.float32).reshape(7, 6, 5)


@pytest.mark.parametrize(
    "x",
    [
        BASE,
        BASE[1:6:2, ::3, 1:],
        BASE[::-1],
        BASE[::-2, :, ::-1],
        BASE.transpose(2, 0, 1),
        np.broadcast_to(BASE[:, :1], BASE.shape),
        np.broadcast_to(BASE[0, 0, 0], (3, 4)),
        np.lib.stride_tricks.sliding_window_view(BASE.reshape(-1), 9),
        BASE[2, 3, 4:5],
        np.array(3, np.float32),
    ],
    ids=lambda x: f"{x.shape}-{x.strides}",
)
def test_extent_is_what_the_elements_touch(x: np.ndarray) -> None:
    seen = view(x)
    assert seen.extent == reached(x) if x.ndim else (seen.pointer, seen.pointer + 4)
    assert (seen.ndim, seen.size, seen.nbytes) == (x.ndim, x.size, x.nbytes)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_extent_of_an_empty_array_is_empty(shape: tuple[int, ...]) -> None:
    seen = view(np.empty(shape, np.float16))
    assert seen.extent == (seen.pointer, seen.pointer)
    assert seen.size == seen.nbytes == 0


@pytest.mark.parametrize(
    "x",
    [
        BASE,
        BASE[1:2],
        BASE[:, :, :1],
        BASE[:1, 2:3, ::2],
        BASE[:, ::-1],
        np.array(3, np.float32),
        BASE.transpose(2, 0, 1),
        np.lib.stride_tricks.as_strided(BASE, (1, 6, 1, 5), (12, 20, -4, 4)),
        np.empty((3, 0, 2), np.float16)[::-1],
    ],
    ids=lambda x: f"{x.shape}-{x.strides}",
)
def test_what_is_contiguous_is_so_for_numpy(x: np.ndarray) -> None:
    assert view(x).is_contiguous == x.flags.c_contiguous


@pytest.mark.parametrize("shape", [(), (1,), (2, 3, 4), (5, 1, 7), (0, 3), (3, 0, 2)])
def test_contiguous_strides_are_those_of_numpy(shape: tuple[int, ...]) -> None:
    strides = contiguous_strides(shape, 2)
    if 0 not in shape:
        assert strides == np.empty(shape, np.float16).strides
    assert len(strides) == len(shape)
    assert all(stride > 0 for stride in strides)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.bool_, np.int64])
def test_as_numpy_shares_memory_and_keeps_strides(dtype: type) -> None:
    base = np.arange(60).reshape(3, 4, 5).astype(dtype)
    for x in (
        base,
        base[::-1, 1:, ::2],
        base.transpose(2, 1, 0),
        np.broadcast_to(base[:1], base.shape),
    ):
        again = as_numpy(view(x))
        assert again.dtype == x.dtype
        assert again.strides == x.strides
        np.testing.assert_array_equal(again.view(np.uint8 if dtype == np.bool_ else again.dtype), x)
        assert np.shares_memory(again, x)
        assert again.flags.writeable == x.flags.writeable
    as_numpy(view(base))[2, 1, 3] = dtype(1)
    assert base[2, 1, 3] == dtype(1)


def test_as_numpy_keeps_the_owner_alive() -> None:
    freed = []

    class Owner:
        def __init__(self) -> None:
            self.memory = (ctypes.c_float * 4)(1, 2, 3, 4)

        def __del__(self) -> None:
            freed.append(True)

    owner = Owner()
    address = ctypes.addressof(owner.memory)
    dtype = np.dtype(np.float32)
    x = as_numpy(ArrayView(address, (2, 2), (8, 4), dtype, "cpu", False, owner))
    del owner
    gc.collect()
    assert not freed
    assert x.tolist() == [[1, 2], [3, 4]]
    del x
    gc.collect()
    assert freed


def test_as_numpy_refuses_device_memory() -> None:
    far = ArrayView(1 << 40, (2,), (4,), np.dtype(np.float32), "cuda:1", False, None)
    with pytest.raises(ValueError, match=r"host memory.*cuda:1"):
        as_numpy(far)


def test_as_numpy_of_an_empty_array() -> None:
    assert as_numpy(view(np.empty((2, 0), np.float16))).shape == (2, 0)
