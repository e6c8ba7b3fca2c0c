"""Who holds which element, as data: fragments of tensor-core instructions, shared-memory swizzles.

Each fact is stated here once; templates, the CPU executor, the tests and the pictures take it from
here.
"""

from cuevo.layouts.accumulators import (
    M8N8K4,
    M8N8K4_F16,
    M16N8,
    M16N8_F16,
    WGMMA,
    WGMMA_F16,
    Accumulator,
    Element,
    Row,
)
from cuevo.layouts.fragments import (
    LDMATRIX,
    LDMATRIX_TRANS,
    MMA_M8N8K4_A_COL,
    MMA_M8N8K4_A_ROW,
    MMA_M8N8K4_B_COL,
    MMA_M8N8K4_B_ROW,
    MMA_M8N8K4_F16,
    MMA_M8N8K4_F32,
    MMA_M16N8_F16,
    MMA_M16N8_F32,
    MMA_M16N8K8_A,
    MMA_M16N8K8_B,
    MMA_M16N8K16_A,
    MMA_M16N8K16_B,
    WARP,
    WARPGROUP,
    Fragment,
)
from cuevo.layouts.swizzle import CHUNK_BYTES, SharedTile, swizzle, swizzled_chunk
from cuevo.layouts.wgmma import WGMMA_A, wgmma_accumulator

__all__ = [
    "CHUNK_BYTES",
    "LDMATRIX",
    "LDMATRIX_TRANS",
    "M8N8K4",
    "M8N8K4_F16",
    "M16N8",
    "M16N8_F16",
    "MMA_M8N8K4_A_COL",
    "MMA_M8N8K4_A_ROW",
    "MMA_M8N8K4_B_COL",
    "MMA_M8N8K4_B_ROW",
    "MMA_M8N8K4_F16",
    "MMA_M8N8K4_F32",
    "MMA_M16N8K8_A",
    "MMA_M16N8K8_B",
    "MMA_M16N8K16_A",
    "MMA_M16N8K16_B",
    "MMA_M16N8_F16",
    "MMA_M16N8_F32",
    "WARP",
    "WARPGROUP",
    "WGMMA",
    "WGMMA_A",
    "WGMMA_F16",
    "Accumulator",
    "Element",
    "Fragment",
    "Row",
    "SharedTile",
    "swizzle",
    "swizzled_chunk",
    "wgmma_accumulator",
]
