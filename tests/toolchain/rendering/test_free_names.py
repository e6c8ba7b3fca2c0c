"""cuevo.toolchain.rendering.free_names: macros use what they declare or are given."""

from pathlib import Path

import pytest

from cuevo.errors import TemplateError
from cuevo.toolchain.paths import ptx_directory
from cuevo.toolchain.rendering import free_names
from cuevo.toolchain.template import render

pytestmark = pytest.mark.unit

HEADER = """\
struct k_params { void *q; };
void k(const struct k_params params);
"""
ROOTS = (ptx_directory(), Path(__file__).parents[1] / "blocks" / "ptx")


def text_of(directory: Path, library: str, kernel: str = "", imported: str = "a") -> str:
    """A kernel that imports `library`; rendering it checks both."""
    (directory / "lib").mkdir(exist_ok=True)
    (directory / "cuevo.h").write_text(HEADER)
    (directory / "lib/a.ptx").write_text(library)
    (directory / "k.ptx").write_text(f'//% import "lib/{imported}.ptx" as a\n{kernel}\n')
    return render("k", {}, directory=directory).text


def macro(body: str, arguments: str = "x, q") -> str:
    return f"//% macro f({arguments})\n{body}\n//% endmacro\n"


@pytest.mark.parametrize(
    "body",
    [
        "    add.u32 ${x}, ${x}, 1;",
        "{\n    .reg .b32 y, z;\n    add.u32 ${x}, y, z;\n}",
        "    .reg .b32 y;\n{\n    add.u32 ${x}, y, 1;\n}",
        "{\n    .reg .f32 acc<4>;\n    add.f32 ${x}, acc0, acc3;\n}",
        "{\n    .reg .f32 acc<${q}>;\n//% set i = 2\n    add.f32 ${x}, acc${i}, acc${i + 1};\n}",
        "{\n    .reg .f32 t${q}_<4>;\n    mov.f32 t${q}_${1}, 0f00000000;\n}",
        "    .reg .b64 ${x}_from;\n    add.s64 ${x}_from, ${x}_from, 1;",
        "    ld.param.u32 ${x}, [params+8];\n    mov.u32 ${x}, smem;\n    mov.u32 ${x}, %tid.x;",
        "    mov.b32 ${x}, 0xff80; // y and z\n    /* w */ mov.b32 ${x}, -1; //# v",
        '//% set again = unique("again")\n${again}:\n    @${q} bra.uni ${again};',
        "AGAIN:\n    bra.uni AGAIN;",
        "    @!${q} st.shared.v2.f32 [${x}+16], {${q}0, ${q}1};",
        "{ .reg .pred y; setp.eq.u32 y, ${x}, 0; @y ret; }",
        "    ${q}cp.async.cg.shared.global [${x}], [${x}+1], 16;",
        "    shfl.sync.bfly.b32 ${x}|_, ${x}, 1, 31, 0xffffffff;",
        '    ${ g(q, "y") }\n    mov.b32 ${x}, 0;',
    ],
)
def test_macros_that_use_what_is_theirs(tmp_path: Path, body: str) -> None:
    text_of(tmp_path, macro(body))


@pytest.mark.parametrize(
    ("body", "line", "name"),
    [
        ("    add.u32 ${x}, ${x}, y;", 2, "y"),
        ("    @y add.u32 ${x}, ${x}, 1;", 2, "y"),
        ("    @!y ret;", 2, "y"),
        ("    st.global.b32 [y+${x}], ${x};", 2, "y"),
        ("{\n    .reg .b32 y;\n}\n    mov.b32 ${x}, y;", 5, "y"),
        ("    add.u32 ${x}, ${x}, 1;\n    add.f32 acc${q}, acc${q}, ${x};", 3, "acc"),
        ("{\n    .reg .f32 acc;\n    mov.f32 acc3, acc;\n}", 4, "acc3"),
        ("{\n    .reg .f32 acc;\n    mov.f32 acc${q}, acc;\n}", 4, "acc"),
        ("    mov.b32 {low, ${x}}, ${q};", 2, "low"),
        ("    bra.uni DONE;", 2, "DONE"),
        ("//% if q\n    mov.b32 ${x}, 0;\n//% else\n    mov.b32 ${x}, y;\n//% endif", 5, "y"),
        ("    mad.lo.u32 ${x},\n        ${q},\n        y, 1;", 2, "y"),
        ("    .reg .b32 y;\n//% macro g()\n    mov.b32 z, y;\n//% endmacro", 4, "z"),
    ],
)
def test_a_free_name_is_an_error_with_its_line(
    tmp_path: Path, body: str, line: int, name: str
) -> None:
    with pytest.raises(TemplateError, match=rf"^ptx/lib/a.ptx:{line}: the macro \w uses {name},"):
        text_of(tmp_path, macro(body))


def test_macros_of_a_kernel_see_its_open_scopes(tmp_path: Path) -> None:
    inside = ".entry k(\n    .param .b32 a\n)\n{\n    .reg .b32 y;\n"
    uses = "//% macro f()\n    mov.b32 y, 0;\n//% endmacro\n"
    text_of(tmp_path, "", inside + uses + "${ f() }\n}")
    for kernel in (
        uses + inside + "}",
        inside + "}\n" + uses,
        inside.replace(".reg", "{\n.reg") + "}\n" + uses + "}",
    ):
        with pytest.raises(TemplateError, match=r"^ptx/k.ptx:\d+: the macro f uses y,"):
            text_of(tmp_path, "", kernel)


def test_macros_within_macros_see_what_is_declared_around_them(tmp_path: Path) -> None:
    inner = "//% macro g()\n    mov.b32 y, ${x};\n//% endmacro\n    ${ g() }"
    text_of(tmp_path, macro("    .reg .b32 y;\n" + inner))
    with pytest.raises(TemplateError, match=r"a.ptx:3: the macro g uses y"):
        text_of(tmp_path, macro(inner))


def test_an_imported_library_is_checked_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/b.ptx").write_text('//% import "lib/a.ptx" as a\n')
    with pytest.raises(TemplateError, match=r"^ptx/lib/a.ptx:2: the macro f uses y, which it nei"):
        text_of(tmp_path, macro("    mov.b32 ${x}, y;"), imported="b")


def test_a_template_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []
    find = free_names.find
    monkeypatch.setattr(free_names, "find", lambda tokens: (checked.append(1), find(tokens))[1])
    for _ in range(3):
        text_of(tmp_path, macro("    mov.b32 ${x}, 0;"))
    assert len(checked) == 2  # the kernel and its library
