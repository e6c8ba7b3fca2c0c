import pytest

import first_call


@pytest.mark.kernel
def test_new_processes_are_measured(capsys):
    assert first_call.main(["--device", "cpu", "--processes", "1"]) == 0
    medians = {}
    for line in capsys.readouterr().out.splitlines():
        name, *spans = (word.strip() for word in line.strip("|").split("|"))
        if name in first_call.ROWS:
            medians[name] = float(spans[0])
    assert [*medians] == [*first_call.ROWS]
    assert min(medians.values()) >= 0


@pytest.mark.kernel
def test_a_call_imports_nothing_of_what_it_imported_before():
    modules = first_call.measure_anew("cpu", ())["new"]
    assert {"cuevo.ops.forward", "cuevo.sim.run.executor"} <= {*modules}
    again = first_call.measure_anew("cpu", modules)
    assert [name for name in again["new"] if name in modules or name.startswith("cuevo.")] == []


@pytest.mark.unit
def test_a_process_that_fails_is_told(capsys, monkeypatch):
    monkeypatch.setattr(first_call.sys, "executable", "/bin/false")
    assert first_call.main(["--device", "cpu"]) == 1
    assert capsys.readouterr().out == ""
