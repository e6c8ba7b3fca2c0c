import json
import math

import numpy as np
import pytest

from cuevo import reference
from cuevo.cli import demo, main

SMALL = ["--rows=2", "--length=24", "--heads=1", "--head-dim=16"]


@pytest.mark.kernel
def test_the_demo_agrees_with_float64(capsys):
    assert main(["demo", "--device=sim", *SMALL]) == 0
    printed = capsys.readouterr().out
    assert "2 rows, 24 residues, 1 heads, head dim 16" in printed
    assert "on the CPU executor (sim)" in printed
    assert "agrees with float64" in printed


@pytest.mark.kernel
def test_the_demo_for_scripts(capsys):
    assert main(["demo", "--device=sim:sm_90", *SMALL, "--seed=3", "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["device"] == "sim:sm_90"
    assert report["agrees"] is True
    # Rounding to bfloat16 alone is worth about 2e-3; an error of nothing would be suspicious.
    assert 5e-4 < report["relative_error"] < 6e-3
    assert captured.err == ""


@pytest.mark.unit
@pytest.mark.parametrize("factor", [1.02, math.nan])
def test_a_result_that_does_not_agree_is_exit_code_1(factor, capsys, monkeypatch):
    def compute(inputs, device, *, show_progress):
        arrays = (inputs.q, inputs.k, inputs.v, inputs.mask_bias, inputs.pair_bias)
        return reference.attention(*arrays)[0] * factor

    monkeypatch.setattr(demo, "compute", compute)
    assert main(["demo", "--device=sim", *SMALL]) == 1
    assert "DOES NOT AGREE with float64" in capsys.readouterr().out


@pytest.mark.unit
def test_the_comparison_is_by_norm_over_all_rows():
    inputs = demo.make_inputs(demo.Sizes(rows=3, length=8, heads=2, head_dim=8), seed=1)
    arrays = (inputs.q, inputs.k, inputs.v, inputs.mask_bias, inputs.pair_bias)
    expected, _ = reference.attention(*arrays)
    assert demo.compare(expected, inputs) == 0.0
    worse = expected.copy()
    worse[:, 2] *= 1.5
    wanted = np.linalg.norm(worse - expected) / np.linalg.norm(expected)
    assert demo.compare(worse, inputs) == pytest.approx(wanted)


@pytest.mark.unit
def test_inputs_are_repeatable_and_some_keys_are_masked():
    sizes = demo.Sizes(rows=16, length=64, heads=2, head_dim=8)
    first, again, other = (demo.make_inputs(sizes, seed) for seed in (0, 0, 1))
    assert np.array_equal(first.q, again.q)
    assert not np.array_equal(first.q, other.q)
    masked = np.isneginf(first.mask_bias.astype(np.float64)).mean()
    assert 0.05 < masked < 0.15


@pytest.mark.unit
def test_sizes_must_be_positive(capsys):
    assert main(["demo", "--device=sim", "--head-dim=0"]) == 2
    assert "--head-dim must be 1 or more, not 0." in capsys.readouterr().err


@pytest.mark.unit
def test_a_device_that_is_not_there_is_a_sentence(capsys):
    assert main(["demo", "--device=cuda:99", *SMALL]) == 1
    captured = capsys.readouterr()
    assert "cuda:99" in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.gpu
def test_the_demo_on_a_gpu_is_timed(capsys):
    assert main(["demo", "--device=cuda:0", "--rows=16", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["agrees"] is True
    assert 0.0 < report["milliseconds"] < report["seconds"] * 1e3
    assert report["teraflops"] > 0.0
