"""Host half of ``ptx/evoformer_backward_sm90a.ptx``: what may be configured, how it is launched,
its tensor maps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, e, log2, prod
from typing import Any

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.cuda.context import PrimaryContext
from cuevo.cuda.tensor_map import BYTES, TensorMap
from cuevo.kernels import backward, choice
from cuevo.kernels.backward import Problem, SideConfig, most_chunks, padded
from cuevo.kernels.backward_memory_sm90a import BoxMemory
from cuevo.kernels.backward_multistage import groups_of_chunks
from cuevo.kernels.mapped_addresses import MappedAddresses
from cuevo.kernels.operand_rows_sm90a import OperandRows
from cuevo.layouts.swizzle import SharedTile, swizzle
from cuevo.toolchain.division import magic_fields

__all__ = [
    "ARCH",
    "MINIMUM_ARCH",
    "NAME",
    "SUMMARY",
    "Config",
    "Problem",
    "adapt",
    "addresses",
    "candidates",
    "choose",
    "parameters",
    "prefers_lower_variant",
    "spill_fallbacks",
    "values",
    "violations",
]

NAME = "evoformer_backward_sm90a"
SUMMARY = "Evoformer attention, backward: TMA, mbarriers, wgmma"
MINIMUM_ARCH = 90
ARCH = "sm_90a"
"""Its instructions are those of one architecture, not of later ones."""

_LEAST_SCORES = 2**25
"""From which on it runs unasked."""
_LEAST_ROWS = 16
"""The same of rows N, where there is a pair bias, whose tiles have to be made."""
_GAINS = {
    "keys": {8: 1.0, 16: 1.15, 24: 1.2, 32: 1.2, 64: 1.2},
    "queries": {8: 1.3, 16: 1.6, 24: 1.35, 32: 1.3, 48: 1.2, 64: 1.35},
}
"""How many times as fast as ``evoformer_backward_sm80`` a side was measured to be where both have
whole tiles, by the largest head_dim; at 24 what that was before boxes had D columns, and a part of
the 1.18 to 1.24 that a whole pass gained by these.
"""
_ARRAYS = (
    "pair_tiles", "key_bias", "stats", "first_grad", "second_grad", "mask_sums", "pair_sums"
)  # fmt: skip
"""Addresses in the parameter block, behind the tensor maps; null where there is no such array."""
_GROUP_STAGES = 2.5
_BLOCK_STAGES = 2.5
"""Time between two groups of rows N, and of a threadblock's begin, in that of a stage."""


@dataclass(frozen=True)
class Config(OperandRows, SideConfig, BoxMemory):
    """One instance of the kernel; its template is given the whole of it. `min_blocks` is 1."""

    block_rows: int = 3
    """Rows N of a threadblock: they share the pair-bias tile."""
    warpgroup_rows: int = 1
    """Rows N of a consumer warpgroup, one after the other; 1 on the side of keys."""
    block_streamed: int = 32
    """Streamed positions of a stage."""
    stages: int = 6
    """Shared-memory stages of the streamed operands, what goes with them, and the pair bias."""

    # -- Tiles -------------------------------------------------------------------------------------

    @property
    def warpgroups(self) -> int:
        """Consumer warpgroups."""
        return self.block_rows // self.warpgroup_rows

    @property
    def block_stationary(self) -> int:
        """Stationary positions of a threadblock."""
        return 64

    @property
    def warp_stationary(self) -> int:
        """The same of a warp."""
        return 16

    @property
    def m_tiles(self) -> int:
        """Tiles of 16 of them."""
        return 1

    @property
    def parts(self) -> int:
        """Parts of 16 streamed positions of a stage."""
        return self.block_streamed // 16

    @property
    def score_step(self) -> tuple[int, int]:
        """Stationary and streamed positions that are computed together, if any of them exists."""
        return (self.block_stationary, self.block_streamed)

    @property
    def tile(self) -> SharedTile:
        """The layout of a result's rows in shared memory."""
        return swizzle(self.head_dim // 8)

    @property
    def sum_warps(self) -> int:
        """Warps that add up dS of rows N."""
        return 2 if self.sums_rows else 0

    @property
    def threads(self) -> int:
        """Threads of a block: consumer warpgroups, the producer warp, sum warps."""
        return 128 * self.warpgroups + 32 + 32 * self.sum_warps

    # What macros of the kernels for sm_80 ask for.
    short_stationary = 0
    chunks_together = 1
    lane_keys = 0

    # -- The launch --------------------------------------------------------------------------------

    def groups(
        self, problem: Problem, arch: Architecture, ahead: Sequence[tuple[int, float]] = ()
    ) -> int:
        """Groups of rows N that a threadblock takes one after the other: those with which the
        device is done first, with sums over them in few chunks. The device has the threadblocks
        `ahead`, `threadblocks` of another launch, before it takes these.
        """
        row_groups = self.row_groups(problem)
        most = min(row_groups, most_chunks(problem)) if self.sums_rows else row_groups

        def end(groups: int) -> float:
            return choice.last_end(
                (*ahead, *self.threadblocks(problem, groups)), arch.multiprocessors
            )

        return min(groups_of_chunks(row_groups, most), key=end)

    def threadblocks(self, problem: Problem, groups: int) -> list[tuple[int, float]]:
        """Threadblocks of a launch, in their order: so many, and the estimated time of each, in
        that of a stage of one row N.
        """
        stages = ceil(problem.streamed / self.block_streamed)
        tiles, chunks = self.extents(problem, groups)
        fewest, longer = divmod(self.row_groups(problem), chunks)
        parts = ((longer, fewest + 1), (chunks - longer, fewest))
        return problem.batch * [
            (
                tiles * problem.heads * count,
                self.block_rows * (taken * (stages + _GROUP_STAGES) + _BLOCK_STAGES),
            )
            for count, taken in parts
        ]

    def groups_of(self, problem: Problem, blocks: int) -> int:
        """Groups that a threadblock of a launch of so many takes, at most."""
        tiles, row_groups = self.extents(problem, 1)
        return ceil(tiles * problem.heads * problem.batch * row_groups / blocks)

    def grid(self, problem: Problem, groups: int) -> tuple[int, int, int]:
        """Threadblocks of a launch, all in x: stationary tiles fastest, then heads, then chunks of
        rows, then batches.
        """
        tiles, chunks = self.extents(problem, groups)
        return (tiles * problem.heads * chunks * problem.batch, 1, 1)

    # -- Tensor maps -------------------------------------------------------------------------------

    def maps(self, views: Mapping[str, ArrayView]) -> dict[str, TensorMap | None]:
        """The maps of q, k, v and dout [B, N, L, H, D], (D, L, H, N, B), and of terms, None where
        the kernel has none. In the order of the parameter block.
        """
        found: dict[str, TensorMap | None] = {}
        for name in ("q", "k", "v", "dout"):
            own = name in self.stationary
            positions = self.block_stationary if own else self.block_streamed
            found[name] = self.operand_map(views[name], positions, self.block_rows)
        found["terms"] = self._terms_map(views["terms"]) if self.terms_bytes else None
        return found

    def _terms_map(self, x: ArrayView) -> TensorMap:
        """Of operands [B, N, H, positions / 8, 128]: (128, positions / 8, H, N, B); of key_terms
        [B, N, 1, positions / 8, 64], likewise.
        """
        box = (x.shape[-1], self.block_streamed // 8, 1, self.block_rows, 1)
        return TensorMap("bf16", x.pointer, tuple(x.shape[::-1]), tuple(x.strides[-2::-1]), box)


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    return {"config": config}


def violations(
    config: Config, arch: Architecture, problem: Problem | None = None
) -> tuple[str, ...]:
    """Reasons why `config` cannot run on `arch` (and serve `problem`); empty if it can. The only
    statement of the constraints.
    """
    if arch.name != ARCH:
        return (f"wgmma needs {ARCH}; this is {arch.name}",)
    return tuple(_violations(config, arch, problem))


def _violations(c: Config, arch: Architecture, problem: Problem | None) -> Iterator[str]:
    if reasons := tuple(backward.value_violations(c)):
        yield from reasons
        return
    if c.head_dim > 64:
        yield f"head_dim must be at most 64, not {c.head_dim}"
        return
    if c.dtype not in ("f16", "bf16"):
        yield f"dtype must be f16 or bf16, not {c.dtype!r}"
    if c.pair not in ("none", "f16", "bf16", "f32"):
        yield f"pair must be none, f16, bf16 or f32, not {c.pair!r}"
    if c.warpgroup_rows < 1 or c.block_rows % c.warpgroup_rows or not 1 <= c.warpgroups <= 4:
        yield (
            f"block_rows must be 1 to 4 times warpgroup_rows = {c.warpgroup_rows}, "
            f"not {c.block_rows}"
        )
        return
    if c.by_keys and c.warpgroup_rows > 1:
        yield f"warpgroup_rows must be 1 on the side of keys, not {c.warpgroup_rows}"
    lengths = (16, 32, 64) if c.by_keys else (16, 32)
    if c.block_streamed not in lengths:
        yield f"block_streamed must be one of {lengths}, not {c.block_streamed}"
        return
    # With one row N a stage is asked for before the one before it has been read.
    least = 3 if not c.by_keys and c.warpgroup_rows == 1 else 2
    if not least <= c.stages <= 16:
        yield f"stages must be {least} to 16, not {c.stages}"
    if c.min_blocks != 1:
        yield f"min_blocks must be 1, not {c.min_blocks}"
    yield from choice.resource_violations(c, arch)
    if problem is not None:
        yield from backward.problem_violations(c, _mask_step(c), problem)
        if not problem.mapped:
            yield "a tensor map steps forward along every axis of its operands, by less than 2^40"
        if not problem.scaled:
            yield "divides biases by the scale, which is so small that it is taken as 0"


def adapt(config: Config, problem: Problem) -> Config:
    """`config` with the fields that follow from the problem set to fit it."""
    chosen = replace(config, **{name: getattr(problem, name) for name in backward.FOLLOWS})
    return replace(chosen, mask=backward.needs_mask(chosen, _mask_step(chosen), problem))


def _mask_step(config: Config) -> int:
    """Keys at whose multiples they end without a mask: tiles of the pair bias mask those that are
    not there.
    """
    return config.block_streamed if config.pair == "none" else 1


def spill_fallbacks(config: Config) -> Iterator[Config]:
    """`config`; there is nothing that takes fewer registers."""
    yield config


# -- Choice ----------------------------------------------------------------------------------------


SHAPES = (
    Config(16, block_rows=3, block_streamed=64, stages=4),
    Config(32, block_rows=3, block_streamed=32, stages=6),
    Config(64, block_rows=2, block_streamed=32, stages=6),
    Config(16, side="queries", block_rows=6, warpgroup_rows=3),
    Config(32, side="queries", block_rows=4, warpgroup_rows=2, stages=5),
    Config(64, side="queries", block_rows=2, warpgroup_rows=1, stages=4),
)
"""Tilings of a side for head dims up to theirs: those that have registers enough."""


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    shapes = [each for each in SHAPES if each.side == problem.side]
    shape = next((each for each in shapes if problem.head_dim <= each.head_dim), shapes[-1])
    yield adapt(shape, problem), 1.0


def choose(problem: Problem, arch: Architecture) -> Config:
    """The legal candidate; ValueError, with every objection, if there is none."""
    return choice.cheapest(NAME, candidates(problem), violations, backward.cost, problem, arch)


def prefers_lower_variant(problem: Problem, arch: Architecture) -> bool:
    """Whether ``evoformer_backward_sm80`` is to run: where a call is short, where tiles of the pair
    bias would serve few rows N, and where this kernel's tiles are emptier than it is faster.
    """
    if problem.scores < _LEAST_SCORES:
        return True
    if problem.pair != "none" and problem.rows < _LEAST_ROWS:
        return True
    config, _ = next(candidates(problem))
    steps = (config.block_rows, config.block_stationary, config.block_streamed)
    extents = (problem.rows, problem.stationary, problem.streamed)
    filled = prod(extents) / prod(map(padded, extents, steps))
    gains = _GAINS[problem.side]
    gain = next(gains[most] for most in gains if problem.head_dim <= most)
    return filled * gain <= 1


# -- Launch ----------------------------------------------------------------------------------------


def parameters(
    config: Config,
    problem: Problem,
    groups: int,
    *,
    scale: float,
    **views: ArrayView,
) -> dict[str, Any]:
    """The parameter block of a launch, by field name; tensor maps are those of the CPU executor.

    views : q, k, v, dout, and as far as there are such terms, stats, pair_tiles, key_bias,
        first_grad, second_grad, mask_sums, pair_sums; other arrays are not the kernel's.
    """
    chunks = config.chunks_of(problem, groups)
    stationary_tiles, _ = config.extents(problem, groups)
    tiles, row_groups = views.get("pair_tiles"), config.row_groups(problem)
    found: dict[str, Any] = {
        f"{name}_map": each.encode_for_executor() if each else bytes(BYTES)
        for name, each in config.maps(views).items()
    }
    for name in _ARRAYS:
        found[name] = views[name].pointer if name in views else 0
    for i, label in enumerate(("batch", "head", "tile")):
        found[f"pair_stride_{label}"] = tiles.strides[i] if tiles else 0
    for name in ("first_grad", "second_grad"):
        for i, label in enumerate(("batch", "row", "position", "head")):
            found[f"{name}_stride_{label}"] = views[name].strides[i] if name in views else 0
    by_key = (views.get("key_bias"), views.get("mask_sums"), views.get("pair_sums"))
    stats = views.get("stats")
    return found | {
        "batches": problem.batch,
        "rows": problem.rows,
        "heads": problem.heads,
        "queries": problem.queries,
        "keys": problem.keys,
        "query_positions": 16 * stats.shape[3] if stats else 0,
        "key_positions": next((x.shape[-1] for x in by_key if x), 0),
        "streamed_tiles": ceil(problem.streamed / config.block_streamed),
        "stationary_tiles": stationary_tiles,
        "chunks": chunks,
        "groups": row_groups // chunks,
        "longer_chunks": row_groups % chunks,
        **magic_fields(heads=problem.heads, stationary_tiles=stationary_tiles, chunks=chunks),
        "score_scale": scale * log2(e),
        "bias_sign": -1.0 if scale < 0 else 1.0,
        "gradient_scale": scale,
    }


def addresses(
    config: Config, views: Mapping[str, ArrayView], *, context: PrimaryContext | None
) -> MappedAddresses:
    """Packer of a call's addresses for the front of the parameter block."""
    return MappedAddresses(NAME, tuple(config.maps(views).values()), context=context)
