"""Operands of wgmma out of shared memory, for all warps of a chunk at once."""

from typing import NamedTuple

import numpy as np

from cuevo.layouts import CHUNK_BYTES, WARP, MatrixDescriptor, MatrixOperand
from cuevo.layouts.descriptors import Steps, reached, swizzled
from cuevo.sim.aliases import AnyArray, Mask
from cuevo.sim.faults import Fault
from cuevo.sim.machine.state import Machine
from cuevo.sim.memory.global_memory import unit_dtype

_WARPS = 4


class Read(NamedTuple):
    """A matrix, and what was read for it."""

    matrix: AnyArray
    """Patterns: A as (16, depth, warps), B as (depth, rows, warps)."""
    indices: list[AnyArray]
    """Indices of units of `CHUNK_BYTES`, (32, warps) each, as `SharedMemory.indices` has them."""


def read_operand(machine: Machine, addresses: AnyArray, mask: Mask) -> tuple[AnyArray, AnyArray]:
    """Units of 16 bytes at shared addresses (32, warps), and their indices.

    The reads of a wgmma count as those of the warps that issue it.
    """
    # Descriptors have no room for the rank in a cluster: their addresses are the own block's.
    own = addresses + machine.shared.window
    indices = machine.shared.indices(own, CHUNK_BYTES, mask)
    if mask is None:
        # Warp after warp, whose chunks are neighbours.
        warps = machine.happens_before.clocks.warp_by_warp
        values = machine.shared.begin_async_read(indices.T.ravel(), warps)
        return values.reshape(indices.T.shape).T, indices
    values = np.zeros(indices.shape, unit_dtype(CHUNK_BYTES))
    values[mask] = machine.shared.begin_async_read(
        indices[mask], machine.happens_before.clocks.warp_of_lane[mask]
    )
    return values, indices


def read_matrix(
    machine: Machine, operand: MatrixOperand, bits: AnyArray, mask: Mask, *, own_rows: bool
) -> Read:
    """The operand that the descriptors `bits`, one a warp, describe; with `own_rows`, which is A,
    each warp reads its 16 rows of it, else all.
    """
    descriptor = MatrixDescriptor.of(bits)
    here: AnyArray = np.ones(machine.warps, np.bool_)
    if mask is not None:
        here = np.asarray(mask.any(axis=0))
    _check(operand, descriptor, here)
    addresses: AnyArray | None = None
    for swizzle in np.unique(descriptor.swizzle[here]).tolist():
        steps = _by_lanes(operand.steps(swizzle), machine if own_rows else None)
        found = swizzled(reached(steps, descriptor), swizzle)
        alike = descriptor.swizzle == swizzle
        addresses = found if addresses is None else np.where(alike, found, addresses)
    assert addresses is not None
    passes = [read_operand(machine, each.astype(np.uint32), mask) for each in addresses]
    chunks = np.empty((len(passes) * WARP, machine.warps), unit_dtype(CHUNK_BYTES))
    np.concatenate([values for values, _ in passes], out=chunks)
    return Read(_matrix(chunks, operand, own_rows), [indices for _, indices in passes])


def _by_lanes(steps: Steps, machine: Machine | None) -> Steps:
    """The chunks as lanes take them, (passes, 32, 1); where a `machine` is given, each of its warps
    takes its quarter, (1, 32, warps).
    """

    def arranged(each: AnyArray) -> AnyArray:
        flat = each.reshape(-1)
        if machine is not None:
            return flat.reshape(_WARPS, WARP)[machine.warp_in_block % _WARPS].T[None]
        # Lanes beyond the last chunk read again what others read.
        return np.resize(flat, -(-flat.size // WARP) * WARP).reshape(-1, WARP, 1)

    return Steps(*map(arranged, steps))


def _matrix(chunks: AnyArray, operand: MatrixOperand, of_a: bool) -> AnyArray:
    """Chunks (chunks, warps), the last of them perhaps twice, as a matrix of patterns."""
    along, deep = operand.chunks
    if of_a:
        along //= _WARPS
    patterns = chunks[: along * deep].view(f"u{operand.element_bytes}")
    # Both axes in chunks, warps, elements of a chunk.
    apart = patterns.reshape(along, deep, chunks.shape[1], operand.in_chunk)
    row, k = ((0, 3), (1,)) if operand.mn_major else ((0,), (1, 3))
    ordered = apart.transpose(*(row + k if of_a else k + row), 2)
    rows = along * operand.in_chunk if operand.mn_major else along
    shape = (rows, operand.depth) if of_a else (operand.depth, rows)
    return ordered.reshape(*shape, -1)


def _check(operand: MatrixOperand, descriptor: MatrixDescriptor, here: AnyArray) -> None:
    """Refuse what has no meaning, or none that is known."""

    def refuse(wrong: AnyArray, message: str) -> None:
        wrong = wrong & here
        if wrong.any():
            raise Fault(message, np.repeat(wrong[None, :], WARP, axis=0))

    refuse(descriptor.rest != 0, "a descriptor has bits set that belong to none of its fields")
    refuse(
        descriptor.base_offset != 0,
        "a descriptor with a base offset: the CPU executor supports none but 0",
    )
    row_bytes = descriptor.swizzle
    # Bits of an address below 8 rows, less those within a row; none without a swizzle.
    off = (descriptor.start & (8 * row_bytes - 1) & -row_bytes) != 0
    refuse(
        off & (row_bytes != 0),
        "a descriptor's start is not in the first row of its swizzle's pattern of 8 rows, with a "
        "base offset of 0",
    )
    for swizzle in np.unique(row_bytes[here]).tolist():
        if swizzle:
            taken = operand.row_chunks(swizzle) * CHUNK_BYTES
            over = (descriptor.start & (swizzle - 1)) + taken > swizzle
            refuse(
                over & (row_bytes == swizzle),
                f"the operand needs {taken} bytes of each row of the swizzle's pattern, and its "
                "start leaves less",
            )
