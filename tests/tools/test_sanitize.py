import sys
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import sanitize
from block_kernels import SUITES, Suite, WatchedSim
from cuevo.architectures import architecture
from cuevo.kernels import evoformer_backward_sm80 as backward


def on_cpu(launched):
    return WatchedSim("sm_80", launched)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("words", "tools", "parts"),
    [
        ([], sanitize.TOOLS, sanitize.PARTS),
        (["racecheck"], ["racecheck"], sanitize.PARTS),
        (["blocks"], sanitize.TOOLS, SUITES),
        (["gemm", "synccheck", "memcheck"], ["memcheck", "synccheck"], ["gemm"]),
        (["gemm", "backward", "racecheck"], ["racecheck"], ["backward", "gemm"]),
        (["blocks", "attention"], sanitize.TOOLS, ["attention", *SUITES]),
        (["warp_load", "memcheck"], ["memcheck"], ["warp_load"]),
    ],
)
def test_words_are_tools_and_parts(words, tools, parts):
    found = sanitize.sorted_words(words, sanitize.build_parser())
    assert found == (list(tools), list(parts))


@pytest.mark.unit
@pytest.mark.parametrize("words", [["memchek"], ["blocks", "--every", "0"]])
def test_what_makes_no_sense_is_refused(words):
    with pytest.raises(SystemExit) as stopped:
        sanitize.main(words)
    assert stopped.value.code == 2


@pytest.mark.unit
def test_a_sample_or_every_so_many():
    suite = SUITES["accumulator_rows"]
    ((_, sample),) = sanitize.chosen(["gemm", "accumulator_rows"], None)
    ((_, tenth),) = sanitize.chosen(["accumulator_rows"], 10)
    assert list(sample) == suite.sample()
    assert tenth == suite.cases()[::10]


@pytest.mark.kernel
def test_a_block_is_run_and_its_launches_are_counted(capsys):
    suite = SUITES["accumulator"]
    assert not sanitize.run_suite(suite, suite.cases()[:4], on_cpu)
    assert capsys.readouterr().out == "ok  accumulator: 4 cases, 4 launches\n"


TYPES = {name: np.dtype(name) for name in ("float16", "float32", "bool")}
TYPES["bfloat16"] = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.kernel
@pytest.mark.parametrize("case", sanitize.BACKWARD, ids=lambda case: str(case.sizes))
def test_gradients_are_compared(case, capsys):
    assert not sanitize.run_backward(case, TYPES, np.random.default_rng(0), "sim:sm_90")
    told = capsys.readouterr().out
    assert told.startswith("ok  d") and told.endswith(f"{case}\n")


@pytest.mark.kernel
@pytest.mark.parametrize("case", sanitize.BACKWARD_OF_SM_90A, ids=lambda case: str(case.sizes))
def test_gradients_of_the_kernel_on_wgmma_are_compared(case):
    assert not sanitize.run_backward(case, TYPES, np.random.default_rng(0), "sim:sm_90a")


@pytest.mark.unit
def test_lower_variants_are_given_half_precision(monkeypatch):
    monkeypatch.setenv("CUEVO_VARIANT", "sm_80")
    assert sanitize.served(sanitize.BACKWARD) is sanitize.BACKWARD
    monkeypatch.setenv("CUEVO_VARIANT", "sm_75")
    for cases in (sanitize.CASES, sanitize.BACKWARD, sanitize.PRODUCTS):
        found = sanitize.served(cases)
        assert len(found) == sum(not case.config for case in cases) > 2
        assert all("bfloat16" not in vars(case).values() for case in found)


@pytest.mark.kernel
@pytest.mark.parametrize("arch", ["sm_75", "sm_70"])
def test_gradients_of_lower_variants_are_compared(arch, monkeypatch):
    monkeypatch.setenv("CUEVO_VARIANT", arch)
    for case in sanitize.served(sanitize.BACKWARD)[1:4]:
        assert not sanitize.run_backward(case, TYPES, np.random.default_rng(0), f"sim:{arch}")


@pytest.mark.unit
def test_a_wrong_gradient_is_told(monkeypatch, capsys):
    def zeros(dout, q, k, v, mask_bias, pair_bias, **options):
        return (np.zeros_like(q), None, None, None, None)

    monkeypatch.setattr(sanitize, "attention_backward", zeros)
    assert sanitize.run_backward(sanitize.BACKWARD[0], TYPES, np.random.default_rng(0))
    assert capsys.readouterr().out.startswith("WRONG  dq 1.0e+00  Backward(")


@pytest.mark.unit
def test_gradients_on_both_sides_with_rows_in_groups():
    """On a device that most of these problems leave idle."""
    limits = architecture("sm_90")
    several = set()
    for case in sanitize.BACKWARD:
        if "pair_bias" not in case.grads or case.pair is None:
            continue
        batch, rows, queries, keys, heads, head_dim = case.sizes
        short = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
        problem = backward.Problem(
            batch, rows, heads, queries, keys, head_dim, short[case.dtype], "f32", short[case.pair],
            side="queries", sums=True,
        )  # fmt: skip
        chosen = backward.choose(problem, limits)
        config = replace(chosen, **case.config.get("queries", {}))
        if config.groups(problem, limits) > 1:
            several.add(config.block_rows // config.warp_rows)
    assert several >= {1, 2}
    assert {side for case in sanitize.BACKWARD for side in case.config} == {"keys", "queries"}


@pytest.mark.unit
def test_a_wrong_result_is_told(capsys):
    def check(place, case):
        assert case != 2, "another one"

    assert sanitize.run_suite(Suite("numbers", list, list, check), [1, 2, 3], on_cpu)
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "WRONG  numbers: 3 cases, 0 launches"
    assert told[1].startswith("1 of 3 cases fail") and "another one" in told[3]


@pytest.mark.unit
def test_no_sanitizer(monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert sanitize.main([]) == 2
    assert "not on the path" in capsys.readouterr().out


class Sanitizer:
    """In the place of compute-sanitizer: fails for one tool."""

    def __init__(self):
        self.commands = []

    def run(self, command, **options):
        self.commands.append(command)
        self.stdout = "Version 1\n"
        self.returncode = int("synccheck" in command)
        return self


@pytest.mark.unit
def test_a_tool_that_fails_is_named(monkeypatch, capsys):
    program = Sanitizer()
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    monkeypatch.setattr("sanitize.devices", lambda: ["a device"])
    monkeypatch.setattr("subprocess.run", program.run)
    assert sanitize.main(["memcheck", "synccheck", "gemm"]) == 1
    assert capsys.readouterr().out.endswith("failed: synccheck\n")
    _, memcheck, synccheck = program.commands
    assert memcheck[-5:] == [sys.executable, sanitize.__file__, "gemm", "--run", "memcheck"]
    assert "--report-api-errors" in memcheck
    assert "--report-api-errors" not in synccheck
