"""A pair bias, and its tiles as the accumulators of wgmma have them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from helpers.guarded import DTYPES, Strided, lay_out

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


def differing(tiles: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Where bits differ, but of what is no number."""
    differs = tiles.view(np.uint32) != exact.view(np.uint32)
    return differs & ~(np.isnan(tiles) & np.isnan(exact))
