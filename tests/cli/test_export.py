"""`cuevo export`: what is in a folder, and what is refused."""

import hashlib
import json
from pathlib import Path

import pytest
from cuda import pathfinder
from helpers.fat_binaries import need_fat_binaries

from cuevo.cli import main
from cuevo.cli.arguments.usage import EXIT_FAILED, EXIT_OK, EXIT_USAGE

pytestmark = pytest.mark.unit

SMALL = (
    *("forward", "--head-dims", "8", "--masks", "none", "--pairs", "none"),
    *("--architectures", "sm_80", "--workers", "1"),
)


def test_a_folder_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_fat_binaries()
    assert main(["export", *SMALL, "-o", str(tmp_path)]) == EXIT_OK
    assert "MB" in capsys.readouterr().out
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["architectures"] == ["sm_80"]
    assert "products" not in manifest
    listed = manifest["files"] | {name: x["sha256"] for name, x in manifest["kernels"].items()}
    found = {
        path.relative_to(tmp_path).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in tmp_path.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    assert found == listed
    assert {"include/cuevo_launch.h", "include/cuevo.h", "CMakeLists.txt", "cuevo.pc"} <= {*found}
    kernels = (tmp_path / "src/cuevo_kernels.c").read_text()
    assert all(f'"{name}", "{x["entry"]}"' in kernels for name, x in manifest["kernels"].items())
    magic = b"\x50\xed\x55\xba"  # of fat binaries
    assert all((tmp_path / name).read_bytes().startswith(magic) for name in manifest["kernels"])
    assert "@VERSION@" not in (tmp_path / "cuevo.pc").read_text()


def test_kernels_of_an_export_before_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_fat_binaries()
    kept = tmp_path / "kernels/own.txt"
    assert main(["export", *SMALL, "-o", str(tmp_path)]) == EXIT_OK
    kept.write_text("of somebody else")
    before = {path.name for path in tmp_path.glob("kernels/*.fatbin")}
    wider = [*SMALL, "--head-dims", "16", "-o", str(tmp_path)]
    capsys.readouterr()
    assert main(["export", *wider]) == EXIT_OK
    listed = json.loads((tmp_path / "manifest.json").read_text())["kernels"]
    after = {path.name for path in tmp_path.glob("kernels/*.fatbin")}
    assert {f"kernels/{name}" for name in after} == {*listed}
    assert before - after
    assert kept.read_text() == "of somebody else"
    files = sum(path.is_file() for path in tmp_path.rglob("*"))
    assert f"{tmp_path}: {files - 1} files" in capsys.readouterr().out


def test_without_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        raise pathfinder.DynamicLibNotFoundError(f"no {name}")

    monkeypatch.setattr(pathfinder, "load_nvidia_dynamic_lib", missing)
    assert main(["export", *SMALL, "-o", str(tmp_path / "folder")]) == EXIT_FAILED
    assert "pip install 'cuevo[export]'" in capsys.readouterr().err
    assert not (tmp_path / "folder").exists()


def test_no_other_files_go(tmp_path: Path) -> None:
    need_fat_binaries()
    outside = tmp_path / "outside.fatbin"
    outside.touch()
    folder = tmp_path / "folder"
    folder.mkdir()
    for manifest in ('{"kernels": {"../outside.fatbin": {}}}', "[1]", "{", '{"kernels": 3}'):
        (folder / "manifest.json").write_text(manifest)
        assert main(["export", *SMALL, "-o", str(folder)]) == EXIT_OK
        assert outside.exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (("gradient", *SMALL[1:]), "operations: expected some of forward, backward, gemm"),
        ((*SMALL, "--head-dims", "12"), "head dims are multiples of 8"),
        ((*SMALL, "--head-dims", "wide"), "--head-dims: 'wide' are no numbers; write 16 or 8,16"),
        ((*SMALL, "--workers", "0"), "--workers: '0' is no count; write 1 or more"),
        ((*SMALL, "--workers", "-1"), "--workers: '-1' is no count"),
        ((*SMALL, "--masks", "own,int"), "masks: expected some of none, own, f32, bool"),
        ((*SMALL, "--pairs", "bool"), "pairs: expected some of none, own, f32"),
        (SMALL[:1] + SMALL[3:], "head dims: attention needs one or more"),
        (("gemm", *SMALL[3:], "--orders", "row"), "orders: expected some of nn, nt, tn, tt"),
        (("gemm", *SMALL[3:], "--alignments", "8"), "alignments: expected some of 16, 2"),
        ((*SMALL, "--architectures", "sm_70"), "from sm_80 on"),
        ((*SMALL, "--architectures", "sm_81"), "no architecture sm_81"),
        ((*SMALL, "--architectures", "sm_90,sm_90a"), "each once"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    changed: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    try:
        code = main(["export", *changed, "-o", str(folder)])
    except SystemExit as error:
        code = int(str(error.code))
    assert code == EXIT_USAGE
    assert message in capsys.readouterr().err
    assert not folder.exists()
