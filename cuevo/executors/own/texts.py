"""PTX of anybody's: a file of any folder, or a text, plain or a template, as a `RenderedKernel`.

A plain text is taken as it is. Messages name the source lines that a compiler has stated in it,
with ``.loc``, and where there are none the lines of the file.
"""

import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cuevo.errors import CuevoError, TemplateError
from cuevo.executors.own.signature import Parameter, entry_points, parameter_block
from cuevo.toolchain.header import HEADER_NAME, Struct, load_header
from cuevo.toolchain.lineinfo import SourceLine
from cuevo.toolchain.paths import read_text
from cuevo.toolchain.template import RenderedKernel

__all__ = ["entry_of", "is_template", "parameters_of", "read_kernel"]

_NO_VALUES: Mapping[str, object] = {}
_OF_TEMPLATES = re.compile(r"^[ \t]*//[%#]|\$\{", re.MULTILINE)
_PLACE = re.compile(r"\bptx/(.+?\.ptx)(?=:\d)")


_TEXT = "text"
"""What messages call a text that is no file."""


def read_kernel(
    source: str | Path,
    *,
    entry: str | None = None,
    values: Mapping[str, object] = _NO_VALUES,
    directories: str | Path | Iterable[str | Path] = (),
) -> RenderedKernel:
    """The kernel `entry` of a file or of a text; a str of more than one line is a text.

    entry : name of the entry point; may be left out where there is only one.
    values : what a template is given.
    directories : a folder or several where a template's imports are looked for after its own; the
        package's building blocks come last. A template sees the parameter struct ``p`` if a
        ``cuevo.h`` in one of the folders declares a kernel of the file's name.

    Raises ValueError for an entry that is not there and for values that nobody takes, OSError for a
    file that cannot be read, CuevoError, with file and line, for what is no kernel.
    """
    if isinstance(source, str) and "\n" in source:
        file, text = _TEXT, source
    else:
        file, text = str(source), read_text(Path(source))
    folders = [directories] if isinstance(directories, str | Path) else directories
    if not is_template(text):
        return _plain(text, file, entry, values)
    if file != _TEXT:
        return _of_template(Path(source), file, entry, values, folders)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.ptx"
        path.write_text(text, encoding="utf-8")
        return _of_template(path, file, entry, values, folders)


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


@dataclass(frozen=True)
class _Own(RenderedKernel):
    """A kernel that is not the package's."""

    find_calls: Callable[[], Sequence[tuple[SourceLine, ...]]] = tuple
    """Gives for each line its origin, and the lines that called what it came through."""
    folder: Path | None = None
    """Of plain PTX that is a file."""

    def path(self, file: str) -> Path | None:
        """The same; what a compiler read and is not there any more may be beside the PTX."""
        found = super().path(file)
        if found is None and self.folder is not None:
            beside = self.folder / Path(file).name
            return beside if beside.is_file() else None
        return found

    def _called_now(self) -> Sequence[tuple[SourceLine, ...]]:
        return self.find_calls()


@dataclass(frozen=True)
class _Template:
    """A template of any folder."""

    path: Path
    file: str
    """What messages call it."""
    folders: tuple[Path, ...]
    params: Struct | None
    """The struct that a header declares for it."""

    @property
    def _of(self) -> tuple[str, tuple[Path, ...]]:
        return self.path.stem, tuple(folder.resolve() for folder in self.folders)

    def lines(
        self, values: Mapping[str, object]
    ) -> tuple[list[str], tuple[SourceLine | None, ...]]:
        """The lines of an instance, and the origin of each."""
        # It imports Jinja, which plain texts do not need.
        from cuevo.toolchain.rendering.lines import render_lines

        try:
            lines, origins = render_lines(*self._of, values, self.params)
        except TemplateError as error:
            named = _PLACE.sub(lambda found: self._name(found[1]), str(error))
            raise TemplateError(named) from error
        return lines, tuple(each and self._named(each) for each in origins)

    def calls(self, values: Mapping[str, object]) -> list[tuple[SourceLine, ...]]:
        """For each of the lines its origin, and the callers of the macros that it came through."""
        from cuevo.toolchain.rendering.lines import calls

        found = calls(*self._of, values, self.params)
        return [tuple(map(self._named, each)) for each in found]

    def _named(self, line: SourceLine) -> SourceLine:
        return SourceLine(self._name(line.file.removeprefix("ptx/")), line.line)

    def _name(self, name: str) -> str:
        """A file as a person finds it, from its name among the folders."""
        if name == self.path.name:
            return self.file
        there = (folder / name for folder in self.folders if (folder / name).is_file())
        return str(next(there, f"ptx/{name}"))


def _of_template(
    path: Path,
    file: str,
    entry: str | None,
    values: Mapping[str, object],
    directories: Iterable[str | Path],
) -> RenderedKernel:
    folders = (path.parent, *map(Path, directories))
    params = next(filter(None, (_declared(path.stem, folder) for folder in folders)), None)
    template = _Template(path, file, folders, params)
    lines, origins = template.lines(values)
    text = "".join(f"{line}\n" for line in lines)
    name, parameters = entry_of(text, file, entry)
    if params is None or name != path.stem:
        params = parameter_block(name, parameters)
    find_calls = partial(template.calls, dict(values))
    return _Own(name, text, origins, dict(values), params, find_calls=find_calls)


def _plain(text: str, file: str, entry: str | None, values: Mapping[str, object]) -> RenderedKernel:
    if values:
        names = ", ".join(values)
        raise ValueError(f"values: {file} is plain PTX, which takes none; got {names}")
    name, parameters = entry_of(text, file, entry)
    numbers = range(1, text.count("\n") + 2)
    calls: list[tuple[SourceLine, ...]] = []
    if ".loc" in text:
        # The CPU executor, which the driver's side of a call has no use for.
        from cuevo.sim.text.locations import Locations

        stated = Locations(text)
        calls = [tuple(SourceLine(x.file, x.line) for x in stated.calls(n)) for n in numbers]
    lines = tuple(SourceLine(file, n) for n in numbers)
    if calls:
        lines = tuple(x[0] if x else own for x, own in zip(calls, lines, strict=True))
    block = parameter_block(name, parameters)
    folder = None if file == _TEXT else Path(file).parent
    return _Own(name, text, lines, {}, block, find_calls=lambda: calls, folder=folder)


def _declared(kernel: str, folder: Path) -> Struct | None:
    """The struct that the header of a folder declares for a kernel, if it does."""
    header = folder / HEADER_NAME
    return load_header(header).kernels.get(kernel) if header.is_file() else None
