"""cuevo tune: its command line; the search itself is in tests/tuning."""

from collections import Counter
from pathlib import Path

import pytest

from bench_gemm import SIZES
from cuevo.cli import main
from cuevo.cli.tune import read_workload
from cuevo.cuda.device_info import devices
from cuevo.ops.tuning import tuned
from workloads import BACKWARD, FORWARD

ROOT = Path(__file__).parents[2]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give an operation and --problem, or --workload, or --recorded"),
        (["gemm"], "give an operation and --problem"),
        (["gemm", "--problem", "8,8,8", "--workload", "x"], "give an operation and --problem"),
        (["gemm", "--problem", "8,8"], "a problem of gemm is M,N,K"),
        (["gemm", "--problem", "8,8,8", "--seconds", "0"], "are positive"),
        (["--workload", "FILE"], "FILE:2: a problem of gemm|FILE:2: --problem: a problem of gemm"),
        (["--recorded", "EMPTY"], "no call in the file"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("gemm 8,8,8\ngemm 8,8\n", encoding="utf-8")
    Path("EMPTY").touch()
    assert main(["tune", *words]) == 2
    printed = capsys.readouterr().err
    assert any(each in printed for each in message.split("|"))


def problems(name: str) -> list[str]:
    """The calls of a workload file of tools/."""
    return [call.describe() for call in read_workload(ROOT / "tools" / name)]


@pytest.mark.unit
def test_the_workload_files_have_what_the_benchmarks_list_and_what_not() -> None:
    listed, unlisted = problems("listed_problems.txt"), problems("unlisted_problems.txt")
    biases = "bf16, mask bf16, pair bf16"
    assert listed == [
        *(f"attention 1,{workload} {biases}" for workload in FORWARD),
        *(f"attention_backward 1,{workload} {biases}" for workload in BACKWARD),
        *(f"gemm {m},{n},{k} bf16" for m, n, k in SIZES),
    ]
    assert len(set(unlisted)) == 40 and not set(unlisted) & set(listed)
    kinds = Counter(each.partition(" ")[0] for each in unlisted)
    assert kinds == {"attention": 16, "attention_backward": 12, "gemm": 12}


@pytest.mark.unit
@pytest.mark.skipif(bool(devices()), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "gemm", "--problem", "8,8,8"]) == 1
    assert "there is no device cuda:0" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.whole_device
def test_a_call_is_tuned_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUEVO_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(tuned.ENVIRONMENT)
    for words in (["gemm", "--problem", "1000,72,300"], ["attention", "--problem", "1,4,2,65,40"]):
        assert main(["tune", *words, "--seconds", "1"]) == 0
        assert "written to" in capsys.readouterr().out
        assert main(["tune", *words, "--compare"]) == 0
        assert "in geometric mean" in capsys.readouterr().out
    assert (tmp_path / "tuned.json").exists()
