"""Operands of wgmma in shared memory: the 64-bit descriptor, and where each element lies.

Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout", and the canonical
layouts that CuTe documents beside its descriptors.

Memory is counted in chunks of 16 bytes. A chunk has neighbours along k (K-major operands), or along
m or n (MN-major ones, whose ``imm-trans`` is 1). Eight chunks, one for each of 8 rows of a K-major
operand or 8 values of k of an MN-major one, are a core matrix. With a swizzle, 2, 4 or 8 core
matrices lie side by side in a pattern of 8 rows, whose chunks change places within their row: the
bits of an address that number the chunk are XORed with bits 7 and up, as many. What the two
distances of a descriptor mean:

=========  =========  ==========================================  ==================================
major      swizzle    leading                                     stride
=========  =========  ==========================================  ==================================
K          none       to the next core matrix along k             to the next 8 rows
K          32 to 128  nothing                                     to the next 8 rows
MN         none       to the next 8 values of k                   to the next core matrix along m, n
MN         32 to 128  to the next pattern along m, n              to the next 8 values of k
=========  =========  ==========================================  ==================================
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cuevo.layouts.swizzle import CHUNK_BYTES

SWIZZLES = (0, 128, 64, 32)
"""Bytes of a row of the pattern, by the number that a descriptor has for it; 0: no swizzle."""
_FIELD = 0x3FFF
_MEANINGLESS = 0x3FF1_C000_C000_C000
"""Bits of a descriptor that belong to no field."""


@dataclass(frozen=True)
class MatrixDescriptor:
    """A descriptor's fields; integers, or integer arrays of one shape. The distances in bytes.

    >>> tile = MatrixDescriptor(start=1024, leading=16, stride=1024, swizzle=128)
    >>> hex(tile.bits)
    '0x4000004000010040'
    >>> MatrixDescriptor.of(tile.bits + 2).start      # 32 bytes further: the next 16 values of k
    1056
    """

    start: Any
    """Shared address of the first element, below 2^18."""
    leading: Any
    stride: Any
    swizzle: Any = 0
    """Bytes of a row of the pattern: 32, 64 or 128, or 0 for none."""
    base_offset: Any = 0
    """Row of the pattern, of 8, at which a multiple of its size begins."""
    rest: Any = 0
    """Bits set outside of all fields."""

    @property
    def bits(self) -> int:
        """The descriptor of integer fields. Raises ValueError for what it cannot hold."""
        for name in ("start", "leading", "stride"):
            value = getattr(self, name)
            if value % CHUNK_BYTES or not 0 <= value // CHUNK_BYTES <= _FIELD:
                raise ValueError(
                    f"{name} of a descriptor is a multiple of {CHUNK_BYTES} below "
                    f"{(_FIELD + 1) * CHUNK_BYTES}; got {value}"
                )
        if self.swizzle not in SWIZZLES:
            raise ValueError(f"a swizzle has 32, 64 or 128 bytes, or 0; got {self.swizzle}")
        if not 0 <= self.base_offset < 8:
            raise ValueError(f"a base offset is below 8; got {self.base_offset}")
        fields = (self.start >> 4, 0), (self.leading >> 4, 16), (self.stride >> 4, 32)
        more = (self.base_offset, 49), (SWIZZLES.index(self.swizzle), 62)
        return sum(int(value) << shift for value, shift in (*fields, *more))

    @classmethod
    def of(cls, bits: Any) -> Self:
        """The fields of an integer, or of an array of uint64."""
        if not isinstance(bits, np.ndarray):
            return cls(*(each.item() for each in vars(cls.of(np.array(bits, np.uint64))).values()))

        def field(shift: int, mask: int) -> NDArray[np.int64]:
            return (bits >> np.uint64(shift) & np.uint64(mask)).astype(np.int64)

        return cls(
            field(0, _FIELD) << 4,
            field(16, _FIELD) << 4,
            field(32, _FIELD) << 4,
            np.array(SWIZZLES)[field(62, 3)],
            field(49, 7),
            bits & np.uint64(_MEANINGLESS),
        )


class Steps(NamedTuple):
    """Way from the start of an operand to a chunk: bytes, and how many of each distance."""

    within: NDArray[np.int64]
    leading: NDArray[np.int64]
    stride: NDArray[np.int64]


@dataclass(frozen=True)
class MatrixOperand:
    """`rows` of m or n by 32 bytes of k: what one instruction reads.

    >>> b = MatrixOperand(rows=64, element_bytes=2)
    >>> at = b.addresses(MatrixDescriptor(start=0, leading=16, stride=1024, swizzle=128))
    >>> at.shape, int(at[9, 8])      # in the second group of 8 rows, at its second row
    ((64, 16), 1152)
    """

    rows: int
    element_bytes: int
    mn_major: bool = False
    """Whether neighbours in memory have the same k."""

    @property
    def depth(self) -> int:
        """Values of k."""
        return 2 * CHUNK_BYTES // self.element_bytes

    @property
    def in_chunk(self) -> int:
        """Elements of a chunk."""
        return CHUNK_BYTES // self.element_bytes

    @property
    def chunks(self) -> tuple[int, int]:
        """Number of chunks along m or n, and along k."""
        if self.mn_major:
            return self.rows // self.in_chunk, self.depth
        return self.rows, 2

    def row_chunks(self, swizzle: int) -> int:
        """Chunks of a row of the pattern that the operand takes, from its start on."""
        return min(self.chunks[0], swizzle // CHUNK_BYTES) if self.mn_major else 2

    def steps(self, swizzle: int) -> Steps:
        """To each of the `chunks`: arrays of that shape."""
        return _steps(self, swizzle)

    def addresses(self, descriptor: MatrixDescriptor) -> NDArray[np.int64]:
        """Shared addresses (rows, depth) of the elements, for a descriptor of integers."""
        chunks: NDArray[np.int64] = swizzled(
            reached(self.steps(descriptor.swizzle), descriptor), descriptor.swizzle
        )
        row, k = np.arange(self.rows)[:, None], np.arange(self.depth)[None, :]
        if self.mn_major:
            places = chunks[row // self.in_chunk, k] + row % self.in_chunk * self.element_bytes
        else:
            places = chunks[row, k // self.in_chunk] + k % self.in_chunk * self.element_bytes
        return np.asarray(places, np.int64)


def reached(steps: Steps, descriptor: MatrixDescriptor) -> NDArray[np.int64]:
    """Addresses before the swizzle; the shapes of steps and fields are broadcast."""
    leading = steps.leading * _common(descriptor.leading)
    stride = steps.stride * _common(descriptor.stride)
    addresses: NDArray[np.int64] = descriptor.start + (steps.within + leading + stride)
    return addresses


def _common(field: Any) -> Any:
    """The number that all of an array are, if they are one: with it there is less to add."""
    if isinstance(field, np.ndarray) and field.size and (field == field.flat[0]).all():
        return field.flat[0]
    return field


def swizzled(addresses: Any, swizzle: int) -> Any:
    """Addresses after the swizzle of rows of `swizzle` bytes, of plain `addresses`; their own
    bits decide, so that a pattern begins at multiples of 8 rows.
    """
    mask = max(swizzle // CHUNK_BYTES, 1) - 1
    return addresses ^ (addresses >> 7 & mask) << 4


@lru_cache(maxsize=256)
def _steps(operand: MatrixOperand, swizzle: int) -> Steps:
    width = swizzle // CHUNK_BYTES
    first, second = np.indices(operand.chunks)
    zero = np.zeros_like(first)
    if not operand.mn_major:
        group, row = np.divmod(first, 8)
        if not width:
            return Steps(row * CHUNK_BYTES, second, group)
        return Steps(row * swizzle + second * CHUNK_BYTES, zero, group)
    group, k = np.divmod(second, 8)
    if not width:
        return Steps(k * CHUNK_BYTES, group, first)
    pattern, chunk = np.divmod(first, width)
    return Steps(k * swizzle + chunk * CHUNK_BYTES, pattern, group)
