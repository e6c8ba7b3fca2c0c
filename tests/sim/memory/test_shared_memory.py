"""cuevo.sim.memory.shared_memory: the state of every byte."""

from typing import Any

import numpy as np
import pytest

from cuevo.sim.faults import Fault
from cuevo.sim.memory.shared_memory import WINDOW, SharedMemory

pytestmark = pytest.mark.unit


@pytest.fixture
def shared() -> SharedMemory:
    """Two blocks of two warps, 100 bytes each."""
    return SharedMemory(2, 100, np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]))


def at(*offsets: int) -> Any:
    """Addresses: an offset for each of the four warps, the same in its 32 lanes."""
    return np.full((32, 4), WINDOW, np.uint32) + np.array(offsets, np.uint32)


def lane(*chosen: tuple[int, int]) -> Any:
    mask = np.zeros((32, 4), bool)
    for each in chosen:
        mask[each] = True
    return mask


FIRST_OF_EACH_BLOCK = lane((0, 0), (0, 2))


def write(shared: SharedMemory, addresses: Any, size: int, value: int, mask: Any) -> None:
    values = np.full((32, 4, size), value, np.uint8).view(f"V{size}")[..., 0]
    dtype = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}[size]
    shared.store(shared.indices(addresses, size, mask), size, values.view(dtype), mask)


def read(shared: SharedMemory, addresses: Any, size: int, mask: Any) -> Any:
    return shared.load(shared.indices(addresses, size, mask), size, mask)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_blocks_have_their_own_memory(shared: SharedMemory, size: int) -> None:
    write(shared, at(16, 16, 16, 16), size, 1, lane((0, 0)))
    write(shared, at(16, 16, 16, 16), size, 2, lane((0, 2)))
    found = read(shared, at(16, 16, 16, 16), size, FIRST_OF_EACH_BLOCK)
    assert found[0, 0].tobytes() == bytes([1] * size)
    assert found[0, 2].tobytes() == bytes([2] * size)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_each_byte_must_have_been_written(shared: SharedMemory, size: int) -> None:
    mask = lane((5, 1))
    for offset in range(16, 16 + size - 1):
        write(shared, at(0, offset, 0, 0), 1, 7, mask)
        with pytest.raises(Fault, match="at shared offset 16, where nothing was written") as caught:
            read(shared, at(0, 16, 0, 0), size, mask)
        np.testing.assert_array_equal(caught.value.lanes, mask)
    write(shared, at(0, 16 + size - 1, 0, 0), 1, 7, mask)
    assert read(shared, at(0, 16, 0, 0), size, mask)[5, 1].tobytes() == bytes([7] * size)


def test_reset_forgets(shared: SharedMemory) -> None:
    write(shared, at(0, 0, 0, 0), 4, 1, FIRST_OF_EACH_BLOCK)
    shared.reset()
    with pytest.raises(Fault, match="nothing was written"):
        read(shared, at(0, 0, 0, 0), 4, FIRST_OF_EACH_BLOCK)


@pytest.mark.parametrize(
    ("offset", "size", "message"),
    [
        (100, 1, "of 1 bytes at offset 100 is outside of the block's 100 bytes"),
        (96, 8, "of 8 bytes at offset 96 is outside"),
        (-4, 4, "at offset -4 is outside"),
        (2, 4, "0x402 is no multiple of 4"),
    ],
)
def test_bounds_and_alignment(shared: SharedMemory, offset: int, size: int, message: str) -> None:
    addresses = at(0, 0, 0, 0)
    addresses[3, 2] = WINDOW + offset
    with pytest.raises(Fault, match=message) as caught:
        shared.indices(addresses, size, None)
    np.testing.assert_array_equal(caught.value.lanes, lane((3, 2)))
    # Nobody asks about lanes outside of the mask.
    shared.indices(addresses, size, lane((0, 0)))


def test_copies_in_flight(shared: SharedMemory) -> None:
    mask = lane((0, 0))
    indices = shared.indices(at(32, 0, 0, 0), 16, mask)
    shared.begin_copy(indices, 16, np.full((32, 4), 3 + 0j), mask)
    message = "at shared offset 40, to which an asynchronous copy is still in flight"
    for access in (read, lambda *args: write(*args[:3], 1, args[3])):
        with pytest.raises(Fault, match=message):
            access(shared, at(40, 0, 0, 0), 4, mask)
    shared.end_copy(indices[mask], 16, np.array([0]))
    assert read(shared, at(32, 0, 0, 0), 16, mask)[0, 0] == 3
