"""Kernel templates: ``ptx/<kernel>.ptx`` and values to PTX text that knows where it came from.

A template is PTX with three additions, which an editor still takes for PTX comments and names:

- ``//% for i in range(4)``: a line of Jinja, indented as one likes. An expression may go on over
  further lines while a bracket is open; those may begin with ``//%``, too.
- ``${expr}``: the value of an expression. Alone on its line it may be a macro of many lines, and
  all of them get the indentation of that line. Within a line it is a word: the line end that a
  macro's result has is dropped.
- ``//# text``: a comment for readers of the template; ``// text`` goes into the PTX text as well.

Each line of the rendered text has an origin: the file and line of the template that it was written
in, which for a line out of a macro is the line in the macro's body.
"""

import hashlib
import marshal
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType

from cuevo.errors import TemplateError
from cuevo.toolchain import cache
from cuevo.toolchain.header import HEADER_NAME, Struct, load_header
from cuevo.toolchain.lineinfo import LocatedText, SourceLine, add_line_information
from cuevo.toolchain.paths import ptx_directory
from cuevo.toolchain.sources import State, digest, state

__all__ = ["RenderedKernel", "SourceLine", "kernel_names", "render"]


@dataclass(frozen=True)
class RenderedKernel:
    """The PTX text of one instance of a kernel."""

    name: str
    """The entry point, and the stem of the template's file name."""
    text: str
    lines: tuple[SourceLine | None, ...]
    """``lines[i]`` is the origin of line ``i + 1`` of the text; None for a line of no template."""
    values: Mapping[str, object]
    """Values that the template was given."""
    params: Struct
    """The parameter block of a launch."""
    directory: Path | None = None
    """Of the template, if there is one."""

    @property
    def file(self) -> str:
        """The file that the kernel is written in, as messages call it."""
        own = None if self.directory else next(filter(None, self.lines), None)
        return own.file if own else f"ptx/{self.name}.ptx"

    def origin(self, line: int) -> SourceLine | None:
        """Origin of line `line` of the text, counted from 1; None where there is none."""
        return self.lines[line - 1] if 1 <= line <= len(self.lines) else None

    def path(self, file: str) -> Path | None:
        """Where a file is that origins name; None where it is not to be had."""
        folder, _, name = file.partition("/")
        places = [Path(file)]
        if folder == "ptx":
            places = [(self.directory or ptx_directory()) / name, ptx_directory() / name]
        return next((place for place in places if place.is_file()), None)

    def callers(self, line: int) -> tuple[SourceLine, ...]:
        """The lines whose macro calls brought line `line` of the text, the innermost first. The
        template is rendered once more to find them; there are none if it was edited meanwhile.
        """
        return self._calls[line - 1][1:] if 1 <= line <= len(self._calls) else ()

    @cached_property
    def _calls(self) -> Sequence[tuple[SourceLine, ...]]:
        try:
            found = self._called_now()
        except (OSError, TemplateError):
            return ()
        written = [each[0] if each else None for each in found]
        same = len(written) == len(self.lines) and all(
            theirs in (None, own) for theirs, own in zip(written, self.lines, strict=True)
        )
        return found if same else ()

    def _called_now(self) -> Sequence[tuple[SourceLine, ...]]:
        """The callers of each line, and before them its origin, in the template as it is now."""
        if self.directory is None:
            return ()
        given = _Values(self.values)
        of = self.name, self.directory, _files(self.directory)
        try:
            return _called(*of, given)
        except _UnhashableValues:
            return _called.__wrapped__(*of, given)

    def field(self, offset: int) -> str:
        """The field at this offset of the parameter block, "" if none begins there."""
        return next((each.name for each in self.params.fields if each.offset == offset), "")

    def describe(self) -> str:
        """The instance in one line: ``key_bias_sm70(mask=f16, threads=128)``."""
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.values.items())})"

    @cached_property
    def located(self) -> LocatedText:
        """The text with ``.loc`` and ``.file`` directives, which is what is assembled: a profiler
        and a disassembly then name the file that the author edits. A text that has such directives
        already keeps to them.
        """
        if re.search(r"^\s*\.file\b", self.text, re.MULTILINE):
            return LocatedText(self.text, self.lines, range(1, len(self.lines) + 1))
        text = self.text.removesuffix("\n").split("\n")
        return add_line_information(text, [self.origin(n) for n in range(1, len(text) + 1)])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text and of the origins of its lines, in hexadecimal."""
        origins = "\n".join(map(str, self.lines))
        return hashlib.sha256(f"{self.text}\0{origins}".encode()).hexdigest()

    @cached_property
    def code(self) -> str:
        """What the machine code is made from: the text without comments and indentation."""
        text = self.text
        if "/*" in text:
            text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
        lines = [" ".join(line.partition("//")[0].split()) for line in text.split("\n")]
        return "\n".join(filter(None, lines))

    @cached_property
    def code_digest(self) -> str:
        """SHA-256 of the code.

        A reworded comment, or a macro that moves to another file, leaves it as it is.
        """
        return hashlib.sha256(self.code.encode()).hexdigest()


def kernel_names() -> tuple[str, ...]:
    """Names of all kernels, sorted: the ``.ptx`` files directly under ``ptx/``."""
    return _names(ptx_directory())


def render(
    kernel: str, values: Mapping[str, object], *, directory: Path | None = None
) -> RenderedKernel:
    """Render the template of `kernel`, giving it the names in `values`.

    `directory` holds the templates and their ``cuevo.h`` (default: the package's own ``ptx/``);
    what they import from ``lib/`` and is not there comes from the package's building blocks.
    Every template sees, besides:

    - ``p``: the kernel's parameter struct: ``${p.q}`` is a field's offset, ``${p.size}`` the size;
    - ``layouts``: the package `cuevo.layouts`;
    - ``range``, ``min``, ``max``, ``gcd``, ``ceil_div(a, b)``;
    - ``float_bits(x)``: a PTX literal of type ``.f32``;
    - ``unique(prefix)``: a label that no other call of this rendering gets;
    - ``fail(message)``: stop, for a macro whose arguments cannot work.

    An imported library sees `values` only if it is imported ``with context``.

    Equal values give the same `RenderedKernel` again, until a file of a directory changes.

    Raises ValueError for a kernel that is not there and for a value that hides one of the names
    above; TemplateError, with file and line, for whatever goes wrong inside of a template, a macro
    that uses a register of its caller's among that (see `free_names`).
    """
    root = ptx_directory() if directory is None else Path(directory).resolve()
    if kernel not in _names(root):
        known = ", ".join(_names(root)) or "none"
        raise ValueError(f"there is no kernel {kernel!r} in {root}; the kernels are: {known}")
    given = _Values(values)
    try:
        return _rendered(kernel, root, _files(root), given)
    except _UnhashableValues:
        return _rendered.__wrapped__(kernel, root, (), given)


class _UnhashableValues(Exception):
    """Values that no rendering can be kept under."""


class _Values:
    """Values of a rendering; equal to others where they have the same names in the same order, and
    are written the same way too: in a template 1 is not True.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = MappingProxyType(dict(values))
        self._key = tuple((name, value, repr(value)) for name, value in values.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Values) and self._key == other._key

    def __hash__(self) -> int:
        try:
            return hash(self._key)
        except TypeError as error:
            raise _UnhashableValues from error


@lru_cache(maxsize=256)
def _rendered(kernel: str, root: Path, files: State, given: _Values) -> RenderedKernel:
    params = _parameter_struct(kernel, root)
    key = None
    if root == ptx_directory() and (written := _written(given.values)) is not None:
        key = "\n".join(("rendering", digest(files), kernel, written))
        if (entry := cache.default.get(key)) is not None:
            return _from_bytes(kernel, entry, given.values, params)
    # It imports Jinja, which takes longer than a first call whose kernels are in the cache.
    from cuevo.toolchain.rendering.lines import render_lines

    lines, origins = render_lines(kernel, (root,), given.values, params)
    text = "".join(f"{line}\n" for line in lines)
    rendered = RenderedKernel(kernel, text, tuple(origins), given.values, params, root)
    # What was edited meanwhile may have been read before or after that.
    if key is not None and files == _files(root):
        cache.default.put(key, _to_bytes(rendered))
    return rendered


@lru_cache(maxsize=16)
def _called(
    kernel: str, root: Path, files: State, given: _Values
) -> Sequence[tuple[SourceLine, ...]]:
    from cuevo.toolchain.rendering.lines import calls

    return calls(kernel, (root,), given.values, _parameter_struct(kernel, root))


def _files(root: Path) -> State:
    """Every file that a rendering may read."""
    return state((root, ptx_directory()))


def _names(directory: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in directory.glob("*.ptx")))


def _parameter_struct(kernel: str, root: Path) -> Struct:
    kernels = load_header(root / HEADER_NAME).kernels
    if kernel not in kernels:
        raise TemplateError(
            f"ptx/{kernel}.ptx:1: ptx/{HEADER_NAME} declares no such kernel; it takes a prototype "
            f"`void {kernel}(const struct S params);`"
        )
    return kernels[kernel]


# -- Cache entries ---------------------------------------------------------------------------------


def _written(value: object) -> str | None:
    """A text that only equal values have; None for values that cannot be told apart by one."""
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if isinstance(value, Mapping):
        pairs: Iterable[tuple[object, object]] = value.items()
    elif is_dataclass(value) and type(value).__module__.startswith("cuevo."):
        pairs = [(field.name, getattr(value, field.name)) for field in fields(value)]
    else:
        return None
    kind = type(value)
    parts = [(name, _written(part)) for name, part in pairs]
    if any(part is None for _, part in parts):
        return None
    return f"{kind.__module__}.{kind.__qualname__}{parts}"


def _to_bytes(kernel: RenderedKernel) -> bytes:
    # Lines of one origin share the object, whose identity is found sooner than its hash.
    identities = [*map(id, kernel.lines)]
    origins = dict(zip(identities, kernel.lines, strict=True))
    numbers = {identity: number for number, identity in enumerate(origins)}
    facts = (
        [origin and (origin.file, origin.line) for origin in origins.values()],
        [numbers[identity] for identity in identities],
        kernel.text,
    )
    # Only one version of Python reads it: that is among what the digest of the key covers.
    return zlib.compress(marshal.dumps(facts), 1)


def _from_bytes(
    kernel: str, entry: bytes, values: Mapping[str, object], params: Struct
) -> RenderedKernel:
    origins, numbers, text = marshal.loads(zlib.decompress(entry))
    found = [origin and SourceLine(*origin) for origin in origins]
    lines = tuple([found[number] for number in numbers])
    return RenderedKernel(kernel, text, lines, values, params, ptx_directory())
