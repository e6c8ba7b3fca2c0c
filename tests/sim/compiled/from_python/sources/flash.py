"""Flash attention in Triton, forward: softmax(scale Q K^T) V of one head after another."""

import triton
import triton.language as tl


@triton.jit
def flash_forward(
    q, k, v, out, scale, rows, keys,
    TILE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A threadblock has `TILE` rows of a head; all tensors are (heads, rows or keys, DEPTH)."""
    head = tl.program_id(1)
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    depth = tl.arange(0, DEPTH)
    own = (head * rows + row)[:, None] * DEPTH + depth[None, :]
    there = row[:, None] < rows
    queries = tl.load(q + own, mask=there, other=0.0)
    highest = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    result = tl.zeros([TILE, DEPTH], tl.float32)
    in_base_2 = scale * 1.4426950408889634
    for first in range(0, keys, TILE):
        key = first + tl.arange(0, TILE)
        at = (head * keys + key)[:, None] * DEPTH + depth[None, :]
        inside = key < keys
        of_k = tl.load(k + at, mask=inside[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(of_k)) * in_base_2
        scores = tl.where(inside[None, :], scores, float("-inf"))
        now = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - now[:, None])
        shrink = tl.exp2(highest - now)
        total = total * shrink + tl.sum(weights, 1)
        of_v = tl.load(v + at, mask=inside[:, None], other=0.0)
        result = tl.dot(weights.to(tl.float16), of_v, result * shrink[:, None])
        highest = now
    tl.store(out + own, (result / total[:, None]).to(tl.float16), mask=there)
