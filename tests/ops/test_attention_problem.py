"""cuevo.ops.attention_problem: what a call must look like.

Every refusal names the argument, what was expected, and what came.
"""

import math
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuevo.arrays import ArrayView, view
from cuevo.kernels.evoformer_forward_sm80 import Problem
from cuevo.ops.attention_problem import (
    broadcast_biases,
    check_scale,
    check_shapes,
    state_problem,
)

pytestmark = pytest.mark.unit

B, N, LQ, LK, H, D = 2, 3, 4, 5, 6, 16
BF16 = ml_dtypes.bfloat16
ZEROS = np.zeros


def views(**changes: Any) -> dict[str, ArrayView]:
    """A call that is right, with some arguments replaced, or left out where None."""
    arrays: dict[str, Any] = {
        "q": np.zeros((B, N, LQ, H, D), BF16),
        "k": np.zeros((B, N, LK, H, D), BF16),
        "v": np.zeros((B, N, LK, H, D), BF16),
        "mask_bias": np.zeros((B, N, 1, 1, LK), np.float32),
        "pair_bias": np.zeros((B, 1, H, LQ, LK), BF16),
        "out": np.zeros((B, N, LQ, H, D), BF16),
    }
    return {
        name: x if isinstance(x, ArrayView) else view(x, name=name)
        for name, x in (arrays | changes).items()
        if x is not None
    }


def moved(x: np.ndarray, nbytes: int) -> ArrayView:
    """The same array, said to begin `nbytes` after a multiple of 256."""
    return replace(view(x), pointer=2**20 + nbytes)


def strided(x: np.ndarray, axis: int, stride: int) -> ArrayView:
    """The same array with another stride of one axis, in bytes."""
    seen = view(x)
    strides = (*seen.strides[:axis], stride, *seen.strides[axis + 1 :])
    return replace(seen, strides=strides, pointer=2**20)


# -- What is right ---------------------------------------------------------------------------------


def test_the_problem() -> None:
    kinds = dict(dtype="bf16", mask="f32", pair="bf16", pair_alignment=2, pair_mapped=False)
    assert state_problem(**views()) == Problem(B, N, H, LQ, LK, D, **kinds)


def test_without_biases() -> None:
    problem = state_problem(**views(mask_bias=None, pair_bias=None, out=None))
    assert problem == Problem(B, N, H, LQ, LK, D, "bf16", "none", "none", 16)


@pytest.mark.parametrize(
    ("dtype", "name"), [(np.float16, "f16"), (BF16, "bf16")], ids=["f16", "bf16"]
)
def test_types(dtype: Any, name: str) -> None:
    operands = {x: np.zeros((1, 1, 8, 1, 8), dtype) for x in ("q", "k", "v", "out")}
    for bias, expected in ((dtype, name), (np.float32, "f32"), (np.bool_, "bool")):
        mask = np.zeros((1, 1, 1, 1, 8), bias)
        problem = state_problem(**views(**operands, mask_bias=mask, pair_bias=None))
        assert (problem.dtype, problem.mask, problem.pair) == (name, expected, "none")
    for bias, expected in ((dtype, name), (np.float32, "f32")):
        pair = np.zeros((1, 1, 1, 8, 8), bias)
        problem = state_problem(**views(**operands, mask_bias=None, pair_bias=pair))
        assert (problem.mask, problem.pair) == ("none", expected)


@pytest.mark.parametrize("head_dim", range(8, 129, 8))
def test_head_dims(head_dim: int) -> None:
    x = np.zeros((1, 1, 3, 1, head_dim), np.float16)
    assert state_problem(view(x), view(x), view(x)).head_dim == head_dim


@pytest.mark.parametrize(
    ("shape", "dtype", "offset", "alignment"),
    [
        ((1, 1, 2, 4, 8), BF16, 0, 16),
        ((1, 1, 2, 4, 4), BF16, 0, 8),
        ((1, 1, 2, 4, 6), BF16, 0, 4),
        ((1, 1, 2, 4, 5), BF16, 0, 2),
        ((1, 1, 2, 4, 8), BF16, 8, 8),
        ((1, 1, 2, 4, 8), BF16, 4, 4),
        ((1, 1, 2, 4, 8), BF16, 2, 2),
        ((1, 1, 2, 4, 4), np.float32, 0, 16),
        ((1, 1, 2, 4, 6), np.float32, 0, 8),
        ((1, 1, 2, 4, 5), np.float32, 0, 4),
        ((1, 1, 1, 1, 5), np.float32, 0, 16),  # one row: its length is no step to anywhere
        ((1, 1, 1, 1, 5), BF16, 4, 4),
    ],
)
def test_alignment_of_the_pair_bias(
    shape: tuple[int, ...], dtype: Any, offset: int, alignment: int
) -> None:
    heads, queries, keys = shape[2:]
    q = np.zeros((1, 1, queries, heads, 8), BF16)
    k = np.zeros((1, 1, keys, heads, 8), BF16)
    pair = moved(np.zeros(shape, dtype), offset)
    problem = state_problem(view(q), view(k), view(k), None, pair)
    assert (problem.pair_alignment, problem.pair_mapped) == (alignment, alignment == 16)


def test_broadcast_and_reversed_inputs_are_right() -> None:
    reversed_q = np.zeros((B, N, LQ, H, D), BF16)[:, ::-1, ::-1]
    broadcast = np.broadcast_to(np.zeros((1, 1, LK, 1, D), BF16), (B, N, LK, H, D))
    mask = np.broadcast_to(np.zeros(1, np.bool_), (B, N, 1, 1, LK))
    pair = np.broadcast_to(np.zeros((1, 1, 1, 1, LK), np.float32), (B, 1, H, LQ, LK))
    problem = state_problem(
        **views(q=reversed_q, k=broadcast, v=broadcast, mask_bias=mask, pair_bias=pair)
    )
    assert (problem.mask, problem.pair, problem.pair_alignment) == ("bool", "f32", 16)


@pytest.mark.parametrize(
    ("name", "shape", "single"),
    [
        ("mask_bias", (1, N, 1, 1, LK), {0}),
        ("mask_bias", (B, 1, 1, 1, LK), {1}),
        ("mask_bias", (1, 1, 1, 1, LK), {0, 1}),
        ("mask_bias", (B, N, 1, 1, LK), set()),
        ("pair_bias", (1, 1, H, LQ, LK), {0}),
        ("pair_bias", (B, 1, H, LQ, LK), set()),
    ],
)
def test_extents_of_1_are_broadcast_by_strides_of_0(
    name: str, shape: tuple[int, ...], single: set[int]
) -> None:
    given = views(**{name: ZEROS(shape, BF16)})
    problem = state_problem(**given)
    assert problem == replace(state_problem(**views()), **{name.removesuffix("_bias"): "bf16"})
    found = broadcast_biases(given, problem)
    full = {"mask_bias": (B, N, 1, 1, LK), "pair_bias": (B, 1, H, LQ, LK)}
    bias, before = found.pop(name), given[name]
    assert (bias.shape, bias.pointer, bias.owner) == (full[name], before.pointer, before.owner)
    assert bias.strides == tuple(0 if i in single else x for i, x in enumerate(before.strides))
    assert all(found[key] is x or x.shape == full[key] for key, x in given.items() if key != name)


def test_an_extent_of_1_that_is_the_problems_keeps_its_stride() -> None:
    x = view(ZEROS((1, 1, 3, 1, 8), np.float16))
    mask = strided(ZEROS((1, 1, 1, 1, 3), np.float16), 1, 48)
    given = {"q": x, "k": x, "v": x, "mask_bias": mask}
    assert broadcast_biases(given, state_problem(**given))["mask_bias"].strides == mask.strides


def test_shapes_alone_and_names_of_the_callers() -> None:
    shapes = {name: x.shape for name, x in views().items()}
    check_shapes(shapes | {"mask_bias": (1, 1, 1, 1, LK)})
    with pytest.raises(ValueError, match=r"^biases\[0\]: expected .* got 5 axes, shape \(1, 2, "):
        check_shapes(shapes | {"mask_bias": (1, 2, 1, 1, LK)}, {"mask_bias": "biases[0]"})
    with pytest.raises(ValueError, match=r"^V: expected an array \[B, N, Lk, H, D\]; got 3 axes"):
        check_shapes(shapes | {"v": (1, 2, 3)}, {"v": "V"})


def test_strides_of_single_positions_say_nothing() -> None:
    """NumPy and torch may give any stride to an axis of extent 1."""
    x = np.zeros((1, 1, 3, 1, 8), np.float16)
    odd = strided(x, 0, 7)
    pair = strided(np.zeros((1, 1, 1, 3, 3), np.float16), 2, 1)
    mask = strided(np.zeros((1, 1, 1, 1, 3), np.float16), 1, 1)
    assert state_problem(odd, odd, odd, mask, pair, odd).pair_alignment == 2


@pytest.mark.parametrize(
    "pair",
    [
        np.zeros((B, 1, H, LQ, 2 * LK), BF16)[..., ::2],
        np.zeros((B, LQ, LK, H), BF16).transpose(0, 3, 1, 2)[:, None],
        np.zeros((B, 1, H, LQ, LK), BF16)[..., ::-1],
        np.broadcast_to(np.zeros(1, BF16), (B, 1, H, LQ, LK)),
        moved(np.zeros((B, 1, H, LQ, LK), BF16), 1),
        moved(np.zeros((B, 1, H, LQ, LK), np.float32), 2),
    ],
    ids=["gaps", "heads last", "reversed", "one value", "off by a byte", "off by half"],
)
def test_pair_biases_that_no_kernel_reads_in_place(pair: Any) -> None:
    assert state_problem(**views(pair_bias=pair)).pair_alignment == 0


def test_masks_of_any_strides_are_right() -> None:
    for mask in (
        moved(np.zeros((B, N, 1, 1, LK), BF16), 1),
        strided(np.zeros((B, N, 1, 1, LK), np.float32), 4, 6),
    ):
        assert state_problem(**views(mask_bias=mask)).mask in ("bf16", "f32")


# -- What is refused -------------------------------------------------------------------------------

REFUSED = {
    "q of four axes": (
        dict(q=ZEROS((N, LQ, H, D), BF16)),
        ValueError,
        r"q: expected an array \[B, N, Lq, H, D\]; got 4 axes, shape \(3, 4, 6, 16\)",
    ),
    "k of four axes": (
        dict(k=ZEROS((N, LK, H, D), BF16)),
        ValueError,
        r"k: expected an array \[B, N, Lk, H, D\]; got 4 axes",
    ),
    "k of another B": (
        dict(k=ZEROS((1, N, LK, H, D), BF16)),
        ValueError,
        r"k: expected .*, D\] = \(2, 3, 5, 6, 16\); got 5 axes, shape \(1, 3, 5, 6, 16\)",
    ),
    "k of another D": (dict(k=ZEROS((B, N, LK, H, 8), BF16)), ValueError, "^k: expected"),
    "v of another length": (
        dict(v=ZEROS((B, N, LQ, H, D), BF16)),
        ValueError,
        r"^v: expected an array \[B, N, Lk, H, D\]",
    ),
    "v heads first": (
        dict(v=ZEROS((B, N, H, LK, D), BF16)),
        ValueError,
        r"^v: expected .* got 5 axes, shape \(2, 3, 6, 5, 16\)",
    ),
    "mask of two axes": (
        dict(mask_bias=ZEROS((N, LK), np.float32)),
        ValueError,
        r"^mask_bias: expected .*\[B or 1, N or 1, 1, 1, Lk\] = \(2, 3, 1, 1, 5\); got 2 axes",
    ),
    "mask of queries": (
        dict(mask_bias=ZEROS((B, N, 1, 1, LQ), np.float32)),
        ValueError,
        "^mask_bias: expected",
    ),
    **{
        f"mask of {shape[0]} batches, {shape[1]} rows, {shape[2]} heads": (
            dict(mask_bias=ZEROS((*shape, 1, LK), np.float32)),
            ValueError,
            r"^mask_bias: expected .*\[B or 1, N or 1, 1, 1, Lk\] = \(2, 3, 1, 1, 5\); got 5 axes",
        )
        for shape in ((3, N, 1), (B, 2, 1), (1, 2, 1), (0, 1, 1), (1, 1, H))
    },
    "mask of one key": (
        dict(mask_bias=ZEROS((1, 1, 1, 1, 1), np.float32)),
        ValueError,
        r"^mask_bias: expected .* = \(2, 3, 1, 1, 5\); got 5 axes, shape \(1, 1, 1, 1, 1\)",
    ),
    "pair of three batches": (
        dict(pair_bias=ZEROS((3, 1, H, LQ, LK), BF16)),
        ValueError,
        r"^pair_bias: expected .*\[B or 1, 1, H, Lq, Lk\] = \(2, 1, 6, 4, 5\); got 5 axes",
    ),
    "pair of one head": (
        dict(pair_bias=ZEROS((1, 1, 1, LQ, LK), BF16)),
        ValueError,
        r"^pair_bias: expected an array \[B or 1, 1, H, Lq, Lk\]",
    ),
    "q of one batch": (
        dict(q=ZEROS((1, N, LQ, H, D), BF16)),
        ValueError,
        r"^k: expected an array \[B, N, Lk, H, D\] = \(1, 3, 5, 6, 16\); got 5 axes",
    ),
    "pair of every row": (
        dict(pair_bias=ZEROS((B, N, H, LQ, LK), BF16)),
        ValueError,
        r"^pair_bias: expected an array \[B or 1, 1, H, Lq, Lk\] = \(2, 1, 6, 4, 5\)",
    ),
    "pair transposed": (
        dict(pair_bias=ZEROS((B, 1, H, LK, LQ), BF16)),
        ValueError,
        "^pair_bias: expected",
    ),
    "out of another shape": (dict(out=ZEROS((B, N, LK, H, D), BF16)), ValueError, "^out: expected"),
    "q of float32": (
        dict(q=ZEROS((B, N, LQ, H, D), np.float32)),
        TypeError,
        "^q: expected float16 or bfloat16; got float32",
    ),
    "k of another type": (
        dict(k=ZEROS((B, N, LK, H, D), np.float16)),
        TypeError,
        "^k: expected bfloat16, the type of q; got float16",
    ),
    "v of another type": (
        dict(v=ZEROS((B, N, LK, H, D), np.int16)),
        TypeError,
        "^v: expected bfloat16, the type of q; got int16",
    ),
    "out of another type": (
        dict(out=ZEROS((B, N, LQ, H, D), np.float32)),
        TypeError,
        "^out: expected bfloat16, the type of q; got float32",
    ),
    "mask of another type": (
        dict(mask_bias=ZEROS((B, N, 1, 1, LK), np.float16)),
        TypeError,
        "^mask_bias: expected bfloat16, the type of q, float32 or bool; got float16",
    ),
    "mask of integers": (
        dict(mask_bias=ZEROS((B, N, 1, 1, LK), np.uint8)),
        TypeError,
        "^mask_bias: expected .* got uint8",
    ),
    "pair of another type": (
        dict(pair_bias=ZEROS((B, 1, H, LQ, LK), np.float16)),
        TypeError,
        "^pair_bias: expected bfloat16, the type of q, or float32; got float16",
    ),
    "pair of bool": (
        dict(pair_bias=ZEROS((B, 1, H, LQ, LK), np.bool_)),
        TypeError,
        "^pair_bias: expected .* got bool",
    ),
    "q with a gap in D": (
        dict(q=ZEROS((B, N, LQ, H, 2 * D), BF16)[..., ::2]),
        ValueError,
        "^q: its last axis, D, must be contiguous, a stride of 2 bytes, .* its stride is 4",
    ),
    "k transposed": (
        dict(k=ZEROS((B, N, LK, D, H), BF16).swapaxes(3, 4)),
        ValueError,
        "^k: its last axis, D, must be contiguous",
    ),
    "D reversed": (
        dict(v=ZEROS((B, N, LK, H, D), BF16)[..., ::-1]),
        ValueError,
        "^v: its last axis, D, must be contiguous, .* its stride is -2",
    ),
    "D broadcast": (
        dict(q=np.broadcast_to(ZEROS((B, N, LQ, H, 1), BF16), (B, N, LQ, H, D))),
        ValueError,
        "^q: its last axis, D, must be contiguous, .* its stride is 0",
    ),
    "q off by 8 bytes": (
        dict(q=moved(ZEROS((B, N, LQ, H, D), BF16), 8)),
        ValueError,
        "^q: its rows must start at multiples of 16 bytes; its address is 0x100008",
    ),
    "k rows off": (
        dict(k=ZEROS((B, N, LK, H, D + 4), BF16)[..., :D]),
        ValueError,
        r"^k: its rows must start at multiples of 16 bytes; the stride of axis \w+ is \d+ bytes",
    ),
    "v heads off": (
        dict(v=strided(ZEROS((B, N, LK, H, D), BF16), 3, 40)),
        ValueError,
        "^v: .*the stride of axis H is 40 bytes",
    ),
    "out batches off": (
        dict(out=strided(ZEROS((B, N, LQ, H, D), BF16), 0, 1 << 20 | 4)),
        ValueError,
        "^out: .*the stride of axis B is 1048580 bytes",
    ),
    "out broadcast": (
        dict(out=strided(ZEROS((B, N, LQ, H, D), BF16), 1, 0)),
        ValueError,
        "^out: the stride of axis N is 0 bytes, so that rows of 32 bytes overlap",
    ),
    "out within itself": (
        dict(out=strided(ZEROS((B, N, LQ, H, D), BF16), 2, -16)),
        ValueError,
        "^out: the stride of axis Lq is -16 bytes, so that rows of 32 bytes overlap",
    ),
    "out read-only": (
        dict(out=replace(view(ZEROS((B, N, LQ, H, D), BF16)), readonly=True)),
        ValueError,
        "^out: has to be writable; this array is read-only",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    changes, error, words = REFUSED[what]
    with pytest.raises(error, match=words):
        state_problem(**views(**changes))


@pytest.mark.parametrize("head_dim", [0, 1, 4, 12, 15, 20, 132, 136, 256])
def test_head_dims_that_there_are_no_kernels_for(head_dim: int) -> None:
    x = view(np.zeros((1, 1, 3, 1, head_dim), np.float16))
    with pytest.raises(
        ValueError, match=f"head dim D must be a multiple of 8 from 8 to 128; got {head_dim}$"
    ):
        state_problem(x, x, x)


@pytest.mark.parametrize("axis", ["B", "N", "H"])
def test_extents_are_counted_in_31_bits(axis: str) -> None:
    short = view(np.zeros((1, 1, 1, 1, 8), np.float16))
    shape = [1, 1, 1, 1, 8]
    shape["BNLH".index(axis)] = 2**31
    many = replace(short, shape=tuple(shape), strides=(0, 0, 0, 0, 2))
    with pytest.raises(ValueError, match=f"{axis}: at most 2147483647; got 2147483648"):
        state_problem(many, many, many)


@pytest.mark.parametrize("axis", ["Lq", "Lk"])
def test_rows_that_are_too_long(axis: str) -> None:
    short = view(np.zeros((1, 1, 1, 1, 8), np.float16))
    long = replace(short, shape=(1, 1, 2**28 + 1, 1, 8), strides=(0, 0, 0, 0, 2))
    q, k = (long, short) if axis == "Lq" else (short, long)
    with pytest.raises(
        ValueError, match=f"{axis}: at most 268435456 positions in a row; got 268435457"
    ):
        state_problem(q, k, k)


# -- The scale -------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [8, 16, 128])
def test_the_default_scale(head_dim: int) -> None:
    assert check_scale(None, head_dim) == pytest.approx(1 / math.sqrt(head_dim), rel=1e-15)


@pytest.mark.parametrize(
    "scale", [0, 1, -0.5, 2**64, np.float32(0.25), np.float16(0.5), np.int64(3)]
)
def test_scales(scale: Any) -> None:
    found = check_scale(scale, 8)
    assert type(found) is float
    assert found == scale


@pytest.mark.parametrize(
    ("scale", "error", "words"),
    [
        (
            math.nan,
            ValueError,
            "^scale: expected a finite number of at most 2.64 in magnitude; got nan",
        ),
        (math.inf, ValueError, "^scale: expected a finite number .* got inf"),
        (-math.inf, ValueError, "^scale: expected a finite number .* got -inf"),
        (2.0**65, ValueError, "^scale: expected a finite number .* got 3.68"),
        (10**400, ValueError, "^scale: expected a finite number .* got inf"),
        ("1", TypeError, "^scale: expected a real number; got str"),
        (1j, TypeError, "^scale: expected a real number; got complex"),
        ([0.5], TypeError, "^scale: expected a real number; got list"),
    ],
)
def test_what_is_no_scale(scale: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_scale(scale, 8)
