"""Parabolas as the GPU's unit for approximate functions adds them up, bit for bit.

The structure is that of Oberman and Siu, "A High-Performance Area-Efficient Multifunction
Interpolator", 2005. The first bits of a fraction choose a parabola c0 + c1 d + c2 d^2, the
others are d, a fraction of 1; of d^2 whatever is below 2^-15 is left out of every partial product.
All of it is added, and cut off to whole steps of the result.
"""

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from cuevo.sim.aliases import AnyArray

_WIDEST = 17
"""Bits of d at the most."""
BELOW = 15
"""Bits of a sum that are cut off."""


@dataclass(frozen=True)
class Parabolas:
    """A function's coefficients; found from what a GPU gives, as those that alone lead to it."""

    rows: tuple[tuple[int, int, int], ...]
    """c0 and c2 in `units`; c1 in as much as makes a product with d one of 2^-15 steps."""
    bias: int
    """Bias of every sum, in 2^-15 of a step."""
    units: tuple[int, int] = (-2, 0)
    """Units of c0 and c2: 2 to these powers, in steps of the result; quarters and whole by default.
    """
    width: int = 23
    """Bits of a fraction."""

    @cached_property
    def bits(self) -> int:
        """Width of d."""
        return self.width - (len(self.rows).bit_length() - 1)

    @cached_property
    def coefficients(self) -> tuple[AnyArray, AnyArray, AnyArray]:
        c0, c1, c2 = np.array(self.rows, np.int64).T
        return (c0 << BELOW + self.units[0]) + self.bias, c1.copy(), c2 << self.units[1]

    def __call__(self, fraction: AnyArray) -> AnyArray:
        """Results for fractions (int64), in whole steps."""
        total = self.sums(fraction)
        total >>= BELOW
        return total

    def sums(self, fraction: AnyArray) -> AnyArray:
        """The same in 2^-15 of a step: nothing is cut off."""
        c0, c1, c2 = self.coefficients
        place, d = fraction >> self.bits, fraction & ((1 << self.bits) - 1)
        total: AnyArray = c1.take(place)
        total *= d
        square = squares().take(d >> self.bits - BELOW)
        square *= c2.take(place)
        total += square
        total += c0.take(place)
        return total


@cache
def squares() -> AnyArray:
    """Squares of the first 15 bits of each d, of which alone the square has any, in 2^-15."""
    d = np.arange(1 << BELOW, dtype=np.int64) << _WIDEST - BELOW
    bits = [d >> i & 1 for i in range(_WIDEST)]
    dropped = 2 * _WIDEST - BELOW
    found = np.zeros_like(d)
    for i in range(_WIDEST):
        for j in range(i, _WIDEST):
            # A product of two different bits is there twice.
            column = 2 * i if i == j else i + j + 1
            if column >= dropped:
                found += (bits[i] & bits[j]) << (column - dropped)
    return found
