"""Circumstances of a measurement: device, clocks, driver, versions, date, command."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_QUERY = (
    "name",
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
)

_DISTRIBUTIONS = (
    "cuevo",
    "cuda-bindings",
    "cuda-core",
    "nvidia-nvjitlink",
    "numpy",
    "torch",
    "jax",
    "jaxlib",
    "triton",
    "nvidia-cudnn-cu13",
    "cuequivariance-torch",
    "trifast",
    "bionemo-ir",
)


class ClockReading:
    """A query of nvidia-smi that runs beside the measurement; it changes no setting."""

    def __init__(self) -> None:
        command = [
            "nvidia-smi",
            f"--query-gpu={','.join(_QUERY)}",
            "--format=csv,noheader",
            "-i",
            "0",
        ]
        try:
            self._process: subprocess.Popen[str] | None = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError:
            self._process = None

    def result(self) -> dict[str, str]:
        """The fields of the answer, with units; empty where there was no answer."""
        if self._process is None:
            return {}
        try:
            answer, _ = self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return {}
        return parse_query(answer)


def parse_query(answer: str) -> dict[str, str]:
    """The first line of nvidia-smi's CSV answer by field name."""
    lines = answer.strip().splitlines()
    values = [value.strip() for value in lines[0].split(",")] if lines else []
    return dict(zip(_QUERY, values, strict=True)) if len(values) == len(_QUERY) else {}


def versions() -> dict[str, str]:
    """Versions of what takes part and is installed."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def circumstances() -> dict[str, Any]:
    """Date (UTC), command line without the folders of its paths, and versions."""
    words = [Path(word).name for word in sys.argv[1:]]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python3", sys.argv[0], *words]),
        "versions": versions(),
        "idle": ClockReading().result(),
    }
