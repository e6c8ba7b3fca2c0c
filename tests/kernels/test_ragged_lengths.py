"""Lengths that end within a tile, on the CPU executor: the kernels for sm_80 and later compute what
exists, and with the bits of a larger problem in which the rest is masked.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from helpers.guarded import DTYPES

import cuevo
from cuevo.kernels import evoformer_backward_sm80 as backward
from cuevo.kernels import evoformer_forward_sm80 as forward
from cuevo.sim import SimExecutor
from cuevo.toolchain.template import RenderedKernel

pytestmark = pytest.mark.kernel

ROWS, LENGTH = 4, 96
"""Extents of the larger problem."""


@dataclass(frozen=True)
class Lengths:
    """Rows n, queries and keys that exist."""

    rows: int
    queries: int
    keys: int


WHOLE = Lengths(ROWS, LENGTH, LENGTH)
RAGGED = (
    Lengths(3, 65, 81),  # warps without queries; a row n too few; 17 keys of a tile of 64
    Lengths(1, 33, 80),  # one position in a warp; 16 of a tile
    Lengths(4, 64, 49),
    Lengths(2, 1, 1),
)


def operands(kept: Lengths, head_dim: int, pair: str) -> dict[str, np.ndarray]:
    """The arrays of the larger problem, of which `kept` is not masked."""
    rng = np.random.default_rng(head_dim)

    def normal(*shape: int, dtype: str = "bf16") -> np.ndarray:
        return rng.standard_normal(shape).astype(DTYPES[dtype])

    found = {name: normal(1, ROWS, LENGTH, 1, head_dim) for name in "qkv"}
    mask = normal(1, ROWS, 1, 1, LENGTH, dtype="f32")
    mask[..., kept.keys :] = -np.inf
    return found | {"mask_bias": mask, "pair_bias": normal(1, 1, 1, LENGTH, LENGTH, dtype=pair)}


def cut(arrays: dict[str, Any], kept: Lengths) -> dict[str, np.ndarray]:
    """The part of them that exists, as views: rows of the pair bias stay aligned."""
    axes: dict[str, Any] = {
        "mask_bias": np.s_[:, : kept.rows, :, :, : kept.keys],
        "pair_bias": np.s_[:, :, :, : kept.queries, : kept.keys],
        "lse": np.s_[:, : kept.rows, :, : kept.queries],
        "k": np.s_[:, : kept.rows, : kept.keys],
    }
    found = {}
    for name, x in arrays.items():
        of = name.removeprefix("d") if name != "dout" else "q"
        axis = axes.get("k" if of in ("k", "v") else of, np.s_[:, : kept.rows, : kept.queries])
        found[name] = np.asarray(x)[axis]
    if "lse" in found:
        found["lse"] = found["lse"].copy()
    return found


def assert_same_bits(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, x in wanted.items():
        assert np.asarray(found[name]).tobytes() == x.tobytes(), name


FORWARD = forward.Config(32, mask="f32", min_blocks=1, q_in_registers=False)
TILINGS = (
    replace(FORWARD, block_rows=2, block_queries=64, block_keys=32),
    replace(FORWARD, block_rows=3, block_queries=64, stages=2, q_in_registers=True),
    replace(FORWARD, head_dim=24, block_queries=128, block_keys=128, stages=2),
    replace(FORWARD, head_dim=8, block_rows=2, block_queries=64, m_tiles=1),
    replace(FORWARD, pair="f32", block_rows=2, block_queries=96, block_keys=32, m_tiles=3),
)


def attend(config: forward.Config, arrays: dict[str, Any], device: Any) -> dict[str, Any]:
    results = cuevo.attention(**arrays, return_lse=True, config=config, device=device)
    return dict(zip(("out", "lse"), results, strict=True))


@pytest.mark.parametrize(
    "config", TILINGS, ids=lambda c: f"D{c.head_dim}-{c.block_rows}-{c.block_queries}"
)
def test_the_bits_of_a_ragged_problem_are_those_of_a_masked_one(config: forward.Config) -> None:
    for kept in RAGGED:
        arrays = operands(kept, config.head_dim, config.pair)
        wanted = attend(config, arrays, "sim:sm_90")
        found = attend(config, cut(arrays, kept), "sim:sm_90")
        assert_same_bits(found, cut(wanted, kept))


KEYS = backward.Config(
    32, mask=True, pair="bf16", second=True, sums=True, stages=2, stationary_in_registers=True
)
QUERIES = replace(KEYS, side="queries", second=False)
SIDES = (
    (
        replace(KEYS, block_streamed=64, chunk_streamed=16),
        replace(QUERIES, block_rows=4, warp_rows=2, chunk_streamed=16),
    ),
    (
        replace(KEYS, pair="f32", block_rows=2),
        replace(QUERIES, pair="f32", block_rows=4, warp_rows=2, meeting_buffers=1),
    ),
    (
        replace(KEYS, block_rows=2, block_streamed=64),
        replace(QUERIES, block_rows=2, warp_rows=2, block_streamed=64, chunk_streamed=16),
    ),
    (
        replace(KEYS, head_dim=8, pair="f32", m_tiles=1),
        replace(QUERIES, head_dim=8, pair="f32", block_rows=2, m_tiles=1),
    ),
)


def with_outputs(kept: Lengths, head_dim: int, pair: str) -> dict[str, np.ndarray]:
    """Operands, outputs, and dout, which is zero outside of `kept`."""
    arrays = operands(kept, head_dim, pair)
    dout = np.zeros_like(arrays["q"])
    dout[:, : kept.rows, : kept.queries] = arrays["q"][:, : kept.rows, -kept.queries :]
    found = attend(replace(FORWARD, head_dim=head_dim, pair=pair), arrays, "sim:sm_90")
    return arrays | found | {"dout": dout}


def differentiate(
    sides: tuple[backward.Config, ...], arrays: dict[str, Any], device: Any, pack: bool = False
) -> dict[str, Any]:
    config = {c.side: c for c in sides}
    results = cuevo.attention_backward(
        **arrays, bias_grad_dtype="float32", pack=pack, config=config, device=device
    )
    return dict(zip(("dq", "dk", "dv", "dmask_bias", "dpair_bias"), results, strict=True))


@pytest.mark.parametrize("sides", SIDES, ids=lambda s: f"D{s[0].head_dim}-{s[0].block_rows}")
def test_the_bits_of_ragged_gradients_are_those_of_a_masked_problem(
    sides: tuple[backward.Config, ...],
) -> None:
    for kept in RAGGED:
        arrays = with_outputs(kept, sides[0].head_dim, sides[0].pair)
        wanted = differentiate(sides, arrays, "sim:sm_90")
        for pack in (False, True):  # rows of the pair bias that end with the last key, or behind it
            found = differentiate(sides, cut(arrays, kept), "sim:sm_90", pack)
            assert_same_bits(found, cut(wanted, kept))


# -- Work ------------------------------------------------------------------------------------------


class Counting(SimExecutor):
    """Counts the instructions of what it runs."""

    def __init__(self) -> None:
        super().__init__("sm_90", profile=True)
        self.kernels: list[Any] = []

    def load(self, kernel: RenderedKernel) -> Any:
        self.kernels.append(super().load(kernel))
        return self.kernels[-1]

    def products(self) -> list[int]:
        """m16n8k16 products of each kernel that has any."""
        found = [
            sum(n for opcode, n in kernel.profile.by_opcode().items() if "m16n8k16" in opcode)
            for kernel in self.kernels
        ]
        return [count for count in found if count]


@pytest.mark.parametrize("kept", [WHOLE, RAGGED[0], RAGGED[-1]], ids=str)
@pytest.mark.parametrize("short", [False, True], ids=["", "short"])
def test_products_of_tiles(kept: Lengths, short: bool) -> None:
    """Forward, 16 products at D = 32 for 16 queries x 32 keys of which some exist, in whole
    threadblocks of 2 rows x 64 queries, or in short ones of 4 x 16 or 32 for the last queries.
    """
    tiles, rest = divmod(kept.queries, 64)
    if not tiles and short:
        pytest.skip("nothing before the last tile")
    blocks = [(2, 64 * (tiles if short else ceil(kept.queries / 64)))]
    config = TILINGS[0]
    if short:
        last = ceil(rest / 16) * 16
        config = replace(config, short_rows=4, short_queries=last)
        blocks.append((4, last))
    device = Counting()
    attend(config, cut(operands(WHOLE, 32, "bf16"), kept), device)
    steps = sum(ceil(kept.rows / rows) * rows * queries // 16 for rows, queries in blocks)
    assert device.products() == [16 * steps * ceil(kept.keys / 32)]


@pytest.mark.parametrize("sides", SIDES[:2], ids=["steps of 16", "half a step"])
@pytest.mark.parametrize("kept", [WHOLE, *RAGGED[:2]], ids=str)
def test_products_of_gradients_of_what_exists(
    kept: Lengths, sides: tuple[backward.Config, ...]
) -> None:
    """Steps of 32 stationary positions of a row n x 16 streamed ones: 16 products for the scores
    and dP, 8 for each gradient. Sums over rows n are taken of all rows of a threadblock.
    """
    device = Counting()
    differentiate(sides, cut(with_outputs(WHOLE, 32, sides[0].pair), kept), device)
    queries = ROWS * ceil(kept.queries / 32) * ceil(kept.keys / 16)
    keys = kept.rows * ceil(kept.keys / 32) * ceil(kept.queries / 16)
    assert sorted(device.products()) == sorted([24 * queries, 32 * keys])


def test_products_of_gradients_of_short_last_tiles() -> None:
    """Of 65 queries and 81 keys: sixteen queries of four rows and 32 keys of two."""
    keys, queries = SIDES[0]
    short = (
        replace(keys, short_rows=2, short_stationary=32),
        replace(queries, short_rows=4, short_stationary=16),
    )
    device = Counting()
    differentiate(short, cut(with_outputs(WHOLE, 32, "bf16"), RAGGED[0]), device)
    assert sorted(device.products()) == sorted([24 * 4 * 6 * 5 // 2, 32 * 3 * 3 * 5])
