"""tools/compare_operands.py: what it prints of statements that are told apart otherwise."""

import pytest
from sim.instructions.mutants import Mutant

import compare_operands
from cuevo.sim.instructions.table import forms

pytestmark = pytest.mark.unit


def test_differences_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mutant = Mutant(forms()[0], "add.u32", "add.u32 r1, r2, 1.0;")
    monkeypatch.setattr(compare_operands.shutil, "which", lambda name: name)
    monkeypatch.setattr(compare_operands, "disagreements", lambda found: [(mutant, "", "no")])
    assert compare_operands.main(["--count", "2"]) == 1
    out = capsys.readouterr().out
    assert "add.u32 r1, r2, 1.0;\n    ptxas:    takes it\n    executor: no\n" in out
    assert out.endswith("1 differ\n")


def test_without_an_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_operands.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit):
        compare_operands.main([])
