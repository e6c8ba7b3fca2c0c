"""The check of a whole call on sizes of its own: what its kernels launch together, on random
numbers on the CPU executor, compared with float64.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from cuevo import reference
from cuevo.arrays import ArrayView
from cuevo.check.kernel_check import BUDGET, Finding, Report, compare, fault
from cuevo.check.small_problems import Array, random_mask
from cuevo.errors import SimulatorError
from cuevo.ops.operation import Operation
from cuevo.sim import Budget, SimExecutor

__all__ = ["check_call"]


def check_call(
    operation: Operation,
    arrays: Sequence[ArrayView | None],
    options: tuple[object, ...],
    config: object,
    arch: str,
    seed: int = 0,
    budget: Budget = BUDGET,
) -> Report:
    """Run a call as `arch` does, under all checks, on random numbers in the place of what `arrays`
    hold, and compare its results. The report has errors, and no counts: those are of kernels.

    Raises ValueError for what the call refuses.
    """
    rng = np.random.default_rng(seed)
    views = zip(operation.names, arrays, strict=True)
    given = {name: _random(rng, name, view) for name, view in views if view is not None}
    if "out" in given:
        out, lse = reference.attention(*_operands(given))
        given |= {"out": out.astype(given["out"].dtype), "lse": lse.astype(np.float32)}
    operands = tuple(map(given.get, operation.names))
    place = SimExecutor(arch, budget=budget)
    errors: Mapping[str, float] = {}
    findings: tuple[Finding, ...]
    try:
        results = operation.call(operands, options, place, None, config)
    except SimulatorError as error:
        findings = (fault(str(error)),)
    else:
        names = operation.names[-len(results) :]
        listed = zip(names, results, _expected(operation.name, given), strict=True)
        errors, findings = compare({name: (x, y) for name, x, y in listed if x is not None})
    return Report(f"{operation.name} itself", arch, findings, MappingProxyType(errors), None)


def _random(rng: np.random.Generator, name: str, like: ArrayView) -> Array:
    if name == "mask_bias":
        return random_mask(rng, like.shape, like.dtype)
    return np.asarray(rng.standard_normal(like.shape, dtype=np.float32).astype(like.dtype))


def _expected(operation: str, given: Mapping[str, Array]) -> Sequence[Any]:
    """The results in float64, in the order of the operation's."""
    if operation == "gemm":
        return (reference.gemm(given["a"], given["b"]),)
    if operation == "attention":
        return reference.attention(*_operands(given))
    return reference.attention_backward(given["dout"], *_operands(given))


def _operands(given: Mapping[str, Array]) -> list[Any]:
    return [given.get(name) for name in ("q", "k", "v", "mask_bias", "pair_bias")]
