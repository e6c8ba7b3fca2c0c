"""tools/bench_lengths.py: inputs of every length and kind, and what is said of their speed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.host_backend import HostBackend

import bench_lengths
from workloads import Workload


@pytest.mark.unit
@pytest.mark.parametrize("kind", bench_lengths.KINDS)
def test_inputs_lie_in_the_memory_of_the_longest(kind: str) -> None:
    stock = bench_lengths.Inventory(HostBackend(), Workload(2, 4, 24, 8))
    x = stock.inputs(Workload(2, 4, 17, 8), kind)
    assert x.q.shape == x.dout.shape == (1, 2, 17, 4, 8)
    assert x.mask_bias.shape == (1, 2, 1, 1, 17)
    assert x.pair_bias.shape == (1, 1, 4, 17, 17)
    assert x.pair_bias.dtype == (np.float32 if kind == "fp32 pair" else x.q.dtype)
    assert (x.mask_bias.dtype == bool) == (kind == "bool mask")
    keys_apart = x.pair_bias.strides[4] // x.pair_bias.dtype.itemsize
    assert keys_apart == (4 if kind == "head-last" else 1)
    longest = stock.inputs(Workload(2, 4, 24, 8), kind)
    assert np.shares_memory(x.pair_bias, longest.pair_bias)


@pytest.mark.unit
def test_the_standard_is_that_of_the_multiples_of_64() -> None:
    assert bench_lengths.standard({63: 1.0, 64: 3.0, 65: 2.0, 128: 5.0}) == 4.0
    assert bench_lengths.standard({63: 1.0, 65: 2.0, 66: 6.0}) == 2.0


@pytest.mark.kernel
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_run(
    direction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(bench_lengths, "open_backend", lambda: HostBackend(tick=1.0))
    size = ["--rows=1", "--heads=1", "--head-dim=8", "--first=15", "--last=17", "--repeats=2"]
    kinds = ["--input=contiguous", "--input=fp32 pair"]
    path = tmp_path / "run.json"
    assert bench_lengths.main([f"--direction={direction}", *size, *kinds, f"--json={path}"]) == 0
    *_, first, second = capsys.readouterr().out.splitlines()
    # Every call takes a millisecond: the shortest is the slowest a score, 16 the median.
    assert first.startswith(f"{direction}, contiguous: ")
    assert "worst L = 15" in first and first.endswith(f"{15 * 15 / 256:.3f} of that")
    assert second.startswith(f"{direction}, fp32 pair: ")
    found = json.loads(path.read_text())["teraflops"]
    assert found["contiguous"]["17"] / found["contiguous"]["16"] == pytest.approx((17 / 16) ** 2)
