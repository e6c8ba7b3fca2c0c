import json
import math
from dataclasses import replace

import pytest
from helpers.host_backend import HostBackend

import bench
from backends import heads_side_by_side
from backward_peers import GRADIENTS
from cuevo import reference
from cuevo.arrays import view
from cuevo.ops.tuning.measure import Times
from directions import BACKWARD_PASS, FORWARD_PASS, with_pair_bias
from packing import packing_call
from peers import Contender, arguments_of
from workloads import BIASES, Workload

pytestmark = pytest.mark.usefixtures("nothing_old_to_collect")


def attention(inputs, biases):
    mask = inputs.mask_bias if biases == "both" else None
    pair = inputs.pair_bias if biases != "none" else None
    return reference.attention(inputs.q, inputs.k, inputs.v, mask, pair)[0]


def contender(backend, name, biases, milliseconds, compute=attention):
    return Contender(name, biases, prepared(backend, milliseconds, compute, biases))


def prepared(backend, milliseconds, compute, *options):
    def prepare(inputs):
        def call():
            backend.now += milliseconds
            return compute(inputs, *options)

        return call

    return prepare


@pytest.mark.unit
def test_a_workload_is_measured_checked_and_failures_are_recorded(monkeypatch):
    monkeypatch.setattr(bench, "host_microseconds", lambda entrant, clock, calls: 12.5)
    backend = HostBackend()

    def broken(inputs, biases):
        raise RuntimeError("no kernel\nfor you")

    contenders = [
        contender(backend, "cuevo", "both", 0.25),
        contender(backend, "cuevo", "none", 0.2),
        contender(backend, "wrong", "pair", 0.1, lambda inputs, biases: -attention(inputs, biases)),
        contender(backend, "broken", "both", 0.1, broken),
    ]
    workload = Workload(5, 2, 70, 8)
    results, facts = bench.measure_workload(backend, workload, contenders, "bf16", repeats=5)
    both, none, wrong, failed = results
    assert both.milliseconds.median == pytest.approx(0.25)
    assert both.relative_error < 1e-12
    assert none.relative_error < 1e-12
    assert both.teraflops == pytest.approx(workload.operations / 0.25e-3 / 1e12)
    assert both.host_microseconds == 12.5
    assert both.ex2_share == pytest.approx(workload.scores / 0.25e-3 / 16e9)
    assert wrong.is_wrong
    assert wrong.relative_error == pytest.approx(2.0)
    assert failed.milliseconds is None
    assert failed.reason == "RuntimeError: no kernel"
    assert facts["input_sets"] > 1


@pytest.mark.unit
def test_contenders_are_timed_alone_if_asked_for(monkeypatch):
    monkeypatch.setattr(bench, "host_microseconds", lambda entrant, clock, calls: 12.5)
    monkeypatch.setattr(bench, "ALONE", 0.001)
    backend = HostBackend()
    monkeypatch.setattr(backend, "hold", lambda: pytest.fail("they take turns"))
    contenders = [contender(backend, name, "both", time) for name, time in (("a", 0.25), ("b", 2))]
    results, _ = bench.measure_workload(backend, Workload(2, 1, 8, 8), contenders, "bf16", None)
    assert [each.milliseconds.median for each in results] == pytest.approx([0.25, 2])


@pytest.mark.unit
def test_the_pair_bias_alone_is_fp32_if_asked_for(monkeypatch):
    monkeypatch.setattr(bench, "host_microseconds", lambda entrant, clock, calls: 12.5)
    backend, seen = HostBackend(), []

    def noting(inputs, biases):
        seen.append((str(inputs.q.dtype), str(inputs.pair_bias.dtype)))
        return attention(inputs, biases)

    ours = [contender(backend, "cuevo", "both", 0.25, noting)]
    for fp32 in (False, True):
        (result,), _ = bench.measure_workload(
            backend, Workload(3, 2, 9, 8), ours, "bf16", 2, with_pair_bias(FORWARD_PASS, fp32=fp32)
        )
        assert result.relative_error < 1e-12
    assert set(seen) == {("bfloat16", "bfloat16"), ("bfloat16", "float32")}


def gradients(inputs, biases, wanted):
    arguments = arguments_of(inputs, biases)
    results = reference.attention_backward(inputs.dout, **arguments)
    return {name: results[GRADIENTS["both"].index(name)] for name in wanted}


@pytest.mark.unit
def test_backward_is_checked_by_gradient_and_counts_five_products(monkeypatch):
    monkeypatch.setattr(bench, "host_microseconds", lambda entrant, clock, calls: 12.5)
    backend = HostBackend()

    def wrong_dk(inputs, biases, wanted):
        found = gradients(inputs, biases, wanted)
        return {**found, "k": -found["k"]}

    def entry(name, biases, which, milliseconds, compute=gradients):
        prepare = prepared(backend, milliseconds, compute, biases, GRADIENTS[which])
        return Contender(name, biases, prepare, gradients=which)

    contenders = [
        entry("cuevo", "both", "both", 0.5),
        entry("pair", "pair", "pair", 1.0),
        entry("none", "none", "none", 0.25),
        entry("wrong", "both", "none", 0.1, wrong_dk),
    ]
    workload = Workload(5, 2, 24, 8)
    direction = replace(BACKWARD_PASS, memory=lambda *arguments: {"peak": 7})
    results, facts = bench.measure_workload(backend, workload, contenders, "bf16", 2, direction)
    both, pair, none, wrong = results
    for result in (both, pair, none):
        assert tuple(result.errors) == GRADIENTS[result.gradients]
        assert result.relative_error == max(result.errors.values()) < 1e-12
    assert wrong.errors["k"] == wrong.relative_error == pytest.approx(2.0)
    assert wrong.is_wrong
    assert wrong.errors["q"] < 1e-12
    assert both.milliseconds.median == pytest.approx(0.5)
    assert both.teraflops == pytest.approx(workload.backward_operations / 0.5e-3 / 1e12)
    assert both.ex2_share is None
    assert facts["memory"] == {"peak": 7}


@pytest.mark.unit
def test_memory_that_cannot_be_read_is_no_failure(monkeypatch):
    monkeypatch.setattr(bench, "host_microseconds", lambda entrant, clock, calls: 12.5)
    backend = HostBackend()

    def fail(*arguments):
        raise RuntimeError("no pool")

    prepare = prepared(backend, 0.5, gradients, "both", GRADIENTS["both"])
    contender = Contender("cuevo", "both", prepare, gradients="both")
    direction = replace(BACKWARD_PASS, memory=fail)
    (result,), facts = bench.measure_workload(
        backend, Workload(2, 1, 8, 8), [contender], "bf16", 1, direction
    )
    assert result.reason == ""
    assert facts["memory"] == {"reason": "RuntimeError: no pool"}


@pytest.mark.unit
def test_the_worst_error_is_the_largest_and_nan_is_worse():
    assert bench.worst({"q": 1e-3, "k": 2e-3}) == 2e-3
    assert math.isnan(bench.worst({"q": 1e-3, "k": math.nan, "v": 2.0}))


@pytest.mark.unit
def test_a_contender_may_refuse_a_workload():
    backend = HostBackend()
    square = Contender(
        "trifast", "both", lambda inputs: None, refuses=lambda workload: "not square"
    )
    (result,), _ = bench.measure_workload(backend, Workload(2, 1, 8, 8), [square], "bf16", 3)
    assert (result.milliseconds, result.reason) == (None, "not square")


@pytest.mark.unit
def test_the_command_line_names_what_it_does_not_understand(capsys):
    with pytest.raises(SystemExit) as stopped:
        bench.main(["--workload", "L=777"])
    assert stopped.value.code == 2
    assert "no workload has L=777" in capsys.readouterr().err


@pytest.mark.unit
def test_a_result_is_a_json_object():
    times = Times(1.0, 0.9, 1.1, 10)
    entry = bench.asdict(bench.Result("1,1,8,8", "cuevo", "both", 1e-3, times, 1.0, 0.1, 9.0))
    assert entry["milliseconds"] == {"median": 1.0, "low": 0.9, "high": 1.1, "count": 10}


@pytest.fixture
def warmed(monkeypatch):
    """The entrants that were to be warmed up: on the CPU executor there is nothing to warm."""
    found = []
    monkeypatch.setattr(bench, "warm_up", lambda entrant, clock: found.append(entrant))
    return found


@pytest.mark.kernel
def test_a_run_measures_cuevo_prints_a_table_and_writes_everything(
    capsys, monkeypatch, tmp_path, warmed
):
    path = tmp_path / "run.json"
    monkeypatch.setattr(bench, "open_backend", lambda **_: HostBackend(tick=1.0))
    monkeypatch.setattr(bench, "host_microseconds", lambda entrant, clock, calls: 12.5)
    command = ["--workload=2,1,40,16", "--repeats=2", "--config=stages=2", f"--json={path}"]
    assert bench.main(command) == 0
    printed = capsys.readouterr().out
    record = json.loads(path.read_text())
    (workload,) = record["workloads"]
    results = {(entry["contender"], entry["biases"]): entry for entry in workload["results"]}
    assert set(results) == {(name, b) for name in ("cuevo", "cuevo stages=2") for b in BIASES}
    assert len(warmed) == len(results)
    for entry in results.values():
        assert entry["relative_error"] < 1e-2
        assert entry["milliseconds"]["median"] == 1.0
        assert entry["reason"] == ""
    assert "stages=2" in results["cuevo stages=2", "both"]["configuration"]
    assert "pair=none" in results["cuevo", "none"]["configuration"]
    assert record["absent"]
    assert "| cuevo stages=2" in printed


@pytest.mark.kernel
def test_a_pair_bias_that_is_packed_has_the_time_of_that(capsys, monkeypatch, tmp_path, warmed):
    path = tmp_path / "run.json"
    monkeypatch.setattr(bench, "open_backend", lambda **_: HostBackend(tick=1.0))
    monkeypatch.setattr(bench, "host_microseconds", lambda entrant, clock, calls: 12.5)
    command = ["--workload=2,2,17,8", "--repeats=1", "--biases=pair", f"--json={path}"]
    assert bench.main([*command, "--pair-layout=head-last"]) == 0
    record = json.loads(path.read_text())
    (workload,) = record["workloads"]
    (entry,) = workload["results"]
    assert entry["relative_error"] < 1e-2
    assert "pair_copy_bytes=16" in entry["configuration"]
    # Read once, 2 heads of 17 rows of 17; written in rows of 48 bytes, in whole blocks of 256.
    assert workload["packing"] == {"milliseconds": 1.0, "bytes": 2 * 2 * 17 * 17 + 1792}
    assert "packing of the pair bias: 1000.0 us for 0.0 MB" in capsys.readouterr().out
    assert bench.main([*command, "--pack=never"]) == 0
    assert "packing" not in json.loads(path.read_text())["workloads"][0]


@pytest.mark.gpu
def test_a_pair_bias_on_a_device_is_packed_alone(executor):
    inputs = HostBackend().inputs(Workload(2, 2, 17, 8), "bf16", 0)
    inputs = replace(inputs, pair_bias=heads_side_by_side(inputs.pair_bias))
    arrays = {
        name: executor.copy_to_device(view(x)) for name, x in vars(inputs).items() if x is not None
    }
    call, nbytes = packing_call(replace(inputs, **arrays), 1)
    call()
    executor.synchronize()  # would name an address that is none
    assert nbytes == 2 * 2 * 17 * 17 + 1792


@pytest.mark.kernel
def test_a_run_with_a_configuration_that_cannot_be_is_exit_code_1(capsys, monkeypatch):
    monkeypatch.setattr(bench, "open_backend", lambda **_: HostBackend(tick=1.0))
    monkeypatch.setattr(bench, "host_microseconds", lambda entrant, clock, calls: 12.5)
    command = ["--workload=2,1,16,16", "--repeats=1", "--biases=none", "--config=stages=99"]
    assert bench.main(command) == 1
    assert "cuevo stages=99, none: ValueError: config:" in capsys.readouterr().out


@pytest.mark.kernel
def test_a_backward_run_measures_cuevo_with_each_set_of_gradients(
    capsys, monkeypatch, tmp_path, warmed
):
    path = tmp_path / "run.json"
    monkeypatch.setattr(bench, "open_backend", lambda **_: HostBackend(tick=1.0))
    monkeypatch.setattr(bench, "host_microseconds", lambda entrant, clock, calls: 12.5)
    changes = "keys.stages=2,queries.min_blocks=1"
    command = ["--direction=backward", "--workload=2,1,40,16", "--repeats=1", f"--json={path}"]
    assert bench.main([*command, f"--config={changes}"]) == 0
    printed = capsys.readouterr().out
    record = json.loads(path.read_text())
    assert record["direction"] == "backward"
    (workload,) = record["workloads"]
    results = {(entry["contender"], entry["gradients"]): entry for entry in workload["results"]}
    names = ("cuevo", f"cuevo {changes}")
    assert set(results) == {(name, gradients) for name in names for gradients in BIASES}
    assert len(warmed) == len(results)
    for (_, gradients), entry in results.items():
        assert tuple(entry["errors"]) == GRADIENTS[gradients]
        assert entry["relative_error"] < 1e-2
        assert entry["reason"] == ""
    chosen = results[f"cuevo {changes}", "both"]["configuration"]
    assert "keys.stages=2" in chosen
    assert "queries.min_blocks=1" in chosen
    assert "head_dim" not in chosen
    memory = workload["memory"]
    pair, mask, q, statistics = 40 * 40, 2 * 40, 2 * 40 * 16, 4 * 2 * 40
    assert memory["results"] == 2 * (3 * q + pair + mask)
    assert memory["compared_to"] == 2 * 3 * q + 2 * statistics + 4 * (pair + mask)
    assert memory["workspace"] > memory["fp32_bias_gradients"]
    assert "| bias grads |" in printed
    assert "memory: workspace" in printed


@pytest.mark.unit
def test_a_machine_without_a_device_is_a_sentence(capsys, monkeypatch):
    def nothing(**_: object):
        raise RuntimeError("there is no device cuda:0")

    monkeypatch.setattr(bench, "open_backend", nothing)
    assert bench.main([]) == 1
    assert capsys.readouterr().err == "bench.py: there is no device cuda:0\n"
