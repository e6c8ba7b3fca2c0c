"""ptx/evoformer_forward_sm80.ptx against float64: the sweep of problems, on the CPU executor and on a GPU."""

from functools import cache

import numpy as np
import pytest

import attention_cases as cases
from attention_sweep import CASES, name
from attention_cases import Case, Strided
from cuevo.arrays import ArrayView
from cuevo.attention_problem import check_scale, state_problem
from cuevo.driver import DriverExecutor
from cuevo.executor import Executor
from cuevo.header import load_header
from cuevo.kernels import evoformer_forward_sm80 as forward
from cuevo.sim import SimExecutor
from cuevo.template import render


@cache
def sim(arch: str) -> SimExecutor:
    return SimExecutor(arch)


def launch(
    case: Case,
    place: Executor,
    views: dict[str, ArrayView],
    config: forward.Config | None = None,
    *,
    with_lse: bool = True,
) -> forward.Config:
    """Run the kernel on the arrays, out and lse among them."""
    lse = views["lse"]
    operands = {key: x for key, x in views.items() if key != "lse"}
    problem = state_problem(**operands)
    config = config or cases.configuration(case, problem, place)
    kernel = place.load(render(forward.NAME, forward.values(config)))
    parameters = forward.parameters(
        config,
        scale=check_scale(case.scale, case.head_dim),
        lse=lse if with_lse else None,
        **operands,
    )
    kernel.launch(
        config.grid(problem),
        (config.threads, 1, 1),
        config.shared_bytes,
        load_header().kernels[forward.NAME].pack(parameters),
        buffers=list(views.values()),
    )
    return config


def run_on_cpu(case: Case, inputs: dict[str, Strided]) -> dict[str, Strided]:
    results = cases.make_results(case)
    views = cases.host_views(inputs, readonly=True) | cases.host_views(results, readonly=False)
    launch(case, sim(case.arch), views)
    return results


@pytest.mark.kernel
@pytest.mark.parametrize("case", CASES, ids=name)
def test_the_sweep(case: Case) -> None:
    inputs = cases.make(case)
    results = run_on_cpu(case, inputs)
    cases.check(case, results["out"].array, results["lse"].array, inputs)
    cases.check_guards(case, results)
