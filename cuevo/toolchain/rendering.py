"""Rendering: a template, its values and its parameter struct to the lines of PTX text, by Jinja.

The language of the templates is described in `cuevo.toolchain.template`.
"""

import math
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from keyword import iskeyword
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.bccache import Bucket, BytecodeCache
from jinja2.compiler import CodeGenerator, Frame

from cuevo import layouts
from cuevo.errors import TemplateError
from cuevo.toolchain import source_map
from cuevo.toolchain.division import magic
from cuevo.toolchain.lineinfo import SourceLine
from cuevo.toolchain.paths import ptx_directory
from cuevo.toolchain.structs import Struct

Roots = tuple[Path, ...]


def render_lines(
    kernel: str, roots: Roots, values: Mapping[str, object], params: Struct | None
) -> tuple[list[str], list[SourceLine | None]]:
    """The lines of the template of `kernel` in the first of the directories `roots`, and the origin
    of each; all of them, and then the package's own, are searched for what it imports.

    Raises ValueError for a value that hides a name that every template sees; TemplateError, with
    file and line, for what goes wrong inside of a template.
    """
    return source_map.take_marks(_marked(kernel, roots, values, params, {}))


def calls(
    kernel: str, roots: Roots, values: Mapping[str, object], params: Struct | None
) -> list[tuple[SourceLine, ...]]:
    """For each line that `render_lines` gives, the line that it was written in and those that
    called the macros that it came through, the innermost first.
    """
    filters = {"__block": source_map.block_with_site}
    return source_map.take_calls(_marked(kernel, roots, values, params, filters))


def _marked(
    kernel: str,
    roots: Roots,
    values: Mapping[str, object],
    params: Struct | None,
    filters: Mapping[str, Callable[..., str]],
) -> str:
    # An environment for each rendering: whatever is imported gets its globals from there, and is
    # not kept. What is kept is compiled code.
    base = _environment(roots)
    environment = base.overlay()
    environment.globals = {**base.globals, "unique": _labels()}
    if params is not None:
        environment.globals["p"] = params
    environment.filters = {**base.filters, **filters}
    hidden = sorted(values.keys() & environment.globals.keys())
    if hidden:
        raise ValueError(f"{kernel}: {', '.join(hidden)} already has a meaning in every template")
    try:
        return environment.get_template(f"{kernel}.ptx").render(**values)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"ptx/{error.name}:{error.lineno}: {error.message}") from error
    except Exception as error:
        raise TemplateError(_explain(error, roots, kernel)) from error


# -- The environment -------------------------------------------------------------------------------


class _CodeInMemory(BytecodeCache):
    """Keeps the compiled templates of the process; the checksum is that of the template's text."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key, bucket.checksum] = bucket.code


class _Files(jinja2.FileSystemLoader):
    """Templates of folders."""

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str, Callable[[], bool]]:
        try:
            return super().get_source(environment, template)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{template!r} is no text in UTF-8: {error.reason} at byte {error.start}"
            ) from error


class _DirectCalls(CodeGenerator):
    """Code of templates that calls functions and macros directly. Jinja sends each call through its
    context, for functions that want to be given it: no template here has one, and kernels make some
    ten thousand calls each.
    """

    def visit_Call(  # noqa: N802
        self, node: nodes.Call, frame: Frame, forward_caller: bool = False
    ) -> None:
        self.visit(node.node, frame)
        self.write("(")
        for argument in node.args:
            self._argument("", argument, frame)
        if node.dyn_args is not None:
            self._argument("*", node.dyn_args, frame)
        for keyword in node.kwargs:
            if iskeyword(keyword.key):
                self.fail(f"an argument cannot be called {keyword.key}", node.lineno)
            self._argument("", keyword, frame)
        if node.dyn_kwargs is not None:
            self._argument("**", node.dyn_kwargs, frame)
        self.write("caller=caller)" if forward_caller else ")")

    def _argument(self, prefix: str, node: nodes.Node, frame: Frame) -> None:
        self.write(prefix)
        self.visit(node, frame)
        self.write(", ")


@lru_cache(maxsize=8)
def _environment(roots: Roots) -> jinja2.Environment:
    block_begin, block_end, comment_begin, comment_end = source_map.UNUSED_DELIMITERS
    environment = jinja2.Environment(
        loader=_Files([*roots, ptx_directory()], encoding="utf-8-sig"),
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
        # Looking for what is constant takes longer than to evaluate it.
        optimized=False,
        extensions=[source_map.Marks],
        finalize=source_map.word,
        bytecode_cache=_CodeInMemory(),
    )
    environment.code_generator_class = _DirectCalls
    # Jinja's own make 0 of what is no number, and of a number that a macro made.
    environment.filters.update({"int": _int, "float": _float})
    environment.filters["__block"] = source_map.block
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


def _explain(error: Exception, roots: Roots, kernel: str) -> str:
    """``ptx/file:line: message`` for an exception in a template, and the lines that led there."""
    frames = list(_template_lines(error.__traceback__, roots)) or [
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


def _template_lines(traceback: TracebackType | None, roots: Roots) -> Iterator[SourceLine]:
    while traceback is not None:
        path = Path(traceback.tb_frame.f_code.co_filename)
        for home in (*roots, ptx_directory()):
            if path.suffix == ".ptx" and path.is_relative_to(home):
                yield SourceLine(f"ptx/{path.relative_to(home).as_posix()}", traceback.tb_lineno)
                break
        traceback = traceback.tb_next
