"""ptx/bias_tiles_sm90.ptx: the mask of every key in its place, as a number that is added to
exponents or as numbers whose sum it is, and the pair bias beside it.
"""

from dataclasses import dataclass
from functools import cache
from math import e, log2
from typing import Any

import numpy as np
import pytest
from blocks.harness import check_all, empty, parts, run
from helpers.covering import covering, some
from helpers.guarded import DTYPES, Strided, fail, host_views, lay_out
from helpers.pair_tiles import Case as PairCase
from helpers.pair_tiles import differing
from helpers.pair_tiles import expected as pair_expected
from helpers.pair_tiles import operand as pair_operand

from cuevo.architectures import architecture
from cuevo.arrays import BFLOAT16, ArrayView
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor
from cuevo.kernels import bias_tiles_sm90 as bias_tiles
from cuevo.kernels import pair_tiles_sm90
from cuevo.sim import SimExecutor
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

F32 = np.dtype(np.float32)
LAYOUTS: dict[str, dict[str, Any]] = {
    "packed": {},
    "rows last": dict(order=(0, 4, 2, 3, 1)),
    "reversed": dict(backwards=(1, 4)),
    "stepped": dict(stepped=(4,)),
    "broadcast B": dict(broadcast=(0,)),
    "broadcast N": dict(broadcast=(1,)),
    "one element off": dict(shift=1),
}


@dataclass(frozen=True)
class Case:
    """One problem; what is printed of it makes it again."""

    mask: str
    rows: int
    keys: int
    block_rows: int = 4
    block_keys: int = 32
    threads: int = 128
    batch: int = 1
    layout: str = "packed"
    bias_scale: float = 1.0
    added: bool = True
    pair: str = "none"
    queries: int = 70

    @property
    def of_pair(self) -> PairCase:
        """The pair bias beside the mask; its layout is another one."""
        same = self.block_keys, 128, self.batch, self.rows
        layout = "heads last" if self.layout == "packed" else "packed"
        return PairCase(self.pair, self.queries, self.keys, *same, layout, self.bias_scale)


def operand(case: Case) -> Strided:
    """mask_bias, with numbers that are none among its elements, and a row without a key."""
    dtype = np.dtype(np.bool_) if case.mask == "bool" else DTYPES[case.mask]
    layout = dict(LAYOUTS[case.layout])
    layout["shift"] = layout.get("shift", 0) * dtype.itemsize
    shape = (case.batch, case.rows, 1, 1, case.keys)
    found = lay_out(shape, dtype, unit=dtype.itemsize, **layout)
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in found.array.strides)
    part = found.array[once]
    rng = np.random.default_rng(case.keys)
    if case.mask == "bool":
        part[...] = rng.random(part.shape) < 0.5
        part[:, -1] = False
        return found
    x = 100 * rng.standard_normal(part.shape)
    for value in (-np.inf, np.inf, np.nan, -0.0, -65504.0):
        x[rng.random(x.shape) < 0.05] = value
    x[:, -1] = -np.inf
    part[...] = x.astype(dtype)
    return found


def check(place: Executor, case: Case) -> None:
    sizes = case.block_rows, case.block_keys, case.threads
    config = bias_tiles.Config(case.mask, *sizes, pair=case.pair, added=case.added)
    assert not bias_tiles.violations(config, architecture("sm_90"))
    inputs = {"mask_bias": operand(case)}
    pair_shape = None
    if case.pair != "none":
        inputs["pair_bias"] = pair_operand(case.of_pair)
    sources = host_views(inputs, readonly=True)
    source = sources["mask_bias"]
    shape = config.shape(source)
    result = empty(shape, np.dtype(np.uint8))
    results = {"mask_tiles": result}
    if case.pair != "none":
        of_pair = pair_tiles_sm90.Config(case.pair, case.block_keys)
        pair_shape = of_pair.shape(sources["pair_bias"], 128)
        results["pair_tiles"] = empty(pair_shape, F32)
    everything = host_views(inputs | results, readonly=False)
    numbers = bias_tiles.parameters(config, **everything, bias_scale=case.bias_scale)
    absent = {} if pair_shape else {"pair_bias": 0, "pair_tiles": 0}
    run(
        place,
        render(bias_tiles.NAME, bias_tiles.values(config)),
        inputs,
        results,
        threads=config.threads,
        grid=config.grid(shape, pair_shape),
        **{name: value for name, value in (numbers | absent).items() if name not in everything},
    )
    if pair_shape:
        tiles = results["pair_tiles"].array
        wanted = pair_expected(case.of_pair, inputs["pair_bias"].array, pair_shape)
        if (wrong := differing(tiles, wanted)).any():
            fail(case, "pair_tiles", wrong, tiles, wanted)
    exact = masks(case, source, inputs, shape)
    alive = (exact != -np.inf).any(axis=-1)
    differs, found, exact = (added if case.added else operands)(case, exact, alive, result, shape)
    if differs.any():
        fail(case, "mask_tiles", differs, found, exact)


def masks(case: Case, source: ArrayView, inputs: dict[str, Strided], shape: tuple[int, ...]) -> Any:
    """The mask by rows of tiles and keys of these, in fp32."""
    batches, key_tiles, tiled_rows, _ = shape
    # rows with what fills the last box up, keys with what fills their last tile up
    mask = inputs["mask_bias"].array[:batches, :, 0, 0]
    mask = mask[:, :1] if source.strides[1] == 0 else mask
    # From each row of the last group on there are as many as a reader takes.
    first_rows = -(-mask.shape[1] // case.block_rows) * case.block_rows
    assert tiled_rows == (first_rows if source.strides[1] else 1) + case.block_rows - 1
    plain = np.where(mask, 0, -np.inf) if case.mask == "bool" else mask
    exact = np.full((batches, tiled_rows, key_tiles * case.block_keys), -np.inf, F32)
    exact[:, : plain.shape[1], : case.keys] = plain
    exact[:, plain.shape[1] :] = exact[:, plain.shape[1] - 1 : plain.shape[1]]
    return exact


Compared = tuple[Any, Any, Any]
"""Where it differs, what was found, what is exact."""


def added(case: Case, exact: Any, alive: Any, result: Strided, shape: Any) -> Compared:
    """What is added to exponents, behind a flag."""
    with np.errstate(invalid="ignore"):
        exact = exact * F32.type(log2(e))
    words = result.array.view(F32)
    # a lane's columns of all tiles of 8 keys, lane by lane
    lanes = words[..., 4:].reshape(*words.shape[:-1], 4, case.block_keys // 8, 2)
    by_key = lanes.swapaxes(-2, -3).reshape(*words.shape[:-1], case.block_keys)
    found = by_key.swapaxes(1, 2).reshape(exact.shape)
    differs = (found != exact) & ~(np.isnan(found) & np.isnan(exact))
    flags = words[..., :4].view(np.uint32).swapaxes(1, 2).copy()
    differs[..., 0] |= (flags[..., -1, 0] != 0) != alive
    flags[..., -1, 0] = 0
    differs[..., 0] |= flags.any(axis=(-1, -2))
    return differs, found, exact


def operands(case: Case, exact: Any, alive: Any, result: Strided, shape: Any) -> Compared:
    """Operands of a product."""
    with np.errstate(invalid="ignore"):
        exact = exact * F32.type(abs(case.bias_scale))
    exact[exact == np.inf] = np.nan  # as the softmax of such a row
    exact *= np.copysign(F32.type(1), F32.type(case.bias_scale))
    words = result.array.view(BFLOAT16).reshape(*shape[:3], case.block_keys, 8)
    by_key = words.swapaxes(1, 2).reshape(*exact.shape, 8)
    with np.errstate(invalid="ignore"):
        found = by_key[..., :3].astype(F32).sum(axis=-1, dtype=F32)
    differs = (found != exact) & ~(np.isnan(found) & np.isnan(exact))
    # half a unit in the last place of what is no bool
    finite = np.isfinite(exact) & (exact != 0)
    power = np.exp2(np.floor(np.log2(np.abs(np.where(finite, exact, 1)))) - 24)
    half = np.where(finite & (case.mask != "bool"), np.copysign(power, exact), 0)
    differs |= np.isfinite(exact) & (by_key[..., 3].astype(F32) != half)
    rest = by_key[..., 4:].view(np.uint16).copy()
    flags = rest[..., -case.block_keys, 3].copy()
    rest[..., -case.block_keys, 3] = 0
    differs |= rest.any(axis=-1)
    differs[..., 0] |= (flags != 0) != alive
    return differs, found, exact


@cache
def cases() -> tuple[Case, ...]:
    """Every three values of different fields meet."""
    found = some(
        Case,
        0.2,
        mask=("bool", "f16", "bf16", "f32"),
        rows=(1, 2, 4, 5),
        keys=(1, 32, 33, 64, 100, 600),
        block_rows=(1, 3, 4),
        block_keys=(32, 64),
        threads=(128, 384, 512),
        batch=(1, 2),
        layout=tuple(LAYOUTS),
        bias_scale=(1.0, -5.656854249492381),
        added=(True, False),
    )
    alone = tuple(covering(found, together=3))
    with_pair = some(
        Case,
        0.2,
        mask=("bool", "bf16"),
        rows=(1, 3),
        keys=(1, 33, 64, 100),
        threads=(128, 384, 512),
        block_keys=(32, 64),
        batch=(1, 2),
        layout=("packed", "broadcast B"),
        bias_scale=(1.0, -5.656854249492381),
        added=(True, False),
        pair=("f16", "bf16", "f32"),
        queries=(1, 64, 129),
    )
    return (*alone, *covering(with_pair, together=2))


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
        "mask_bias": lay_out((1, 5, 1, 1, 70), F32),
        "mask_tiles": lay_out((1, 3, 11, 144), np.dtype(np.uint8)),
    }
    given = host_views(arrays, readonly=False)
    names = set(bias_tiles.parameters(bias_tiles.Config(), **given, bias_scale=1.0))
    fields = {field.name for field in load_header().kernels[bias_tiles.NAME].fields}
    assert names == fields
    arrays |= {
        "pair_bias": lay_out((1, 1, 2, 64, 70), F32),
        "pair_tiles": lay_out((1, 2, 3, 2, 2048), F32),
    }
    given = host_views(arrays, readonly=False)
    config = bias_tiles.Config(pair="f32")
    found = bias_tiles.parameters(config, **given, bias_scale=1.0)
    assert set(found) == fields
    # Twelve tiles, and eleven rows: five, and six that are read beside them; four a threadblock.
    assert (found["tiles"], found["pair_blocks"]) == (12, 3)
    shapes = given["mask_tiles"].shape, given["pair_tiles"].shape
    assert (config.grid(*shapes), config.grid(shapes[0])) == ((6, 1, 1), (3, 1, 1))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (bias_tiles.Config("none"), "mask must be bool, f16, bf16 or f32, not 'none'"),
        (bias_tiles.Config(block_rows=0), "block_rows must be positive, not 0"),
        (bias_tiles.Config(block_keys=48), "block_keys must be 32 or 64, not 48"),
        (bias_tiles.Config(threads=96), "threads must be a multiple of 128 up to 1024, not 96"),
        (bias_tiles.Config(pair="bool"), "pair must be f16, bf16 or f32, not 'bool'"),
    ],
)
def test_each_constraint(config: bias_tiles.Config, reason: str) -> None:
    assert not bias_tiles.violations(bias_tiles.Config(), SM_90)
    (found,) = bias_tiles.violations(config, SM_90)
    assert reason in found
