"""The language of the templates, for Jinja: how a text is read, and what code becomes of it."""

from collections.abc import Callable, Mapping, Sequence
from keyword import iskeyword
from pathlib import Path

import jinja2
from jinja2 import nodes
from jinja2.bccache import BytecodeCache
from jinja2.compiler import CodeGenerator, Frame

from cuevo.toolchain.rendering import source_map

__all__ = ["environment"]


def environment(
    directories: Sequence[Path], codes: BytecodeCache, filters: Mapping[str, Callable[..., object]]
) -> jinja2.Environment:
    """An environment for templates in `directories`, the first of which that has one is taken.

    codes : keeps the code of compiled templates.
    filters : beside Jinja's own.
    """
    block_begin, block_end, comment_begin, comment_end = source_map.UNUSED_DELIMITERS
    found = jinja2.Environment(
        loader=_Files(directories, encoding="utf-8-sig"),
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
        bytecode_cache=codes,
    )
    found.code_generator_class = _DirectCalls
    found.filters.update({**filters, "__block": source_map.block})
    return found


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
