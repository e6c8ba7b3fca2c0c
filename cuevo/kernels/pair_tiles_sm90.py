"""Host half of ``ptx/pair_tiles_sm90.ptx``: the pair bias, divided by the scale, in the order of
the accumulators of wgmma.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.toolchain.division import magic_fields
from cuevo.toolchain.header import load_header

__all__ = [
    "MINIMUM_ARCH",
    "NAME",
    "SUMMARY",
    "THREADS",
    "Config",
    "no_parameters",
    "parameters",
    "values",
    "violations",
]

NAME = "pair_tiles_sm90"
SUMMARY = "the pair bias of any strides in tiles, in the order of the accumulators of wgmma"
MINIMUM_ARCH = 90

THREADS = 128
"""That make a tile: a warpgroup."""
_TILE_QUERIES = 64


@dataclass(frozen=True)
class Config:
    """One instance of the kernel; every field is a name in its template."""

    pair: str = "bf16"
    """Type of the pair bias: "f16", "bf16" or "f32"."""
    block_keys: int = 32
    """Keys of a tile."""

    @property
    def threads(self) -> int:
        """Threads of a block, which makes a tile."""
        return THREADS

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: none."""
        return 0

    def shape(self, pair_bias: ArrayView, block_queries: int) -> tuple[int, ...]:
        """Extents of the tiles of a pair bias [B, 1, H, Lq, Lk]: batches, heads, tiles of keys,
        tiles of 64 queries, enough for blocks of `block_queries`, and elements of a tile.
        """
        batch, _, heads, queries, keys = pair_bias.shape
        batches = batch if pair_bias.strides[0] else 1
        tiles = ceil(queries / block_queries) * (block_queries // _TILE_QUERIES)
        key_tiles = ceil(keys / self.block_keys)
        return (batches, heads, key_tiles, tiles, _TILE_QUERIES * self.block_keys)

    def grid(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        """Threadblocks of a launch that makes tiles of this shape."""
        batches, heads, key_tiles, query_tiles, _ = shape
        return (batches * heads * key_tiles * query_tiles, 1, 1)


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    return asdict(config)


def violations(config: Config, arch: Architecture) -> tuple[str, ...]:
    """Reasons why `config` cannot run on `arch`; empty if it can."""
    return tuple(_violations(config, arch))


def _violations(c: Config, arch: Architecture) -> Iterator[str]:
    if arch.number < MINIMUM_ARCH:
        yield f"needs sm_{MINIMUM_ARCH}; this is {arch.name}"
    if c.pair not in ("f16", "bf16", "f32"):
        yield f"pair must be f16, bf16 or f32, not {c.pair!r}"
    if c.block_keys % 8 or not 8 <= c.block_keys <= 128:
        yield f"block_keys must be a multiple of 8 from 8 to 128, not {c.block_keys}"


def parameters(
    *, pair_bias: ArrayView, pair_tiles: ArrayView, bias_scale: float
) -> dict[str, int | float]:
    """The parameter block of a launch, by field name; `pair_tiles` has the shape that
    `Config.shape` says.
    """
    _, _, key_tiles, query_tiles, _ = pair_tiles.shape
    found: dict[str, int | float] = {
        "pair_bias": pair_bias.pointer,
        "pair_tiles": pair_tiles.pointer,
        "queries": pair_bias.shape[3],
        "keys": pair_bias.shape[4],
        "heads": pair_bias.shape[2],
        "query_tiles": query_tiles,
        "key_tiles": key_tiles,
        "bias_scale": bias_scale,
        **magic_fields(heads=pair_bias.shape[2], query_tiles=query_tiles, key_tiles=key_tiles),
    }
    for axis, label in ((0, "batch"), (2, "head"), (3, "query"), (4, "key")):
        found[f"pair_stride_{label}"] = pair_bias.strides[axis]
    return found


def no_parameters() -> dict[str, int | float]:
    """The same for kernels that make tiles beside other things, where there is no pair bias."""
    return {field.name: 0 for field in load_header().kernels[NAME].fields}
