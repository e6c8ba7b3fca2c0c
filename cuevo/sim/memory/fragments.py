"""Matrices out of the registers of warps, and back."""

from collections.abc import Sequence
from functools import cache

import numpy as np

from cuevo.layouts import Fragment
from cuevo.layouts.fragments import Indices
from cuevo.sim.aliases import AnyArray, AnyDType
from cuevo.sim.arithmetic.compiled import compiled
from cuevo.sim.memory.loops.fragments import take_parts


def elements(fragment: Fragment) -> int:
    """Elements of a register."""
    return int(fragment.rows.shape[2])


def matrix_of(registers: Sequence[AnyArray], fragment: Fragment, dtype: AnyDType) -> AnyArray:
    """The matrix (rows, columns, warps) that the registers, (32, warps) each, hold in `dtype`."""
    bits = np.concatenate(registers).view(np.uint32)
    warps = bits.shape[1]
    if dtype.itemsize < bits.itemsize and (loop := compiled(take_parts)) is not None:
        found = np.empty((fragment.rows.size, warps), f"u{dtype.itemsize}")
        loop(bits, _holders(fragment), 8 * dtype.itemsize, found)
        return found.reshape(*fragment.shape, warps).view(dtype)
    if dtype.itemsize < bits.itemsize:
        by_part = np.empty((elements(fragment), *bits.shape), f"u{dtype.itemsize}")
        for part, low in enumerate(by_part):
            # What is above an element is cut off.
            low[...] = bits >> np.uint32(8 * dtype.itemsize * part) if part else bits
        bits = by_part.reshape(-1, warps)
    matrix: AnyArray = bits.take(_holders(fragment), axis=0)
    return matrix.reshape(*fragment.shape, warps).view(dtype)


def registers_of(matrix: AnyArray, fragment: Fragment) -> list[AnyArray]:
    """The registers (32, warps), as bits, that hold a matrix (rows, columns, warps)."""
    rows, columns, warps = matrix.shape
    patterns = matrix.view(f"u{matrix.itemsize}").reshape(rows * columns, warps)
    held = patterns.take(_held(fragment), axis=0)
    parts = held.shape[1]
    if parts == 1:
        bits = held[:, 0].astype(np.uint32, copy=False)
    else:
        bits = np.ascontiguousarray(held.swapaxes(1, 2)).view(np.uint32)[..., 0]
    return list(bits.reshape(fragment.registers, fragment.lanes, warps))


@cache
def _holders(fragment: Fragment) -> Indices:
    """For each element of the matrix, row by row, who holds it: part of a register, register and
    lane as one number; the last one where several do.
    """
    numbers = np.arange(fragment.rows.size).reshape(-1, fragment.registers, fragment.lanes)
    places = np.zeros(fragment.shape, np.intp)
    places[fragment.rows.T, fragment.columns.T] = numbers
    return places.ravel()


@cache
def _held(fragment: Fragment) -> Indices:
    """The elements, counted row by row, that each lane of each register holds: (registers * lanes,
    elements of a register).
    """
    numbers: Indices = fragment.rows * fragment.shape[1] + fragment.columns
    return numbers.swapaxes(0, 1).reshape(-1, elements(fragment))
