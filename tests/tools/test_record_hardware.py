import json

import pytest

import record_hardware


@pytest.mark.unit
def test_the_list_has_what_has_the_pattern(capsys):
    assert record_hardware.main(["--list", "--only", r"^(fma|mma)\b.*f16\.f16", "--octaves"]) == 0
    names = capsys.readouterr().out.split("\n")
    assert "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" in names
    assert not any(name.startswith(("add", "wgmma", "ex2")) for name in names)


@pytest.mark.unit
def test_octaves_are_asked_for(capsys):
    record_hardware.main(["--list", "--only", "octave"])
    assert not capsys.readouterr().out.strip()
    record_hardware.main(["--list", "--only", "octave", "--octaves"])
    assert "ex2.approx.ftz.f32 octave 3f800000" in capsys.readouterr().out


@pytest.mark.kernel
def test_a_recording_of_the_executor_agrees_with_it(tmp_path, capsys):
    words = ["--sim", "sm_90", "--out", str(tmp_path), "--only", r"^(fma\.r|lop3|tanh)"]
    assert record_hardware.main(words) == 0
    said = capsys.readouterr().out
    assert "0 instructions differ from the executor" in said
    header = json.loads((tmp_path / "sim-sm_90.json").read_text())
    assert header["architecture"] == "sm_90" and header["forms"] > 60
    assert f"of {header['forms']} forms replayed exactly" in said
    # Digests, and the results of tanh in full.
    assert (tmp_path / "sim-sm_90.npz").stat().st_size < 150_000


@pytest.mark.unit
def test_files_are_named_by_the_device():
    assert record_hardware.stem("NVIDIA H200") == "h200"
    assert record_hardware.stem("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb"


@pytest.mark.unit
def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(record_hardware, "devices", lambda: ())
    monkeypatch.setattr(record_hardware, "why_none", lambda: "no driver")
    with pytest.raises(SystemExit, match="no driver"):
        record_hardware.main([])
