"""Catalogue of the layouts by name, for pictures of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from cuevo import layouts
from cuevo.layouts.accumulators import Accumulator
from cuevo.layouts.fragments import Fragment
from cuevo.layouts.mma_shapes import MMA_SHAPES, MmaShape
from cuevo.layouts.pictures import Picture, fragment_picture, tile_picture
from cuevo.layouts.swizzle import SharedTile
from cuevo.layouts.wgmma import wgmma_accumulator

REGISTERS = 255
"""Most registers of a thread."""


@dataclass(frozen=True)
class Entry:
    """A layout, or a family of them with numbers in their names."""

    form: str
    """The name; capitals stand for numbers."""
    what: str
    """Description in a few words."""
    shape: str
    registers: str
    """Count in a lane, as a formula of the name's numbers."""
    draw: Callable[..., Picture]
    """Draws the layout, given a title and the name's numbers."""

    def picture(self, name: str) -> Picture | None:
        """The picture of the layout `name`, None where that is no name of this form."""
        pattern = re.sub("[A-Z]+", lambda _: r"(\d{1,4})", re.escape(self.form))
        match = re.fullmatch(pattern, name)
        return match and self.draw(f"{name}: {self.what}", *map(int, match.groups()))


def _one(form: str, fragment: Fragment, what: str, axes: tuple[str, str]) -> Entry:
    rows, columns = fragment.shape

    def draw(title: str) -> Picture:
        return fragment_picture(fragment, title, axes)

    return Entry(form, what, f"{rows} x {columns}", str(fragment.registers), draw)


def _tiles(form: str, layout: Accumulator) -> Entry:
    elements = 2 if layout.packed else 1

    def draw(title: str, m_tiles: int, n_tiles: int) -> Picture:
        registers = layout.count(m_tiles, n_tiles) // elements
        if registers > REGISTERS:
            raise ValueError(f"a lane has at most {REGISTERS} registers; this takes {registers}")
        return fragment_picture(layout.fragment(m_tiles, n_tiles), title, _MN)

    rows, columns = layout.tile
    what = f"{_type(layout)} accumulators of a warp tile, M by N tiles of {rows} x {columns}"
    registers = f"{layout.count(1, 1) // elements}MN"
    return Entry(form, what, f"{rows}M x {columns}N", registers, draw)


def _wgmma(form: str, layout: Accumulator) -> Entry:
    def draw(title: str, n: int) -> Picture:
        return fragment_picture(wgmma_accumulator(n, packed=layout.packed), title, _MN)

    what = f"{_type(layout)} accumulators of wgmma.m64nNk16 and k8"
    return Entry(form, what, "64 x N", "N/4" if layout.packed else "N/2", draw)


def _type(layout: Accumulator) -> str:
    return "fp16" if layout.packed else "fp32"


def _shared(form: str, kind: str, what: str) -> Entry:
    def draw(title: str, chunks: int) -> Picture:
        return tile_picture(SharedTile(chunks, kind), title)

    return Entry(form, what, f"{SharedTile(1, kind).period} x CHUNKS", "", draw)


def _operands(shape: MmaShape) -> tuple[Entry, Entry]:
    """A and B of a product of a warp."""
    suffix, words = _KINDS[shape.kind]
    name, what = shape.name, f"of mma.{shape.name}{words}"
    return (
        _one(f"{name}.a{suffix}", shape.a["row"], f"A {what}", _MK),
        _one(f"{name}.b{suffix}", shape.b["col"], f"B {what}", _KN),
    )


_KINDS = {
    "": ("", ""),
    "tf32": (".tf32", " in tf32"),
    "8-bit": (".8bit", " in 8 bits"),
    "4-bit": (".4bit", " in 4 bits"),
    "1-bit": (".1bit", " in bits"),
}
"""What names of layouts end with, and what is said of them."""
_MK, _KN, _MN = ("m", "k"), ("k", "n"), ("m", "n")
_STACKED_MK, _STACKED_KN = ("8*pair + m", "k"), ("4*pair + k", "n")
_STACKED_MN = ("8*pair + m", "n")
_ADDRESSED = ("row address", "element")

ENTRIES = (
    *(entry for shape in MMA_SHAPES if shape.name != "m8n8k4" for entry in _operands(shape)),
    _one("m8n8.s32", layouts.MMA_M8N8_S32, "accumulators of mma.m8n8k16 to k128", _MN),
    _one("m16n8.f32", layouts.MMA_M16N8_F32, "32-bit accumulators of mma.m16n8k4 to k256", _MN),
    _one("m16n8.f16", layouts.MMA_M16N8_F16, "fp16 accumulators of mma.m16n8k8 and k16", _MN),
    _tiles("m16n8.acc:MxN", layouts.M16N8),
    _tiles("m16n8.acc.f16:MxN", layouts.M16N8_F16),
    _one("m8n8k4.a.row", layouts.MMA_M8N8K4_A_ROW, "the four A of mma.m8n8k4.row", _STACKED_MK),
    _one("m8n8k4.a.col", layouts.MMA_M8N8K4_A_COL, "the four A of mma.m8n8k4.col", _STACKED_MK),
    _one("m8n8k4.b.row", layouts.MMA_M8N8K4_B_ROW, "the four B of mma.m8n8k4.*.row", _STACKED_KN),
    _one("m8n8k4.b.col", layouts.MMA_M8N8K4_B_COL, "the four B of mma.m8n8k4.*.col", _STACKED_KN),
    _one("m8n8k4.f32", layouts.MMA_M8N8K4_F32, "fp32 accumulators of mma.m8n8k4", _STACKED_MN),
    _one("m8n8k4.f16", layouts.MMA_M8N8K4_F16, "fp16 accumulators of mma.m8n8k4", _STACKED_MN),
    _tiles("m8n8k4.acc:MxN", layouts.M8N8K4),
    _tiles("m8n8k4.acc.f16:MxN", layouts.M8N8K4_F16),
    _one("wgmma.a", layouts.WGMMA_A, "A of wgmma.m64nNk16, from registers", _MK),
    _one("wgmma.a.tf32", layouts.WGMMA_A_TF32, "A of wgmma.m64nNk8, from registers", _MK),
    _wgmma("wgmma.m64nN.acc", layouts.WGMMA),
    _wgmma("wgmma.m64nN.acc.f16", layouts.WGMMA_F16),
    _one("ldmatrix", layouts.LDMATRIX, "an 8x8 matrix by ldmatrix", _ADDRESSED),
    _one("ldmatrix.trans", layouts.LDMATRIX_TRANS, "an 8x8 matrix by ldmatrix.trans", _ADDRESSED),
    _shared("swizzle:CHUNKS", "swizzled", "rows of 16-byte chunks in shared memory"),
    _shared("padded:CHUNKS", "padded", "rows of 16-byte chunks, one free after an even number"),
    _shared("quads:CHUNKS", "quads", "rows of 16-byte chunks for mma.m8n8k4: A .row, B .col"),
    _shared(
        "quad-columns:CHUNKS",
        "quad columns",
        "rows of 16-byte chunks for mma.m8n8k4: A .col, B .row",
    ),
)


def find_picture(name: str) -> Picture | None:
    """The picture of the layout `name`, None where there is none of that name.

    Raises:
        ValueError: numbers in the name that the layout does not have; says which it has.
    """
    found = (entry.picture(name) for entry in ENTRIES)
    return next((picture for picture in found if picture), None)
