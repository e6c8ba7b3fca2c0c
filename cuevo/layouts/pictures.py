"""Layouts as grids of labelled and coloured cells, and such a grid as lines of text."""

from __future__ import annotations

import colorsys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cuevo.layouts.fragments import Fragment
from cuevo.layouts.swizzle import BANK_GROUPS, SharedTile

Run = tuple[str, str | None]
"""A piece of a line and the colour behind it."""


@dataclass(frozen=True)
class Cell:
    """One element, or one chunk, at its place in the grid."""

    row: int
    column: int
    label: str
    """One line of text."""
    caption: str
    """One or two short lines for a square."""
    colour: str
    """``#rrggbb``, light enough for black letters."""
    facts: dict[str, int]
    """The label's numbers by name."""


QUADRANT = 8
"""Rows, and columns, of a quadrant of a fragment: what ldmatrix moves, and m16n8 is made of."""


@dataclass(frozen=True)
class Key:
    """What cells of some colours have in common."""

    text: str
    colours: tuple[str, ...]


@dataclass(frozen=True)
class Picture:
    """A grid with a ruler for its rows and one for its columns; not every place has a cell."""

    title: str
    legend: str
    axes: tuple[str, str]
    """Meaning of rows and of columns."""
    rows: tuple[str, ...]
    """The ruler beside the rows."""
    columns: tuple[str, ...]
    """The ruler above the columns."""
    cells: tuple[Cell, ...]
    key: tuple[Key, ...] = ()
    """The colours, where the captions alone do not tell them."""
    quadrant: int = 0
    """Rows, and columns, from one rule across the grid to the next; 0: there are none."""

    def ends_quadrant(self, place: int, extent: int) -> bool:
        """Whether there is a rule behind the row or column `place` of `extent`."""
        return bool(self.quadrant) and place + 1 < extent and (place + 1) % self.quadrant == 0

    def lines(self, width: int) -> Iterator[list[Run]]:
        """Lines of at most `width` characters: the legends, then the grid, in parts if need be."""
        yield [(self.title, None)]
        yield [(self.legend, None)]
        labels = (*self.columns, *(cell.label for cell in self.cells))
        cell_width, ruler_width = max(map(len, labels)), max(map(len, self.rows))
        fitting = max((width - ruler_width - 1) // (cell_width + 1), 1)
        if self.quadrant and fitting > self.quadrant:
            # Of whole quadrants, each with a rule behind it.
            of_quadrant = self.quadrant * (cell_width + 1) + 2
            fitting = max((width - ruler_width - 1) // of_quadrant, 1) * self.quadrant
        elif 8 < fitting < len(self.columns):
            fitting -= fitting % 8
        by_place = {(cell.row, cell.column): cell for cell in self.cells}
        for first in range(0, len(self.columns), fitting):
            part = range(first, min(first + fitting, len(self.columns)))
            yield []
            behind = {column for column in part[:-1] if self.ends_quadrant(column, 1 + part[-1])}
            heading = "".join(
                f" {self.columns[column]:<{cell_width}}{'  ' * (column in behind)}"
                for column in part
            )
            yield [(f"{'':{ruler_width}} {heading}".rstrip(), None)]
            for row, name in enumerate(self.rows):
                line: list[Run] = [(f"{name:>{ruler_width}} ", None)]
                for column in part:
                    cell = by_place.get((row, column))
                    label, colour = (cell.label, cell.colour) if cell else ("", None)
                    line += [(" ", None), (f"{label:<{cell_width}}", colour)]
                    if column in behind:
                        line.append((" |", None))
                yield line
                if self.ends_quadrant(row, len(self.rows)):
                    dashes = ("-" * (cell_width + 1) + "-+" * (column in behind) for column in part)
                    yield [(f"{'':{ruler_width}} {''.join(dashes)}", None)]


def lane_colour(lane: int) -> str:
    """A hue for each quad of a warp, in a shade for each of its lanes."""
    hue, shade = lane // 4 % 8 / 8, lane % 4
    parts = colorsys.hls_to_rgb(hue, 0.88 - 0.07 * shade, 0.75)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


_QUADS = tuple(
    Key(f"lanes {first} to {first + 3}", tuple(map(lane_colour, range(first, first + 4))))
    for first in range(0, 32, 4)
)


def fragment_picture(fragment: Fragment, title: str, axes: tuple[str, str]) -> Picture:
    """The matrix of `fragment`: in each element's cell, the lane and the register that hold it."""
    count = fragment.rows.shape[2]
    part_name = {1: "", 2: "half", 4: "byte", 8: "nibble", 32: "bit"}[count]
    parts = {1: ("",), 2: ("l", "h")}.get(count) or tuple(f".{part}" for part in range(count))
    explained = {1: "", 2: ", l and h its low and high half"}.get(
        count, f", .0 to .{count - 1} its {part_name}s"
    )
    digits = len(str(fragment.lanes - 1))
    cells = []
    for (lane, register, part), row in np.ndenumerate(fragment.rows):
        column = int(fragment.columns[lane, register, part])
        holder = f"r{register}{parts[part]}"
        facts = {"row": int(row), "column": column, "lane": lane, "register": register}
        cells.append(
            Cell(
                row=int(row),
                column=column,
                label=f"{lane:0{digits}}:{holder}",
                caption=f"L{lane}\n{holder}",
                colour=lane_colour(lane),
                facts=facts | ({part_name: part} if part_name else {}),
            )
        )
    rows, columns = fragment.shape
    registers = "1 register" if fragment.registers == 1 else f"{fragment.registers} registers"
    return Picture(
        title=title,
        legend=(
            f"{rows} x {columns} ({axes[0]} down, {axes[1]} across), "
            f"{registers} in each of {fragment.lanes} lanes; lane and register"
            + explained
            + (", every warp in the same colours" if fragment.lanes > 32 else "")
        ),
        axes=axes,
        rows=tuple(map(str, range(rows))),
        columns=tuple(map(str, range(columns))),
        cells=tuple(sorted(cells, key=lambda cell: (cell.row, cell.column))),
        key=_QUADS,
        quadrant=QUADRANT,
    )


def tile_picture(tile: SharedTile, title: str) -> Picture:
    """A tile in shared memory: each row from the bank group on in which it begins.

    The places of a column are in the same group of banks, so that 8 chunks under 8 different
    headings are read without a conflict. What padding leaves free has no cell.
    """
    cells = []
    for row in range(tile.period):
        begin = row * tile.pitch
        for chunk in range(tile.chunks):
            place = int(tile.place(row, chunk)) - begin
            column = begin % BANK_GROUPS + place
            group = column % BANK_GROUPS
            facts = {"row": row, "chunk": chunk, "place": place, "bank_group": group}
            colour = lane_colour(chunk % 8 * 4 + chunk // 8 % 4)
            cells.append(Cell(row, column, str(chunk), str(chunk), colour, facts))
    extent = 1 + max(cell.column for cell in cells)
    free = " and a free one" if tile.pitch > tile.chunks else ""
    return Picture(
        title=title,
        legend=(
            f"{tile.period} rows of {tile.chunks} places of 16 bytes{free} "
            "(row down, bank group across); the chunk that lies there"
        ),
        axes=("row", "bank group"),
        rows=tuple(map(str, range(tile.period))),
        columns=tuple(str(column % BANK_GROUPS) for column in range(extent)),
        cells=tuple(sorted(cells, key=lambda cell: (cell.row, cell.column))),
    )
