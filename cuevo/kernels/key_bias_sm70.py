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
_MASKS = ("bounds", "bool", "f16", "bf16", "f32")


@dataclass(frozen=True)
class Config:
    """One instance of the kernel; every field is a name in its template."""

    mask: str = "bf16"
    """Type of mask_bias, bool, f16, bf16 or f32; "bounds": there is none, but keys end."""
    threads: int = 128
    """Threads of a block."""

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


def parameters(
    config: Config,
    *,
    key_bias: ArrayView,
    keys: int,
    bias_scale: float,
    mask_bias: ArrayView | None = None,
) -> dict[str, int | float]:
    """The parameter block of a launch, by field name: mask_bias [B, N, 1, 1, Lk] or None, key_bias
    [B, N, positions].

    Raises ValueError where `key_bias` has fewer positions than there are keys, or the mask is there
    and not expected, or the other way round.
    """
    batch, rows, positions = key_bias.shape
    if positions < keys:
        raise ValueError(f"key_bias: expected {keys} positions or more; got {positions}")
    if (mask_bias is None) != (config.mask == "bounds"):
        raise ValueError(f"mask_bias: this instance is for {config.mask!r}")
    strides = (0, 0, 0, 0, 0) if mask_bias is None else mask_bias.strides
    tiles = ceil(positions / _WARP_KEYS)
    return {
        "mask_bias": 0 if mask_bias is None else mask_bias.pointer,
        "key_bias": key_bias.pointer,
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
    }
