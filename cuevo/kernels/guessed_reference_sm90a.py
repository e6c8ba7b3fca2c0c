"""The reference of a row of bf16 probabilities before its scores are known, in powers of two, and
which sums of a row say that it was one. The exponents of what ``ptx/evoformer_forward_sm90a.ptx``
takes of scores are raised by it, which its mask may bring along.
"""

__all__ = ["HEADROOM", "LEAST_SUM", "MOST_SUM", "RAISED", "REFERENCE"]

REFERENCE = -64.0
"""Rows whose highest score is between 96 below 0 and 64 above need no other."""
HEADROOM = 8.0
"""What exponents are lowered by beside any reference."""
RAISED = -REFERENCE - HEADROOM
"""What they are raised by beside this one."""
LEAST_SUM = 2.0**-40
"""What of a smaller sum was lost for being below the least normal number might count."""
MOST_SUM = 2.0**120
"""The inverse of more is not a normal number."""
