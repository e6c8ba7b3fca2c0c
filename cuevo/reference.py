"""The operations in float64 NumPy: the specification that every kernel is compared with."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def attention(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    mask_bias: NDArray[Any] | None = None,
    pair_bias: NDArray[Any] | None = None,
    scale: float | None = None,
) -> tuple[Float64, Float64]:
    """``out = softmax(q k^T scale + mask_bias + pair_bias) v`` and the log-sum-exp of every row of
    scores.

    q [B, N, Lq, H, D]; k, v [B, N, Lk, H, D]; mask_bias [B or 1, N or 1, 1, 1, Lk], floats or bool
    (True: attend); pair_bias [B or 1, 1, H, Lq, Lk]. scale defaults to ``1 / sqrt(D)``. Returns out
    [B, N, Lq, H, D] and lse [B, N, H, Lq], natural logarithm. A row whose every score is -inf gives
    out 0 and lse -inf.
    """
    weights, lse = _weights(q, k, mask_bias, pair_bias, scale)
    return _contracted("bnhqk,bnkhd->bnqhd", weights, _float64(v)), lse


def attention_backward(
    dout: NDArray[Any],
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    mask_bias: NDArray[Any] | None = None,
    pair_bias: NDArray[Any] | None = None,
    scale: float | None = None,
) -> tuple[Float64, Float64, Float64, Float64 | None, Float64 | None]:
    """Gradients of ``sum(dout * out)``, out being that of `attention`: dq, dk, dv, dmask_bias and
    dpair_bias, each shaped like its operand.

    dout [B, N, Lq, H, D], the rest as in `attention`. The gradient of a bias that is None, or of a
    bool mask, is None. A row whose every score is -inf adds nothing to any gradient. NaN goes where
    the sums take it, also through keys that are masked: neither -inf + NaN nor 0 * NaN stops it.
    """
    weights, _ = _weights(q, k, mask_bias, pair_bias, scale)
    dout, q, k, v = _float64(dout), _float64(q), _float64(k), _float64(v)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    out = _contracted("bnhqk,bnkhd->bnqhd", weights, v)
    delta = _contracted("bnqhd,bnqhd->bnhq", dout, out)[..., None]
    dscores = weights * (_contracted("bnqhd,bnkhd->bnhqk", dout, v) - delta)
    dq = factor * _contracted("bnhqk,bnkhd->bnqhd", dscores, k)
    dk = factor * _contracted("bnhqk,bnqhd->bnkhd", dscores, q)
    dv = _contracted("bnhqk,bnqhd->bnkhd", weights, dout)
    return dq, dk, dv, _bias_gradient(dscores, mask_bias), _bias_gradient(dscores, pair_bias)


def _bias_gradient(dscores: Float64, bias: NDArray[Any] | None) -> Float64 | None:
    """`dscores`, [B, N, H, Lq, Lk], summed over the axes along which the bias has extent 1."""
    if bias is None or np.asarray(bias).dtype == np.bool_:
        return None
    axes = tuple(axis for axis, extent in enumerate(np.shape(bias)) if extent == 1)
    summed: Float64 = dscores.sum(axis=axes, keepdims=True)
    return summed


def _weights(
    q: NDArray[Any],
    k: NDArray[Any],
    mask_bias: NDArray[Any] | None,
    pair_bias: NDArray[Any] | None,
    scale: float | None,
) -> tuple[Float64, Float64]:
    """Softmax over keys of the scores, [B, N, H, Lq, Lk], zeros where every score of a row is
    -inf; and the log-sum-exp of every row, [B, N, H, Lq].
    """
    q, k = _float64(q), _float64(k)
    scores = _contracted("bnqhd,bnkhd->bnhqk", q, k)
    scores *= q.shape[-1] ** -0.5 if scale is None else scale
    if mask_bias is not None:
        scores += additive(mask_bias)
    if pair_bias is not None:
        scores += additive(pair_bias)
    highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isneginf(highest), 0.0, highest))
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + highest)[..., 0]
    weights /= np.where(total == 0.0, 1.0, total)
    return weights, lse


def _contracted(axes: str, x: Float64, y: Float64) -> Float64:
    """``einsum`` by products of matrices where there are any, ten times as fast; contiguous."""
    return np.ascontiguousarray(np.einsum(axes, x, y, optimize=True))


def _float64(x: NDArray[Any]) -> Float64:
    return np.asarray(x).astype(np.float64)


def additive(bias: NDArray[Any]) -> Float64:
    """A bias as numbers to add: bool becomes 0 where True and -inf where False."""
    bias = np.asarray(bias)
    if bias.dtype == np.bool_:
        return np.where(bias, 0.0, -np.inf)
    return bias.astype(np.float64)


def gemm(
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any] | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    trans_a: bool = False,
    trans_b: bool = False,
    bias: NDArray[Any] | None = None,
    scatter: NDArray[Any] | None = None,
    out: NDArray[Any] | None = None,
) -> Float64:
    """``alpha * op(a) . op(b) + beta * c + bias``, op(x) being x with its last two axes exchanged
    where trans_x.

    op(a) [M, K] or [B, M, K]; op(b) [K, N] or [B, K, N]; c [M, N] or [B, M, N], not read where beta
    is 0; bias [N]. With scatter [M], row i of the product is row ``scatter[i]`` of c and of the
    result, which is `out` [rows, N] or [B, rows, N] in its other rows; an index outside of it drops
    the row.
    """
    a, b = (np.asarray(x).astype(np.float64) for x in (a, b))
    a = a.swapaxes(-1, -2) if trans_a else a
    b = b.swapaxes(-1, -2) if trans_b else b
    with np.errstate(invalid="ignore"):
        result: Float64 = alpha * (a @ b)
        result += 0.0 if bias is None else np.asarray(bias).astype(np.float64)
        added = 0.0 if c is None or beta == 0.0 else beta * np.asarray(c).astype(np.float64)
        if scatter is None:
            return result + added
        assert out is not None
        rows = np.asarray(out).astype(np.float64)
        added = np.broadcast_to(added, rows.shape)
        for i, row in enumerate(scatter):
            if 0 <= row < rows.shape[-2]:
                rows[..., row, :] = result[..., i, :] + added[..., row, :]
        return rows
