"""cuevo.ops.gemm_problem: what a call must look like.

Every refusal names the argument, what was expected, and what came.
"""

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from cuevo.architectures import architecture
from cuevo.arrays import ArrayView, view
from cuevo.kernels import gemm_sm80
from cuevo.kernels.gemm_mma import Problem
from cuevo.ops.gemm_problem import (
    Operands,
    check_factor,
    check_flag,
    check_operands,
    exchanged,
    has_columns,
    state_problem,
)

pytestmark = pytest.mark.unit

B, M, N, K = 2, 4, 8, 16
ROWS = 6
BF16 = ml_dtypes.bfloat16
ZEROS = np.zeros


def arguments(**changes: Any) -> dict[str, Any]:
    """A call that is right, with some arguments replaced, or left out where None."""
    given: dict[str, Any] = {
        "a": ZEROS((B, M, K), BF16),
        "b": ZEROS((B, K, N), BF16),
        "c": ZEROS((B, M, N), np.float32),
        "bias": ZEROS(N, np.float16),
        "scatter": None,
        "out": ZEROS((B, M, N), np.float16),
        "beta": 1.0,
    }
    return {
        name: view(x, name=name) if isinstance(x, np.ndarray) else x
        for name, x in (given | changes).items()
        if x is not None
    }


def operands(**changes: Any) -> Operands:
    return check_operands(**arguments(**changes))


def moved(x: np.ndarray, nbytes: int) -> ArrayView:
    """The same array, said to begin `nbytes` after a multiple of 256."""
    return replace(view(x), pointer=2**20 + nbytes)


def strided(x: np.ndarray, *strides: int) -> ArrayView:
    """The same array with other strides, in bytes."""
    return replace(view(x), strides=strides, pointer=2**20)


# -- What is right ---------------------------------------------------------------------------------


def test_the_problem() -> None:
    problem = state_problem(operands())
    assert problem == Problem(
        B, M, N, K, "bf16", "f16", c="f32", bias=True,
        a_alignment=problem.a_alignment, b_alignment=problem.b_alignment,
        c_alignment=problem.c_alignment, d_alignment=problem.d_alignment,
    )  # fmt: skip


def test_two_matrices() -> None:
    found = operands(a=ZEROS((M, K), BF16), b=ZEROS((K, N), BF16), c=None, bias=None, out=None)
    assert (found.a.shape, found.b.shape, found.out.shape) == ((1, M, K), (1, K, N), (1, M, N))
    assert (found.shape, found.out.pointer, found.out.dtype) == ((M, N), 0, BF16)
    problem = state_problem(found)
    assert (problem.batch, problem.m, problem.n, problem.k) == (1, M, N, K)
    assert (problem.dtype, problem.out_dtype) == ("bf16", "bf16")
    assert (problem.c, problem.bias, problem.scatter) == ("none", False, False)
    assert problem.d_alignment == 16


@pytest.mark.parametrize("matrix", ["a", "b", "c"])
def test_a_matrix_serves_every_batch(matrix: str) -> None:
    shape = {"a": (M, K), "b": (K, N), "c": (M, N)}[matrix]
    found = operands(**{matrix: ZEROS(shape, np.float32 if matrix == "c" else BF16)})
    shared = getattr(found, matrix)
    assert (shared.shape, shared.strides[0]) == ((B, *shape), 0)
    assert found.shape == (B, M, N)


def test_a_result_of_matrices_alone_has_two_axes() -> None:
    a, b, out = ZEROS((M, K), BF16), ZEROS((K, N), BF16), ZEROS((M, N), np.float16)
    found = operands(a=a, b=b, c=None, out=out)
    assert (found.shape, found.out.shape) == ((M, N), (1, M, N))
    assert operands(a=a[None], b=b, c=None, out=out[None]).shape == (1, M, N)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("columns", [(False, False), (True, False), (False, True), (True, True)])
def test_operand_orders(trans_a: bool, trans_b: bool, columns: tuple[bool, bool]) -> None:
    """What is contiguous of op(x) follows from the memory, not from how x is passed."""
    given = []
    for shape, trans, by_columns in (
        ((B, M, K), trans_a, columns[0]),
        ((B, K, N), trans_b, columns[1]),
    ):
        stored = ZEROS((shape[0], shape[2], shape[1]) if by_columns else shape, BF16)
        given.append(stored.swapaxes(1, 2) if by_columns != trans else stored)
    found = operands(a=given[0], b=given[1], trans_a=trans_a, trans_b=trans_b)
    assert (found.a.shape, found.b.shape) == ((B, M, K), (B, K, N))
    problem = state_problem(found)
    assert (problem.a_columns, problem.b_columns) == columns
    assert (has_columns(found.a), has_columns(found.b)) == columns


@pytest.mark.parametrize(
    ("shape", "strides", "columns", "kept"),
    [
        ((1, 1), (2, 2), False, (0, 0, 2)),
        ((1, 1), (7, 9), False, (0, 0, 2)),
        ((5, 1), (2, 2), False, (0, 2, 2)),
        ((5, 1), (6, 14), False, (0, 6, 2)),
        ((1, 5), (2, 2), False, (0, 0, 2)),
        ((1, 5), (10, 2), False, (0, 0, 2)),
        ((1, 5), (2, 6), True, (0, 2, 6)),
        ((1, 5), (99, 6), True, (0, 2, 6)),
        ((5, 5), (2, 2), False, (0, 2, 2)),
        ((5, 5), (2, 0), True, (0, 2, 0)),
        ((5, 5), (0, 2), False, (0, 0, 2)),
        ((5, 5), (-32, 2), False, (0, -32, 2)),
        ((5, 5), (2, -32), True, (0, 2, -32)),
    ],
)
def test_strides_that_lead_nowhere(
    shape: tuple[int, int], strides: tuple[int, int], columns: bool, kept: tuple[int, ...]
) -> None:
    """NumPy and torch may give any stride to an axis of extent 1."""
    a = strided(ZEROS(shape, np.float16), *strides)
    b = ZEROS((shape[1], 3), np.float16)
    found = check_operands(a, view(b))
    assert found.a.strides == kept
    assert state_problem(found).a_columns == columns


@pytest.mark.parametrize("name", ["a", "b", "c", "out"])
@pytest.mark.parametrize(
    ("strides", "offset", "alignment"),
    [
        ((1024, 64), 0, 16),
        ((1024, 64), 8, 8),
        ((1024, 64), 4, 4),
        ((1024, 64), 2, 2),
        ((1024, 56), 0, 8),
        ((1024, 52), 0, 4),
        ((1024, 50), 0, 2),
        ((1032, 64), 0, 8),
        ((1028, 64), 4, 4),
        ((-1024, -64), 0, 16),
        ((1024, -56), 0, 8),
    ],
)
def test_alignments(name: str, strides: tuple[int, int], offset: int, alignment: int) -> None:
    dtype = BF16 if name in "ab" else np.float16
    shape = {"a": (B, M, K), "b": (B, K, N)}.get(name, (B, M, N))
    x = replace(strided(ZEROS(shape, dtype), *strides, 2), pointer=2**20 + offset)
    problem = state_problem(operands(**{name: x}))
    assert getattr(problem, f"{'d' if name == 'out' else name}_alignment") == alignment
    if name in "ab":
        by_columns = exchanged(x, True)
        flag = f"trans_{name}"
        assert state_problem(operands(**{name: by_columns, flag: True})) == problem


def test_alignment_of_single_rows_and_batches() -> None:
    """Their strides are no steps to anywhere."""
    one = strided(ZEROS((1, 1, K), BF16), 6, 10, 2)
    b = ZEROS((1, K, N), BF16)
    assert state_problem(check_operands(one, view(b))).a_alignment == 16


def test_a_new_result_is_packed() -> None:
    for n, dtype, alignment in ((8, None, 16), (6, None, 4), (5, None, 2), (6, "float32", 8)):
        b = view(ZEROS((K, n), BF16))
        found = check_operands(view(ZEROS((M, K), BF16)), b, out_dtype=dtype)
        assert state_problem(found).d_alignment == alignment


@pytest.mark.parametrize(
    ("wanted", "dtype"),
    [
        (None, BF16),
        ("float16", np.float16),
        ("bfloat16", BF16),
        ("float32", np.float32),
        (np.float16, np.float16),
        (BF16, BF16),
        (np.dtype(np.float32), np.float32),
        ("torch.bfloat16", BF16),
    ],
)
def test_types_of_the_result(wanted: Any, dtype: Any) -> None:
    found = operands(out=None, bias=ZEROS(N, dtype), out_dtype=wanted)
    assert found.out.dtype == dtype
    assert operands(out=ZEROS((B, M, N), dtype), bias=None, out_dtype=wanted and dtype)


def test_torch_names_types() -> None:
    torch = pytest.importorskip("torch")
    assert operands(out=None, bias=None, out_dtype=torch.float32).out.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32])
def test_types_of_c(dtype: Any) -> None:
    name = {np.float16: "f16", BF16: "bf16", np.float32: "f32"}[dtype]
    c = ZEROS((B, M, N), dtype)
    assert state_problem(operands(c=c)).c == name
    found = operands(c=c, beta=0.0)
    assert found.c is None
    assert state_problem(found).c == "none"


def test_scattered_rows() -> None:
    scatter, out = ZEROS(M, np.int64), ZEROS((B, ROWS, N), np.float16)
    found = operands(scatter=scatter, out=out, c=ZEROS((ROWS, N), np.float16))
    assert (found.shape, found.out.shape) == ((B, ROWS, N), (B, ROWS, N))
    assert found.c is not None and found.c.shape == (B, ROWS, N)
    problem = state_problem(found)
    assert problem.scatter and problem.m == M and problem.index_bytes == 8
    found = operands(scatter=ZEROS(M, np.int32), out=out, c=None)
    assert state_problem(found).index_bytes == 4


@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_a_bias_of_the_inputs_type_beside_a_result_of_float32(dtype: np.dtype[Any]) -> None:
    a, b = ZEROS((M, K), dtype), ZEROS((K, N), dtype)
    for kind, is_narrow in ((dtype, True), (np.float32, False)):
        bias = ZEROS(N, kind)
        found = operands(a=a, b=b, c=None, out=None, out_dtype=np.float32, bias=bias)
        assert state_problem(found).bias_of_inputs == is_narrow
    assert not state_problem(operands(bias=None)).bias_of_inputs


def test_addresses_are_in_order() -> None:
    found = operands(scatter=ZEROS(M, np.int64))
    assert all(found.addresses)
    assert found.addresses == tuple(x and x.pointer for x in found.inputs)
    assert operands(c=None, bias=None).addresses[2:] == (0, 0, 0)


@pytest.mark.parametrize("axis", ["B", "M", "N", "K"])
def test_empty_problems_have_no_strides(axis: str) -> None:
    batch, m, n, k = (0 if axis == name else 3 for name in "BMNK")
    a, b = ZEROS((batch, m, k), np.float16), ZEROS((batch, k, n), np.float16)
    found = check_operands(view(a[..., ::-1] if 0 in a.shape else a), view(b))
    problem = state_problem(found)
    assert (problem.batch, problem.m, problem.n, problem.k) == (batch, m, n, k)


# -- What is refused -------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a of one axis": (
        dict(a=ZEROS(K, BF16)),
        ValueError,
        r"^a: expected an array \[M, K\] or \[B, M, K\]; got 1 axes, shape \(16,\)",
    ),
    "a of four axes": (dict(a=ZEROS((1, B, M, K), BF16)), ValueError, "^a: expected an array"),
    "a transposed of one axis": (
        dict(a=ZEROS(K, BF16), trans_a=True),
        ValueError,
        r"^a: expected an array \[K, M\] or \[B, K, M\]",
    ),
    "b of one axis": (
        dict(b=ZEROS(K, BF16)),
        ValueError,
        r"^b: expected an array \[K, N\] or \[B, K, N\]; got 1 axes",
    ),
    "b of another K": (
        dict(b=ZEROS((B, K + 1, N), BF16)),
        ValueError,
        r"^b: expected an array \[K, N\] or \[B, K, N\] with K = 16, as in a; its K is 17",
    ),
    "b not transposed": (
        dict(b=ZEROS((B, K, N), BF16), trans_b=True),
        ValueError,
        r"^b: expected an array \[N, K\] or \[B, N, K\] with K = 16, as in a; its K is 8",
    ),
    "b of another B": (
        dict(b=ZEROS((1, K, N), BF16)),
        ValueError,
        "^b: expected B = 2, as in a; its B is 1",
    ),
    "c of another shape": (
        dict(c=ZEROS((B, N, M), np.float32)),
        ValueError,
        r"^c: expected an array \[B, M, N\] = \(2, 4, 8\); got 3 axes, shape \(2, 8, 4\)",
    ),
    "c of one axis": (dict(c=ZEROS(N, np.float32)), ValueError, "^c: expected an array"),
    "c of batches beside matrices": (
        dict(a=ZEROS((M, K), BF16), b=ZEROS((K, N), BF16), out=None, bias=None),
        ValueError,
        r"^c: expected an array \[M, N\] = \(4, 8\); got 3 axes, shape \(2, 4, 8\)",
    ),
    "c of the product's rows, scattered": (
        dict(scatter=ZEROS(M, np.int64), out=ZEROS((B, ROWS, N), np.float16)),
        ValueError,
        r"^c: expected an array \[B, rows, N\] = \(2, 6, 8\); got 3 axes, shape \(2, 4, 8\)",
    ),
    "out of another shape": (
        dict(out=ZEROS((B, M, N + 1), np.float16)),
        ValueError,
        r"^out: expected an array \[B, M, N\] = \(2, 4, 8\); got 3 axes, shape \(2, 4, 9\)",
    ),
    "out of two axes": (
        dict(out=ZEROS((M, N), np.float16)),
        ValueError,
        r"^out: expected an array \[B, M, N\] = \(2, 4, 8\); got 2 axes",
    ),
    "out of other columns, scattered": (
        dict(scatter=ZEROS(M, np.int64), c=None, out=ZEROS((B, ROWS, N + 1), np.float16)),
        ValueError,
        r"^out: expected an array \[B, rows, N\] = \(2, 6, 8\); got 3 axes, shape \(2, 6, 9\)",
    ),
    "bias of another length": (
        dict(bias=ZEROS(M, np.float16)),
        ValueError,
        r"^bias: expected an array \[N\] = \(8,\); got 1 axes, shape \(4,\)",
    ),
    "bias of two axes": (
        dict(bias=ZEROS((1, N), np.float16)),
        ValueError,
        r"^bias: expected an array \[N\] = \(8,\); got 2 axes",
    ),
    "scatter of another length": (
        dict(scatter=ZEROS(N, np.int64)),
        ValueError,
        r"^scatter: expected an array \[M\] = \(4,\); got 1 axes, shape \(8,\)",
    ),
    "scatter without out": (
        dict(scatter=ZEROS(M, np.int64), out=None, bias=None),
        ValueError,
        "^out: has to be given with scatter, since rows that scatter does not name stay as they",
    ),
    "a of float32": (
        dict(a=ZEROS((B, M, K), np.float32)),
        TypeError,
        "^a: expected float16 or bfloat16; got float32",
    ),
    "b of another type": (
        dict(b=ZEROS((B, K, N), np.float16)),
        TypeError,
        "^b: expected bfloat16, the type of a; got float16",
    ),
    "c of integers": (
        dict(c=ZEROS((B, M, N), np.int32)),
        TypeError,
        "^c: expected float16, bfloat16 or float32; got int32",
    ),
    "out of float64": (
        dict(out=ZEROS((B, M, N), np.float64)),
        TypeError,
        "^out: expected float16, bfloat16 or float32; got float64",
    ),
    "out_dtype of float64": (
        dict(out=None, bias=None, out_dtype=np.float64),
        TypeError,
        "^out_dtype: expected float16, bfloat16 or float32; got float64",
    ),
    "out_dtype of nothing": (
        dict(out=None, bias=None, out_dtype="half precision"),
        TypeError,
        "^out_dtype: expected float16, bfloat16 or float32; got 'half precision'",
    ),
    "out_dtype and out": (
        dict(out_dtype="float32"),
        TypeError,
        "^out_dtype: expected float16, the type of out, or None; got float32",
    ),
    "bias of another type": (
        dict(bias=ZEROS(N, np.float32)),
        TypeError,
        "^bias: expected float16, the type of the result; got float32",
    ),
    "bias of another 16-bit type beside float32": (
        dict(bias=ZEROS(N, np.float16), out=None, out_dtype=np.float32),
        TypeError,
        "^bias: expected float32, the type of the result, or bfloat16, that of a; got float16",
    ),
    "scatter of int16": (
        dict(scatter=ZEROS(M, np.int16)),
        TypeError,
        r"^scatter: expected int64 or int32; got int16; scatter.astype\(numpy.int64\) is that",
    ),
    "scatter of floats": (
        dict(scatter=ZEROS(M, np.float32)),
        TypeError,
        "^scatter: expected int64 or int32; got float32$",
    ),
    "a with gaps in both axes": (
        dict(a=ZEROS((B, M, 2 * K), BF16)[..., ::2]),
        ValueError,
        "^a: one of its last two axes must be contiguous, a stride of 2 .* strides are 64 and 4",
    ),
    "a reversed along K": (
        dict(a=ZEROS((B, M, K), BF16)[..., ::-1]),
        ValueError,
        "^a: one of its last two axes must be contiguous, .* strides are 32 and -2",
    ),
    "b of one value": (
        dict(b=np.broadcast_to(ZEROS(1, BF16), (B, K, N))),
        ValueError,
        "^b: one of its last two axes must be contiguous, .* strides are 0 and 0",
    ),
    "c by columns": (
        dict(c=ZEROS((B, N, M), np.float32).swapaxes(1, 2)),
        ValueError,
        "^c: its rows must be contiguous, a stride of 4 bytes; the stride of axis N is 16",
    ),
    "out by columns": (
        dict(out=ZEROS((B, N, M), np.float16).swapaxes(1, 2)),
        ValueError,
        "^out: its rows must be contiguous, a stride of 2 bytes; the stride of axis N is 8",
    ),
    "bias with gaps": (
        dict(bias=ZEROS(2 * N, np.float16)[::2]),
        ValueError,
        "^bias: must be contiguous, a stride of 2 bytes; its stride is 4",
    ),
    "scatter backwards": (
        dict(scatter=ZEROS(M, np.int64)[::-1]),
        ValueError,
        "^scatter: must be contiguous, a stride of 8 bytes; its stride is -8",
    ),
    "a off by a byte": (
        dict(a=moved(ZEROS((B, M, K), BF16), 1)),
        ValueError,
        "^a: its elements must be aligned to their 2 bytes",
    ),
    "b rows off by a byte": (
        dict(b=strided(ZEROS((B, K, N), BF16), 1024, 33, 2)),
        ValueError,
        "^b: its elements must be aligned to their 2 bytes",
    ),
    "c off by half": (
        dict(c=moved(ZEROS((B, M, N), np.float32), 2)),
        ValueError,
        "^c: its elements must be aligned to their 4 bytes",
    ),
    "out batches off by half": (
        dict(out=strided(ZEROS((B, M, N), np.float32), 1022, 64, 4), bias=None),
        ValueError,
        "^out: its elements must be aligned to their 4 bytes",
    ),
    "bias off by a byte": (
        dict(bias=moved(ZEROS(N, np.float16), 1)),
        ValueError,
        "^bias: its elements must be aligned to their 2 bytes",
    ),
    "scatter off by half": (
        dict(scatter=moved(ZEROS(M, np.int64), 4)),
        ValueError,
        "^scatter: its elements must be aligned to their 8 bytes",
    ),
    "out read-only": (
        dict(out=replace(view(ZEROS((B, M, N), np.float16)), readonly=True)),
        ValueError,
        "^out: has to be writable; this array is read-only",
    ),
    "out broadcast along M": (
        dict(out=strided(ZEROS((B, M, N), np.float16), 1024, 0, 2)),
        ValueError,
        "^out: the stride of axis M is 0 bytes, so that rows of 16 bytes overlap",
    ),
    "out broadcast along B": (
        dict(out=strided(ZEROS((B, M, N), np.float16), 0, 16, 2)),
        ValueError,
        "^out: the stride of axis B is 0 bytes, so that rows of 16 bytes overlap",
    ),
    "out of overlapping rows": (
        dict(out=strided(ZEROS((B, M, N), np.float16), 1024, -14, 2)),
        ValueError,
        "^out: the stride of axis M is -14 bytes, so that rows of 16 bytes overlap",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    changes, error, words = REFUSED[what]
    with pytest.raises(error, match=words):
        operands(**changes)


@pytest.mark.parametrize("what", ["c of another shape", "c of integers", "c by columns"])
def test_a_c_that_is_not_read_is_checked_as_well(what: str) -> None:
    changes, error, words = REFUSED[what]
    with pytest.raises(error, match=words):
        operands(**changes, beta=0.0)


@pytest.mark.parametrize("axis", ["M", "N", "K", "rows"])
def test_extents_that_are_too_large(axis: str) -> None:
    extents = {"M": 1, "N": 1, "K": 1, "rows": 1} | {axis: 2**28 + 1}

    def far(*axes: str) -> ArrayView:
        shape = tuple(extents[name] for name in axes)
        base = view(ZEROS((1,) * len(shape), np.float16))
        return replace(base, shape=shape, strides=(*(2 * n for n in shape[1:]), 2))

    changes: dict[str, Any] = {}
    if axis == "rows":
        changes = {"scatter": view(ZEROS(1, np.int64)), "out": far("rows", "N")}
    with pytest.raises(ValueError, match=f"^{axis}: at most 268435456; got 268435457"):
        check_operands(far("M", "K"), far("K", "N"), **changes)


# -- alpha, beta, trans ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [0, 1, -0.5, np.float32(0.25), np.float16(2), np.int64(3), Fraction(1, 8), 3e38, 1e-40]
)
def test_factors(value: Any) -> None:
    found = check_factor("alpha", value)
    assert type(found) is float
    assert found == float(np.float32(float(value)))


def test_factors_are_those_of_float32() -> None:
    assert check_factor("beta", 0.1) == float(np.float32(0.1))
    assert check_factor("beta", 1e-60) == 0.0
    assert math.copysign(1.0, check_factor("beta", -0.0)) == 1.0


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (math.nan, ValueError, "^beta: expected a finite number of float32's range; got nan"),
        (math.inf, ValueError, "^beta: expected a finite .* got inf"),
        (-math.inf, ValueError, "^beta: expected a finite .* got -inf"),
        (4e38, ValueError, r"^beta: expected a finite .* got 4e\+38"),
        (10**400, ValueError, "^beta: expected a finite .* got inf"),
        ("1", TypeError, "^beta: expected a real number; got str"),
        (1j, TypeError, "^beta: expected a real number; got complex"),
        (None, TypeError, "^beta: expected a real number; got NoneType"),
        (np.ones(1), TypeError, "^beta: expected a real number; got ndarray"),
    ],
)
def test_what_is_no_factor(value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_factor("beta", value)


@pytest.mark.parametrize("value", [True, False, 1, 0, np.True_, np.int64(0)])
def test_flags(value: Any) -> None:
    assert check_flag("trans_a", value) is bool(value)


@pytest.mark.parametrize("value", ["N", "T", None, 2, [True], 0.0])
def test_what_is_no_flag(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^trans_a: expected True or False; got"):
        check_flag("trans_a", value)


def test_rows_far_apart_are_told() -> None:
    """Distances within a tile then do not fit in 32 bits, and no whole tiles are assumed."""
    a, b = view(ZEROS((1, 256, 64), BF16)), view(ZEROS((1, 64, 256), BF16))
    out = view(ZEROS((1, 256, 256), BF16))
    apart = replace(a, strides=(0, 2**23, 2))
    near = state_problem(Operands(a, b, None, None, None, out, out.shape))
    far = state_problem(Operands(apart, b, None, None, None, out, out.shape))
    assert not near.far
    assert far.far
    arch = architecture("sm_90")
    assert gemm_sm80.choose(near, arch).clear == "none"
    assert gemm_sm80.choose(far, arch).clear == "zfill"
