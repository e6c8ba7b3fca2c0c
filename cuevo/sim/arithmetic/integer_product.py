"""Products of matrices of integers and of bits, as tensor cores have them: nothing is rounded.

Matrices are (rows, columns, warps); C and the result are of int32.
"""

import numpy as np

from cuevo.sim.aliases import AnyArray

_ENDS = np.iinfo(np.int32)
_OF_BITS = {"xor": np.bitwise_xor, "and": np.bitwise_and}


def integer_product(left: AnyArray, right: AnyArray, c: AnyArray, saturates: bool) -> AnyArray:
    """C + A B. The sum wraps around, or stays at an end of int32 if it `saturates`."""
    # As float64, which holds every such sum, the products are one call of a library.
    first, second = left.astype(np.float64), right.astype(np.float64)
    products = first.transpose(2, 0, 1) @ second.transpose(2, 0, 1)
    total = products.transpose(1, 2, 0).astype(np.int64) + c
    if saturates:
        np.clip(total, _ENDS.min, _ENDS.max, out=total)
    return np.ascontiguousarray(total.astype(np.int32))


def nibble_product(left: AnyArray, right: AnyArray, c: AnyArray, saturates: bool) -> AnyArray:
    """The same of elements of 4 bits, eight in a word: `left` and `right` are rows of A and columns
    of B, of int32 where elements have a sign, else of uint32.
    """
    return integer_product(_nibbles(left), _nibbles(right).swapaxes(0, 1), c, saturates)


def _nibbles(words: AnyArray) -> AnyArray:
    to_the_top = np.arange(28, -4, -4).astype(words.dtype)[:, None]
    found: AnyArray = words[:, :, None] << to_the_top >> words.dtype.type(28)
    return found.reshape(len(words), -1, words.shape[2])


def bit_product(left: AnyArray, right: AnyArray, c: AnyArray, op: str) -> AnyArray:
    """C and the number of bits that `op`, "xor" or "and", sets in each pair of a row of A and a
    column of B, which are rows of uint32 both.
    """
    bits = np.bitwise_count(_OF_BITS[op](left[:, None], right[None]))
    return np.ascontiguousarray(bits.sum(axis=2, dtype=np.int32) + c)
