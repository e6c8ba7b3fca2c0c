"""Semantics of instructions: importing this package fills the table of forms."""

from cuevo.sim.instructions import (
    control,
    convert,
    copy_async,
    floating,
    half,
    integer,
    logic,
    matrix,
    memory,
    select,
    warp,
)

__all__ = [
    "control",
    "convert",
    "copy_async",
    "floating",
    "half",
    "integer",
    "logic",
    "matrix",
    "memory",
    "select",
    "warp",
]
