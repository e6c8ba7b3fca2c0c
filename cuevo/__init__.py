"""Evoformer attention and matrix products from handwritten PTX, launched with cuda-python, checked
on a CPU executor.
"""

from cuevo.arrays import array_from_pointer
from cuevo.attention import attention
from cuevo.gemm import gemm

__all__ = ["array_from_pointer", "attention", "gemm"]

__version__ = "0.1.0"
