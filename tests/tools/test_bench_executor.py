"""tools/bench_executor.py on a small problem."""

import re

import pytest

import bench_executor

pytestmark = pytest.mark.unit


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_executor.main(["--workload", "1,1,32,32", "--repeats", "1"]) == 0
    printed = capsys.readouterr().out
    count = re.search(r"attention 1,1,32,32, ([\d.]+) million", printed)
    rows = re.findall(r"\| (with checks|without) +\| +[\d.]+ \| +([\d.]+) \|", printed)
    assert count is not None and 0.001 < float(count[1]) < 1
    assert [name for name, _ in rows] == ["with checks", "without"]
    assert all(float(speed) > 0 for _, speed in rows)
    others = re.findall(r"\| .*, (nvcc|Triton|Numba) +\| +[\d.]+ \| +([\d.]+) \|", printed)
    assert [name for name, _ in others] == ["nvcc", "Triton", "Triton", "Numba"]
    assert all(float(speed) > 0 for _, speed in others)
    assert re.search(r"most memory of the process: \d+ MB", printed)
