import pytest

import first_call


@pytest.mark.kernel
def test_new_processes_are_measured(capsys):
    assert first_call.main(["--device", "cpu", "--processes", "1"]) == 0
    printed = capsys.readouterr().out
    medians = {}
    for line in printed.splitlines():
        name, *spans = (word.strip() for word in line.strip("|").split("|"))
        if name in first_call.ROWS:
            medians[first_call.ROWS[name]] = float(spans[0])
    assert [*medians] == [*first_call.ROWS.values()]
    assert medians["imported"] < medians["modules"]
    assert medians["second"] < medians["first"]


@pytest.mark.unit
def test_a_process_that_fails_is_told(capsys, monkeypatch):
    monkeypatch.setattr(first_call.sys, "executable", "/bin/false")
    assert first_call.main(["--device", "cpu"]) == 1
    assert capsys.readouterr().out == ""
