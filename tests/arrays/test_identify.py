"""cuevo.arrays.identify: what calls look their plans up by."""

from typing import Any

import numpy as np
import pytest

from cuevo.arrays import ArrayView, array_from_pointer, identify, view
from cuevo.cuda import LEGACY_DEFAULT


@pytest.mark.unit
def test_descriptions_of_arrays_are_equal_where_their_views_are() -> None:
    x = aligned((3, 4), np.float16)
    names = ("x", "y")
    table, described, found = identify((x, None), names, LEGACY_DEFAULT)
    assert table == [0, x.ctypes.data]
    assert described[1] is None and found[1] is None
    assert isinstance(found[0], ArrayView) and view(found[0]) is found[0]
    for like, same in (
        (aligned((3, 4), np.float16), True),
        (view(aligned((3, 4), np.float16)), True),
        (aligned((3, 4), np.int16), False),
        (aligned((4, 3), np.float16), False),
        (aligned((4, 3), np.float16).T, False),
        (aligned((4, 4), np.float16)[:, 1:].T, False),
        (array_from_pointer(4096, (3, 4), np.float16), False),
        (None, False),
    ):
        assert (identify((like, None), names, LEGACY_DEFAULT)[1] == described) == same
    readonly = aligned((3, 4), np.float16)
    readonly.flags.writeable = False
    assert identify((readonly, None), names, LEGACY_DEFAULT)[1] != described
    with pytest.raises(TypeError, match=r"^y: expected a NumPy, torch, .*got builtins\.int"):
        identify((None, 3), names, LEGACY_DEFAULT)


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros that begin at a multiple of 16 bytes."""
    memory = np.zeros(np.prod(shape) * np.dtype(dtype).itemsize + 16, np.uint8)
    start = -memory.ctypes.data % 16
    return memory[start : start + memory.size - 16].view(dtype).reshape(shape)
