"""cuevo roofline: what is printed and drawn; the model is in tests/ops/roofline."""

import json
from pathlib import Path

import pytest

from cuevo.cli import main
from cuevo.ops.roofline import plot, units

CALL = ["gemm", "--problem", "64,64,512", "--dtype", "f16", "--arch", "sm_80"]


@pytest.mark.kernel
def test_a_call_is_predicted_as_plan_predicts_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roofline", *CALL, "--json"]) == 0
    (call,) = json.loads(capsys.readouterr().out)["calls"]
    (kernel,) = call["kernels"]
    assert kernel["kernel"] == "gemm_sm80" and kernel["counted"] == "multiply-adds"
    assert max(kernel["shares"].values()) == kernel["shares"][kernel["bound_by"]] <= 1.0
    assert kernel["roof"] == pytest.approx(kernel["rate"] / kernel["shares"][kernel["bound_by"]])
    assert call["measured_ms"] is None and call["predicted_ms"] > kernel["milliseconds"]
    assert main(["roofline", *CALL]) == 0
    printed = capsys.readouterr().out
    predicted = f"predicted time: {call['predicted_ms']:.4g} ms\n"
    assert printed.endswith(predicted) and f"| gemm_sm80 | {kernel['bound_by']}" in printed
    assert main(["plan", *CALL, "--predict"]) == 0
    assert f"\n{predicted}" in capsys.readouterr().out


@pytest.mark.unit
def test_kernels_are_drawn_under_their_roofs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shares = dict(zip(units.PIPES, (0.5, 0.2, 0.7, 0.0, 0.1, 0.1), strict=True))
    kernel = {"kernel": "a_kernel", "bound_by": "xu", "rate": 7.0, "roof": 10.0, "shares": shares}
    calls = [
        {"call": "one", "kernels": [{**kernel, "counted": "scores"}], "measured_ms": 1.1,
         "predicted_ms": 1.0},
        {"call": "two", "kernels": [{**kernel, "counted": "multiply-adds"}], "measured_ms": None,
         "predicted_ms": 1.0},
    ]  # fmt: skip
    plot.plot_roofs(calls, "sm_90", tmp_path / "roofs.svg")
    drawn = (tmp_path / "roofs.svg").read_text(encoding="utf-8")
    for text in ("a_kernel", "one", "two", "scores a clock of a multiprocessor", "measured", "xu"):
        assert f">{text}" in drawn
    with pytest.raises(ValueError, match=r"ends with \.svg or \.png"):
        plot.plot_roofs(calls, "sm_90", tmp_path / "roofs.pdf")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give an operation and --problem, or --workload"),
        (["gemm"], "give --problem"),
        (["--workload", "x", "--set", "stages=2"], "--set is for one problem"),
        ([*CALL, "--plot", "x.pdf"], "--plot takes .svg or .png"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["roofline", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.unit
def test_an_architecture_without_rates_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roofline", *CALL[:-1], "sm_100"]) == 1
    assert "the rates of sm_100a are not known" in capsys.readouterr().err
