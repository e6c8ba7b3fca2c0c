"""The text of the templates: no expression begins with a sign, macros are not nested deep."""

import re
from collections.abc import Iterator
from functools import cache

import pytest
from blocks.harness import DIRECTORY

from cuevo.toolchain.paths import ptx_directory
from cuevo.toolchain.template import kernel_names

pytestmark = pytest.mark.unit


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


@pytest.mark.parametrize("kernel", [name for name in kernel_names() if name.startswith("gemm_")])
def test_macros_of_products_are_not_nested_deep(kernel: str) -> None:
    chain = deepest(f"{kernel}.ptx")
    assert 2 < len(chain) <= DEEPEST, "\n".join(chain)
