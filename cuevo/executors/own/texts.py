"""PTX of anybody's: a file of any folder, or a text, plain or a template, as a `RenderedKernel`.

A plain text is taken as it is. Where it states source lines of its own (``.loc``), those stay; else
its lines are those of the file.
"""

import re
import tempfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from cuevo.errors import CuevoError, TemplateError
from cuevo.executors.own.signature import Parameter, entry_points, parameter_block
from cuevo.toolchain.header import HEADER_NAME, Struct, load_header
from cuevo.toolchain.lineinfo import SourceLine
from cuevo.toolchain.template import RenderedKernel

__all__ = ["entry_of", "is_template", "parameters_of", "read_kernel"]

_NO_VALUES: Mapping[str, object] = {}
_OF_TEMPLATES = re.compile(r"^[ \t]*//[%#]|\$\{", re.MULTILINE)
_PLACE = re.compile(r"\bptx/([\w./-]+\.ptx)(?=:\d)")


def read_kernel(
    source: str | Path,
    *,
    entry: str | None = None,
    values: Mapping[str, object] = _NO_VALUES,
    directories: Iterable[str | Path] = (),
) -> RenderedKernel:
    """The kernel `entry` of a file or of a text; a str of more than one line is a text.

    entry : name of the entry point; may be left out where there is only one.
    values : what a template is given.
    directories : where a template's imports are looked for after its own folder; the package's
        building blocks come last. A template sees the parameter struct ``p`` if a ``cuevo.h`` in
        one of the folders declares a kernel of the file's name.

    Raises ValueError for an entry that is not there and for values that nobody takes, OSError for a
    file that cannot be read, CuevoError, with file and line, for what is no kernel.
    """
    if isinstance(source, str) and "\n" in source:
        return _read_text(source, entry, values, directories)
    path = Path(source)
    text = path.read_text(encoding="utf-8")
    if not is_template(text):
        return _plain(text, str(path), entry, values)
    folders = (path.parent, *map(Path, directories))
    roots = tuple(folder.resolve() for folder in folders)
    params = next(filter(None, map(partial(_declared, path.stem), roots)), None)
    place = partial(_place, folders)
    # It imports Jinja, which plain texts do not need.
    from cuevo.toolchain.rendering import render_lines

    try:
        lines, origins = render_lines(path.stem, roots, values, params)
    except TemplateError as error:
        named = _PLACE.sub(lambda found: place(found[1]), str(error))
        raise TemplateError(named) from error
    text = "".join(f"{line}\n" for line in lines)
    found = tuple(each and SourceLine(place(each.file[4:]), each.line) for each in origins)
    name, parameters = entry_of(text, str(path), entry)
    if params is None or name != path.stem:
        params = parameter_block(name, parameters)
    return RenderedKernel(name, text, found, dict(values), params)


def is_template(text: str) -> bool:
    """Whether a text has anything that only templates have."""
    return _OF_TEMPLATES.search(text) is not None


def entry_of(text: str, file: str, entry: str | None) -> tuple[str, tuple[Parameter, ...]]:
    """Name and parameters of the entry point that is meant; errors as of `read_kernel`."""
    found = entry_points(text, file)
    if not found:
        raise CuevoError(f"{file}: the text has no .entry, which is what a launch begins at")
    listed = ", ".join(found)
    if entry is None:
        if len(found) > 1:
            raise ValueError(f"entry: {file} has several; name one of {listed}")
        (entry,) = found
    if entry not in found:
        raise ValueError(f"entry: there is no {entry!r} in {file}; there are: {listed}")
    return entry, found[entry]


def parameters_of(kernel: RenderedKernel) -> tuple[Parameter, ...]:
    """The parameters of a kernel, as its text declares them."""
    return entry_points(kernel.text, kernel.file)[kernel.name]


def _read_text(
    text: str,
    entry: str | None,
    values: Mapping[str, object],
    directories: Iterable[str | Path],
) -> RenderedKernel:
    if not is_template(text):
        return _plain(text, "text", entry, values)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.ptx"
        path.write_text(text, encoding="utf-8")
        return read_kernel(path, entry=entry, values=values, directories=directories)


def _plain(text: str, file: str, entry: str | None, values: Mapping[str, object]) -> RenderedKernel:
    if values:
        names = ", ".join(values)
        raise ValueError(f"values: {file} is plain PTX, which takes none; got {names}")
    name, parameters = entry_of(text, file, entry)
    lines = tuple(SourceLine(file, n + 1) for n in range(text.count("\n") + 1))
    return RenderedKernel(name, text, lines, {}, parameter_block(name, parameters))


def _declared(kernel: str, folder: Path) -> Struct | None:
    """The struct that the header of a folder declares for a kernel, if it does."""
    header = folder / HEADER_NAME
    return load_header(header).kernels.get(kernel) if header.is_file() else None


def _place(folders: Iterable[Path], name: str) -> str:
    """A template's file as a person finds it, from its name among the folders."""
    for folder in folders:
        if (folder / name).is_file():
            return str(folder / name)
    return f"ptx/{name}"
