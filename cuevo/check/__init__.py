"""Checks of one instance of a kernel: a small problem on the CPU executor under all of its checks,
compared with float64.

`kernel_check` runs an instance and reports what it found; `small_problems` has a problem for each
kernel that ships. `call_check` runs a call on sizes of its own.
"""

from cuevo.check.call_check import check_call
from cuevo.check.kernel_check import (
    BUDGET,
    Finding,
    Report,
    check_by_problem,
    check_kernel,
    check_launch,
)

__all__ = [
    "BUDGET",
    "Finding",
    "Report",
    "check_by_problem",
    "check_call",
    "check_kernel",
    "check_launch",
]
