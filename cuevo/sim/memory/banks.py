"""Banks of shared memory: how many wavefronts an access takes, and how many it could do with.

Shared memory has 32 banks of 4 bytes. A warp's access is done in phases: one of 32 lanes for units
of up to 4 bytes, two of 16 lanes for 8 bytes, four of 8 lanes for 16 bytes; so each matrix of
ldmatrix and stmatrix is a phase. In a phase, lanes that touch the same word share it, and the phase
takes as many wavefronts as the most loaded bank has words. Atomics do not share: each lane updates
its word in its own turn. Lanes that take no part count for nothing.

Nsight Compute counts the same on an H200 for ld, st, ldmatrix and stmatrix of all sizes, strides
and masks that were tried (l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld and _op_st), but for
wide loads whose neighbouring lanes read the same unit: there it merges phases. cp.async counts here
as a store of its size; the hardware's counters mix in its reads, and leave out cp.async.cg.
"""

from dataclasses import dataclass

import numpy as np

from cuevo.sim.aliases import AnyArray, Mask

BANKS = 32
_WORD = 4
_NOBODY = -1


@dataclass(frozen=True)
class BankUse:
    """Use of the banks by an instruction of the text in one launch."""

    line: int
    """Line of the rendered text."""
    origin: str
    """``ptx/<file>:<line>``, as errors have it."""
    opcode: str
    executions: int
    """Warps that ran it with at least one lane."""
    wavefronts: int
    ideal: int
    """Wavefronts if no two words of a phase were in one bank."""

    @property
    def conflicts(self) -> int:
        """Wavefronts that another arrangement would save."""
        return self.wavefronts - self.ideal


def wavefronts(
    addresses: AnyArray, size: int, mask: Mask, *, atomic: bool = False
) -> tuple[int, int, int]:
    """Warps that take part, wavefronts that they need, and the least number possible.

    `addresses` are shared addresses (32, warps) of units of `size` bytes.
    """
    each = max(size // _WORD, 1)
    warps = addresses.shape[1]
    # One row a phase: the words of its lanes, `each` a lane, always 32.
    words = addresses.T.astype(np.int64)[..., None] // _WORD + np.arange(each)
    if mask is not None:
        words[~mask.T] = _NOBODY
    words = np.sort(words.reshape(-1, BANKS), axis=1)
    counted = words != _NOBODY
    busy = counted[:, -1].copy()
    if not atomic:
        counted[:, 1:] &= words[:, 1:] != words[:, :-1]
    phase, place = np.nonzero(counted)
    load = np.bincount(phase * BANKS + words[phase, place] % BANKS, minlength=words.size)
    needed = int(load.reshape(-1, BANKS).max(axis=1).sum())
    present = int(np.count_nonzero(busy.reshape(warps, each).any(axis=1)))
    return present, needed, int(np.count_nonzero(busy))
