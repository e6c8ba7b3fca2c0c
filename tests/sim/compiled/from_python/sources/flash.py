"""Flash attention in Triton: softmax(scale Q K^T) V of one head after another; its gradients."""

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


@triton.jit
def flash_backward(
    q, k, v, of_out, sums, deltas, of_q, of_k, of_v, scale, length,
    TILE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A threadblock has `TILE` keys of a head, and adds to the gradient of all its rows, in fp32.
    `sums` are logarithms to base 2.
    """
    head = tl.program_id(1)
    key = tl.program_id(0) * TILE + tl.arange(0, TILE)
    depth = tl.arange(0, DEPTH)
    own = (head * length + key)[:, None] * DEPTH + depth[None, :]
    inside = key[:, None] < length
    keys = tl.load(k + own, mask=inside, other=0.0)
    values = tl.load(v + own, mask=inside, other=0.0)
    gradient_k = tl.zeros([TILE, DEPTH], tl.float32)
    gradient_v = tl.zeros([TILE, DEPTH], tl.float32)
    in_base_2 = scale * 1.4426950408889634
    for first in range(0, length, TILE):
        row = first + tl.arange(0, TILE)
        at = (head * length + row)[:, None] * DEPTH + depth[None, :]
        there = row < length
        queries = tl.load(q + at, mask=there[:, None], other=0.0)
        given = tl.load(of_out + at, mask=there[:, None], other=0.0)
        total = tl.load(sums + head * length + row, mask=there, other=0.0)
        delta = tl.load(deltas + head * length + row, mask=there, other=0.0)
        weights = tl.exp2(tl.dot(keys, tl.trans(queries)) * in_base_2 - total[None, :])
        weights = tl.where(inside & there[None, :], weights, 0.0)
        gradient_v += tl.dot(weights.to(tl.float16), given)
        of_weights = tl.dot(values, tl.trans(given))
        of_scores = (weights * (of_weights - delta[None, :])).to(tl.float16)
        gradient_k += tl.dot(of_scores, queries)
        part = tl.dot(tl.trans(of_scores), keys) * scale
        tl.atomic_add(of_q + at, part, mask=there[:, None], sem="relaxed")
    tl.store(of_k + own, (gradient_k * scale).to(tl.float16), mask=inside)
    tl.store(of_v + own, gradient_v.to(tl.float16), mask=inside)
