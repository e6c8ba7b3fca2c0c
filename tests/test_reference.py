"""cuevo.reference against the formulas, written out as loops over Python numbers."""

import math

import ml_dtypes
import numpy as np
import pytest

from cuevo import reference

pytestmark = pytest.mark.unit

# -- Attention -------------------------------------------------------------------------------------


def by_hand(q, k, v, mask=None, pair=None, scale=None):
    """One sum at a time, in fsum's exact arithmetic."""
    batch, rows, queries, heads, head_dim = q.shape
    keys = k.shape[2]
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    out = np.zeros(q.shape)
    lse = np.full((batch, rows, heads, queries), -math.inf)
    for b, n, i, h in np.ndindex(batch, rows, queries, heads):
        scores = []
        for j in range(keys):
            s = scale * math.fsum(
                float(x) * float(y) for x, y in zip(q[b, n, i, h], k[b, n, j, h], strict=True)
            )
            if mask is not None and mask.dtype == np.bool_:
                s = s if mask[b, n, 0, 0, j] else -math.inf
            elif mask is not None:
                s += float(mask[b, n, 0, 0, j])
            if pair is not None:
                s += float(pair[b, 0, h, i, j])
            scores.append(s)
        highest = max(scores, default=-math.inf)
        if highest == -math.inf:
            continue
        weights = [math.exp(s - highest) for s in scores]
        total = math.fsum(weights)
        lse[b, n, h, i] = highest + math.log(total)
        for d in range(head_dim):
            out[b, n, i, h, d] = (
                math.fsum(w * float(v[b, n, j, h, d]) for j, w in enumerate(weights)) / total
            )
    return out, lse


def make(dtype=np.float16, keys=5):
    rng = np.random.default_rng(7)
    q = rng.standard_normal((2, 3, 4, 2, 8)).astype(dtype)
    k, v = rng.standard_normal((2, 2, 3, keys, 2, 8)).astype(dtype)
    mask = rng.standard_normal((2, 3, 1, 1, keys)).astype(np.float32)
    pair = rng.standard_normal((2, 1, 2, 4, keys)).astype(dtype)
    return q, k, v, mask, pair


def compare(*arguments, **options):
    out, lse = reference.attention(*arguments, **options)
    expected, expected_lse = by_hand(*arguments, **options)
    assert out.dtype == lse.dtype == np.float64
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_both_biases(dtype):
    compare(*make(dtype))


def test_without_biases():
    compare(*make()[:3])


@pytest.mark.parametrize("scale", [1.0, -2.5, 0.0, 1e-30])
def test_scale(scale):
    compare(*make(), scale=scale)


def test_a_bool_mask_says_which_keys_attend():
    q, k, v, mask, pair = make()
    compare(q, k, v, mask > 0, pair)


def test_one_key_is_copied():
    q, k, v, mask, pair = make(keys=1)
    out, lse = reference.attention(q, k, v, mask, pair)
    np.testing.assert_allclose(out, np.broadcast_to(v.astype(np.float64), out.shape), rtol=1e-15)
    assert np.isfinite(lse).all()


def test_rows_of_nothing_but_minus_infinity():
    q, k, v, mask, pair = make()
    mask[0, 1] = -np.inf
    pair[1, 0, 1, 2] = -np.inf
    mask[1, 2, ..., :3] = -np.inf
    compare(q, k, v, mask, pair)
    out, lse = reference.attention(q, k, v, mask, pair)
    assert (out[0, 1] == 0).all() and np.isneginf(lse[0, 1]).all()
    assert (out[1, :, 2, 1] == 0).all() and np.isneginf(lse[1, :, 1, 2]).all()
    assert np.isneginf(lse).sum() == 2 * 4 + 3


def test_large_scores_do_not_overflow():
    q, k, v, mask, pair = make()
    compare(q, k, v, mask + np.float32(1e6), pair)
    compare(q, k, v, mask - np.float32(1e6), pair)


def test_nan_stays_in_the_rows_that_it_reaches():
    q, k, v, *_ = make()
    q[1, 2, 3, 1, 0] = np.nan
    out, lse = reference.attention(q, k, v)
    reached = np.zeros(out.shape, bool)
    reached[1, 2, 3, 1] = True
    np.testing.assert_array_equal(np.isnan(out), reached)
    assert np.isnan(lse[1, 2, 1, 3]) and np.isnan(lse).sum() == 1


def test_no_keys():
    q, k, v, *_ = make()
    out, lse = reference.attention(q, k[:, :, :0], v[:, :, :0])
    assert (out == 0).all() and np.isneginf(lse).all()


def test_additive():
    np.testing.assert_array_equal(reference.additive(np.array([True, False])), [0.0, -np.inf])
    np.testing.assert_array_equal(
        reference.additive(np.array([1.5, -np.inf], np.float16)), [1.5, -np.inf]
    )


# -- Gradients of attention ------------------------------------------------------------------------

STEP = 1e-6
GRADIENTS = ("q", "k", "v", "mask_bias", "pair_bias")


def problem(keys=5, **changes):
    """Arguments of `attention_backward` in float64, where a step of 1e-6 is one."""
    q, k, v, mask, pair = (x.astype(np.float64) for x in make(keys=keys))
    dout = np.random.default_rng(9).standard_normal(q.shape)
    return dict(dout=dout, q=q, k=k, v=v, mask_bias=mask, pair_bias=pair) | changes


def gradients(**arguments):
    return dict(zip(GRADIENTS, reference.attention_backward(**arguments), strict=True))


def by_differences(name, **arguments):
    """Central differences of sum(dout * out), one element of argument `name` at a time."""
    dout, x = arguments.pop("dout"), arguments[name].copy()
    found = np.zeros(x.shape)
    for place in np.ndindex(x.shape):
        sums, value = [], x[place]
        for step in (STEP, -STEP):
            x[place] = value + step
            sums.append((dout * reference.attention(**arguments | {name: x})[0]).sum())
        x[place] = value
        found[place] = (sums[0] - sums[1]) / (2 * STEP)
    return found


def without(*names):
    return dict.fromkeys(names)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        without("mask_bias"),
        without("pair_bias"),
        without("mask_bias", "pair_bias"),
        {"scale": -0.7},
        {"scale": 0.0},
    ],
    ids=str,
)
def test_every_gradient_by_finite_differences(changes):
    arguments = problem(**changes)
    found = gradients(**arguments)
    for name in GRADIENTS:
        if arguments[name] is None:
            assert found[name] is None
            continue
        assert found[name].dtype == np.float64 and found[name].shape == arguments[name].shape
        np.testing.assert_allclose(
            found[name], by_differences(name, **arguments), rtol=1e-6, atol=1e-8, err_msg=name
        )
    assert np.abs(found["v"]).max() > 0.1


def test_gradients_by_finite_differences_where_keys_and_rows_are_masked():
    arguments = problem()
    arguments["mask_bias"][0, 1, ..., :2] = -np.inf
    arguments["pair_bias"][1, 0, 1, 2] = -np.inf
    arguments["pair_bias"][0, 0, 0, 1, 3] = -np.inf
    found = gradients(**arguments)
    for name in GRADIENTS:
        np.testing.assert_allclose(
            found[name], by_differences(name, **arguments), rtol=1e-6, atol=1e-8, err_msg=name
        )


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_gradients_of_16_bit_arrays_are_those_of_their_numbers(dtype):
    rounded = {name: x.astype(dtype) for name, x in problem().items()}
    exact = gradients(**{name: x.astype(np.float64) for name, x in rounded.items()})
    for name, found in gradients(**rounded).items():
        np.testing.assert_array_equal(found, exact[name])


@pytest.mark.parametrize("kind", ["bool", "-inf", "pair"])
def test_masked_keys_have_the_gradients_of_deleted_keys(kind):
    arguments = problem()
    gone = np.array([True, False, False, True, False])
    if kind == "bool":
        arguments["mask_bias"] = np.broadcast_to(~gone, arguments["mask_bias"].shape)
    else:
        arguments["mask_bias" if kind == "-inf" else "pair_bias"][..., gone] = -np.inf
    fewer = {name: arguments[name][:, :, ~gone] for name in ("k", "v")}
    fewer |= {name: arguments[name][..., ~gone] for name in ("mask_bias", "pair_bias")}
    found, expected = gradients(**arguments), gradients(**arguments | fewer)
    assert (found["mask_bias"] is None) == (kind == "bool")
    np.testing.assert_allclose(found["q"], expected["q"], rtol=1e-12, atol=1e-14)
    for name in ("k", "v"):
        assert (found[name][:, :, gone] == 0).all()
        np.testing.assert_allclose(found[name][:, :, ~gone], expected[name], rtol=1e-12, atol=1e-14)
    for name in ("mask_bias", "pair_bias"):
        if found[name] is not None:
            assert (found[name][..., gone] == 0).all()
            np.testing.assert_allclose(found[name][..., ~gone], expected[name], atol=1e-14)


def test_rows_of_nothing_but_minus_infinity_add_nothing():
    arguments = problem()
    arguments["mask_bias"][0, 1] = -np.inf
    arguments["pair_bias"][:, 0, :, 2] = -np.inf
    found = gradients(**arguments)
    assert (found["q"][0, 1] == 0).all() and (found["q"][:, :, 2] == 0).all()
    for name in ("k", "v", "mask_bias"):
        assert (found[name][0, 1] == 0).all()
    assert (found["pair_bias"][:, :, :, 2] == 0).all()
    others = {name: np.delete(arguments[name], 2, axis=2) for name in ("dout", "q")}
    others["pair_bias"] = np.delete(arguments["pair_bias"], 2, axis=3)
    for name, expected in gradients(**arguments | others).items():
        axis = {"q": 2, "pair_bias": 3}.get(name)
        kept = found[name] if axis is None else np.delete(found[name], 2, axis=axis)
        np.testing.assert_allclose(kept, expected, rtol=1e-12, atol=1e-14)


def test_gradients_of_one_key():
    arguments = problem(keys=1)
    found = gradients(**arguments)
    np.testing.assert_allclose(found["v"], arguments["dout"].sum(axis=2, keepdims=True))
    for name in ("q", "k", "mask_bias", "pair_bias"):
        np.testing.assert_allclose(found[name], 0.0, atol=1e-14)


def test_gradients_without_keys():
    arguments = problem(**without("mask_bias", "pair_bias"))
    found = gradients(**arguments | {name: arguments[name][:, :, :0] for name in ("k", "v")})
    assert (found["q"] == 0).all() and found["k"].shape == found["v"].shape == (2, 3, 0, 2, 8)


def test_gradients_with_nan_in_one_row_of_scores():
    """The row reaches all its keys, masked ones too, and nothing of another row n or head."""
    arguments = problem()
    arguments["mask_bias"][1, 2, ..., 0] = -np.inf
    arguments["q"][1, 2, 3, 1, 0] = np.nan
    found = gradients(**arguments)
    reached = {
        "q": np.s_[1, 2, 3, 1],
        "k": np.s_[1, 2, :, 1],
        "v": np.s_[1, 2, :, 1],
        "mask_bias": np.s_[1, 2],
        "pair_bias": np.s_[1, 0, 1, 3],
    }
    for name, where in reached.items():
        expected = np.zeros(found[name].shape, bool)
        expected[where] = True
        np.testing.assert_array_equal(np.isnan(found[name]), expected, err_msg=name)


def test_gradients_with_nan_in_dout():
    """dv has it in that column only; all that dS reaches has it everywhere."""
    arguments = problem()
    arguments["dout"][1, 2, 3, 1, 0] = np.nan
    found = gradients(**arguments)
    assert np.isnan(found["v"][1, 2, :, 1, 0]).all() and np.isnan(found["v"]).sum() == 5
    assert np.isnan(found["q"][1, 2, 3, 1]).all() and np.isnan(found["q"]).sum() == 8
    assert np.isnan(found["k"][1, 2, :, 1]).all() and np.isnan(found["k"]).sum() == 5 * 8


# -- Matrix products -------------------------------------------------------------------------------

M, N, K = 4, 3, 5


def product_by_hand(a, b, row, column):
    """One element of a . b, in fsum's exact arithmetic."""
    return math.fsum(float(x) * float(y) for x, y in zip(a[row], b[:, column], strict=True))


def matrices(dtype=np.float16, batch=()):
    rng = np.random.default_rng(8)
    a = rng.standard_normal((*batch, M, K)).astype(dtype)
    b = rng.standard_normal((*batch, K, N)).astype(dtype)
    c = rng.standard_normal((*batch, M, N)).astype(np.float32)
    return a, b, c, rng.standard_normal(N).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_gemm(dtype):
    a, b, c, bias = matrices(dtype)
    found = reference.gemm(a, b, c, 0.7, -2.0, bias=bias)
    assert found.dtype == np.float64
    for i, j in np.ndindex(M, N):
        by_hand = 0.7 * product_by_hand(a, b, i, j) - 2.0 * float(c[i, j]) + float(bias[j])
        assert found[i, j] == pytest.approx(by_hand, rel=1e-12)
    plain = reference.gemm(a, b)
    assert plain[2, 1] == pytest.approx(product_by_hand(a, b, 2, 1), rel=1e-12)


def test_gemm_of_batches_is_one_of_each():
    a, b, c, bias = matrices(batch=(2,))
    found = reference.gemm(a, b, c, beta=1.0, bias=bias)
    for i in range(2):
        np.testing.assert_array_equal(
            found[i], reference.gemm(a[i], b[i], c[i], 1.0, 1.0, bias=bias)
        )
    np.testing.assert_array_equal(reference.gemm(a, b[1])[0], reference.gemm(a[0], b[1]))
    np.testing.assert_array_equal(reference.gemm(a[1], b)[0], reference.gemm(a[1], b[0]))


@pytest.mark.parametrize("batch", [(), (2,)])
def test_gemm_of_transposed_operands(batch):
    a, b, *_ = matrices(batch=batch)
    expected = reference.gemm(a, b)
    swapped_a, swapped_b = a.swapaxes(-1, -2), b.swapaxes(-1, -2)
    np.testing.assert_array_equal(reference.gemm(swapped_a, b, trans_a=True), expected)
    np.testing.assert_array_equal(reference.gemm(a, swapped_b, trans_b=True), expected)
    both = reference.gemm(swapped_a, swapped_b, trans_a=True, trans_b=True)
    np.testing.assert_array_equal(both, expected)


def test_gemm_does_not_read_c_where_beta_is_zero():
    a, b, c, _ = matrices()
    np.testing.assert_array_equal(
        reference.gemm(a, b, np.full_like(c, np.nan)), reference.gemm(a, b)
    )


@pytest.mark.parametrize("batch", [(), (2,)])
def test_gemm_scatters_rows(batch):
    a, b, *_ = matrices(batch=batch)
    out, c = np.arange(2 * 6 * N, dtype=np.float32).reshape(2, 6, N)
    scatter = np.array([5, -1, 0, 6])
    found = reference.gemm(
        a, b, c, 1.0, 2.0, scatter=scatter, out=np.broadcast_to(out, (*batch, 6, N))
    )
    plain = reference.gemm(a, b)
    assert found.shape == (*batch, 6, N)
    np.testing.assert_array_equal(found[..., 1:5, :], np.broadcast_to(out[1:5], (*batch, 4, N)))
    np.testing.assert_allclose(found[..., 5, :], plain[..., 0, :] + 2.0 * c[5], rtol=1e-15)
    np.testing.assert_allclose(found[..., 0, :], plain[..., 2, :] + 2.0 * c[0], rtol=1e-15)


def test_gemm_of_nothing():
    a, b, c, bias = matrices()
    np.testing.assert_array_equal(reference.gemm(a[:, :0], b[:0]), np.zeros((M, N)))
    found = reference.gemm(a[:, :0], b[:0], c, beta=0.5, bias=bias)
    np.testing.assert_allclose(found, 0.5 * c.astype(np.float64) + bias.astype(np.float64))
