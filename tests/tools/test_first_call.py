import pytest

import first_call


@pytest.mark.kernel
@pytest.mark.parametrize("options", [(), ("--empty-cache",), ("--empty-cache", "--installed")])
def test_new_processes_are_measured(capsys, options):
    assert first_call.main(["--device", "cpu", "--processes", "1", *options]) == 0
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


@pytest.mark.kernel
def test_an_empty_cache_has_nothing_of_kernels(tmp_path):
    found = first_call.measure_anew("cpu", (), str(tmp_path))
    assert "jinja2" in found["new"]
    assert "jinja2" not in first_call.measure_anew("cpu", (), str(tmp_path))["new"]
    assert "jinja2" in first_call.measure_with_empty_cache("cpu", ())["new"]


@pytest.mark.unit
def test_a_process_that_fails_is_told(capsys, monkeypatch):
    monkeypatch.setattr(first_call.sys, "executable", "/bin/false")
    assert first_call.main(["--device", "cpu"]) == 1
    assert capsys.readouterr().out == ""
