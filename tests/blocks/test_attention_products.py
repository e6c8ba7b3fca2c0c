"""ptx/lib/attention_products.ptx: every bit of raw scores, on the CPU executor and on a GPU.

The oracle here states the arithmetic of the tensor cores a second time, in exact fractions and one
element at a time.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import product
from math import ceil
from typing import Any

import numpy as np
import pytest
from blocks.harness import array as laid_out
from blocks.harness import check_all, empty, instance, run
from helpers.attention_cases import DTYPES

from cuevo.architectures import architecture
from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor
from cuevo.sim import SimExecutor
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.template import RenderedKernel

F32 = np.dtype(np.float32)
HEAD_DIMS = tuple(range(8, 129, 8))


@dataclass(frozen=True)
class Config:
    """One instance of the test kernel; every field is a name in its template."""

    head_dim: int
    dtype: str = "bf16"
    block_queries: int = 64
    """Queries of a threadblock."""
    block_keys: int = 64
    """Keys of a tile."""
    m_tiles: int = 1
    """16-query tiles of a warp."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.block_queries // (16 * self.m_tiles))

    @property
    def pass_rows(self) -> int:
        """Rows of Q or K that the block copies at a time: a multiple of 8."""
        return self.threads // (self.head_dim // 8) // 8 * 8

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: Q + K."""
        return (self.block_queries + self.block_keys) * self.head_dim * 2

    def kernel(self) -> RenderedKernel:
        assert self.pass_rows >= 8
        return instance("attention_products", **asdict(self), pass_rows=self.pass_rows)


def scores(place: Executor, config: Config, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """The scores of q [B, Lq, D] and k [B, Lk, D]; what lies around them must stay as it was."""
    inputs = {name: laid_out(x, row_bytes=x.shape[-1] * 2 + 16) for name, x in (("q", q), ("k", k))}
    result = empty((q.shape[0], q.shape[1], k.shape[1]), F32, shift=4)
    tiles = ceil(q.shape[1] / config.block_queries)
    strides = {
        f"{name}_stride_{axis}": inputs[name].array.strides[index]
        for name, row in (("q", "query"), ("k", "key"))
        for index, axis in enumerate(("batch", row))
    }
    run(
        place,
        config.kernel(),
        inputs,
        {"scores": result},
        threads=config.threads,
        grid=tiles * q.shape[0],
        shared_bytes=config.shared_bytes,
        queries=q.shape[1],
        keys=k.shape[1],
        query_tiles=tiles,
        **strides,
    )
    return result.array


def assert_same_bits(found: np.ndarray, expected: np.ndarray, what: object) -> None:
    differs = np.ascontiguousarray(found).view(np.uint32) != expected.view(np.uint32)
    if differs.any():
        first = tuple(int(i) for i in np.argwhere(differs)[0])
        raise AssertionError(
            f"{what}: {np.count_nonzero(differs)} of {differs.size} differ, the first is {first}: "
            f"{found[first]!r} ({found[first].view(np.uint32):#010x}) instead of "
            f"{expected[first]!r} ({expected[first].view(np.uint32):#010x})"
        )


# -- Inputs ----------------------------------------------------------------------------------------


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def extreme(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Exponents from end to end, zeros of both signs; in bfloat16 some products overflow."""
    fraction, largest = (10, 30) if dtype == np.float16 else (7, 190)
    field = rng.integers(0, largest + 1, shape)
    if dtype != np.float16:
        field[rng.random(shape) < 0.01] = 254
    bits = (field << fraction | rng.integers(0, 1 << fraction, shape)).astype(np.uint16)
    bits[rng.random(shape) < 0.1] = 0
    return (bits | rng.integers(0, 2, shape, dtype=np.uint16) << 15).view(dtype)


def subnormal(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Mostly subnormal, some normal numbers of either end of the range."""
    smallest = 0x03FF if dtype == np.float16 else 0x007F
    bits = rng.integers(0, smallest + 1, shape, dtype=np.uint16)
    bits |= rng.integers(0, 2, shape, dtype=np.uint16) << 15
    large = rng.random(shape) < 0.2
    bits[large] += rng.integers(0x2000, 0x7000, shape, dtype=np.uint16)[large]
    return bits.view(dtype)


def cancelling(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray:
    """Pairs of opposite large numbers, and small ones that truncation takes from them."""
    x = rng.standard_normal(shape)
    x[..., 1::4] = -x[..., ::4] * (1 + 2.0**-6)
    x[..., 2::4] *= 2.0**-12
    return x.astype(dtype)


def not_finite(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> np.ndarray:
    """A few infinities, NaNs and zeros among ordinary numbers."""
    x = rng.standard_normal(shape)
    for value in (np.inf, -np.inf, np.nan, 0.0):
        x[rng.random(shape) < 0.2 / shape[-1]] = value
    return x.astype(dtype)


FILLS = (normal, extreme, subnormal, cancelling, not_finite)
Fill = Callable[[np.random.Generator, tuple[int, ...], np.dtype[Any]], np.ndarray]


# -- The oracle ------------------------------------------------------------------------------------


def term(x: float, smallest: int) -> tuple[Fraction, int]:
    """A number exactly, and its exponent; a subnormal has that of the smallest normal number."""
    return Fraction(x), max(int(np.frexp(x)[1]) - 1, smallest)


def block(c: float, a: np.ndarray, b: np.ndarray, smallest: int, fraction_bits: int) -> float:
    """c + a . b of one block, the largest term aligned to, the rest cut off."""
    products = [float(x) * float(y) for x, y in zip(a, b, strict=True)]
    if not np.isfinite([c, *a, *b]).all():
        special = [x for x in (c, *products) if not np.isfinite(x)]
        total = special[0]
        for x in special[1:]:
            total += x
        return total
    terms = [term(c, -126)]
    for x, y in zip(a, b, strict=True):
        (value_x, exponent_x), (value_y, exponent_y) = (term(float(z), smallest) for z in (x, y))
        terms.append((value_x * value_y, exponent_x + exponent_y))
    if all(value == 0 for value, _ in terms):
        return 0.0
    largest = max(-133, *(exponent for value, exponent in terms if value))
    unit = Fraction(2) ** (largest - fraction_bits)
    return toward_zero(unit * sum(int(value / unit) for value, _ in terms))


def toward_zero(exact: Fraction) -> float:
    """To fp32."""
    if exact == 0:
        return 0.0
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    if exponent > 127:
        return float("inf") if exact > 0 else float("-inf")
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    return float(unit * int(exact / unit))


def oracle(arch: str, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """q . k^T of two matrices in steps of 16, and 8 at the end, each in the blocks of `arch`."""
    fraction_bits, length = (24, 8) if architecture(arch).number < 90 else (25, 16)
    smallest = -14 if q.dtype == np.float16 else -126
    result = np.empty((len(q), len(k)), np.float32)
    for i, j in np.ndindex(result.shape):
        c = 0.0
        for first in range(0, q.shape[1], length):
            part = slice(first, first + length)
            c = block(c, q[i, part], k[j, part], smallest, fraction_bits)
        result[i, j] = c
    result.view(np.uint32)[np.isnan(result)] = 0x7FFFFFFF
    return result


# -- On the CPU executor ---------------------------------------------------------------------------


@pytest.mark.kernel
@pytest.mark.parametrize("fill", FILLS, ids=lambda fill: fill.__name__)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_every_bit_is_that_of_the_tensor_cores(arch: str, dtype: str, fill: Fill) -> None:
    config = Config(head_dim=40, dtype=dtype)
    rng = np.random.default_rng(40)
    q, k = fill(rng, (1, 11, 40), DTYPES[dtype]), fill(rng, (1, 19, 40), DTYPES[dtype])
    found = scores(SimExecutor(arch), config, q, k)
    assert_same_bits(found[0], oracle(arch, q[0], k[0]), f"{config}, {arch}, {fill.__name__}")


@pytest.mark.kernel
def test_the_architectures_differ() -> None:
    """Otherwise the comparison with a GPU would say nothing about the executor's architecture."""
    rng = np.random.default_rng(41)
    q, k = normal(rng, (1, 20, 64), DTYPES["f16"]), normal(rng, (1, 20, 64), DTYPES["f16"])
    config = Config(head_dim=64, dtype="f16")
    on_80, on_86, on_90 = (
        scores(SimExecutor(arch), config, q, k) for arch in ("sm_80", "sm_86", "sm_90")
    )
    assert_same_bits(on_86, on_80, "sm_86 and sm_80")
    assert (on_90 != on_80).any()


def cases() -> list[tuple[int, str]]:
    """Head dims and dtypes; tilings and extents follow from them."""
    return list(product(HEAD_DIMS, ("f16", "bf16")))


def check(place: Executor, case: tuple[int, str]) -> None:
    """Ragged sizes: each element, an exact sum of integers, is that of its own query and key."""
    head_dim, dtype = case
    rng = np.random.default_rng(head_dim)
    batch, queries, keys = 2, int(rng.integers(1, 150)), int(rng.integers(1, 150))
    m_tiles = 1 + head_dim // 8 % 2
    config = Config(
        head_dim=head_dim,
        dtype=dtype,
        m_tiles=m_tiles,
        block_queries=64 * m_tiles,
        block_keys=(32, 64, 96)[head_dim // 8 % 3],
    )
    q, k = (
        rng.integers(-15, 16, (batch, length, head_dim)).astype(DTYPES[dtype])
        for length in (queries, keys)
    )
    found = scores(place, config, q, k)
    exact = np.einsum("bqd,bkd->bqk", q.astype(np.float64), k.astype(np.float64))
    assert_same_bits(found, exact.astype(np.float32), (config, queries, keys))


def counts() -> dict[str, tuple[int, int]]:
    """Combinations that a device runs, and how many of them the CPU executor."""
    return {"products": (len(cases()), len(cases()))}


@pytest.mark.unit
def test_the_number_of_combinations() -> None:
    assert counts() == {"products": (32, 32)}


@pytest.mark.kernel
@pytest.mark.parametrize("case", cases(), ids=str)
def test_sums_of_integers_are_exact(case: tuple[int, str]) -> None:
    check(SimExecutor("sm_80"), case)


@pytest.mark.kernel
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("head_dim", [8, 24, 64, 128])
def test_random_scores_are_near_float64(head_dim: int, arch: str) -> None:
    """Each block drops less than 2^-23 of its largest term, in each of its terms."""
    rng = np.random.default_rng(head_dim)
    q, k = (normal(rng, (1, length, head_dim), DTYPES["bf16"]) for length in (33, 70))
    found = scores(SimExecutor(arch), Config(head_dim=head_dim), q, k)
    wide_q, wide_k = q.astype(np.float64), k.astype(np.float64)
    exact = np.einsum("bqd,bkd->bqk", wide_q, wide_k)
    largest = np.einsum("bqd,bkd->bqk", np.abs(wide_q), np.abs(wide_k))
    assert (np.abs(found - exact) <= 2.0**-23 * (head_dim + head_dim // 8) * largest).all()


@pytest.mark.unit
@pytest.mark.parametrize("head_dim", [8, 40, 128])
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_100"])
def test_scores_do_not_spill(arch: str, head_dim: int) -> None:
    for dtype in ("f16", "bf16"):
        found = assemble(Config(head_dim, dtype).kernel(), arch, cache=None).resources
        assert (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0)
        assert found.static_shared == 0


# -- On a GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_sums_of_integers_are_exact_on_a_gpu(executor: DriverExecutor) -> None:
    check_all(check, cases(), executor)


@pytest.mark.gpu
@pytest.mark.parametrize("fill", FILLS, ids=lambda fill: fill.__name__)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("head_dim", [8, 16, 24, 32, 40, 64, 104, 128])
def test_the_cpu_executor_and_the_gpu_agree_in_every_bit(
    executor: DriverExecutor, head_dim: int, dtype: str, fill: Fill
) -> None:
    rng = np.random.default_rng(head_dim)
    m_tiles = 1 + head_dim // 8 % 2
    config = Config(head_dim=head_dim, dtype=dtype, block_queries=64 * m_tiles, m_tiles=m_tiles)
    q, k = (fill(rng, (2, length, head_dim), DTYPES[dtype]) for length in (77, 101))
    on_gpu = scores(executor, config, q, k)
    on_cpu = scores(SimExecutor(executor.arch), config, q, k)
    assert np.isfinite(on_gpu).any()
    assert_same_bits(on_gpu, on_cpu, f"{config}, {executor.arch}, {fill.__name__}")
