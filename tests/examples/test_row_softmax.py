"""examples/row_softmax: short, exact to the edge, and without faults on either executor."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from blocks.harness import array, assert_no_conflicts, both, check_all, empty, on_cpu, parts, run
from helpers.covering import covering, every
from helpers.guarded import DTYPES

from cuevo.executors.driver import DriverExecutor
from cuevo.executors.protocol import Executor
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.template import RenderedKernel

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "row_softmax"
MOST_LINES = 150


@cache
def example() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("row_softmax_example", EXAMPLE / "run.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def instance(n: int, k: int, dtype: str, stages: int) -> tuple[RenderedKernel, int]:
    found: tuple[RenderedKernel, int] = example().instance(n, k, dtype, stages)
    return found


# -- Cases -----------------------------------------------------------------------------------------

Fill = Callable[[np.random.Generator, int], np.ndarray]
LARGE = 1e30


def _normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.standard_normal(n)


def _some(value: float) -> Fill:
    """All columns but the first, each with a chance of a half."""

    def fill(rng: np.random.Generator, n: int) -> np.ndarray:
        bias = rng.standard_normal(n)
        bias[1:][rng.random(n - 1) < 0.5] = value
        return bias

    return fill


def _all(value: float) -> Fill:
    return lambda rng, n: np.full(n, value)


def _one(value: float) -> Fill:
    """One column, any one, has this bias."""

    def fill(rng: np.random.Generator, n: int) -> np.ndarray:
        bias = rng.standard_normal(n)
        bias[rng.integers(n)] = value
        return bias

    return fill


BIASES: dict[str, Fill] = {
    "normal": _normal,
    "some -inf": _some(-np.inf),
    "some -1e30": _some(-LARGE),
    "all -1e30": _all(-LARGE),
    "all 3e38": _all(3e38),
    "one 1e30": _one(LARGE),
    "one 100": _one(100.0),
}


@dataclass(frozen=True)
class Case:
    """One launch."""

    m: int
    n: int
    k: int
    dtype: str
    stages: int
    bias: str


@cache
def cases() -> tuple[Case, ...]:
    """Every two values meet."""
    return tuple(
        covering(
            list(
                every(
                    Case,
                    m=(1, 15, 16, 17, 64, 65, 130),
                    n=(1, 2, 3, 31, 32, 33, 63, 64, 65, 96, 127, 128),
                    k=(0, 1, 2, 7, 31, 32, 33, 64, 72, 100, 129, 224),
                    dtype=("f16", "bf16"),
                    stages=(2, 3, 4, 5, 6),
                    bias=BIASES,
                )
            )
        )
    )


def check(place: Executor, case: Case) -> None:
    rng = np.random.default_rng(case.n * case.k)
    a = rng.standard_normal((case.m, case.k)).astype(DTYPES[case.dtype])
    b = rng.standard_normal((case.k, case.n)).astype(DTYPES[case.dtype])
    bias = BIASES[case.bias](rng, case.n).astype(np.float32)
    kernel, shared_bytes = instance(case.n, case.k, case.dtype, case.stages)
    y = empty((case.m, case.n), np.float32)
    loaded = run(
        place,
        kernel,
        {"a": array(a), "b": array(b), "bias": array(bias)},
        {"y": y},
        threads=128,
        grid=ceil(case.m / example().BLOCK_M),
        shared_bytes=shared_bytes,
        m=case.m,
        n=case.n,
        k=case.k,
    )
    compare(y.array, a, b, bias)
    # Narrower copies of a chunk leave banks idle: they are no part of what a layout can do.
    if case.k and case.n % 8 == case.k % 8 == 0:
        assert_no_conflicts(loaded)


def compare(y: np.ndarray, a: np.ndarray, b: np.ndarray, bias: np.ndarray) -> None:
    """Relative to the element, by how large the sums are that went into its score."""
    a, b, bias = (x.astype(np.float64) for x in (a, b, bias))
    scores = a @ b + bias
    expected = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    # A bias that is so large leaves nothing of the product, in fp32 and in float64.
    size = np.abs(a) @ np.abs(b) + np.where(np.abs(bias) < 1e20, np.abs(bias), 0)
    relative = 2.0**-21 * (2 + size.max(axis=1, keepdims=True))
    error = np.abs(y - expected)
    # Probabilities below the smallest normal number are flushed to zero.
    allowed = relative * expected + 2.0**-126
    assert (error <= allowed).all(), (
        f"{(error / allowed).max():.3g} times the error that is allowed, at "
        f"{np.unravel_index((error / allowed).argmax(), y.shape)}"
    )


# -- Tests -----------------------------------------------------------------------------------------


@pytest.mark.kernel
@parts(4)
def test_on_the_cpu_executor(part: slice) -> None:
    check_all(check, cases()[part], both())


@pytest.mark.gpu
@parts(4)
def test_on_a_device(executor: DriverExecutor, part: slice) -> None:
    check_all(check, cases()[part], executor)


@pytest.mark.kernel
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_the_function_takes_numpy_arrays(dtype: str) -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal((70, 40)).astype(DTYPES[dtype])
    b = rng.standard_normal((40, 33)).astype(DTYPES[dtype])
    bias = rng.standard_normal(33).astype(np.float32)
    compare(example().row_softmax(a, b, bias, on_cpu("sm_90")), a, b, bias)


@pytest.mark.unit
def test_the_function_refuses_what_the_kernel_cannot_read() -> None:
    a, b, bias = (np.zeros(shape, np.float16) for shape in ((4, 8), (16, 8), (16,)))
    with pytest.raises(ValueError, match="b: must be contiguous"):
        example().row_softmax(a, b.T, bias.astype(np.float32), "sim")
    with pytest.raises(ValueError, match="a row of 129 columns"):
        example().row_softmax(a, np.zeros((8, 129), np.float16), bias, "sim")


@pytest.mark.kernel
def test_the_script_runs() -> None:
    command = [sys.executable, "examples/row_softmax/run.py", "sim"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    assert words[:2] == ["largest", "error"]
    assert 0.0 < float(words[2]) < 1e-5


@pytest.mark.unit
def test_the_template_is_short() -> None:
    text = (EXAMPLE / "row_softmax.ptx").read_text(encoding="utf-8")
    assert text.count("\n") < MOST_LINES


@pytest.mark.unit
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_no_instance_spills(arch: str) -> None:
    for n in (*example().WIDTHS, 33, 127):
        for stages in (2, 6):
            kernel, _ = instance(n, n, "bf16", stages)
            found = assemble(kernel, arch, cache=None).resources
            assert (found.spill_stores, found.spill_loads, found.stack) == (0, 0, 0), (
                f"{kernel.describe()} on {arch}: {found}"
            )
