"""Calls of `cuevo.attention_backward` with the arrays of a `BackwardCase`."""

from collections.abc import Mapping, Sequence
from typing import Any

from helpers import backward_cases as cases
from helpers.backward_cases import ARGUMENTS, BackwardCase
from helpers.guarded import Strided, host_views

from cuevo.architectures import Architecture
from cuevo.kernels import evoformer_backward_sm80 as backward
from cuevo.kernels.backward import Problem
from cuevo.kernels.evoformer_backward_sm80 import Config
from cuevo.ops.attention_problem import state_problem

OPERANDS = ("q", "k", "v", "mask_bias", "pair_bias")
KEYS_GRADS = ("k", "v", "mask_bias")
QUERIES_GRADS = ("q", "pair_bias")


def arguments(case: BackwardCase) -> tuple[dict[str, Strided], dict[str, Any]]:
    """The inputs of a case, and how `cuevo.attention_backward` is called with them."""
    inputs = cases.make(case)
    return inputs, {name: x.array for name, x in inputs.items()} | case.options


def named(results: Sequence[Any]) -> dict[str, Any]:
    """The results of a call by their names."""
    return dict(zip(ARGUMENTS, results, strict=True))


def sides(case: BackwardCase, inputs: Mapping[str, Strided]) -> dict[str, Problem]:
    """Requests of the case to either side, where it asks for anything."""
    views = host_views(inputs, readonly=True)
    stated = state_problem(**{name: views[name] for name in OPERANDS if name in views})
    wanted = {
        "queries": dict(first="dq", sums="dpair_bias"),
        "keys": dict(first="dk", second="dv", sums="dmask_bias"),
    }
    found = {}
    for side, gradients in wanted.items():
        asked = {what: name in case.gradients for what, name in gradients.items()}
        if any(asked.values()):
            found[side] = Problem(**vars(stated), side=side, **asked)
    return found


def configurations(
    case: BackwardCase, inputs: Mapping[str, Strided], arch: Architecture
) -> dict[str, Config] | None:
    """The argument `config`: of each side that candidate, of those that can run, which the case
    names; None: those that are chosen.
    """
    if case.shape is None:
        return None
    found = {}
    for side, problem in sides(case, inputs).items():
        offered = [
            config
            for config, _ in backward.candidates(problem)
            if not backward.violations(config, arch, problem)
        ]
        found[side] = offered[case.shape % len(offered)]
    return found
