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
import math
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import CodeType, MappingProxyType, TracebackType
from typing import Any, NoReturn

import jinja2
from jinja2.bccache import Bucket, BytecodeCache

from cuevo import layouts
from cuevo.errors import TemplateError
from cuevo.toolchain import source_map
from cuevo.toolchain.direct_calls import DirectCalls
from cuevo.toolchain.division import magic
from cuevo.toolchain.free_names import FreeNames
from cuevo.toolchain.header import HEADER_NAME, Struct, load_header
from cuevo.toolchain.lineinfo import LocatedText, SourceLine, add_line_information
from cuevo.toolchain.paths import ptx_directory

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

    def origin(self, line: int) -> SourceLine | None:
        """Origin of line `line` of the text, counted from 1; None where there is none."""
        return self.lines[line - 1] if 1 <= line <= len(self.lines) else None

    def describe(self) -> str:
        """The instance in one line: ``key_bias_sm70(mask=f16, threads=128)``."""
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.values.items())})"

    @cached_property
    def located(self) -> LocatedText:
        """The text with ``.loc`` and ``.file`` directives, which is what is assembled: a profiler
        and a disassembly then name the file that the author edits.
        """
        text = self.text.removesuffix("\n").split("\n")
        return add_line_information(text, [self.origin(n) for n in range(1, len(text) + 1)])

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the text and of the origins of its lines, in hexadecimal."""
        origins = "\n".join(map(str, self.lines))
        return hashlib.sha256(f"{self.text}\0{origins}".encode()).hexdigest()

    @cached_property
    def code_digest(self) -> str:
        """SHA-256 of what the machine code is made from: no comments, origins, indentation.

        A reworded comment, or a macro that moves to another file, leaves it as it is.
        """
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", self.text, flags=re.DOTALL)
        lines = (" ".join(line.split()) for line in text.split("\n"))
        return hashlib.sha256("\n".join(filter(None, lines)).encode()).hexdigest()


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
        return _rendered(kernel, root, _state(root), given)
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


def _state(root: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time of the last change and size of every file that a rendering may read."""
    found: list[tuple[str, int, int]] = []
    waiting = list(dict.fromkeys((str(root), str(ptx_directory()))))
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting.append(entry.path)
                elif entry.name.endswith((".ptx", ".h")):
                    status = entry.stat()
                    found.append((entry.path, status.st_mtime_ns, status.st_size))
    return tuple(sorted(found))


@lru_cache(maxsize=256)
def _rendered(
    kernel: str, root: Path, _state: tuple[tuple[str, int, int], ...], given: _Values
) -> RenderedKernel:
    params = _parameter_struct(kernel, root)
    # An environment for each rendering: whatever is imported gets its globals from there, and is
    # not kept. What is kept is compiled code.
    base = _environment(root)
    environment = base.overlay()
    environment.globals = {**base.globals, "p": params, "unique": _labels()}
    hidden = sorted(given.values.keys() & environment.globals.keys())
    if hidden:
        raise ValueError(f"{kernel}: {', '.join(hidden)} already has a meaning in every template")
    try:
        marked = environment.get_template(f"{kernel}.ptx").render(**given.values)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"ptx/{error.name}:{error.lineno}: {error.message}") from error
    except Exception as error:
        raise TemplateError(_explain(error, root, kernel)) from error
    lines, origins = source_map.take_marks(marked)
    text = "".join(f"{line}\n" for line in lines)
    return RenderedKernel(kernel, text, tuple(origins), given.values, params)


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


# -- The environment -------------------------------------------------------------------------------


class _CodeInMemory(BytecodeCache):
    """Keeps the compiled templates of the process; the checksum is that of the template's text."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key, bucket.checksum] = bucket.code


@lru_cache(maxsize=8)
def _environment(root: Path) -> jinja2.Environment:
    block_begin, block_end, comment_begin, comment_end = source_map.UNUSED_DELIMITERS
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([root, ptx_directory()]),
        line_statement_prefix=source_map.LINE_STATEMENT,
        variable_start_string="${",
        variable_end_string="}",
        block_start_string=block_begin,
        block_end_string=block_end,
        comment_start_string=comment_begin,
        comment_end_string=comment_end,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
        extensions=[FreeNames, source_map.Marks],
        bytecode_cache=_CodeInMemory(),
    )
    environment.code_generator_class = DirectCalls
    # Jinja's own make 0 of what is no number, and of a number that a macro made.
    environment.filters.update({"int": _int, "float": _float})
    environment.filters.update({"__block": source_map.block, "__word": source_map.word})
    environment.globals = {
        "range": range,
        "min": min,
        "max": max,
        "gcd": math.gcd,
        "ceil_div": ceil_div,
        "float_bits": float_bits,
        "vector": vector,
        "magic": magic,
        "fail": _fail,
        "layouts": layouts,
    }
    return environment


# -- What templates call ---------------------------------------------------------------------------


def ceil_div(a: int, b: int) -> int:
    """`a` divided by `b`, rounded up."""
    return -(-a // b)


def vector(name: str, first: int, count: int) -> str:
    """Vector operand of `count` registers of an array: ``vector("q", 4, 2)`` is ``{q4, q5}``."""
    return "{" + ", ".join(f"{name}{i}" for i in range(first, first + count)) + "}"


def float_bits(x: float) -> str:
    """`x`, rounded to nearest, as a PTX literal of type ``.f32``: ``0f3F800000`` for 1."""
    try:
        return "0f" + struct.pack(">f", x).hex().upper()
    except OverflowError:
        raise ValueError(f"{x!r} is out of the range of .f32") from None


def _int(value: Any) -> int:
    return int(source_map.word(value) if isinstance(value, str) else value)


def _float(value: Any) -> float:
    return float(source_map.word(value) if isinstance(value, str) else value)


def _labels() -> Callable[[str], str]:
    counts: Counter[str] = Counter()

    def unique(prefix: str) -> str:
        counts[prefix] += 1
        return f"{prefix}_{counts[prefix]}"

    return unique


def _fail(message: str) -> NoReturn:
    raise ValueError(message)


# -- Errors ----------------------------------------------------------------------------------------


def _explain(error: Exception, root: Path, kernel: str) -> str:
    """``ptx/file:line: message`` for an exception in a template, and the lines that led there."""
    frames = list(_template_lines(error.__traceback__, root)) or [
        SourceLine(f"ptx/{kernel}.ptx", 1)
    ]
    if isinstance(error, jinja2.TemplateNotFound):
        message = f"there is no template {error.name!r}"
    elif isinstance(error, (jinja2.UndefinedError, ValueError)):
        message = str(error)
    else:
        message = f"{type(error).__name__}: {error}"
    callers = "".join(f"\n    called from {frame}" for frame in reversed(frames[:-1]))
    return f"{frames[-1]}: {message}{callers}"


def _template_lines(traceback: TracebackType | None, root: Path) -> Iterator[SourceLine]:
    while traceback is not None:
        path = Path(traceback.tb_frame.f_code.co_filename)
        for home in (root, ptx_directory()):
            if path.suffix == ".ptx" and path.is_relative_to(home):
                yield SourceLine(f"ptx/{path.relative_to(home).as_posix()}", traceback.tb_lineno)
                break
        traceback = traceback.tb_next
