import json
import re

import pytest

from cuevo.check import Finding, Report
from cuevo.cli import main

pytestmark = pytest.mark.kernel

SETTINGS = ["--set", "block_m=64", "--set", "warp_m=32", "--set", "exact=true"]


def test_a_kernel_without_findings(capsys):
    assert main(["check", "gemm_sm80", *SETTINGS, "--lines", "1"]) == 0
    printed = capsys.readouterr().out
    assert "nothing was found\nd: relative error 1." in printed
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in printed
    assert "ptx/lib/" in printed
    assert "main loop, ptx/gemm_sm80.ptx:" in printed


def test_json_has_everything(capsys):
    assert main(["check", "gemm_sm80", *SETTINGS, "--arch", "90", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["arch"], report["ok"], report["findings"]) == ("sm_90", True, [])
    assert 0 < report["errors"]["d"] < 1e-2
    assert sum(report["instructions"].values()) == sum(report["lines"].values()) > 0
    assert {use["opcode"].split(".")[0] for use in report["banks"]} >= {"ldmatrix", "cp"}
    assert any(name.startswith("mma.sync") for name in report["main_loop"]["instructions"])
    assert all(use["sectors"] >= use["ideal"] > 0 for use in report["sectors"])


def test_a_kernel_of_one_architecture(capsys):
    settings = ["--set", "block_n=64", "--set", "stages=3"]
    assert main(["check", "gemm_sm90a", *settings, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["arch"], report["ok"]) == ("sm_90a", True)
    assert 0 < report["errors"]["d"] < 1e-2
    ran = {opcode.partition(".")[0] for opcode in report["instructions"]}
    assert {"wgmma", "mbarrier", "cp"} <= ran


def test_findings_are_printed_and_fail(capsys, monkeypatch):
    findings = (
        Finding("error", "ptx/gemm_sm80.ptx:7", "data race"),
        Finding("error", "", "d differs"),
        Finding("warning", "ptx/lib/gemm.ptx:9", "bank conflicts"),
    )
    report = Report("gemm_sm80(...)", "sm_80", findings, {}, None)
    monkeypatch.setattr("cuevo.check.check_by_problem", lambda *arguments: [report])
    assert main(["check", "gemm_sm80"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "gemm_sm80(...) as sm_80 runs it",
        "error: ptx/gemm_sm80.ptx:7: data race",
        "error: d differs",
        "warning: ptx/lib/gemm.ptx:9: bank conflicts",
    ]
    assert main(["check", "gemm_sm80", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][1]["message"] == "d differs"


def test_a_kernel_that_takes_too_long(capsys):
    assert main(["check", "gemm_sm80", *SETTINGS, "--most-instructions", "300"]) == 1
    printed = capsys.readouterr().out
    assert "the kernel does not end in 300 instructions (of the warps " in printed
    assert " run at ptx/gemm_sm80.ptx:" in printed
    assert main(["check", "gemm_sm80", *SETTINGS, "--most-seconds", "1e-9", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert "does not end in 1e-09 seconds" in found["message"]


def test_a_place_of_four_numbers(capsys):
    with pytest.raises(SystemExit):
        main(["check", "gemm_sm80", "--thread", "1,2,3,4"])
    assert "'1,2,3,4' is no place; write X, X,Y or X,Y,Z" in capsys.readouterr().err


def test_a_trace(capsys):
    wanted = ["--trace", "gemm_sm80.ptx:52", "--watch", "a[3,8]", "--watch", "mma_more"]
    assert main(["check", "gemm_sm80", *SETTINGS, *wanted, "--lines", "0", "--thread", "1,0"]) == 0
    printed = capsys.readouterr()
    assert "nothing was found" in printed.out
    told = printed.err.splitlines()
    assert re.fullmatch(r"ptx/gemm_sm80.ptx:52: mov.u32 stages, smem;  stages = 0x\w+ .*", told[0])
    reads = r"ptx/lib/copy_async.ptx:\d+: .* reads 16 bytes at a\[3, 8\] of shape .* lane 13\].*"
    assert any(re.fullmatch(reads, line) for line in told)
    assert any(line.endswith("  mma_more = true") for line in told)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["gem"], 2, "there is no kernel 'gem'"),
        (["gemm_sm80", "--set", "stage=3"], 2, "stage"),
        (["gemm_sm80", "--set", "stages=9"], 1, "cannot run on sm_80"),
        (["gemm_sm80", "--arch", "sm_75"], 1, "this is sm_75"),
        (["gemm_sm90a", "--arch", "90"], 1, "wgmma needs sm_90a; this is sm_90"),
        (["gemm_sm80", "--trace", "x"], 1, "a line to trace is file:line"),
        (["gemm_sm80", "--most-seconds", "0"], 1, "a budget of 0.0 seconds; it must be positive"),
    ],
)
def test_what_cannot_be_checked(words, code, said, capsys):
    assert main(["check", *words]) == code
    assert said in capsys.readouterr().err
