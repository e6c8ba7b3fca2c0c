"""ptx/pair_tiles_sm90.ptx: every element of the pair bias in its place, every bit."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from blocks.harness import check_all, empty, parts, run
from helpers.covering import covering, some
from helpers.guarded import DTYPES, Strided, fail, host_views, lay_out

from cuevo.architectures import architecture
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor
from cuevo.kernels import pair_tiles_sm90 as pair_tiles
from cuevo.sim import SimExecutor
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

F32 = np.dtype(np.float32)
LAYOUTS: dict[str, dict[str, Any]] = {
    "packed": {},
    "heads last": dict(order=(0, 1, 3, 4, 2)),
    "keys first": dict(order=(0, 1, 2, 4, 3)),
    "reversed": dict(backwards=(2, 3, 4)),
    "stepped": dict(stepped=(4,)),
    "broadcast B": dict(broadcast=(0,)),
    "one element off": dict(shift=1),
}


@dataclass(frozen=True)
class Case:
    """One problem; what is printed of it makes it again."""

    pair: str
    queries: int
    keys: int
    block_keys: int = 32
    block_queries: int = 128
    """Of the kernel that reads the tiles: enough of them for whole blocks are made."""
    batch: int = 1
    heads: int = 1
    layout: str = "packed"
    bias_scale: float = 1.0


def operand(case: Case) -> Strided:
    """pair_bias, with numbers that are none among its elements."""
    dtype = DTYPES[case.pair]
    layout = dict(LAYOUTS[case.layout])
    layout["shift"] = layout.get("shift", 0) * dtype.itemsize
    shape = (case.batch, 1, case.heads, case.queries, case.keys)
    found = lay_out(shape, dtype, unit=dtype.itemsize, **layout)
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in found.array.strides)
    part = found.array[once]
    rng = np.random.default_rng(case.keys)
    x = rng.standard_normal(part.shape)
    for value in (-np.inf, np.inf, np.nan, -0.0):
        x[rng.random(x.shape) < 0.02] = value
    part[...] = x.astype(dtype)
    return found


def expected(case: Case, pair: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The tiles: queries as tiles, warps, halves, rows; keys as tiles, parts, lanes, columns."""
    batches, heads, key_tiles, query_tiles, _ = shape
    scale = F32.type(case.bias_scale)
    extents = (batches, heads, 64 * query_tiles, case.block_keys * key_tiles)
    whole = np.full(extents, 0 * scale, F32)
    with np.errstate(invalid="ignore"):
        whole[..., : case.queries, : case.keys] = pair[:batches, 0].astype(F32) * scale
    whole[..., case.keys :] = -np.inf * scale
    within = (query_tiles, 4, 2, 8), (key_tiles, case.block_keys // 8, 4, 2)
    apart = whole.reshape(batches, heads, *within[0], *within[1])
    return apart.transpose(0, 1, 6, 2, 7, 3, 5, 8, 4, 9).reshape(shape)


def check(place: Executor, case: Case) -> None:
    config = pair_tiles.Config(case.pair, case.block_keys)
    assert not pair_tiles.violations(config, architecture("sm_90"))
    inputs = {"pair_bias": operand(case)}
    source = host_views(inputs, readonly=True)["pair_bias"]
    shape = config.shape(source, case.block_queries)
    result = empty(shape, F32)
    everything = host_views(inputs | {"pair_tiles": result}, readonly=False)
    numbers = pair_tiles.parameters(**everything, bias_scale=case.bias_scale)
    run(
        place,
        render(pair_tiles.NAME, pair_tiles.values(config)),
        inputs,
        dict(pair_tiles=result),
        threads=config.threads,
        grid=config.grid(shape),
        **{name: value for name, value in numbers.items() if name not in everything},
    )
    exact = expected(case, inputs["pair_bias"].array, shape)
    differs = result.array.view(np.uint32) != exact.view(np.uint32)
    differs &= ~(np.isnan(result.array) & np.isnan(exact))
    if differs.any():
        fail(case, "pair_tiles", differs, result.array, exact)


@cache
def cases() -> tuple[Case, ...]:
    """Every three values of different fields meet."""
    found = some(
        Case,
        0.2,
        pair=("f16", "bf16", "f32"),
        queries=(1, 64, 70, 129),
        keys=(1, 32, 33, 64, 66, 100),
        block_keys=(32, 64),
        block_queries=(64, 128),
        batch=(1, 2),
        heads=(1, 3),
        layout=tuple(LAYOUTS),
        bias_scale=(1.0, -5.656854249492381),
    )
    return tuple(covering(found, together=3))


@pytest.mark.kernel
@parts(2)
def test_tiles_on_the_cpu_executor(part: slice) -> None:
    check_all(check, cases()[part], SimExecutor("sm_90"))


@pytest.mark.gpu
def test_tiles_on_a_device(executor: DriverExecutor) -> None:
    check_all(check, cases(), executor)


# -- The host half ---------------------------------------------------------------------------------

SM_90 = architecture("sm_90")


@pytest.mark.unit
def test_the_parameter_block_is_that_of_the_header() -> None:
    arrays = {
        "pair_bias": lay_out((1, 1, 2, 70, 33), F32),
        "pair_tiles": lay_out((1, 2, 2, 2, 2048), F32),
    }
    names = set(pair_tiles.parameters(**host_views(arrays, readonly=False), bias_scale=1.0))
    assert names == {field.name for field in load_header().kernels[pair_tiles.NAME].fields}


@pytest.mark.unit
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (pair_tiles.Config("none"), "pair must be f16, bf16 or f32, not 'none'"),
        (pair_tiles.Config(block_keys=20), "block_keys must be a multiple of 8 from 8 to 128"),
    ],
)
def test_each_constraint(config: pair_tiles.Config, reason: str) -> None:
    assert not pair_tiles.violations(pair_tiles.Config(), SM_90)
    (found,) = pair_tiles.violations(config, SM_90)
    assert reason in found
