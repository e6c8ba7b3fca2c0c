"""The code of templates: what this process has compiled, and what a wheel has brought.

Jinja takes 0.4 s for the templates of an instance of a large kernel, and 0.02 s to render them. So
a wheel has the Python text that it makes of each, and an index: the checksum of the template, and
the lines that its marks stand for. A checkout has none, nor has a template that was edited, or a
Jinja of another version: there a template is compiled when it is rendered.
"""

import json
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.metadata import version
from pathlib import Path
from types import CodeType
from typing import Any

from jinja2.bccache import Bucket, BytecodeCache

from cuevo.toolchain.paths import compiled_directory, ptx_directory
from cuevo.toolchain.rendering import language, source_map

__all__ = ["Codes", "write_codes"]

_INDEX = "templates.json"


class Codes(BytecodeCache):
    """The compiled templates of the process, by name, path and checksum of their text."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], CodeType] = {}
        self._brought = _brought()

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """Both, as `load_bytecode` wants them."""
        return f"{name}\n{filename}"

    def load_bytecode(self, bucket: Bucket) -> None:
        """The code of a template, if it has been compiled."""
        key = bucket.key, bucket.checksum
        if key not in self._codes:
            name, _, path = bucket.key.partition("\n")
            entry = self._brought.get(name)
            if entry is None or entry["checksum"] != bucket.checksum:
                return
            # Marks first: another thread may render by the code as soon as it is there.
            source_map.restore(f"ptx/{name}", entry["first mark"], entry["lines"])
            self._codes[key] = _load(name, path)
        bucket.code = self._codes[key]

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep what was compiled."""
        assert bucket.code is not None
        self._codes[bucket.key, bucket.checksum] = bucket.code


@cache
def _brought() -> dict[str, Any]:
    """Of each template whose code the package has brought: its checksum, first mark and lines."""
    try:
        index = json.loads((compiled_directory() / _INDEX).read_bytes())
    except OSError:
        return {}
    if index["jinja"] != version("jinja2"):
        return {}
    source_map.reserve(index["marks"])
    found: dict[str, Any] = index["templates"]
    return found


def _load(name: str, path: str) -> CodeType:
    """The code of a template that lies at `path`: errors in it are errors there."""
    file = compiled_directory() / _python(name)
    code = SourceFileLoader(name, str(file)).get_code(name)
    assert isinstance(code, CodeType)
    return code.replace(co_filename=path)


def _python(template: str) -> str:
    return f"{template.removesuffix('.ptx')}.py"


def write_codes(target: Path) -> None:
    """Write the code of every template of the package, and the index, to a directory; to be called
    before anything is rendered, so that marks begin with the first.
    """
    codes = BytecodeCache()
    environment = language.environment([ptx_directory()], codes, {})
    loader = environment.loader
    assert loader is not None
    templates = {}
    marks = 0
    for name in environment.list_templates(extensions=["ptx"]):
        source, _, _ = loader.get_source(environment, name)
        file = target / _python(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(environment.compile(source, name, raw=True), encoding="utf-8")
        lines = source_map.marked_lines()[marks:]
        checksum = codes.get_source_checksum(source)
        templates[name] = {"checksum": checksum, "first mark": marks, "lines": lines}
        marks += len(lines)
    index = {"jinja": version("jinja2"), "marks": marks, "templates": templates}
    (target / _INDEX).write_text(json.dumps(index), encoding="utf-8")
