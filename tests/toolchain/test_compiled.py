"""cuevo.toolchain.compiled: with what a wheel brings, a package renders as without, and takes
nothing that was made from another text.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]

SEEN = """
import json, sys
import jinja2

compiled, compile = [], jinja2.Environment.compile
def seen(self, source, name=None, *arguments, **options):
    compiled.append(name)
    return compile(self, source, name, *arguments, **options)
jinja2.Environment.compile = seen
"""
"""Begins a program that wants to know which templates its process has compiled."""

SMALL = f"""{SEEN}
from cuevo.kernels import key_bias_sm70
from cuevo.toolchain import render
kernel = render("key_bias_sm70", key_bias_sm70.values(key_bias_sm70.Config(mask="f16")))
print(json.dumps([kernel.digest, sorted(compiled), "pycparser" in sys.modules]))
"""

OF_EVERY_KERNEL = f"""{SEEN}
from helpers.shipped_kernels import FAMILIES
from cuevo.toolchain import kernel_names, render
found = {{}}
for family, instances in FAMILIES.items():
    for label, kernel, values in instances():
        if kernel not in found:
            found[kernel] = render(kernel, values).digest
            assert kernel in kernel_names()
print(json.dumps([found, sorted(compiled)]))
"""

OF_A_USER = f"""{SEEN}
from pathlib import Path
from cuevo.errors import TemplateError
from cuevo.toolchain import render
directory = Path(sys.argv[1])
kernel = render("k", {{"divisor": 3}}, directory=directory)
lines = [str(line) for line in kernel.lines]
callers = [[*map(str, kernel.callers(n))] for n, _ in enumerate(lines, 1)]
try:
    render("k", {{"divisor": None}}, directory=directory)
except TemplateError as error:
    message = str(error)
print(json.dumps([kernel.text, lines, callers, message, sorted(set(compiled))]))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is as a wheel has it."""
    home = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT / "cuevo", home / "cuevo", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "ptx", home / "cuevo" / "_ptx")
    command = [sys.executable, "-m", "cuevo.toolchain.compiled", str(home / "cuevo" / "_compiled")]
    subprocess.run(command, cwd=home, env={**os.environ, "PYTHONPATH": str(home)}, check=True)
    return home


@pytest.fixture
def package(built: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    shutil.copytree(built, tmp_path / "package")
    return tmp_path / "package"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    """What a program of a package has found, with an empty cache."""

    def run(program: str, home: Path, *arguments: object) -> Any:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (home, ROOT / "tests"))),
            "CUEVO_CACHE_DIR": str(tmp_path / f"cache{len([*tmp_path.iterdir()])}"),
        }
        command = [sys.executable, "-c", program, *map(str, arguments)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
        )
        return json.loads(done.stdout)

    return run


def test_an_instance_of_every_kernel(built: Path, run: Callable[..., Any]) -> None:
    expected, compiled = run(OF_EVERY_KERNEL, ROOT)
    assert {f"{kernel}.ptx" for kernel in expected} <= {*compiled}
    assert {*expected} == {path.stem for path in (ROOT / "ptx").glob("*.ptx")}
    assert run(OF_EVERY_KERNEL, built) == [expected, []]


def test_texts_that_were_edited_are_read_anew(package: Path, run: Callable[..., Any]) -> None:
    digest, compiled, parsed = run(SMALL, package)
    assert (compiled, parsed) == ([], False)
    library = package / "cuevo" / "_ptx" / "lib" / "divide.ptx"
    library.write_text("//# a comment\n" + library.read_text(encoding="utf-8"), encoding="utf-8")
    edited, compiled, parsed = run(SMALL, package)
    assert edited != digest, "lines have other numbers"
    assert (compiled, parsed) == (["lib/divide.ptx"], False)
    header = package / "cuevo" / "_ptx" / "cuevo.h"
    header.write_text("/* a comment */\n" + header.read_text(encoding="utf-8"), encoding="utf-8")
    assert run(SMALL, package) == [edited, ["lib/divide.ptx"], True]
    shutil.rmtree(package / "cuevo" / "_compiled")
    again, compiled, parsed = run(SMALL, package)
    assert (again, parsed) == (edited, True) and "key_bias_sm70.ptx" in compiled


def test_code_by_another_jinja_is_not_run(package: Path, run: Callable[..., Any]) -> None:
    digest, _, _ = run(SMALL, package)
    index = package / "cuevo" / "_compiled" / "templates.json"
    facts = json.loads(index.read_text(encoding="utf-8"))
    index.write_text(json.dumps({**facts, "jinja": "2.0"}), encoding="utf-8")
    again, compiled, _ = run(SMALL, package)
    assert again == digest and "key_bias_sm70.ptx" in compiled


def test_kernels_of_a_user_beside_code_of_the_package(
    built: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "cuevo.h").write_text("struct s { int32_t n; };\nvoid k(const struct s params);\n")
    (own / "k.ptx").write_text(
        '//% import "lib/divide.ptx" as divide\n'
        ".entry k() {\n"
        "    .reg .u32 n, q, r;\n"
        "    ${divide.by('q', 'r', 'n', divisor)}\n"
        "    ret;\n"
        "}\n"
    )
    *expected, compiled = run(OF_A_USER, ROOT, own)
    assert {*compiled} == {"k.ptx", "lib/divide.ptx"}
    text, lines, callers, message = expected
    assert run(OF_A_USER, built, own) == [*expected, ["k.ptx"]]
    assert text and {line.partition(":")[0] for line in lines} == {
        "ptx/k.ptx",
        "ptx/lib/divide.ptx",
    }
    assert ["ptx/k.ptx:4"] in callers
    assert message.startswith("ptx/lib/divide.ptx:") and "called from ptx/k.ptx:4" in message
