"""Kernels in Triton and Numba, compiled by them, run as they are and are right."""

from dataclasses import replace

import pytest
from sim.compiled.from_python import runs

from cuevo.errors import SimulatorError
from cuevo.sim import SimExecutor

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize(
    "run",
    [
        runs.flash("sm_80", 2, 100, 150),
        runs.flash("sm_90a", 2, 100, 150),
        runs.softmax(5, 70),
        runs.product(24),
    ],
    ids=lambda run: f"{run.entry[:12]}-{run.arch}",
)
def test_results(run: runs.Run) -> None:
    run.launch(run.load(SimExecutor(run.arch)))
    assert run.distance() <= 1


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
