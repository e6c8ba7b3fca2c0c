"""Host half of ``ptx/pack_sm70.ptx``: arrays of any strides, packed into rows."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil, gcd, prod
from typing import NamedTuple

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.toolchain.division import magic_fields

__all__ = [
    "CHUNK",
    "MINIMUM_ARCH",
    "NAME",
    "SUMMARY",
    "WIDE_ROWS",
    "Axis",
    "Config",
    "choose",
    "fields",
    "packed_memory",
    "packed_strides",
    "parameters",
    "row_bytes",
    "values",
    "violations",
]

NAME = "pack_sm70"
SUMMARY = "an array of any strides copied to rows that begin at multiples of 16 bytes"
MINIMUM_ARCH = 70

CHUNK = 16
"""Bytes that are written together."""
_SECTORS = 64
"""Bytes to whose multiples long rows begin: 32 keys of 16 bits are two sectors then, not three."""
_LONG_ROW = 256
"""Bytes of a long row; shorter ones begin at multiples of a chunk, which takes less memory."""
_BANKS_BYTES = 128
_MOST_PARTS = 2**31 - 4096
WIDE_ROWS = 128
"""Bytes of the rows that lie side by side at one column, up to which a lane reads 16 of them: more
rows go to more lanes, 4 bytes each, which are a line of the cache together.
"""


class Tile(NamedTuple):
    """What follows from a configuration that reads along rows."""

    rows: int
    run: int
    """Columns that a lane reads one after the other: 4 or 16 bytes of a packed row."""
    words: int
    """Registers of what a lane reads at once."""
    step_columns: int
    """Columns of all warps in a step."""
    row_bytes: int
    spread: int
    """Groups of rows whose chunks lie in different banks: at most 8."""
    bytes: int


@dataclass(frozen=True)
class Config:
    """One instance of the kernel; every field is a name in its template."""

    size: int = 2
    """Bytes of an element: 1, 2 or 4."""
    axes: int = 4
    """Axes before the columns."""
    reads: str = "chunks"
    """What lies side by side in source: columns (chunks), rows (tile), or neither (elements)."""
    unit: int = 2
    """Bytes of an access to one element: its size, or less where that is not aligned."""
    width: int = 1
    """Elements of neighbouring rows that a lane reads at once; tile only."""
    lanes: int = 32
    """Lanes of a warp along the rows; tile only."""
    accesses: int = 2
    """Chunks of a thread, or steps of a tile."""
    threads: int = 128
    """Threads of a block."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: none."""
        return 0

    @property
    def tile(self) -> Tile:
        """The tile of a threadblock."""
        run = (CHUNK if self.lanes > 8 else 4) // self.size
        step_columns = self.threads // self.lanes * run
        row_bytes = self.accesses * step_columns * self.size
        rows = self.lanes * self.width
        words = max(1, self.width * self.size // 4)
        return Tile(rows, run, words, step_columns, row_bytes, min(8, self.lanes), rows * row_bytes)

    def grid(self, parts: int) -> tuple[int, int, int]:
        """Threadblocks of a launch for the field `parts` of its parameters, all in x."""
        each = 1 if self.reads == "tile" else self.threads * self.accesses
        return (ceil(parts / each), 1, 1)


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    return {**asdict(config), "tile": config.tile}


def violations(config: Config, arch: Architecture) -> tuple[str, ...]:
    """Reasons why `config` cannot run on `arch`; empty if it can."""
    return tuple(_violations(config, arch))


def _violations(c: Config, arch: Architecture) -> Iterator[str]:
    if arch.number < MINIMUM_ARCH:
        yield f"needs sm_{MINIMUM_ARCH}; this is {arch.name}"
    if c.size not in (1, 2, 4):
        yield f"size must be 1, 2 or 4 bytes, not {c.size}"
        return
    if not 1 <= c.axes <= 4:
        yield f"axes must be 1 to 4, not {c.axes}"
    if c.reads not in ("chunks", "tile", "elements"):
        yield f"reads must be chunks, tile or elements, not {c.reads!r}"
    if c.unit not in (1, 2, 4) or c.unit > c.size:
        yield f"unit must be 1, 2 or 4 bytes of {c.size}, not {c.unit}"
    if not 1 <= c.accesses <= 4:
        yield f"accesses must be 1 to 4, not {c.accesses}"
    if c.threads % 32 or not 32 <= c.threads <= 1024:
        yield f"threads must be a multiple of 32 from 32 to 1024, not {c.threads}"
        return
    if c.reads != "tile":
        return
    if c.width not in (1, 2, 4, 8, 16) or c.width * c.size > CHUNK:
        yield f"width must be a power of two, {CHUNK} bytes at most, not {c.width} of {c.size}"
    elif c.lanes not in (1, 2, 4, 8, 16, 32):
        yield f"lanes must be a power of two up to 32, not {c.lanes}"
    elif c.tile.row_bytes % _BANKS_BYTES or c.tile.row_bytes & (c.tile.row_bytes - 1):
        yield (
            f"a row of the tile must be a power of two of {_BANKS_BYTES} bytes or more, which its "
            f"swizzle permutes, not {c.tile.row_bytes}"
        )
    elif c.unit != c.size:
        yield f"a tile has aligned elements: unit must be {c.size}, not {c.unit}"


# -- The array that is packed ----------------------------------------------------------------------


class Axis(NamedTuple):
    """Positions at one stride."""

    extent: int
    source: int
    """Stride in bytes."""
    packed: int


def row_bytes(columns: int, size: int) -> int:
    """Bytes from one packed row to the next, of elements of `size` bytes."""
    nbytes = columns * size
    unit = CHUNK if nbytes < _LONG_ROW else _SECTORS
    return ceil(nbytes / unit) * unit


def packed_strides(source: ArrayView) -> tuple[int, ...]:
    """Strides of the packed array, in bytes: those of C order with aligned rows, zero where those
    of `source` are, but for its last axis.

    >>> from cuevo.arrays import view
    >>> import numpy as np
    >>> packed_strides(view(np.zeros((2, 3, 9), np.float16).swapaxes(0, 1)))
    (64, 32, 2)
    """
    step = row_bytes(source.shape[-1], source.dtype.itemsize)
    strides = [source.dtype.itemsize]
    for extent, stride in zip(source.shape[-2::-1], source.strides[-2::-1], strict=True):
        strides.append(0 if stride == 0 else step)
        step *= 1 if stride == 0 else extent
    return tuple(reversed(strides))


def packed_memory(source: ArrayView) -> tuple[int, ...]:
    """Shape of the memory, in elements, that the packed array lies in: broadcast axes once, rows
    aligned.
    """
    outer = zip(source.shape[:-1], source.strides[:-1], strict=True)
    row = row_bytes(source.shape[-1], source.dtype.itemsize) // source.dtype.itemsize
    return (*(1 if stride == 0 else extent for extent, stride in outer), row)


def _adjacent(source: ArrayView) -> int | None:
    """The axis before the last whose elements lie side by side, aligned to their size; None where
    there is none, or those of the last axis do.
    """
    size, last = source.dtype.itemsize, source.ndim - 1
    if source.shape[last] == 1 or source.strides[last] == size or source.alignment() % size:
        return None
    axes = range(last)
    return next((i for i in axes if source.strides[i] == size and source.shape[i] > 1), None)


def _axes(source: ArrayView) -> list[Axis]:
    """The axes before the last, as few as there may be, that of `_adjacent` behind the others."""
    each = [*map(Axis, source.shape, source.strides, packed_strides(source))]
    row = _adjacent(source)
    order = [*(i for i in range(source.ndim - 1) if i != row), *([] if row is None else [row])]
    merged: list[Axis] = []
    for axis in (each[i] for i in order if each[i].extent > 1 and each[i].source):
        outer = merged[-1] if merged else None
        if outer and (outer.source, outer.packed) == (
            axis.source * axis.extent,
            axis.packed * axis.extent,
        ):
            merged[-1] = axis._replace(extent=outer.extent * axis.extent)
        else:
            merged.append(axis)
    return merged or [Axis(1, 0, 0)]


def choose(source: ArrayView) -> Config:
    """The configuration for an array of 1 to 5 axes, none of them of extent 0."""
    size, axes, row = source.dtype.itemsize, _axes(source), _adjacent(source)
    unit = gcd(size, source.alignment())
    if row is None:
        side_by_side = source.shape[-1] == 1 or source.strides[-1] == size
        return Config(size, len(axes), "chunks" if side_by_side else "elements", unit)
    rows = axes[-1].extent
    most = CHUNK if rows * size <= WIDE_ROWS else 4
    width = gcd(rows, most // size, source.alignment(but=row) // size)
    lanes = min(32, 1 << (rows // width - 1).bit_length())
    return Config(size, len(axes), "tile", unit, width, lanes)


def parameters(config: Config, *, source: ArrayView, packed: ArrayView) -> dict[str, int | float]:
    """The parameter block of a launch, by field name: `packed` as `packed_strides` has it.

    Raises ValueError where `config` is for another array, or there are too many chunks.
    """
    expected = choose(source)
    same = ("size", "axes", "reads")
    if any(getattr(config, name) != getattr(expected, name) for name in same):
        raise ValueError(f"source: this instance is for another array than that of {expected}")
    if packed.pointer % CHUNK:
        raise ValueError(f"packed: has to begin at a multiple of {CHUNK} bytes")
    axes = [*(Axis(1, 0, 0),) * (4 - config.axes), *_axes(source)]
    return fields(config, axes, source=source, packed=packed)


def fields(
    config: Config, axes: Sequence[Axis], *, source: ArrayView, packed: ArrayView
) -> dict[str, int | float]:
    """The parameter block of a launch for the columns of `source` and the four axes before them."""
    size, columns = config.size, source.shape[-1]
    row_chunks = ceil(columns * size / CHUNK)
    rows = axes[-1].extent
    row_parts, column_parts = rows, row_chunks
    if config.reads == "tile":
        tile = config.tile
        row_parts = ceil(rows / tile.rows)
        column_parts = ceil(columns * size / tile.row_bytes)
    parts = prod(axis.extent for axis in axes[:-1]) * row_parts * column_parts
    if columns * size >= 2**31:
        raise ValueError(f"source: rows of {columns * size} bytes; fewer than 2^31 are legal")
    if parts > _MOST_PARTS:
        raise ValueError(f"source: {parts} chunks of 16 bytes; {_MOST_PARTS} are the most")
    found: dict[str, int | float] = {
        "source": source.pointer,
        "packed": packed.pointer,
        "source_stride_column": source.strides[-1],
        "columns": columns,
        "rows": rows,
        "row_chunks": row_chunks,
        "row_parts": row_parts,
        "column_parts": column_parts,
        "parts": parts,
    }
    for name, axis in zip(("outer", "middle", "inner", "row"), axes, strict=True):
        found[f"source_stride_{name}"] = axis.source
        found[f"packed_stride_{name}"] = axis.packed
    middles, inners = axes[1].extent, axes[2].extent
    return {
        **found,
        "middles": middles,
        "inners": inners,
        **magic_fields(
            middles=middles, inners=inners, row_parts=row_parts, column_parts=column_parts
        ),
    }
