"""Sectors of global memory: how many 32-byte pieces an access touches, and how few would do.

A warp's load or store asks the caches for sectors; lanes that touch the same one share it. The
fewest are those that its bytes fill. Bulk copies are whole runs, and not counted here.
"""

from dataclasses import dataclass

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask

SECTOR = 32
"""Bytes."""
_NOWHERE = np.iinfo(np.int64).max


@dataclass(frozen=True)
class SectorUse:
    """Use of global memory by an instruction of the text in one launch."""

    line: int
    """Line of the rendered text."""
    origin: str
    """``ptx/<file>:<line>``, as errors have it."""
    opcode: str
    requests: int
    """Warps that ran it with at least one lane."""
    sectors: int
    ideal: int
    """Sectors that the bytes of each request fill."""


def sectors(addresses: AnyArray, size: int, mask: Mask) -> tuple[int, int, int]:
    """Requests, sectors that they touch, and the least number possible; `addresses` of units of
    `size` bytes are (32, warps).
    """
    units = (addresses // np.uint64(size)).astype(np.int64).T.copy()
    if mask is not None:
        units[~mask.T] = _NOWHERE
    units.sort(axis=1)
    there = units != _NOWHERE
    first = there.copy()
    first[:, 1:] &= units[:, 1:] != units[:, :-1]
    filled = np.count_nonzero(first, axis=1) * size
    pieces = units * size // SECTOR
    first[:, 1:] &= pieces[:, 1:] != pieces[:, :-1]
    touched = int(np.count_nonzero(first))
    return int(there[:, 0].sum()), touched, int((-(-filled // SECTOR)).sum())
