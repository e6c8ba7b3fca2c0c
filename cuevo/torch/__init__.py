"""Evoformer attention as an operator of torch: differentiable, and known to ``torch.compile``.

This package imports torch, which cuevo does not depend on; no other does. A call goes one of three
ways (`function`). Where tensors have memory and nobody looks on, it is a small autograd Function
around the calls of `cuevo.ops` (`calls`): a registered operator costs the host more than the work
itself. Such a call on a device finds nothing out that one of its kind has found out before
(`kinds`). DTensors get a call of each device on its shards (`sharding`), everything else
(``torch.compile``, ``torch.export``, ``torch.func``, tensor subclasses, dispatch modes) registered
operators (`operators`). `drop_ins` has the calls of other packages.

>>> q, k, v = (torch.randn(1, 2, 16, 1, 8, dtype=torch.bfloat16) for _ in range(3))
>>> evoformer_attention(q, k, v).shape
torch.Size([1, 2, 16, 1, 8])
"""

from cuevo.torch.drop_ins import DS4Sci_EvoformerAttention, triangle_attention
from cuevo.torch.function import evoformer_attention

__all__ = ["DS4Sci_EvoformerAttention", "evoformer_attention", "triangle_attention"]
