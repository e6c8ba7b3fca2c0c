"""cuevo.sim.arithmetic.compiled: with Numba, without it, and with nowhere to keep what it makes."""

import sys
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cuevo.sim.arithmetic import compiled as module
from cuevo.sim.arithmetic.compiled import compiled, compiled_elementwise

pytestmark = pytest.mark.unit


def doubled(source: Any, target: Any) -> None:
    for i in range(source.size):
        target[i] = 2 * source[i]


def halved(x: Any) -> Any:
    return x / 2


@pytest.fixture(autouse=True)
def fresh() -> Any:
    """Whether Numba is there is asked once in a process."""
    kept = module._loop, module._ufunc
    for each in kept:
        each.cache_clear()
    yield
    for each in kept:
        each.cache_clear()


def test_loops_and_elements() -> None:
    pytest.importorskip("numba")
    x, y = np.arange(5.0), np.zeros(5)
    loop, ufunc = compiled(doubled), compiled_elementwise(halved, "float64(float64)")
    assert loop is not None and ufunc is not None
    loop(x, y)
    assert y.tolist() == [0, 2, 4, 6, 8]
    assert ufunc(y[:, None]).shape == (5, 1)
    assert compiled(doubled) is loop


def test_a_process_does_without_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(module, "_uses", count())
    monkeypatch.setattr(module, "USES_BEFORE", 3)
    found = [compiled(doubled), compiled_elementwise(halved, "float64(float64)")]
    found += [compiled(doubled) for _ in range(3)]
    assert [each is None for each in found] == [True, True, True, False, False]


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert compiled(doubled) is None
    assert compiled_elementwise(halved, "float64(float64)") is None


def test_nowhere_to_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiler(*signatures: object, cache: bool = False, **options: object) -> Any:
        def compile_(function: object) -> object:
            if cache:
                raise RuntimeError("cannot cache function: no locator available")
            return function

        return compile_

    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace(njit=compiler, vectorize=compiler))
    assert compiled(doubled) is doubled
    assert compiled_elementwise(halved, "float64(float64)") is halved
