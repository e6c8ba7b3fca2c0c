"""The lines of a rendered template and their origins, or its errors, with file and line."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import TracebackType

import jinja2

from cuevo.errors import TemplateError
from cuevo.toolchain.lineinfo import SourceLine
from cuevo.toolchain.paths import ptx_directory
from cuevo.toolchain.rendering import language, names, source_map
from cuevo.toolchain.rendering.codes import Codes
from cuevo.toolchain.structs import Struct

__all__ = ["calls", "render_lines"]

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


@lru_cache(maxsize=8)
def _environment(roots: Roots) -> jinja2.Environment:
    environment = language.environment([*roots, ptx_directory()], Codes(), names.FILTERS)
    environment.globals = dict(names.GLOBALS)
    return environment


def _labels() -> Callable[[str], str]:
    counts: Counter[str] = Counter()

    def unique(prefix: str) -> str:
        counts[prefix] += 1
        return f"{prefix}_{counts[prefix]}"

    return unique


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
