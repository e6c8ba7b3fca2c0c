"""Sums of the tensor cores (`tensor_core`) of exponents that float32 holds, as a loop to
compile. What belongs to a row of warps stays in the first cache: compiled, that is five times as
fast as NumPy, and more where warps are few.
"""

import numpy as np

from cuevo.sim.aliases import AnyArray

LOWEST, HIGHEST = -90, 120
"""float32 holds scaled products exactly for largest exponents in this range: products that
underflow are far below the last bit kept, and 2^(F - e), 2^(e - F) are normal numbers. Results are
normal or on the subnormal grid.
"""
ZERO = -12000
"""Exponent of a zero: below every other, also after another exponent is added to it."""
NO_TERM = ZERO // 2
"""Less than the exponent of any product but zero, and more than that."""


def narrow_sums(
    a: AnyArray, b: AnyArray, c: AnyArray, out: AnyArray, smallest: int, fraction: int, terms: int
) -> bool:
    """A . B + C, in chained blocks of `terms` products that are aligned with `fraction` bits.

    `a` (M, K, warps), `b` (K, N, warps), `c` and `out` (M, N, warps) are float32 and contiguous;
    `smallest` is the exponent of the smallest normal number of A and B. False, and nothing of use
    in `out`, if a largest exponent is not from `LOWEST` to `HIGHEST`, other than of zeros alone.
    """
    # Loops in the place of slices that are assigned to, which Numba takes three seconds to compile.
    rows, depth, warps = a.shape
    of_a, of_b = np.empty(a.shape, np.int16), np.empty(b.shape, np.int16)
    for values, exponents in ((a, of_a), (b, of_b)):
        bits, found, greatest = values.reshape(-1).view(np.int32), exponents.reshape(-1), 0
        for i in range(bits.size):
            field = bits[i] >> 23 & 255
            greatest = max(greatest, field)
            # Subnormals keep the exponent of the smallest normal number.
            found[i] = ZERO if bits[i] << 1 & 0xFFFFFFFF == 0 else max(field - 127, smallest)
        if greatest == 255:
            return False
    products = np.empty(warps, np.int16)
    largest = np.empty(warps, np.int32)
    scale = np.empty(warps, np.float32)
    total = np.empty(warps, np.int32)
    wide = np.empty(warps, np.float64)
    scale_bits, wide_bits = scale.view(np.int32), wide.view(np.int64)
    for m in range(rows):
        for n in range(b.shape[1]):
            current = out[m, n]
            given = c[m, n]
            for x in range(warps):
                current[x] = given[x]
            for begin in range(0, depth, terms):
                end = min(begin + terms, depth)
                for x in range(warps):
                    products[x], wide[x] = 2 * ZERO, 0
                for k in range(begin, end):
                    first, second = of_a[m, k], of_b[k, n]
                    for x in range(warps):
                        products[x] = max(products[x], np.int16(first[x] + second[x]))
                bits = current.view(np.int32)
                low, high = np.int32(HIGHEST), np.int32(LOWEST)
                for x in range(warps):
                    exponent = max(np.int32(products[x]), np.int32((bits[x] >> 23 & 255) - 127))
                    low, high = min(low, exponent), max(high, exponent)
                    largest[x] = exponent
                    scale_bits[x] = (fraction + 127 - exponent) << 23
                if high > HIGHEST:
                    return False
                if low < LOWEST:
                    for x in range(warps):
                        if largest[x] < LOWEST:
                            if products[x] > NO_TERM or current[x] != 0:
                                return False
                            # Nothing but zeros: any exponent gives the right result.
                            largest[x] = 0
                            scale_bits[x] = (fraction + 127) << 23
                # Scaled c is below 2^(F+1), a product below 2^(F+2).
                for x in range(warps):
                    total[x] = np.int32(current[x] * scale[x])
                for some in range(begin, end, 8):
                    # More than 8 products of F = 25 can pass 2^31.
                    for k in range(some, min(some + 8, end)):
                        left, right = a[m, k], b[k, n]
                        for x in range(warps):
                            total[x] += np.int32(left[x] * right[x] * scale[x])
                    for x in range(warps):
                        wide[x] += total[x]
                        total[x] = 0
                # Toward zero to 24 significant bits; then the power of two is exact, or overflows.
                for x in range(warps):
                    wide_bits[x] &= ~((1 << 29) - 1)
                    scale_bits[x] = (largest[x] + (127 - fraction)) << 23
                for x in range(warps):
                    current[x] = np.float32(wide[x]) * scale[x]
    return True
