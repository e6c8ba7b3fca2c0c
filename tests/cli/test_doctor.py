import json
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from cuevo.cli import doctor, main
from cuevo.cuda.device_info import DeviceInfo
from cuevo.errors import DeviceUnavailable

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]


def examine():
    return {check.subject: check for check in doctor.examine()}


def test_this_machine_lacks_nothing_that_the_tests_need(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("CUEVO_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is True
    found = {check["subject"]: check for check in report["checks"]}
    assert found["Python"]["state"] == "ok"
    assert found["numpy"]["found"].count(".") >= 1
    assert str(tmp_path / "cache") in found["cache"]["found"]


def test_the_table_names_every_check(capsys):
    main(["doctor"])
    printed = capsys.readouterr().out
    for subject in examine():
        assert subject in printed


def test_the_packages_looked_for_are_those_that_are_required():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {text.split(">")[0] for text in project["dependencies"]}
    # cuda-python stands for its parts; nvJitLink has a check of its own.
    assert required - {"cuda-python", "nvidia-nvjitlink"} <= set(doctor.PACKAGES)
    assert set(doctor.PACKAGES) - required == {"cuda-bindings", "cuda-pathfinder"}
    extras = {
        text.split(">")[0] for each in project["optional-dependencies"].values() for text in each
    }
    assert set(doctor.OPTIONAL) <= extras


def test_a_part_that_is_not_installed_is_a_note(monkeypatch):
    def version(name):
        if name in doctor.OPTIONAL:
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("importlib.metadata.version", version)
    found = examine()
    for name, gives in doctor.OPTIONAL.items():
        assert (found[name].state, found[name].found) == ("note", "not installed")
        assert found[name].advice == f"pip install {name}   # {gives}"


def test_the_oldest_python_is_the_one_that_the_package_requires():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=" + ".".join(map(str, doctor.OLDEST_PYTHON))
    assert doctor.check_python((3, 10)).state == "missing"
    assert doctor.check_python(doctor.OLDEST_PYTHON).state == "ok"


def test_a_package_that_is_not_installed_is_missing_and_fails(capsys, monkeypatch):
    def version(name):
        if name == "ml_dtypes":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("importlib.metadata.version", version)
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "pip install ml_dtypes" in printed
    assert "Missing: ml_dtypes." in printed


def test_without_nvjitlink_only_the_driver_assembles(monkeypatch):
    def version():
        raise RuntimeError("libnvJitLink.so.13 not found\nin any of 7 places")

    monkeypatch.setattr("cuda.bindings.nvjitlink.version", version)
    (check,) = doctor.check_assembler()
    assert (check.state, check.found) == ("note", "libnvJitLink.so.13 not found")
    assert "nvidia-nvjitlink" in check.advice


H200 = DeviceInfo(0, "NVIDIA H200", "sm_90", 132, 232448, 60 * 2**20, 139 * 2**30, "13.0")


def test_without_a_device_the_cpu_executor_is_what_there_is(monkeypatch):
    monkeypatch.setattr("cuevo.cuda.devices", lambda: ())
    monkeypatch.setattr("cuevo.cuda.why_none", lambda: "looked for a GPU, found no driver")
    (check,) = doctor.check_devices()
    assert (check.state, check.found) == ("note", "none")
    assert check.advice == "looked for a GPU, found no driver. Kernels run on the CPU executor."


def test_a_device_is_described(monkeypatch):
    monkeypatch.setattr("cuevo.cuda.devices", lambda: (H200,))
    monkeypatch.setattr("cuevo.cuda.require_device", lambda ordinal: H200)
    (check,) = doctor.check_devices()
    assert (check.subject, check.state) == ("GPU 0", "ok")
    assert check.found == "NVIDIA H200, sm_90, 132 SMs, 139 GiB, driver of CUDA 13.0"


def test_a_device_that_is_too_old_is_a_note(monkeypatch):
    def refuse(ordinal):
        raise DeviceUnavailable(f"cuda:{ordinal} is too old")

    monkeypatch.setattr("cuevo.cuda.devices", lambda: (H200,))
    monkeypatch.setattr("cuevo.cuda.require_device", refuse)
    (check,) = doctor.check_devices()
    assert (check.state, check.advice) == ("note", "cuda:0 is too old")


def test_a_cache_that_cannot_be_written_is_a_note(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUEVO_CACHE_DIR", str(tmp_path / "file" / "cache"))
    (check,) = doctor.check_cache()
    assert check.state == "note"
    assert "CUEVO_CACHE_DIR" in check.advice


def test_the_cache_is_measured(monkeypatch, tmp_path):
    monkeypatch.setenv("CUEVO_CACHE_DIR", str(tmp_path))
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "entry.bin").write_bytes(bytes(3 * 1024))
    (check,) = doctor.check_cache()
    assert check.state == "ok"
    assert check.found == f"{tmp_path}: 1 entries, 3 KiB"


def test_without_a_c_compiler_a_test_is_skipped(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    (check,) = doctor.check_c_compiler()
    assert check.state == "note"


def test_a_broken_install_is_missing_not_a_traceback(monkeypatch):
    def broken():
        raise OSError("the kernel files are gone")
        yield

    monkeypatch.setitem(doctor._PROBES, "kernel files", broken)
    check = examine()["kernel files"]
    assert (check.state, check.found) == ("missing", "the kernel files are gone")
