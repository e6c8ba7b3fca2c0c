"""Loops that Numba compiles, where it is installed: over elements, where NumPy would go over
whole arrays once for each operation, and wait for memory.

A compiled function and what NumPy does in its absence give the same bits; tests run both. The first
call compiles, in seconds, or finds what Numba keeps beside the module.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

Compiler = Callable[[Callable[..., Any]], Any]


@cache
def compiled(function: Callable[..., Any]) -> Any | None:
    """`function`, a loop over arrays, compiled; None without Numba."""
    return _compiled(function, lambda numba, **keeps: numba.njit(error_model="numpy", **keeps))


@cache
def compiled_elementwise(function: Callable[..., Any], signature: str) -> Any | None:
    """`function` of numbers as a ufunc with one signature, such as "float32(float32)"; None
    without Numba.
    """
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
