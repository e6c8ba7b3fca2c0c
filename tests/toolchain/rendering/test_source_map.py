"""cuevo.toolchain.rendering.source_map: the text of templates, the origin of each of its lines."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from cuevo.errors import TemplateError
from cuevo.toolchain.template import render

pytestmark = pytest.mark.unit

Lines = list[tuple[str, str]]
Expand = Callable[..., Lines]


@pytest.fixture
def expand(tmp_path: Path) -> Expand:
    """Renders ``k.ptx`` beside ``lib/a.ptx`` and ``lib/b.ptx``: (origin, line) for each line."""

    def run(k: str, a: str = "", b: str = "", values: Mapping[str, object] | None = None) -> Lines:
        (tmp_path / "lib").mkdir(exist_ok=True)
        (tmp_path / "cuevo.h").write_text(
            "struct s { void *q; float x; };\nvoid k(struct s params);"
        )
        for name, text in (("k", k), ("lib/a", a), ("lib/b", b)):
            (tmp_path / f"{name}.ptx").write_text(text)
        kernel = render("k", values or {}, directory=tmp_path)
        lines = kernel.text.split("\n")
        assert lines.pop() == ""
        assert not any(character < "\t" for line in lines for character in line)
        origins = [str(kernel.origin(number + 1)) for number in range(len(lines))]
        assert len(kernel.lines) == len(lines)
        return [
            (origin.removeprefix("ptx/").replace(".ptx", ""), line)
            for origin, line in zip(origins, lines, strict=True)
        ]

    return run


def test_plain_text_stays_as_it_is(expand: Expand) -> None:
    text = [
        ".version 7.0    // a comment, with $ and % and { and }",
        "  // an indented one /",
        "/* and // one of",
        "   two lines */",
        ".reg .b32 %r<4>, $x, a$b;",
        "\tmov.u32 %r1, %tid.x; /// tab",
        "mov.b64 {%r1, %r2}, %r3;//",
    ]
    assert expand("\n".join(text)) == [(f"k:{n}", line) for n, line in enumerate(text, 1)]


def test_empty_lines_and_template_comments_go(expand: Expand) -> None:
    assert expand("a\n\n   \nb; //# why\n//# all of it ${ undefined }\n  //#\nc //## d\n") == [
        ("k:1", "a"),
        ("k:4", "b;"),
        ("k:7", "c"),
    ]


def test_statements_may_be_indented_and_commented(expand: Expand) -> None:
    lines = expand("""\
//% for i in range(2)     //# twice
    //% if i == 1
  b${i};
      //%else
  a${i};
\t//%  endif
//% endfor
c
""")
    assert lines == [("k:5", "  a0;"), ("k:3", "  b1;"), ("k:8", "c")]


def test_statements_may_go_on_over_lines(expand: Expand) -> None:
    lines = expand("""\
//% set table = {"a": [1,
//%                    2],
    "(": ")"
//% }
${table.a[1]}${table["("]}
//% for i in [
//%   1,        //# one
//%   2]
${i}
//% endfor
""")
    assert lines == [("k:5", "2)"), ("k:9", "1"), ("k:9", "2")]


def test_lines_of_macros_keep_their_own_origin(expand: Expand) -> None:
    lines = expand(
        """\
//% import "lib/a.ptx" as a
{
    ${ a.outer(
          "x",
          2) }
}
    ${ a.outer("y", 1) }
z
""",
        """\
//% import "lib/b.ptx" as b
//% macro outer(name, count)
  first ${name};
//% for i in range(count)
    ${ b.inner(name ~ i) }
//% endfor

  last;
//% endmacro
""",
        """\
// not part of a macro
//% macro inner(name)
// inner
inner ${name};
    deeper;
//% endmacro
""",
    )
    assert lines == [
        ("k:2", "{"),
        ("lib/a:3", "    first x;"),
        ("lib/b:3", "      // inner"),
        ("lib/b:4", "      inner x0;"),
        ("lib/b:5", "          deeper;"),
        ("lib/b:3", "      // inner"),
        ("lib/b:4", "      inner x1;"),
        ("lib/b:5", "          deeper;"),
        ("lib/a:8", "    last;"),
        ("k:6", "}"),
        ("lib/a:3", "    first y;"),
        ("lib/b:3", "      // inner"),
        ("lib/b:4", "      inner y0;"),
        ("lib/b:5", "          deeper;"),
        ("lib/a:8", "    last;"),
        ("k:8", "z"),
    ]


def test_a_macro_may_be_a_word(expand: Expand) -> None:
    lines = expand(
        """\
//% import "lib/a.ptx" as a
mov ${a.offset(2)}, [x+${ a.offset(3) }];
//% set kept = a.offset(4)
    add ${kept}${kept},
//% set sum = kept | int + 1
    ${ sum };
""",
        "//% macro offset(i)\n\n    ${ 8 * i }\n//% endmacro\n",
    )
    assert lines == [("k:2", "mov 16, [x+24];"), ("k:4", "    add 3232,"), ("k:6", "    33;")]


def test_a_macro_of_many_lines_within_a_line(expand: Expand) -> None:
    lines = expand(
        '//% import "lib/a.ptx" as a\nbefore ${ a.two() } behind\n',
        "//% macro two()\n  one\n  two\n//% endmacro\n",
    )
    assert lines == [("lib/a:2", "before one"), ("k:2", "  two behind")]


def test_a_macro_that_writes_nothing_leaves_nothing(expand: Expand) -> None:
    lines = expand("//% macro empty()\n\n//% endmacro\na\n    ${ empty() }\nb${ empty() }c\n")
    assert lines == [("k:4", "a"), ("k:6", "bc")]


def test_values_of_many_lines_belong_to_their_line(expand: Expand) -> None:
    lines = expand("a\n  ${ text }\nb ${ text }", values={"text": "x\n  y\nz"})
    assert lines == [
        ("k:1", "a"),
        ("k:2", "  x"),
        ("k:2", "    y"),
        ("k:2", "  z"),
        ("k:3", "b x"),
        ("k:3", "  y"),
        ("k:3", "z"),
    ]


def test_several_values_on_a_line(expand: Expand) -> None:
    lines = expand("  ${1} ${2}\n ${3}${4}\n${5} // ${6}\n  ${7}  \n")
    assert lines == [("k:1", "  1 2"), ("k:2", " 34"), ("k:3", "5 // 6"), ("k:4", "  7")]


def test_captured_and_called_text(expand: Expand) -> None:
    lines = expand("""\
//% macro twice()
{
    ${ caller(1) }
    ${ caller(2) }
}
//% endmacro
//% call(i) twice()
  a ${i};
    b;
//% endcall
//% set kept
c;
//% endset
    ${ kept }
""")
    assert lines == [
        ("k:2", "{"),
        *[("k:8", "    a 1;"), ("k:9", "      b;")],
        *[("k:8", "    a 2;"), ("k:9", "      b;")],
        ("k:5", "}"),
        ("k:12", "    c;"),
    ]


def test_windows_line_ends(expand: Expand) -> None:
    assert expand("a\r\n//% if true\r\n  b\r\n//% endif\r\n") == [("k:1", "a"), ("k:3", "  b")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\n${ None }", "k.ptx:2: TypeError: None of type NoneType has no meaning in PTX text"),
        ("${ [1] }", "k.ptx:1: TypeError: [1] of type list has no meaning"),
        ("${ m }\n//% macro m()\n//% endmacro", "k.ptx:1: 'm' is undefined"),
        (
            "//% macro m()\n//% endmacro\n  ${ m }",
            "k.ptx:3: TypeError: macro m stands here without",
        ),
        ("a\n\x01\n", "k.ptx:2: there is a control character in this line"),
    ],
)
def test_what_has_no_meaning_is_refused(expand: Expand, text: str, message: str) -> None:
    with pytest.raises(TemplateError) as caught:
        expand(text)
    assert str(caught.value).startswith(f"ptx/{message}")


def test_the_calls_that_brought_a_line(tmp_path: Path) -> None:
    """Through two libraries, in a loop, and out of the block that a macro was called with."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "cuevo.h").write_text("struct s { void *q; };\nvoid k(struct s params);")
    (tmp_path / "k.ptx").write_text(
        '//% import "lib/a.ptx" as a\none;\n  ${ a.twice("x") }\n//% call a.around()\ninner;\n'
        "//% endcall\nlast ${ a.word() };\n"
    )
    (tmp_path / "lib" / "a.ptx").write_text(
        "//% macro once(x)\nadd ${x};\n\n//% endmacro\n//% macro twice(x)\n//% for i in range(2)\n"
        "${ once(x ~ i) }\n//% endfor\n//% endmacro\n//% macro around()\n${ caller() }\n"
        "//% endmacro\n//% macro word()\nw\n//% endmacro\n"
    )
    kernel = render("k", {}, directory=tmp_path)
    lines = kernel.text.splitlines()
    calls = {
        line.strip(): " ".join(
            str(each).removeprefix("ptx/")
            for each in (kernel.origin(number), *kernel.callers(number))
        )
        for number, line in enumerate(lines, 1)
    }
    assert calls == {
        "one;": "k.ptx:2",
        "add x0;": "lib/a.ptx:2 lib/a.ptx:7 k.ptx:3",
        "add x1;": "lib/a.ptx:2 lib/a.ptx:7 k.ptx:3",
        "inner;": "k.ptx:5 lib/a.ptx:11",
        "last w;": "k.ptx:7",
    }
    assert kernel.callers(0) == kernel.callers(len(lines) + 1) == ()


def test_an_edited_template_has_no_calls(tmp_path: Path) -> None:
    (tmp_path / "cuevo.h").write_text("struct s { void *q; };\nvoid k(struct s params);")
    text = "//% macro m()\na;\n//% endmacro\n${ m() }\n"
    (tmp_path / "k.ptx").write_text(text)
    kernel = render("k", {}, directory=tmp_path)
    (tmp_path / "k.ptx").write_text("b;\n" + text)
    assert kernel.callers(1) == ()
