"""The folders of cuevo/: how many entries they have, in which direction they import, and how long
files are.
"""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import cuevo

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cuevo"
MOST_ENTRIES, MOST_LINES = 16, 600
LARGE_FOLDERS = {"kernels", "sim/instructions"}
"""A module for each kernel, and one for each group of instructions."""

ANYWHERE = {"errors", "architectures", "reference"}
MAY_IMPORT = {
    "layouts": set(),
    "cuda": set(),
    "arrays": {"cuda"},
    "toolchain": {"layouts"},
    "kernels": {"layouts", "toolchain", "arrays", "cuda"},
    "sim": {"layouts", "cuda"},
    "executors": {"arrays", "cuda", "toolchain", "sim"},
    "ops": {"executors", "kernels", "toolchain", "arrays", "cuda", "layouts", "sim"},
    "check": {"ops", "executors", "kernels", "sim", "toolchain", "arrays", "cuda"},
    "cli": {
        *("check", "ops", "executors", "kernels", "sim", "toolchain", "arrays", "layouts", "cuda")
    },
    "torch": {"ops", "arrays", "cuda"},
    "jax": {"ops", "executors", "kernels", "toolchain", "arrays", "cuda"},
}
"""For each folder or module of cuevo/ the others that it may import, besides those that are for
everybody.
"""
FOLDERS_OF_SIM = ("text", "arithmetic", "memory", "sync", "machine", "instructions", "run")
"""Each may import those before it, and the modules at the top of cuevo/sim."""


@cache
def modules() -> dict[str, Path]:
    """The modules and packages of cuevo, by dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """The modules of cuevo that a module imports, wherever in its text."""
    found = set()
    for node in ast.walk(ast.parse(modules()[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in modules() else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(name for name in found if name.partition(".")[0] == "cuevo")


def arrows(package: str) -> Iterator[tuple[str, str, str]]:
    """The folder of `package` that a module belongs to, the one that it imports, and the module."""
    depth = package.count(".") + 1
    for module in modules():
        for imported in imports(module):
            if module.startswith(f"{package}.") and imported.startswith(f"{package}."):
                folder, other = (name.split(".")[depth] for name in (module, imported))
                if folder != other:
                    yield folder, other, module


@pytest.mark.unit
def test_folders_import_in_one_direction() -> None:
    wrong = [
        f"{module} imports from {other}"
        for folder, other, module in arrows("cuevo")
        if other not in MAY_IMPORT.get(folder, set()) | ANYWHERE
        if (folder, other) != ("__main__", "cli")
    ]
    assert wrong == []
    entries = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith("_")}
    assert entries - {"py"} == set(MAY_IMPORT) | ANYWHERE


@pytest.mark.unit
def test_the_folders_of_the_cpu_executor_import_in_one_direction() -> None:
    order = {name: index for index, name in enumerate(FOLDERS_OF_SIM)}
    wrong = [
        f"{module} imports from {other}"
        for folder, other, module in arrows("cuevo.sim")
        if order.get(other, -1) >= order.get(folder, -1)
        if folder in order or other in order
    ]
    assert wrong == []
    assert {path.parent.name for path in PACKAGE.glob("sim/*/__init__.py")} == set(order)


@pytest.mark.unit
def test_no_module_imports_itself_by_way_of_others() -> None:
    try:
        TopologicalSorter({module: imports(module) for module in modules()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.unit
def test_a_folder_is_seen_at_a_glance() -> None:
    crowded = {}
    folders = [path.parent for path in PACKAGE.rglob("__init__.py")]
    for folder in folders:
        name = folder.relative_to(PACKAGE).as_posix()
        # py.typed is a mark for type checkers, __main__.py another name of the command: neither is
        # an entry of its own.
        entries = [
            path.name
            for path in folder.iterdir()
            if path.name not in ("__main__.py", "__pycache__", "py.typed", "_ptx")
        ]
        if len(entries) > MOST_ENTRIES and name not in LARGE_FOLDERS:
            crowded[name] = sorted(entries)
    assert crowded == {}


@pytest.mark.unit
def test_files_fit_in_a_reader_s_head() -> None:
    files = [*ROOT.glob("ptx/**/*"), *ROOT.glob("examples/**/*")]
    files += [path for top in ("cuevo", "tests", "tools") for path in ROOT.glob(f"{top}/**/*")]
    lines = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in files
        if path.suffix in (".py", ".ptx", ".h", ".txt")
    }
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


@pytest.mark.unit
def test_operations_are_functions_and_no_module_has_their_names() -> None:
    for name in cuevo.__all__:
        assert callable(getattr(cuevo, name))
        assert f"cuevo.{name}" not in modules()
        homes = (f"cuevo.{home}.{name}" for home in ("arrays", "executors", "executors.own", "ops"))
        assert not set(homes) & modules().keys()


@pytest.mark.unit
def test_packages_say_what_lives_in_them() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        assert len(words.split()) > 5, path
