"""The works that threadblocks of ``ptx/evoformer_forward_sm90a.ptx`` share, in the order of
``ptx/lib/works.ptx``.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from math import ceil, gcd
from typing import NamedTuple

from cuevo.kernels.forward import Problem
from cuevo.toolchain.division import magic_fields

__all__ = ["Slices", "WorkList", "has_many_tiles"]

_ALONE = 0.71
"""Time of one row N, over that of three which share a threadblock."""
_LAST, _LAST_ASKED_FOR, _LAST_OF_MANY_KEYS = 72, 63, 58
"""Hundredths of a work's time that one of a last tile of 64 queries takes where k and v are in L2
for others, too, else it takes all of it; up to head dim 32, where all that consumers ask for is
tiled, less, and the more keys there are the less.
"""
_MANY_KEYS = 512
_MANY_TILE_BYTES = 2**25
_LONG_SCORES = 2**29
"""From which on a call is limited by power, of which what comes from memory takes a part, more than
parts of lines that are fetched again.
"""
_ELEMENT_BYTES, _LINE_BYTES, _HALF_LINE_BYTES, _SECTOR_BYTES = 2, 128, 64, 32
"""What memory has of q, k and v: elements, and what L2 fetches of them."""


def has_many_tiles(problem: Problem) -> bool:
    """Whether the tiles of the pair bias are more than L2 keeps beside all else."""
    return _are_many_tiles(problem, problem.batch * problem.heads)


def _are_many_tiles(problem: Problem, heads: int) -> bool:
    """Whether those of so many heads are."""
    # Queries may be those of a launch that has some of them.
    return 4 * heads * problem.keys * problem.keys >= _MANY_TILE_BYTES


class Slices(NamedTuple):
    """The last works of a launch, cut anew by rows N."""

    replaced: int
    """Works that are cut."""
    works: int
    """Works of a slice, which has a part of the rows N of all that are cut."""
    number: int
    """Slices; 0: nothing is cut."""
    rows: int
    """Rows N of a slice; where nothing is cut those of a work."""

    @property
    def more(self) -> int:
        """Works that there are more of so."""
        return self.works * self.number - self.replaced


class WorkList(ABC):
    """Works: (batch, set of heads, group of rows N, head, query tile), each for a cluster.
    `evoformer_forward_sm90a.Config` says what the numbers are made of.
    """

    block_rows: int
    min_blocks: int
    blocks: int
    cluster: int
    head_dim: int
    converts: bool
    warpgroup_rows: int

    @property
    @abstractmethod
    def block_queries(self) -> int: ...

    @property
    @abstractmethod
    def tiled(self) -> bool: ...

    def extents(self, rows: int, queries: int) -> tuple[int, int]:
        """Groups of rows N, of a cluster each, and tiles of queries."""
        return ceil(rows / (self.block_rows * self.cluster)), ceil(queries / self.block_queries)

    def works(self, problem: Problem) -> int:
        """How many there are."""
        groups, tiles = self.extents(problem.rows, problem.queries)
        return problem.batch * problem.heads * tiles * groups

    @property
    @abstractmethod
    def consumers_ask(self) -> bool: ...

    def has_last_tile(self, problem: Problem) -> bool:
        """Whether a last tile of 64 queries or fewer has a launch of its own."""
        whole, rest = divmod(problem.queries, self.block_queries)
        return whole > 0 and 0 < rest <= 64 < self.block_queries

    def last_hundredths(self, problem: Problem) -> int:
        """Hundredths of a work's time that one of a last tile of 64 queries takes beside others."""
        if not (self.consumers_ask and self.tiled) or self.head_dim > 32:
            return _LAST
        return _LAST_OF_MANY_KEYS if problem.keys >= _MANY_KEYS else _LAST_ASKED_FOR

    def least_blocks_of_last(self, problem: Problem, works: int, last_works: int) -> int:
        """The least of a device's threadblocks to take so many works of a last tile of 64 queries,
        where others take those of whole tiles meanwhile, for both to end at a time: they read the
        same k and v, which come from memory once if they do so together. 0: each launch is to have
        all of the device, which with an odd multiple of 8 as head dim was always better.
        """
        clusters = self.blocks // self.cluster
        if self.head_dim % 16 or clusters < 2:
            return 0
        of_last = self.last_hundredths(problem) * last_works
        return self.cluster * max(of_last * clusters // (100 * works + of_last), 1)

    @property
    def slices_last_works(self) -> bool:
        """Whether the last works of a launch may be cut anew by rows N."""
        return self.block_rows > 1 and self.cluster == 1

    def slices(self, problem: Problem, blocks: int) -> Slices:
        """How the last works of a launch on so many multiprocessors are cut anew by rows N: those
        that would leave some of the device idle, if it has a threadblock for each of theirs then.
        """
        whole = Slices(0, 1, 0, self.block_rows)
        if not self.slices_last_works or problem.rows == 1:
            return whole
        resident = blocks * self.min_blocks
        last = self.works(problem) % resident
        fewest = self.warpgroup_rows
        if last * (self.block_rows // fewest) <= resident:
            return Slices(last, last, self.block_rows // fewest, fewest) if last else whole
        groups, tiles = self.extents(problem.rows, problem.queries)
        of_group = self.heads_of_set(problem) * tiles
        # All groups of rows N that any of them is of, as one.
        cut = ceil(last / of_group)
        rows = problem.rows - (groups - cut) * self.block_rows
        works = min(last, of_group)
        for of_each in (2, 3) if fewest == 1 else (2,):
            number = ceil(rows / of_each)
            fits = last + (number - cut) * works <= resident
            if of_each < self.block_rows and cut <= groups and fits:
                return Slices(cut * works, works, number, of_each)
        return whole

    @property
    def line_heads(self) -> int:
        """Heads, side by side, whose rows fill whole lines of q, k and v."""
        elements = _LINE_BYTES // _ELEMENT_BYTES
        return elements // gcd(elements, self.head_dim)

    def heads_of_set(self, problem: Problem) -> int:
        """Heads, side by side, all of whose groups of rows N come before the next heads, and whose
        tiles of the pair bias so come from memory once: all heads where L2 keeps all tiles, else
        as many as fill lines; one where it does not keep the tiles of these, and the call is long.
        """
        if not (self.tiled or self.converts) or not has_many_tiles(problem):
            return problem.heads
        # All launches of a call have one order, however many of the queries are theirs.
        long = replace(problem, queries=problem.keys).scores >= _LONG_SCORES
        kept = not (long and self.tiled and _are_many_tiles(problem, self.line_heads))
        if kept and problem.heads % self.line_heads == 0:
            return self.line_heads
        return 1 if long else problem.heads

    def l2_promotion(self, problem: Problem) -> int:
        """Bytes that TMA has L2 fetch of q, k and v, as `TensorMap` has it: lines, or where heads
        come one at a time half lines, or no more than the sectors of a row (0), of which less is
        other heads'.
        """
        if self.line_heads == 1 or problem.heads == 1 or self.heads_of_set(problem) > 1:
            return _LINE_BYTES
        return _HALF_LINE_BYTES if self.head_dim * _ELEMENT_BYTES > _SECTOR_BYTES else 0

    def clusters(self, blocks: int) -> int:
        """How many of them so many multiprocessors have; one at least."""
        return max(blocks * self.min_blocks // self.cluster, 1)

    def rounds(self, problem: Problem, blocks: int) -> float:
        """Works that a cluster of them has one after the other, those of fewer rows N counting
        less.
        """
        rows = self.slices(problem, blocks).rows
        less = (1 - _ALONE) * (self.block_rows - rows) / max(self.block_rows - 1, 1)
        return ceil(self.works(problem) / self.clusters(blocks)) - less

    def grid(self, problem: Problem, blocks: int | None = None) -> tuple[int, int, int]:
        """Threadblocks of a launch, which share the works; those of so many multiprocessors at
        most, or of the device.
        """
        most = self.blocks if blocks is None else blocks
        works = self.works(problem) + self.slices(problem, most).more
        return (min(works, self.clusters(most)) * self.cluster, 1, 1)

    def numbering(self, problem: Problem, blocks: int | None = None) -> dict[str, int]:
        """How works are numbered in such a launch, as fields of the parameter block."""
        groups, tiles = self.extents(problem.rows, problem.queries)
        set_heads = self.heads_of_set(problem)
        sets = problem.heads // set_heads
        works = self.works(problem)
        slices = self.slices(problem, self.blocks if blocks is None else blocks)
        divisors = {
            "slice_works": slices.works,
            "query_tiles": tiles,
            "set_heads": set_heads,
            "groups": groups,
            "head_sets": sets,
        }
        return {
            "works": works + slices.more,
            "first_sliced": works - slices.replaced,
            "slice_rows": slices.rows,
            **divisors,
            **magic_fields(**divisors),
        }
