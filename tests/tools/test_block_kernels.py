from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from block_kernels import SUITES, Suite, WatchedSim, assemble_case

BLOCKS = Path(__file__).parents[1] / "blocks"
ON_DEVICE = [
    path.stem
    for path in sorted(BLOCKS.glob("test_*.py"))
    if "@pytest.mark.gpu" in path.read_text(encoding="utf-8")
]


@pytest.mark.unit
@pytest.mark.parametrize("name", ON_DEVICE)
def test_suites_have_the_cases_of_the_tests(name):
    module = import_module(f"blocks.{name}")
    suites = [suite for suite in SUITES.values() if suite.cases.__module__ == module.__name__]
    found = [(len(suite.cases()), len(suite.sample())) for suite in suites]
    assert sorted(found) == sorted(module.counts().values())


@pytest.mark.kernel
def test_launches_are_told_of():
    names = []
    suite = SUITES["accumulator"]
    cases = suite.sample()[:3]
    place = WatchedSim("sm_80", lambda loaded: names.append(loaded.kernel.name))
    assert suite.failures(cases, place) == ""
    assert names == ["accumulator"] * 3


@pytest.mark.kernel
def test_conflicts_are_counted():
    profiles = []
    suite = SUITES["warp_load"]
    place = WatchedSim("sm_80", lambda loaded: profiles.append(loaded.profile))
    assert suite.failures(suite.sample()[:1], place) == ""
    assert {use.opcode.partition(".")[0] for use in profiles[0].banks} == {"st", "ldmatrix"}


@pytest.mark.unit
def test_failures_name_the_first_case():
    def check(place, case):
        np.testing.assert_equal(case % 2, 0)

    suite = Suite("numbers", lambda: range(5), list, check)
    place = WatchedSim("sm_80", lambda loaded: None)
    assert suite.failures(suite.sample(), place).startswith("2 of 5 cases fail")
    assert suite.failures([0, 2], place) == ""


@pytest.mark.unit
def test_assembling_ahead_stops_before_the_launch(monkeypatch):
    assembled = []
    monkeypatch.setattr(
        "block_kernels.assemble", lambda kernel, arch: assembled.append((kernel.name, arch))
    )
    for suite in SUITES.values():
        assemble_case(("sm_90", suite.name, suite.sample()[0]))
    names = {name for name, _ in assembled}
    assert len(assembled) == len(SUITES)
    assert {"mma_multistage", "copy_tile", "accumulator", "output_tile"} <= names
    assert {arch for _, arch in assembled} == {"sm_90"}
