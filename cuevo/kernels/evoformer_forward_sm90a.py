"""Host half of ``ptx/evoformer_forward_sm90a.ptx``: which instances there are to choose from, how
one is launched, its tensor maps.
"""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, e, log2
from typing import Any, NamedTuple

from cuevo.architectures import Architecture
from cuevo.arrays import ArrayView
from cuevo.cuda.context import PrimaryContext
from cuevo.cuda.tensor_map import BYTES
from cuevo.kernels import choice
from cuevo.kernels import guessed_reference_sm90a as guessed
from cuevo.kernels.forward import Problem, common_fields
from cuevo.kernels.forward_config_sm90a import (
    ARCH,
    COUNT,
    Config,
    device_violations,
    problem_violations,
    violations,
)
from cuevo.kernels.forward_speeds_sm90a import (
    can_convert,
    prefers_lower_variant,
    prefers_packed,
    speed,
)
from cuevo.kernels.mapped_addresses import MappedAddresses

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
    "cost",
    "device_violations",
    "parameters",
    "prefers_lower_variant",
    "prefers_packed",
    "problem_violations",
    "speed",
    "spill_fallbacks",
    "unmapped_fields",
    "values",
    "violations",
]

NAME = "evoformer_forward_sm90a"
SUMMARY = "Evoformer attention, forward: TMA, mbarriers, wgmma, persistent threadblocks"
MINIMUM_ARCH = 90


def values(config: Config, *, maps_at: int | None = None) -> dict[str, object]:
    """The names that the template sees; with `maps_at`, the instance is for a parameter block that
    begins with an address, from which that many bytes on its tensor maps are in memory.
    """
    return {"config": config, "maps_at": maps_at}


def adapt(config: Config, problem: Problem) -> Config:
    """`config` with the fields that follow from the problem set to fit it."""
    fitted = replace(
        config,
        head_dim=problem.head_dim,
        dtype=problem.dtype,
        mask=problem.mask,
        pair=problem.pair,
        cluster=1 if problem.pair == "none" else config.cluster,
        converts=config.converts and problem.pair in ("f16", "bf16"),
        scales_q=config.scales_q and problem.power_of_two,
    )
    late_pair, emulates = config.late_pair and fitted.tiled, config.emulates and fitted.can_emulate
    fitted = replace(fitted, late_pair=late_pair, emulates=emulates)
    ragged = not fitted.tiled and problem.keys % config.block_keys > 0
    return replace(fitted, mask="bounds") if ragged and not fitted.masked else fitted


def spill_fallbacks(config: Config) -> Iterator[Config]:
    """`config`, then such as take fewer registers: with a producer, if consumers ask for boxes, and
    with Q in shared memory.
    """
    yield config
    if config.consumers_ask:
        shape = _shape(config.head_dim)
        rows = min(config.block_rows, shape.block_rows)
        tiles = min(config.block_queries // 64, shape.m_tiles)
        other = replace(config, m_tiles=tiles, row_warpgroups=1, warpgroup_rows=1)
        other = replace(other, producer="warp", block_rows=rows, continues=shape.continues)
        config = other.filled()
        yield config
    if config.q_in_registers:
        other = replace(config, q_in_registers=False, continues=False, scales_q=False)
        other = replace(other, emulates=False)
        yield other.filled()


# -- Choice ----------------------------------------------------------------------------------------


SHAPES = (
    Config(8, block_rows=4, continues=True),
    Config(32, block_rows=3, continues=True),
    Config(56, block_rows=2, continues=True),
    Config(64, block_rows=2, continues=True, sums="added"),
)
"""Tilings for head dims up to theirs: those that have registers and shared memory enough."""
_ASKING_ABOVE_32 = Config(
    48, block_rows=3, stages=5, continues=True, producer="consumer", converts=True
)
"""At D 40 and 48, where there is room for a third row N if consumers ask for boxes."""
_TWO_ROWS_ABOVE_32 = replace(
    _ASKING_ABOVE_32, block_rows=2, row_warpgroups=3, warpgroup_rows=2, stages=6
)
"""There in bf16: three warpgroups that share two rows N and 192 queries."""
_SHARING_ABOVE_48 = Config(
    64,
    block_rows=2,
    row_warpgroups=2,
    m_tiles=1,
    stages=7,
    continues=True,
    producer="consumer",
    converts=True,
)
"""At D 56 and 64: four warpgroups, where registers allow two with two tiles of queries each."""
_LEAST_SHARE, _LEAST_SHARE_OF_SHARED = 0.7, 0.85
"""Of the time of a threadblock's rows N, what it takes where few of them exist; where warpgroups
share a row.
"""


def _shape(head_dim: int) -> Config:
    return next((each for each in SHAPES if head_dim <= each.head_dim), SHAPES[-1])


def candidates(problem: Problem) -> Iterator[tuple[Config, float]]:
    """Configurations that may serve `problem`, with the speed of their tiling."""
    for each in _shapes(problem):
        fitted = adapt(each, problem).filled()
        continues = fitted.continues and _has_registers_to_continue(fitted)
        emulates = fitted.can_emulate and _gains_by_emulating(fitted)
        yield replace(fitted, continues=continues, emulates=emulates), speed(fitted, problem)


def _shapes(problem: Problem) -> list[Config]:
    """What `candidates` are made of."""
    shape = _shape(problem.head_dim)
    shapes = [shape]
    if problem.pair != "none":
        shapes.append(replace(shape, cluster=2))
        converting = [replace(shape, converts=True)]
        if 8 < problem.head_dim <= 32:
            asking = replace(shape, producer="consumer", block_rows=4)
            shapes.append(replace(asking, stages=7) if problem.head_dim == 16 else asking)
            rows = 2 if problem.dtype == "bf16" else 1
            sharing = replace(asking, row_warpgroups=rows, warpgroup_rows=rows)
            converting.insert(0, replace(sharing, converts=True, stages=7))
            if problem.head_dim == 32 and problem.mask != "none" and rows > 1:
                shapes.append(sharing)
            if problem.head_dim in (24, 32):
                shapes.append(replace(asking, late_pair=True, stages=6))
        if can_convert(problem):
            small = replace(shape, block_rows=1, min_blocks=2, converts=True)
            shapes += [*converting, small, replace(small, m_tiles=1)]
            if problem.head_dim > 48:
                shapes.append(_SHARING_ABOVE_48)
        if problem.head_dim in (40, 48):
            shapes.append(replace(_ASKING_ABOVE_32, converts=False, stages=4))
            if can_convert(problem):
                shapes.append(_ASKING_ABOVE_32)
                if problem.dtype == "bf16":
                    shapes.append(_TWO_ROWS_ABOVE_32)
    scales_q = problem.power_of_two and problem.dtype == "bf16"
    return [replace(each, scales_q=scales_q and each.converts) for each in shapes]


def _gains_by_emulating(config: Config) -> bool:
    """Whether exponentials are what bounds it, so that to emulate some is worth it, and there are
    registers for that.
    """
    if config.converts and config.consumers_ask and config.mask_addends:
        spills = config.shares_pair and config.scales_q
        if config.head_dim > (16 if spills else 32):
            return False
    return config.head_dim <= (56 if config.pair == "none" else 48)


def _has_registers_to_continue(config: Config) -> bool:
    """Whether scores of the next work fit beside the results of one."""
    few = config.dtype == "bf16" and not config.converts
    return config.head_dim <= 56 or config.consumers_ask or few


def choose(problem: Problem, arch: Architecture) -> Config:
    """The legal candidate; ValueError, with every objection, if there is none."""
    found = choice.cheapest(NAME, candidates(problem), violations, cost, problem, arch)
    return replace(found, blocks=arch.multiprocessors)


def cost(config: Config, speed: float, problem: Problem, arch: Architecture) -> float:
    """Works of a cluster one after the other, by a multiprocessor's rows N, over their speed. One
    row of several takes longer than its share.
    """
    share = _LEAST_SHARE_OF_SHARED if config.row_warpgroups > 1 else _LEAST_SHARE
    rows = max(min(config.block_rows, problem.rows), share * config.block_rows)
    return config.rounds(problem, arch.multiprocessors) * (rows * config.min_blocks / speed)


# -- Launch ----------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A launch of some of a problem's queries."""

    config: Config
    problem: Problem
    first_query: int
    blocks: int
    """Threadblocks of it, at most."""


def parts(config: Config, problem: Problem, *, together: bool = False) -> Iterator[Part]:
    """The launches that serve `problem`: a last tile of 64 queries or fewer has its own, with tiles
    of 64, where others have more. If these run `together`, each has some of the multiprocessors,
    where that is better.
    """
    if not config.has_last_tile(problem):
        yield Part(config, problem, 0, config.blocks)
        return
    rest, low = problem.queries % config.block_queries, _low(config)
    problem, last = (replace(problem, queries=each) for each in (problem.queries - rest, rest))
    blocks = _blocks_of_last(config, low, problem, last) if together else 0
    yield Part(config, problem, 0, config.blocks - blocks)
    yield Part(low, last, problem.queries, blocks or low.blocks)


def _blocks_of_last(config: Config, low: Config, problem: Problem, last: Problem) -> int:
    """How many of a device's threadblocks take the works of the last tile beside those of the
    whole ones; 0: each launch has all of the device, one after the other.
    """
    least = config.least_blocks_of_last(problem, config.works(problem), low.works(last))
    if not least:
        return 0
    alone = config.rounds(problem, config.blocks) + low.rounds(last, config.blocks)
    best, fewest = 0, 100 * alone - 10
    for more in range(3):
        share = min(least + more * config.cluster, config.blocks - config.cluster)
        rounds = 100 * config.rounds(problem, config.blocks - share)
        rounds = max(rounds, config.last_hundredths(problem) * low.rounds(last, share))
        if rounds < fewest:  # of those that are as good the fewest, which leave more to the others
            best, fewest = share, rounds
    return best


def _low(config: Config) -> Config:
    """`config` with tiles of 64 queries, and what these have room for."""
    fewer = replace(config, m_tiles=1, row_warpgroups=1, warpgroup_rows=1)
    if config.consumers_ask:
        return replace(fewer, late_pair=False, stages=config.last_stages)
    rows = 4 if config.block_rows == 3 and not config.converts else config.block_rows
    return replace(fewer, block_rows=rows).filled()


def parameters(
    config: Config,
    problem: Problem,
    *,
    q: ArrayView,
    k: ArrayView,
    v: ArrayView,
    out: ArrayView,
    scale: float,
    mask_bias: ArrayView | None = None,
    pair_bias: ArrayView | None = None,
    pair_tiles: ArrayView | None = None,
    lse: ArrayView | None = None,
    first_query: int = 0,
    blocks: int | None = None,
) -> dict[str, Any]:
    """The parameter block of a launch, by field name; tensor maps are those of the CPU executor.

    problem : that of the launch, whose queries may be some of q's, from `first_query` on.

    blocks : threadblocks of the launch, at most, as `WorkList.grid` has them.

    pair_bias, pair_tiles : what the kernel converts, as the tensor map of it has it, or [B, H, key
        tiles, query tiles, 64 * block_keys], as `pair_tiles_sm90` makes it; the other is not read.
    """
    pair_map = bytes(BYTES)
    if config.converts and pair_bias is not None:
        pair_map = config.pair_map(pair_bias).encode_for_executor()
        pair_tiles = config.pair_as_tiles(pair_bias)
    l2_promotion = config.l2_promotion(problem)
    return {
        "q_map": config.q_map(q, l2_promotion).encode_for_executor(),
        "k_map": config.k_map(k, l2_promotion).encode_for_executor(),
        "v_map": config.k_map(v, l2_promotion).encode_for_executor(),
        "out_map": config.out_map(out).encode_for_executor(),
        "pair_map": pair_map,
        **unmapped_fields(
            config,
            problem,
            out=out,
            scale=scale,
            mask_bias=mask_bias,
            pair_tiles=pair_tiles,
            lse=lse,
            first_query=first_query,
            blocks=blocks,
        ),
    }


def unmapped_fields(
    config: Config,
    problem: Problem,
    *,
    out: ArrayView,
    scale: float,
    mask_bias: ArrayView | None,
    pair_tiles: ArrayView | None,
    lse: ArrayView | None,
    first_query: int,
    blocks: int | None = None,
) -> dict[str, Any]:
    """`parameters` without the tensor maps; a pair bias that is converted is as tiles."""
    scores_scale = config.scores_scale(scale)
    return {
        "pair_tiles": pair_tiles.pointer if pair_tiles else 0,
        "pair_stride_batch": pair_tiles.strides[0] if pair_tiles else 0,
        "pair_stride_head": pair_tiles.strides[1] if pair_tiles else 0,
        "pair_stride_tile": pair_tiles.strides[2] if pair_tiles else 0,
        "first_query": first_query,
        "key_tiles": ceil(problem.keys / config.block_keys),
        "score_scale": scores_scale * log2(e),
        "reference_scale": scores_scale * log2(e),
        "bias_scale": 1.0 / scores_scale,
        "first_reference": guessed.REFERENCE / abs(scores_scale * log2(e)),
        "q_scale": scale / scores_scale,
        "count_scale": scores_scale * log2(e) * COUNT,
        **config.numbering(problem, blocks),
        **common_fields(problem.keys, out=out, mask_bias=mask_bias, lse=lse),
    }


def addresses(
    config: Config,
    q: ArrayView,
    k: ArrayView,
    v: ArrayView,
    out: ArrayView,
    pair_bias: ArrayView | None,
    *,
    l2_promotion: int,
    context: PrimaryContext | None,
) -> MappedAddresses:
    """Packer of a call's addresses for the front of the parameter block; l2_promotion : as
    `WorkList.l2_promotion` says for its problem.
    """
    loaded = config.q_map(q, l2_promotion), *(config.k_map(x, l2_promotion) for x in (k, v))
    maps = *loaded, config.out_map(out)
    pair_map = config.pair_map(pair_bias) if config.converts and pair_bias else None
    return MappedAddresses(NAME, (*maps, pair_map), context=context)
