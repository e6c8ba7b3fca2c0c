"""Code of templates that calls functions and macros directly.

Jinja sends each call through its context, for functions that want to be given the context: no
template here has one, and kernels make some ten thousand calls each.
"""

from keyword import iskeyword

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame


class DirectCalls(CodeGenerator):
    """Jinja's code generator, with plain Python calls in the generated code."""

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
