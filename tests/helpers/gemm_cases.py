"""Matrix products for tests: seeded, in memory with guard bands, for the CPU executor and a GPU.

A `GemmCase` is all parameters of one call, and prints them; `make` gives its arrays, `exact` every
bit of the result, `check` compares. How arrays lie in memory: `guarded`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import ceil
from typing import Any

import numpy as np
from helpers.guarded import DTYPES, POISON, Strided, assert_same_bytes, fail, lay_out

from cuevo import reference
from cuevo.architectures import Architecture, architecture
from cuevo.arrays import ArrayView
from cuevo.kernels import gemm_sm80
from cuevo.kernels.gemm_mma import Config, Problem
from cuevo.ops.gemm_problem import check_operands, state_problem
from cuevo.sim.arithmetic import float32, halves, tensor_core

TOLERANCE = {"bf16": 3e-3, "f16": 4e-4, "f32": 1e-6}
"""Bound of the relative error by norm against float64, of results rounded to this type."""

LAYOUTS = (
    "packed",
    "aligned 16",
    "aligned 8",
    "aligned 4",
    "aligned 2",
    "reversed",
    "broadcast",
    "shared",
    "broadcast B",
    "reversed B",
    "batch inside",
)
"""Layouts of a and b. "shared": without a batch axis, where there are batches."""
C_LAYOUTS = (*LAYOUTS[:5], "reversed", "broadcast", "shared", "broadcast B", "batch inside")
OUT_LAYOUTS = ("new", *LAYOUTS[:5], "reversed", "batch inside")
SCATTERS = ("none", "permuted", "spread", "dropped", "all dropped")
VALUES = (
    "normal",
    "integers",
    "large",
    "tiny",
    "cancelling",
    "extreme",
    "nan in a",
    "inf in b",
    "nan in c",
)


@dataclass(frozen=True)
class GemmCase:
    """One call; what is printed of it makes it again."""

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    out_dtype: str = "bf16"
    batch: int = 0
    """0: a and b have no batch axis."""
    a_order: str = "rows"
    """Contiguous axis of op(a): "rows" or "columns"."""
    b_order: str = "rows"
    trans_a: bool = False
    trans_b: bool = False
    a_layout: str = "packed"
    b_layout: str = "packed"
    out_layout: str = "packed"
    """"new": the call is to make the array."""
    c: str = "none"
    """"none", a type, or "out": c is the array for the result."""
    c_layout: str = "packed"
    alpha: float = 1.0
    beta: float = 0.0
    bias: bool = False
    bias_of_inputs: bool = False
    """The bias has the type of a, beside a result of f32."""
    scatter: str = "none"
    index_bytes: int = 8
    values: str = "normal"
    settings: tuple[tuple[str, object], ...] = ()
    """Fields of the configuration that is chosen which are changed."""
    seed: int = 0

    @property
    def rows(self) -> int:
        """Rows of c and of the result."""
        more = {"spread": 1.5, "dropped": 0.7}.get(self.scatter, 1.0)
        return max(1, int(self.m * more))


SMALL = GemmCase(20, 33, 40, c="f32", alpha=0.7, beta=-1.5, bias=True, out_layout="new", seed=3)


# -- Layouts ---------------------------------------------------------------------------------------


def _matrix(layout: str, batch: int, rows: int, columns: int, dtype: np.dtype[Any]) -> Strided:
    """Memory for an array [rows, columns], or with a batch axis, columns contiguous."""
    if layout == "shared" or not batch:
        shape: tuple[int, ...] = (rows, columns)
    else:
        shape = (batch, rows, columns)
    down = len(shape) - 2
    if layout.startswith("aligned"):
        # An odd multiple of the unit, so that rows have this alignment and no better one.
        unit = max(int(layout.split()[1]), dtype.itemsize)
        units = -(-columns * dtype.itemsize // unit)
        return lay_out(
            shape, dtype, row_bytes=(units | 1) * unit, gaps=True, unit=2 * unit, shift=unit
        )
    if layout == "reversed":
        return lay_out(shape, dtype, backwards=(down,), shift=dtype.itemsize)
    if layout == "broadcast":
        return lay_out(shape, dtype, broadcast=(down,))
    if layout == "broadcast B" and batch:
        return lay_out(shape, dtype, broadcast=(0,))
    if layout == "reversed B" and batch:
        return lay_out(shape, dtype, backwards=(0,))
    if layout == "batch inside" and batch:
        return lay_out(shape, dtype, order=(1, 0, 2))
    return lay_out(shape, dtype)


def _exchanged(x: Strided) -> Strided:
    """The array with its last two axes exchanged, in the same memory."""
    part = x.array.swapaxes(-1, -2)
    return Strided(x.memory, x.offset, part.shape, part.strides, part.dtype)


def _operand(
    layout: str, order: str, batch: int, rows: int, columns: int, dtype: np.dtype[Any]
) -> Strided:
    """Memory for op(a) or op(b)."""
    if order == "rows":
        return _matrix(layout, batch, rows, columns, dtype)
    return _exchanged(_matrix(layout, batch, columns, rows, dtype))


# -- Values ----------------------------------------------------------------------------------------


def _fill(case: GemmCase, rng: np.random.Generator, shape: tuple[int, ...], axis: int) -> Any:
    """Values of op(a) or op(b), whose axis along k is `axis`."""
    x = rng.standard_normal(shape)
    kind = case.values
    if kind == "integers":
        return rng.integers(-15, 16, shape).astype(np.float64)
    if kind == "large":
        # Sums that overflow fp16, and of bfloat16 some that overflow fp32.
        return x * (300.0 if case.dtype == "f16" else 5e18)
    if kind == "tiny":
        return x * (2.0**-18 if case.dtype == "f16" else 1e-21)
    if kind == "cancelling":
        # Pairs of opposite large numbers, and small ones that truncation takes from them.
        along = np.moveaxis(x, axis, -1)
        pairs = along[..., 1::4].shape[-1]
        along[..., 1::4] = -along[..., ::4][..., :pairs] * (1 + 2.0**-6)
        along[..., 2::4] *= 2.0**-12
        return x
    if kind == "extreme":
        lowest, highest = (-20, 14) if case.dtype == "f16" else (-100, 60)
        return x * 2.0 ** rng.integers(lowest, highest, shape)
    return x


def _set_values(case: GemmCase, arrays: Mapping[str, Strided]) -> None:
    """Fill the arrays, in place."""
    rng = np.random.default_rng(case.seed)
    for name in ("a", "b"):
        x = arrays[name].array
        _put(x, _fill(case, rng, x.shape, x.ndim - (1 if name == "a" else 2)))
    # c and bias are about as large as the product.
    size = float(np.abs(arrays["a"].array.astype(np.float64)).mean()) ** 2 if case.k else 1.0
    for name in ("c", "bias"):
        if name in arrays:
            _put(arrays[name].array, rng.standard_normal(arrays[name].array.shape) * size)
    for words, name, value in (
        ("nan in a", "a", np.nan),
        ("inf in b", "b", np.inf),
        ("nan in c", "c", np.nan),
    ):
        if case.values == words and name in arrays:
            x = arrays[name].array
            x[tuple(int(rng.integers(extent)) for extent in x.shape)] = value
    if "c" in arrays and case.c != "out" and case.beta == 0.0:
        arrays["c"].array[...] = np.nan


def _put(x: np.ndarray, values: np.ndarray) -> None:
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in x.strides)
    part = values[once]
    x[once] = np.clip(part, -6e4, 6e4) if x.dtype == np.float16 else part


def _scatter(case: GemmCase) -> np.ndarray:
    """Targets of the rows: some out of range, on both sides and by far, where rows are dropped."""
    rng = np.random.default_rng(case.seed + 1)
    if case.scatter == "all dropped":
        return np.full(case.m, -1, np.int64)
    if case.scatter != "dropped":
        return rng.permutation(case.rows)[: case.m].astype(np.int64)
    outside = [-1, case.rows, 2**31, 2**32, -(2**63), 2**63 - 1]
    if case.index_bytes == 4:
        outside = [-1, case.rows, 2**31 - 1, -(2**31)]
    targets = [*range(case.rows), *islice(cycle(outside), max(case.m - case.rows, 0))]
    return rng.permutation(np.array(targets, np.int64))[: case.m]


# -- Making ----------------------------------------------------------------------------------------


@dataclass
class Arrays:
    """The arrays of a case."""

    inputs: dict[str, Strided]
    """op(a), op(b), c, bias, scatter, as far as there are any."""
    out: Strided | None
    """None: the call makes it."""
    before: np.ndarray
    """The result where no row is stored, [B?, rows, N]."""

    def call(self, case: GemmCase) -> dict[str, Strided]:
        """The arrays by their names as arguments of `cuevo.gemm`."""
        found = dict(self.inputs)
        for name, exchange in (("a", case.trans_a), ("b", case.trans_b)):
            if exchange:
                found[name] = _exchanged(found[name])
        if self.out is not None:
            found["out"] = self.out
        return found


def options(case: GemmCase) -> dict[str, Any]:
    """The other arguments."""
    found: dict[str, Any] = {
        "alpha": case.alpha,
        "beta": case.beta,
        "trans_a": case.trans_a,
        "trans_b": case.trans_b,
    }
    if case.out_layout == "new":
        found["out_dtype"] = DTYPES[case.out_dtype]
    return found


def make(case: GemmCase) -> Arrays:
    """The arrays of a call, results poisoned."""
    dtype, out_dtype = DTYPES[case.dtype], DTYPES[case.out_dtype]
    inputs = {
        "a": _operand(case.a_layout, case.a_order, case.batch, case.m, case.k, dtype),
        "b": _operand(case.b_layout, case.b_order, case.batch, case.k, case.n, dtype),
    }
    shape = inputs["a"].array.shape[:-2] or inputs["b"].array.shape[:-2]
    batch = case.batch if shape else 0
    out = None
    if case.out_layout != "new":
        out = _matrix(case.out_layout, batch, case.rows, case.n, out_dtype)
    if case.c == "out":
        assert out is not None
        inputs["c"] = out
    elif case.c != "none":
        inputs["c"] = _matrix(case.c_layout, batch, case.rows, case.n, DTYPES[case.c])
    if case.bias:
        kind = dtype if case.bias_of_inputs else out_dtype
        inputs["bias"] = lay_out((case.n,), kind, shift=kind.itemsize)
    if case.scatter != "none":
        kind = np.dtype(f"i{case.index_bytes}")
        inputs["scatter"] = lay_out((case.m,), kind, shift=case.index_bytes)
        inputs["scatter"].array[...] = _scatter(case)
    _set_values(case, inputs)
    before = np.full((*shape, case.rows, case.n), np.nan, out_dtype)
    if out is not None:
        before[...] = out.array
    return Arrays(inputs, out, before)


def arguments(case: GemmCase) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of a case, and how `cuevo.gemm` is called with them."""
    arrays = make(case)
    given = {key: x.array for key, x in arrays.call(case).items()}
    return arrays, given | options(case)


def problem_of(case: GemmCase, views: Mapping[str, ArrayView]) -> Problem:
    """The problem that a call states."""
    said = options(case)
    del said["alpha"]
    return state_problem(check_operands(**views, **said))


def configuration(case: GemmCase, views: Mapping[str, ArrayView], arch: Architecture) -> Config:
    """The choice with the settings of the case; without them where they cannot be."""
    problem = problem_of(case, views)
    chosen = gemm_sm80.choose(problem, arch)
    wanted = gemm_sm80.adapt(replace(chosen, **dict(case.settings)), problem)  # type: ignore[arg-type]
    return chosen if gemm_sm80.violations(wanted, arch, problem) else wanted


# -- What is right ---------------------------------------------------------------------------------


def sums(a: np.ndarray, b: np.ndarray, config: Config, arch: str) -> np.ndarray:
    """a [B, M, K] . b [B, K, N] as the tensor cores add it up, in float32."""
    name = {"f16": tensor_core.F16, "bf16": tensor_core.BF16}[config.dtype]
    block = tensor_core.block(architecture(arch).number)
    tiles = max(ceil(a.shape[2] / config.block_k), 1)
    depth = tiles * config.block_k
    bits_a = np.zeros((a.shape[1], depth, a.shape[0]), np.uint16)
    bits_b = np.zeros((depth, b.shape[2], b.shape[0]), np.uint16)
    bits_a[:, : a.shape[2]] = np.ascontiguousarray(a).view(np.uint16).transpose(1, 2, 0)
    bits_b[: b.shape[1]] = np.ascontiguousarray(b).view(np.uint16).transpose(1, 2, 0)
    each = ceil(tiles / config.splits) * config.block_k
    total: np.ndarray | None = None
    for first in range(0, depth, each):
        kind = np.float16 if config.accumulate == "f16" else np.float32
        part = np.zeros((a.shape[1], b.shape[2], a.shape[0]), kind)
        for k in range(first, min(first + each, depth), config.mma_k):
            step = slice(k, k + config.mma_k)
            part = tensor_core.multiply_accumulate(bits_a[:, step], bits_b[step], part, name, block)
        part = part.astype(np.float32)
        total = part if total is None else total + part
    assert total is not None
    return np.ascontiguousarray(total.transpose(2, 0, 1))


def _rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """float32 to a type of results, to nearest even, NaN as the hardware writes it."""
    if dtype == "f32":
        float32.canonicalize(x)
        return x
    return halves.narrow(x, dtype).view(DTYPES[dtype])


def exact(case: GemmCase, arrays: Arrays, config: Config, arch: str) -> np.ndarray:
    """Every bit of the result, [B?, rows, N]."""
    with np.errstate(all="ignore"):
        a, b = (arrays.inputs[name].array for name in ("a", "b"))
        batch = case.batch or 1
        a, b = (np.broadcast_to(x, (batch, *x.shape[-2:])) for x in (a, b))
        product = np.float32(case.alpha) * sums(a, b, config, arch)
        before = arrays.before.reshape(-1, case.rows, case.n)
        batch = before.shape[0]
        product = product[:batch]
        rows = np.arange(case.m)
        targets = rows
        if case.scatter != "none":
            targets = arrays.inputs["scatter"].array
            rows = np.flatnonzero((targets >= 0) & (targets < case.rows))
            targets = targets[rows]
        result = product[:, rows]
        if case.c != "none" and case.beta != 0.0:
            c = before if case.c == "out" else arrays.inputs["c"].array
            c = np.broadcast_to(c, before.shape)[:, targets].astype(np.float32)
            sum_ = np.empty_like(result)
            float32.fma(np.float32(case.beta), c, result, sum_)
            result = sum_
        if case.bias:
            result = result + arrays.inputs["bias"].array.astype(np.float32)
        found = before.copy()
        found[:, targets] = _rounded(result, case.out_dtype)
    return found.reshape(arrays.before.shape)


def expected(case: GemmCase, arrays: Arrays) -> np.ndarray:
    """The result in float64."""
    given = {name: x.array for name, x in arrays.inputs.items()}
    if case.c == "out":
        given["c"] = arrays.before
    out = arrays.before if case.scatter != "none" else None
    return reference.gemm(**given, alpha=case.alpha, beta=case.beta, out=out)


# -- Comparing -------------------------------------------------------------------------------------


def check(case: GemmCase, found: np.ndarray, arrays: Arrays, config: Config, arch: str) -> None:
    """Compare every bit; the failure says which case and where it begins."""
    assert_same_bytes((case, config), "out", found, exact(case, arrays, config, arch))


def check_near(case: GemmCase, found: np.ndarray, arrays: Arrays) -> None:
    """Compare with float64."""
    right = expected(case, arrays)
    difference = found.astype(np.float64) - right
    error = np.linalg.norm(difference) / np.linalg.norm(right)
    tolerance = TOLERANCE[case.out_dtype]
    if not error < tolerance:
        typical = np.linalg.norm(right) / right.size**0.5
        wrong = ~(np.abs(difference) <= 8 * tolerance * typical)
        fail(case, f"relative error {error:.3g}, allowed {tolerance:g}", wrong, found, right)


def check_surroundings(case: GemmCase, arrays: Arrays, was: Mapping[str, np.ndarray]) -> None:
    """Nothing was written around the result, and no input has changed since `memory_of`."""
    for name, x in arrays.inputs.items():
        if case.c == "out" and name == "c":
            continue
        assert np.array_equal(x.memory, was[name]), f"{case}\n{name} has changed"
    if arrays.out is not None:
        touched = np.count_nonzero(arrays.out.outside() != POISON)
        assert not touched, f"{case}\n{touched} bytes outside of the result were written"


def memory_of(arrays: Arrays) -> dict[str, np.ndarray]:
    """All bytes of the inputs, for `check_surroundings`."""
    return {name: x.memory.copy() for name, x in arrays.inputs.items()}
