"""Pictures of layouts as SVG and PNG files, by matplotlib (the extra ``draw``)."""

from __future__ import annotations

from pathlib import Path

from cuevo.layouts.pictures import Picture

SUFFIXES = (".svg", ".png")

_CELL = (0.42, 0.34)
"""Width and height of a cell, in inches."""


def save(picture: Picture, path: Path) -> None:
    """Write `picture` to `path`, in the format of its suffix, one of SUFFIXES.

    In an SVG every cell is a group ``cell-ROW-COLUMN``, and letters are text. The same picture
    gives the same file.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    from matplotlib import rc_context
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
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_xticks([column + 0.5 for column in range(width)], picture.columns)
    axes.set_yticks([row + 0.5 for row in range(height)], picture.rows)
    axes.tick_params(length=0, labelsize=6, top=False, labeltop=True, labelbottom=False)
    axes.xaxis.set_label_position("top")
    axes.set_ylabel(picture.axes[0], fontsize=7)
    axes.set_xlabel(picture.axes[1], fontsize=7)
    axes.spines[:].set_visible(False)
    axes.set_title(picture.title, fontsize=9)
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "cuevo"}):
        figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.2, metadata=metadata)
