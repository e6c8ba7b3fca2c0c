"""Register fragments of wgmma m64nNk16, which the 128 threads of a warpgroup hold.

Each warp has 16 rows, and holds them like the operand A and the accumulators of mma.m16n8k16.
"""

import numpy as np

from cuevo.layouts.accumulators import WGMMA, WGMMA_F16
from cuevo.layouts.fragments import MMA_M16N8K16_A, WARPGROUP, Fragment

_ROWS = 16 * (np.arange(WARPGROUP) // 32)[:, None, None]

WGMMA_A = Fragment.from_places(
    "wgmma.m64k16 A",
    np.tile(MMA_M16N8K16_A.rows, (4, 1, 1)) + _ROWS,
    np.tile(MMA_M16N8K16_A.columns, (4, 1, 1)),
)
"""[m, k], 16-bit: operand A from registers."""


def wgmma_accumulator(n: int, *, packed: bool = False) -> Fragment:
    """[m, n]: the accumulators of m64nNk16 for N = `n`, in fp32 or `packed` in fp16.

    >>> wgmma_accumulator(32).rows.shape
    (128, 16, 1)
    """
    if n not in range(8, 257, 8):
        raise ValueError(f"N of wgmma is a multiple of 8 from 8 to 256; got {n}")
    return (WGMMA_F16 if packed else WGMMA).fragment(1, n // 8)
