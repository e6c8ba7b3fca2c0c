"""Pictures of layouts as SVG and PNG files, by matplotlib (the extra ``draw``)."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuevo.layouts.pictures import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")

_CELL = (0.42, 0.34)
"""Width and height of a cell, in inches."""
_LETTER, _LINE, _KEY = 0.12, 0.32, 3
"""Width of a letter and height of a line of the legend, and width of a key, in cells."""
_LEAST_WIDTH = 8
"""Of the legend, in cells."""


def save(picture: Picture, path: Path) -> None:
    """Write `picture` to `path`, in the format of its suffix, one of SUFFIXES.

    Rules are where the picture has them, the legend and the key of the colours are below the grid.
    In an SVG every cell is a group ``cell-ROW-COLUMN``, and letters are text. The same picture
    gives the same file.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    height, width = len(picture.rows), len(picture.columns)
    figure = Figure(figsize=(_CELL[0] * width, _CELL[1] * height))
    axes = figure.add_axes((0, 0, 1, 1))
    for cell in picture.cells:
        axes.add_patch(
            Rectangle(
                (cell.column, cell.row),
                1,
                1,
                facecolor=cell.colour,
                edgecolor="white",
                gid=f"cell-{cell.row}-{cell.column}",
            )
        )
        centre = (cell.column + 0.5, cell.row + 0.5)
        axes.text(*centre, cell.caption, ha="center", va="center", fontsize=6)
    ends = [row + 1 for row in range(height) if picture.ends_quadrant(row, height)]
    axes.hlines(ends, 0, width, colors="black", linewidth=1.2)
    ends = [column + 1 for column in range(width) if picture.ends_quadrant(column, width)]
    axes.vlines(ends, 0, height, colors="black", linewidth=1.2)
    _draw_legend(picture, axes)
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_xticks([column + 0.5 for column in range(width)], picture.columns)
    axes.set_yticks([row + 0.5 for row in range(height)], picture.rows)
    axes.tick_params(length=0, labelsize=6, top=False, labeltop=True, labelbottom=False)
    axes.xaxis.set_label_position("top")
    axes.set_ylabel(picture.axes[0], fontsize=7)
    axes.set_xlabel(picture.axes[1], fontsize=7)
    axes.spines[:].set_visible(False)
    axes.set_title(picture.title, fontsize=9)
    write_figure(figure, path, bbox_inches="tight", pad_inches=0.2)


def write_figure(figure: Figure, path: Path, **options: Any) -> None:
    """Write a figure of matplotlib, letters as text; the same figure gives the same file.

    Raises:
        ValueError: another ending than one of SUFFIXES.
    """
    from matplotlib import rc_context

    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: expected a name that ends with {' or '.join(SUFFIXES)}")
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "cuevo"}):
        figure.savefig(path, dpi=150, metadata=metadata, **options)


def _draw_legend(picture: Picture, axes: Axes) -> None:
    """The legend and the key of the colours, below the grid."""
    from matplotlib.patches import Rectangle

    width = max(len(picture.columns), _LEAST_WIDTH)
    lines = textwrap.wrap(picture.legend, int(width / _LETTER))
    top = len(picture.rows) + _LINE
    axes.text(0, top, "\n".join(lines), ha="left", va="top", fontsize=6)
    top += (len(lines) + 0.5) * _LINE
    across = width // _KEY
    for number, key in enumerate(picture.key):
        y, x = top + number // across * 1.5 * _LINE, number % across * _KEY
        for each, colour in enumerate(key.colours):
            place = (x + each * _LINE / 2, y)
            axes.add_patch(Rectangle(place, _LINE / 2, _LINE, facecolor=colour, clip_on=False))
        beside = x + (len(key.colours) + 1) * _LINE / 2
        axes.text(beside, y + _LINE / 2, key.text, ha="left", va="center", fontsize=6)
