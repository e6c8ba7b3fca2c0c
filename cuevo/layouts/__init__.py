"""Who holds which element, as data: fragments of tensor-core instructions, shared-memory swizzles.

Each fact is stated here once; templates, the CPU executor, the tests and the pictures take it from
here.
"""

from cuevo.layouts.fragments import (
    LDMATRIX,
    LDMATRIX_TRANS,
    MMA_M16N8_F16,
    MMA_M16N8_F32,
    MMA_M16N8K8_A,
    MMA_M16N8K8_B,
    MMA_M16N8K16_A,
    MMA_M16N8K16_B,
    WARP,
    Fragment,
)
from cuevo.layouts.swizzle import CHUNK_BYTES, Swizzle, swizzle, swizzled_chunk

__all__ = [
    "CHUNK_BYTES",
    "LDMATRIX",
    "LDMATRIX_TRANS",
    "MMA_M16N8K8_A",
    "MMA_M16N8K8_B",
    "MMA_M16N8K16_A",
    "MMA_M16N8K16_B",
    "MMA_M16N8_F16",
    "MMA_M16N8_F32",
    "WARP",
    "Fragment",
    "Swizzle",
    "swizzle",
    "swizzled_chunk",
]
