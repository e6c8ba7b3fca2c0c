"""`cuevo check --watch FILE`: what is told when a file is saved again."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cuevo.cli import main
from cuevo.cli.watch import _unlike

EXAMPLE = Path(__file__).parents[2] / "examples/plain_softmax/softmax.ptx"


class Editor:
    """Saves a file while the command waits, an edit at a time, and then interrupts it."""

    def __init__(self, path: Path, *edits: Callable[[str], str]) -> None:
        self.path, self.edits = path, list(edits)

    def __call__(self, seconds: float) -> None:
        if not self.edits:
            raise KeyboardInterrupt
        self.path.write_text(self.edits.pop(0)(self.path.read_text("utf-8")), "utf-8")


@pytest.mark.kernel
def test_what_has_changed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "softmax.ptx"
    shutil.copy(EXAMPLE, path)
    editor = Editor(
        path,
        lambda text: text.replace("ex2.approx.f32", "ex2.approx.ftz.f32"),
        lambda text: text + "\n// a comment\n",
        lambda text: text.replace("ex2.approx.ftz.f32", "ex2.aprox.ftz.f32"),
    )
    monkeypatch.setattr("time.sleep", editor)
    arrays = ["f32[18,100]", "f32[18,100]=0"]
    command = ["check", "--watch", str(path), "--grid", "5", "--args", *arrays, "18", "100"]
    assert main(command) == 130
    looks = [look.splitlines() for look in capsys.readouterr().out.split(f"{path}, ")[1:]]
    assert len(looks) == 4
    first, edited, commented, broken = looks
    assert first[1].startswith("registers ") and "machine instructions" in first[1]
    assert "nothing was found" in first
    assert "  ex2.approx.ftz.f32 0 -> 72" in edited and "  ex2.approx.f32 72 -> 0" in edited
    assert any(line.startswith("machine instructions ") and "->" in line for line in edited)
    assert {"the machine code is as before", "as many instructions ran as before"} <= {*commented}
    assert "Unknown modifier '.aprox'" in broken[1] and broken[1].startswith(f"error: {path}:")


@pytest.mark.kernel
def test_findings_come_and_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "softmax.ptx"
    shutil.copy(EXAMPLE, path)
    mended = path.read_text("utf-8")
    unused = mended.replace("    ret;", "    ret;\n    mov.u32 rest, 1;", 1)
    unused = unused.replace(".reg", ".reg .b32 rest;\n    .reg", 1)
    path.write_text(unused, "utf-8")
    moved = "// a comment\n" + unused
    monkeypatch.setattr("time.sleep", Editor(path, lambda _: moved, lambda _: mended))
    words = ["--grid", "5", "--args", "f32[18,100]", "f32[18,100]=0", "18", "100"]
    assert main(["check", str(path), "--watch", str(path), *words]) == 130
    looks = capsys.readouterr().out.split(f"{path}, ")[1:]
    first, second, third = (look.splitlines() for look in looks)
    (finding,) = [line for line in first if line.startswith("warning: ")]
    assert "never ran" in finding
    number = unused[: unused.index("mov.u32 rest")].count("\n") + 1
    below = finding.replace(f":{number}:", f":{number + 1}:")
    assert f"moved: {below}" in second and below != finding
    assert not any(line.startswith(("warning", "gone")) for line in second)
    assert third[third.index(f"gone: {below}") + 1] == "nothing was found"


@pytest.mark.unit
def test_findings_are_alike_but_for_lines_and_addresses() -> None:
    earlier = ["error: a.ptx:7: at 0x7f10", "warning: a.ptx:8: slow", "warning: a.ptx:9: slow"]
    now = ["warning: a.ptx:9: slow", "warning: a.ptx:10: slow", "warning: a.ptx:11: slow"]
    assert _unlike(now, earlier) == ["warning: a.ptx:11: slow"]
    assert _unlike(earlier, now) == ["error: a.ptx:7: at 0x7f10"]
    assert _unlike(["error: a.ptx:9: at 0x7000"], earlier) == []
    assert _unlike(["error: b.ptx:7: at 0x7f10"], earlier) == ["error: b.ptx:7: at 0x7f10"]


@pytest.mark.kernel
def test_a_kernel_by_its_name_is_right_so_far_before_it_has_run_in_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("time.sleep", Editor(EXAMPLE))
    tile = (
        "--set",
        "block_m=64",
        "--set",
        "block_n=64",
        "--set",
        "warp_m=32",
        "--set",
        "warp_n=32",
    )
    words = [*tile, "--set", "a_columns=true", "--set", "b_columns=true"]
    assert main(["check", "--watch", "gemm_sm70", *words]) == 130
    told = [line.partition(" after ")[0] for line in capsys.readouterr().out.splitlines()]
    assembled, right, checked = map(told.index, ("assembled", "right so far", "checked"))
    assert assembled < right < checked


@pytest.mark.unit
def test_what_cannot_be_watched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 2
    assert "name a kernel" in capsys.readouterr().err
    assert main(["check", "gemm_sm80", "--watch", "gemm_sm70"]) == 2
    assert main(["check", "--watch", "gemm_sm80", "--json"]) == 2
    assert "goes with no --json" in capsys.readouterr().err
