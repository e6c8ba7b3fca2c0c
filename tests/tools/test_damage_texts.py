"""tools/damage_texts.py: what it says of texts, and what it takes for wrong."""

import resource

import pytest
from sim.damages import Damaged

import damage_texts


@pytest.mark.kernel
def test_it_runs_texts(capsys: pytest.CaptureFixture[str]) -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    assert damage_texts.main(["--count", "3"]) == 0
    assert resource.getrlimit(resource.RLIMIT_AS) == limits
    assert capsys.readouterr().out == "3 texts, 0 of them wrong\n"


@pytest.mark.unit
def test_an_error_of_another_kind_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(text: str) -> None:
        raise IndexError(text)

    monkeypatch.setattr(damage_texts, "damaged", lambda rng: Damaged("a text", fails))
    assert damage_texts.main(["--first", "7", "--count", "1"]) == 1
    out = capsys.readouterr().out
    assert "--seed 0 --first 7 --count 1" in out and "IndexError: a text" in out
