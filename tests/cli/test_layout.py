import json
import re
import shlex
import sys
from xml.etree import ElementTree

import pytest
from rich.console import Console

from cuevo.cli import layout, main
from cuevo.layouts import LDMATRIX_TRANS
from cuevo.layouts.catalogue import ENTRIES, find_picture

pytestmark = pytest.mark.unit


def test_without_a_name_all_are_listed(capsys):
    assert main(["layout"]) == 0
    printed = capsys.readouterr().out
    assert main(["layout", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == [entry.form for entry in ENTRIES]
    for entry in listed:
        (line,) = (line for line in printed.splitlines() if line.startswith(f"| {entry['name']} "))
        assert [word.strip() for word in line.strip("|").split("|")] == list(entry.values())
    (entry,) = (entry for entry in listed if entry["name"] == "m16n8k16.a")
    assert (entry["shape"], entry["registers"]) == ("16 x 16", "4")


def test_the_grid_is_printed(capsys):
    assert main(["layout", "m16n8k8.b"]) == 0
    assert capsys.readouterr().out == (
        "m16n8k8.b: B of mma.m16n8k8\n"
        "8 x 8 (k down, n across), 1 register in each of 32 lanes; lane and register, "
        "l and h its low and high half\n"
        "\n"
        "   0      1      2      3      4      5      6      7\n"
        "0  00:r0l 04:r0l 08:r0l 12:r0l 16:r0l 20:r0l 24:r0l 28:r0l\n"
        "1  00:r0h 04:r0h 08:r0h 12:r0h 16:r0h 20:r0h 24:r0h 28:r0h\n"
        "2  01:r0l 05:r0l 09:r0l 13:r0l 17:r0l 21:r0l 25:r0l 29:r0l\n"
        "3  01:r0h 05:r0h 09:r0h 13:r0h 17:r0h 21:r0h 25:r0h 29:r0h\n"
        "4  02:r0l 06:r0l 10:r0l 14:r0l 18:r0l 22:r0l 26:r0l 30:r0l\n"
        "5  02:r0h 06:r0h 10:r0h 14:r0h 18:r0h 22:r0h 26:r0h 30:r0h\n"
        "6  03:r0l 07:r0l 11:r0l 15:r0l 19:r0l 23:r0l 27:r0l 31:r0l\n"
        "7  03:r0h 07:r0h 11:r0h 15:r0h 19:r0h 23:r0h 27:r0h 31:r0h\n"
    )


def test_a_terminal_gets_the_same_in_colours(capsys, monkeypatch):
    main(["layout", "swizzle:4"])
    plain = capsys.readouterr().out
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(
        layout, "console", lambda: Console(force_terminal=True, color_system="truecolor", width=80)
    )
    main(["layout", "swizzle:4"])
    coloured = capsys.readouterr().out
    first = find_picture("swizzle:4").cells[0]
    red, green, blue = (int(first.colour[start : start + 2], 16) for start in (1, 3, 5))
    assert f"\x1b[30;48;2;{red};{green};{blue}m0\x1b[0m" in coloured
    stripped = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def test_json_has_every_element(capsys):
    assert main(["layout", "ldmatrix.trans", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["name"] == "ldmatrix.trans"
    assert len(report["cells"]) == 64
    for cell in report["cells"]:
        holder = cell["lane"], cell["register"], cell["half"]
        assert LDMATRIX_TRANS.rows[holder] == cell["row"]
        assert LDMATRIX_TRANS.columns[holder] == cell["column"]


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_file_is_drawn(suffix, capsys, tmp_path):
    path = tmp_path / f"picture{suffix}"
    assert main(["layout", "m16n8k8.a", "--output", str(path)]) == 0
    assert capsys.readouterr().out == ""
    content = path.read_bytes()
    if suffix == ".png":
        assert content.startswith(b"\x89PNG\r\n")
    else:
        ids = [element.get("id", "") for element in ElementTree.fromstring(content).iter()]
        assert sum(name.startswith("cell-") for name in ids) == 16 * 8


def test_without_matplotlib_the_extra_is_named(capsys, monkeypatch, tmp_path):
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = tmp_path / "picture.svg"
    assert main(["layout", "ldmatrix", "--output", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert 'needs matplotlib: pip install "cuevo[draw]"' in captured.err
    assert not path.exists()
    assert main(["layout", "ldmatrix"]) == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["m16n8k16.c"], "there is no layout 'm16n8k16.c'. Did you mean m16n8k16.b?"),
        (["m8n8k4.acc"], "Did you mean m8n8k4.acc:MxN?"),
        (["wgmma.m64n12.acc"], "wgmma.m64n12.acc: N of wgmma is a multiple of 8"),
        (["swizzle:0"], "swizzle:0: a row must have at least one 16-byte chunk"),
        (["--output", "x.svg"], "--output draws one layout: give its name."),
        (["ldmatrix", "--output", "x.pdf"], "--output takes .svg or .png, not 'x.pdf'."),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_sentence(words, sentence, capsys):
    assert main(["layout", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("cuevo: ")
    assert sentence in captured.err


def test_the_examples_of_the_help_page_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["layout", "--help"])
    examples = re.findall(r"^  cuevo (layout.*?)(?: \|.*)?$", capsys.readouterr().out, re.MULTILINE)
    assert len(examples) > 3
    for words in examples:
        assert main(shlex.split(words)) == 0
    assert (tmp_path / "accumulators.svg").stat().st_size > 0
