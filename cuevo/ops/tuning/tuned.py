"""Tuned choices: configurations that were measured to be the fastest for a class of problems on a
device. Dispatch takes them before what it estimates.

They are in tables, JSON files with a line for each choice: ``tuned.json`` in the cache folder,
which `cuevo tune` writes, before the one that comes with the package. A choice counts on devices of
the name that it was measured on, as long as its kernels are assembled from the same text; one of
the same driver comes before those of others. The environment variable ``CUEVO_TUNED=0`` leaves
tables alone.
"""

import json
import os
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from cuevo.errors import CuevoError
from cuevo.executors import DriverExecutor, Executor, architecture_of
from cuevo.ops.dispatch import ENVIRONMENT as VARIANT
from cuevo.ops.dispatch import KernelVariant
from cuevo.ops.plan import Plan
from cuevo.toolchain.cache import user_directory
from cuevo.toolchain.template import render

__all__ = [
    "Choice",
    "Entry",
    "device_of",
    "digest_of",
    "entry_of",
    "find",
    "left_alone",
    "merge",
    "problem_class",
    "read",
    "settle",
    "user_table",
]

ENVIRONMENT = "CUEVO_TUNED"
SHIPPED = Path(__file__).resolve().parents[2] / "kernels" / "tuned.json"
"""The table that comes with the package, if there is one."""

_EXTENTS = {"batch", "rows", "heads", "queries", "keys", "m", "n", "k"}
_BITS = 5
"""Significant bits of an extent, rounded up, that problems of one class share."""

Variants = Sequence[KernelVariant[Any, Any]]


@dataclass(frozen=True)
class Entry:
    """What was measured for a class of problems on a device."""

    device: str
    """``NVIDIA H200``."""
    driver: str
    """The newest CUDA that it speaks: ``13.0``."""
    operation: str
    problem: str
    """See `problem_class`."""
    choices: tuple[Mapping[str, Any], ...]
    """For each kernel that is chosen its name, the digest of what it is assembled from, and its
    configuration; none where nothing was found to be faster than what is estimated to be.
    """
    milliseconds: float
    """Median time of a call with these."""
    estimated_milliseconds: float
    """The same of the configurations that dispatch estimates to be the fastest."""
    date: str
    """In UTC, ``2026-01-31T12:00:00``."""

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What a table has one entry of."""
        return self.device, self.driver, self.operation, self.problem

    def describe(self) -> str:
        """Where a choice comes from, for a reader."""
        return (
            f"a table: {self.device}, driver {self.driver}, {self.date[:10]}: "
            f"{self.milliseconds:.4g} ms, the estimate's {self.estimated_milliseconds:.4g} ms"
        )


@dataclass(frozen=True)
class Choice:
    """A table's configurations for a call, one for each of its problems."""

    configs: tuple[Any, ...]
    source: str
    """Where they come from, for a reader."""


def settle(
    plan: Plan,
    operation: str,
    variants: Variants,
    problems: Sequence[Any],
    config: object,
    *,
    served: Sequence[Any] | None = None,
) -> tuple[Any, ...]:
    """What `find` finds for a call whose plan is being made, None for each of its problems where
    that is nothing, or where the caller has configured the call. The plan says where its
    configurations come from, and what for.
    """
    plan.problems = tuple(problems)
    plan.served = tuple(served or problems)
    found = None
    if config is not None:
        plan.chosen_by = "the caller"
    elif found := find(operation, variants, problems, plan.place, served=served):
        plan.chosen_by = found.source
    return found.configs if found else (None,) * len(problems)


def find(
    operation: str,
    variants: Variants,
    problems: Sequence[Any],
    place: Executor,
    *,
    served: Sequence[Any] | None = None,
) -> Choice | None:
    """The configurations that the tables have for a call of `operation` on `place`, one for each of
    its problems; None where there are none that are legal, or the environment asks for others.

    served : the problems that the kernels are to serve, if those are other ones.
    """
    if _state.left_alone or os.environ.get(ENVIRONMENT) == "0" or os.environ.get(VARIANT):
        return None
    entry = _look_up(operation, problems, place)
    if entry is None or len(entry.choices) != len(problems):
        return None
    arch = architecture_of(place)
    by_name = {variant.NAME: variant for variant in variants}
    configs = []
    for made, problem in zip(entry.choices, served or problems, strict=True):
        variant = by_name.get(made["kernel"])
        try:
            config = variant and variant.Config(**made["config"])
        except TypeError:  # fields that there are no more
            return None
        if variant is None or config is None or digest_of(variant, config) != made["digest"]:
            return None
        if variant.violations(variant.adapt(config, problem), arch, problem):
            return None
        configs.append(config)
    return Choice(tuple(configs), entry.describe())


def _look_up(operation: str, problems: Sequence[Any], place: Executor) -> Entry | None:
    device, driver = device_of(place)
    wanted = (device, operation, problem_class(problems))
    for table in _tables():
        if known := table.get(wanted):
            return max(known, key=lambda entry: (entry.driver == driver, entry.date))
    return None


def devices() -> list[str]:
    """Names of the devices that the tables have entries of."""
    return sorted({device for table in _tables() for device, _, _ in table})


@contextmanager
def left_alone() -> Iterator[None]:
    """Plans that this thread makes within are as without tables."""
    before, _state.left_alone = _state.left_alone, True
    try:
        yield
    finally:
        _state.left_alone = before


class _State(threading.local):
    left_alone = False


_state = _State()


def device_of(place: Executor) -> tuple[str, str]:
    """Name and driver that entries for a place have; the CPU executor has none of a driver."""
    if isinstance(place, DriverExecutor):
        return place.info.name, place.info.driver_version
    return place.name, ""


def problem_class(problems: Sequence[Any]) -> str:
    """The class of a call that makes a choice for each of `problems`: their fields that are not as
    by default, extents rounded up to 5 significant bits, so that a class spans 6 % at most and
    lengths up to a multiple of 64 stay apart from those above.

    >>> from cuevo.kernels.forward import Problem
    >>> problem_class([Problem(1, 127, 8, 250, 250, 32, "bf16"), ])
    'batch=1 rows=128 heads=8 queries=256 keys=256 head_dim=32 dtype=bf16'
    """
    return " | ".join(" ".join(_words(problem)) for problem in problems)


def _words(problem: Any) -> Iterator[str]:
    for field in fields(problem):
        value = getattr(problem, field.name)
        if field.default is MISSING or value != field.default:
            yield f"{field.name}={_rounded_up(value) if field.name in _EXTENTS else value}"


def _rounded_up(extent: int) -> int:
    step = 1 << max(0, extent.bit_length() - _BITS)
    return -(-extent // step) * step


def digest_of(variant: KernelVariant[Any, Any], config: Any) -> str:
    """What entries have of what a kernel is assembled from."""
    return render(variant.NAME, variant.values(config)).code_digest[:16]


def entry_of(
    operation: str,
    problems: Sequence[Any],
    place: Executor,
    chosen: Sequence[tuple[KernelVariant[Any, Any], Any]],
    *,
    milliseconds: float,
    estimated_milliseconds: float,
    date: str,
) -> Entry:
    """The entry for variants and configurations, `chosen`, one for each of `problems`."""
    choices = tuple(
        {"kernel": variant.NAME, "digest": digest_of(variant, config), "config": asdict(config)}
        for variant, config in chosen
    )
    times = round(milliseconds, 6), round(estimated_milliseconds, 6)
    return Entry(*device_of(place), operation, problem_class(problems), choices, *times, date)


# -- Tables ----------------------------------------------------------------------------------------


def user_table() -> Path | None:
    """The table in the cache folder; None where there is no such folder."""
    directory = user_directory()
    return None if directory is None else directory / "tuned.json"


_Table = Mapping[tuple[str, str, str], tuple[Entry, ...]]


def _tables() -> Iterator[_Table]:
    """The user's table and the package's, entries by device, operation and problem."""
    for path in (user_table(), SHIPPED):
        try:
            changed = path.stat().st_mtime_ns if path else None
        except OSError:
            continue
        if path and changed is not None:
            yield _indexed(path, changed)


@lru_cache(maxsize=4)
def _indexed(path: Path, changed: int) -> _Table:
    found: dict[tuple[str, str, str], tuple[Entry, ...]] = {}
    try:
        entries = read(path)
    except (CuevoError, OSError) as error:
        _warn(str(error))
        return {}
    for entry in entries:
        key = (entry.device, entry.operation, entry.problem)
        found[key] = (*found.get(key, ()), entry)
    return found


@cache
def _warn(message: str) -> None:
    warnings.warn(f"tuned choices are left alone: {message}", RuntimeWarning, stacklevel=2)


def read(path: Path) -> list[Entry]:
    """The entries of a table. CuevoError for a file that is none, OSError for none at all."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        made = [Entry(**(each | {"choices": tuple(each["choices"])})) for each in found["tuned"]]
    except (ValueError, TypeError, KeyError) as error:
        raise CuevoError(
            f"{path} is not a table of tuned choices: {error}; delete it, or tune again"
        ) from error
    return made


def merge(path: Path, entries: Iterable[Entry]) -> int:
    """Put entries into the table at `path`, which is made where there is none; of two with one key
    the newer stays. Returns how many were put. Any number of processes may do so at a time.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path):
        merged = {entry.key: entry for entry in (read(path) if path.exists() else ())}
        count = 0
        for entry in entries:
            old = merged.get(entry.key)
            if old is None or old.date <= entry.date:
                merged[entry.key] = entry
                count += 1
        lines = ",\n".join(json.dumps(asdict(merged[key])) for key in sorted(merged))
        handle, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(f'{{"tuned": [\n{lines}\n]}}\n')
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    return count


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A lock of other processes, which goes with the process that holds it."""
    import fcntl

    with open(path.with_name(f".{path.name}.lock"), "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
