"""tools/train_block.py: a few steps of a small problem, in each framework."""

import json
from pathlib import Path

import numpy as np
import pytest

import train_block


@pytest.mark.kernel
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_few_steps(framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip(framework)
    path = tmp_path / "run.json"
    command = ["--framework", framework, "--steps", "6", "--rows", "2", "--residues", "8"]
    assert train_block.main([*command, "--json", str(path)]) == 0
    assert "plain float32" in capsys.readouterr().out
    record = json.loads(path.read_text(encoding="utf-8"))
    losses = [np.array(curve) for curve in record["losses"].values()]
    assert [len(curve) for curve in losses] == [6, 6]
    np.testing.assert_allclose(losses[0], losses[1], rtol=0.02)
    assert (losses[0] != losses[1]).any()


@pytest.mark.unit
def test_both_runs_begin_alike() -> None:
    sizes = train_block.Sizes(rows=2, residues=8)
    first, again = (train_block.make_task(sizes, 3, 1) for _ in range(2))
    assert all((x == again[name]).all() for name, x in first.items())
    assert all(x.dtype == np.float32 for x in first.values())


@pytest.mark.unit
def test_a_curve_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    train_block.draw(tmp_path / "run.png", "title", {"one": [2.0, 1.0], "other": [2.0, 1.5]})
    assert (tmp_path / "run.png").stat().st_size > 1000
