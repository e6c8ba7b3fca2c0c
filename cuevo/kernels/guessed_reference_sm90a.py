"""The reference of a row of bf16 probabilities before its scores are known, in powers of two, and
which sums of a row say that it was one: then the exponents of what
``ptx/evoformer_forward_sm90a.ptx`` takes of scores are these themselves.
"""

__all__ = ["HEADROOM", "LEAST_SUM", "MOST_SUM", "REFERENCE"]

HEADROOM = 8.0
"""What exponents are lowered by beside any reference."""
REFERENCE = -HEADROOM
"""Rows whose highest score is between 80 below 0 and 100 above need no other."""
LEAST_SUM = 2.0**-80
"""All that was lost for being below the least normal number is less than 2^-26 of a larger sum, of
a million keys.
"""
MOST_SUM = 2.0**120
"""The inverse of more is not a normal number."""
