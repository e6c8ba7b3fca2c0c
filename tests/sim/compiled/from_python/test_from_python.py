"""Kernels in Triton and Numba, compiled by them, run as they are and are right."""

from dataclasses import replace

import pytest
from sim.compiled.from_python import runs
from sim.compiled.from_python.launching import Run
from sim.compiled.from_python.texts import launches

from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor

pytestmark = pytest.mark.kernel

RUNS = [
    *(
        run
        for arch in ("sm_80", "sm_90a")
        for run in (
            runs.flash(arch, 2, 100, 150),
            runs.flash_backward(arch, 2, 100),
            *runs.elements(arch, 1000),
            runs.softmax(arch, 10, 100, 3),
            runs.sort_and_count(arch, 2),
            *runs.layer_norm(arch, 8, 200),
            *runs.products(arch, 100, 144, 112),
            runs.grouped_products(arch, [(70, 33, 50), (16, 128, 24), (64, 64, 64)]),
        )
    ),
    runs.softmax_rows(5, 70),
    *runs.threads(),
    runs.tiled_product(24),
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.name}")
def test_results(run: Run) -> None:
    run.launch(run.load(SimExecutor(run.arch)))
    assert run.difference() <= run.tolerance


def test_every_text_is_run() -> None:
    assert {run.name for run in RUNS} >= launches().keys()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_faults_name_the_line_of_the_source(arch: str) -> None:
    """A head less than the grid has, and tiles that are read before their copies are waited for."""
    run = runs.flash(arch, 2, 64, 64)
    kernel = run.load(SimExecutor(arch))
    short = replace(run, given=(*run.given[:2], run.given[2][:1]))
    with pytest.raises(SimulatorError, match=r"flash\.py:\d+: read of 16 bytes"):
        short.launch(kernel)
    waiting = replace(run, text=run.text.replace("cp.async.wait_group", "// "))
    with pytest.raises(SimulatorError, match=r"flash\.py:\d+: .*still in flight"):
        waiting.launch(waiting.load(SimExecutor(arch)))
