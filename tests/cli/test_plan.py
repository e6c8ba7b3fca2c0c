"""cuevo plan: the launches that it tells of are those of a call."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuevo
from cuevo.check import Report
from cuevo.cli import main
from cuevo.kernels import registry
from cuevo.sim import SimExecutor
from cuevo.toolchain.assembler import assemble
from cuevo.toolchain.template import render

SMALL = ["--problem", "1,3,2,40,16", "--dtype", "f16"]
BACKWARD = [*SMALL, "--pair", "f32", "--arch", "sm_80"]


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
        "pair_tiles_sm90",
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
@pytest.mark.parametrize("command", ["plan", "assemble", "check", "inspect", "render", "roofline"])
@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ("nothing=1", 2, "there is no parameter 'nothing'. Known: a_access, "),
        ("stages=x", 2, "stages takes an integer, not 'x'"),
        # Fields of which no kernel has both.
        ("warp_n=32 --set blocks=4", 1, "config: gemm_sm80 has no field 'blocks'; it has a_access"),
        ("dtype=f16", 1, "config: dtype is the problem's, bf16; got f16"),
    ],
)
def test_settings_that_a_problem_cannot_take(
    command: str, setting: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [command, "gemm", "--problem", "64,64,64", "--arch", "80", "--set", *setting.split()]
    assert main(given) == code
    assert words in capsys.readouterr().err


@pytest.mark.unit
def test_names_of_kernels_are_whole(capsys: pytest.CaptureFixture[str]) -> None:
    problem = ["--problem", "1,128,8,256,32", "--pair", "f32", "--mask", "own"]
    assert main(["plan", "attention_backward", *problem]) == 0
    rows = [x for x in capsys.readouterr().out.splitlines() if x.startswith("| ")]
    names = [row.split("|")[1].strip() for row in rows]
    assert names.count("evoformer_backward_sm90a") == 2
    assert {*names} <= {"kernel", "", *registry()}


@pytest.mark.unit
def test_a_device_that_nothing_was_tuned_on(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("nonsense", "NVIDIA H200"):
        assert main(["plan", "gemm", "--problem", "64,64,64", "--device", name, "--json"]) == 0
        told = capsys.readouterr()
        json.loads(told.out)
        is_said = "no tuned table has entries of 'nonsense'; it has of: " in told.err
        assert is_said == (name == "nonsense") and (is_said or not told.err)


@pytest.mark.unit
def test_candidates_that_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["attention", "--problem", "1,8,2,64,128", "--pair", "f32", "--arch", "sm_86"]
    report = planned(capsys, *words, "--rejected")
    assert "candidates" not in planned(capsys, *words)
    by_kernel = {each["kernel"]: each for each in report["candidates"]}
    hopper, ampere = by_kernel["evoformer_forward_sm90a"], by_kernel["evoformer_forward_sm80"]
    assert hopper["able"] == 0
    assert len(hopper["rejected"]["wgmma needs sm_90a; this is sm_86"]) == hopper["of"] > 0
    rejected = [config for configs in ampere["rejected"].values() for config in configs]
    assert all(" bytes of shared memory; a block of sm_86 has " in x for x in ampere["rejected"])
    assert 0 < ampere["able"] == ampere["of"] - len(rejected) < ampere["of"]
    chosen = report["launches"][0]["config"]
    assert all({**chosen, **config} != chosen for config in rejected)
    assert main(["plan", *words, "--rejected"]) == 0
    printed = capsys.readouterr().out
    assert f"evoformer_forward_sm80: {ampere['able']} of {ampere['of']} can run\n" in printed
    for reason, configs in ampere["rejected"].items():
        first = " ".join(f"{name}={value}" for name, value in configs[0].items())
        assert f"  {len(configs)} cannot: {reason}\n    {first}\n" in printed
    backward = planned(capsys, "attention_backward", *BACKWARD, "--rejected")["candidates"]
    assert {each["side"] for each in backward} == {"keys", "queries"}


def configured(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, Any]]:
    """Kernels and configurations of the launches of a call, each instance once."""
    report = planned(capsys, "attention_backward", *BACKWARD)
    found = []
    for launch in report["launches"]:
        config = registry()[launch["kernel"]].Config(**launch["config"])
        if (launch["kernel"], config) not in found:
            found.append((launch["kernel"], config))
    return found


@pytest.mark.unit
def test_the_kernels_of_a_problem_are_assembled_and_rendered(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wanted = configured(capsys)
    texts = [render(name, registry()[name].values(config)) for name, config in wanted]
    sides = [text for text in texts if text.name == "evoformer_backward_sm80"]
    assert len(texts) > len(sides) == 2
    assert main(["assemble", "attention_backward", *BACKWARD, "--json"]) == 0
    reports = json.loads(capsys.readouterr().out)
    assert [x["kernel"] for x in reports] == [text.describe() for text in texts]
    threads = [(x["threads"], x["dynamic_shared"]) for x in reports]
    assert threads == [(config.threads, config.shared_bytes) for _, config in wanted]
    named = ["evoformer_backward_sm80", *BACKWARD]
    assert main(["assemble", *named]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [x for x in printed if not x.startswith("|")] == [x.describe() for x in sides]
    assert main(["render", *named, "--launch", "2"]) == 0
    assert capsys.readouterr() == (sides[1].text, f"{sides[1].describe()}\n")
    output = ["--launch", "1", "--output", str(tmp_path / "cubin")]
    assert main(["assemble", *named, *output]) == 0
    assert (tmp_path / "cubin").read_bytes() == assemble(sides[0], "sm_80").code


@pytest.mark.kernel
def test_the_kernels_of_a_problem_are_checked_and_the_call_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = configured(capsys)
    checked = []

    def check(module: Any, config: Any, arch: str, *_: Any) -> list[Report]:
        checked.append((module.NAME, config))
        return [Report(module.NAME, arch, (), {}, None)]

    monkeypatch.setattr("cuevo.check.check_by_problem", check)
    assert main(["check", "attention_backward", *BACKWARD, "--json"]) == 0
    *of_kernels, of_call = json.loads(capsys.readouterr().out)
    assert [x["kernel"] for x in of_kernels] == [x for x, _ in wanted]
    assert checked == wanted
    assert (of_call["kernel"], of_call["ok"]) == ("attention_backward itself", True)
    assert all(0 < of_call["errors"][name] < 2e-3 for name in ("dq", "dk", "dv", "dpair_bias"))
    assert main(["check", "gemm", "--problem", "8192,8192,8192"]) == 0
    told = capsys.readouterr()
    assert told.out == "gemm_sm90a as sm_90a runs it\nnothing was found\n"
    assert "gemm itself was not run: 8192,8192,8192 takes about 14 minutes" in told.err


@pytest.mark.unit
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("render gemm", "gemm is an operation: give --problem M,N,K or BATCH,M,N,K."),
        ("render gem --problem 8,8,8", "there is no operation or kernel 'gem'. Did you mean gemm?"),
        ("render gemm_sm80 --pair f32", "--pair is for a problem: give --problem."),
        ("render gemm_sm75 --problem 8,8,64", "that problem launches gemm_sm80 on sm_90."),
        ("render gemm_sm80 --problem 1,2,3,40,16", "a problem of gemm is M,N,K or BATCH,M,N,K"),
        ("render pack_sm70 --problem 8,8", "a problem of attention is B,N,H,L,D or"),
        ("assemble gemm --problem 0,8,64", "gemm: that problem launches nothing on sm_90."),
        ("render gemm --problem 8,8,64 --launch 2", "--launch: there are 1 to choose from; got 2."),
        ("check examples/x.ptx --problem 8,8,64", "--problem is for cuevo's operations"),
        (
            "render attention_backward --problem 1,3,2,40,16",
            "give --launch N.\n  1: attention_delta",
        ),
    ],
)
def test_what_is_no_kernel_of_a_problem(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert message in capsys.readouterr().err


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
