"""Host half of ``ptx/bias_tiles_sm90.ptx``: the mask of each row N as what is added to exponents,
or as an operand of wgmma, in tiles of what `evoformer_forward_sm90a` reads at a stage; and the pair
bias in tiles of `pair_tiles_sm90`.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import ceil, prod

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.kernels import pair_tiles_sm90
from cuevo.toolchain.division import magic_fields

__all__ = [
    "ADDEND_BYTES",
    "FLAG_BYTES",
    "MINIMUM_ARCH",
    "NAME",
    "OPERAND_BYTES",
    "SUMMARY",
    "Config",
    "parameters",
    "values",
    "violations",
]

NAME = "bias_tiles_sm90"
SUMMARY = (
    "the mask in tiles, to add to exponents or as operands of wgmma, and the pair bias in tiles"
)
MINIMUM_ARCH = 90

ADDEND_BYTES, OPERAND_BYTES = 4, 16
"""Of a key."""
FLAG_BYTES = 16
"""In front of the addends of a row N."""
ROW_THREADS = 128
"""That make the tiles of a row N: a warpgroup."""
KEYS_AHEAD = 4
"""Keys of a thread whose masks are on their way at a time."""


@dataclass(frozen=True)
class Config:
    """One instance of the kernel; every field is a name in its template."""

    mask: str = "bf16"
    """Type of the mask: "bool", "f16", "bf16" or "f32"."""
    block_rows: int = 4
    """Rows N that a reader takes at a time, from any one on."""
    block_keys: int = 32
    """Keys of a tile."""
    threads: int = 512
    """Threads of a block."""
    pair: str = "none"
    """Type of the pair bias: "f16", "bf16" or "f32"; "none": there are no tiles of it."""
    added: bool = True
    """Whether a key's mask is a number that is added to its exponents, which a guessed reference
    raises; else an operand of the product that makes scores.
    """
    counted_tiles: int = 0
    """Bits of a tile's parts of 8 keys whose numbers are counts, as emulated exponentials take
    them (``ptx/lib/emulated_exponentials.ptx``).
    """

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: none."""
        return 0

    def shape(self, mask_bias: ArrayView) -> tuple[int, ...]:
        """Extents of the tiles of a mask [B, N, 1, 1, Lk]: batches, tiles of keys, rows N, of which
        as many as a reader takes follow each of its groups' rows, and bytes of a row in a tile.
        What is broadcast has one batch, or what a reader takes of rows.
        """
        batch, rows, _, _, keys = mask_bias.shape
        batches = batch if mask_bias.strides[0] else 1
        first_rows = self.block_rows * ceil(rows / self.block_rows) if mask_bias.strides[1] else 1
        tiled_rows = first_rows + self.block_rows - 1
        return (batches, ceil(keys / self.block_keys), tiled_rows, self.row_bytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row N in a tile."""
        if not self.added:
            return OPERAND_BYTES * self.block_keys
        return FLAG_BYTES + ADDEND_BYTES * self.block_keys

    def seen(self, mask_bias: ArrayView, tiles: ArrayView) -> ArrayView:
        """Tiles of the shape above as kernels are told of them: as a mask whose keys are tiles."""
        shape = (mask_bias.shape[0], tiles.shape[2], 1, 1, tiles.shape[1])
        return replace(tiles, shape=shape, strides=self.seen_strides(tiles))

    def seen_strides(self, tiles: ArrayView) -> tuple[int, ...]:
        """The strides of that."""
        batch = tiles.strides[0] if tiles.shape[0] > 1 else 0
        row = tiles.strides[2] if tiles.shape[2] > self.block_rows else 0
        return (batch, row, 0, 0, tiles.strides[1])

    def pair_blocks(self, pair_shape: tuple[int, ...]) -> int:
        """Threadblocks that make tiles of the pair bias, of a shape of `pair_tiles_sm90`."""
        return ceil(prod(pair_shape[:4]) / (self.threads // pair_tiles_sm90.THREADS))

    def grid(
        self, shape: tuple[int, ...], pair_shape: tuple[int, ...] | None = None
    ) -> tuple[int, int, int]:
        """Threadblocks of a launch that makes tiles of this shape, and of the pair bias's."""
        of_mask = ceil(shape[0] * shape[2] / (self.threads // ROW_THREADS))
        return (of_mask + (self.pair_blocks(pair_shape) if pair_shape else 0), 1, 1)


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    derived = dict(row_bytes=config.row_bytes, row_threads=ROW_THREADS, ahead=KEYS_AHEAD)
    return {**asdict(config), **derived}


def violations(config: Config, arch: Architecture) -> tuple[str, ...]:
    """Reasons why `config` cannot run on `arch`; empty if it can."""
    return tuple(_violations(config, arch))


def _violations(c: Config, arch: Architecture) -> Iterator[str]:
    if arch.number < MINIMUM_ARCH:
        yield f"needs sm_{MINIMUM_ARCH}; this is {arch.name}"
    if c.mask not in ("bool", "f16", "bf16", "f32"):
        yield f"mask must be bool, f16, bf16 or f32, not {c.mask!r}"
    if c.block_rows < 1:
        yield f"block_rows must be positive, not {c.block_rows}"
    if c.block_keys not in (32, 64):
        yield f"block_keys must be 32 or 64, not {c.block_keys}"
    if c.pair != "none":
        yield from pair_tiles_sm90.violations(pair_tiles_sm90.Config(c.pair, c.block_keys), arch)
    if c.threads % ROW_THREADS or not ROW_THREADS <= c.threads <= 1024:
        yield f"threads must be a multiple of {ROW_THREADS} up to 1024, not {c.threads}"


def parameters(
    config: Config,
    *,
    mask_bias: ArrayView,
    mask_tiles: ArrayView,
    pair_bias: ArrayView | None = None,
    pair_tiles: ArrayView | None = None,
    bias_scale: float,
) -> dict[str, int | float]:
    """The parameter block of a launch, by field name; `mask_tiles` has the shape that
    `Config.shape` says, `pair_tiles` that of `pair_tiles_sm90`, or there is no pair bias.
    """
    tiled_rows = mask_tiles.shape[2]
    pair, tiles, pair_blocks = pair_tiles_sm90.no_parameters(), 0, 0
    if pair_bias is not None and pair_tiles is not None:
        pair = pair_tiles_sm90.parameters(
            pair_bias=pair_bias, pair_tiles=pair_tiles, bias_scale=bias_scale
        )
        tiles, pair_blocks = prod(pair_tiles.shape[:4]), config.pair_blocks(pair_tiles.shape)
    return {
        **pair,
        "tiles": tiles,
        "pair_blocks": pair_blocks,
        "mask_bias": mask_bias.pointer,
        "mask_tiles": mask_tiles.pointer,
        "mask_stride_batch": mask_bias.strides[0],
        "mask_stride_row": mask_bias.strides[1],
        "mask_stride_key": mask_bias.strides[4],
        "rows": mask_bias.shape[1],
        "keys": mask_bias.shape[4],
        "key_tiles": mask_tiles.shape[1],
        "tiled_rows": tiled_rows,
        "mask_rows": mask_tiles.shape[0] * tiled_rows,
        **magic_fields(tiled_rows=tiled_rows),
        "bias_scale": bias_scale,
    }
