from dataclasses import replace

import pytest

from bank_conflicts import (
    BLOCKS,
    BY_ADDRESS,
    COUNTERS,
    Launch,
    OnDevice,
    OnSim,
    differs,
    joined,
    launch_sample,
    main,
    ncu_command,
    parse,
    print_report,
    read,
    write,
)
from block_kernels import SUITES, WatchedSim

HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)


def answer(*launches):
    """What Nsight Compute writes of launches: a name, and the value of each metric."""
    lines = ["==PROF== Connected to process 7 (/usr/bin/python3.12)"]
    lines += [f'==PROF== Profiling "{name}" - {i}: 0%' for i, (name, *_) in enumerate(launches)]
    lines += ["==PROF== Disconnected from process 7", HEAD]
    for i, (name, *values) in enumerate(launches):
        where = f'"{i}","7","python3.12","127.0.0.1","{name}","1","13","(64, 1, 1)","(1, 1, 1)"'
        lines += [
            f'{where},"0","9.0","Command line profiler metrics","{metric}","","{value}"'
            for metric, value in zip((*COUNTERS, *BY_ADDRESS), values, strict=True)
        ]
    return "\n".join(lines) + "\n"


QUIET = Launch("warp_load", "a case", "warp_load", False, OnSim(0, 0, 0), OnDevice(0, 0, 0, 0))
PIECES = Launch("copy_async", "another", "copy_tile", True, OnSim(0, 0, 96), OnDevice(0, 0, 90, 96))


@pytest.mark.unit
def test_counts_of_the_profiler_are_read():
    log = answer(("warp_load", "0", "1", "2", "1,248", "1,200"), ("f()", "0", "0", "0", "n/a", ""))
    first, second = parse(log)
    assert first == (
        "warp_load",
        dict(zip((*COUNTERS, *BY_ADDRESS), (0, 1, 2, 1248, 1200), strict=True)),
    )
    assert second[0] == "f"
    assert [second[1][metric] for metric in BY_ADDRESS] == [None, None]


@pytest.mark.unit
def test_no_answer_is_no_launches():
    assert parse("") == parse("==ERROR== ERR_NVGPUCTRPERM\n") == []


@pytest.mark.unit
def test_launches_meet_their_counts():
    launches = [replace(QUIET, device=None), replace(PIECES, device=None)]
    log = answer(
        ("warp_load", "0", "0", "0", "64", "64"), ("copy_tile", "0", "0", "90", "196", "100")
    )
    assert joined(launches, parse(log)) == [QUIET, PIECES]
    without = [(name, dict.fromkeys(COUNTERS, 0)) for name, _ in parse(log)]
    assert [launch.device for launch in joined(launches, without)] == [OnDevice(0, 0, 0, None)] * 2


@pytest.mark.unit
@pytest.mark.parametrize(
    ("names", "value", "message"),
    [
        (["warp_load"], "0", "of 2 launches the profiler saw 1"),
        (["warp_load", "warp_load"], "0", "launch 1 is copy_tile"),
        (["warp_load", "copy_tile"], "n/a", "no count of conflicts"),
    ],
)
def test_other_launches_or_no_counts_are_an_error(names, value, message):
    log = answer(*((name, *[value] * 5) for name in names))
    with pytest.raises(ValueError, match=message):
        joined([QUIET, PIECES], parse(log))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("launch", "bad"),
    [
        (QUIET, False),
        (replace(QUIET, device=None), False),
        (replace(QUIET, sim=None), False),
        (replace(QUIET, device=OnDevice(0, 2, 2, 0)), False),
        (replace(QUIET, device=OnDevice(1, 0, 1, 0)), False),
        (replace(QUIET, device=OnDevice(1, 0, 1, 1)), True),
        (replace(QUIET, device=OnDevice(1, 0, 1, None)), True),
        (replace(QUIET, sim=OnSim(1, 0, 0)), True),
        (replace(QUIET, sim=OnSim(0, 1, 0)), True),
        (replace(QUIET, sim=OnSim(0, 0, 1)), True),
        (PIECES, False),
        (replace(PIECES, device=OnDevice(1, 0, 91, 96)), True),
        (replace(PIECES, sim=OnSim(1, 0, 96)), True),
    ],
)
def test_which_conflicts_must_not_be(launch, bad):
    assert launch.has_conflicts is bad


@pytest.mark.unit
def test_counts_that_differ():
    assert not differs(QUIET) and not differs(PIECES)
    assert not differs(replace(QUIET, device=OnDevice(0, 0, 5, None)))
    assert differs(replace(QUIET, device=OnDevice(0, 1, 1, None)))
    assert differs(replace(PIECES, device=OnDevice(0, 0, 90, 90)))


@pytest.mark.unit
def test_the_report(capsys):
    assert print_report([PIECES, PIECES, QUIET], []) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 118
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    assert rows[2] == ["warp_load", "1", "1", *"0000", *"000"]
    assert rows[3] == [
        "copy_async, 8 or 4 bytes",
        "1",
        "2",
        "0",
        "0",
        "180",
        "192",
        "0",
        "0",
        "192",
    ]
    assert lines[-1] == "no conflicts"


@pytest.mark.unit
def test_the_report_of_conflicts_and_of_wrong_results(capsys):
    assert print_report([QUIET, replace(QUIET, device=OnDevice(4, 0, 4, None))], []) == 1
    assert "conflicts: 1 launches" in capsys.readouterr().out
    assert print_report([QUIET], ["warp_load: 1 of 1 cases fail"]) == 1
    assert "wrong: warp_load: 1 of 1" in capsys.readouterr().out


@pytest.mark.kernel
def test_cases_are_launched_on_both(tmp_path):
    blocks, most = ("warp_load", "copy_async", "mma_pipelined"), 9
    launches, wrong = launch_sample(
        blocks, most, "sm_80", lambda launched: WatchedSim("sm_90", launched)
    )
    assert not wrong
    assert most <= len(launches) < most + 6
    assert {launch.block for launch in launches} == set(blocks)
    assert {launch.kernel for launch in launches} == {"warp_load", "copy_tile", "mma_pipelined"}
    assert all(launch.sim is not None and not launch.has_conflicts for launch in launches)
    write(tmp_path / "launches.json", launches, wrong)
    assert read(tmp_path / "launches.json") == (launches, wrong)


@pytest.mark.kernel
def test_the_executor_alone(capsys):
    assert main(["--sim", "sm_80", "--launches", "2", "warp_load"]) == 0
    assert "| warp_load |     2 |        2 |      0 |      0 |      0 |" in capsys.readouterr().out


@pytest.mark.unit
def test_without_a_profiler_nothing_is_counted(monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert main([]) == 2
    assert "ncu is not on the path" in capsys.readouterr().out


@pytest.mark.unit
def test_all_metrics_are_asked_for(tmp_path):
    command = ncu_command("ncu", tmp_path / "log", (*COUNTERS, *BY_ADDRESS), ["python3", "x.py"])
    assert command[-2:] == ["python3", "x.py"]
    assert ",".join((*COUNTERS, *BY_ADDRESS)) in command
    assert set(BLOCKS) <= set(SUITES)
