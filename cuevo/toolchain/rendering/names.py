"""What every template sees, but for its parameter struct and its own labels."""

import math
import struct
from types import MappingProxyType
from typing import Any, NoReturn

from cuevo import layouts
from cuevo.toolchain.division import magic
from cuevo.toolchain.rendering import source_map

__all__ = ["FILTERS", "GLOBALS", "ceil_div", "float_bits", "vector"]


def ceil_div(a: int, b: int) -> int:
    """`a` divided by `b`, rounded up."""
    return -(-a // b)


def vector(name: str, first: int, count: int) -> str:
    """Vector operand of `count` registers of an array: ``vector("q", 4, 2)`` is ``{q4, q5}``."""
    return "{" + ", ".join(f"{name}{i}" for i in range(first, first + count)) + "}"


def float_bits(x: float) -> str:
    """`x`, rounded to nearest, as a PTX literal of type ``.f32``: ``0f3F800000`` for 1."""
    try:
        return "0f" + struct.pack(">f", x).hex().upper()
    except OverflowError:
        raise ValueError(f"{x!r} is out of the range of .f32") from None


def _fail(message: str) -> NoReturn:
    raise ValueError(message)


def _int(value: Any) -> int:
    return int(source_map.word(value) if isinstance(value, str) else value)


def _float(value: Any) -> float:
    return float(source_map.word(value) if isinstance(value, str) else value)


GLOBALS = MappingProxyType(
    {
        "range": range,
        "min": min,
        "max": max,
        "gcd": math.gcd,
        "ceil_div": ceil_div,
        "float_bits": float_bits,
        "vector": vector,
        "magic": magic,
        "fail": _fail,
        "layouts": layouts,
    }
)
# Jinja's own make 0 of what is no number, and of a number that a macro made.
FILTERS = MappingProxyType({"int": _int, "float": _float})
