"""ptx/attention_delta_sm70.ptx: statistics of every query, compared with float64."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from blocks.harness import array, check_all, empty, parts, run
from helpers.covering import covering, some
from helpers.guarded import DTYPES, Strided, assert_same_bytes, fail, host_views, lay_out
from helpers.query_statistics import unblocked

from cuevo.architectures import architecture
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor
from cuevo.kernels import attention_delta_sm70 as delta
from cuevo.kernels.backward import operands_shape, padded, stats_shape
from cuevo.sim import SimExecutor
from cuevo.toolchain.header import load_header
from cuevo.toolchain.template import render

F32 = np.dtype(np.float32)
HEAD_DIMS = tuple(range(8, 129, 8))
LAYOUTS: dict[str, dict[str, Any]] = {
    "packed": {},
    "heads first": dict(order=(0, 1, 3, 2, 4)),
    "padded": dict(gaps=True, shift=16),
    "reversed": dict(backwards=(0, 1, 2, 3), shift=32),
    "stepped": dict(stepped=(1, 2, 3)),
    "broadcast N": dict(broadcast=(1,)),
    "broadcast L": dict(broadcast=(2,)),
    "broadcast all": dict(broadcast=(0, 1, 2, 3)),
}


@dataclass(frozen=True)
class Case:
    """One problem; what is printed of it makes it again."""

    dtype: str
    head_dim: int
    queries: int
    step: int = 128
    """Queries of a tile: the statistics are padded to whole ones."""
    block_heads: int = 1
    head_groups: int = 1
    batch: int = 1
    rows: int = 1
    out: str = "packed"
    dout: str = "packed"
    values: str = "normal"
    wanted: str = "stats"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of out and dout."""
        heads = self.block_heads * self.head_groups
        return (self.batch, self.rows, self.queries, heads, self.head_dim)


# -- Values ----------------------------------------------------------------------------------------

Fill = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def integers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Whose products and sums are exact in fp32, in any order."""
    return rng.integers(-15, 16, shape).astype(np.float64)


def large(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.uniform(3e4, 6e4, shape) * rng.choice([-1, 1], shape)


def small(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Subnormal in half precision."""
    return rng.standard_normal(shape) * 2.0**-16


def cancelling(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    x = rng.standard_normal(shape) * 100.0
    x[..., 1::2] = -x[..., ::2] * (1 + 2.0**-6)
    return x


def not_finite(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A few rows have an infinity, NaN or zero."""
    x = rng.standard_normal(shape)
    for value in (np.inf, -np.inf, np.nan, 0.0):
        x[rng.random(shape) < 0.2 / shape[-1]] = value
    return x


FILLS: dict[str, Fill] = {
    each.__name__: each for each in (normal, integers, large, small, cancelling, not_finite)
}


def operand(case: Case, layout: str, rng: np.random.Generator) -> Strided:
    dtype = DTYPES[case.dtype]
    wide = {"row_bytes": case.head_dim * 2 + 48} if layout == "padded" else {}
    found = lay_out(case.shape, dtype, **LAYOUTS[layout], **wide)
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in found.array.strides)
    part = found.array[once]
    with np.errstate(over="ignore"):
        part[...] = FILLS[case.values](rng, part.shape).astype(dtype)
    return found


def log_sums(case: Case, rng: np.random.Generator) -> Strided:
    """Some rows are dead; with `not_finite`, some have +inf or NaN."""
    batch, rows, queries, heads, _ = case.shape
    lse = rng.standard_normal((batch, rows, heads, queries)) * 50.0
    for dead in (-np.inf, -1e9, -(2.0**22), -4194304.5, -3.4e38):
        lse[rng.random(lse.shape) < 0.05] = dead
    if case.values == "not_finite":
        lse[rng.random(lse.shape) < 0.1] = np.inf
        lse[rng.random(lse.shape) < 0.1] = np.nan
    return array(lse.astype(F32), shift=4)


# -- Checking --------------------------------------------------------------------------------------


SCALE = -0.3
"""Of the operands."""


def made_of(place: Executor, case: Case) -> tuple[dict[str, Strided], dict[str, Strided]]:
    """The inputs, and what the kernel makes of them."""
    config = delta.Config(case.head_dim, case.dtype, case.block_heads, case.wanted)
    assert not delta.violations(config, architecture("sm_70"))
    rng = np.random.default_rng(case.head_dim + case.queries)
    inputs = {name: operand(case, getattr(case, name), rng) for name in ("out", "dout")}
    inputs["lse"] = log_sums(case, rng)
    batch, rows, queries, heads, _ = case.shape
    positions = padded(queries, case.step)
    results = {
        "stats": empty((batch, rows, heads, *stats_shape(positions)), F32),
        "operands": empty((batch, rows, heads, *operands_shape(positions)), DTYPES["bf16"]),
    }
    results = {name: x for name, x in results.items() if case.wanted in (name, "both")}
    everything = host_views(inputs | results, readonly=False)
    numbers = delta.parameters(config, **everything, scale=SCALE)
    run(
        place,
        render(delta.NAME, delta.values(config)),
        inputs,
        results,
        threads=config.threads,
        grid=config.grid(batch, rows, heads, positions)[0],
        **{name: value for name, value in numbers.items() if name not in everything},
    )
    return inputs, results


def check(place: Executor, case: Case) -> None:
    inputs, results = made_of(place, case)
    out, dout = (inputs[name].array.astype(np.float64) for name in ("out", "dout"))
    lse = inputs["lse"].array.astype(np.float64)
    with np.errstate(invalid="ignore"):
        products = np.moveaxis(dout * out, 2, 3)
        dead = lse < -(2.0**22)
        exponent = np.where(dead, -np.inf, lse * -np.log2(np.e))
        scaled = np.where(dead, np.inf, lse) * (-1.0 / SCALE)
        negative_delta = -products.sum(axis=-1)
    # Seven roundings in a lane's chain, one in each of four steps of the tree.
    slack = 0.0 if case.values == "integers" else 2.0**-24 * 12
    deltas = (negative_delta, slack * np.abs(products).sum(axis=-1), 0.0)
    if "stats" in results:
        low, minus_delta = unblocked(results["stats"].array)
        exact = (exponent, 2.0**-22 * np.abs(exponent), -np.inf)
        check_values(case, "-lse * log2(e)", low, exact)
        check_values(case, "-delta", minus_delta, deltas)
    if "operands" in results:
        blocks = results["operands"].array.astype(np.float64).reshape(*lse.shape[:3], -1, 2, 8, 8)
        with np.errstate(invalid="ignore"):
            of_lse, of_delta = np.moveaxis(blocks[..., :3].sum(axis=-1), -2, 0)
        flat = (*lse.shape[:3], -1)
        exact = (scaled, 2.0**-22 * np.abs(scaled), np.copysign(np.inf, -1.0 / SCALE))
        check_values(case, "-lse / scale", of_lse.reshape(flat), exact)
        check_values(case, "-delta in pieces", of_delta.reshape(flat), deltas)
        rest = np.broadcast_to([[1, 1, 0, 0, 0], [0] * 5], (*blocks.shape[:4], 8, 2, 5))
        assert np.array_equal(blocks[..., 3:], rest.swapaxes(-3, -2)), case


def check_values(
    case: Case, name: str, found: np.ndarray, exact: tuple[np.ndarray, np.ndarray, float]
) -> None:
    """Compare with exact values, errors that are allowed, and what stands in the place of queries
    that do not exist.
    """
    values, allowed, absent = exact
    compare(case, name, found[..., : case.queries], values, allowed)
    padding = found[..., case.queries :].astype(F32)
    assert_same_bytes(case, f"padding of {name}", padding, np.full_like(padding, absent))


def compare(
    case: Case, name: str, found: np.ndarray, exact: np.ndarray, allowed: np.ndarray
) -> None:
    """NaN and infinities at the same places, the rest as near as `allowed`."""
    same = (found == exact) | (np.isnan(found) & np.isnan(exact))
    with np.errstate(invalid="ignore"):
        near = np.isfinite(exact) & (np.abs(found - exact) <= allowed)
    wrong = ~(same | near)
    if wrong.any():
        fail(case, name, wrong, found, exact)


@cache
def cases() -> tuple[Case, ...]:
    """Every two values of different fields meet, and every head dim all the numbers of queries."""
    sampled = some(
        Case,
        0.02,
        dtype=("f16", "bf16"),
        head_dim=HEAD_DIMS,
        queries=(1, 127, 128, 130, 300),
        step=(16, 32, 128),
        block_heads=(1, 2, 4, 8),
        head_groups=(1, 3),
        batch=(1, 2),
        rows=(1, 3),
        out=("packed", "heads first", "padded", "broadcast L"),
        dout=tuple(LAYOUTS),
        values=("normal", "not_finite"),
        wanted=("stats", "operands", "both"),
    )
    mixed = covering(sampled, cost=lambda case: float(np.prod(case.shape)))
    filled = [
        Case(dtype, head_dim, 70, rows=2, head_groups=3, values=values, wanted="both")
        for (dtype, values), head_dim in zip(
            product(("f16", "bf16"), FILLS), (8, 24, 32, 40, 64, 128) * 2, strict=True
        )
    ]
    return tuple(mixed + filled)


@pytest.mark.kernel
@parts(4)
@pytest.mark.parametrize("arch", ["sm_70", "sm_90"])
def test_statistics_on_the_cpu_executor(arch: str, part: slice) -> None:
    chosen = cases()[part]
    check_all(check, chosen[:: 1 if arch == "sm_90" else 4], SimExecutor(arch))


@pytest.mark.gpu
def test_statistics_on_a_device(executor: DriverExecutor) -> None:
    check_all(check, cases(), executor)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_the_cpu_executor_and_the_gpu_agree_in_every_bit(
    executor: DriverExecutor, dtype: str
) -> None:
    """Which also says that the sum is the same from run to run."""
    for head_dim, values in product(HEAD_DIMS, FILLS):
        case = Case(dtype, head_dim, 140, rows=2, head_groups=3, values=values, wanted="both")
        on_gpu, on_cpu = (
            made_of(place, case)[1] for place in (executor, SimExecutor(executor.arch))
        )
        for name, x in on_gpu.items():
            assert_same_bytes(case, name, x.array, on_cpu[name].array)


# -- The host half ---------------------------------------------------------------------------------

SM_70 = architecture("sm_70")


def views(head_dim: int = 8, heads: int = 4, queries: int = 5, blocks: int = 8) -> Any:
    operands = {name: lay_out((1, 2, queries, heads, head_dim), F32) for name in ("out", "dout")}
    lse = lay_out((1, 2, heads, queries), F32)
    stats = lay_out((1, 2, heads, blocks, 48), F32)
    return host_views(operands | {"lse": lse, "stats": stats}, readonly=False)


@pytest.mark.unit
def test_the_parameter_block_is_that_of_the_header() -> None:
    names = set(delta.parameters(delta.Config(head_dim=8), **views()))
    assert names == {field.name for field in load_header().kernels[delta.NAME].fields}


@pytest.mark.unit
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_a_block_is_128_rows(head_dim: int) -> None:
    for heads in (1, 2, 3, 4, 8, 12, 16, 64):
        config = delta.choose(head_dim, "f16", heads)
        assert not delta.violations(config, SM_70)
        assert heads % config.block_heads == 0
        assert config.block_heads * head_dim * 2 <= 64 or config.block_heads == 1
        assert config.passes * config.threads == 128 * config.row_lanes
        assert config.passes % config.rows_at_once == 0 and config.rows_at_once >= 2
        blocks = 3 * heads * 256 // 128
        assert config.grid(1, 3, heads, 256) == (blocks, 1, 1)
    assert config.row_lanes // 2 < head_dim // 8 <= config.row_lanes


@pytest.mark.unit
def test_short_rows_share_a_block() -> None:
    assert [delta.choose(d, "f16", 8).block_heads for d in (8, 16, 24, 32)] == [4, 2, 1, 1]
    assert delta.choose(8, "f16", 6).block_heads == 2
    assert delta.choose(8, "f16", 3).block_heads == 1


@pytest.mark.unit
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(head_dim=12), "head_dim must be a multiple of 8 from 8 to 128, not 12"),
        (dict(head_dim=136), "head_dim must be a multiple of 8 from 8 to 128, not 136"),
        (dict(dtype="f32"), "dtype must be f16 or bf16, not 'f32'"),
        (dict(block_heads=3), "block_heads must be 1, 2, 4 or 8"),
        (dict(block_heads=16), "block_heads must be 1, 2, 4 or 8"),
        (dict(wanted="delta"), "wanted must be stats, operands or both, not 'delta'"),
    ],
)
def test_each_constraint(changes: dict[str, Any], reason: str) -> None:
    base = delta.Config(head_dim=64)
    assert not delta.violations(base, SM_70)
    (found,) = delta.violations(replace(base, **changes), SM_70)
    assert reason in found


@pytest.mark.unit
def test_arrays_of_other_sizes_are_refused() -> None:
    config = delta.Config(head_dim=8, block_heads=4)
    with pytest.raises(ValueError, match="4 heads of a threadblock do not divide 6"):
        delta.parameters(config, **views(heads=6))
    with pytest.raises(
        ValueError, match=r"stats: expected blocks of 48 for 129 queries; got \(8, 48\)"
    ):
        delta.parameters(config, **views(queries=129))
    both = delta.Config(head_dim=8, block_heads=4, wanted="both")
    with pytest.raises(
        ValueError, match="operands: expected blocks of 128 for 5 queries; got None"
    ):
        delta.parameters(both, **views())
    operands = host_views({"x": lay_out((1, 2, 4, 4, 128), F32)}, readonly=False)["x"]
    with pytest.raises(ValueError, match=r"expected the same positions; got \[32, 128\]"):
        delta.parameters(both, **views(), operands=operands)
