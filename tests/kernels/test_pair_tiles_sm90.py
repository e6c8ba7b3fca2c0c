"""ptx/pair_tiles_sm90.ptx: every element of the pair bias in its place, every bit."""

from functools import cache

import pytest
from blocks.harness import check_all, empty, parts, run
from helpers.covering import covering, some
from helpers.guarded import fail, host_views, lay_out
from helpers.pair_tiles import F32, LAYOUTS, Case, differing, expected, operand

from cuevo.architectures import architecture
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor
from cuevo.kernels import pair_tiles_sm90 as pair_tiles
from cuevo.sim import SimExecutor
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render


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
    if (differs := differing(result.array, exact)).any():
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
