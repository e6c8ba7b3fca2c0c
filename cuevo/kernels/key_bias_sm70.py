"""Host half of ``ptx/key_bias_sm70.ptx``: the bias of every key, as the backward kernels add it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.toolchain.division import magic_fields

__all__ = ["MINIMUM_ARCH", "NAME", "SUMMARY", "Config", "parameters", "values", "violations"]

NAME = "key_bias_sm70"
SUMMARY = "the scaled mask in fp32, -inf where there is no key, as the backward kernels add it"
MINIMUM_ARCH = 70

_WARP_KEYS = 128
"""Keys of a warp."""
_BLOCKS = {"key_bias": (2, 1), "key_terms": (3, 8)}
"""The axis of blocks of keys of what is made, and the keys of a block."""
_MASKS = ("bounds", "bool", "f16", "bf16", "f32")


@dataclass(frozen=True)
class Config:
    """One instance of the kernel; every field is a name in its template."""

    mask: str = "bf16"
    """Type of mask_bias, bool, f16, bf16 or f32; "bounds": there is none, but keys end."""
    threads: int = 128
    """Threads of a block."""
    wanted: str = "key_bias"
    """What is made: "key_bias", for the kernels that load it, "key_terms", for that whose products
    add them, or "both".
    """

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: none."""
        return 0

    def grid(self, batch: int, rows: int, positions: int) -> tuple[int, int, int]:
        """Threadblocks of a launch, all in x: a warp for every 128 keys, then rows and batches."""
        return (ceil(batch * rows * ceil(positions / _WARP_KEYS) / (self.threads // 32)), 1, 1)


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    return {**asdict(config), "warp_keys": _WARP_KEYS}


def violations(config: Config, arch: Architecture) -> tuple[str, ...]:
    """Reasons why `config` cannot run on `arch`; empty if it can."""
    return tuple(_violations(config, arch))


def _violations(c: Config, arch: Architecture) -> Iterator[str]:
    if arch.number < MINIMUM_ARCH:
        yield f"needs sm_{MINIMUM_ARCH}; this is {arch.name}"
    if c.mask not in _MASKS:
        yield f"mask must be one of {', '.join(_MASKS)}, not {c.mask!r}"
    if c.threads % 32 or not 32 <= c.threads <= 1024:
        yield f"threads must be a multiple of 32 from 32 to 1024, not {c.threads}"
    if c.wanted not in (*_BLOCKS, "both"):
        yield f"wanted must be key_bias, key_terms or both, not {c.wanted!r}"


def parameters(
    config: Config,
    *,
    keys: int,
    bias_scale: float,
    scale: float = 1.0,
    key_bias: ArrayView | None = None,
    key_terms: ArrayView | None = None,
    mask_bias: ArrayView | None = None,
) -> dict[str, int | float]:
    """The parameter block of a launch, by field name: mask_bias [B, N, 1, 1, Lk] or None, and as
    far as the kernel makes them key_bias [B, N, positions] and key_terms [B, N, 1, positions / 8,
    64]; `scale` is for these.

    Raises ValueError where the results have fewer positions than there are keys, or others than
    each other, or the mask is there and not expected, or the other way round.
    """
    outer: tuple[int, ...] = ()
    counts = set()
    for x, (name, (axis, block)) in zip((key_bias, key_terms), _BLOCKS.items(), strict=True):
        if config.wanted not in (name, "both"):
            continue
        count = 0 if x is None else x.shape[axis] * block
        if x is None or count < keys:
            raise ValueError(f"{name}: expected {keys} positions or more; got {count}")
        outer = x.shape[:2]
        counts.add(count)
    if len(counts) > 1:
        raise ValueError(f"key_bias, key_terms: expected the same positions; got {sorted(counts)}")
    (positions,), (batch, rows) = counts, outer
    if (mask_bias is None) != (config.mask == "bounds"):
        raise ValueError(f"mask_bias: this instance is for {config.mask!r}")
    strides = (0, 0, 0, 0, 0) if mask_bias is None else mask_bias.strides
    tiles = ceil(positions / _WARP_KEYS)
    return {
        "mask_bias": 0 if mask_bias is None else mask_bias.pointer,
        "key_bias": key_bias.pointer if key_bias else 0,
        "key_terms": key_terms.pointer if key_terms else 0,
        "mask_stride_batch": strides[0],
        "mask_stride_row": strides[1],
        "mask_stride_key": strides[4],
        "rows": rows,
        "keys": keys,
        "positions": positions,
        "key_tiles": tiles,
        "tiles": batch * rows * tiles,
        **magic_fields(rows=rows, key_tiles=tiles),
        "bias_scale": bias_scale,
        "sign": -1.0 if key_terms and scale < 0 else 1.0,
    }
