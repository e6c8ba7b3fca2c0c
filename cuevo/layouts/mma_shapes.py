"""The shapes of mma: which types each takes, and which lane and register hold which element.

`MMA_SHAPES` is all that is said of a shape: the CPU executor, the catalogue and wgmma, whose warps
hold their rows as mma does, read it. A row here and one in the executor's table of instructions
(``cuevo/sim/instructions/forms.txt``) make a new shape.

Source: PTX ISA, "Matrix fragments for mma.m8n8k4" and the sections that follow it, to
"... mma.m16n8k256".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from cuevo.layouts.fragments import LDMATRIX, WARP, Fragment, Indices, of_matrices


@dataclass(frozen=True, eq=False)
class MmaShape:
    """One shape of mma with operands of types that lie alike.

    >>> shape = mma_shape("m16n8k16", "bf16")
    >>> shape.a["row"].registers, shape.b["col"].registers, shape.accumulators["f32"].registers
    (4, 2, 4)
    """

    name: str
    """Name in opcodes: ``m16n8k16``."""
    types: tuple[str, ...]
    """Types of the elements of A and B."""
    kind: str
    """Kind of the types, where a shape has several; "" for 16 bits."""
    a: Mapping[str, Fragment]
    """[m, k], by the order in the opcode, ``row`` or ``col``."""
    b: Mapping[str, Fragment]
    """[k, n], likewise."""
    accumulators: Mapping[str, Fragment]
    """[m, n]: C and D, by the type of their elements."""


# -- Four m8n8k4 of a warp -------------------------------------------------------------------------


def _quad_pairs(
    name: str,
    height: int,
    elements: int,
    place: Callable[[Indices, Indices, Indices], tuple[Indices, Indices]],
) -> Fragment:
    """Fragment of the four matrices, `height` rows each, that the quad pairs of a warp hold.

    Quad pair p is lanes 4*p to 4*p + 3 and 16 lanes further up; its matrix is rows ``height * p``
    and on. `place` maps lane within the quad, upper quad (0 or 1) and element to row and column.
    """
    lane, element = np.arange(WARP)[:, None], np.arange(elements)[None, :]
    row, column = np.broadcast_arrays(*place(lane % 4, lane // 16, element))
    row = row + height * (lane // 4 % 4)
    return Fragment.from_places(name, row.reshape(WARP, -1, 2), column.reshape(WARP, -1, 2))


def _one_a_register(name: str, pairs: Fragment) -> Fragment:
    """The same elements in the same order, 32 bits wide."""
    return Fragment.from_places(
        name, pairs.rows.reshape(WARP, -1, 1), pairs.columns.reshape(WARP, -1, 1)
    )


MMA_M8N8K4_A_ROW = _quad_pairs(
    "mma.m8n8k4 A row", 8, 4, lambda lane, upper, i: (lane + 4 * upper, i)
)
"""[8 * quad pair + m, k], 16-bit: A ``.row``, a lane holds a row."""
MMA_M8N8K4_A_COL = _quad_pairs(
    "mma.m8n8k4 A col", 8, 4, lambda lane, upper, i: (i + 4 * upper, lane)
)
"""[8 * quad pair + m, k], 16-bit: A ``.col``, a lane holds half a column."""
MMA_M8N8K4_B_ROW = _quad_pairs(
    "mma.m8n8k4 B row", 4, 4, lambda lane, upper, i: (lane, i + 4 * upper)
)
"""[4 * quad pair + k, n], 16-bit: B ``.row``, a lane holds half a row."""
MMA_M8N8K4_B_COL = _quad_pairs(
    "mma.m8n8k4 B col", 4, 4, lambda lane, upper, i: (i, lane + 4 * upper)
)
"""[4 * quad pair + k, n], 16-bit: B ``.col``, a lane holds a column."""
MMA_M8N8K4_F16 = _quad_pairs(
    "mma.m8n8k4 accumulator f16", 8, 8, lambda lane, upper, i: (lane + 4 * upper, i)
)
"""[8 * quad pair + m, n]: C and D with fp16 accumulators."""
MMA_M8N8K4_F32 = _one_a_register(
    "mma.m8n8k4 accumulator f32",
    _quad_pairs(
        "", 8, 8, lambda lane, upper, i: ((lane & 1) + (i & 2) + 4 * upper, (lane & 2) + (i & 5))
    ),
)
"""[8 * quad pair + m, n]: C and D with fp32 accumulators."""

_QUAD_PAIRS = MmaShape(
    "m8n8k4",
    ("f16",),
    "",
    {"row": MMA_M8N8K4_A_ROW, "col": MMA_M8N8K4_A_COL},
    {"row": MMA_M8N8K4_B_ROW, "col": MMA_M8N8K4_B_COL},
    {"f32": MMA_M8N8K4_F32, "f16": MMA_M8N8K4_F16},
)
"""One m8n8k4 is four products, one a quad pair: their matrices are stacked along the rows."""


# -- One product of a warp -------------------------------------------------------------------------

MMA_M16N8_F16 = of_matrices("mma.m16n8 accumulator f16", (0, 0), (8, 0))
"""[m, n]: C and D of m16n8k8 and m16n8k16 with fp16 accumulators."""
MMA_M16N8_F32 = _one_a_register("mma.m16n8 accumulator f32", MMA_M16N8_F16)
"""[m, n]: C and D of m16n8k4 to m16n8k256 with accumulators of 32 bits."""
MMA_M8N8_S32 = _one_a_register("mma.m8n8 accumulator s32", LDMATRIX)
"""[m, n]: C and D of m8n8k16 to m8n8k128."""

_HALVES = {"f32": MMA_M16N8_F32, "f16": MMA_M16N8_F16}
_BITS = {"": 16, "tf32": 32, "8-bit": 8, "4-bit": 4, "1-bit": 1}
"""Bits of an element of A or B, by the kind of the types."""


def _product(rows: int, depth: int, kind: str, *types: str) -> MmaShape:
    """The shape m`rows`n8k`depth`: a register of A or B is of a matrix of 8 rows of 16 bytes along
    k.
    """
    name, bits = f"m{rows}n8k{depth}", _BITS[kind]
    width = 128 // bits
    suffix = f" {kind}" if kind else ""
    a = [(m, k) for k in range(0, depth, width) for m in range(0, rows, 8)]
    b = [(k, 0) for k in range(0, depth, width)]
    of_a = of_matrices(f"mma.{name} A{suffix}", *a, elements=32 // bits)
    of_b = of_matrices(f"mma.{name} B{suffix}", *b, along_rows=True, elements=32 // bits)
    whole = {"s32": MMA_M16N8_F32 if rows == 16 else MMA_M8N8_S32}
    accumulators = {"": _HALVES, "tf32": {"f32": MMA_M16N8_F32}}.get(kind, whole)
    return MmaShape(name, types, kind, {"row": of_a}, {"col": of_b}, accumulators)


# -- The table -------------------------------------------------------------------------------------

MMA_SHAPES = (
    _product(16, 8, "", "f16", "bf16"),
    _product(16, 16, "", "f16", "bf16"),
    _product(16, 4, "tf32", "tf32"),
    _product(16, 8, "tf32", "tf32"),
    _product(8, 16, "8-bit", "s8", "u8"),
    _product(16, 16, "8-bit", "s8", "u8"),
    _product(16, 32, "8-bit", "s8", "u8"),
    _product(8, 32, "4-bit", "s4", "u4"),
    _product(16, 32, "4-bit", "s4", "u4"),
    _product(16, 64, "4-bit", "s4", "u4"),
    _product(8, 128, "1-bit", "b1"),
    _product(16, 128, "1-bit", "b1"),
    _product(16, 256, "1-bit", "b1"),
    _QUAD_PAIRS,
)
_BY_NAME = {(shape.name, each): shape for shape in MMA_SHAPES for each in shape.types}


def mma_shape(name: str, operands: str) -> MmaShape:
    """The shape `name` with A of the type `operands`, as opcodes name them; KeyError if there is
    none.
    """
    return _BY_NAME[name, operands]


def _operands(name: str, operands: str) -> tuple[Fragment, Fragment]:
    shape = mma_shape(name, operands)
    return shape.a["row"], shape.b["col"]


MMA_M16N8K8_A, MMA_M16N8K8_B = _operands("m16n8k8", "f16")
MMA_M16N8K16_A, MMA_M16N8K16_B = _operands("m16n8k16", "f16")
MMA_M16N8K4_A_TF32, MMA_M16N8K4_B_TF32 = _operands("m16n8k4", "tf32")
MMA_M16N8K8_A_TF32, MMA_M16N8K8_B_TF32 = _operands("m16n8k8", "tf32")
