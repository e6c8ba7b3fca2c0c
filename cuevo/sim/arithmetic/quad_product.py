"""The products of mma.m8n8k4, which tensor cores do on sm_70 and sm_75 only.

From sm_80 on the assembler puts fp32 arithmetic and shuffles in its place: read from the machine
code that nvJitLink 13 makes for sm_80 to sm_120, and the same bit for bit on an H200.

Assumed, for want of a device: sm_75 has its own fraction bits here (24, where sm_70 has 23), and
on both a C in fp16 takes part in a D in fp32 like the same number in fp32, subnormals included.
"""

import numpy as np

from cuevo.sim.aliases import AnyArray
from cuevo.sim.arithmetic import float32, halves
from cuevo.sim.arithmetic.tensor_core import F16, block, multiply_accumulate


def quad_product(a: AnyArray, b: AnyArray, c: AnyArray, arch: int) -> AnyArray:
    """A . B + C: `a` (8, 4, n) and `b` (4, 8, n) are patterns of fp16, `c` (8, 8, n) is float32 or
    float16, and so is the result.
    """
    if arch < 80:
        return multiply_accumulate(a, b, c, F16, block(arch))
    left, right = halves.widen(a, "f16"), halves.widen(b, "f16")
    # Products of fp16 are exact in fp32, so that a sum with one rounds as a fused one does.
    first, second, third, last = (left[:, k, None] * right[None, k] for k in range(4))
    if c.dtype == np.float32:
        result: AnyArray = c + ((((first + np.float32(0)) + second) + third) + last)
        float32.canonicalize(result)
        return result
    return halves.narrow((c + (first + second)) + (third + last), "f16").view(np.float16)
