"""Expressions of the template language that begin with a sign."""

import re

import pytest
from blocks.harness import DIRECTORY

from cuevo.toolchain.paths import ptx_directory

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
