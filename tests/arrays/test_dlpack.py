import sys
from typing import Any

import numpy as np
import pytest
from cuda.core.utils import StridedMemoryView

import cuevo
from cuevo.arrays.array_view import BFLOAT16
from cuevo.arrays.dlpack import exportable, name_bfloat16

pytestmark = pytest.mark.unit


class Renamed:
    """An array of 16-bit integers, exported as bfloat16."""

    def __init__(self, x: np.ndarray, versioned: bool) -> None:
        self.x = x
        self.versioned = versioned

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **_: Any) -> object:
        capsule = self.x.__dlpack__(max_version=max_version if self.versioned else None)
        name_bfloat16(capsule)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()


@pytest.mark.parametrize("versioned", [False, True])
def test_a_capsule_becomes_bfloat16(versioned: bool) -> None:
    x = np.array([[1.5, -2.0, 0.25], [3.0, 0.0, 7.0]]).astype(BFLOAT16)
    seen = StridedMemoryView.from_dlpack(Renamed(x.view(np.uint16), versioned), -1)
    assert seen.dtype == BFLOAT16
    assert seen.shape == (2, 3)
    assert seen.ptr == x.ctypes.data
    assert seen.strides == (3, 1)


@pytest.mark.parametrize("versioned", [False, True])
def test_a_renamed_capsule_is_released(versioned: bool) -> None:
    x = np.zeros(8, np.uint16)
    before = sys.getrefcount(x)
    renamed = Renamed(x, versioned)
    seen = StridedMemoryView.from_dlpack(renamed, -1)
    capsule = renamed.__dlpack__(max_version=(1, 0))
    assert sys.getrefcount(x) > before + 1
    del seen, capsule, renamed
    assert sys.getrefcount(x) == before


@pytest.mark.parametrize("versioned", [False, True])
def test_only_16_bits_can_be_bfloat16(versioned: bool) -> None:
    capsule = np.zeros(3, np.float32).__dlpack__(max_version=(1, 0) if versioned else None)
    with pytest.raises(
        BufferError, match="16 bits and 1 lane; the capsule's elements have 32 and 1"
    ):
        name_bfloat16(capsule)


@pytest.mark.parametrize("dtype", [BFLOAT16, np.dtype(np.float16), np.dtype(np.float32)])
def test_a_host_array_of_any_type_is_exported(dtype: np.dtype[Any]) -> None:
    x = exportable(np.arange(6).reshape(2, 3).astype(dtype))
    seen = StridedMemoryView.from_dlpack(x.T, -1)
    assert (seen.dtype, seen.shape, seen.strides, seen.ptr) == (
        dtype,
        (3, 2),
        (1, 3),
        x.ctypes.data,
    )
    assert isinstance(x, np.ndarray) and (x + x).tolist() == [[0, 2, 4], [6, 8, 10]]
    assert x.astype(np.float64).__dlpack__() is not None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_results_in_host_memory_go_to_the_frameworks(dtype: str) -> None:
    a = np.arange(6.0).reshape(2, 3).astype(dtype)
    found = cuevo.gemm(a, np.eye(3, dtype=a.dtype), device="sim")
    torch = pytest.importorskip("torch")
    tensor = torch.from_dlpack(found)
    assert tensor.dtype == getattr(torch, dtype) and tensor.tolist() == a.tolist()
    assert tensor.data_ptr() == found.ctypes.data
    jax = pytest.importorskip("jax")
    for array in (jax.dlpack.from_dlpack(found), jax.numpy.asarray(found)):
        assert array.dtype == dtype and array.tolist() == a.tolist()


def test_only_a_capsule_can_be_renamed() -> None:
    with pytest.raises(BufferError, match="not an unused DLPack capsule"):
        name_bfloat16(object())
    x = np.zeros(3, np.uint16)
    capsule = x.__dlpack__()

    class Once:
        def __dlpack__(self, **_: Any) -> object:
            return capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    np.from_dlpack(Once())
    with pytest.raises(BufferError, match="not an unused DLPack capsule"):
        name_bfloat16(capsule)
