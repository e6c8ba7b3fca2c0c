"""cuevo.toolchain.sources and the renderings in the cache: what is edited is always seen."""

import os
import shutil
from pathlib import Path

import pytest

from cuevo.kernels import key_bias_sm70
from cuevo.toolchain import cache, sources, template
from cuevo.toolchain.cache import Cache
from cuevo.toolchain.paths import ptx_directory
from cuevo.toolchain.rendering import lines
from cuevo.toolchain.template import RenderedKernel, render

pytestmark = pytest.mark.unit

VALUES = key_bias_sm70.values(key_bias_sm70.Config(mask="f16"))


@pytest.fixture
def ptx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package's kernels that stands for them, and a cache of its own."""
    directory = tmp_path / "ptx"
    shutil.copytree(ptx_directory(), directory)
    for module in (template, lines):
        monkeypatch.setattr(module, "ptx_directory", lambda: directory)
    monkeypatch.setattr(cache, "default", Cache(tmp_path / "cache"))
    monkeypatch.setattr(sources, "code_digest", lambda: "code")
    return directory


def rendered_by_another_process() -> RenderedKernel:
    template._rendered.cache_clear()
    sources.digest.cache_clear()
    lines._environment.cache_clear()
    return render("key_bias_sm70", VALUES)


def test_a_rendering_comes_back_whole(ptx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rendered_by_another_process()
    monkeypatch.setattr(lines, "render_lines", None)
    found = rendered_by_another_process()
    assert found is not expected
    assert (found.text, found.lines) == (expected.text, expected.lines)
    assert (found.digest, found.params) == (expected.digest, expected.params)
    assert found.describe() == expected.describe()
    assert found.located == expected.located
    assert rendered_by_another_process().lines[0] == expected.lines[0]


@pytest.mark.parametrize(
    ("name", "word"), [("key_bias_sm70.ptx", "ret"), ("lib/divide.ptx", "mul")]
)
def test_an_edit_that_keeps_size_and_time_is_seen(ptx: Path, name: str, word: str) -> None:
    path = ptx / name
    before, status = rendered_by_another_process(), path.stat()
    old = path.read_text(encoding="utf-8")
    path.write_text(old.replace(f" {word}", f" {word.upper()}"), encoding="utf-8")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert path.read_text(encoding="utf-8") != old
    after = rendered_by_another_process()
    assert word.upper() in after.text and word.upper() not in before.text


def test_other_code_and_other_values_have_entries_of_their_own(
    ptx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entries() -> int:
        return len(list((ptx.parent / "cache").rglob("*.bin")))

    rendered_by_another_process()
    first = entries()
    rendered_by_another_process()
    assert entries() == first
    monkeypatch.setattr(sources, "code_digest", lambda: "other code")
    rendered_by_another_process()
    second = entries()
    assert second > first
    render("key_bias_sm70", key_bias_sm70.values(key_bias_sm70.Config(mask="bool")))
    assert entries() == second + 1


def test_what_was_edited_while_it_was_rendered_is_not_kept(
    ptx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    render_lines = lines.render_lines

    def slow(*arguments: object) -> object:
        path = ptx / "lib" / "divide.ptx"
        path.write_text(path.read_text(encoding="utf-8") + "// more\n", encoding="utf-8")
        return render_lines(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(lines, "render_lines", slow)
    rendered_by_another_process()
    assert [key.partition("\n")[0] for key in cache.default._memory] == ["header"]


def test_values_are_written_so_that_they_can_be_told_apart() -> None:
    values = [1, True, 1.0, "1", None, "None", {"a": 1}, {"b": 1}, {"a": True}]
    values += [key_bias_sm70.Config(mask=mask) for mask in ("f16", "bool")]
    written = [template._written(value) for value in values]
    assert None not in written and len(set(written)) == len(values)
    assert template._written({"a": object()}) is None
    assert template._written([1]) is None


def test_the_code_that_renders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"{path.parent.name}/{path.name}" for path in sources._code()}
    assert names >= {"rendering/lines.py", "layouts/tiles.py", "kernels/key_bias_sm70.py"}
    assert names >= {"cuevo/architectures.py", "jinja2/compiler.py", "pycparser/c_parser.py"}
    digest = sources.code_digest.__wrapped__
    path = tmp_path / "code.py"
    path.write_text("1")
    os.utime(path, ns=(0, 0))
    monkeypatch.setattr(sources, "_code", lambda: iter([path]))
    one = digest()
    assert digest() == one
    path.write_text("2")  # after this process has imported it, so to speak
    assert digest() != digest()
    os.utime(path, ns=(0, 0))
    assert one != digest() == digest()
