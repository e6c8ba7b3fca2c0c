"""The operations: from a call to a problem, a kernel variant and its configuration, a plan, a
launch.

`forward`, `backward` and `product` are the three calls; `attention_problem` and `gemm_problem`
check their arguments; `dispatch` picks the kernel variant; `plans` keeps what a call found out for
the next one of its kind.
"""

from cuevo.ops.backward import attention_backward, attention_backward_workspace
from cuevo.ops.forward import attention
from cuevo.ops.product import gemm

__all__ = ["attention", "attention_backward", "attention_backward_workspace", "gemm"]
