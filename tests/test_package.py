"""What is shipped: the wheel's content, README's commands, and what is not imported."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import cuevo

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = target.glob("*.whl")
    return path


def test_the_wheel_is_pure_python(wheel):
    assert wheel.name == f"cuevo-{cuevo.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"cuevo-{cuevo.__version__}.dist-info/WHEEL").decode()
        suffixes = {Path(name).suffix for name in archive.namelist()}
    assert "Root-Is-Purelib: true" in metadata
    assert not suffixes & {".so", ".pyd", ".cubin", ".pyc"}


def test_the_wheel_has_every_kernel_file_and_every_module(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    kernels = [
        path.relative_to(ROOT / "ptx") for path in (ROOT / "ptx").rglob("*") if path.is_file()
    ]
    assert {f"cuevo/_ptx/{path.as_posix()}" for path in kernels} <= names
    modules = (path.relative_to(ROOT) for path in (ROOT / "cuevo").rglob("*.py"))
    assert {path.as_posix() for path in modules} <= names
    assert "cuevo/py.typed" in names
    compiled = {path.with_suffix(".py") for path in kernels if path.suffix == ".ptx"}
    assert {f"cuevo/_compiled/{path.as_posix()}" for path in compiled} <= names
    assert {f"cuevo/_compiled/{name}.json" for name in ("templates", "cuevo.h")} <= names
    page = {f"cuevo/check/page/page.{suffix}" for suffix in ("html.j2", "css", "js")}
    assert page <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "tools/", "ptx/")) for name in names)


def test_an_installed_wheel_finds_its_own_kernels(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    program = (
        "from cuevo.toolchain.paths import ptx_directory; "
        "from cuevo.toolchain import kernel_names; "
        "print(ptx_directory()); print(*kernel_names())"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    directory, names = result.stdout.splitlines()
    assert Path(directory) == tmp_path / "cuevo" / "_ptx"
    assert set(names.split()) == {path.stem for path in (ROOT / "ptx").glob("*.ptx")}


def test_readme_commands_are_what_continuous_integration_runs():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^```sh\n(.*?)\n```$", readme, re.MULTILINE | re.DOTALL)
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert len(commands) == 2
    for command in commands:
        assert "\n" not in command
        assert command in script


def test_continuous_integration_is_a_script_that_parses():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text(encoding="utf-8")
    for command in ("ruff check", "ruff format --check", "mypy --strict cuevo"):
        assert f"\n{command}\n" in text


def test_the_licence_is_the_whole_apache_licence():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert "APPENDIX: How to apply the Apache License to your work." in text


def imported_modules(path: Path) -> set[str]:
    """The top-level names of all modules that a file imports, wherever in the file it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_frameworks_are_imported_by_their_own_modules_only():
    program = "import sys, cuevo; cuevo.attention; print(*{'torch', 'jax'} & set(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert result.stdout.split() == []


TORCH = ("__init__", "calls", "drop_ins", "function", "kinds", "operators", "sharding")
JAX = ("__init__", "callbacks", "folding", "kernels", "lowering", "primitives")
OPTIONAL = {
    "layouts/drawing.py": {"matplotlib"},  # the extra "draw"
    "ops/roofline/plot.py": {"matplotlib"},
    "ops/tuning/plot.py": {"matplotlib"},
    "sim/arithmetic/compiled.py": {"numba"},  # the extra "sim"
    **{f"torch/{name}.py": {"torch"} for name in TORCH},
    **{f"jax/{name}.py": {"jax"} for name in JAX},
}


def test_no_module_imports_what_is_not_a_dependency():
    required = {re.split(r"[<>=]", text)[0] for text in PROJECT["project"]["dependencies"]}
    allowed = required - {"cuda-python", "cuda-core", "nvidia-nvjitlink"} | {"cuda", "cuevo"}
    allowed |= set(sys.stdlib_module_names)
    outside = {}
    for path in sorted((ROOT / "cuevo").rglob("*.py")):
        name = path.relative_to(ROOT / "cuevo").as_posix()
        if found := imported_modules(path) - allowed - OPTIONAL.get(name, set()):
            outside[name] = found
    assert not outside
