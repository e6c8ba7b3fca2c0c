"""The accumulators of a warp tile, or of a warpgroup's, visited row by row.

A warp tile is made of ``m_tiles`` by ``n_tiles`` tiles of an `Accumulator`. Its lanes all hold the
same pattern of elements, each from a place of its own on, `Accumulator.lane_offset`; the pattern is
`Accumulator.rows`. The sum of a tile's first rows, each held by four lanes:

>>> tile = np.arange(16 * 8).reshape(16, 8)
>>> lane = np.arange(M16N8.threads)
>>> held = M16N8.fragment(1, 1).gather(tile).reshape(M16N8.threads, -1)    # [lane, index]
>>> row = M16N8.rows(1, 1)[0]
>>> total = sum(held[:, element.index] for element in row.elements)
>>> for distance in M16N8.lane_bits:                                       # butterflies
...     total = total + total[lane ^ distance]
>>> owner = (lane & M16N8.owner_mask) == 0
>>> first_row, _ = M16N8.lane_offset(lane)
>>> [(int(r), int(t)) for r, t in zip(first_row[owner] + row.row, total[owner])][:3]
[(0, 28), (1, 92), (2, 156)]
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cuevo.layouts.fragments import WARP, Fragment

Step = tuple[int, int]
"""Rows and columns that a bit moves an element by."""


@dataclass(frozen=True)
class Element:
    """One accumulator of a lane in a row of its own."""

    column: int
    """Relative to the lane's offset."""
    index: int
    """Among the lane's accumulators. Packed ones: half ``index % 2`` of register ``index // 2``."""


@dataclass(frozen=True)
class Row:
    """A lane's share of one row."""

    row: int
    """Relative to the lane's offset."""
    elements: tuple[Element, ...]
    """Sorted by column."""


@dataclass(frozen=True)
class Accumulator:
    """Rows and columns of the accumulators of a tile.

    An element's place is the sum of what the bits of its lane and of its index add to it, so that
    two lists, lowest bit first, say all of it.

    >>> M16N8.lane_offset(5)
    (1, 2)
    >>> [(row.row, [element.index for element in row.elements]) for row in M16N8.rows(1, 2)]
    [(0, [0, 1, 4, 5]), (8, [2, 3, 6, 7])]
    """

    name: str
    lane_steps: tuple[Step, ...]
    """Steps of the bits of the lane's number, in a warpgroup the thread's."""
    index_steps: tuple[Step, ...]
    """Steps of the bits of the index among a tile's accumulators."""
    packed: bool = False
    """Whether a register holds two of them, in fp16."""

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of one tile."""
        steps = self.lane_steps + self.index_steps
        return 1 + sum(row for row, _ in steps), 1 + sum(column for _, column in steps)

    @property
    def threads(self) -> int:
        """Lanes that hold a tile: 32, or the 128 of a warpgroup."""
        return 1 << len(self.lane_steps)

    @property
    def lane_bits(self) -> tuple[int, ...]:
        """Distances of the butterflies, by XOR, that join the lanes of one row."""
        return tuple(1 << bit for bit, (row, _) in enumerate(self.lane_steps) if row == 0)

    @property
    def owner_mask(self) -> int:
        """A row belongs to the one of its lanes with ``lane & owner_mask == 0``."""
        return sum(self.lane_bits)

    def count(self, m_tiles: int, n_tiles: int) -> int:
        """Accumulators of a lane; `packed` ones take half as many registers."""
        self._check(m_tiles, n_tiles)
        return m_tiles * n_tiles << len(self.index_steps)

    def lane_offset(self, lane: Any) -> tuple[Any, Any]:
        """Row and column of the lane's first element; an integer, or integer arrays."""
        row = sum((lane >> bit & 1) * step for bit, (step, _) in enumerate(self.lane_steps))
        column = sum((lane >> bit & 1) * step for bit, (_, step) in enumerate(self.lane_steps))
        return row, column

    def rows(self, m_tiles: int, n_tiles: int) -> tuple[Row, ...]:
        """A lane's accumulators of ``m_tiles`` by ``n_tiles`` tiles, by ascending row.

        Tile (mi, ni) has the indices from ``(ni * m_tiles + mi) * count(1, 1)`` on.
        """
        found: dict[int, list[Element]] = {}
        for index in range(self.count(m_tiles, n_tiles)):
            row, column = self._place(index, m_tiles)
            found.setdefault(row, []).append(Element(column, index))
        return tuple(
            Row(row, tuple(sorted(elements, key=lambda element: element.column)))
            for row, elements in sorted(found.items())
        )

    def fragment(self, m_tiles: int, n_tiles: int) -> Fragment:
        """The fragment of ``m_tiles`` by ``n_tiles`` tiles, registers in the order of the indices.

        Gathered elements, reshaped to (threads, -1), are by index, `packed` or not.
        """
        places = [self._place(index, m_tiles) for index in range(self.count(m_tiles, n_tiles))]
        shape = (self.threads, -1, 2 if self.packed else 1)
        rows, columns = (
            np.add.outer(first, [place[axis] for place in places]).reshape(shape)
            for axis, first in enumerate(self.lane_offset(np.arange(self.threads)))
        )
        height, width = self.tile
        name = f"{self.name} {height * m_tiles}x{width * n_tiles}"
        return Fragment.from_places(name, rows, columns)

    def _place(self, index: int, m_tiles: int) -> tuple[int, int]:
        """Row and column of an accumulator, relative to the lane's offset."""
        tile, within = index >> len(self.index_steps), index & (1 << len(self.index_steps)) - 1
        moved = [step for bit, step in enumerate(self.index_steps) if within >> bit & 1]
        height, width = self.tile
        row = tile % m_tiles * height + sum(row for row, _ in moved)
        return row, tile // m_tiles * width + sum(column for _, column in moved)

    def _check(self, m_tiles: int, n_tiles: int) -> None:
        if m_tiles < 1 or n_tiles < 1:
            raise ValueError(f"a warp tile has at least one tile; got {m_tiles} by {n_tiles}")
        if self.threads > WARP and m_tiles > 1:
            raise ValueError(f"{self.name}: an instruction is one tile high; got {m_tiles} tiles")


_OF_QUADS = ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0))
M16N8 = Accumulator("m16n8 f32", _OF_QUADS, ((0, 1), (8, 0)))
"""m16n8k8 and m16n8k16. Lane l holds two neighbours in rows ``l / 4`` and ``l / 4 + 8``."""
M16N8_F16 = Accumulator("m16n8 f16", M16N8.lane_steps, M16N8.index_steps, packed=True)
"""The same in fp16: a register is two neighbours."""

# A 32x32 tile of m8n8k4 takes four of the instruction, each of which computes four 8x8 products.
# Their quad pairs' low and high lanes are 16 rows apart, their columns 0-3 and 4-7 16 columns; the
# quad pairs are 8 apart, and the four instructions, the two highest bits of the index, 4.
M8N8K4 = Accumulator(
    "m8n8k4 f32",
    ((1, 0), (0, 2), (8, 0), (0, 8), (16, 0)),
    ((0, 1), (2, 0), (0, 16), (4, 0), (0, 4)),
)
"""m8n8k4, interleaved. The index's bits from the lowest: the instruction's register, then which of
the two instructions along m, then along n."""
M8N8K4_F16 = Accumulator(
    "m8n8k4 f16",
    ((1, 0), (2, 0), (8, 0), (0, 8), (16, 0)),
    ((0, 1), (0, 2), (0, 16), (4, 0), (0, 4)),
    packed=True,
)
"""The same in fp16: a lane has one row of each instruction."""

WGMMA = Accumulator("wgmma m64 f32", (*_OF_QUADS, (16, 0), (32, 0)), M16N8.index_steps)
"""m64nNk16 of a warpgroup, N = 8 * n_tiles: warp w has rows 16*w to 16*w + 15."""
WGMMA_F16 = Accumulator("wgmma m64 f16", WGMMA.lane_steps, WGMMA.index_steps, packed=True)
"""The same in fp16."""
