"""Attention problems for tests: seeded, in memory with guard bands, for the CPU executor and a GPU.

A `Case` is all parameters of one problem, and prints them; `make` gives its arrays, `expected` what
float64 says, `check` compares. How arrays lie in memory: `guarded`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from helpers.guarded import DTYPES, Strided, fail, lay_out
from helpers.guarded import GUARD as GUARD
from helpers.guarded import POISON as POISON
from helpers.guarded import OnDevice as OnDevice
from helpers.guarded import assert_same_bytes as assert_same_bytes
from helpers.guarded import bytes_around as bytes_around
from helpers.guarded import check_guards as check_guards
from helpers.guarded import host_views as host_views

from cuevo import reference
from cuevo.executors.protocol import Executor
from cuevo.kernels import evoformer_forward_sm80 as forward

TOLERANCE = {"bf16": 4e-3, "f16": 6e-4}
"""Limits of the relative error by norm: probabilities and result are rounded to the 16-bit type."""
LSE_TOLERANCE = 1e-3
"""Absolute; relative above 1."""

LAYOUTS = (
    "packed",
    "heads first",
    "fused",
    "padded",
    "reversed",
    "stepped",
    "broadcast B",
    "broadcast N",
    "broadcast L",
    "broadcast H",
    "broadcast all",
)
MASK_LAYOUTS = ("packed", "padded", "keys first", "reversed", "broadcast N", "broadcast all")
SINGLE = {"one B": (0,), "one N": (1,), "one B, N": (0, 1)}
"""Layouts of a packed bias that has extent 1 along these axes; those of the pair bias: "one B"."""
PAIR_LAYOUTS = (
    "packed",
    "aligned 16",
    "aligned 8",
    "aligned 4",
    "aligned 2",
    "queries first",
    "reversed",
    "broadcast B",
    "broadcast H",
    "broadcast L",
)
VALUES = (
    "normal",
    "dead by mask",
    "dead by pair",
    "leading keys masked",
    "leading keys out by pair",
    "far mask",
    "far mask, leading",
    "large scores",
    "large pair bias",
    "offset",
    "rising",
    "falling",
    "equal",
    "small",
    "large v",
    "nan q",
    "nan k",
    "nan v",
    "nan mask",
    "nan pair",
)


@dataclass(frozen=True)
class Case:
    """One problem; what is printed of it makes it again."""

    dtype: str
    head_dim: int
    queries: int
    keys: int
    batch: int = 1
    rows: int = 1
    heads: int = 1
    mask: str = "none"
    """Type of mask_bias: "none", "f16", "bf16", "f32" or "bool"."""
    pair: str = "none"
    layout: str = "packed"
    """Layout of q, k and v in memory, and, where that can be, the result."""
    mask_layout: str = "packed"
    pair_layout: str = "packed"
    values: str = "normal"
    offset: float = 1e3
    """Number that values "offset" add to every mask value."""
    scale: float | None = None
    arch: str = "sm_80"
    """Architecture of the CPU executor."""
    shape: int | None = None
    """Which of the kernel's candidates; None: the one that it chooses."""
    seed: int = 0


# -- Layouts ---------------------------------------------------------------------------------------


def operand(layout: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Strided:
    """Memory for q, k, v, out or their gradients, [B, N, L, H, D]."""
    row = shape[4] * dtype.itemsize
    if layout == "heads first":
        return lay_out(shape, dtype, order=(0, 1, 3, 2, 4))
    if layout == "padded":
        return lay_out(shape, dtype, row_bytes=row + 48, gaps=True, shift=16)
    if layout == "reversed":
        return lay_out(shape, dtype, backwards=(0, 1, 2, 3), shift=32)
    if layout == "stepped":
        return lay_out(shape, dtype, stepped=(1, 2, 3))
    if layout.startswith("broadcast"):
        axes = {"B": (0,), "N": (1,), "L": (2,), "H": (3,), "all": (0, 1, 2, 3)}
        return lay_out(shape, dtype, broadcast=axes[layout.split()[1]])
    return lay_out(shape, dtype)


def bias_shapes(case: Case) -> dict[str, tuple[int, ...]]:
    """Shapes of the biases, there or not."""
    one = {
        "mask_bias": SINGLE.get(case.mask_layout, ()),
        "pair_bias": SINGLE.get(case.pair_layout, ()),
    }
    shapes = {
        "mask_bias": (case.batch, case.rows, 1, 1, case.keys),
        "pair_bias": (case.batch, 1, case.heads, case.queries, case.keys),
    }
    return {
        name: tuple(1 if axis in one[name] else extent for axis, extent in enumerate(shape))
        for name, shape in shapes.items()
    }


def _fused(shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype[Any]) -> dict[str, Strided]:
    """Slices of one array [B, N, L, 3, H, D]; of k and v, with 2 in place of 3, where Lq != Lk."""
    names = ["q", "k", "v"] if shapes["q"] == shapes["k"] else ["k", "v"]
    batch, rows, length, heads, head_dim = shapes["k"]
    whole = lay_out((batch, rows, length, len(names), heads, head_dim), dtype)
    steps = whole.array.strides
    strides = steps[:3] + steps[4:]
    return {
        name: Strided(whole.memory, whole.offset + place * steps[3], shapes["k"], strides, dtype)
        for place, name in enumerate(names)
    }


def _mask(layout: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Strided:
    """Memory for mask_bias, [B, N, 1, 1, Lk]."""
    size = dtype.itemsize
    if layout == "padded":
        return lay_out(
            shape, dtype, row_bytes=(shape[4] + 3) * size, gaps=True, unit=size, shift=size
        )
    if layout == "keys first":
        return lay_out(shape, dtype, order=(0, 4, 1, 2, 3))
    if layout == "reversed":
        return lay_out(shape, dtype, backwards=(1, 4), shift=size)
    if layout.startswith("broadcast"):
        return lay_out(shape, dtype, broadcast=(1,) if layout[-1] == "N" else (0, 1, 4))
    return lay_out(shape, dtype)


def _pair(layout: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Strided:
    """Memory for pair_bias, [B, 1, H, Lq, Lk]."""
    if layout.startswith("aligned"):
        # An odd multiple of the unit, so that rows have this alignment and no better one.
        unit = max(int(layout.split()[1]), dtype.itemsize)
        units = -(-shape[4] * dtype.itemsize // unit)
        return lay_out(
            shape, dtype, row_bytes=(units | 1) * unit, gaps=True, unit=2 * unit, shift=unit
        )
    if layout == "queries first":
        return lay_out(shape, dtype, order=(0, 3, 1, 2, 4))
    if layout == "reversed":
        return lay_out(shape, dtype, backwards=(0, 2, 3))
    if layout.startswith("broadcast"):
        return lay_out(shape, dtype, broadcast={"B": (0,), "H": (2,), "L": (3,)}[layout[-1]])
    return lay_out(shape, dtype)


# -- Values ----------------------------------------------------------------------------------------


def store(x: np.ndarray, values: np.ndarray) -> None:
    """Set the elements of x once each: where its strides are 0, to the first of their values."""
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in x.strides)
    x[once] = values[once].astype(x.dtype)


def relaid(x: Strided, **layout: Any) -> Strided:
    """The values of x in another layout, which `lay_out` takes."""
    found = lay_out(x.array.shape, x.array.dtype, **layout)
    store(found.array, x.array)
    return found


def _infinitely_low(bias: np.ndarray, where: object) -> None:
    bias[where] = False if bias.dtype == np.bool_ else -np.inf


def _set_values(case: Case, arrays: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    """Fill the arrays, in place."""
    fill = {name: rng.standard_normal(x.shape) for name, x in arrays.items()}
    mask, pair = arrays.get("mask_bias"), arrays.get("pair_bias")
    if mask is not None and mask.dtype == np.bool_:
        fill["mask_bias"] = rng.random(mask.shape) < 0.7
    kind = case.values
    lowest = -6e4 if case.mask == "f16" else -1e9
    if kind == "large scores":
        # Standard deviation 1e4 of q . k / sqrt(D).
        fill["q"] *= 100.0
        fill["k"] *= 100.0
    elif kind == "large pair bias":
        fill["pair_bias"] *= 1e4
    elif kind == "offset":
        fill["mask_bias"] += case.offset
    elif kind in ("rising", "falling"):
        # Scores that grow, or fall, by some units from tile to tile.
        q = fill["q"] = np.abs(fill["q"])
        steps = np.linspace(0.0, 6.0, case.keys)[:, None, None] / np.mean(q)
        fill["k"] = 0.1 * fill["k"] + (steps if kind == "rising" else steps[::-1])
    elif kind == "equal":
        fill["q"][...] = 0.0
    elif kind == "small":
        fill["q"] *= 1e-3
        fill["k"] *= 1e-3
    elif kind == "large v":
        fill["v"] = np.clip(fill["v"] * 2e4, -6e4, 6e4)
    elif kind == "far mask":
        # Some keys of every row, never the last one.
        out_of_sight = rng.random(fill["mask_bias"].shape) < 0.4
        out_of_sight[..., -1] = False
        fill["mask_bias"] = np.where(out_of_sight, lowest, 0.0)
    elif kind == "far mask, leading":
        fill["mask_bias"][...] = 0.0
        fill["mask_bias"][..., : min(100, case.keys - 1)] = lowest
    for name, x in arrays.items():
        store(x, fill[name])
    leading = slice(min(100, case.keys - 1))
    if kind == "dead by mask":
        assert mask is not None
        _infinitely_low(mask, np.s_[:, :: 1 + case.rows // 2])
    elif kind == "dead by pair":
        assert pair is not None
        _infinitely_low(pair, np.s_[..., 1 :: max(2, case.queries // 5), :])
        _infinitely_low(pair, np.s_[..., -1, :])
    elif kind == "leading keys masked":
        assert mask is not None
        _infinitely_low(mask, np.s_[..., leading])
        mask[..., -1] = mask.dtype == np.bool_
    elif kind == "leading keys out by pair":
        assert pair is not None
        _infinitely_low(pair, np.s_[..., leading])
    elif kind.startswith("nan"):
        name = {"mask": "mask_bias", "pair": "pair_bias"}.get(kind[4:], kind[4:])
        place = tuple(int(rng.integers(extent)) for extent in arrays[name].shape)
        # A whole row of q or k, one element of anything else.
        arrays[name][place[:-1] if name in ("q", "k") else place] = np.nan


# -- Making and checking ---------------------------------------------------------------------------


def make(case: Case) -> dict[str, Strided]:
    """The inputs, by their names as arguments of `cuevo.attention`."""
    dtype = DTYPES[case.dtype]
    outer = (case.batch, case.rows)
    q_shape = (*outer, case.queries, case.heads, case.head_dim)
    k_shape = (*outer, case.keys, case.heads, case.head_dim)
    shapes = {"q": q_shape, "k": k_shape, "v": k_shape}
    made = {name: operand(case.layout, shape, dtype) for name, shape in shapes.items()}
    if case.layout == "fused":
        made |= _fused(shapes, dtype)
    if case.mask != "none":
        shape = bias_shapes(case)["mask_bias"]
        made["mask_bias"] = _mask(case.mask_layout, shape, DTYPES[case.mask])
    if case.pair != "none":
        shape = bias_shapes(case)["pair_bias"]
        made["pair_bias"] = _pair(case.pair_layout, shape, DTYPES[case.pair])
    _set_values(case, {name: x.array for name, x in made.items()}, np.random.default_rng(case.seed))
    return made


def make_results(case: Case) -> dict[str, Strided]:
    """Poisoned memory for out and lse."""
    shape = (case.batch, case.rows, case.queries, case.heads, case.head_dim)
    layout = "packed" if case.layout.startswith("broadcast") else case.layout
    lse_shape = (case.batch, case.rows, case.heads, case.queries)
    return {
        "out": operand(layout, shape, DTYPES[case.dtype]),
        "lse": lay_out(lse_shape, DTYPES["f32"], shift=4),
    }


def expected(case: Case, inputs: Mapping[str, Strided]) -> tuple[np.ndarray, np.ndarray]:
    """out and lse in float64."""
    return reference.attention(
        **{name: x.array for name, x in inputs.items()},
        scale=case.scale,
    )


def check(
    case: Case,
    out: np.ndarray,
    lse: np.ndarray | None,
    inputs: Mapping[str, Strided],
    slack: float = 0.0,
    lse_tolerance: float = LSE_TOLERANCE,
) -> None:
    """Compare with float64; the failure says which case, how far off, and where it begins.

    `slack` is added to the tolerance of the dtype.
    """
    exact, exact_lse = expected(case, inputs)
    if case.values.startswith("nan"):
        assert np.isnan(exact).any() and not np.isnan(exact).all(), (
            f"{case} has no NaN, or only NaN"
        )
    tolerance = TOLERANCE[case.dtype] + slack
    out = out.astype(np.float64)
    sound = compare_specials(case, "out", out, exact)
    difference = np.where(sound, out, 0.0) - np.where(sound, exact, 0.0)
    size = np.linalg.norm(exact[sound])
    error = np.linalg.norm(difference) / size if size else np.abs(difference).max(initial=0.0)
    if not error < tolerance:
        typical = size / max(np.count_nonzero(sound), 1) ** 0.5
        fail(
            case,
            f"out: relative error {error:.3g}, allowed {tolerance:g}",
            np.abs(difference) > 8 * tolerance * typical,
            out,
            exact,
        )
    dead = np.isneginf(exact_lse)
    zeros = np.moveaxis(dead, 2, 3)[..., None] & sound & (out != 0.0)
    if zeros.any():
        fail(case, "out: a row whose every score is -inf is not 0", zeros, out, exact)
    if lse is None:
        return
    lse = lse.astype(np.float64)
    sound = compare_specials(case, "lse", lse, exact_lse)
    size_of_lse = np.abs(np.where(sound, exact_lse, 0.0))
    difference = np.abs(np.where(sound, lse, 0.0) - np.where(sound, exact_lse, 0.0))
    wrong = difference > lse_tolerance * np.maximum(1.0, size_of_lse)
    if wrong.any():
        fail(case, "lse", wrong, lse, exact_lse)


def compare_specials(case: Case, name: str, found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Which elements are finite; NaN and infinities must be exactly where float64 has them."""
    for kind, is_special in (("NaN", np.isnan), ("-inf", np.isneginf), ("+inf", np.isposinf)):
        differs = is_special(found) != is_special(exact)
        if differs.any():
            fail(case, f"{name}: {kind} at other places", differs, found, exact)
    finite: np.ndarray = np.isfinite(exact)
    return finite


def configuration(case: Case, problem: forward.Problem, place: Executor) -> forward.Config:
    """The candidate that the case names if it can run on `place`, else the one that is chosen."""
    from cuevo.executors.placement import architecture_of

    arch = architecture_of(place)
    if case.shape is not None:
        offered = [config for config, _ in forward.candidates(problem)]
        wanted = offered[case.shape % len(offered)]
        if not forward.violations(wanted, arch, problem):
            return wanted
    return forward.choose(problem, arch)
