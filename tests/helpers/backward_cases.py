"""Problems for the backward pass of attention, on top of `attention_cases`.

A `BackwardCase` is all parameters of one problem, and prints them; `make` gives its arrays, with
out and lse as a forward pass gives them, `expected` what float64 says, `check` compares.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from helpers import attention_cases as forward
from helpers.attention_cases import Case, operand, store
from helpers.guarded import DTYPES, Strided, fail, lay_out
from ml_dtypes import finfo

from cuevo import reference

TOLERANCE = {"bf16": 1e-2, "f16": 1.5e-3}
"""Limits of the relative error by norm of every gradient: P, dS and the result are rounded to the
16-bit type.
"""
SCORE_ERROR = 2.0**-20
"""Relative error of a score: fp32 sums in blocks, each cut, and their difference from lse."""
CANCELLATION = 2.0**-21
"""Error that ``dout . v - delta`` keeps of its terms where they cancel, in fp32."""
SAME_CANCELLATION = 2.0**-24
"""The part of it that has the same sign wherever a row of dout is broadcast to."""
OVERFLOW = 0.98
"""Part of a type's largest number from which on a gradient may be rounded to infinity."""

ARGUMENTS = {
    "dq": "q",
    "dk": "k",
    "dv": "v",
    "dmask_bias": "mask_bias",
    "dpair_bias": "pair_bias",
}
"""The gradients, in the order in which they are returned, and what they are gradients of."""
GRADS = tuple(ARGUMENTS.values())
DOUT_LAYOUTS = tuple(layout for layout in forward.LAYOUTS if layout != "fused")
GRAD_LAYOUTS = ("packed", "heads first", "padded", "reversed", "stepped")
VALUES = (
    *forward.VALUES,
    "far mask, padded rows",
    "one key by mask",
    "one key by pair",
    "huge pair bias",
    "offset v",
    "large dout",
    "tiny dout",
    "zero dout",
    "rows of zero dout",
    "nan dout",
)


@dataclass(frozen=True)
class BackwardCase(Case):
    """One problem; what is printed of it makes it again."""

    dout_layout: str = "packed"
    grads: tuple[str, ...] = GRADS
    """The argument `grads`: what is asked for, whether the call has it or not."""
    bias_grad_dtype: str | None = None
    """The argument: None, the type of the bias, or "float32"."""
    grad_layout: str = "packed"
    """Layout of dq, dk and dv in memory, where the caller of a kernel gives it."""

    @property
    def gradients(self) -> tuple[str, ...]:
        """Names of the gradients that come back as arrays."""
        absent = {"mask_bias": self.mask in ("none", "bool"), "pair_bias": self.pair == "none"}
        return tuple(
            name
            for name, argument in ARGUMENTS.items()
            if argument in self.grads and not absent.get(argument, False)
        )

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `cuevo.attention_backward` that are no arrays."""
        return dict(scale=self.scale, grads=self.grads, bias_grad_dtype=self.bias_grad_dtype)

    def dtype_of(self, gradient: str) -> np.dtype[Any]:
        """Type of the array that comes back."""
        if gradient not in ("dmask_bias", "dpair_bias"):
            return DTYPES[self.dtype]
        bias = self.mask if gradient == "dmask_bias" else self.pair
        return DTYPES["f32" if self.bias_grad_dtype == "float32" else bias]


# -- Making ----------------------------------------------------------------------------------------


def make(case: BackwardCase) -> dict[str, Strided]:
    """The inputs by their names as arguments of `cuevo.attention_backward`: q, k, v, the biases,
    dout, and out and lse, exact but for their rounding.
    """
    known = case.values in forward.VALUES
    made = forward.make(case if known else replace(case, values="normal"))
    made["dout"] = operand(case.dout_layout, made["q"].array.shape, DTYPES[case.dtype])
    rng = np.random.default_rng((case.seed, 1))
    _set_values(case, {name: x.array for name, x in made.items()}, rng)
    results = forward.make_results(case)
    operands = {name: x for name, x in made.items() if name != "dout"}
    for x, exact in zip(results.values(), forward.expected(case, operands), strict=True):
        store(x.array, exact)
    return made | results


def _set_values(
    case: BackwardCase, arrays: Mapping[str, np.ndarray], rng: np.random.Generator
) -> None:
    """Fill dout, and change what the forward pass has filled, in place."""
    kind, half = case.values, case.dtype == "f16"
    v, dout = arrays["v"], arrays["dout"]
    fill = rng.standard_normal(dout.shape)
    if kind == "large dout":
        # In fp16 every gradient has to stay below 65504.
        fill *= 100.0 if half else 1e6
    elif kind == "tiny dout":
        fill *= 1e-2 if half else 1e-30
    elif kind == "zero dout":
        fill[...] = 0.0
    elif kind == "rows of zero dout":
        fill[:, :, rng.random(case.queries) < 0.6] = 0.0
    elif kind == "far mask, padded rows":
        # Of every key of some rows n. lse says little of such a row, but that does not matter.
        fill[:, 1::2] = 0.0
        arrays["mask_bias"][:, 1::2] = -6e4 if case.mask == "f16" else -1e9
    store(dout, fill)
    if kind == "large v" and half:
        store(v, v.astype(np.float64) / 256.0)
    elif kind == "offset v":
        store(v, v.astype(np.float64) + 10.0)
    elif kind in ("one key by mask", "one key by pair"):
        bias = arrays["mask_bias" if "mask" in kind else "pair_bias"]
        where = rng.integers(case.keys, size=(*bias.shape[:-1], 1))
        chosen = np.arange(case.keys) == where
        store(bias, chosen if bias.dtype == np.bool_ else np.where(chosen, 0.0, -np.inf))
    elif kind == "huge pair bias":
        pair = arrays["pair_bias"]
        largest = 6e4 if case.pair == "f16" else 1e6
        store(pair, np.clip(1e6 * rng.standard_normal(pair.shape), -largest, largest))
    elif kind == "nan dout":
        dout[tuple(int(rng.integers(extent)) for extent in dout.shape)] = np.nan


def make_results(case: BackwardCase) -> dict[str, Strided]:
    """Poisoned memory for the gradients that come back."""
    outer = (case.batch, case.rows)
    k_shape = (*outer, case.keys, case.heads, case.head_dim)
    shapes = {
        "dq": (*outer, case.queries, case.heads, case.head_dim),
        "dk": k_shape,
        "dv": k_shape,
        **{f"d{name}": shape for name, shape in forward.bias_shapes(case).items()},
    }
    return {
        name: lay_out(shapes[name], case.dtype_of(name))
        if name.endswith("bias")
        else operand(case.grad_layout, shapes[name], case.dtype_of(name))
        for name in case.gradients
    }


# -- Checking --------------------------------------------------------------------------------------


def expected(case: BackwardCase, inputs: Mapping[str, Strided]) -> dict[str, np.ndarray]:
    """The gradients that come back, in float64; out and lse are not read."""
    operands = {name: x.array for name, x in inputs.items() if name not in ("out", "lse")}
    found = reference.attention_backward(**operands, scale=case.scale)
    every = dict(zip(ARGUMENTS, found, strict=True))
    return {name: every[name] for name in case.gradients}


def rounded(
    case: BackwardCase, inputs: Mapping[str, Strided], precision: type = np.float64
) -> dict[str, np.ndarray]:
    """The same by the formulas of a kernel: from out and lse, with P and dS rounded to the 16-bit
    type in front of their products, all else in `precision`, and the gradients in their types.
    """

    def product(path: str, *factors: np.ndarray) -> np.ndarray:
        return np.einsum(path, *factors, dtype=precision, optimize=True)

    def narrow(x: np.ndarray) -> np.ndarray:
        return x.astype(DTYPES[case.dtype]).astype(precision)

    named = ("q", "k", "v", "dout", "out", "lse")
    q, k, v, dout, out, lse = (inputs[name].array.astype(precision) for name in named)
    scale = precision(case.head_dim**-0.5 if case.scale is None else case.scale)
    scores = scale * product("bnqhd,bnkhd->bnhqk", q, k)
    for name in ("mask_bias", "pair_bias"):
        if name in inputs:
            scores += reference.additive(inputs[name].array).astype(precision)
    lse = lse[..., None]
    dead = np.isneginf(lse)
    # Far from 0, lse is off by more than 1, but no probability is above it.
    p = np.where(dead, 0, np.exp(np.minimum(scores - np.where(dead, 0, lse), 0)))
    delta = product("bnqhd,bnqhd->bnhq", dout, out)[..., None]
    ds = p * (product("bnqhd,bnkhd->bnhqk", dout, v) - delta)
    every = {
        "dq": scale * product("bnhqk,bnkhd->bnqhd", narrow(ds), k),
        "dk": scale * product("bnhqk,bnqhd->bnkhd", narrow(ds), q),
        "dv": product("bnhqk,bnqhd->bnkhd", narrow(p), dout),
        **{
            f"d{name}": ds.sum(axis=_single(shape), keepdims=True)
            for name, shape in forward.bias_shapes(case).items()
        },
    }
    return {name: every[name].astype(case.dtype_of(name)) for name in case.gradients}


def check(
    case: BackwardCase,
    found: Mapping[str, np.ndarray | None],
    inputs: Mapping[str, Strided],
) -> None:
    """Compare with float64; the failure says which case and gradient, how far off, and where it
    begins.

    `found` has the gradients by name; what was not asked for, or is no gradient, is None or absent.
    The error of a gradient by norm is at most `TOLERANCE`, or twice that of `rounded` where its
    roundings alone make more; and besides what fp32 leaves of scores that are far from 0
    (`SCORE_ERROR`) and of terms that cancel (`CANCELLATION`). Elements that no query attends to,
    and rows of dq whose every score is -inf, are exactly 0. NaN is where float64 has it; the rest
    of such a row of the last axis may be NaN too, or any number. Infinity is where float64 has what
    the type of the gradient has not (`OVERFLOW`), and counts as the type's largest number.
    """
    exact, model = expected(case, inputs), rounded(case, inputs)
    reached = _reached(case, inputs)
    for name in ARGUMENTS:
        result = found.get(name)
        if name not in exact:
            assert result is None, f"{case}\n{name}: an array, where there should be none"
            continue
        assert result is not None, f"{case}\n{name}: None, where there should be an array"
        stated = (result.shape, result.dtype)
        assert stated == (exact[name].shape, case.dtype_of(name)), f"{case}\n{name}: {stated}"
        x, largest = result.astype(np.float64), float(finfo(result.dtype).max)
        _check_overflow(case, name, x, exact[name], largest)
        x, y, z = (np.clip(array, -largest, largest) for array in (x, exact[name], model[name]))
        sound = _check_specials(case, name, x, y, reached[name])
        _check_error(case, name, x, y, z, sound, inputs)


def _reached(case: BackwardCase, inputs: Mapping[str, Strided]) -> dict[str, np.ndarray]:
    """Which elements of each gradient a score above -inf goes into."""
    attends = np.ones((case.batch, case.rows, case.heads, case.queries, case.keys), np.bool_)
    for name in ("mask_bias", "pair_bias"):
        if name in inputs:
            attends &= ~np.isneginf(reference.additive(inputs[name].array))
    keys = attends.any(axis=3).swapaxes(2, 3)[..., None]
    return {
        "dq": attends.any(axis=4).swapaxes(2, 3)[..., None],
        "dk": keys,
        "dv": keys,
        **{
            f"d{name}": attends.any(axis=_single(shape), keepdims=True)
            for name, shape in forward.bias_shapes(case).items()
        },
    }


def _single(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of extent 1."""
    return tuple(axis for axis, extent in enumerate(shape) if extent == 1)


def _check_overflow(
    case: BackwardCase, name: str, found: np.ndarray, exact: np.ndarray, largest: float
) -> None:
    """Infinity is nowhere but where `exact` is not much below `largest`, in rows without NaN."""
    allowed = np.isnan(exact).any(axis=-1, keepdims=True) | (np.abs(exact) > OVERFLOW * largest)
    wrong = np.isinf(found) & ~allowed
    if wrong.any():
        fail(case, f"{name}: not finite", wrong, found, exact)


def _check_specials(
    case: BackwardCase, name: str, found: np.ndarray, exact: np.ndarray, reached: np.ndarray
) -> np.ndarray:
    """Which elements lie in rows without NaN, the rows being those of the last axis."""
    nan, nan_exact = np.isnan(found), np.isnan(exact)
    sound = np.broadcast_to(~nan_exact.any(axis=-1, keepdims=True), exact.shape)
    wrong = sound & nan
    if wrong.any():
        fail(case, f"{name}: NaN in rows that none reaches", wrong, found, exact)
    wrong = nan_exact & reached & ~nan
    if wrong.any():
        fail(case, f"{name}: no NaN where there should be", wrong, found, exact)
    wrong = ~reached & (found != 0.0) & ~(nan & nan_exact)
    if wrong.any():
        fail(case, f"{name}: not 0 where every score is -inf", wrong, found, exact)
    return sound


def _check_error(
    case: BackwardCase,
    name: str,
    found: np.ndarray,
    exact: np.ndarray,
    model: np.ndarray,
    sound: np.ndarray,
    inputs: Mapping[str, Strided],
) -> None:
    def norm(x: np.ndarray) -> float:
        return float(np.linalg.norm(np.where(sound, x, 0.0)))

    lse = inputs["lse"].array
    counts = (inputs["dout"].array != 0).any(axis=-1).swapaxes(2, 3) & np.isfinite(lse)
    largest = np.abs(lse[counts]).max(initial=0.0)
    tolerance = TOLERANCE[case.dtype] + np.expm1(SCORE_ERROR * largest)
    size = norm(exact)
    allowed = max(tolerance * size, 2.0 * norm(model - exact)) + _cancelled(case, name, inputs)
    difference = np.abs(np.where(sound, found - exact, 0.0))
    error = norm(found - exact)
    if not error <= allowed:
        typical = allowed / max(np.count_nonzero(sound), 1) ** 0.5
        relative = f", relative {error / size:.3g}" if size else ""
        fail(
            case,
            f"{name}: error {error:.3g}{relative}, allowed {allowed:.3g}",
            difference > 8 * typical,
            found,
            exact,
        )


def _cancelled(case: BackwardCase, name: str, inputs: Mapping[str, Strided]) -> float:
    """Norm of what fp32 leaves of a gradient that cancels, as where rows attend to one key only."""

    def longest_row(name: str) -> float:
        rows = np.linalg.norm(inputs[name].array.astype(np.float64), axis=-1)
        return float(rows[np.isfinite(rows)].max(initial=0.0))

    scale = abs(case.head_dim**-0.5 if case.scale is None else case.scale)
    factors = {"dq": ("k", scale), "dk": ("q", scale)}
    if name == "dv":
        return 0.0
    stored = inputs["dout"].array
    dout = stored.astype(np.float64)
    terms = longest_row("v") * float(np.linalg.norm(dout[np.isfinite(dout)]))
    error = CANCELLATION
    if name != "dq":
        # Sums over rows of dout: by chance, or of the same again.
        axes = zip(stored.shape[:-1], stored.strides, strict=False)
        same = prod(extent for extent, step in axes if step == 0)
        error = max(error, SAME_CANCELLATION * same**0.5)
    if name in factors:
        other, factor = factors[name]
        terms *= factor * longest_row(other)
    return error * terms
