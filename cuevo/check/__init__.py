"""One instance of a kernel, run on a small problem under all checks of the CPU executor and
compared with float64.
"""

from cuevo.check.instance import Finding, Report, try_out

__all__ = ["Finding", "Report", "try_out"]
