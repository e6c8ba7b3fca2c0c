"""Matrices out of the registers of warps, and back."""

from collections.abc import Sequence

import numpy as np

from cuevo.layouts import Fragment
from cuevo.sim.aliases import AnyArray, AnyDType

_REGISTER_BYTES = 4


def elements(fragment: Fragment) -> int:
    """How many a register holds."""
    return int(fragment.rows.shape[2])


def matrix_of(registers: Sequence[AnyArray], fragment: Fragment, dtype: AnyDType) -> AnyArray:
    """The matrix (rows, columns, warps) that the registers, (32, warps) each, hold in `dtype`."""
    each, warps = elements(fragment), registers[0].shape[1]
    matrix = np.empty((*fragment.shape, warps), dtype)
    for r, register in enumerate(registers):
        parts = np.ascontiguousarray(register).view(dtype).reshape(-1, warps, each)
        for part in range(each):
            matrix[fragment.rows[:, r, part], fragment.columns[:, r, part]] = parts[..., part]
    return matrix


def registers_of(matrix: AnyArray, fragment: Fragment) -> list[AnyArray]:
    """The registers (32, warps), as bits, that hold a matrix (rows, columns, warps)."""
    each = elements(fragment)
    bits = matrix.view(f"u{_REGISTER_BYTES // each}")
    if each == 1:
        return [
            bits[fragment.rows[:, r, 0], fragment.columns[:, r, 0]]
            for r in range(fragment.registers)
        ]
    # (32, registers, elements, warps) -> elements innermost
    parts = bits[fragment.rows, fragment.columns].transpose(1, 0, 3, 2)
    return [np.ascontiguousarray(one).view(np.uint32)[..., 0] for one in parts]
