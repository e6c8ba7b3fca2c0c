"""A GPU's results of every arithmetic instruction, replayed on the CPU executor.

``tools/record_hardware.py`` makes the recordings; ``sim/recordings`` says of what, and how they are
compared.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sim.recordings import approximations
from sim.recordings.archive import Record, read, record, write
from sim.recordings.fills import Array, checksum, inputs
from sim.recordings.probes import LEFT_OUT, Source, probes
from sim.recordings.recorder import record_all
from sim.recordings.replay import DEVIATIONS, RECORDINGS, Deviation, replay
from sim.recordings.sweeps import Sweep, alone, sweeps

from cuevo.sim import SimExecutor
from cuevo.sim.instructions.table import forms

SIGNATURES = sorted({sweep.signature for sweep in sweeps()})
FILES = sorted(path for path in RECORDINGS.glob("*.npz") if not path.stem.endswith("-octaves"))


@cache
def recording(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Record]]:
    return read(path)


@pytest.mark.kernel
@pytest.mark.parametrize("signature", SIGNATURES)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem) for path in FILES]
    or [
        pytest.param(
            None,
            id="none",
            marks=pytest.mark.skip(
                reason="there is no recording; tools/record_hardware.py makes one on a GPU"
            ),
        )
    ],
)
def test_the_executor_has_what_the_hardware_had(
    path: Path, signature: str, record_property: Callable[[str, object], None]
) -> None:
    header, records = recording(path)
    number = int(header["architecture"].removeprefix("sm_"))
    chosen = [sweep for sweep in sweeps(number) if sweep.signature == signature]
    outcome = replay(chosen, records)
    record_property("replayed", outcome.counts)
    assert not outcome.wrong, "\n".join(outcome.wrong)


# -- Sweeps ----------------------------------------------------------------------------------------


@pytest.mark.kernel
def test_what_no_device_has_recorded_can_be() -> None:
    recorded = {name for path in FILES for name in recording(path)[1]}
    executor = SimExecutor("sm_90")
    new = [
        part for sweep in sweeps(90) for part in alone(sweep) if not recorded.issuperset(part.names)
    ]
    _, failures = record_all(new, lambda sweep: sweep.on_sim(executor))
    assert not failures, "\n".join(failures)


@pytest.mark.unit
def test_every_form_is_there_or_left_out_by_name() -> None:
    covered = {probe.binder for probe in probes(100)}
    for form in forms():
        module = form.binder.split(".")[0]
        assert (form.binder in covered) != (form.binder in LEFT_OUT or module in LEFT_OUT)


@pytest.mark.unit
def test_an_instruction_has_one_name() -> None:
    names = [name for sweep in sweeps() for name in sweep.names]
    assert len(names) == len(set(names)) > 5000


@pytest.mark.unit
def test_what_an_architecture_lacks_is_not_asked_of_it() -> None:
    names = {probe.name for probe in probes(80)}
    assert "add.f32" in names
    assert not names & {"add.bf16", "cvt.rn.tf32.f32"}
    assert all(sweep.arch == "sm_80" for sweep in sweeps(80))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("scalars", "stamp"),
    [
        (["f32", "f32", "f32"], 0x9672ED9B8B51F674),
        (["f64"], 0x3DF873CEDFE8C867),
        (["s32", "u32:count"], 0x5965EC6748106CB8),
        (["f16x2", "f16x2", "pred"], 0xA3D576352941E692),
    ],
)
def test_inputs_are_the_same_on_every_machine(scalars: list[str], stamp: int) -> None:
    sources = []
    for scalar in scalars:
        name, _, role = scalar.partition(":")
        sources.append(Source(name, role=role))
    assert hex(checksum(inputs(sources))) == hex(stamp)


@pytest.mark.unit
def test_operands_have_the_hard_ones_among_them() -> None:
    x, y, z = (each[0].view(np.float32) for each in inputs([Source("f32")] * 3))
    with np.errstate(all="ignore"):
        assert np.isnan(x).sum() > 100 and np.isinf(x).sum() > 50
        assert np.count_nonzero((x == 0) & np.signbit(x)) > 10
        assert np.count_nonzero((np.abs(x) < 2.0**-126) & (x != 0)) > 100
        product = x.astype(np.float64) * y
        assert np.count_nonzero(np.abs(product + z) < np.abs(product) * 2.0**-20) > 500
    x, y = (each[0].view(np.float32) for each in inputs([Source("f32")] * 2))
    with np.errstate(all="ignore"):
        assert np.count_nonzero(np.abs(x.astype(np.float64) + y) < np.abs(x) * 2.0**-20) > 500
    (half,) = inputs([Source("bf16")])
    assert np.array_equal(np.sort(half[0]), np.arange(65536))


# -- Recording and replay --------------------------------------------------------------------------


def some(*names: str) -> list[Sweep]:
    return [sweep for sweep in sweeps() if set(names) & set(sweep.names)]


def on_executor(sweep: Sweep) -> Mapping[str, Array]:
    return sweep.on_sim(SimExecutor(sweep.arch))


@pytest.mark.kernel
def test_what_the_executor_recorded_it_has_again(tmp_path: Path) -> None:
    chosen = some(
        *("fma.rn.f32", "addc.cc.u32", "sqrt.approx.ftz.f32", "setp.lt.f32", "mul.wide.u16"),
        *("redux.sync.add.u32 in groups", "sub.cc.u32, addc.cc.u32", "ld.f32 to b64"),
    )
    records, failures = record_all(chosen, on_executor)
    assert not failures
    path = tmp_path / "device.npz"
    write(path, {"device": "none"}, records)
    header, found = read(path)
    assert header["device"] == "none" and header["forms"] == len(records)
    outcome = replay(chosen, found)
    assert not outcome.wrong and not outcome.missing and not outcome.unknown
    assert outcome.exact + outcome.within == header["results"]
    assert outcome.forms == header["forms"]
    approximate = sum(
        approximations.approximate(probe) for sweep in chosen for probe in sweep.probes
    )
    assert outcome.within == 65536 * approximate > 0


def spoilt(name: str, lane: int) -> Callable[[Sweep], Mapping[str, Array]]:
    """A device with one wrong result."""

    def run(sweep: Sweep) -> Mapping[str, Array]:
        results = dict(on_executor(sweep))
        if name in results:
            results[name] = results[name].copy()
            results[name][lane, 0] ^= np.uint64(1 << 20)
        return results

    return run


@pytest.mark.kernel
@pytest.mark.parametrize("name", ["fma.rn.f32", "sqrt.approx.ftz.f32"])
def test_one_wrong_result_is_found(tmp_path: Path, name: str) -> None:
    chosen = some(name)
    lane = int(np.flatnonzero(on_executor(chosen[0])[name][:, 0] == 0x3F800000)[-1])
    records, _ = record_all(chosen, spoilt(name, lane))
    write(tmp_path / "device.npz", {}, records)
    _, found = read(tmp_path / "device.npz")
    (sentence,) = replay(chosen, found).wrong
    assert sentence.startswith(f"{name}: 1 of ") and "0x3f900000" in sentence


@pytest.mark.kernel
def test_what_is_known_to_deviate_is_counted() -> None:
    chosen, name = some("fma.rn.f32"), "fma.rn.f32"
    records, _ = record_all(chosen, spoilt(name, 3))
    here = Deviation(r"fma\.rn\.f32", "made so", lambda x, y, z: np.arange(x.shape[1]) == 3)
    elsewhere = Deviation(r"fma\.rn\.f32", "not so", lambda x, y, z: np.arange(x.shape[1]) == 4)
    outcome = replay(chosen, records, (here,))
    assert outcome.excused == 1 and not outcome.wrong
    assert replay(chosen, records, (elsewhere,)).wrong


@pytest.mark.kernel
def test_other_inputs_are_not_compared() -> None:
    chosen = some("fma.rn.f32")
    records, _ = record_all(chosen, on_executor)
    one = records["fma.rn.f32"]
    records["fma.rn.f32"] = record(one.inputs + 1, np.zeros(one.shape, np.uint64), None, None)
    (sentence,) = replay(chosen, records).wrong
    assert "record it again" in sentence


@pytest.mark.kernel
def test_what_the_executor_does_not_know_is_kept_whole_and_counted() -> None:
    known = some("fma.rn.f32")[0]
    probe = replace(known.probes[0], opcode="fma.elsewhere.f32")
    (sweep,) = alone(replace(known, probes=(probe,)))
    results = np.arange(sweep.lanes, dtype=np.uint64)[:, None]
    records, failures = record_all([sweep], lambda sweep: {probe.name: results})
    assert not failures
    assert np.array_equal(records[probe.name].whole(np.zeros_like(results)), results)
    outcome = replay([sweep], records)
    assert outcome.unknown == [probe.name] and not outcome.wrong and not outcome.exact
    assert probe.name in str(outcome)


@pytest.mark.kernel
def test_an_instruction_that_fails_does_not_stop_those_beside_it() -> None:
    known = some("fma.rn.f32")[0]
    broken = replace(known.probes[0], opcode="fma.elsewhere.f32")
    part = replace(known, probes=(broken, *known.probes[:2]))
    text = "".join(each.text for each in alone(part))
    assert "fma.elsewhere.f32" in text
    whole = replace(part, text=text.partition("ret;")[0] + "ret;\n}\n")
    records, failures = record_all([whole], on_executor)
    assert list(records) == [probe.name for probe in known.probes[:2]]
    assert len(failures) == 1 and "fma.elsewhere.f32" in failures[0]


@pytest.mark.unit
def test_distances_from_something_else_are_refused() -> None:
    results = np.arange(2048, dtype=np.uint64).reshape(-1, 2)
    one = record(0, results, None, results + np.uint64(3))
    assert np.array_equal(one.whole(results + np.uint64(3)), results)
    with pytest.raises(ValueError, match="do not lead"):
        one.whole(results)


@pytest.mark.unit
def test_deviations_have_reasons() -> None:
    assert all(len(each.reason) > 20 for each in DEVIATIONS)
