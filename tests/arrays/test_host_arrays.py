import numpy as np
import pytest

from cuevo.arrays import view
from cuevo.arrays.array_view import as_numpy
from cuevo.arrays.host_arrays import without_gaps

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "x",
    [
        np.arange(96, dtype=np.float16).reshape(4, 24),
        np.arange(96, dtype=np.float16).reshape(4, 24)[::2, 3:21],
        np.arange(96, dtype=np.float16).reshape(4, 24)[::-1],
        np.broadcast_to(np.arange(24, dtype=np.float16), (1000, 24)),
    ],
    ids=["contiguous", "strided", "reversed", "broadcast"],
)
def test_an_array_with_small_gaps_is_copied_as_it_is(x: np.ndarray) -> None:
    seen = view(x)
    assert without_gaps(seen) is seen


@pytest.mark.parametrize(
    "x",
    [
        np.arange(9000, dtype=np.float16).reshape(10, 30, 30)[:, ::10, :9],
        np.arange(9000, dtype=np.float16).reshape(10, 30, 30)[::-5, ::-10],
        np.broadcast_to(np.arange(9000, dtype=np.float16)[::100], (1000, 90)),
        np.broadcast_to(np.arange(9000.0).reshape(10, 1, 900)[:, :, :8], (10, 50, 8)),
        np.arange(9000, dtype=np.int8)[::1000],
    ],
    ids=["sliced", "reversed", "broadcast rows", "broadcast axis", "vector"],
)
def test_an_array_with_large_gaps_is_packed(x: np.ndarray) -> None:
    seen = view(x)
    packed = without_gaps(seen)
    low, high = packed.extent
    distinct = np.prod([n if step else 1 for n, step in zip(x.shape, x.strides, strict=True)])
    assert high - low <= distinct * x.itemsize + 16 * distinct
    assert high - low < (seen.extent[1] - seen.extent[0]) / 2
    np.testing.assert_array_equal(as_numpy(packed), x)
    assert [step == 0 for step in packed.strides] == [step == 0 for step in x.strides]
    assert all(step % 16 == 0 for step in packed.strides[:-1])
    assert packed.strides[-1] in (0, x.itemsize)
    assert packed.readonly == seen.readonly


def test_contiguous_columns_stay_contiguous() -> None:
    x = np.arange(9000, dtype=np.float16).reshape(10, 30, 30)[:, ::10, :9].swapaxes(1, 2)
    packed = without_gaps(view(x))
    np.testing.assert_array_equal(as_numpy(packed), x)
    assert packed.strides == (96, 2, 32)
    single = np.zeros((1, 9000), np.float16)[:, ::100]
    assert without_gaps(view(single)).strides[-1] == 2
