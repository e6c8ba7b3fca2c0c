import json

import ml_dtypes
import numpy as np
import pytest

import bench
from backends import DeviceFacts, Inputs
from cuevo import reference
from measure import Times
from peers import Contender
from workloads import BIASES, Workload


@pytest.mark.unit
@pytest.mark.parametrize(("extent", "count"), [(1, 3), (3, 3), (128, 3), (769, 64), (2048, 64)])
def test_what_is_checked_reaches_from_end_to_end(extent, count):
    indices = range(extent)[bench.spread(extent, count)]
    assert indices[-1] == extent - 1
    assert min(count, extent) <= len(indices) <= 2 * count
    assert indices[0] < max(1, extent // count)


@pytest.mark.unit
def test_relative_error_is_by_norm():
    expected = np.array([[3.0, 4.0]])
    assert bench.relative_error(expected + np.array([[0.0, 0.5]]), expected) == pytest.approx(0.1)


class HostBackend:
    """NumPy arrays in place of device memory; a call takes as long as it says."""

    name = "numpy"
    facts = DeviceFacts("host", "sm_80", multiprocessors=1, clock_hz=1e9, l2_bytes=2**12)

    def __init__(self, tick=0.0):
        self.now = 0.0
        self.tick = tick  # milliseconds from one reading of the clock to the next

    def inputs(self, workload, dtype, seed):
        generator = np.random.default_rng(seed)
        shape = (1, workload.rows, workload.length, workload.heads, workload.head_dim)
        pair = (1, 1, workload.heads, workload.length, workload.length)
        mask = (1, workload.rows, 1, 1, workload.length)
        sizes = (shape, shape, shape, mask, pair)
        return Inputs(
            *(generator.standard_normal(size).astype(ml_dtypes.bfloat16) for size in sizes)
        )

    def slices(self, array, rows, queries):
        return array[0, rows, queries].astype(np.float64)

    def record(self):
        self.now += self.tick
        return self.now

    def elapsed(self, start, end):
        return end - start

    def synchronize(self):
        pass

    def hold(self):
        pass

    def free_bytes(self):
        return 2**30

    def release(self):
        pass


def attention(inputs, biases):
    mask = inputs.mask_bias if biases == "both" else None
    pair = inputs.pair_bias if biases != "none" else None
    return reference.attention(inputs.q, inputs.k, inputs.v, mask, pair)[0]


def contender(backend, name, biases, milliseconds, compute=attention):
    def prepare(inputs):
        def call():
            backend.now += milliseconds
            return compute(inputs, biases)

        return call

    return Contender(name, biases, prepare)


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


@pytest.mark.kernel
def test_a_run_measures_cuevo_prints_a_table_and_writes_everything(capsys, monkeypatch, tmp_path):
    path = tmp_path / "run.json"
    monkeypatch.setattr(bench, "open_backend", lambda: HostBackend(tick=1.0))
    monkeypatch.setattr(bench, "host_microseconds", lambda entrant, clock, calls: 12.5)
    command = ["--workload=2,1,40,16", "--repeats=2", "--config=stages=2", f"--json={path}"]
    assert bench.main(command) == 0
    printed = capsys.readouterr().out
    record = json.loads(path.read_text())
    (workload,) = record["workloads"]
    results = {(entry["contender"], entry["biases"]): entry for entry in workload["results"]}
    assert set(results) == {(name, b) for name in ("cuevo", "cuevo stages=2") for b in BIASES}
    for entry in results.values():
        assert entry["relative_error"] < 1e-2
        assert entry["milliseconds"]["median"] == 1.0
        assert entry["reason"] == ""
    assert "stages=2" in results["cuevo stages=2", "both"]["configuration"]
    assert "pair=none" in results["cuevo", "none"]["configuration"]
    assert record["absent"]
    assert "| cuevo stages=2" in printed


@pytest.mark.kernel
def test_a_run_with_a_configuration_that_cannot_be_is_exit_code_1(capsys, monkeypatch):
    monkeypatch.setattr(bench, "open_backend", lambda: HostBackend(tick=1.0))
    monkeypatch.setattr(bench, "host_microseconds", lambda entrant, clock, calls: 12.5)
    command = ["--workload=2,1,16,16", "--repeats=1", "--biases=none", "--config=stages=99"]
    assert bench.main(command) == 1
    assert "cuevo stages=99, none: ValueError: config:" in capsys.readouterr().out


@pytest.mark.unit
def test_a_machine_without_a_device_is_a_sentence(capsys, monkeypatch):
    def nothing():
        raise RuntimeError("there is no device cuda:0")

    monkeypatch.setattr(bench, "open_backend", nothing)
    assert bench.main([]) == 1
    assert capsys.readouterr().err == "bench.py: there is no device cuda:0\n"
