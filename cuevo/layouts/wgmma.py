"""Register fragments of wgmma m64nNk16 and m64nNk8, which the 128 threads of a warpgroup hold.

Each warp has 16 rows, and holds them like the operand A and the accumulators of mma.m16n8k16 or,
in tf32, m16n8k8.
"""

import numpy as np

from cuevo.layouts.accumulators import WGMMA, WGMMA_F16
from cuevo.layouts.fragments import WARPGROUP, Fragment
from cuevo.layouts.mma_shapes import MMA_M16N8K8_A_TF32, MMA_M16N8K16_A

_ROWS = 16 * (np.arange(WARPGROUP) // 32)[:, None, None]


def _of_warps(name: str, warp: Fragment) -> Fragment:
    return Fragment.from_places(
        name, np.tile(warp.rows, (4, 1, 1)) + _ROWS, np.tile(warp.columns, (4, 1, 1))
    )


WGMMA_A = _of_warps("wgmma.m64k16 A", MMA_M16N8K16_A)
"""[m, k], 16-bit: operand A from registers."""
WGMMA_A_TF32 = _of_warps("wgmma.m64k8 A tf32", MMA_M16N8K8_A_TF32)
"""[m, k]: operand A of m64nNk8 from registers."""


def wgmma_accumulator(n: int, *, packed: bool = False) -> Fragment:
    """[m, n]: the accumulators of m64nNk16 and m64nNk8 for N = `n`, in fp32 or `packed` in fp16.

    >>> wgmma_accumulator(32).rows.shape
    (128, 16, 1)
    """
    if n not in range(8, 257, 8):
        raise ValueError(f"N of wgmma is a multiple of 8 from 8 to 256; got {n}")
    return (WGMMA_F16 if packed else WGMMA).fragment(1, n // 8)
