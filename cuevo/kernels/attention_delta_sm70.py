"""Host half of ``ptx/attention_delta_sm70.ptx``: what the backward pass needs of every query."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil, gcd

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.kernels.backward import operands_shape, stats_shape
from cuevo.toolchain.division import magic_fields

__all__ = [
    "MINIMUM_ARCH",
    "NAME",
    "SUMMARY",
    "Config",
    "choose",
    "parameters",
    "values",
    "violations",
]

NAME = "attention_delta_sm70"
SUMMARY = "log-sum-exp and rowsum(dout * out) of every query, as the backward kernels read them"
MINIMUM_ARCH = 70

_BLOCKS = {"stats": (16, stats_shape(16)[1]), "operands": (8, operands_shape(8)[1])}
"""Positions of a block of what is made, and its elements."""
_ROWS = 128
"""Rows of D of a threadblock."""
_SECTOR_BYTES = 64
"""Bytes of one query that a threadblock reads side by side: two sectors, the grain of device
memory.
"""


@dataclass(frozen=True)
class Config:
    """One instance of the kernel; every field is a name in its template."""

    head_dim: int
    dtype: str = "bf16"
    block_heads: int = 1
    """Heads of a threadblock: a power of two that divides the heads."""
    wanted: str = "stats"
    """What is made: "stats", for the kernels that load them, "operands", for that whose products
    add them, or "both".
    """

    @property
    def block_positions(self) -> int:
        """Queries of a threadblock."""
        return _ROWS // self.block_heads

    @property
    def row_lanes(self) -> int:
        """Lanes that work on one row of D: the power of two at or above its 16-byte chunks."""
        return 1 << (self.head_dim // 8 - 1).bit_length()

    @property
    def threads(self) -> int:
        """Threads of a block: 64 to 256, a quarter of the lanes of all its rows where that fits."""
        return max(64, min(256, _ROWS * self.row_lanes // 4))

    @property
    def passes(self) -> int:
        """Rows of a thread."""
        return _ROWS * self.row_lanes // self.threads

    @property
    def rows_at_once(self) -> int:
        """Rows that a thread loads before it adds."""
        return min(4, self.passes)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: none."""
        return 0

    def grid(self, batch: int, rows: int, heads: int, positions: int) -> tuple[int, int, int]:
        """Threadblocks of a launch, all in x: heads fastest, then queries, rows and batches."""
        tiles = ceil(positions / self.block_positions)
        return (heads // self.block_heads * tiles * rows * batch, 1, 1)


def choose(head_dim: int, dtype: str, heads: int, wanted: str = "stats") -> Config:
    """The configuration for arrays whose heads lie side by side: short rows share a threadblock
    with those of other heads.
    """
    side_by_side = max(1, _SECTOR_BYTES // 2 // head_dim)
    return Config(head_dim, dtype, gcd(heads, 1 << side_by_side.bit_length() - 1), wanted)


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    names = ("block_positions", "row_lanes", "threads", "passes", "rows_at_once")
    return asdict(config) | {name: getattr(config, name) for name in names}


def violations(config: Config, arch: Architecture) -> tuple[str, ...]:
    """Reasons why `config` cannot run on `arch`; empty if it can."""
    return tuple(_violations(config, arch))


def _violations(c: Config, arch: Architecture) -> Iterator[str]:
    if arch.number < MINIMUM_ARCH:
        yield f"needs sm_{MINIMUM_ARCH}; this is {arch.name}"
    if c.head_dim % 8 or not 8 <= c.head_dim <= 128:
        yield f"head_dim must be a multiple of 8 from 8 to 128, not {c.head_dim}"
    if c.dtype not in ("f16", "bf16"):
        yield f"dtype must be f16 or bf16, not {c.dtype!r}"
    if c.wanted not in ("stats", "operands", "both"):
        yield f"wanted must be stats, operands or both, not {c.wanted!r}"
    if c.block_heads not in (1, 2, 4, 8):
        yield (
            "block_heads must be 1, 2, 4 or 8 (a thread keeps its head from pass to pass, a "
            f"threadblock has statistics by 16 queries), not {c.block_heads}"
        )


def parameters(
    config: Config,
    *,
    out: ArrayView,
    dout: ArrayView,
    lse: ArrayView,
    stats: ArrayView | None = None,
    operands: ArrayView | None = None,
    scale: float = 1.0,
) -> dict[str, int | float]:
    """The parameter block of a launch, by field name: out, dout [B, N, Lq, H, D], lse [B, N, H,
    Lq], and as far as the kernel makes them stats [B, N, H, positions / 16, 48] and operands [B, N,
    H, positions / 8, 128]; `scale` is for these.

    Raises ValueError where ``block_heads`` does not divide the heads, or the results are not whole
    blocks of 16 positions, as many as the queries or more.
    """
    _, rows, queries, heads, _ = out.shape
    if heads % config.block_heads:
        raise ValueError(f"{config.block_heads} heads of a threadblock do not divide {heads}")
    counts = set()
    for (name, (block, elements)), x in zip(_BLOCKS.items(), (stats, operands), strict=True):
        if config.wanted not in (name, "both"):
            continue
        shape = None if x is None else x.shape[3:]
        if shape is None or shape[1] != elements or shape[0] * block < queries:
            raise ValueError(
                f"{name}: expected blocks of {elements} for {queries} queries; got {shape}"
            )
        counts.add(shape[0] * block)
    if len(counts) > 1:
        raise ValueError(f"stats, operands: expected the same positions; got {sorted(counts)}")
    (positions,) = counts
    position_tiles, head_groups = (
        ceil(positions / config.block_positions),
        heads // config.block_heads,
    )
    found: dict[str, int | float] = {
        "out": out.pointer,
        "dout": dout.pointer,
        "lse": lse.pointer,
        "stats": stats.pointer if stats else 0,
        "operands": operands.pointer if operands else 0,
        "lse_factor": -1.0 / scale,
        "rows": rows,
        "heads": heads,
        "queries": queries,
        "positions": positions,
        "position_tiles": position_tiles,
        "head_groups": head_groups,
        **magic_fields(rows=rows, position_tiles=position_tiles, head_groups=head_groups),
    }
    for name, array in (("out", out), ("dout", dout)):
        for index, label in enumerate(("batch", "row", "query", "head")):
            found[f"{name}_stride_{label}"] = array.strides[index]
    return found
