"""cuevo.cuda.tensor_map: the driver's limits, and the format of the CPU executor."""

from dataclasses import replace
from typing import Any

import pytest

from cuevo.cuda.tensor_map import BYTES, TensorMap
from cuevo.executors.driver import DriverExecutor

unit = pytest.mark.unit

ROWS = TensorMap("bf16", 0x7F0012345670, (200, 100, 3), (416, 41600), (64, 128, 1), 128, 256)
MAPS = (
    ROWS,
    replace(ROWS, extents=(2**32, 1, 2**31), strides=(2**40 - 16, 0)),
    replace(ROWS, element_strides=(1, 8, 2), nan_fill=True),
    TensorMap("u8", 0, (16,), (), (16,)),
    TensorMap("f64", 16, (2, 3, 4, 5, 6), (16, 48, 192, 960), (2, 1, 2, 3, 256), 32, 64),
)


@unit
@pytest.mark.parametrize("described", MAPS, ids=range(len(MAPS)))
def test_the_executor_reads_what_was_written(described: TensorMap) -> None:
    encoded = described.encode_for_executor()
    assert len(encoded) == BYTES
    assert TensorMap.decode(encoded) == described


@unit
def test_bytes_that_are_no_map_are_refused() -> None:
    encoded = ROWS.encode_for_executor()
    with pytest.raises(ValueError, match="has 128 bytes; got 127"):
        TensorMap.decode(encoded[1:])
    with pytest.raises(ValueError, match="no tensor map of the CPU executor"):
        TensorMap.decode(bytes(BYTES))
    for place in (8, 20, 90, 110, 127):
        changed = bytearray(encoded)
        changed[place] ^= 1
        with pytest.raises(ValueError, match="changed after it was made"):
            TensorMap.decode(bytes(changed))


@unit
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(dtype="f8"), "dtype is one of u8, u16"),
        (dict(extents=()), "axes are 1 to 5; got 0 extents"),
        (dict(extents=(1,) * 6), "axes are 1 to 5; got 6 extents"),
        (dict(strides=(416,)), "3 axes take 2 strides, 3 extents of a box and 3 element strides"),
        (dict(box=(64, 128)), "got 2, 2 and 3"),
        (dict(element_strides=(1,)), "got 2, 3 and 1"),
        (dict(pointer=0x1008), "pointer is a multiple of 16; got 0x1008"),
        (dict(pointer=-16), "pointer is a multiple of 16"),
        (dict(extents=(200, 0, 3)), "extents are 1 to 2^32; along axis 1 it is 0"),
        (dict(extents=(2**32 + 1, 1, 3)), "extents are 1 to 2^32; along axis 0"),
        (dict(strides=(408, 41600)), "along axis 1 it is 408"),
        (dict(strides=(416, -416)), "multiples of 16, not negative and below 2^40; along axis 2"),
        (dict(strides=(416, 2**40)), f"along axis 2 it is {2**40}"),
        (dict(box=(64, 257, 1)), "1 to 256 elements along an axis; along 1, 257"),
        (dict(box=(64, 0, 1)), "along 1, 0"),
        (dict(element_strides=(1, 9, 1)), "element strides are 1 to 8; along axis 1 it is 9"),
        (dict(swizzle=16), r"swizzle is one of (0, 32, 64, 128); got 16"),
        (dict(l2_promotion=32), r"l2_promotion is one of (0, 64, 128, 256); got 32"),
        (dict(box=(60, 128, 1)), "box is a multiple of 16 bytes along axis 0; got 120"),
        (dict(swizzle=64), "box is 128 bytes along axis 0, more than the swizzle 64"),
        (dict(dtype="u16", nan_fill=True), "NaN fills floats; the elements are u16"),
    ],
)
def test_each_limit(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        replace(ROWS, **changes)
    assert reason in str(caught.value)
    assert str(caught.value).startswith("a tensor map's ")


@unit
def test_a_copy_counts_whole_boxes() -> None:
    assert ROWS.box_bytes == 64 * 128 * 2
    assert replace(ROWS, element_strides=(1, 3, 1)).box_shape == (64, 43, 1)
    assert replace(ROWS, element_strides=(1, 3, 1)).box_bytes == 64 * 43 * 2


@pytest.mark.gpu
@pytest.mark.parametrize("described", MAPS[:3], ids=range(3))
def test_the_driver_encodes_them(executor: DriverExecutor, described: TensorMap) -> None:
    encoded = described.encode_for_driver(executor.context)
    assert len(encoded) == BYTES
    assert encoded != bytes(BYTES)
