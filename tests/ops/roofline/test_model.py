"""Predicted times: what is counted, the rates, and the records of docs/measurements."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.tuning_bench import Unloaded, rendered

from cuevo.architectures import architecture
from cuevo.cli.tune import call_of_words
from cuevo.executors.assembling import assembling
from cuevo.kernels import evoformer_forward_sm80, evoformer_forward_sm90a
from cuevo.ops import backward_plan, dispatch
from cuevo.ops.roofline.counts import Counts, count
from cuevo.ops.roofline.model import predict
from cuevo.ops.roofline.units import PIPES, clocks, units
from predictions import cases, key_of, read_counts

H200 = architecture("sm_90a")
LEFT_OUT = {"gemm 256,256,8192": "splits exchange sums", "gemm 8192,8192,8192": "the power limit"}


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> Unloaded:
    """A place without kernels, which are not even rendered."""
    monkeypatch.setattr(dispatch, "render", rendered)
    monkeypatch.setattr(backward_plan, "render", rendered)
    return Unloaded("sm_90a")


@pytest.mark.unit
def test_measured_kernels_are_predicted_within_15_percent(unloaded: Unloaded) -> None:
    counts = read_counts(Path(__file__).with_name("counts.json"))
    far, seen = {}, set()
    for case in cases():
        call = case.call
        call.operation.plans.clear()
        plan = call.operation.plan_on_device(call.arrays, call.options, unloaded, case.config)

        def counted(launch, problem, arch, case=case) -> Counts:
            return counts[key_of(case, launch)]

        predicted = predict(plan, H200, counted)
        seen |= {bound.launch.name for bound in predicted.bounds}
        off = 1e3 * predicted.seconds / case.milliseconds - 1
        if abs(off) > 0.15:
            far[case.words] = off
        for bound in predicted.bounds:
            assert 0 < bound.rate <= bound.roof * 1.0001
            assert max(bound.shares.values()) == bound.shares[bound.pipe] <= 1.0001
    assert far.keys() == LEFT_OUT.keys()
    assert all(off < 0 for off in far.values()), "what is left out takes time"
    assert len(seen) == 5


@pytest.mark.kernel
@pytest.mark.parametrize("head_dim", [8, 32, 64])
def test_a_threadblock_on_wgmma_has_the_exponentials_of_all_its_rows(head_dim: int) -> None:
    """One for a score that is not emulated, eight clocks for 32: the last works, of single rows N,
    are not counted.
    """
    call = call_of_words(["attention", f"1,768,4,768,{head_dim}", "--pair", "own"])
    place = assembling("sm_90a")
    plan = call.operation.plan_on_device(call.arrays, call.options, place, None)
    (bound,) = (x for x in plan.every_launch if x.name == evoformer_forward_sm90a.NAME)
    config = bound.config
    found = count(bound, plan.served[0], "sm_90a").each["xu"]
    share = 0.75 if config.emulates else 1.0
    expected = config.block_rows * config.block_queries / 4 * share
    assert found == pytest.approx(expected, rel=0.02)


@pytest.mark.kernel
def test_instructions_are_counted_as_often_as_they_run() -> None:
    call = call_of_words(["attention", "1,8,2,512,16", "--dtype", "f16", "--pair", "own"])
    config = evoformer_forward_sm80.Config(16, "f16", block_rows=1, block_queries=64, block_keys=32)
    place = assembling("sm_80")
    plan = call.operation.plan_on_device(call.arrays, call.options, place, config)
    (launch,) = plan.launches
    found = count(launch, plan.served[0], "sm_80")
    scores = config.block_rows * config.block_queries
    assert found.each["xu"] == pytest.approx(8 * scores / 32)  # an exponential each
    products = scores / (16 * 8) + scores / (16 * 16) * 2  # q . k, and p . v
    assert found.each["tensor"] == pytest.approx(8.0 * products, rel=0.26)  # and the row sums
    assert found.each["tensor"] >= 8.0 * products
    assert found.each["issue"] > sum(found.each[pipe] / 8 for pipe in ("xu", "tensor"))
    assert count(launch, plan.served[0], "sm_80") == found
    assert found.of(512)["xu"] == found.fixed["xu"] + 512 * found.each["xu"]
    assert found.of(512, fixed=0)["issue"] < found.of(512)["issue"] < found.of(512, 2)["issue"]


@pytest.mark.unit
def test_more_warps_hide_more(unloaded: Unloaded) -> None:
    call = call_of_words(["attention", "1,512,8,512,32"])
    asked = Counts(dict.fromkeys(PIPES, 0.0), {"issue": 40.0, "tensor": 24.0, "xu": 32.0})
    predicted = {}
    for blocks in (1, 2, 4):
        config = {"min_blocks": blocks, "block_rows": 2, "block_queries": 64}
        call.operation.plans.clear()
        plan = call.operation.plan_on_device(call.arrays, call.options, unloaded, config)
        (bound,) = predict(plan, H200, lambda *_: asked).bounds
        assert bound.pipe == "issue" and bound.counted == "scores"
        predicted[blocks] = bound.shares["issue"]
    assert 40 / 96 < predicted[1] < predicted[2] < predicted[4] < 1.0


@pytest.mark.unit
@pytest.mark.parametrize(
    ("opcode", "pipe", "taken"),
    [
        ("HMMA.16816.F32.BF16", "tensor", {"issue": 1, "tensor": 6}),
        ("HGMMA.64x256x16.F32.BF16", "tensor", {"issue": 1, "tensor": 128}),
        ("HGMMA.64x8x16.F32.BF16", "tensor", {"issue": 1, "tensor": 13}),
        ("MUFU.EX2", "xu", {"issue": 1, "xu": 8}),
        ("LDSM.16.M88.4", "lsu", {"issue": 1, "lsu": 16}),
        ("LDGSTS.E.BYPASS.128", "lsu", {"issue": 1, "lsu": 16}),
        ("LDS.64", "lsu", {"issue": 1, "lsu": 8}),
        ("SHFL.BFLY", "lsu", {"issue": 1, "lsu": 4}),
        ("DEPBAR", "lsu", {"issue": 1}),
        ("FFMA", "fma", {"issue": 1, "fma": 1}),
        ("IADD3", "alu", {"issue": 1, "alu": 2}),
        ("BRA", "cbu", {"issue": 1}),
        ("NOP", "none", {}),
    ],
)
def test_rates_of_an_h200(opcode: str, pipe: str, taken: dict[str, float]) -> None:
    assert clocks(SimpleNamespace(opcode=opcode, pipe=pipe), units(H200)) == taken


@pytest.mark.unit
def test_an_architecture_without_known_rates_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("rates of sm_70 are not known; those of sm_75")):
        units(architecture("sm_70"))
