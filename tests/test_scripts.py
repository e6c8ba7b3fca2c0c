"""The scripts of tools/ and examples/: each has a help page."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for folder in ("tools", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
}


@pytest.mark.unit
@pytest.mark.parametrize("script", SCRIPTS)
def test_help(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [script, "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert not stopped.value.code
    assert capsys.readouterr().out.startswith(f"usage: {Path(script).name} [-h]")


@pytest.mark.unit
def test_scripts_are_found() -> None:
    assert {"tools/bench.py", "examples/row_softmax/run.py"} <= SCRIPTS.keys()
