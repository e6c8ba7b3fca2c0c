"""Arithmetic of the tensor cores, bit for bit.

Source: Xie et al., "MMA-Sim: Bit-Accurate Reference Model of Tensor Cores and Matrix Cores", 2025.

One block computes d = c + sum of a_i * b_i over L terms. Every product keeps the sum of its
factors' exponents; all terms are aligned to the largest exponent and truncated to F fraction bits;
the sum is exact; it is rounded once. No block is aligned to less than 2^-133: so an H200 adds
products of bfloat16 below that to an accumulator of zero.

Matrices are arrays (rows, columns, warps): the loop over k is Python's, each pass is one contiguous
run over warps. An aligned term is an integer below 2^(F+2), so terms are held as int32 after the
truncating conversion, whose operand is exact in float32 as long as exponents stay away from the
ends of its range; float64 takes over where they do not.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from cuevo.architectures import architecture
from cuevo.sim.aliases import AnyArray, AnyDType
from cuevo.sim.arithmetic.compiled import compiled
from cuevo.sim.arithmetic.float32 import CANONICAL_NAN
from cuevo.sim.arithmetic.halves import widen
from cuevo.sim.arithmetic.narrow_sums import HIGHEST, LOWEST, NO_TERM, ZERO, narrow_sums

__all__ = [
    *("BF16", "F16", "OPERAND_TYPES", "TF32", "Block", "block", "block_dot", "multiply_accumulate"),
    "round_toward_zero",
]

F16 = np.dtype(np.float16)
BF16 = np.dtype(ml_dtypes.bfloat16)
TF32 = np.dtype(np.float32)
"""Type of tf32 operands: float32, the low 13 bits of which are not looked at."""
OPERAND_TYPES: dict[str, AnyDType] = {"f16": F16, "bf16": BF16, "tf32": TF32}
"""Types of A and B by their names in opcodes."""

# What every block is aligned to at least.
_SMALLEST = -133
# Exponent of an infinity or a NaN among the operands.
_NOT_FINITE = 4000
_TF32_BITS = np.uint32(0xFFFFFFFF << 13 & 0xFFFFFFFF)
_MOST_AT_ONCE = 16384
"""Products; beyond, they would leave the first cache."""


@dataclass(frozen=True)
class Block:
    """The arithmetic block of an architecture."""

    fraction_bits: int
    terms: int


def block(arch: int, dtype: AnyDType = F16) -> Block:
    """Block for operands of `dtype` of compute capability `arch` (80 for sm_80); those of fp16 and
    bf16 are the same. Raises ValueError for tf32 before sm_80.
    """
    if dtype == TF32:
        # Half the terms of fp16, as an instruction has half its depth. An H200 confirms it for
        # sm_90, in mma and wgmma: blocks of 4, and 24 or 26 bits, give other results.
        if arch < 80:
            raise ValueError(f"tf32 needs sm_80 or later; got sm_{arch}")
        return Block(24, 4) if arch < 90 else Block(25, 8)
    if arch < 75:
        return Block(23, 4)
    return Block(24, 8) if arch < 90 else Block(25, 16)


_FORMAT = {F16: (10, 15), BF16: (7, 127), TF32: (23, 127)}
"""Fraction bits and bias of the patterns."""


def _values(bits: AnyArray, dtype: AnyDType) -> AnyArray:
    """Patterns of operands as float32."""
    if dtype == TF32:
        return bits.view(np.float32)
    if dtype == F16:
        return widen(bits, "f16")
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


def _exponents(bits: AnyArray, fraction: int, bias: int) -> AnyArray:
    """Exponents (int16) of floating-point patterns with `fraction` fraction bits."""
    magnitude = bits & bits.dtype.type(2 ** (bits.dtype.itemsize * 8 - 1) - 1)
    field = (magnitude >> bits.dtype.type(fraction)).astype(np.int16, copy=False)
    # Subnormals keep the exponent of the smallest normal number, and a significand below 1.
    exponents: AnyArray = np.maximum(field, 1) - np.int16(bias)
    np.copyto(exponents, ZERO, where=magnitude == 0)
    if int(field.max()) == 2 * bias + 1:
        np.copyto(exponents, _NOT_FINITE, where=field == 2 * bias + 1)
    return exponents


def _accumulator_exponents(c: AnyArray) -> AnyArray:
    if c.dtype == F16:
        return _exponents(c.view(np.uint16), 10, 15)
    return _exponents(c.view(np.uint32), 23, 127)


def block_dot(a: AnyArray, b: AnyArray, c: AnyArray, *, arch: str) -> AnyArray:
    """``c + sum over k of a[..., k] * b[..., k]`` as the tensor cores of `arch`, "sm_80", do it.

    a, b : (..., K) float16, ml_dtypes.bfloat16, or float32 for tf32: of these the low 13 bits are
        cut off, which a conversion with rounding has made zero.
    c : (...) float32, or float16 beside float16 operands.

    Shapes are broadcast. The result is a new array of the type of c. K may be that of a block or
    of an instruction, or any other: what is past the first block is added to its rounded sum, and
    so on, as an instruction of several blocks does, or a chain of instructions.

    Raises TypeError for other types, ValueError for shapes that do not fit each other, for an
    architecture that is not known and for tf32 on one that has none.

    >>> from cuevo.sim.arithmetic.tensor_core import block_dot
    >>> a, b = np.array([[1, 2.0**-12], [1, 2.0**-13]], np.float16)
    >>> block_dot(a, b, np.float32(-1), arch="sm_80").item()  # 2^-25 is cut off beside 1
    0.0
    >>> block_dot(a, b, np.float32(-1), arch="sm_90").item() * 2**25
    1.0
    """
    a, b, c = np.asarray(a), np.asarray(b), np.asarray(c)
    if a.dtype not in _FORMAT or a.dtype != b.dtype:
        raise TypeError(
            f"a, b: expected float16 or bfloat16, or float32 for tf32, both; got {a.dtype} and "
            f"{b.dtype}"
        )
    if c.dtype != np.float32 and (c.dtype, a.dtype) != (F16, F16):
        raise TypeError(f"c: expected float32, or float16 beside float16; got {c.dtype}")
    if not a.ndim or not b.ndim or a.shape[-1] != b.shape[-1]:
        raise ValueError(f"a, b: expected (..., K) with the same K; got {a.shape} and {b.shape}")
    arithmetic = block(architecture(arch).number, a.dtype)
    shape = np.broadcast_shapes(a.shape[:-1], b.shape[:-1], c.shape)
    depth = a.shape[-1]

    def by_k(x: AnyArray) -> AnyArray:
        """(K, elements), as patterns."""
        rows = np.broadcast_to(x, (*shape, depth)).reshape(-1, depth)
        return np.ascontiguousarray(rows.T).view(f"u{a.dtype.itemsize}")

    sums = np.broadcast_to(c, shape).reshape(1, 1, -1).copy()
    with np.errstate(all="ignore"):
        if sums.size and depth:
            sums = multiply_accumulate(by_k(a)[None], by_k(b)[:, None], sums, a.dtype, arithmetic)
    return sums.reshape(shape)


def multiply_accumulate(
    a: AnyArray, b: AnyArray, c: AnyArray, dtype: AnyDType, arithmetic: Block
) -> AnyArray:
    """A . B + C as the tensor core does it, blocks of k chained.

    `a` (M, K, warps) and `b` (K, N, warps) are patterns of `dtype`: uint16 of float16 or bfloat16,
    uint32 of `TF32`. `c` (M, N, warps) is float32 or float16, and so is the result.
    """
    fraction, bias = _FORMAT[dtype]
    if dtype == TF32:
        a, b = a & _TF32_BITS, b & _TF32_BITS
    fa, fb = _values(a, dtype), _values(b, dtype)
    if c.dtype == np.float32 and (sums := compiled(narrow_sums)) is not None:
        x, y, z = (np.ascontiguousarray(each) for each in (fa, fb, c))
        result = np.empty_like(z)
        block = (1 - bias, arithmetic.fraction_bits, arithmetic.terms)
        if sums(x, y, z, result, *block):
            return result
        # Masked scores begin at -inf, and finite products leave them there.
        special = ~np.isfinite(z)
        if special.any() and sums(x, y, np.where(special, np.float32(0), z), result, *block):
            result[special] = z[special]
            result.view(np.uint32)[np.isnan(result)] = CANONICAL_NAN
            return result
    ea, eb = _exponents(a, fraction, bias), _exponents(b, fraction, bias)
    finite = int(ea.max()) < _NOT_FINITE and int(eb.max()) < _NOT_FINITE
    depth = a.shape[1]
    for k in range(0, depth, arithmetic.terms):
        part = slice(k, min(k + arithmetic.terms, depth))
        c = _one_block(
            fa[:, part], fb[part], ea[:, part], eb[part], c, arithmetic.fraction_bits, finite
        )
    return c


def _one_block(
    a: AnyArray, b: AnyArray, ea: AnyArray, eb: AnyArray, c: AnyArray, fraction: int, finite: bool
) -> AnyArray:
    ec = _accumulator_exponents(c)
    if not finite or int(ec.max()) >= _NOT_FINITE:
        return _with_specials(a, b, ea, eb, c, ec, fraction)
    if _at_once(c, a.shape[1]):
        largest = np.maximum(ec, (ea[:, :, None] + eb[None]).max(axis=1))
    else:
        largest = ec.copy()
        exponent = np.empty_like(largest)
        for k in range(a.shape[1]):
            np.add(ea[:, k, None], eb[None, k], out=exponent)
            np.maximum(largest, exponent, out=largest)
    low, high = int(largest.min()), int(largest.max())
    if low < NO_TERM:
        # Nothing but zeros: any exponent gives the right result.
        nothing = largest < NO_TERM
        largest[nothing] = 0
        low, high = int(largest.min()), int(largest.max())
    if low < _SMALLEST:
        np.maximum(largest, _SMALLEST, out=largest)
    if low < LOWEST or high > HIGHEST or c.dtype == F16:
        return _wide_sum(a, b, c, largest, fraction)
    return _narrow_sum(a, b, c, largest, fraction)


def _at_once(c: AnyArray, terms: int) -> bool:
    """Whether an array with every product is so small that a loop over k would take longer."""
    return c.size * terms <= _MOST_AT_ONCE


def _narrow_sum(
    a: AnyArray, b: AnyArray, c: AnyArray, largest: AnyArray, fraction: int
) -> AnyArray:
    """The sum in float32 and int32; exponents are in the range where that is exact."""
    scale = ((fraction + 127 - largest.astype(np.int32)) << 23).view(np.float32)
    # Scaled c is below 2^(F+1), a product below 2^(F+2).
    term = c * scale
    total = term.astype(np.int32)
    if _at_once(c, a.shape[1]):
        terms = a[:, :, None] * b[None]
        np.multiply(terms, scale[:, None], out=terms)
        exact = (total + terms.astype(np.int32).sum(axis=1, dtype=np.int64)).astype(np.float64)
    else:
        integer = np.empty_like(total)
        wide: AnyArray | None = None
        for k in range(a.shape[1]):
            if k == 8:
                # More than 8 products of F = 25 can pass 2^31: carry on in a second sum.
                wide = total.astype(np.float64)
                total.fill(0)
            np.multiply(a[:, k, None], b[None, k], out=term)
            np.multiply(term, scale, out=term)
            np.copyto(integer, term, casting="unsafe")
            np.add(total, integer, out=total)
        exact = total.astype(np.float64) if wide is None else np.add(wide, total, out=wide)
    # Toward zero to 24 significant bits; then the power of two is exact, or overflows to infinity.
    bits = exact.view(np.int64)
    np.bitwise_and(bits, ~np.int64((1 << 29) - 1), out=bits)
    np.copyto(term, exact, casting="unsafe")
    inverse = ((largest.astype(np.int32) + (127 - fraction)) << 23).view(np.float32)
    return np.multiply(term, inverse, out=term)


def _wide_sum(a: AnyArray, b: AnyArray, c: AnyArray, largest: AnyArray, fraction: int) -> AnyArray:
    """The sum in float64: any exponents, and fp16 accumulators."""
    scale = _power_of_two(fraction - largest.astype(np.int64))
    total = np.trunc(c.astype(np.float64) * scale)
    a, b = a.astype(np.float64), b.astype(np.float64)
    term = np.empty_like(total)
    for k in range(a.shape[1]):
        np.multiply(a[:, k, None], b[None, k], out=term)
        np.multiply(term, scale, out=term)
        np.trunc(term, out=term)
        np.add(total, term, out=total)
    total *= _power_of_two(largest.astype(np.int64) - fraction)
    result = total.astype(np.float16) if c.dtype == F16 else round_toward_zero(total)
    # Whatever comes out as zero is +0, also what is rounded to it.
    result += result.dtype.type(0)
    return result


def _with_specials(
    a: AnyArray,
    b: AnyArray,
    ea: AnyArray,
    eb: AnyArray,
    c: AnyArray,
    ec: AnyArray,
    fraction: int,
) -> AnyArray:
    """Infinities and NaNs by IEEE rules; what they do not reach is computed as ever."""
    a_special, b_special, c_special = ea == _NOT_FINITE, eb == _NOT_FINITE, ec == _NOT_FINITE
    # Of finite factors only the sign matters, and whether they are zero.
    a_sign = np.where(a_special, a, np.sign(a))
    b_sign = np.where(b_special, b, np.sign(b))
    outcome = np.where(c_special, c, 0).astype(np.float32)
    touched = c_special.copy()
    for k in range(a.shape[1]):
        special = a_special[:, k, None] | b_special[None, k]
        product = a_sign[:, k, None] * b_sign[None, k]
        outcome += np.where(special, product, 0)
        touched |= special
    finite = _one_block(
        np.where(a_special, 0, a),
        np.where(b_special, 0, b),
        np.where(a_special, np.int16(ZERO), ea),
        np.where(b_special, np.int16(ZERO), eb),
        np.where(c_special, c.dtype.type(0), c),
        fraction,
        True,
    )
    result = np.where(touched, outcome.astype(c.dtype), finite)
    integers = result.view(np.uint16 if c.dtype == F16 else np.uint32)
    integers[np.isnan(result)] = 0x7FFF if c.dtype == F16 else CANONICAL_NAN
    return result


def _power_of_two(exponent: AnyArray) -> AnyArray:
    return ((exponent + 1023) << 52).view(np.float64)


def round_toward_zero(exact: AnyArray) -> AnyArray:
    """float64 to float32, toward zero; 2^128 and above becomes infinity."""
    rounded = exact.astype(np.float32)
    magnitude = np.abs(exact)
    too_far = (np.abs(rounded) > magnitude) & (magnitude < 2.0**128)
    bits = rounded.view(np.uint32)
    np.subtract(bits, 1, out=bits, where=too_far)
    return rounded
