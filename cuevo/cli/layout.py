"""`cuevo layout`: which lane and register hold which element, where a chunk lies, as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cuevo.cli.arguments.usage import (
    EXIT_OK,
    Subparsers,
    UsageError,
    add_command,
    add_json_option,
    console,
    print_json,
    print_table,
    table,
    unknown,
)

if TYPE_CHECKING:
    from cuevo.layouts.pictures import Picture

_DETAILS = """\
examples:
  cuevo layout
  cuevo layout m16n8k16.a
  cuevo layout m8n8k4.acc:1x2 | less
  cuevo layout wgmma.m64n8.acc --output accumulators.svg
  cuevo layout swizzle:4
  cuevo layout quads:4
  cuevo layout ldmatrix.trans --json | jq '.cells[] | select(.lane == 5)'

Capitals in a listed name stand for numbers. In the grid of a fragment, 05:r1h is the high half of
register 1 of lane 5, and rules are between quadrants of 8 x 8. Files are drawn by
matplotlib: pip install "cuevo[draw]".
"""


def add_commands(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "layout",
        "Draw which lane holds which element of a matrix, or where a tile's chunks lie.",
        _DETAILS,
        run,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="what to draw (default: list all)")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="draw into FILE, an .svg or .png, instead"
    )
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        if arguments.output:
            raise UsageError("--output draws one layout: give its name.")
        show_names(as_json=arguments.json)
        return EXIT_OK
    picture = named_picture(arguments.name)
    if arguments.output:
        save(picture, arguments.output)
    if arguments.json:
        cells = [cell.facts for cell in picture.cells]
        print_json({"name": arguments.name, "title": picture.title, "cells": cells})
    elif not arguments.output:
        show(picture)
    return EXIT_OK


def show_names(*, as_json: bool) -> None:
    """The table of all layouts."""
    from cuevo.layouts.catalogue import ENTRIES

    listed = [
        {
            "name": entry.form,
            "shape": entry.shape,
            "registers": entry.registers,
            "what": entry.what,
        }
        for entry in ENTRIES
    ]
    if as_json:
        print_json(listed)
        return
    shown = table("name", "shape", "registers", "what")
    for row in listed:
        shown.add_row(*row.values())
    print_table(shown)


def named_picture(name: str) -> Picture:
    """The picture of the layout `name`; UsageError when there is none."""
    from cuevo.layouts.catalogue import ENTRIES, find_picture

    try:
        picture = find_picture(name)
    except ValueError as error:
        raise UsageError(f"{name}: {error}.") from error
    if picture is None:
        raise unknown("layout", name, [entry.form for entry in ENTRIES])
    return picture


def save(picture: Picture, path: Path) -> None:
    """Draw into a file; UsageError when it is no picture's or there is nothing to draw it with."""
    from cuevo.layouts import drawing

    if path.suffix not in drawing.SUFFIXES:
        raise UsageError(f"--output takes {' or '.join(drawing.SUFFIXES)}, not {path.name!r}.")
    try:
        drawing.save(picture, path)
    except ModuleNotFoundError as error:
        raise UsageError(
            'drawing a file needs matplotlib: pip install "cuevo[draw]". '
            "Without --output the picture is printed."
        ) from error


def show(picture: Picture) -> None:
    """Print the grid, in the colours of the lanes where the terminal has any."""
    from rich.text import Text

    screen = console()
    for line in picture.lines(screen.width):
        if screen.is_terminal:
            pieces = (
                (piece, f"black on {colour}") if colour else (piece, "") for piece, colour in line
            )
            screen.print(Text.assemble(*pieces), soft_wrap=True)
        else:
            print("".join(piece for piece, _ in line).rstrip())
