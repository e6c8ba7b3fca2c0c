"""Calls on sizes of their own: their results, and faults of their kernels."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cuevo.arrays import view
from cuevo.check import Report, check_call
from cuevo.ops import forward, product
from cuevo.sim import LoadedKernel, SimExecutor
from cuevo.toolchain.template import RenderedKernel

pytestmark = pytest.mark.kernel


def product_of(m: int, n: int, k: int) -> Report:
    a, b = (view(np.zeros(shape, np.float16)) for shape in ((m, k), (k, n)))
    arrays, options = (a, b, None, None, None, None), (1.0, 0.0, False, False, None)
    return check_call(product.OPERATION, arrays, options, None, "sm_80", seed=1)


def damage(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Change what is loaded from now on."""
    load: Callable[..., LoadedKernel] = SimExecutor.load

    def loading(self: SimExecutor, kernel: RenderedKernel) -> LoadedKernel:
        assert old in kernel.text
        return load(self, replace(kernel, text=kernel.text.replace(old, new, 1)))

    monkeypatch.setattr(SimExecutor, "load", loading)


def test_results_are_compared() -> None:
    report = product_of(40, 70, 56)
    assert (report.kernel, report.arch, report.findings) == ("gemm itself", "sm_80", ())
    assert 0 < report.errors["out"] < 1e-3
    assert report.profile is None


def test_masked_rows_and_strided_biases_are_those_of_the_call() -> None:
    q = view(np.zeros((1, 2, 24, 3, 8), np.float16))
    mask = view(np.zeros((1, 2, 1, 1, 24), np.bool_))
    pair = view(np.zeros((1, 1, 3, 24, 24), np.float32))
    options: Any = (None, False, None)
    arrays = (q, q, q, mask, pair, None, None)
    report = check_call(forward.OPERATION, arrays, options, None, "sm_80")
    assert report.ok and set(report.errors) == {"out"}


def test_what_differs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    damage(monkeypatch, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 ", "// ")
    (finding,) = product_of(40, 70, 56).findings
    assert finding.message.startswith("out differs from float64 by ")


def test_a_fault_has_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    damage(monkeypatch, "cp.async.wait_group", "// ")
    report = product_of(40, 70, 256)
    (finding,) = report.findings
    assert finding.origin.startswith("ptx/") and not report.errors and not report.ok
