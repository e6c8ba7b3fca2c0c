"""Tables of tuned choices: what is read, merged, and taken by calls."""

import json
import multiprocessing
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from helpers.shipped_kernels import is_current

import cuevo
from cuevo.cli import main
from cuevo.errors import CuevoError
from cuevo.kernels import gemm_sm80
from cuevo.kernels.gemm_mma import Problem
from cuevo.ops import product
from cuevo.ops.tuning import tuned
from cuevo.ops.tuning.tuned import Entry, entry_of, find, merge, problem_class, read
from cuevo.sim import SimExecutor

SHIPPED = tuned.SHIPPED
PROBLEM = Problem(1, 40, 48, 64, "f16", "f16")
PLACE = SimExecutor("sm_80")


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tuned, "SHIPPED", tmp_path / "shipped.json")
    monkeypatch.setenv("CUEVO_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv(tuned.ENVIRONMENT, raising=False)
    product.OPERATION.plans.clear()
    return tmp_path / "tuned.json"


def entry(date: str = "2026-01-31T12:00:00", **changes: object) -> Entry:
    """An entry for `PROBLEM` with a configuration that is not the estimate."""
    config = gemm_sm80.choose(PROBLEM, cuevo.architectures.architecture("sm_80"))
    config = replace(config, stages=config.stages - 1, raster=3)
    made = entry_of("gemm", [PROBLEM], PLACE, [(gemm_sm80, config)], date=date,
                    milliseconds=1.0, estimated_milliseconds=1.5)  # fmt: skip
    return replace(made, **changes)


def found() -> object:
    return find("gemm", product.VARIANTS, [PROBLEM], PLACE)


@pytest.mark.kernel
def test_a_call_takes_the_choice_of_the_table_and_is_right(table: Path) -> None:
    merge(table, [entry()])
    a, b = np.random.default_rng(0).standard_normal((2, 64, 48)).astype(np.float16)
    a = np.ascontiguousarray(a.T[:40])
    assert np.allclose(cuevo.gemm(a, b, device=PLACE), a @ b, atol=0.05)
    (plan,) = product.OPERATION.plans.values()
    assert plan.launches[0].config.raster == 3
    assert plan.chosen_by == (
        "a table: sim:sm_80, driver , 2026-01-31: 1 ms, the estimate's 1.5 ms"
    )


@pytest.mark.unit
def test_the_user_s_table_comes_before_the_package_s(table: Path) -> None:
    assert found() is None
    merge(tuned.SHIPPED, [entry("2026-01-02T00:00:00")])
    assert "2026-01-02" in found().source
    merge(table, [entry("2026-01-01T00:00:00")])
    assert "2026-01-01" in found().source


@pytest.mark.kernel
def test_the_table_that_ships_is_of_the_kernels_that_ship() -> None:
    """tests/helpers/shipped_kernels.py takes out what does not count any more."""
    entries = read(SHIPPED)
    assert {each.device for each in entries} == {"NVIDIA H200"}
    assert {each.operation for each in entries} == {"attention", "attention_backward", "gemm"}
    assert [each.problem for each in entries if not is_current(each)] == []


@pytest.mark.unit
def test_the_table_that_ships_is_taken_for_its_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuned, "SHIPPED", SHIPPED)
    of_products = (each for each in read(SHIPPED) if each.operation == "gemm" and each.choices)
    problems = (dict(re.findall(r"(\w+)=(\w+)", each.problem)) for each in of_products)
    plain = {"batch", "m", "n", "k", "dtype", "out_dtype"}
    sizes = next(each for each in problems if set(each) == plain and each["dtype"] == "bf16")
    problem = ",".join(sizes[name] for name in "mnk")
    assert main(["plan", "gemm", "--problem", problem, "--device", "NVIDIA H200"]) == 0
    assert "chosen by a table: NVIDIA H200" in capsys.readouterr().out


@pytest.mark.unit
def test_another_driver_s_counts_where_there_is_none_of_the_own(table: Path) -> None:
    merge(table, [entry("2026-01-01T00:00:00", driver="12.0"), entry(driver="13.0")])
    assert "2026-01-31" in found().source
    merge(table, [entry("2025-12-31T00:00:00")])
    assert "2025-12-31" in found().source


@pytest.mark.unit
@pytest.mark.parametrize(
    "change",
    [{"digest": "0" * 16}, {"kernel": "gemm_sm60"}, {"config": {"block_m": 128, "gone": 1}}],
    ids=str,
)
def test_a_choice_of_another_kernel_does_not_count(change: dict, table: Path) -> None:
    made = entry()
    merge(table, [replace(made, choices=({**made.choices[0], **change},))])
    assert found() is None


@pytest.mark.unit
def test_a_choice_that_is_illegal_here_does_not_count(table: Path) -> None:
    made = entry()
    config = gemm_sm80.Config(**made.choices[0]["config"])
    split = gemm_sm80.values(replace(config, splits=64))["config"]
    remade = entry_of("gemm", [PROBLEM], PLACE, [(gemm_sm80, split)], date=made.date,
                      milliseconds=1.0, estimated_milliseconds=1.5)  # fmt: skip
    merge(table, [remade])
    assert found() is None


@pytest.mark.unit
@pytest.mark.parametrize("name", [tuned.ENVIRONMENT, "CUEVO_VARIANT"])
def test_the_environment_is_asked_first(
    name: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(table, [entry()])
    monkeypatch.setenv(name, {"CUEVO_VARIANT": "sm_80"}.get(name, "0"))
    assert found() is None
    monkeypatch.delenv(name)
    assert found() is not None
    with tuned.left_alone():
        assert found() is None


@pytest.mark.unit
def test_of_two_entries_the_newer_stays_and_lines_are_for_readers(table: Path) -> None:
    old, new = entry(), entry("2026-02-01T00:00:00")
    other = entry(problem="another")
    assert merge(table, [old]) == 1
    assert merge(table, [new, other]) == 2
    assert merge(table, [old]) == 0
    assert read(table) == [other, new]
    lines = table.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line.rstrip(",")) for line in lines[1:-1]] == [
        json.loads(json.dumps(asdict(each))) for each in (other, new)
    ]


@pytest.mark.unit
def test_a_damaged_table_is_an_error_to_the_tool_and_a_warning_to_a_call(table: Path) -> None:
    table.write_text('{"tuned": [{"device": 1}]}', encoding="utf-8")
    with pytest.raises(CuevoError, match=re.escape(f"{table} is not a table of tuned choices")):
        merge(table, [entry()])
    with pytest.warns(RuntimeWarning, match="tuned choices are left alone"):
        assert found() is None


def add(path: str, number: int) -> None:
    for i in range(8):
        merge(Path(path), [entry(problem=f"{number} {i}")])


@pytest.mark.unit
def test_processes_add_to_one_table(table: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=add, args=(str(table), n)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(read(table)) == 32
    assert {path.name for path in table.parent.iterdir() if path.suffix == ".tmp"} == set()


@pytest.mark.unit
@pytest.mark.parametrize(
    ("extent", "rounded"), [(1, 1), (31, 31), (63, 64), (64, 64), (65, 68), (257, 272), (769, 800)]
)
def test_a_class_spans_a_few_percent_and_no_multiple_of_64(extent: int, rounded: int) -> None:
    words = problem_class([replace(PROBLEM, m=extent)])
    assert words == f"batch=1 m={rounded} n=48 k=64 dtype=f16 out_dtype=f16"
    assert rounded < 1.07 * extent and -(-extent // 64) == -(-rounded // 64)


@pytest.mark.unit
def test_plan_says_where_a_choice_comes_from(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "gemm", "--problem", "40,48,64", "--dtype", "f16", "--arch", "sm_80"]
    assert main(words) == 0
    assert "\nchosen by an estimate\n" in capsys.readouterr().out
    merge(table.with_name("other.json"), [entry(device="NVIDIA H200", driver="13.0")])
    assert main(["tune", "--merge", str(table.with_name("other.json"))]) == 0
    assert capsys.readouterr().out == f"{table}: 1 entries are new\n"
    assert main([*words, "--device", "NVIDIA H200"]) == 0
    printed = capsys.readouterr().out
    assert "\nchosen by a table: NVIDIA H200, driver 13.0, 2026-01-31: 1 ms" in printed
    assert " raster=3 " in printed
