"""The CPU executor and a GPU of its architecture agree, instruction by instruction, bit for bit
where bits are promised.

What is run, and how results are compared, is that of ``sim/recordings``; here it runs on the GPU
that is there.
"""

import pytest
from sim.recordings.passages import passages
from sim.recordings.probes import probes
from sim.recordings.recorder import on_device, record_all
from sim.recordings.replay import replay
from sim.recordings.sweeps import sweeps

from cuevo.executors.driver import DriverExecutor

pytestmark = pytest.mark.gpu

SIGNATURES = sorted({probe.signature for probe in (*probes(100), *passages(100))})


@pytest.mark.parametrize("signature", SIGNATURES)
def test_same_results(executor: DriverExecutor, signature: str) -> None:
    number = int(executor.arch.removeprefix("sm_"))
    chosen = [sweep for sweep in sweeps(number) if sweep.signature == signature]
    if not chosen:
        pytest.skip(f"{executor.info.name} has no such instruction")
    records, failures = record_all(chosen, lambda sweep: on_device(executor, sweep))
    outcome = replay(chosen, records)
    assert not failures + outcome.wrong, "\n".join(failures + outcome.wrong)
