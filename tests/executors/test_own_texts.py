"""Files of anybody's: how they are read, and what messages call them."""

from pathlib import Path

import pytest

import cuevo
from cuevo.errors import CuevoError, TemplateError
from cuevo.executors.own.texts import read_kernel

pytestmark = pytest.mark.unit

PLAIN = ".version 7.8\n.target sm_80\n.address_size 64\n.entry own()\n{\n    ret;\n}\n"
TEMPLATE = '//% import "more.ptx" as more\n' + PLAIN.replace("ret;", "${ more.end(1) }")
MACROS = "//% macro end(x)\n    // ${x.none.more}\n    ret;\n//% endmacro\n"


@pytest.fixture(params=["macros", "sp ace", "größer (2)", "ptx"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """One below that of a template `own.ptx`, which imports `more.ptx`."""
    (tmp_path / "own.ptx").write_text(TEMPLATE, encoding="utf-8")
    folder = tmp_path / str(request.param)
    folder.mkdir()
    return folder


def test_a_macro_that_fails_is_named_by_its_file(folder: Path) -> None:
    (folder / "more.ptx").write_text(MACROS, encoding="utf-8")
    with pytest.raises(TemplateError) as caught:
        read_kernel(folder.parent / "own.ptx", directories=[folder])
    first, second = str(caught.value).splitlines()
    assert first == f"{folder / 'more.ptx'}:2: 'int object' has no attribute 'none'"
    assert second == f"    called from {folder.parent / 'own.ptx'}:7"


def test_one_folder_need_not_be_in_a_list(folder: Path) -> None:
    (folder / "more.ptx").write_text(MACROS.replace(".none.more", ""), encoding="utf-8")
    for directories in (folder, str(folder), [str(folder)]):
        kernel = cuevo.load(folder.parent / "own.ptx", directories=directories)
        assert "    // 1\n    ret;\n" in kernel.rendered.text


def test_an_error_in_a_header_names_the_header(folder: Path) -> None:
    given, beside = folder / "own.h", folder.parent / "cuevo.h"
    for path in (given, beside):
        path.write_text("\nstruct s { int x };\n", encoding="utf-8")
    with pytest.raises(CuevoError) as caught:
        cuevo.load(PLAIN, header=given)
    assert str(caught.value).startswith(f"{given}:2:")
    with pytest.raises(CuevoError) as caught:
        cuevo.load(folder.parent / "own.ptx", directories=folder)
    assert str(caught.value).startswith(f"{beside}:2:")


def test_a_file_that_is_no_text_is_named(folder: Path) -> None:
    for name in ("more.ptx", "plain.ptx", "own.h"):
        (folder / name).write_bytes(b"// \xff\xfe\n")
    said = "no text in UTF-8: invalid start byte at byte 3"
    with pytest.raises(CuevoError) as caught:
        read_kernel(folder / "plain.ptx")
    assert str(caught.value) == f"{folder / 'plain.ptx'}: the file is {said}"
    with pytest.raises(TemplateError, match=rf"own\.ptx:1: 'more\.ptx' is {said}"):
        read_kernel(folder.parent / "own.ptx", directories=folder)
    with pytest.raises(CuevoError) as caught:
        cuevo.load(PLAIN, header=folder / "own.h")
    assert str(caught.value) == f"{folder / 'own.h'}: the file is {said}"


def test_a_byte_order_mark_is_no_part_of_a_text(folder: Path) -> None:
    (folder / "plain.ptx").write_text(PLAIN, encoding="utf-8-sig")
    assert read_kernel(folder / "plain.ptx").text == PLAIN
    (folder / "more.ptx").write_text(MACROS.replace(".none.more", ""), encoding="utf-8-sig")
    (folder.parent / "own.ptx").write_text(TEMPLATE, encoding="utf-8-sig")
    rendered = read_kernel(folder.parent / "own.ptx", directories=folder)
    assert rendered.text.startswith(".version 7.8\n") and "\ufeff" not in rendered.text
