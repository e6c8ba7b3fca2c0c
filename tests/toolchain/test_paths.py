"""cuevo.toolchain.paths: the kernel files of a checkout and of an installed package."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cuevo.errors import CuevoError
from cuevo.toolchain import paths

pytestmark = pytest.mark.unit


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that takes itself for the package's."""
    directory = tmp_path / "site-packages" / "cuevo"
    directory.mkdir(parents=True)
    monkeypatch.setattr(paths, "__file__", str(directory / "toolchain" / "paths.py"))
    paths.ptx_directory.cache_clear()
    yield directory
    paths.ptx_directory.cache_clear()


def test_this_package_has_its_header() -> None:
    assert (paths.ptx_directory() / "cuevo.h").is_file()


def test_a_checkout_has_them_beside_the_package(package: Path) -> None:
    (package.parent / "ptx").mkdir()
    assert paths.ptx_directory() == package.parent / "ptx"


def test_an_installed_package_has_its_own(package: Path) -> None:
    (package.parent / "ptx").mkdir()
    (package / "_ptx").mkdir()
    assert paths.ptx_directory() == package / "_ptx"


def test_missing_files_are_named(package: Path) -> None:
    with pytest.raises(CuevoError, match=r"site-packages/cuevo/_ptx nor .*site-packages/ptx"):
        paths.ptx_directory()
