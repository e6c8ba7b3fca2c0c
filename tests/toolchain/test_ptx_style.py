"""docs/ptx-style.md on the text of templates: signs, named arguments, depth of nested macros."""

import re
from collections.abc import Iterator
from functools import cache

import pytest
from blocks.harness import DIRECTORY
from jinja2 import nodes

from cuevo.toolchain.paths import ptx_directory
from cuevo.toolchain.rendering import lines
from cuevo.toolchain.template import kernel_names

pytestmark = pytest.mark.unit

PASSED = {"iterator": "lib/warp_iterator.ptx"}
"""Modules that macros are given, and one of them."""
FILES = sorted(
    path.relative_to(ptx_directory()).as_posix() for path in ptx_directory().rglob("*.ptx")
)
MOST_POSITIONAL = 4

Macro = tuple[str, str]
"""File and name; the name is empty for the text around the macros."""


@cache
def tree(file: str) -> nodes.Template:
    source = (ptx_directory() / file).read_text(encoding="utf-8")
    return lines._environment((ptx_directory(),)).parse(source, file)


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


@pytest.mark.parametrize("file", FILES)
def test_more_than_four_arguments_are_named(file: str) -> None:
    found = [
        f"ptx/{file}:{call.lineno}: {'.'.join(called)} gets {len(call.args)} by position"
        for _, called, call in calls(file)
        if len(call.args) > MOST_POSITIONAL
    ]
    assert not found, "\n".join(found)


def test_no_expression_begins_with_a_sign() -> None:
    """Jinja takes ``{{-`` for "cut the white space before": ``${-x}`` is x, not -x."""
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for home in (ptx_directory(), DIRECTORY)
        for path in sorted(home.rglob("*.ptx"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\$\{[-+]", line)
    ]
    assert not found, "\n".join(found)


# -- Macros ----------------------------------------------------------------------------------------

DEEPEST = 4
"""Macros within macros that a reader of a kernel's file has to follow."""


@cache
def macros(file: str) -> tuple[dict[str, str], dict[str, str]]:
    """Of a template: the text of each macro, "" for what stands outside; files that are imported,
    by name.
    """
    texts, name = {"": ""}, ""
    text = (ptx_directory() / file).read_text(encoding="utf-8")
    for line in text.splitlines():
        if found := re.match(r"//% macro (\w+)", line):
            name = found[1]
            texts[name] = ""
        elif line.startswith("//% endmacro"):
            name = ""
        elif not line.lstrip().startswith("//#"):
            texts[name] += line + "\n"
    return texts, {name: lib for lib, name in re.findall(r'//% import "(.+)" as (\w+)', text)}


def called(file: str, macro: str) -> Iterator[tuple[str, str]]:
    """Files and names of the macros that a macro calls; a module that is chosen when the template
    is rendered stands for all that are imported.
    """
    texts, imported = macros(file)
    for owner, dot, name in re.findall(r"(\w*)\]?(\.?)\b(\w+)\(", texts[macro]):
        libraries = [imported[owner]] if owner in imported else [*imported.values()]
        for library in libraries if dot else [file]:
            if name in macros(library)[0]:
                yield library, name


def deepest(file: str, macro: str = "") -> list[str]:
    """The longest chain of calls from a macro, or from the kernel's own text."""
    chains = [[f"{at}: {name}", *deepest(at, name)] for at, name in set(called(file, macro))]
    return max(chains, key=len, default=[])


@pytest.mark.parametrize("kernel", kernel_names())
def test_macros_are_not_nested_deep(kernel: str) -> None:
    chain = deepest(f"{kernel}.ptx")
    assert 0 < len(chain) <= DEEPEST, "\n".join(chain)
