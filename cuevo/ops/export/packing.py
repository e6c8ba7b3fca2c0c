"""Packing in C: the instances of a folder, and what a launch of one is given."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from cuevo.arrays import ArrayView
from cuevo.kernels import pack_sm70
from cuevo.kernels.forward import BIAS_BYTES
from cuevo.ops.export.columns import Columns, array_in_c, stand_in
from cuevo.ops.export.formulas import fields_function, number_function
from cuevo.ops.export.instances import Instances
from cuevo.ops.export.selection import Selection
from cuevo.ops.export.tables import Table
from cuevo.ops.export.trace import input_int
from cuevo.toolchain.header import load_header

__all__ = ["constants", "formulas", "tables"]

_READS = ("chunks", "tile", "elements")
_COLUMNS = Columns(
    "pack_config",
    size=lambda c: c.size,
    axes=lambda c: c.axes,
    reads=lambda c: _READS.index(c.reads),
    unit=lambda c: c.unit,
    width=lambda c: c.width,
    lanes=lambda c: c.lanes,
    accesses=lambda c: c.accesses,
    threads=lambda c: c.threads,
    tile_rows=lambda c: c.tile.rows,
    tile_row_bytes=lambda c: c.tile.row_bytes,
)
_MOST_ROWS = 300
"""Adjacent rows from which on all have the same configuration."""


def constants() -> str:
    """Names of numbers."""
    reads = ", ".join(f"PACK_{name.upper()} = {i}" for i, name in enumerate(_READS))
    sizes = f"PACK_CHUNK = {pack_sm70.CHUNK}, PACK_WIDE_ROWS = {pack_sm70.WIDE_ROWS}"
    return f"enum {{ {reads}, {sizes} }};\n"


def formulas() -> Iterator[str]:
    """Functions in C of what the host half computes."""
    array: Any = array_in_c("source")
    size: Any = input_int("size")
    yield number_function(
        "packed_row_bytes",
        "const cuevo_array *source, int64_t size",
        lambda: pack_sm70.row_bytes(array.shape[4], size),
    )
    columns = _COLUMNS.symbols()
    reads = columns.pop("reads")
    tile = SimpleNamespace(rows=columns.pop("tile_rows"), row_bytes=columns.pop("tile_row_bytes"))
    tiled = input_int("PACK_TILE")

    def config() -> Any:
        name = "tile" if reads == tiled else "chunks"
        return stand_in(pack_sm70.Config, {**columns, "reads": name, "tile": tile})

    yield number_function(
        "pack_blocks",
        f"{_COLUMNS.parameter}, int64_t parts",
        lambda: config().grid(input_int("parts"))[0],
    )
    axes = [
        pack_sm70.Axis(*(input_int(f"axes[{i}].{name}") for name in pack_sm70.Axis._fields))  # type: ignore[arg-type]
        for i in range(4)
    ]
    yield fields_function(
        "pack_fields",
        f"{_COLUMNS.parameter}, const axis *axes, const cuevo_array *source, "
        "const cuevo_array *packed",
        load_header().kernels[pack_sm70.NAME],
        lambda: pack_sm70.fields(config(), axes, source=array, packed=array_in_c("packed")),
    )


def tables(selection: Selection, instances: Instances) -> Iterator[str]:
    """The instances that pack what may have to be; `instances` get them."""
    packed = {kind for *_, mask, pair in selection.kinds() for kind in (mask, pair)}
    if "backward" in selection.operations:
        packed |= {*selection.dtypes}
    sizes = {BIAS_BYTES[kind] for kind in packed} - {0, 1}
    found = Table("pack_configs", _COLUMNS.struct)
    for config in dict.fromkeys(each for size in sorted(sizes) for each in _configs(size)):
        number = 0
        for arch in selection.limits:
            number = instances.add(pack_sm70, config, arch)
        found.append(_COLUMNS.row(number, config))
    yield _COLUMNS.declaration
    yield found.text()


def _configs(size: int) -> Iterator[pack_sm70.Config]:
    """What `pack_sm70.choose` has for arrays of elements of `size` bytes."""
    for axes in range(1, 5):
        for unit in (1, 2, 4):
            if unit <= size:
                yield pack_sm70.Config(size, axes, "chunks", unit)
                yield pack_sm70.Config(size, axes, "elements", unit)
        for rows in range(2, _MOST_ROWS):
            for alignment in (each for each in (1, 2, 4, 8, 16) if each >= size):
                strides = (size, 64 * size + alignment)
                array = ArrayView(
                    alignment, (rows, 3), strides, np.dtype(f"u{size}"), "cpu", True, None
                )
                yield replace(pack_sm70.choose(array), axes=axes)
