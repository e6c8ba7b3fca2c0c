"""examples/front_ends: each page runs from top to bottom, and what it prints is small."""

import re
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "front_ends"


def run(page: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr("sys.argv", [page, *words])
    runpy.run_path(str(FOLDER / page), run_name="__main__")


@pytest.mark.kernel
@pytest.mark.parametrize("page", ["torch_module.py", "jax_function.py"])
def test_a_module_of_a_framework(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if find_spec(page.partition("_")[0]) is None:
        pytest.skip("the framework is absent")
    run(page, monkeypatch)
    said = capsys.readouterr().out
    errors = re.findall(r"error (\S+), of gradients (\S+)\n", said)
    assert errors
    for result, gradients in errors:
        assert 0.0 < float(result) < 5e-3 and 0.0 < float(gradients) < 2e-2
    first, last = re.findall(r"loss (\S+), after \d+ steps (\S+)\n", said)[0]
    assert float(last) < 0.95 * float(first)


@pytest.mark.kernel
def test_numpy_arrays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("numpy_arrays.py", monkeypatch, "sim")
    errors = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(errors) > 10
    assert min(errors) > 0.0 and max(errors) < 1e-2


@pytest.mark.unit
def test_every_page_is_run() -> None:
    pages = {path.name for path in FOLDER.glob("*.py")}
    assert pages == {"torch_module.py", "jax_function.py", "numpy_arrays.py"}
