"""Host half of ``ptx/attention_maps_sm90a.ptx``: the tensor maps of `evoformer_forward_sm90a`,
built on the device, and its tiles of the pair bias beside them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cuevo.architectures import Architecture
from cuevo.cuda.tensor_map import BYTES, TensorMap
from cuevo.kernels import pair_tiles_sm90

__all__ = [
    "ARCH",
    "MINIMUM_ARCH",
    "NAME",
    "SET_BYTES",
    "SUMMARY",
    "Config",
    "config_for",
    "parameters",
    "values",
    "violations",
]

NAME = "attention_maps_sm90a"
SUMMARY = "tensor maps and pair bias of evoformer_forward_sm90a, where no host knows addresses"
MINIMUM_ARCH = 90
ARCH = "sm_90a"
"""tensormap.replace is of one architecture, not of later ones."""

SET_BYTES = 3 * BYTES
"""Of the maps of q, k and v."""


@dataclass(frozen=True)
class Config:
    """One instance of the kernel; every field is a name in its template."""

    head_dim: int
    dtype: str = "bf16"
    row_bytes: int = 128
    """Bytes of a row of a box in shared memory, and of its swizzle: 32, 64 or 128, those of D at
    least.
    """
    block_queries: int = 128
    """Positions of a box of q."""
    last_queries: int = 0
    """The same in a second set of maps; 0: there is none."""
    block_keys: int = 32
    """Positions of a box of k and v, and keys of a tile of the pair bias."""
    block_rows: int = 3
    """Rows N of a box."""
    last_rows: int = 0
    """The same in a second set of maps; 0: there is none."""
    pair: str = "none"
    """Type of the pair bias, or "none"."""

    @property
    def threads(self) -> int:
        """Threads of a block: a warpgroup."""
        return 128

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: a set of maps."""
        return SET_BYTES

    @property
    def sets(self) -> int:
        """Sets of maps."""
        return 2 if self.last_queries else 1

    def grid(self, tiles: int) -> tuple[int, int, int]:
        """Threadblocks of a launch that makes so many tiles of the pair bias."""
        return (self.sets + tiles, 1, 1)


def config_for(sets: Sequence[Sequence[TensorMap]], pair: str) -> Config:
    """The instance that builds maps of q, k and v as `evoformer_forward_sm90a` asks for them, but
    that misses in L2 fetch what is asked for: a set, or two that differ in the queries and rows N
    of boxes; and tiles of a pair bias of type `pair`.
    """
    (q, k, _), *others = sets
    _, last_queries, _, last_rows, _ = others[0][0].box if others else 5 * (0,)
    return Config(
        head_dim=q.extents[0],
        dtype=q.dtype,
        row_bytes=q.swizzle,
        block_queries=q.box[1],
        last_queries=last_queries,
        block_keys=k.box[1],
        block_rows=q.box[3],
        last_rows=last_rows,
        pair=pair,
    )


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    return asdict(config)


def violations(config: Config, arch: Architecture) -> tuple[str, ...]:
    """Reasons why `config` cannot run on `arch`; empty if it can."""
    return tuple(_violations(config, arch))


def _violations(c: Config, arch: Architecture) -> Iterator[str]:
    if arch.name != ARCH:
        yield f"tensormap.replace needs {ARCH}; this is {arch.name}"
    if c.dtype not in ("f16", "bf16"):
        yield f"dtype must be f16 or bf16, not {c.dtype!r}"
    if c.row_bytes not in (32, 64, 128):
        yield f"row_bytes must be 32, 64 or 128, not {c.row_bytes}"
    if c.head_dim % 8 or not 8 <= c.head_dim <= c.row_bytes // 2:
        yield f"head_dim must be a multiple of 8 from 8 to {c.row_bytes // 2}, not {c.head_dim}"
    for name in ("block_queries", "block_keys", "block_rows"):
        if not 1 <= getattr(c, name) <= 256:
            yield f"{name} must be 1 to 256, not {getattr(c, name)}"
    for name in ("last_queries", "last_rows"):
        if not 0 <= getattr(c, name) <= 256:
            yield f"{name} must be 0 to 256, not {getattr(c, name)}"
    if bool(c.last_queries) != bool(c.last_rows):
        yield f"last_queries and last_rows must both be 0 or neither, not {c.last_rows} rows"
    if c.pair != "none":
        yield from pair_tiles_sm90.violations(pair_tiles_sm90.Config(c.pair, c.block_keys), arch)


def parameters(
    maps: Sequence[TensorMap], *, to: int, tiles: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The parameter block of a launch that writes maps of q, k and v to address `to`, by field
    name; tiles: that of `pair_tiles_sm90`.
    """
    q, k, v = maps
    if tiles is None:
        tiles = pair_tiles_sm90.no_parameters()
    return {
        "q": q.pointer,
        "k": k.pointer,
        "v": v.pointer,
        "maps": to,
        "q_strides": q.strides,
        "k_strides": k.strides,
        "v_strides": v.strides,
        "q_extents": q.extents[1:],
        "k_extents": k.extents[1:],
        **tiles,
    }
