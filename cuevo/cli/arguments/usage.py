"""Exit codes, usage errors, help pages and the console of all commands."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

# Wide enough for every table of the commands; what a terminal has instead is asked of the terminal.
PIPE_WIDTH = 120


class UsageError(ValueError):
    """A command line that cannot be carried out as it stands: exit code 2."""


def unknown(what: str, given: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is not among the known ones, with the nearest of them."""
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return UsageError(f"there is no {what} {given!r}.{hint} Known: {', '.join(names) or 'none'}.")


def add_command(
    subparsers: Subparsers,
    name: str,
    summary: str,
    details: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """A subcommand whose help page opens with `summary` and closes with `details` as written."""
    parser = subparsers.add_parser(
        name,
        help=summary[0].lower() + summary[1:].rstrip("."),
        description=summary,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def natural(text: str) -> int:
    """An integer that is not negative."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no integer from 0 on")
    return int(text)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")


def check_drawing(path: Path | None) -> None:
    """UsageError where matplotlib cannot draw to a file that --plot names."""
    from importlib.util import find_spec

    from cuevo.layouts.drawing import SUFFIXES

    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--plot takes {' or '.join(SUFFIXES)}, not {path.name!r}.")
    if find_spec("matplotlib") is None:
        raise UsageError('drawing a file needs matplotlib: pip install "cuevo[draw]".')


def console(*, stderr: bool = False) -> Console:
    """Console for tables: as wide as the terminal, plain and of fixed width when piped."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else PIPE_WIDTH)


def table(*headings: str, title: str | None = None) -> Table:
    """An empty table; Markdown when standard output is no terminal."""
    from rich import box
    from rich.table import Table

    style = box.SIMPLE_HEAD if sys.stdout.isatty() else box.MARKDOWN
    made = Table(*headings, title=title, title_justify="left", box=style)
    for column in made.columns:
        column.overflow = "fold"
    return made


def print_table(made: Table) -> None:
    """Print a table without the blanks that rich pads its lines with."""
    screen = console()
    if screen.is_terminal:
        screen.print(made)
        return
    with screen.capture() as captured:
        screen.print(made)
    lines = (line.rstrip() for line in captured.get().splitlines())
    print("\n".join(line for line in lines if line))


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))
