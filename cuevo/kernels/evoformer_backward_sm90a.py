"""Host half of ``ptx/evoformer_backward_sm90a.ptx``: what may be configured, how it is launched,
its tensor maps. It serves the side of keys: dk, dv and the gradient of the mask.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, e, log2, prod
from typing import Any

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.cuda.context import PrimaryContext
from cuevo.cuda.tensor_map import TensorMap
from cuevo.kernels import backward, choice
from cuevo.kernels.backward import Problem, SideConfig, padded
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
    "whole_keys",
]

NAME = "evoformer_backward_sm90a"
SUMMARY = "Evoformer attention, backward, the side of keys: TMA, mbarriers, wgmma"
MINIMUM_ARCH = 90
ARCH = "sm_90a"
"""Its instructions are those of one architecture, not of later ones."""

_BARRIER_BYTES = 8
_SWIZZLE_BYTES = 1024
"""After which swizzles of rows of any length begin again."""
_LEAST_SCORES = 2**25
"""From which on it runs unasked."""
_LEAST_ROWS = 16
"""The same of rows N, where there is a pair bias, whose tiles have to be made."""
_GAINS = {8: 1.0, 16: 1.15, 24: 1.03, 32: 1.2, 64: 1.2}
"""How many times as fast as ``evoformer_backward_sm80`` it was measured to be where both have whole
tiles, by the largest head_dim.
"""
_MOST_REST = 32
"""Keys behind whole tiles that take longer here than in ``evoformer_backward_sm80``."""
_GROUP_STAGES = 2.5
_BLOCK_STAGES = 2.5
"""Time between two groups of rows N, and of a threadblock's begin, in that of a stage."""


@dataclass(frozen=True)
class Config(OperandRows, SideConfig):
    """One instance of the kernel; its template is given the whole of it. `min_blocks` is 1."""

    block_rows: int = 3
    """Rows N of a threadblock, a consumer warpgroup each: they share the pair-bias tile."""
    block_streamed: int = 32
    """Queries of a stage."""
    stages: int = 6
    """Shared-memory stages of q, dout, what goes with them, and the pair bias."""

    # -- Tiles -------------------------------------------------------------------------------------

    @property
    def block_stationary(self) -> int:
        """Keys of a threadblock."""
        return 64

    @property
    def warp_stationary(self) -> int:
        """Keys of a warp."""
        return 16

    @property
    def m_tiles(self) -> int:
        """Tiles of 16 keys of a warp."""
        return 1

    @property
    def parts(self) -> int:
        """Parts of 16 queries of a stage: what their probabilities make is multiplied as soon as it
        is there.
        """
        return self.block_streamed // 16

    @property
    def score_step(self) -> tuple[int, int]:
        """Keys and queries that are computed together, if any of them exists."""
        return (self.block_stationary, self.block_streamed)

    @property
    def tile(self) -> SharedTile:
        """The layout of a result's rows in shared memory."""
        return swizzle(self.head_dim // 8)

    @property
    def threads(self) -> int:
        """Threads of a block: consumer warpgroups, the producer warp."""
        return 128 * self.block_rows + 32

    # What macros of the kernels for sm_80 ask for.
    short_stationary = 0
    chunks_together = 1
    lane_keys = 0

    # -- Shared memory: stages of (q | dout | pair), terms, K and V, results, barriers -------------

    @property
    def operand_row_bytes(self) -> int:
        """Bytes of the Q tile, or that of dout, of one row N in a stage."""
        return self.block_streamed * self.row_bytes

    @property
    def operand_bytes(self) -> int:
        """The same of all rows N."""
        return self.block_rows * self.operand_row_bytes

    @property
    def pair_at(self) -> int:
        """Where the pair bias begins in a stage."""
        return 2 * self.operand_bytes

    @property
    def pair_bytes(self) -> int:
        """Bytes of the pair bias of a stage."""
        return 4 * self.block_stationary * self.block_streamed if self.pair != "none" else 0

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage."""
        return self.pair_at + self.pair_bytes

    @property
    def terms_at(self) -> int:
        """Where the terms begin that products add: -lse and -delta in pieces."""
        return self.stages * self.stage_bytes

    @property
    def terms_row_bytes(self) -> int:
        """Bytes of the terms of a row N in a stage."""
        return 32 * self.block_streamed

    @property
    def terms_bytes(self) -> int:
        """Bytes of a stage of the terms."""
        return self.block_rows * self.terms_row_bytes

    @property
    def kv_at(self) -> int:
        """Where K begins, and behind it V: where their swizzle does."""
        return padded(self.terms_at + self.stages * self.terms_bytes, _SWIZZLE_BYTES)

    @property
    def kv_row_bytes(self) -> int:
        """Bytes of K, or of V, of one row N."""
        return self.block_stationary * self.row_bytes

    @property
    def kv_operand_bytes(self) -> int:
        """The same of all rows N."""
        return self.block_rows * self.kv_row_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of both."""
        return 2 * self.kv_operand_bytes

    @property
    def strips_at(self) -> int:
        """Where the results of a warp begin on their way to memory."""
        return self.kv_at + self.kv_bytes

    @property
    def strip_bytes(self) -> int:
        """Bytes of those of one warp."""
        return padded(16 * 2 * self.head_dim, 128)

    @property
    def strips_bytes(self) -> int:
        """Bytes of those of all warps."""
        return 4 * self.block_rows * self.strip_bytes

    @property
    def barriers_at(self) -> int:
        """Where the barriers begin."""
        return self.strips_at + self.strips_bytes

    @property
    def full_at(self) -> int:
        """Where the barriers of stages that are there begin, behind `barriers_at`."""
        return 0

    @property
    def empty_at(self) -> int:
        """The same of stages that have been read."""
        return _BARRIER_BYTES * self.stages

    @property
    def kv_full_at(self) -> int:
        """The same of K and V that are there."""
        return 2 * _BARRIER_BYTES * self.stages

    @property
    def kv_empty_at(self) -> int:
        """The same of K and V that have been read."""
        return self.kv_full_at + _BARRIER_BYTES

    @property
    def barriers(self) -> int:
        """How many barriers there are."""
        return 2 * self.stages + 2

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory."""
        return self.barriers_at + _BARRIER_BYTES * self.barriers

    # -- The launch --------------------------------------------------------------------------------

    def groups(self, problem: Problem, arch: Architecture) -> int:
        """Groups of rows N that a threadblock takes one after the other: those that take the device
        the least time.
        """
        offered = groups_of_chunks(self.row_groups(problem), self.row_groups(problem))
        return min(offered, key=lambda groups: self.time(groups, problem, arch))

    def time(self, groups: int, problem: Problem, arch: Architecture) -> float:
        """Estimated time in stages, where threadblocks take so many groups each."""
        stages = ceil(problem.streamed / self.block_streamed)
        waves = ceil(self.grid(problem, groups)[0] / arch.multiprocessors)
        return waves * (groups * (stages + _GROUP_STAGES) + _BLOCK_STAGES)

    def grid(self, problem: Problem, groups: int) -> tuple[int, int, int]:
        """Threadblocks of a launch, all in x: key tiles fastest, then heads, then chunks of rows,
        then batches.
        """
        tiles, chunks = self.extents(problem, groups)
        return (tiles * problem.heads * chunks * problem.batch, 1, 1)

    # -- Tensor maps -------------------------------------------------------------------------------

    def streamed_map(self, x: ArrayView) -> TensorMap:
        """The map of q or dout [B, N, Lq, H, D]: (D, Lq, H, N, B)."""
        return self.operand_map(x, self.block_streamed, self.block_rows)

    def stationary_map(self, x: ArrayView) -> TensorMap:
        """The map of k or v [B, N, Lk, H, D], likewise."""
        return self.operand_map(x, self.block_stationary, self.block_rows)

    def operands_map(self, x: ArrayView) -> TensorMap:
        """The map of operands [B, N, H, positions / 8, 128]: (128, positions / 8, H, N, B)."""
        return TensorMap(
            "bf16",
            x.pointer,
            tuple(x.shape[::-1]),
            tuple(x.strides[-2::-1]),
            (x.shape[-1], self.block_streamed // 8, 1, self.block_rows, 1),
        )


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
    if c.side != "keys":
        yield "serves the side of keys"
        return
    if c.head_dim > 64:
        yield f"head_dim must be at most 64, not {c.head_dim}"
        return
    if c.dtype not in ("f16", "bf16"):
        yield f"dtype must be f16 or bf16, not {c.dtype!r}"
    if c.pair not in ("none", "f16", "bf16", "f32"):
        yield f"pair must be none, f16, bf16 or f32, not {c.pair!r}"
    if not 1 <= c.block_rows <= 4:
        yield f"block_rows must be 1 to 4, not {c.block_rows}"
        return
    if c.block_streamed not in (16, 32, 64):
        yield f"block_streamed must be 16, 32 or 64, not {c.block_streamed}"
        return
    if not 2 <= c.stages <= 16:
        yield f"stages must be 2 to 16, not {c.stages}"
    if c.min_blocks != 1:
        yield f"min_blocks must be 1, not {c.min_blocks}"
    yield from choice.resource_violations(c, arch)
    if problem is not None:
        yield from backward.problem_violations(c, c.block_streamed, problem)
        if not problem.mapped:
            yield "a tensor map steps forward along every axis of its operands, by less than 2^40"
        if not problem.scaled:
            yield "divides biases by the scale, which is so small that it is taken as 0"


def adapt(config: Config, problem: Problem) -> Config:
    """`config` with the fields that follow from the problem set to fit it."""
    chosen = replace(config, **{name: getattr(problem, name) for name in backward.FOLLOWS})
    return replace(chosen, mask=problem.mask != "none")


def spill_fallbacks(config: Config) -> Iterator[Config]:
    """`config`; there is nothing that takes fewer registers."""
    yield config


# -- Choice ----------------------------------------------------------------------------------------


SHAPES = (
    Config(16, block_rows=3, block_streamed=64, stages=4),
    Config(32, block_rows=3, block_streamed=32, stages=6),
    Config(64, block_rows=2, block_streamed=32, stages=6),
)
"""Tilings for head dims up to theirs: those that have registers enough."""


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    shape = next((each for each in SHAPES if problem.head_dim <= each.head_dim), SHAPES[-1])
    yield adapt(shape, problem), 1.0


def choose(problem: Problem, arch: Architecture) -> Config:
    """The legal candidate; ValueError, with every objection, if there is none."""
    return choice.cheapest(NAME, candidates(problem), violations, backward.cost, problem, arch)


def whole_keys(keys: int) -> int:
    """How many of so many keys are this kernel's: a few behind whole tiles are left to
    ``evoformer_backward_sm80``, whose tiles may be as small.
    """
    whole, rest = divmod(keys, 64)
    return 64 * whole if whole and rest <= _MOST_REST else keys


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
    extents = (problem.rows, whole_keys(problem.keys), problem.queries)
    filled = prod(extents) / prod(map(padded, extents, steps))
    gain = next(found for head_dim, found in _GAINS.items() if problem.head_dim <= head_dim)
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

    views : q, k, v, dout, operands, and as far as there are such pair_tiles, key_bias, first_grad,
        second_grad, mask_sums; other arrays are not the kernel's.
    """
    chunks = config.chunks_of(problem, groups)
    stationary_tiles, _ = config.extents(problem, groups)
    tiles, row_groups = views.get("pair_tiles"), config.row_groups(problem)
    found: dict[str, Any] = {
        f"{name}_map": each.encode_for_executor() for name, each in _maps(config, views).items()
    }
    for name in ("pair_tiles", "key_bias", "first_grad", "second_grad", "mask_sums"):
        found[name] = views[name].pointer if name in views else 0
    for i, label in enumerate(("batch", "head", "tile")):
        found[f"pair_stride_{label}"] = tiles.strides[i] if tiles else 0
    for name in ("first_grad", "second_grad"):
        for i, label in enumerate(("batch", "row", "position", "head")):
            found[f"{name}_stride_{label}"] = views[name].strides[i] if name in views else 0
    by_key = (views.get("key_bias"), views.get("mask_sums"))
    return found | {
        "rows": problem.rows,
        "heads": problem.heads,
        "keys": problem.keys,
        "query_tiles": ceil(problem.queries / config.block_streamed),
        "key_positions": next((x.shape[-1] for x in by_key if x), 0),
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
    maps = _maps(config, views).values()
    return MappedAddresses(NAME, tuple(maps), context=context)


def _maps(config: Config, views: Mapping[str, ArrayView]) -> dict[str, TensorMap]:
    """The tensor maps, in the order of the parameter block."""
    return {
        "q": config.streamed_map(views["q"]),
        "k": config.stationary_map(views["k"]),
        "v": config.stationary_map(views["v"]),
        "dout": config.streamed_map(views["dout"]),
        "operands": config.operands_map(views["operands"]),
    }
