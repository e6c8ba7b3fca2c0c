"""The tuner on the CPU executor, with a clock that goes by a rule."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from helpers.tuning_bench import HostBench, rendered

from cuevo.architectures import architecture
from cuevo.cli.tune import read_workload
from cuevo.errors import CuevoError
from cuevo.ops import backward_plan, dispatch
from cuevo.ops.plan import Launch
from cuevo.ops.tuning import tuned
from cuevo.ops.tuning.calls import VARIANTS, Call
from cuevo.ops.tuning.candidates import LADDERS, neighbours, offered
from cuevo.ops.tuning.plot import plot_trials
from cuevo.ops.tuning.search import Limits, compare, tune

LINES = {
    "attention": "attention 1,3,2,40,16 --dtype f16 --mask own --pair own",
    "attention_backward": "attention_backward 1,3,2,40,16 --dtype f16 --pair f32",
    "gemm": "gemm 70,40,64 --dtype f16",
}
QUICK = Limits(seconds=60.0, repeats=7, generations=2)


@pytest.fixture(autouse=True)
def own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's and the package's tables are files that there are not yet."""
    monkeypatch.setattr(tuned, "user_table", lambda: tmp_path / "tuned.json")
    monkeypatch.setattr(tuned, "SHIPPED", tmp_path / "shipped.json")
    monkeypatch.delenv(tuned.ENVIRONMENT, raising=False)
    for module in (dispatch, backward_plan, tuned):
        monkeypatch.setattr(module, "render", rendered)
    for operation in (call(name, tmp_path).operation for name in LINES):
        operation.plans.clear()
    return tmp_path


def call(name: str, folder: Path) -> Call:
    file = folder / "workload.txt"
    file.write_text(f"# a comment\n\n{LINES[name]}  # and one more\n", encoding="utf-8")
    (only,) = read_workload(file)
    return only


def likes(**wanted: object):
    """A rule: 1 ms a launch, less for each field that is as wanted."""

    def rule(launch: Launch) -> float:
        fields = vars(launch.config)
        return 1.0 - 0.2 * sum(fields.get(name) == value for name, value in wanted.items())

    return rule


@pytest.mark.unit
def test_a_call_runs_what_was_found_for_it(own_tables: Path) -> None:
    only = call("attention", own_tables)
    bench = HostBench("sm_80", likes(block_queries=32, stages=2, min_blocks=6))
    found = tune(only, bench, QUICK)
    assert found is not None
    (choice,) = found.entry.choices
    config = choice["config"]
    assert (config["block_queries"], config["stages"], config["min_blocks"]) == (32, 2, 6)
    assert found.entry.milliseconds == pytest.approx(0.4)
    assert found.gain == pytest.approx(found.entry.estimated_milliseconds / 0.4)
    assert tuned.merge(own_tables / "tuned.json", [found.entry]) == 1
    times = compare(only, bench, 7)
    assert times["tuned"].median == pytest.approx(0.4)
    assert times["estimated"].median == pytest.approx(found.entry.estimated_milliseconds)


@pytest.mark.unit
def test_a_class_of_problems_shares_a_choice_unless_it_cannot(own_tables: Path) -> None:
    only = call("attention", own_tables)
    bench = HostBench("sm_80", likes(block_queries=32, stages=2))
    found = tune(only, bench, QUICK)
    assert found is not None
    tuned.merge(own_tables / "tuned.json", [found.entry])
    only.operation.plans.clear()
    q, mask = np.ones((1, 3, 39, 2, 16), np.float16), np.zeros((1, 3, 1, 1, 39), np.float16)
    for row, source in ((39, "an estimate"), (40, found.entry.describe())):
        # Rows of 39 elements are not aligned as those of 40 are.
        pair = np.zeros((1, 1, 2, 39, row), np.float16)[..., :39]
        arrays = (q, q, q, mask, pair, None, None)
        plan = only.operation.plan_on_device(arrays, (None, False, False), bench.place, None)
        assert plan.chosen_by == source
    assert [launch.config.stages for launch in plan.launches] == [2]


@pytest.mark.unit
def test_both_sides_of_a_backward_pass_are_tuned(own_tables: Path) -> None:
    bench = HostBench("sm_80", likes(stages=3, block_streamed=32))
    found = tune(call("attention_backward", own_tables), bench, QUICK)
    assert found is not None
    assert [x["config"]["side"] for x in found.entry.choices] == ["queries", "keys"]
    assert {x["config"]["stages"] for x in found.entry.choices} == {3}
    assert "side=queries" in found.entry.problem and "| " in found.entry.problem


@pytest.mark.unit
def test_what_is_not_faster_by_more_than_noise_is_not_chosen(own_tables: Path) -> None:
    only = call("gemm", own_tables)
    bench = HostBench("sm_80", lambda launch: 1.0 - 0.015 * (launch.config.stages == 2))
    found = tune(only, bench, QUICK)
    assert found is not None and found.entry.choices == ()
    assert found.entry.milliseconds == found.entry.estimated_milliseconds == pytest.approx(1.0)
    tuned.merge(own_tables / "tuned.json", [found.entry])
    assert compare(only, bench, 3)["tuned"].median == pytest.approx(1.0)


@pytest.mark.unit
def test_hopeless_candidates_are_dropped_and_spilling_ones_not_run(own_tables: Path) -> None:
    def rule(launch: Launch) -> float:
        return 10.0 if launch.config.block_m > 64 else 1.0

    def refused(config: object) -> str:
        return "spills registers" if config.block_n > 128 else ""

    bench = HostBench("sm_80", rule, refused)
    found = tune(call("gemm", own_tables), bench, QUICK)
    assert found is not None
    counts = {False: set(), True: set()}
    for trial in found.trials:
        ((_, config),) = trial.choices
        assert bool(trial.reason) == (config.block_n > 128)
        if trial.times and trial.choices != found.estimated:
            counts[config.block_m > 64].add(trial.times.count)
    assert counts[True] == {3} and min(counts[False]) > 3


@pytest.mark.unit
def test_a_call_that_nothing_runs_says_why(own_tables: Path) -> None:
    bench = HostBench("sm_80", likes(), lambda config: "spills registers: x")
    with pytest.raises(CuevoError, match=r"nothing runs gemm 70,40,64 f16: spills registers: x"):
        tune(call("gemm", own_tables), bench, QUICK)


@pytest.mark.unit
@pytest.mark.parametrize("name", LINES)
def test_candidates_are_legal_and_near(name: str, own_tables: Path) -> None:
    only, arch = call(name, own_tables), architecture("sm_90a")
    place = HostBench("sm_90", likes()).place
    plan = only.operation.plan_on_device(only.arrays, only.options, place, None)
    for problem in plan.served:
        found = offered(only.variants, problem, arch)
        assert {x.NAME for x, _ in found} <= {x.NAME for x in only.variants if x.MINIMUM_ARCH >= 80}
        for variant, config in found[:3]:
            near = neighbours((variant, config), problem, arch)
            assert near and (variant, config) not in near
            for _, other in near:
                assert not variant.violations(other, arch, problem)
                assert variant.adapt(other, problem) == other


@pytest.mark.unit
def test_every_ladder_is_of_a_field() -> None:
    configs = {variant.Config for each in VARIANTS.values() for variant in each}
    known = {field.name for config in configs for field in fields(config)}
    assert LADDERS.keys() <= known
    assert all(list(ladder) == sorted(set(ladder)) for ladder in LADDERS.values())


@pytest.mark.unit
def test_times_are_drawn_by_field(own_tables: Path) -> None:
    pytest.importorskip("matplotlib")
    bench = HostBench("sm_80", likes(block_streamed=32, stages=3))
    found = tune(call("attention_backward", own_tables), bench, QUICK)
    assert found is not None
    few = [found.trials[0], *found.trials[-3:]]
    plot_trials(replace(found, trials=few), 0.1, own_tables / "times.svg")
    drawn = (own_tables / "times.svg").read_text(encoding="utf-8")
    differing = {
        f"{config.side}.{name}"
        for side in (0, 1)
        for config in [found.trials[0].choices[side][1]]
        for name in vars(config)
        if len({vars(trial.choices[side][1])[name] for trial in few}) > 1
    }
    assert differing and all((f">{name}<" in drawn) == (name in differing) for name in (
        *differing, "queries.head_dim", "keys.dtype"))  # fmt: skip
    assert ">ms by field; dashed: the bound" in drawn
