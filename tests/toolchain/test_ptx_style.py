"""docs/ptx-style.md, of the macros of ``ptx/``: named arguments, few levels."""

from functools import cache

import pytest
from jinja2 import nodes

from cuevo.toolchain import template
from cuevo.toolchain.paths import ptx_directory

pytestmark = pytest.mark.unit

NOT_YET = frozenset(
    {
        "gemm_sm70.ptx",
        "gemm_sm75.ptx",
        "gemm_sm80.ptx",
        "gemm_sm90a.ptx",
        "lib/copy_async.ptx",
        "lib/epilogue_tile.ptx",
        "lib/gemm.ptx",
        "lib/mma_multistage.ptx",
        "lib/mma_pipelined.ptx",
        "lib/output_tile.ptx",
        "lib/warp_iterator.ptx",
        "lib/warp_iterator_sm70.ptx",
        "lib/warp_mma.ptx",
    }
)
"""Files whose calls are not looked at."""
ONE_MORE = frozenset(
    {
        "evoformer_backward_sm70.ptx",
        "evoformer_backward_sm75.ptx",
        "evoformer_backward_sm80.ptx",
        "evoformer_forward_sm70.ptx",
        "evoformer_forward_sm75.ptx",
    }
)
"""Kernels with one level more, which lib/copy_async.ptx and lib/output_tile.ptx have to give up."""
PASSED = {"iterator": "lib/warp_iterator.ptx"}
"""Modules that macros are given, and one of them."""
FILES = sorted(
    path.relative_to(ptx_directory()).as_posix() for path in ptx_directory().rglob("*.ptx")
)
MOST_POSITIONAL, MOST_LEVELS = 4, 4

Macro = tuple[str, str]
"""File and name; the name is empty for the text around the macros."""


@cache
def tree(file: str) -> nodes.Template:
    source = (ptx_directory() / file).read_text(encoding="utf-8")
    return template._environment(ptx_directory()).parse(source, file)


@cache
def calls(file: str) -> tuple[tuple[str, Macro, nodes.Call], ...]:
    """The calls of macros in a file: the macro that each stands in, the one that is called."""
    modules = PASSED | {
        node.target: node.template.value
        for node in tree(file).find_all(nodes.Import)
        if isinstance(node.template, nodes.Const)
    }
    macros = {node.name for node in tree(file).find_all(nodes.Macro)}
    found = []

    def visit(node: nodes.Node, inside: str) -> None:
        if isinstance(node, nodes.Macro):
            inside = node.name
        elif isinstance(node, nodes.Call):
            called = node.node
            if isinstance(called, nodes.Name) and called.name in macros:
                found.append((inside, (file, called.name), node))
            elif isinstance(called, nodes.Getattr) and isinstance(called.node, nodes.Name):
                module = modules.get(called.node.name)
                if module:
                    found.append((inside, (module, called.attr), node))
        for child in node.iter_child_nodes():
            visit(child, inside)

    visit(tree(file), "")
    return tuple(found)


@cache
def levels(macro: Macro) -> int:
    """Macros one within the other, this one included; those of a kernel's file are its text."""
    file, name = macro
    below = [levels(called) for inside, called, _ in calls(file) if inside == name]
    return max(below, default=0) + (file.startswith("lib/") and name != "")


@pytest.mark.parametrize("file", sorted(set(FILES) - NOT_YET))
def test_more_than_four_arguments_are_named(file: str) -> None:
    found = [
        f"ptx/{file}:{call.lineno}: {'.'.join(called)} gets {len(call.args)} by position"
        for _, called, call in calls(file)
        if len(call.args) > MOST_POSITIONAL
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("file", sorted({file for file in FILES if "/" not in file} - NOT_YET))
def test_few_macros_stand_within_each_other(file: str) -> None:
    inside = {"", *(name for name, _, _ in calls(file))}
    most = MOST_LEVELS + (file in ONE_MORE)
    assert max(levels((file, name)) for name in inside) <= most
