"""tools/mma_limit.py: the mma are all there, by what they add up to."""

import ml_dtypes
import numpy as np
import pytest

from cuevo.layouts import MMA_M16N8K16_A, MMA_M16N8K16_B
from cuevo.toolchain.assembler import assemble
from mma_limit import FRAGMENTS, instance, mma_alone, threads

SIZE = (128, 512, 100)
"""Two threadblocks, two iterations."""


@pytest.mark.kernel
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_sums(dtype: str) -> None:
    kind = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}[dtype]
    # Whole numbers: every sum is exact.
    numbers = np.random.default_rng(0).integers(-2, 3, FRAGMENTS)
    sums = np.zeros(threads(SIZE), np.float32)
    mma_alone(SIZE, dtype, numbers.astype(kind), sums, "sim:sm_80")()

    lanes = numbers.reshape(32, 32, 2)
    a = sum(MMA_M16N8K16_A.scatter(lanes[:, 4 * i : 4 * i + 4]) for i in range(4))
    b = sum(MMA_M16N8K16_B.scatter(lanes[:, 16 + 2 * i : 18 + 2 * i]) for i in range(8))
    product = 8 * (a @ b)
    # Lane l has rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next.
    of_lanes = product.reshape(2, 8, 4, 2).sum(axis=(0, 3)).ravel()
    np.testing.assert_array_equal(sums, np.tile(of_lanes, sums.size // 32))


@pytest.mark.unit
def test_it_fits_as_the_product_does() -> None:
    resources = assemble(instance("bf16"), "sm_90").resources
    assert resources.spill_stores == 0
    # One threadblock of 256 threads on a multiprocessor, as of gemm_sm80's large tiles.
    assert 65536 // (2 * 256) < resources.registers <= 255
