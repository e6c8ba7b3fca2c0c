"""Products of matrices of integers and of bits, as tensor cores have them: nothing is rounded.

Matrices are (rows, columns, warps); C and the result are of int32.
"""

from collections.abc import Callable

import numpy as np

from cuevo.sim.aliases import AnyArray

_ENDS = np.iinfo(np.int32)


def integer_product(left: AnyArray, right: AnyArray, c: AnyArray, saturates: bool) -> AnyArray:
    """C + A B. The sum wraps around, or stays at an end of int32 if it `saturates`."""
    # As float64, which holds every such sum, the products are one call of a library.
    first, second = left.astype(np.float64), right.astype(np.float64)
    products = first.transpose(2, 0, 1) @ second.transpose(2, 0, 1)
    total = products.transpose(1, 2, 0).astype(np.int64) + c
    if saturates:
        np.clip(total, _ENDS.min, _ENDS.max, out=total)
    return np.ascontiguousarray(total.astype(np.int32))


def bit_product(
    left: AnyArray, right: AnyArray, c: AnyArray, op: Callable[[AnyArray, AnyArray], AnyArray]
) -> AnyArray:
    """C and the number of bits that `op` sets in each pair of a row of A and a column of B, which
    are rows of uint32 both.
    """
    bits = np.bitwise_count(op(left[:, None], right[None]))
    return np.ascontiguousarray(bits.sum(axis=2, dtype=np.int32) + c)
