"""cuevo.toolchain.template: rendering, what templates call, and errors that name file and line."""

import math
import re
import struct
import threading
from pathlib import Path

import jinja2
import pytest

from cuevo.errors import TemplateError
from cuevo.toolchain.paths import ptx_directory
from cuevo.toolchain.rendering import lines
from cuevo.toolchain.rendering.names import ceil_div, float_bits
from cuevo.toolchain.template import SourceLine, kernel_names, render

pytestmark = pytest.mark.unit

HEADER = """\
struct k_params { void *q; int64_t stride; float scale; };
void k(const struct k_params params);
void other(const struct k_params params);
"""


@pytest.fixture
def ptx(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    (tmp_path / "cuevo.h").write_text(HEADER)
    return tmp_path


def text_of(ptx: Path, source: str, **values: object) -> str:
    (ptx / "k.ptx").write_text(source)
    return render("k", values, directory=ptx).text


def test_the_result_describes_itself(ptx: Path) -> None:
    (ptx / "k.ptx").write_text("// ${head_dim}\n.entry k() {\n  ret;\n}\n")
    kernel = render("k", {"head_dim": 32, "mask": "f16"}, directory=ptx)
    assert kernel.name == "k"
    assert kernel.describe() == "k(head_dim=32, mask=f16)"
    assert kernel.values == {"head_dim": 32, "mask": "f16"}
    assert kernel.params.name == "k_params"
    assert kernel.text == "// 32\n.entry k() {\n  ret;\n}\n"
    assert kernel.origin(1) == SourceLine("ptx/k.ptx", 1)
    assert kernel.origin(3) == SourceLine("ptx/k.ptx", 3)
    assert kernel.origin(0) is kernel.origin(99) is None


def test_line_information_is_for_who_asks(ptx: Path) -> None:
    (ptx / "k.ptx").write_text("// ${head_dim}\n.entry k() {\n  ret;\n}\n")
    kernel = render("k", {"head_dim": 32}, directory=ptx).located
    assert kernel.text == ('// 32\n.entry k() {\n  .loc 1 3 1\n  ret;\n}\n.file 1 "ptx/k.ptx"\n')
    assert kernel.origin(1) == SourceLine("ptx/k.ptx", 1)
    assert kernel.origin(4) == kernel.origin(3) == SourceLine("ptx/k.ptx", 3)
    assert kernel.origin(6) is None  # the .file directive
    assert kernel.origin(0) is kernel.origin(99) is None


def test_equal_values_are_rendered_once(ptx: Path) -> None:
    (ptx / "k.ptx").write_text("${n}\n")
    first = render("k", {"n": 1}, directory=ptx)
    assert render("k", {"n": 1}, directory=ptx) is first
    assert render("k", {"n": True}, directory=ptx).text == "True\n"
    assert render("k", {"n": 1, "m": 1}, directory=ptx) is not first
    (ptx / "k.ptx").write_text("${n + 1}\n")
    assert render("k", {"n": 1}, directory=ptx).text == "2\n"


def test_values_that_cannot_be_hashed(ptx: Path) -> None:
    values: list[int] = [1]
    assert text_of(ptx, "${n[0]}", n=values) == "1\n"
    values[0] = 2
    assert text_of(ptx, "${n[0]}", n=values) == "2\n"


def test_digests(ptx: Path) -> None:
    def digests(source: str) -> tuple[str, str]:
        (ptx / "k.ptx").write_text(source)
        kernel = render("k", {}, directory=ptx)
        return kernel.digest, kernel.code_digest

    digest, code = digests(".entry k() {\n  ret;\n}\n")
    assert digests(".entry k() {\n  ret;\n}\n") == (digest, code)
    moved, same_code = digests("// comment\n\n.entry k() {\n      ret; /* x\n x */\n}\n")
    assert moved != digest
    assert same_code == code
    further_down, same_code = digests("//# comment\n.entry k() {\n  ret;\n}\n")
    assert further_down != digest, "the cubin has other lines"
    assert same_code == code
    assert digests(".entry k() {\n  exit;\n}\n")[1] != code


def test_parameter_offsets(ptx: Path) -> None:
    assert text_of(ptx, "[params+${p.scale}] ${p.size} ${p.alignment}") == "[params+16] 24 8\n"


def test_globals_reach_every_library(ptx: Path) -> None:
    (ptx / "lib/a.ptx").write_text(
        '//% import "lib/b.ptx" as b\n//% macro f()\n${b.f()} ${p.scale}\n//% endmacro\n'
    )
    (ptx / "lib/b.ptx").write_text(
        "//% set size = p.size\n//% macro f()\n${size} ${unique('L')} ${layouts.swizzle(4).pitch}\n"
        "//% endmacro\n"
    )
    source = '//% import "lib/a.ptx" as a\n${a.f()}\n${a.f()}\n'
    assert text_of(ptx, source) == "24 L_1 4 16\n24 L_2 4 16\n"


def test_values_reach_a_library_only_with_context(ptx: Path) -> None:
    (ptx / "lib/a.ptx").write_text("//% macro f()\n${stages}\n//% endmacro\n")
    assert text_of(ptx, '//% import "lib/a.ptx" as a with context\n${a.f()}', stages=3) == "3\n"
    with pytest.raises(TemplateError, match=r"^ptx/lib/a.ptx:2: 'stages' is undefined"):
        text_of(ptx, '//% import "lib/a.ptx" as a\n${a.f()}', stages=3)


def test_a_library_does_not_remember_another_kernel(ptx: Path) -> None:
    """What a library computed when one kernel imported it is not what the next kernel gets."""
    (ptx / "cuevo.h").write_text(
        HEADER.replace("other(const struct k_params", "other(const struct o").replace(
            "void k", "struct o { float x; };\nvoid k"
        )
    )
    (ptx / "lib/a.ptx").write_text("//% set size = p.size\n")
    for name in ("k", "other"):
        (ptx / f"{name}.ptx").write_text('//% import "lib/a.ptx" as a\n${a.size} ${unique("x")}\n')
    assert render("k", {}, directory=ptx).text == "24 x_1\n"
    assert render("other", {}, directory=ptx).text == "4 x_1\n"
    assert render("k", {}, directory=ptx).text == "24 x_1\n"


def test_a_changed_template_is_read_again(ptx: Path) -> None:
    (ptx / "lib/a.ptx").write_text("//% set x = 1\n")
    source = '//% import "lib/a.ptx" as a\n${a.x}'
    assert text_of(ptx, source) == "1\n"
    (ptx / "lib/a.ptx").write_text("//% set x = 2\n")
    assert text_of(ptx, source) == "2\n"


def test_rendering_in_threads(ptx: Path) -> None:
    (ptx / "lib/a.ptx").write_text("//% macro f(x)\n${x} ${unique('L')}\n//% endmacro\n")
    (ptx / "k.ptx").write_text(
        '//% import "lib/a.ptx" as a\n//% for i in range(200)\n${a.f(n)}\n//% endfor\n'
    )
    texts: dict[int, str] = {}

    def work(number: int) -> None:
        texts[number] = render("k", {"n": number}, directory=ptx).text

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert texts[number] == "".join(f"{number} L_{i}\n" for i in range(1, 201))


def test_functions(ptx: Path) -> None:
    source = "${min(3, 2)} ${max([1, 5])} ${gcd(12, 8)} ${ceil_div(9, 4)} ${range(3)[2]}"
    assert text_of(ptx, source) == "2 5 4 3 2\n"
    assert (ceil_div(0, 4), ceil_div(8, 4), ceil_div(1, 4)) == (0, 2, 1)


@pytest.mark.parametrize("x", [0.0, -0.0, 1.0, 0.1, math.log2(math.e), -1e30, math.inf, -math.inf])
def test_float_bits(x: float) -> None:
    literal = float_bits(x)
    assert re.fullmatch("0f[0-9A-F]{8}", literal)
    assert bytes.fromhex(literal[2:]) == struct.pack(">f", x)


def test_float_bits_of_what_does_not_fit() -> None:
    assert float_bits(3.4028234e38) == "0f7F7FFFFF"
    with pytest.raises(ValueError, match=r"1e\+39 is out of the range"):
        float_bits(1e39)


def test_unique_counts_each_prefix_from_one(ptx: Path) -> None:
    source = "${unique('A')} ${unique('B')} ${unique('A')}"
    assert text_of(ptx, source) == text_of(ptx, source) == "A_1 B_1 A_2\n"


def test_strict_numbers(ptx: Path) -> None:
    assert text_of(ptx, "${'12' | int + 1} ${2.7 | int} ${'0.5' | float}") == "13 2 0.5\n"
    with pytest.raises(TemplateError, match=r"^ptx/k.ptx:1: invalid literal"):
        text_of(ptx, "${'x' | int}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n\n${ stagse }", "ptx/k.ptx:3: 'stagse' is undefined"),
        (
            "${p.q}\n  ${p.strid}",
            "ptx/k.ptx:2: 'cuevo.toolchain.structs.Struct object' has no attribute 'strid'",
        ),
        ("//% set x = 1 +\n", "ptx/k.ptx:1: "),
        ("a\n//% for i in range(2)\nb\n", "ptx/k.ptx:3: Unexpected end of template"),
        ("a\n//%tid\n", "ptx/k.ptx:2: Encountered unknown tag 'tid'"),
        ("a\n${p.q", "ptx/k.ptx:2: "),
        ("a\n${ 1 // 0 }", "ptx/k.ptx:2: ZeroDivisionError"),
        ("a\n${-1}", "ptx/k.ptx:2: an expression begins with a sign: write ${0 - x}"),
        ("a\n${ fail('too many stages') }", "ptx/k.ptx:2: too many stages"),
        ("a\n${ layouts.swizzle(0) }", "ptx/k.ptx:2: a row must have at least one"),
        ('\n//% import "lib/b.ptx" as b\n', "ptx/k.ptx:2: there is no template 'lib/b.ptx'"),
        (
            '//% import "lib/a.ptx" as a\n\n  ${ a.outer(\n  1) }',
            """ptx/lib/a.ptx:2: 'y' is undefined
    called from ptx/lib/a.ptx:5
    called from ptx/k.ptx:3""",
        ),
        ('//% import "lib/a.ptx" as a\n${ a.inner() }', "ptx/lib/a.ptx:2: parameter 'x' was not"),
        (
            '//% import "lib/a.ptx" as a\n${ a.inner(1, 2) }',
            "ptx/k.ptx:2: TypeError: macro 'inner'",
        ),
        ('//% import "lib/a.ptx" as a\n${ a.innr(1) }', "ptx/k.ptx:2: "),
        ('//% import "lib/broken.ptx" as a\n', "ptx/lib/broken.ptx:3: a bracket"),
    ],
)
def test_errors_name_file_and_line(ptx: Path, source: str, message: str) -> None:
    (ptx / "lib/a.ptx").write_text(
        "//% macro inner(x)\n  ${x} ${y}\n//% endmacro\n//% macro outer(x)\n  ${inner(x)}\n"
        "//% endmacro\n"
    )
    (ptx / "lib/broken.ptx").write_text("\n\n//% macro f(\n//% endmacro\n\n")
    for _ in range(2):  # the second time from compiled code
        with pytest.raises(TemplateError) as caught:
            text_of(ptx, source)
        assert str(caught.value).startswith(message)


def test_a_kernel_that_is_not_there(ptx: Path) -> None:
    (ptx / "k.ptx").write_text("")
    (ptx / "other.ptx").write_text("")
    with pytest.raises(ValueError, match=r"no kernel 'kk' in .*; the kernels are: k, other"):
        render("kk", {}, directory=ptx)


def test_a_kernel_without_prototype(ptx: Path) -> None:
    (ptx / "new.ptx").write_text("")
    with pytest.raises(TemplateError, match=r"^ptx/new.ptx:1: ptx/cuevo.h declares no such kernel"):
        render("new", {}, directory=ptx)


@pytest.mark.parametrize("name", ["p", "unique", "layouts", "range"])
def test_values_that_hide_a_global(ptx: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"k: {name} already has a meaning"):
        text_of(ptx, "", **{name: 1})


def test_later_changes_of_the_values_do_not_show(ptx: Path) -> None:
    (ptx / "k.ptx").write_text("${n}")
    values: dict[str, object] = {"n": 1}
    kernel = render("k", values, directory=ptx)
    values["n"] = 2
    assert kernel.values == {"n": 1}
    with pytest.raises(TypeError):
        kernel.values["n"] = 2  # type: ignore[index]


# -- The package's own templates -------------------------------------------------------------------


def test_kernel_names_are_the_files() -> None:
    names = kernel_names()
    assert names
    assert all((ptx_directory() / f"{name}.ptx").is_file() for name in names)
    assert list(names) == sorted(names)


@pytest.mark.parametrize(
    "name",
    sorted(path.relative_to(ptx_directory()).as_posix() for path in ptx_directory().rglob("*.ptx")),
)
def test_every_template_compiles(name: str) -> None:
    environment = lines._environment((ptx_directory(),))
    assert isinstance(environment.get_template(name), jinja2.Template)


@pytest.mark.parametrize("name", kernel_names())
def test_every_kernel_has_its_entry_point_and_parameter_block(name: str) -> None:
    """The text around the parameters is the same in each kernel, so that launches can be, too."""
    source = (ptx_directory() / f"{name}.ptx").read_text()
    declaration = (
        rf"\.visible\s+\.entry\s+{name}\s*\(\s*\.param\s+\.align\s+(8|\$\{{p\.alignment\}})"
    )
    assert re.search(declaration + r"\s+\.b8\s+params\[\$\{\s*p\.size\s*\}\]\s*\)", source)
