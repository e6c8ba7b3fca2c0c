"""Pictures show every element once, where the layouts say that it is."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from cuevo import layouts
from cuevo.layouts import Fragment, SharedTile, drawing
from cuevo.layouts.catalogue import ENTRIES, Entry, find_picture
from cuevo.layouts.pictures import Picture, fragment_picture, lane_colour, tile_picture
from cuevo.layouts.swizzle import KINDS

pytestmark = pytest.mark.unit

MN = ("m", "n")
NUMBERS = {"M": "1", "N": "2", "CHUNKS": "6"}
OF_WGMMA = NUMBERS | {"N": "24"}


def example(entry: Entry) -> str:
    """A name of the entry's form."""
    numbers = OF_WGMMA if entry.form.startswith("wgmma") else NUMBERS
    return re.sub("[A-Z]+", lambda match: numbers[match[0]], entry.form)


def picture(name: str) -> Picture:
    found = find_picture(name)
    assert found is not None
    return found


def printed(shown: Picture, width: int = 120) -> list[str]:
    return ["".join(piece for piece, _ in line).rstrip() for line in shown.lines(width)]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.form)
def test_every_name_has_a_picture(entry: Entry) -> None:
    name = example(entry)
    shown = picture(name)
    assert shown.title.startswith(f"{name}: ")
    places = {(cell.row, cell.column) for cell in shown.cells}
    assert len(places) == len(shown.cells)
    assert {row for row, _ in places} == set(range(len(shown.rows)))
    assert {column for _, column in places} == set(range(len(shown.columns)))


def test_every_fragment_has_a_name() -> None:
    pictures = [picture(example(entry)) for entry in ENTRIES]
    drawn = [[cell.facts for cell in shown.cells] for shown in pictures]
    for fragment in vars(layouts).values():
        if isinstance(fragment, Fragment):
            expected = fragment_picture(fragment, "", MN)
            assert [cell.facts for cell in expected.cells] in drawn


@pytest.mark.parametrize(
    ("name", "fragment"),
    [
        ("m16n8k16.a", layouts.MMA_M16N8K16_A),
        ("m8n8k4.f32", layouts.MMA_M8N8K4_F32),
        ("m8n8k4.acc.f16:2x1", layouts.M8N8K4_F16.fragment(2, 1)),
        ("wgmma.m64n40.acc", layouts.wgmma_accumulator(40)),
    ],
)
def test_cells_say_what_the_fragment_says(name: str, fragment: Fragment) -> None:
    shown = picture(name)
    assert len(shown.cells) == fragment.rows.size
    for cell in shown.cells:
        lane, register, half = cell.facts["lane"], cell.facts["register"], cell.facts.get("half", 0)
        assert fragment.rows[lane, register, half] == cell.row == cell.facts["row"]
        assert fragment.columns[lane, register, half] == cell.column == cell.facts["column"]
        suffix = ("l", "h")[half] if fragment.rows.shape[2] == 2 else ""
        assert cell.label.lstrip("0") == f"{lane}:r{register}{suffix}".lstrip("0")
        assert cell.caption == f"L{lane}\nr{register}{suffix}"
        assert cell.colour == lane_colour(lane)


def test_the_grid_of_ldmatrix() -> None:
    legend = (
        "8 x 8 (row address down, element across), 1 register in each of 32 lanes; "
        "lane and register, l and h its low and high half"
    )
    assert printed(picture("ldmatrix")) == [
        "ldmatrix: an 8x8 matrix by ldmatrix",
        legend,
        "",
        "   0      1      2      3      4      5      6      7",
        "0  00:r0l 00:r0h 01:r0l 01:r0h 02:r0l 02:r0h 03:r0l 03:r0h",
        "1  04:r0l 04:r0h 05:r0l 05:r0h 06:r0l 06:r0h 07:r0l 07:r0h",
        "2  08:r0l 08:r0h 09:r0l 09:r0h 10:r0l 10:r0h 11:r0l 11:r0h",
        "3  12:r0l 12:r0h 13:r0l 13:r0h 14:r0l 14:r0h 15:r0l 15:r0h",
        "4  16:r0l 16:r0h 17:r0l 17:r0h 18:r0l 18:r0h 19:r0l 19:r0h",
        "5  20:r0l 20:r0h 21:r0l 21:r0h 22:r0l 22:r0h 23:r0l 23:r0h",
        "6  24:r0l 24:r0h 25:r0l 25:r0h 26:r0l 26:r0h 27:r0l 27:r0h",
        "7  28:r0l 28:r0h 29:r0l 29:r0h 30:r0l 30:r0h 31:r0l 31:r0h",
    ]


def test_the_grid_of_a_swizzle() -> None:
    assert printed(picture("swizzle:4")) == [
        "swizzle:4: rows of 16-byte chunks in shared memory",
        "8 rows of 4 places of 16 bytes (row down, bank group across); the chunk that lies there",
        "",
        "   0 1 2 3 4 5 6 7",
        "0  0 1 2 3",
        "1          0 1 2 3",
        "2  1 0 3 2",
        "3          1 0 3 2",
        "4  2 3 0 1",
        "5          2 3 0 1",
        "6  3 2 1 0",
        "7          3 2 1 0",
    ]


def test_the_grid_of_a_padded_tile() -> None:
    legend = (
        "8 rows of 4 places of 16 bytes and a free one (row down, bank group across); "
        "the chunk that lies there"
    )
    assert printed(picture("padded:4")) == [
        "padded:4: rows of 16-byte chunks, one free after an even number",
        legend,
        "",
        "   0 1 2 3 4 5 6 7 0 1 2",
        "0  0 1 2 3",
        "1            0 1 2 3",
        "2      0 1 2 3",
        "3                0 1 2 3",
        "4          0 1 2 3",
        "5    0 1 2 3",
        "6              0 1 2 3",
        "7        0 1 2 3",
    ]
    assert "a free one" not in picture("padded:3").legend


def test_the_grid_of_a_tile_for_quads() -> None:
    assert printed(picture("quad-columns:8"))[3:] == [
        "   0 1 2 3 4 5 6 7",
        "0  0 1 2 3 4 5 6 7",
        "1  2 3 0 1 6 7 4 5",
        "2  4 5 6 7 0 1 2 3",
        "3  6 7 4 5 2 3 0 1",
    ]


def test_every_kind_of_tile_has_a_name() -> None:
    drawn = [picture(example(entry)).cells for entry in ENTRIES if "CHUNKS" in entry.form]
    assert drawn == [
        tile_picture(SharedTile(int(NUMBERS["CHUNKS"]), kind), "").cells for kind in KINDS
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunks", [*range(1, 17), 24, 32])
def test_chunks_lie_under_the_bank_group_that_holds_them(chunks: int, kind: str) -> None:
    tile = SharedTile(chunks, kind)
    shown = tile_picture(tile, "")
    assert len(shown.cells) == tile.period * chunks
    for cell in shown.cells:
        row, chunk = cell.facts["row"], cell.facts["chunk"]
        address = tile.place(row, chunk)
        assert shown.columns[cell.column] == str(address % 8) == str(cell.facts["bank_group"])
        assert cell.facts["place"] == address - row * tile.pitch
        assert (cell.label, cell.row) == (str(chunk), row)


READ_TOGETHER = {
    "swizzle": [[(row, 0) for row in range(8)]],
    "padded": [[(row, 0) for row in range(8)]],
    "quads": [[(first + row, 0) for row in (0, 1, 2, 3, 8, 9, 10, 11)] for first in (0, 4)],
    "quad-columns": [[(row, chunk) for row in range(4) for chunk in (0, 1)]],
}
"""Rows and chunks, of each name, that are read at a time."""


@pytest.mark.parametrize("chunks", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("form", READ_TOGETHER)
def test_what_is_read_together_lies_under_different_headings(form: str, chunks: int) -> None:
    shown = picture(f"{form}:{chunks}")
    headings = {
        (cell.facts["row"], cell.facts["chunk"]): shown.columns[cell.column] for cell in shown.cells
    }
    for few in READ_TOGETHER[form]:
        for first in range(0, chunks, 2):
            assert len({headings[row, first + chunk] for row, chunk in few}) == 8


def test_rules_are_between_quadrants() -> None:
    shown = picture("m16n8k16.a")
    heading, *rows = printed(shown)[3:]
    (rule,) = (line for line in rows if "-" in line)
    assert rows.index(rule) == 8 == rows[0].split().index("|") - 1
    places = [line.index("|") for line in rows if line != rule]
    assert places == [rule.index("+")] * 16
    assert heading.index("8") == places[0] + 2
    for line in rows[:8]:
        held = [{cell[-3:-1] for cell in part.split()[-8:]} for part in line.split("|")]
        assert held == [{"r0"}, {"r2"}]
    assert not any("|" in line for line in printed(picture("ldmatrix")))
    assert picture("wgmma.m64n8.acc").legend.endswith(", every warp in the same colours")


def test_a_wide_grid_is_printed_in_parts() -> None:
    shown = picture("m16n8.acc:1x3")
    lines = printed(shown, width=80)
    assert max(map(len, lines[2:])) <= 80
    parts = "\n".join(lines[2:]).strip("\n").split("\n\n")
    assert [part.splitlines()[0].split() for part in parts] == [
        [str(column) for column in range(first, first + 8)] for first in (0, 8, 16)
    ]
    labels = {word for part in parts for word in part.split() if ":" in word}
    assert labels == {cell.label for cell in shown.cells}


@pytest.mark.parametrize("width", [1, 12, 40])
def test_a_narrow_terminal_gets_every_cell_too(width: int) -> None:
    shown = picture("ldmatrix")
    words = " ".join(printed(shown, width)[2:]).split()
    assert sorted(word for word in words if ":" in word) == sorted(
        cell.label for cell in shown.cells
    )


def test_lanes_have_colours_of_their_own_that_black_is_read_on() -> None:
    colours = [lane_colour(lane) for lane in range(32)]
    assert len(set(colours)) == 32
    for colour in colours:
        parts = [int(colour[first : first + 2], 16) / 255 for first in (1, 3, 5)]
        linear = [
            (part / 12.92 if part <= 0.04 else ((part + 0.055) / 1.055) ** 2.4) for part in parts
        ]
        luminance = float(np.dot([0.2126, 0.7152, 0.0722], linear))
        assert (luminance + 0.05) / 0.05 > 4.5


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("swizzle:0", "at least one 16-byte chunk; got 0"),
        ("quads:0", "at least one 16-byte chunk; got 0"),
        ("wgmma.m64n12.acc", "from 8 to 256; got 12"),
        ("m16n8.acc:0x1", "at least one tile; got 0 by 1"),
        ("m16n8.acc:8x8", "at most 255 registers; this takes 256"),
    ],
)
def test_numbers_that_a_layout_has_not_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        find_picture(name)


@pytest.mark.parametrize(
    "name", ["", "m16n8", "m16n8.acc", "m16n8.acc:2", "swizzle:-1", "quad columns:4", "MxN"]
)
def test_what_is_no_name_has_no_picture(name: str) -> None:
    assert find_picture(name) is None


@pytest.mark.parametrize("name", ["ldmatrix", "m8n8k4.b.col", "swizzle:3", "padded:4"])
def test_an_svg_has_a_square_and_a_label_for_each_cell(name: str, tmp_path: Path) -> None:
    shown = picture(name)
    paths = tmp_path / "first.svg", tmp_path / "second.svg"
    for path in paths:
        drawing.save(shown, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    tree = ElementTree.parse(paths[0])
    svg = "{http://www.w3.org/2000/svg}"
    fills = {}
    for group in tree.iter(f"{svg}g"):
        if group.get("id", "").startswith("cell-"):
            (square,) = group
            fills[group.get("id")] = re.findall(r"fill: (#\w+)", square.get("style", ""))
    assert fills == {f"cell-{cell.row}-{cell.column}": [cell.colour] for cell in shown.cells}
    texts = [text.strip() for text in tree.getroot().itertext()]
    for caption in {line for cell in shown.cells for line in cell.caption.split("\n")}:
        expected = sum(caption in cell.caption.split("\n") for cell in shown.cells)
        rulers = (*shown.rows, *shown.columns).count(caption)
        assert texts.count(caption) == expected + rulers
    assert shown.title in texts
    assert shown.legend in " ".join(" ".join(texts).split())


@pytest.mark.parametrize(("name", "rules"), [("m16n8k16.b", 1), ("ldmatrix", 0)])
def test_an_svg_has_rules_and_a_key(name: str, rules: int, tmp_path: Path) -> None:
    shown, path = picture(name), tmp_path / "picture.svg"
    drawing.save(shown, path)
    text = path.read_text(encoding="utf-8")
    assert text.count("stroke: #000000; stroke-width: 1.2") == rules
    words = [" ".join(piece.split()) for piece in ElementTree.fromstring(text).itertext()]
    assert [key.text for key in shown.key] == [word for word in words if word.startswith("lanes ")]
    lanes = [colour for key in shown.key for colour in key.colours]
    assert lanes == [lane_colour(lane) for lane in range(32)]
    assert shown.key[1].text == "lanes 4 to 7"
    held = [cell.colour for cell in shown.cells]
    assert all(text.count(f"fill: {colour}") == held.count(colour) + 1 for colour in lanes)


def test_a_png_has_every_lane_s_colour(tmp_path: Path) -> None:
    from matplotlib.image import imread

    path = tmp_path / "picture.png"
    drawing.save(picture("m16n8k16.b"), path)
    pixels = np.rint(255 * imread(path)[..., :3]).astype(int)
    found = {f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in pixels.reshape(-1, 3)}
    assert {lane_colour(lane) for lane in range(32)} <= found
