"""cuevo.layouts.descriptors against the canonical layouts as CuTe states them, and against tiles as
a tensor map places them.
"""

import itertools
from typing import Any

import numpy as np
import pytest

from cuevo.layouts import MatrixDescriptor, MatrixOperand
from cuevo.layouts.descriptors import SWIZZLES

pytestmark = pytest.mark.unit


def layout(coordinate: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Offset of a coordinate in CuTe's ``(shape):(strides)``: its first mode runs fastest."""
    total = 0
    for extent, stride in zip(shape, strides, strict=True):
        total += coordinate % extent * stride
        coordinate //= extent
    assert coordinate == 0
    return total


def canonical(row: int, k: int, operand: MatrixOperand, tile: MatrixDescriptor) -> int:
    """The address of an element, one at a time, in the words of ``make_gmma_desc``: all in elements
    but for the swizzle ``Swizzle<b,4,3>`` of bytes.
    """
    each = operand.element_bytes
    t = 16 // each
    lbo, sbo = tile.leading // each, tile.stride // each
    width = {0: 1, 32: 2, 64: 4, 128: 8}[tile.swizzle]
    if operand.mn_major:
        m = operand.rows // t
        if tile.swizzle:
            # ((T,W,m),(8,k)) : ((1,T,LBO),(W*T,SBO))
            along = layout(row, (t, width, max(m, 1)), (1, t, lbo))
            offset = along + layout(k, (8, 2), (width * t, sbo))
        else:
            # ((T,1,m),(8,k)) : ((1,T,SBO),(1*T,LBO))
            offset = layout(row, (t, 1, m), (1, t, sbo)) + layout(k, (8, 2), (t, lbo))
    else:
        across = t if tile.swizzle else lbo
        # ((8,m),(T,2)) : ((W*T,SBO),(1,T or LBO))
        along = layout(row, (8, operand.rows // 8), (width * t, sbo))
        offset = along + layout(k, (t, 2), (1, across))
    address = tile.start + offset * each
    bits = {0: 0, 32: 1, 64: 2, 128: 3}[tile.swizzle]
    for bit in range(bits):
        address ^= (address >> (7 + bit) & 1) << (4 + bit)
    return int(address)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize(("element_bytes", "mn_major"), [(2, False), (2, True), (4, False)])
@pytest.mark.parametrize("rows", [8, 24, 64, 256])
def test_canonical_layouts(rows: int, element_bytes: int, mn_major: bool, swizzle: int) -> None:
    operand = MatrixOperand(rows, element_bytes, mn_major)
    tile = MatrixDescriptor(4096 + 32, 2048 + 16, 16384 - 16, swizzle)
    found = operand.addresses(tile)
    assert found.shape == (rows, 32 // element_bytes)
    for row, k in np.ndindex(found.shape):
        assert found[row, k] == canonical(row, k, operand, tile), (row, k)


def placed(matrix: Any, swizzle: int) -> Any:
    """Shared memory with the rows of a tensor map's box, which are `swizzle` bytes long: chunk c of
    row r goes to where the pattern has it.
    """
    rows, row_bytes = matrix.shape[0], matrix.shape[1] * matrix.itemsize
    assert row_bytes == swizzle
    image = np.zeros((rows, row_bytes // 16, 16), np.uint8)
    chunks = np.ascontiguousarray(matrix).view(np.uint8).reshape(image.shape)
    for r, c in np.ndindex(image.shape[:2]):
        image[r, c ^ (r * swizzle // 128 % (swizzle // 16))] = chunks[r, c]
    return image.reshape(-1).view(matrix.dtype)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["u2", "u4"])
def test_a_box_of_rows_of_k(dtype: str, swizzle: int) -> None:
    """Each step of k is 32 bytes further, within the pattern's row."""
    size = np.dtype(dtype).itemsize
    matrix = np.arange(64 * swizzle // size, dtype=dtype).reshape(64, -1)
    image = placed(matrix, swizzle)
    operand = MatrixOperand(64, size)
    for step in range(swizzle // 32):
        tile = MatrixDescriptor(start=32 * step, leading=16, stride=8 * swizzle, swizzle=swizzle)
        found = image[operand.addresses(tile) // size]
        depth = operand.depth
        np.testing.assert_array_equal(found, matrix[:, depth * step : depth * (step + 1)])


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_boxes_of_rows_of_n(swizzle: int) -> None:
    """[k, n] in boxes of as many n as a row of the pattern holds; steps of k are 16 rows."""
    boxes, width = 3, swizzle // 2
    matrix = np.arange(64 * boxes * width, dtype="u2").reshape(64, -1)
    parts = [placed(part, swizzle) for part in np.split(matrix, boxes, axis=1)]
    image = np.concatenate(parts)
    operand = MatrixOperand(boxes * width, 2, mn_major=True)
    for step in range(4):
        tile = MatrixDescriptor(16 * swizzle * step, 64 * swizzle, 8 * swizzle, swizzle)
        found = image[operand.addresses(tile) // 2]
        np.testing.assert_array_equal(found, matrix[16 * step : 16 * (step + 1)].T)


@pytest.mark.parametrize("mn_major", [False, True])
def test_without_a_swizzle_core_matrices_lie_anywhere(mn_major: bool) -> None:
    """Core matrices of 128 bytes; those of one k follow each other."""
    matrix = np.arange(32 * 16, dtype="u2").reshape(32, 16)
    cores = matrix.reshape(4, 8, 2, 8).transpose(2, 0, 1, 3)
    if mn_major:
        cores = cores.swapaxes(2, 3)
    image = np.ascontiguousarray(cores).reshape(-1)
    leading, stride = 4 * 128, 128
    operand = MatrixOperand(32, 2, mn_major)
    found = image[operand.addresses(MatrixDescriptor(0, leading, stride)) // 2]
    np.testing.assert_array_equal(found, matrix)


def test_fields_and_bits() -> None:
    numbers = itertools.product(
        (0, 1040, 2**18 - 16), (16, 2**18 - 16), (0, 4096), SWIZZLES, (0, 5)
    )
    for start, leading, stride, swizzle, base in numbers:
        tile = MatrixDescriptor(start, leading, stride, swizzle, base)
        bits = tile.bits
        assert MatrixDescriptor.of(bits) == tile
        assert bits & 0x3FFF == start // 16
        assert bits >> 16 & 0x3FFF == leading // 16
        assert bits >> 32 & 0x3FFF == stride // 16
        assert bits >> 49 & 7 == base
        assert bits >> 62 == {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    listed = np.array([tile.bits, bits | 1 << 14], np.uint64)
    assert MatrixDescriptor.of(listed).rest.tolist() == [0, 1 << 14]
    assert MatrixDescriptor.of(2**64 - 1).rest == 2**64 - 1 - (
        0x3FFF << 32 | 0x3FFF << 16 | 0x3FFF | 7 << 49 | 3 << 62
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ((8, 16, 16), "start .* multiple of 16 .* got 8"),
        ((0, 2**18, 16), "leading .* below 262144; got 262144"),
        ((0, 0, -16), "stride .* got -16"),
        ((0, 0, 0, 16), "a swizzle has 32, 64 or 128 bytes, or 0; got 16"),
        ((0, 0, 0, 0, 8), "a base offset is below 8; got 8"),
    ],
)
def test_what_a_descriptor_cannot_hold(fields: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _ = MatrixDescriptor(*fields).bits
