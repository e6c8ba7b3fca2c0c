"""examples/plain_softmax: right to the edge on either executor, without faults or lost time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.guarded import lay_out

import cuevo
from cuevo.arrays import copy_to_host, view
from cuevo.cuda import LEGACY_DEFAULT
from cuevo.sim import SimExecutor

FILE = Path(__file__).parents[2] / "examples" / "plain_softmax" / "softmax.ptx"
SHAPES = [(1, 1), (4, 32), (5, 33), (3, 31), (9, 100), (2, 257)]
FILLS = {"normal": 1.0, "near zero": 1e-30, "large": 1e4, "largest": 5e37}
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)
fills = pytest.mark.parametrize("fill", FILLS)


def inputs(shape: tuple[int, int], fill: str) -> tuple[Any, Any, np.ndarray]:
    """x, room for y, both between guard bands, and y in float64."""
    f32 = np.dtype(np.float32)
    x, y = lay_out(shape, f32), lay_out(shape, f32)
    values = np.random.default_rng(0).standard_normal(shape) * FILLS[fill]
    x.array[...] = values
    x.array[0, shape[1] // 2 :: 2][1:] = -np.inf
    exact = x.array.astype(np.float64)
    exact = np.exp(exact - exact.max(axis=1, keepdims=True))
    return x, y, exact / exact.sum(axis=1, keepdims=True)


@pytest.mark.kernel
@shapes
@fills
def test_on_the_cpu_executor(shape: tuple[int, int], fill: str) -> None:
    x, y, exact = inputs(shape, fill)
    cuevo.load(FILE)[-(-shape[0] // 4), 128](x.array, y.array, *shape)
    np.testing.assert_allclose(y.array, exact, rtol=2e-6 if fill != "large" else 1e-3, atol=1e-30)
    assert (y.outside() == 0xFF).all()


@pytest.mark.kernel
def test_it_reads_and_writes_no_more_sectors_than_it_has_to() -> None:
    place = SimExecutor(profile=True)
    softmax = cuevo.load(FILE, device=place)
    x, y, _ = inputs((4, 64), "normal")
    softmax[1, 128](x.array, y.array, 4, 64)
    profile = place.load(softmax.rendered).profile
    assert profile is not None and profile.sectors
    assert all(use.sectors == use.ideal for use in profile.sectors)


@pytest.mark.gpu
@shapes
@fills
def test_on_a_device(executor: Any, shape: tuple[int, int], fill: str) -> None:
    x, y, exact = inputs(shape, fill)
    memory = view(y.memory)
    there = [executor.copy_to_device(view(each)) for each in (x.array, y.memory)]
    out = cuevo.array_from_pointer(there[1].pointer + y.offset, shape, np.float32, owner=there)
    cuevo.load(FILE)[-(-shape[0] // 4), 128](there[0], out, *shape)
    found = copy_to_host(there[1], LEGACY_DEFAULT)
    assert found.shape == memory.shape
    y.memory[...] = found
    np.testing.assert_allclose(y.array, exact, rtol=2e-6 if fill != "large" else 1e-3, atol=1e-30)
    assert (y.outside() == 0xFF).all()
