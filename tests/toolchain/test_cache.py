"""cuevo.toolchain.cache: entries come back whole or not at all, whoever else uses the directory."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from cuevo.toolchain import cache as module
from cuevo.toolchain.cache import Cache, user_directory

pytestmark = pytest.mark.unit

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def entry_of(cache: Cache, key: str) -> Path:
    path = cache.path(key)
    assert path is not None
    return path


def test_content_comes_back_from_memory_and_from_disk(cache: Cache) -> None:
    assert cache.get("a") is None
    cache.put("a", CONTENT)
    cache.put("b", b"")
    assert (cache.get("a"), cache.get("b")) == (CONTENT, b"")
    cache.forget()
    assert (cache.get("a"), cache.get("b")) == (CONTENT, b"")
    assert Cache(cache.directory).get("a") == CONTENT
    assert Cache(cache.directory).get("c") is None


def test_memory_is_asked_first(cache: Cache) -> None:
    cache.put("a", CONTENT)
    entry_of(cache, "a").unlink()
    assert cache.get("a") == CONTENT
    cache.forget()
    assert cache.get("a") is None


def test_what_was_read_from_disk_is_kept_in_memory(cache: Cache) -> None:
    cache.put("a", CONTENT)
    cache.forget()
    assert cache.get("a") == CONTENT
    entry_of(cache, "a").unlink()
    assert cache.get("a") == CONTENT


@pytest.mark.parametrize("byte", [0, 13, 14, 20, 45, 46, 47, 5000, -1])
def test_a_changed_byte_is_noticed(cache: Cache, byte: int) -> None:
    cache.put("a", CONTENT)
    cache.forget()
    path = entry_of(cache, "a")
    damaged = bytearray(path.read_bytes())
    damaged[byte] ^= 1
    path.write_bytes(damaged)
    assert cache.get("a") is None
    cache.put("a", CONTENT)
    cache.forget()
    assert cache.get("a") == CONTENT


@pytest.mark.parametrize("length", [0, 5, 14, 46, 47, 1000, -1])
def test_a_cut_entry_is_noticed(cache: Cache, length: int) -> None:
    cache.put("a", CONTENT)
    cache.forget()
    path = entry_of(cache, "a")
    path.write_bytes(path.read_bytes()[:length])
    assert cache.get("a") is None


def test_an_entry_with_a_tail_is_noticed(cache: Cache) -> None:
    cache.put("a", CONTENT)
    cache.forget()
    with entry_of(cache, "a").open("ab") as file:
        file.write(b"x")
    assert cache.get("a") is None


def test_an_entry_under_a_foreign_name_is_noticed(cache: Cache) -> None:
    cache.put("a", CONTENT)
    cache.forget()
    path = entry_of(cache, "b")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(entry_of(cache, "a").read_bytes())
    assert cache.get("b") is None
    assert cache.get("a") == CONTENT


def test_a_directory_in_the_place_of_an_entry_is_survived(cache: Cache) -> None:
    entry_of(cache, "a").mkdir(parents=True)
    assert cache.get("a") is None
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        cache.put("a", CONTENT)
    assert cache.get("a") == CONTENT


def test_no_temporary_files_stay(cache: Cache) -> None:
    for number in range(20):
        cache.put(str(number), CONTENT)
    assert cache.directory is not None
    files = [path for path in cache.directory.rglob("*") if path.is_file()]
    assert sorted(files) == sorted(entry_of(cache, str(number)) for number in range(20))


def test_a_directory_that_cannot_be_written_is_warned_of_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="CUEVO_CACHE_DIR"):
        cache.put("a", CONTENT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put("b", CONTENT)
    assert (cache.get("a"), cache.get("b")) == (CONTENT, CONTENT)


def test_memory_is_bounded(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuevo.toolchain.cache._MEMORY_ENTRIES", 3)
    for number in range(10):
        cache.put(str(number), CONTENT)
    assert len(cache._memory) == 3
    assert all(cache.get(str(number)) == CONTENT for number in range(10))


# Without the package around the module, whose imports take longer than the writing.
WRITER = """
import runpy, sys
Cache = runpy.run_path(sys.argv[3])["Cache"]
cache = Cache(sys.argv[1])
for round in range(60):
    cache.forget()
    found = cache.get("shared")
    assert found is None or len(set(found)) == 1 and len(found) == 200_000, len(found)
    cache.put("shared", bytes([int(sys.argv[2])]) * 200_000)
"""


def test_processes_that_write_the_same_entry_never_read_a_mixture(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(number), module.__file__],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
    content = Cache(tmp_path).get("shared")
    assert content is not None
    assert len(content) == 200_000


def test_the_directory_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("CUEVO_CACHE_DIR", raising=False)
    assert Cache().directory == tmp_path / "home" / ".cache" / "cuevo"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, by the XDG specification
    assert user_directory() == tmp_path / "home" / ".cache" / "cuevo"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert user_directory() == tmp_path / "xdg" / "cuevo"
    monkeypatch.setenv("CUEVO_CACHE_DIR", str(tmp_path / "own"))
    assert user_directory() == Cache().directory == tmp_path / "own"
    assert Cache(tmp_path / "given").directory == tmp_path / "given"


def test_a_user_without_a_home_has_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUEVO_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    cache = Cache()
    assert cache.directory is None
    cache.put("a", CONTENT)
    assert cache.get("a") == CONTENT
    cache.forget()
    assert cache.get("a") is None
