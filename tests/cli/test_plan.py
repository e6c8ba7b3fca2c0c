"""cuevo plan: the launches that it tells of are those of a call."""

import json
from typing import Any

import numpy as np
import pytest

import cuevo
from cuevo.cli import main
from cuevo.kernels import registry
from cuevo.sim import SimExecutor
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.template import render

SMALL = ["--problem", "1,3,2,40,16", "--dtype", "f16"]


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", *words, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def launched(call: Any, monkeypatch: pytest.MonkeyPatch, arch: str) -> list[tuple[str, int, int]]:
    """Kernel, threadblocks and shared memory of each launch of a call."""
    found = []
    place = SimExecutor(arch)
    load = SimExecutor.load

    def recorded(executor: SimExecutor, kernel: Any) -> Any:
        loaded = load(executor, kernel)
        launch = loaded.launch

        def note(grid: Any, block: Any, shared: int, *rest: Any, **more: Any) -> None:
            found.append((kernel.name, grid[0] * grid[1] * grid[2], shared))
            launch(grid, block, shared, *rest, **more)

        monkeypatch.setattr(loaded, "launch", note)
        return loaded

    with monkeypatch.context() as patched:
        patched.setattr(SimExecutor, "load", recorded)
        call(place)
    return found


@pytest.mark.kernel
@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
def test_the_launches_of_a_plan_are_those_of_a_call(
    arch: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    q = np.ones((1, 3, 40, 2, 16), np.float16)
    pair = np.ones((1, 1, 2, 40, 40), np.float32)
    lse = np.ones((1, 3, 2, 40), np.float32)

    def forward(place: Any) -> None:
        cuevo.attention(q, q, q, pair_bias=pair, device=place)

    def backward(place: Any) -> None:
        cuevo.attention_backward(q, q, q, q, q, lse, pair_bias=pair, device=place)

    for operation, call in (("attention", forward), ("attention_backward", backward)):
        report = planned(capsys, operation, *SMALL, "--pair", "f32", "--arch", arch)
        told = [(x["kernel"], x["blocks"], x["dynamic_shared"]) for x in report["launches"]]
        assert told == launched(call, monkeypatch, arch)


@pytest.mark.unit
def test_resources_are_the_assembler_s(capsys: pytest.CaptureFixture[str]) -> None:
    report = planned(capsys, "attention", *SMALL, "--arch", "sm_80")
    (launch,) = report["launches"]
    module = registry()[launch["kernel"]]
    config = module.Config(**launch["config"])
    resources = assemble(render(module.NAME, module.values(config)), "sm_80").resources
    assert (launch["registers"], launch["spill_bytes"]) == (resources.registers, 0)
    assert (launch["threads"], launch["dynamic_shared"]) == (config.threads, config.shared_bytes)
    assert launch["resident_blocks"] >= config.min_blocks
    assert report["workspace_bytes"] == 0


@pytest.mark.unit
@pytest.mark.parametrize(
    ("arch", "sizes", "kernel", "above"),
    [
        ("sm_70", "64,64,64", "gemm_sm70", {"gemm_sm90a", "gemm_sm80", "gemm_sm75"}),
        ("sm_75", "64,64,64", "gemm_sm75", {"gemm_sm90a", "gemm_sm80"}),
        ("sm_89", "64,64,64", "gemm_sm80", {"gemm_sm90a"}),
        ("sm_90", "64,64,4096", "gemm_sm80", {"gemm_sm90a"}),
        ("sm_90", "8192,8192,8192", "gemm_sm90a", set()),
    ],
)
def test_the_variant_and_why_no_other(
    arch: str, sizes: str, kernel: str, above: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("gemm", "--problem", sizes, "--dtype", "f16", "--arch", arch)
    report = planned(capsys, *words)
    assert [each["kernel"] for each in report["launches"]] == [kernel]
    assert set(report["passed_over"]) == above
    reasons = report["passed_over"].get("gemm_sm90a", [""])
    if arch == "sm_90" and above:
        assert reasons == ["a lower variant is estimated to be faster"]
    elif above:
        assert reasons == ["needs sm_90"]
    assert main(["plan", *words]) == 0
    printed = capsys.readouterr().out
    assert f"\n{kernel}: block_m=" in printed
    assert all(f"\nnot {name}: " in printed for name in above)


@pytest.mark.unit
def test_a_call_on_hopper_has_its_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    large = ("--problem", "1,512,8,512,32", "--pair", "own")
    report = planned(capsys, "attention", *large)
    assert [x["kernel"] for x in report["launches"]] == [
        "pair_tiles_sm70",
        "evoformer_forward_sm90a",
    ]
    assert report["workspace_bytes"] > 0
    assert report["passed_over"] == {}


@pytest.mark.unit
def test_settings_differ_from_what_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["attention", *SMALL, "--arch", "80"]
    (chosen,) = planned(capsys, *words)["launches"]
    assert chosen["config"]["block_keys"] != 64
    (launch,) = planned(capsys, *words, "--set", "block_keys=64")["launches"]
    assert launch["config"]["block_keys"] == 64
    assert main(["plan", *words, "--set", "block_queries=63"]) == 1
    assert "cannot run: " in capsys.readouterr().err


@pytest.mark.unit
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("attention --problem 1,2,3", "a problem of attention is B,N,H,L,D or B,N,H,Lq,Lk,D"),
        ("gemm --problem 1,2", "a problem of gemm is M,N,K or BATCH,M,N,K, not '1,2'"),
        ("gemm --problem 8,8,x", "a problem of gemm is"),
        ("gemm --problem 8,8,8 --pair own", "--mask and --pair are of attention"),
    ],
)
def test_what_is_no_problem(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.unit
def test_an_illegal_and_an_empty_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "attention", "--problem", "1,2,3,40,12"]) == 1
    assert "multiple of 8 from 8 to 128; got 12" in capsys.readouterr().err
    assert main(["plan", "attention", "--problem", "1,0,3,40,16"]) == 0
    assert "nothing is launched" in capsys.readouterr().out
