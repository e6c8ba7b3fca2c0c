"""Adds to a wheel what `cuevo.toolchain.compiled` makes of the templates and of their header. An
editable install has none of that, as its templates are edited.
"""

import os
import subprocess
import sys
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Compiled(BuildHookInterface[Any]):
    """The folder ``cuevo/_compiled`` of a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the wheel is put together."""
        if version != "standard":
            return
        self._folder = tempfile.TemporaryDirectory()
        command = [sys.executable, "-m", "cuevo.toolchain.compiled", self._folder.name]
        environment = {**os.environ, "PYTHONPATH": self.root}
        subprocess.run(command, cwd=self.root, env=environment, check=True)
        build_data["force_include"][self._folder.name] = "cuevo/_compiled"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Behind that."""
        if version == "standard":
            self._folder.cleanup()
