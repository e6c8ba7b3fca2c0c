"""Checks of instances of every kernel: no errors as they are, and some when a line is changed."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from helpers.small_instances import INSTANCES, SMALL, configured

from cuevo.check import Finding, Report, check_by_problem, check_kernel, kernel_check
from cuevo.kernels import registry
from cuevo.sim import InstructionUse, LoadedKernel, Profile, SectorUse, SimExecutor
from cuevo.toolchain.template import RenderedKernel

pytestmark = pytest.mark.kernel

LEFT_OUT = {
    "evoformer_backward_sm70": "a threadblock that sums no rows N takes one, and needs no next",
    "evoformer_forward_sm80": "without a mask no tile of keys ends early",
}
"""Kernels of which an instance has instructions that no problem can reach."""


@pytest.mark.parametrize(("name", "settings"), INSTANCES, ids=str)
def test_kernels_that_ship_have_no_errors(name: str, settings: str) -> None:
    *so_far, report = check_by_problem(*configured(name, settings), seed=1)
    assert report.ok, report.findings
    assert report.whole
    assert all(not each.whole and each.profile and not each.findings for each in so_far)
    assert report.errors and report.kernel.startswith(name + "(")
    assert report.profile and sum(report.profile.by_opcode().values()) > 100
    messages = [each.message for each in report.findings]
    assert not any("no small problem" in each for each in messages)
    missed = any("never ran" in each for each in messages)
    assert not missed or (name in LEFT_OUT and ("side=keys" in settings or "mask=none" in settings))


@pytest.mark.parametrize(
    ("found", "right"),
    [
        ((-np.inf, 1.0), True),
        ((0.0, 1.0), False),
        ((np.nan, 1.0), False),
        ((-np.inf, np.nan), False),
    ],
    ids=str,
)
def test_infinities_have_to_be_the_same(found: tuple[float, ...], right: bool) -> None:
    """As the lse of a row without keys is."""
    lse = np.array(found, np.float32), np.array((-np.inf, 1.0))
    _, findings = kernel_check.compare({"lse": lse})
    assert (not findings) == right


def test_every_kernel_has_a_check() -> None:
    assert {name for name, _ in INSTANCES} == set(registry())


def test_the_seed_is_that_of_the_numbers() -> None:
    reports = [check_kernel(*configured("gemm_sm80", SMALL), seed=seed) for seed in (1, 1, 2)]
    assert reports[0].errors == reports[1].errors != reports[2].errors


# -- With a line changed ---------------------------------------------------------------------------

FORWARD = ("evoformer_forward_sm80", "head_dim=32 block_queries=64 stages=2")


def damaged(
    monkeypatch: pytest.MonkeyPatch, name: str, settings: str, change: Callable[[str], str]
) -> Report:
    """The report on the kernel with `change` made to its text."""
    load = SimExecutor.load

    def loading(self: SimExecutor, kernel: RenderedKernel) -> LoadedKernel:
        if kernel.name == name:
            changed = change(kernel.text)
            assert changed != kernel.text and changed.count("\n") == kernel.text.count("\n")
            kernel = replace(kernel, text=changed)
        return load(self, kernel)

    monkeypatch.setattr(SimExecutor, "load", loading)
    return check_kernel(*configured(name, settings))


def test_a_fault_has_its_line_and_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    report = damaged(
        monkeypatch, *FORWARD, lambda text: text.replace("cp.async.wait_group 0;", "", 1)
    )
    (finding,) = report.findings
    assert finding.severity == "error" and not report.ok
    assert finding.origin.startswith("ptx/") and finding.origin.rpartition(":")[2].isdigit()
    assert "thread (" in finding.message and "\n" not in finding.message
    assert not report.errors and report.profile is None


def test_wrong_results_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    report = damaged(
        monkeypatch,
        "gemm_sm80",
        SMALL + " c=bf16 bias=true",
        lambda text: text.replace("fma.rn.f32 sum0, beta, old, sum0;", "mov.b32 sum0, sum0;"),
    )
    finding, *_ = report.findings
    assert (finding.severity, finding.origin) == ("error", "")
    assert finding.message.startswith("d differs from float64 by ")
    assert report.errors["d"] > 1e-2


def test_threadblocks_that_stay_take_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only shows in the second round of the stages is found."""
    report = damaged(
        monkeypatch,
        "gemm_sm90a",
        "block_n=64 stages=4",
        lambda text: text.replace("@wraps xor.b32 parity, parity, 1;", "", 1),
    )
    (finding,) = report.findings
    assert finding.origin == "ptx/lib/mbarrier.ptx:29"
    assert finding.message.startswith("deadlock: warps wait at barriers that are never complete")


@pytest.mark.parametrize(
    ("name", "settings", "label"),
    [
        ("gemm_sm80", SMALL + " stages=3", "WHOLE"),
        ("gemm_sm80", SMALL + " stages=3", "RAGGED"),
        ("gemm_sm80", SMALL + " stages=3", "DRAINING"),
        ("evoformer_forward_sm80", "head_dim=8 short_queries=32 short_rows=2", "SHORT_TILE"),
    ],
)
def test_every_part_of_a_kernel_is_reached(
    name: str, settings: str, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait for too few commit groups is found wherever it is."""

    def change(text: str) -> str:
        before, found, after = text.partition(f"\n{label}:")
        return before + found + re.sub(r"wait_group \d", "wait_group 6", after, count=1)

    report = damaged(monkeypatch, name, settings, change)
    assert [each.severity for each in report.findings if each.severity == "error"] == ["error"]
    assert " in flight" in report.findings[0].message


def test_what_is_refused_when_loaded_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    report = damaged(monkeypatch, *FORWARD, lambda text: text.replace("ex2.approx", "ex3.approx"))
    (finding,) = report.findings
    assert "does not support the instruction ex3.approx" in finding.message


def test_bank_conflicts_are_warnings() -> None:
    report = check_kernel(*configured("evoformer_forward_sm70", "head_dim=32 block_queries=32"))
    assert report.ok
    assert {each.severity for each in report.findings} == {"warning"}
    (finding,) = [each for each in report.findings if "bank conflicts, " in each.message]
    assert finding.origin.startswith("ptx/lib/attention_pipelined.ptx:")


@pytest.mark.unit
def test_texts_of_faults() -> None:
    text = (
        "ptx/a.ptx:12: boom: 3 bytes\n    ld.x a;\n  in a(b=1)\n  block (0, 0, 0), thread (1, 0, 0)"
    )
    expected = "boom: 3 bytes; block (0, 0, 0), thread (1, 0, 0)"
    assert kernel_check.fault(text) == Finding("error", "ptx/a.ptx:12", expected)
    assert kernel_check.fault("nothing like it") == Finding("error", "", "nothing like it")


@pytest.mark.unit
def test_instructions_that_never_ran_are_warnings() -> None:
    ran = InstructionUse(5, "ptx/x.ptx:5", "add.u32", 6)
    missed = replace(ran, line=6, executions=0)
    profile = Profile((ran, missed, missed, replace(ran, origin="ptx/x.ptx:6")), ())
    assert profile.never_ran == (missed, missed)
    assert kernel_check._missed(profile) == [
        Finding("warning", "ptx/x.ptx:5", "2 of its 3 instructions never ran")
    ]


def test_an_instance_that_no_small_problem_has_is_a_warning() -> None:
    # Whole tiles end with whole accesses.
    report = check_kernel(*configured("gemm_sm80", SMALL + " clear=none exact=false"))
    assert "no small problem is for this instance" in report.findings[0].message
    assert "exact=True" in report.findings[0].message and report.ok


def test_scattered_accesses_and_idle_guards_are_warnings() -> None:
    use = SectorUse(3, "ptx/x.ptx:3", "ld.global.b32", 4, 128, 16)
    tight = replace(use, origin="ptx/x.ptx:4", sectors=16)
    idle = InstructionUse(5, "ptx/x.ptx:5", "add.u32", 6, 0)
    held = replace(idle, origin="ptx/x.ptx:6", held=1)
    branch = replace(idle, origin="ptx/x.ptx:7", opcode="bra.uni")
    profile = Profile((idle, held, branch, replace(idle, executions=2)), (), (use, tight))
    assert kernel_check._scattered(profile) == [
        Finding(
            "warning",
            "ptx/x.ptx:3",
            "ld.global.b32: 32.0 sectors a request, where 4.0 would hold its bytes",
        )
    ]
    assert kernel_check._idle(profile) == [
        Finding("warning", "ptx/x.ptx:5", "the guard never held, of 8 times that warps came here")
    ]
