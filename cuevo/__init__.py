"""Evoformer attention and matrix products from handwritten PTX, launched with cuda-python, checked
on a CPU executor.
"""

from cuevo.arrays import array_from_pointer
from cuevo.ops import (
    attention,
    attention_backward,
    attention_backward_workspace,
    attention_workspace,
    gemm,
)

__all__ = [
    "array_from_pointer",
    "attention",
    "attention_backward",
    "attention_backward_workspace",
    "attention_workspace",
    "gemm",
]

__version__ = "0.1.0"
