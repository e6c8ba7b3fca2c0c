"""What a call takes on the CPU executor, about, and the warning of a long one that falls to it
because there is no GPU.
"""

import sys
import warnings
from importlib.util import find_spec

from cuevo.cuda import why_none
from cuevo.errors import CpuExecutorWarning

__all__ = ["cpu_seconds", "in_words", "warn_of_cpu"]

_LONG = 10.0
"""Seconds from which on a caller is warned."""
_NANOSECONDS = {"attention": (70.0, 2.0), "attention_backward": (200.0, 9.0), "gemm": (0.0, 1.5)}
"""For each score, or element of a product, and for each of the head dim's, or k, products in it:
`tools/bench_executor.py` measures them, and compares.
"""
_WITHOUT_NUMBA = 2.0
"""Factor of the time where Numba is not installed."""
_warned = False


def cpu_seconds(operation: str, elements: int, depth: int) -> float:
    """Estimated time, with Numba: of a call with `elements` scores and head dim `depth`, or of a
    product with as many elements, each a sum of `depth` products.
    """
    once, each = _NANOSECONDS[operation]
    return 1e-9 * elements * (once + each * depth)


def warn_of_cpu(seconds: float) -> None:
    """Warn, once in a process, that a call of `seconds` is about to run on the CPU executor for
    want of a GPU; not of a short one.
    """
    global _warned
    if _warned or seconds * _WITHOUT_NUMBA < _LONG:
        return
    if find_spec("numba") is None:
        seconds *= _WITHOUT_NUMBA
    if seconds < _LONG:
        return
    warnings.warn(
        f"this call runs on the CPU executor, which takes about {in_words(seconds)}: "
        f"{why_none()}. device='sim' says that it is meant, and does not warn",
        CpuExecutorWarning,
        stacklevel=_level_of_caller(),
    )
    _warned = True


def in_words(seconds: float) -> str:
    """A time that is estimated: ``14 minutes``."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _level_of_caller() -> int:
    """The `stacklevel` of `warn_of_cpu` at which cuevo was called."""
    frame, level, outermost = sys._getframe(1), 1, 1
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "cuevo":
            outermost = level
        frame, level = frame.f_back, level + 1
    return outermost + 1
