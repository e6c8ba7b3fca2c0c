"""cuevo.sim.memory.global_memory: every access against the buffers of the launch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from cuevo.arrays import view
from cuevo.sim.faults import Fault
from cuevo.sim.memory.global_memory import GlobalMemory, unit_dtype

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class Extent:
    begin: int
    end: int
    readonly: bool = False

    @property
    def pointer(self) -> int:
        return self.begin

    @property
    def extent(self) -> tuple[int, int]:
        return self.begin, self.end


def of(array: Any, readonly: bool = False) -> Extent:
    return Extent(array.ctypes.data, array.ctypes.data + array.nbytes, readonly)


def addresses(array: Any, offsets: Any) -> Any:
    return np.uint64(array.ctypes.data) + np.asarray(offsets, np.uint64)


@pytest.fixture
def data() -> Any:
    """256 bytes that begin on a multiple of 16."""
    raw = np.zeros(272, np.uint8)
    start = -raw.ctypes.data % 16
    data = raw[start : start + 256]
    data[:] = np.arange(256)
    return data


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_loads_and_stores(data: Any, size: int) -> None:
    memory = GlobalMemory([of(data)])
    offsets = np.array([[16, 0], [240, 64]])
    units = memory.load(addresses(data, offsets), size, None)
    found = units.view(np.uint8).reshape(2, 2, size)
    np.testing.assert_array_equal(found, offsets[..., None] + np.arange(size))
    memory.store(
        addresses(data, offsets + 16 - size), size, units, np.array([[1, 0], [0, 0]], bool)
    )
    changed = np.arange(256)
    changed[32 - size : 32] = 16 + np.arange(size)
    np.testing.assert_array_equal(data, changed)


def test_a_view_may_begin_anywhere(data: Any) -> None:
    view = data[6:100]
    memory = GlobalMemory([of(view)])
    assert memory.load(addresses(data, [8]), 8, None).view(np.uint8).tolist() == list(range(8, 16))
    with pytest.raises(Fault, match="2 bytes before the beginning"):
        memory.load(addresses(data, [4]), 4, None)
    with pytest.raises(Fault, match="12 bytes past the end"):
        memory.load(addresses(data, [96]), 16, None)


def test_several_buffers_in_one_access(data: Any) -> None:
    first, second = data[:64], data[128:192]
    memory = GlobalMemory([of(first), of(second)])
    offsets = np.array([[0, 128, 4, 188]])
    units = memory.load(addresses(data, offsets), 4, None)
    expected = data.view(np.uint32)[offsets // 4]
    np.testing.assert_array_equal(units, expected)
    memory.store(addresses(data, offsets), 4, units[:, ::-1], np.array([[1, 1, 1, 0]], bool))
    np.testing.assert_array_equal(data.view(np.uint32)[offsets[0, :3] // 4], expected[0, :0:-1])
    assert data.view(np.uint32)[47] == expected[0, 3]


def test_an_access_may_not_straddle_two_buffers(data: Any) -> None:
    memory = GlobalMemory([of(data[:72]), of(data[72:128])])
    memory.load(addresses(data, [64]), 8, None)
    with pytest.raises(Fault, match="8 bytes past the end"):
        memory.load(addresses(data, [64]), 16, None)


def test_overlapping_views_are_one_buffer(data: Any) -> None:
    memory = GlobalMemory([of(data[:72]), of(data[64:128])])
    assert memory.load(addresses(data, [64]), 16, None).size == 1


def test_misaligned(data: Any) -> None:
    with pytest.raises(Fault, match="is no multiple of 4") as caught:
        GlobalMemory([of(data)]).load(addresses(data, [[0, 4], [6, 8]]), 4, None)
    assert caught.value.lanes is not None
    np.testing.assert_array_equal(caught.value.lanes, [[False, False], [True, False]])


def test_lanes_outside_of_the_mask_may_have_any_address(data: Any) -> None:
    memory = GlobalMemory([of(data)])
    wild = addresses(data, [[0, 1], [4, 3]])
    wild[0, 1] = 7
    mask = np.array([[True, False], [True, False]])
    units = memory.load(wild, 4, mask)
    np.testing.assert_array_equal(units[mask], data.view(np.uint32)[:2])
    memory.store(wild, 4, units + np.uint32(1), mask)
    assert data[0] == 1 and data[4] == 5


@pytest.mark.parametrize("begin", [0, 16, 48])
def test_addresses_as_a_device_would_place_them(data: Any, begin: int) -> None:
    memory = GlobalMemory([of(data[begin : begin + 64]), of(data[begin + 68 : begin + 132])])
    offsets = np.array([begin, begin + 40, begin + 68, begin + 72, begin + 200])
    first, within, second, other, outside = memory.placed(addresses(data, offsets)).tolist()
    assert (first % 256, within - first) == (0, 40)
    # A slice 4 bytes behind a multiple of 16 is that behind one of 256.
    assert (second % 256, other - second) == (4, 4)
    assert abs(second - first) > 2**32
    assert outside == data.ctypes.data + begin + 200


def test_readonly(data: Any) -> None:
    memory = GlobalMemory([of(data[:64], readonly=True), of(data[64:])])
    memory.load(addresses(data, [0]), 4, None)
    memory.store(addresses(data, [64]), 4, np.zeros(1, np.uint32), None)
    with pytest.raises(
        Fault, match=r"write of 4 bytes at 0x\w+: the buffer 0x\w+\.\.0x\w+ is read-only"
    ):
        memory.store(addresses(data, [60]), 4, np.zeros(1, np.uint32), None)
    assert data[60] == 60


def test_no_buffers_and_empty_ones(data: Any) -> None:
    for buffers in ([], [of(data[:0])]):
        with pytest.raises(Fault, match="the launch was given no buffers"):
            GlobalMemory(buffers).load(addresses(data, [0]), 4, None)


def test_the_nearest_buffer_is_named(data: Any) -> None:
    memory = GlobalMemory([of(data[:16]), of(data[128:144])])
    begin = data.ctypes.data
    with pytest.raises(Fault, match=f"16 bytes before the beginning of {begin + 128:#x}"):
        memory.load(addresses(data, [112]), 4, None)
    with pytest.raises(Fault, match=f"8 bytes past the end of {begin:#x}"):
        memory.load(addresses(data, [20]), 4, None)


def test_units_move_bits_unchanged() -> None:
    # Patterns that are NaN as the floating-point numbers that carry them.
    data = np.full(64, 0xFF, np.uint8)
    raw = data[-data.ctypes.data % 16 :][:32]
    raw[:16] = [0x7F, 0xF0, 1, 2, 3, 4, 5, 0xFF, 0xF8, 0x7F, 0, 0, 0, 0, 0xF0, 0x7F]
    memory = GlobalMemory([of(raw)])
    unit = memory.load(addresses(raw, [0]), 16, None)
    memory.store(addresses(raw, [16]), 16, unit, None)
    np.testing.assert_array_equal(raw[16:], raw[:16])
    assert unit.dtype == unit_dtype(16)


@pytest.mark.parametrize(
    ("index", "offset", "said"),
    [
        # Of a (3, 2, 5) array of f32 with its axes in another order, rows padded to 8.
        (np.s_[:], 3 * 64, r"past the end of x \(.*\), at x\[0, 0, 3\] of shape \(2, 5, 3\)"),
        (np.s_[:], 3 * 64 + 32 + 16, r"at x\[1, 4, 3\]"),
        (np.s_[:], -60, r"before the beginning of x \(.*\), at x\[0, 1, -1\]"),
        # In the padding of the rows of that one, and far beyond the array.
        (np.s_[:], 3 * 64 + 20, r"of x \(0x\w+\.\.0x\w+\)$"),
        (np.s_[:], 20000, r"of x \(0x\w+\.\.0x\w+\)$"),
        # Broadcast, reversed, one element.
        (np.s_[:, :1, :], 3 * 64, r"at x\[0, 0, 3\] of shape \(2, 9, 3\)"),
        (np.s_[:, ::-1, :], 3 * 64, r"of x \(0x\w+\.\.0x\w+\)$"),
        (np.s_[:1, :1, :1], 4, r"of x \(0x\w+\.\.0x\w+\)$"),
    ],
)
def test_the_element_is_named(index: Any, offset: int, said: str) -> None:
    room = np.zeros((3, 2, 8), np.float32)
    whole = room[:, :, :5].transpose(1, 2, 0)
    array = whole[index]
    if index == np.s_[:, :1, :]:
        array = np.broadcast_to(array, (2, 9, 3))
    memory = GlobalMemory([view(array)], lambda begin, end: "x")
    at = np.full((32, 1), room.ctypes.data + offset, np.uint64)
    with pytest.raises(Fault, match=said):
        memory.load(at, 4, None)
