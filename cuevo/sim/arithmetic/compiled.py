"""Loops that Numba compiles, where it is installed: over elements, where NumPy would go over
whole arrays once for each operation, and wait for memory.

A compiled function and what NumPy does in its absence give the same bits; tests run both. Numba and
what it keeps beside the module take half a second to come, which a small launch is over in, so that
a process does without at first; where nothing is kept yet, the first use compiles, in seconds.
"""

from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

Compiler = Callable[[Callable[..., Any]], Any]

USES_BEFORE = 1024
"""Uses, of any function, that a process makes without; NumPy loses up to a quarter of a second in
them.
"""
_uses = count()


def compiled(function: Callable[..., Any]) -> Any | None:
    """`function`, a loop over arrays, compiled; None without Numba."""
    return _loop(function) if next(_uses) >= USES_BEFORE else None


def compiled_elementwise(function: Callable[..., Any], signature: str) -> Any | None:
    """`function` of numbers as a ufunc with one signature, such as "float32(float32)"; None
    without Numba.
    """
    return _ufunc(function, signature) if next(_uses) >= USES_BEFORE else None


@cache
def _loop(function: Callable[..., Any]) -> Any | None:
    return _compiled(function, lambda numba, **keeps: numba.njit(error_model="numpy", **keeps))


@cache
def _ufunc(function: Callable[..., Any], signature: str) -> Any | None:
    return _compiled(function, lambda numba, **keeps: numba.vectorize([signature], **keeps))


def _compiled(function: Callable[..., Any], compiler: Callable[..., Compiler]) -> Any | None:
    try:
        import numba
    except ImportError:
        return None
    try:
        return compiler(numba, cache=True)(function)
    except RuntimeError:
        # Nowhere to keep it: neither the module's folder nor one of the user's can be written.
        return compiler(numba)(function)
