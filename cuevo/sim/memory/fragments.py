"""Matrices out of the registers of warps, and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from cuevo.layouts import Fragment
from cuevo.sim.aliases import AnyArray, AnyDType

_REGISTER_BYTES = 4
_ROWS, _PAIRS = 8, 4
"""Most fragments have lane 4 i + j at (i, j) of a grid, or at (j, i)."""


def elements(fragment: Fragment) -> int:
    """Elements of a register."""
    return int(fragment.rows.shape[2])


def matrix_of(registers: Sequence[AnyArray], fragment: Fragment, dtype: AnyDType) -> AnyArray:
    """The matrix (rows, columns, warps) that the registers, (32, warps) each, hold in `dtype`."""
    matrix = np.empty((*fragment.shape, registers[0].shape[1]), dtype)
    patterns = matrix.view(f"u{dtype.itemsize}")
    for register, parts in zip(registers, _places(fragment), strict=True):
        bits = register.view(np.uint32)
        for part, place in enumerate(parts):
            # What is above an element is cut off.
            place.put(patterns, bits >> np.uint32(8 * dtype.itemsize * part) if part else bits)
    return matrix


def registers_of(matrix: AnyArray, fragment: Fragment) -> list[AnyArray]:
    """The registers (32, warps), as bits, that hold a matrix (rows, columns, warps)."""
    patterns = matrix.view(f"u{matrix.itemsize}")
    found = []
    for parts in _places(fragment):
        bits = parts[0].get(patterns).astype(np.uint32, copy=False)
        for part, place in enumerate(parts[1:], 1):
            above = place.get(patterns).astype(np.uint32)
            bits |= np.left_shift(above, 8 * matrix.itemsize * part, out=above)
        found.append(bits)
    return found


@dataclass(frozen=True)
class _Place:
    """Places in a matrix of one element of each lane."""

    index: Any
    """Index of rows and columns: slices that make a grid, or an array each."""
    grid: tuple[int, int] | None
    """Number of rows and columns, None where there is no grid."""

    def put(self, matrix: AnyArray, values: AnyArray) -> None:
        """`values` are (32, warps)."""
        if self.grid is None:
            matrix[self.index] = values
        else:
            block = matrix[self.index]
            turned = block if self.grid[0] == _ROWS else block.swapaxes(0, 1)
            turned[...] = values.reshape(_ROWS, _PAIRS, -1)

    def get(self, matrix: AnyArray) -> AnyArray:
        """A copy, (32, warps)."""
        block: AnyArray = matrix[self.index]
        if self.grid is None:
            return block
        turned = block if self.grid[0] == _ROWS else block.swapaxes(0, 1)
        return np.ascontiguousarray(turned).reshape(_ROWS * _PAIRS, -1)


@cache
def _places(fragment: Fragment) -> list[list[_Place]]:
    """Places of each register, and each part of it."""
    return [
        [
            _place(fragment.rows[:, r, part], fragment.columns[:, r, part])
            for part in range(elements(fragment))
        ]
        for r in range(fragment.registers)
    ]


def _place(rows: AnyArray, columns: AnyArray) -> _Place:
    for shape in ((_ROWS, _PAIRS), (_PAIRS, _ROWS)):
        steps = np.unique(rows), np.unique(columns)
        if tuple(map(len, steps)) != shape or any(len(np.unique(np.diff(x))) > 1 for x in steps):
            continue
        i, j = np.divmod(np.arange(_ROWS * _PAIRS), _PAIRS)
        first, second = (i, j) if shape[0] == _ROWS else (j, i)
        if (rows == steps[0][first]).all() and (columns == steps[1][second]).all():
            index = tuple(slice(x[0], x[-1] + 1, x[1] - x[0]) for x in steps)
            return _Place(index, shape)
    return _Place((rows, columns), None)
