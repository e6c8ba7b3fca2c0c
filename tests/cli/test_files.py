"""Commands on PTX files of anybody's."""

import json
from pathlib import Path

import numpy as np
import pytest

from cuevo.cli import main
from cuevo.cli.arguments.files import make_argument

FILE = "examples/plain_softmax/softmax.ptx"
STRUCT = (
    "examples/row_softmax/row_softmax.ptx --set dtype=f16 --set block_n=32 --set stages=2 "
    "--set access=16 --set exact=true"
)
TEMPLATE = """\
//% import "start.ptx" as start
.version 7.0
.target sm_80
.address_size 64
.entry own()
.reqntid ${threads}, 2
{
    .reg .u32 x;
    ${ start.value("x", first) }
    ret;
}
"""


@pytest.fixture(autouse=True)
def at_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


@pytest.fixture
def template(tmp_path: Path) -> list[str]:
    """A template, and where its macro is."""
    macros = tmp_path / "macros"
    macros.mkdir()
    macro = "//% macro value(to, first)\nmov.u32 ${to}, ${first + 1};\n//% endmacro\n"
    (macros / "start.ptx").write_text(macro, encoding="utf-8")
    (tmp_path / "own.ptx").write_text(TEMPLATE, encoding="utf-8")
    return [str(tmp_path / "own.ptx"), "--directory", str(macros)]


ARRAYS = ["f32[18,100]", "f32[18,100]=0"]


@pytest.mark.kernel
def test_a_file_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check", FILE, "--grid", "5", "--args", *ARRAYS, "18", "100", "--json"]
    assert main(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["kernel"], report["arch"], report["ok"]) == ("softmax()", "sm_80", True)
    assert report["findings"] == []
    assert report["errors"] == {}
    # A lane has four of the hundred columns at most, and comes to each of three loops.
    assert report["instructions"]["ex2.approx.f32"] == 18 * 4
    assert all(line.startswith(f"{FILE}:") for line in report["lines"])
    assert main([*command, "--arch", "90"]) == 0
    assert json.loads(capsys.readouterr().out)["arch"] == "sm_90"


@pytest.mark.unit
@pytest.mark.parametrize("word", ["f64[8,3]", "bf16[7]=0.5", "u8[3]"])
def test_arrays_begin_where_those_of_a_device_do(word: str) -> None:
    rng = np.random.default_rng(0)
    made = [make_argument(word, rng) for _ in range(5)]
    assert not any(array.ctypes.data % 256 for array in made)
    assert all(array.flags.c_contiguous and array.flags.writeable for array in made)
    if "=" in word:
        assert all((array == 0.5).all() for array in made)


@pytest.mark.kernel
def test_a_fault_of_a_file_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    small = [ARRAYS[0], "f32[18,99]=0"]
    assert main(["check", FILE, "--grid", "5", "--args", *small, "18", "100"]) == 1
    printed = capsys.readouterr().out
    assert f"error: {FILE}:" in printed and "past the end of y" in printed
    few = ["--grid", "5", "--args", *ARRAYS, "18", "100", "--most-instructions", "100"]
    assert main(["check", FILE, *few]) == 1
    assert "error: " in capsys.readouterr().out


@pytest.mark.kernel
def test_a_line_of_a_file_is_followed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--threads", "32", "--args", *ARRAYS, "18", "100", "--lines", "0"]
    assert main(["check", FILE, "--trace", "softmax.ptx:35", *words]) == 0
    assert "softmax.ptx:35" in capsys.readouterr().err


@pytest.mark.unit
def test_a_file_is_assembled(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["assemble", FILE, "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["arch"], report["threads"], report["spill_stores"]) == ("sm_80", 128, 0)
    assert (report["resident_blocks"], report["limited_by"]) == (16, "threads")
    more = ["--threads", "32,2", "--shared", "60000", "--arch", "90", "--json"]
    assert main(["assemble", FILE, *more]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["arch"], report["threads"], report["dynamic_shared"]) == ("sm_90", 64, 60000)
    assert (report["resident_blocks"], report["limited_by"]) == (3, "shared memory")
    assert report["resident_warps"] == "6 of 64"


@pytest.mark.unit
def test_a_template_gets_its_values_and_macros(
    template: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", "threads=32", "--set", "first=0x10"]
    assert main(["render", *template, *settings]) == 0
    assert "    mov.u32 x, 17;\n" in capsys.readouterr().out
    assert main(["assemble", *template, *settings, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["threads"] == 64
    assert main(["render", *template, *settings, "--origin"]) == 0
    assert "macros/start.ptx:2  " in capsys.readouterr().out
    assert main(["render", template[0], *settings]) == 1
    assert "own.ptx:1: there is no template 'start.ptx'" in capsys.readouterr().err


@pytest.mark.unit
@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("check gemm_sm80 --grid 5", 2, "--grid is for a PTX file, which 'gemm_sm80' does not"),
        ("render gemm_sm80 --entry x", 2, "--entry is for a PTX file"),
        (f"check {FILE} --grid 5", 2, "softmax takes .u64 x, .u64 y, .u32 rows, .u32 columns"),
        (f"check {FILE} --args 1.5 0 0 0", 2, "--args: .u64 x: expected an array"),
        (f"check {FILE} --args x 0 0 0", 2, "an argument is a number or an array such as"),
        (f"check {FILE} --args f31[4] 0 0 0", 2, "the types of elements are s8, s16"),
        (f"check {FILE} --args f32[4]=x 0 0 0", 2, "an array is filled with a number"),
        (f"check {FILE} --threads 2000 --args 0 0 0 0", 1, "2000 threads in a block; 1024 are the"),
        (f"assemble {FILE} --threads 129", 1, "softmax(): 129 threads in a block; .maxntid allows"),
        (f"assemble {FILE} --threads 2000", 1, "2000 threads in a block; 1024 are the most"),
        (f"inspect {FILE} --threads 1,1,65", 1, "a block is 65 threads deep; 64 are the most"),
        (
            f"check {FILE} --args f32[99999999999999] 0 0 0",
            2,
            "f32[99999999999999]: there is no such",
        ),
        (f"check {FILE} --args f32[9999999999999999999,9] 0 0 0", 2, "there is no such array: "),
        (f"check {FILE} --args u8[4]=300 0 0 0", 2, "u8[4]=300: there is no such array: "),
        (f"assemble {FILE} --entry other", 1, "there is no 'other' in"),
        (f"render {FILE} --arch 90", 2, "--arch is for a kernel by its name"),
        (f"render {FILE} --set n=1", 1, "is plain PTX, which takes none; got n"),
        (f"render {FILE} --header examples/row_softmax/cuevo.h", 1, "declares no kernel softmax"),
        (
            f"check {STRUCT} --threads 1 --args m=1",
            2,
            "struct row_softmax_params: give --args",
        ),
        ("render none.ptx", 1, "No such file or directory: 'none.ptx'"),
    ],
)
def test_what_cannot_be_carried_out(
    command: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == code
    assert words in capsys.readouterr().err


ARRAYS_IN_A_STRUCT = """
.version 7.0
.target sm_80
.address_size 64
.entry sums(.param .align 8 .b8 params[16])
.reqntid 1
{
    .reg .s32 x<3>; .reg .u64 to;
    ld.param.u64 to, [params]; ld.param.s8 x0, [params+8]; ld.param.s8 x1, [params+9];
    ld.param.s8 x2, [params+10]; add.s32 x0, x0, x1; add.s32 x0, x0, x2;
    st.global.s32 [to], x0;
    ret;
}
"""


@pytest.mark.kernel
def test_a_member_that_is_an_array_is_a_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, path = tmp_path / "sums.h", tmp_path / "sums.ptx"
    header.write_text("struct of { void *to; int8_t x[3]; };\nvoid sums(struct of params);\n")
    path.write_text(ARRAYS_IN_A_STRUCT)
    command = ["check", str(path), "--header", str(header), "--watch", "x0", "--args"]
    assert main([*command, "to=s32[1]=0", "x=[5,-9,3]"]) == 0
    assert "x0 = 0xffffffff (" in capsys.readouterr().err
    assert main([*command, "to=s32[1]=0", "x=[5,-9]"]) == 1
    assert "struct of: x: expected 3 of int8_t; got 2" in capsys.readouterr().err


@pytest.mark.unit
def test_a_kernel_without_threads_asks_for_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bare.ptx"
    head = ".version 7.0\n.target sm_80\n.address_size 64\n"
    path.write_text(head + ".entry bare()\n{\n    ret;\n}\n", encoding="utf-8")
    assert main(["check", str(path)]) == 2
    assert "bare does not declare its threads: give --threads" in capsys.readouterr().err
    assert main(["assemble", str(path)]) == 0
    assert "give --threads" in capsys.readouterr().out


@pytest.mark.unit
@pytest.mark.parametrize("word", ["0", "1,2,3,4", "x", "1,-1"])
def test_what_is_no_size(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", FILE, "--grid", word])
    assert "is no size; write X, X,Y or X,Y,Z" in capsys.readouterr().err


@pytest.mark.unit
@pytest.mark.parametrize("word", ["-100000", "1.5", "x"])
@pytest.mark.parametrize("command", ["check", "assemble", "inspect"])
@pytest.mark.parametrize("option", ["--shared", "--seed"])
def test_what_is_no_natural_number(
    command: str, option: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if (command, option) != ("assemble", "--seed"):
        with pytest.raises(SystemExit):
            main([command, FILE, option, word])
        assert f"{option}: {word!r} is no integer from 0 on" in capsys.readouterr().err
