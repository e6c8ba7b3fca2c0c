"""Layouts as data, who holds which element: fragments of tensor-core instructions, swizzles,
the tiles of a threadblock.

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
from cuevo.layouts.descriptors import MatrixDescriptor, MatrixOperand
from cuevo.layouts.fragments import LDMATRIX, LDMATRIX_TRANS, WARP, WARPGROUP, Fragment
from cuevo.layouts.mma_shapes import (
    MMA_M8N8_S32,
    MMA_M8N8K4_A_COL,
    MMA_M8N8K4_A_ROW,
    MMA_M8N8K4_B_COL,
    MMA_M8N8K4_B_ROW,
    MMA_M8N8K4_F16,
    MMA_M8N8K4_F32,
    MMA_M16N8_F16,
    MMA_M16N8_F32,
    MMA_M16N8K4_A_TF32,
    MMA_M16N8K4_B_TF32,
    MMA_M16N8K8_A,
    MMA_M16N8K8_A_TF32,
    MMA_M16N8K8_B,
    MMA_M16N8K8_B_TF32,
    MMA_M16N8K16_A,
    MMA_M16N8K16_B,
    MMA_SHAPES,
    MmaShape,
    mma_shape,
)
from cuevo.layouts.swizzle import CHUNK_BYTES, SharedTile, swizzle, swizzled_chunk
from cuevo.layouts.tiles import Operand, OutputTile, ThreadblockMma
from cuevo.layouts.wgmma import WGMMA_A, WGMMA_A_TF32, wgmma_accumulator

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
    "MMA_M8N8_S32",
    "MMA_M16N8K4_A_TF32",
    "MMA_M16N8K4_B_TF32",
    "MMA_M16N8K8_A",
    "MMA_M16N8K8_A_TF32",
    "MMA_M16N8K8_B",
    "MMA_M16N8K8_B_TF32",
    "MMA_M16N8K16_A",
    "MMA_M16N8K16_B",
    "MMA_M16N8_F16",
    "MMA_M16N8_F32",
    "MMA_SHAPES",
    "WARP",
    "WARPGROUP",
    "WGMMA",
    "WGMMA_A",
    "WGMMA_A_TF32",
    "WGMMA_F16",
    "Accumulator",
    "Element",
    "Fragment",
    "MatrixDescriptor",
    "MatrixOperand",
    "MmaShape",
    "Operand",
    "OutputTile",
    "Row",
    "SharedTile",
    "ThreadblockMma",
    "mma_shape",
    "swizzle",
    "swizzled_chunk",
    "wgmma_accumulator",
]
