"""Comparison with float64, on a part of the result that keeps the comparison cheap."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends import Backend, Inputs
from workloads import Workload

CHECKED_ROWS = 3
CHECKED_QUERIES = 64
CHECKED_PAIR_QUERIES = 4

EVERY = slice(None)

Expected = dict[str, tuple[tuple[Any, ...], np.ndarray]]
"""By the name of a result: which part of it is compared, and what float64 says of that part."""


def spread(extent: int, count: int) -> slice:
    """About `count` indices that reach from the first to the last of `extent`."""
    if extent <= count:
        return slice(None)
    step = (extent - 1) // (count - 1)
    return slice((extent - 1) % step, None, step)


def relative_error(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


def relative_errors(
    backend: Backend, results: dict[str, Any], expected: Expected
) -> dict[str, float]:
    """Error of each result, by its name."""
    errors = {}
    for name, result in results.items():
        index, exact = expected[name]
        errors[name] = relative_error(backend.part(result, index), exact)
    return errors


def expected_output(backend: Backend, inputs: Inputs, workload: Workload, biases: str) -> Expected:
    """The output for some rows and queries: the first, the last and some between."""
    from cuevo import reference as float64

    rows, queries = spread(workload.rows, CHECKED_ROWS), spread(workload.length, CHECKED_QUERIES)
    given = _given(backend, inputs, biases, rows, queries, EVERY)
    output, _ = float64.attention(**given)
    return {"out": ((EVERY, rows, queries), output)}


def expected_gradients(
    backend: Backend, inputs: Inputs, workload: Workload, biases: str
) -> Expected:
    """All gradients that some rows have to themselves; that of the pair bias, which sums over all
    rows, for one head and some queries.
    """
    from cuevo import reference as float64

    rows = spread(workload.rows, CHECKED_ROWS)
    dout = backend.part(inputs.dout, (EVERY, rows))
    given = _given(backend, inputs, biases, rows, EVERY, EVERY)
    *own, _ = float64.attention_backward(dout, **given)
    names = ("q", "k", "v", "mask_bias")
    expected: Expected = {
        name: ((EVERY, rows), exact)
        for name, exact in zip(names, own, strict=True)
        if exact is not None
    }
    if biases != "none":
        head = slice(workload.heads // 2, workload.heads // 2 + 1)
        queries = spread(workload.length, CHECKED_PAIR_QUERIES)
        dout = backend.part(inputs.dout, (EVERY, EVERY, queries, head))
        given = _given(backend, inputs, biases, EVERY, queries, head)
        *_, exact = float64.attention_backward(dout, **given)
        assert exact is not None
        expected["pair_bias"] = ((EVERY, EVERY, head, queries), exact)
    return expected


def _given(
    backend: Backend, inputs: Inputs, biases: str, rows: slice, queries: slice, heads: slice
) -> dict[str, np.ndarray]:
    """A part of the problem, as arguments of the reference."""
    given = {
        "q": backend.part(inputs.q, (EVERY, rows, queries, heads)),
        "k": backend.part(inputs.k, (EVERY, rows, EVERY, heads)),
        "v": backend.part(inputs.v, (EVERY, rows, EVERY, heads)),
    }
    if biases == "both":
        given["mask_bias"] = backend.part(inputs.mask_bias, (EVERY, rows))
    if biases != "none":
        given["pair_bias"] = backend.part(inputs.pair_bias, (EVERY, EVERY, heads, queries))
    return given
