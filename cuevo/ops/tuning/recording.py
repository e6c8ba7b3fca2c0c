"""The calls that an application makes, written to a file that ``CUEVO_RECORD_PROBLEMS`` names: a
line of JSON for each kind of call, once. `cuevo tune --recorded` reads it.

A call is noted where its plan is made, so that repeated calls cost what they cost without.
"""

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cuevo.arrays import ArrayView

__all__ = ["ENVIRONMENT", "describe", "note"]

ENVIRONMENT = "CUEVO_RECORD_PROBLEMS"
_noted: dict[str, set[str] | None] = {}
"""The lines of each file, as far as this process knows them; None for one that cannot be written.
"""


def note(operation: str, views: Mapping[str, ArrayView], options: tuple[object, ...]) -> None:
    """Write a call to the file that the environment names, if any, unless it is in there; warn once
    where that cannot be.
    """
    name = os.environ.get(ENVIRONMENT)
    if not name:
        return
    line = json.dumps(describe(operation, views, options))
    known = _noted.setdefault(name, set())
    if known is None or line in known:
        return
    try:
        _append(Path(name), line, known)
    except OSError as error:
        _noted[name] = None
        warnings.warn(f"{ENVIRONMENT}: calls are not recorded: {error}", RuntimeWarning, 2)


def describe(
    operation: str, views: Mapping[str, ArrayView], options: tuple[object, ...]
) -> dict[str, Any]:
    """A call as a record: of each array shape, strides in bytes, type, and the largest power of two
    up to 16 that divides its address.
    """
    arrays = {
        name: {
            "shape": list(x.shape),
            "strides": list(x.strides),
            "dtype": x.dtype.name,
            "alignment": x.pointer & -x.pointer & 15 or 16,
        }
        for name, x in views.items()
    }
    return {"operation": operation, "arrays": arrays, "options": [_plain(x) for x in options]}


def _plain(option: Any) -> Any:
    """An option as JSON has it: a type by its name, a number of NumPy as Python's."""
    if option is None or isinstance(option, bool | int | float | str):
        return option
    if isinstance(option, tuple):
        return [_plain(x) for x in option]
    try:
        return np.dtype(option).name
    except TypeError:
        return float(option)


def _append(path: Path, line: str, known: set[str]) -> None:
    """Add a line to a file that other processes add to at the same time."""
    import fcntl

    with open(path, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known.update(file.read().splitlines())
        if line not in known:
            file.write(f"{line}\n")
            known.add(line)
